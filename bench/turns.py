"""The turns of a contestant of bench.throughput: their times, and their bytes against the formulas."""

import statistics
import time

import torch

from bench import link
from bench import traffic_formulas as formulas
from bench.ranks import Ranks
from bench.running import Running
from bench.together import barrier, of_all
from bench.traffic import Sent, Traffic


class Void(Exception):
    """Bytes that are not those of the formulas."""


class Turns:
    """What a contestant has shown so far.

    samples_per_s, ms: one a turn, and one an iteration (of the slowest rank); open_ms: of an iteration over open links.
    """

    def __init__(self, running: Running, ranks: Ranks) -> None:
        self.running, self.ranks = running, ranks
        self.samples_per_s: list[float] = []
        self.ms: list[float] = []
        self.open_ms: list[float] = []
        self.breakdown: dict | None = None
        everyone = [running.parts(rank) for rank in range(ranks.size)]
        self.predicted = [formulas.total(parts) for parts in everyone]
        self.parts = _mean_parts(everyone)
        self.counted: list[Sent] = []
        self.link_bytes: list[list[float]] = []  # a turn: what each host's link sent in an iteration

    def count(self) -> None:
        """Bytes that each rank hands over, in one iteration.

        Raises:
            Void: not what the formulas say.
        """
        self.running()  # fills the pipeline
        with Traffic(self.ranks_per_host) as counter:
            self.running()
        self.counted = of_all(counter.sent())
        for where in ("inside", "across"):
            counted, predicted = (sum(getattr(s, where) for s in sent) for sent in (self.counted, self.predicted))
            if abs(counted - predicted) > link.OFF * predicted:
                raise Void(
                    f"the ranks sent {counted:,} bytes {where} hosts in an iteration, the formulas say {predicted:,}"
                )

    def take(self, warmup: int, iterations: int, open_links: bool = False) -> None:
        """One turn.

        Raises:
            Void: the links carried something else than the formulas say.
        """
        count = iterations - warmup
        for _ in range(warmup):
            self.running()
        before = link.sent_by_hosts(self.ranks_per_host)
        barrier()
        clock = Clock(self.ranks.device)
        for _ in range(count):
            self.running()
            clock.tick()
        of_ranks = of_all(clock.ms())
        sent = link.sent_by_hosts(self.ranks_per_host)
        ms = [max(same) for same in zip(*of_ranks, strict=True)]
        if open_links:
            self.open_ms += ms
        else:
            samples = self.ranks.size * self.running.workload.local_batch * count
            self.samples_per_s.append(samples / max(sum(of_rank) for of_rank in of_ranks) * 1e3)
            self.ms += ms
        if sent is not None:
            self.link_bytes.append([(after - start) / count for after, start in zip(sent, before, strict=True)])
            self._check_links(count)

    def _check_links(self, count: int) -> None:
        for host, (sent, predicted) in enumerate(zip(self.link_bytes[-1], self.across_by_host(), strict=True)):
            if not link.agrees(sent, predicted, count):
                raise Void(
                    f"the link of host {host} carried {sent:,.0f} bytes an iteration, the formulas say {predicted:,}"
                )

    def across_by_host(self) -> list[int]:
        """Bytes that each host must send to others in one iteration."""
        local = self.ranks_per_host
        hosts = range(self.running.topology.hosts)
        return [sum(sent.across for sent in self.predicted[host * local : (host + 1) * local]) for host in hosts]

    @property
    def ranks_per_host(self) -> int:
        return self.running.topology.ranks_per_host


class Clock:
    """Milliseconds of each iteration: from the start to the first tick, from tick to tick."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._marks = device, []
        self.tick()

    def tick(self) -> None:
        """An iteration is over; on a GPU, in the order of its work, without waiting for it."""
        if self._device.type == "cuda":
            self._marks.append(torch.cuda.Event(enable_timing=True))
            self._marks[-1].record()
        else:
            self._marks.append(time.perf_counter())

    def ms(self) -> list[float]:
        pairs = list(zip(self._marks, self._marks[1:], strict=False))
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
            return [start.elapsed_time(end) for start, end in pairs]
        return [(end - start) * 1e3 for start, end in pairs]


def _mean_parts(everyone: list[formulas.Parts]) -> dict[str, dict[str, float]]:
    """By part, what a rank sends in an iteration: mean over ranks."""
    return {
        part: {
            where: statistics.mean(getattr(parts[part], where) for parts in everyone) for where in ("inside", "across")
        }
        for part in everyone[0]
    }
