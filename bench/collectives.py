"""How long AlltoAll and AllReduce take over these ranks and links, and whether the links carry what they should.

    python -m bench.collectives --ranks 4 --ranks-per-host 2                  # starts the ranks itself
    python -m bench.cluster --hosts 4 --ranks-per-host 2 --link 200mbit -- python -m bench.collectives

    flat        AlltoAll of all ranks
    inside      AlltoAll of the ranks of each host, all hosts at once
    peer        AlltoAll of the ranks at one place of each host, all places at once
    allreduce   AllReduce of all ranks

One line a collective and size, gloo's pairwise (bench.pairwise) or NCCL's:

    size        bytes of one rank's send buffer
    ms          of one call: the fastest rank, the mean, the slowest; of the slowest come all columns to the right
    algbw, busbw    MB/s, in the formulas of nccl-tests: size / time, and that times (n - 1) / n for an AlltoAll of n
                ranks, 2 (n - 1) / n for an AllReduce: what a link would carry if there were no faster one
    of link     bytes that a host sends to others / (time x rate of its link); only where bench.cluster made the links
    link/formula    bytes that a host's link sent, without its packets' headers / bytes that its ranks must send to
                others, of the host where they differ most; they may differ by 3 %, and 64 kB for the ranks' other talk
    wrong       numbers that arrived wrong

Exits with 1 where a number or a link's bytes are wrong. Sizes below 1 MiB are fast because a link's bucket (256 kB) is
full at their start: marked ~, not to be quoted.
"""

import argparse
import json
import shlex
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from bench import launch, link, record
from bench.arguments import parsed, whole
from bench.errors import cli
from bench.files import write_text
from bench.pairwise import pairwise_exchange
from bench.ranks import Ranks
from bench.together import of_all
from dmt import Topology
from dmt.topology import create_groups

KINDS = ("flat", "inside", "peer", "allreduce")
MiB = 2**20


@dataclass(frozen=True)
class Collective:
    """One kind over the ranks of a topology; n: ranks that take part in one call."""

    kind: str
    topology: Topology

    @property
    def n(self) -> int:
        inside, peer = self.topology.ranks_per_host, self.topology.hosts
        return {"inside": inside, "peer": peer}.get(self.kind, self.topology.ranks)

    def bus_factor(self) -> float:
        """busbw / algbw, as nccl-tests has it."""
        return (self.n - 1) / self.n * (2 if self.kind == "allreduce" else 1)

    def across(self, size: int) -> float:
        """Payload bytes that each host sends to others in one call with `size` bytes a rank.

        An AllReduce goes round a ring in the order of the ranks, and leaves each host over one rank.
        """
        hosts, local, ranks = self.topology.hosts, self.topology.ranks_per_host, self.topology.ranks
        if hosts == 1:
            return 0.0
        return {
            "flat": local * size * (ranks - local) / ranks,
            "inside": 0.0,
            "peer": local * size * (hosts - 1) / hosts,
            "allreduce": 2 * (ranks - 1) / ranks * size,
        }[self.kind]

    def whole_size(self, size: int) -> int:
        """The next smaller size that is a number of int32 for each rank, at least one."""
        return max(4 * self.n, size // (4 * self.n) * 4 * self.n)

    def call(self, size: int, group: dist.ProcessGroup, device: torch.device) -> tuple[Callable[[], None], Callable]:
        """(what to time, what tells the numbers that are wrong after it)."""
        me, count = group.rank(), size // 4
        place = torch.arange(count // self.n, dtype=torch.int32, device=device)
        if self.kind == "allreduce":
            values = torch.empty(count, dtype=torch.int32, device=device)
            place = torch.arange(count, dtype=torch.int32, device=device) % 1000
            sums = place * self.n + self.n * (self.n - 1) // 2

            def wrong() -> int:
                values.copy_(place + me)
                dist.all_reduce(values, group=group)
                return int((values != sums).sum())

            return lambda: dist.all_reduce(values, group=group), wrong
        send = torch.cat([place + (me * self.n + to) * 1009 for to in range(self.n)])
        received = torch.empty_like(send)
        expected = torch.cat([place + (source * self.n + me) * 1009 for source in range(self.n)])

        def exchange() -> None:
            dist.all_to_all_single(received, send, group=group)

        def wrong_received() -> int:
            received.fill_(-1)
            exchange()
            return int((received != expected).sum())

        return exchange, wrong_received


def measure(
    collective: Collective, size: int, group: dist.ProcessGroup, ranks: Ranks, args: argparse.Namespace
) -> dict:
    """Time and check one collective at one size; all ranks get the same facts."""
    call, wrong = collective.call(size, group, ranks.device)
    for _ in range(args.warmup):
        call()
    links_before = link.sent_by_hosts(ranks.ranks_per_host)
    dist.barrier()
    started = time.perf_counter()
    for _ in range(args.iterations):
        call()
    if ranks.device.type == "cuda":
        torch.cuda.synchronize()
    seconds = (time.perf_counter() - started) / args.iterations
    links = link.sent_by_hosts(ranks.ranks_per_host)
    of_ranks = of_all(seconds)
    slowest, across = max(of_ranks), collective.across(size)
    fact = {
        "kind": collective.kind,
        "ranks": collective.n,
        "size": size,
        "ms": {"min": min(of_ranks) * 1e3, "mean": statistics.mean(of_ranks) * 1e3, "max": slowest * 1e3},
        "algbw_MB_per_s": size / slowest / 1e6,
        "busbw_MB_per_s": size / slowest / 1e6 * collective.bus_factor(),
        "across_bytes": across,
        "of_link": None,
        "link_bytes": None,
        "wrong": sum(of_all(wrong())),
    }
    if links is not None:
        fact["of_link"] = across * 8 / (slowest * link.bits_per_s())
        fact["link_bytes"] = [
            (after - before) / args.iterations for before, after in zip(links_before, links, strict=True)
        ]
    return fact


def good(fact: dict, iterations: int) -> bool:
    """Whether all numbers arrived, and every link carried what it should."""
    if fact["wrong"]:
        return False
    return all(link.agrees(sent, fact["across_bytes"], iterations) for sent in fact["link_bytes"] or ())


def compare(args: argparse.Namespace, ranks: Ranks) -> int:
    """Measure every kind at every size; rank 0 reports. The exit code."""
    topology = check(args, ranks.size, ranks.ranks_per_host)
    groups = create_groups(topology)
    of_kind = {"inside": groups.host, "peer": groups.peers}
    facts = []
    if ranks.first:
        _head(topology, args)
    with pairwise_exchange():
        for kind in args.kinds:
            collective = Collective(kind, topology)
            if collective.n == 1:
                continue
            for size in args.sizes:
                group = of_kind.get(kind, dist.group.WORLD)
                facts.append(measure(collective, collective.whole_size(size), group, ranks, args))
                if ranks.first:
                    _line(facts[-1], args)
    if ranks.first and args.json:
        write_text(args.json, json.dumps(_report(topology, args, facts), indent=1) + "\n")
    return 0 if all(good(fact, args.iterations) for fact in facts) else 1


def _head(topology: Topology, args: argparse.Namespace) -> None:
    print(
        f"{topology.hosts} hosts x {topology.ranks_per_host} ranks, {dist.get_backend()}, {link.description()}; "
        f"{args.warmup} calls to warm up, {args.iterations} timed"
    )
    print(
        f"{'kind':10}{'ranks':>6}{'size':>12}{'ms  min':>10}{'mean':>9}{'max':>9}{'algbw':>9}{'busbw':>9}"
        f"{'of link':>9}{'link/formula':>14}{'wrong':>7}"
    )


def _line(fact: dict, args: argparse.Namespace) -> None:
    ms, across = fact["ms"], fact["across_bytes"]
    of_link = ratio = "-"
    if fact["link_bytes"] and across:
        of_link = f"{fact['of_link']:.2f}" + ("~" if fact["size"] < MiB else "")
        ratio = f"{max((sent / across for sent in fact['link_bytes']), key=lambda r: abs(r - 1)):.3f}"
    print(
        f"{fact['kind']:10}{fact['ranks']:>6}{fact['size']:>12,}{ms['min']:>10.3f}{ms['mean']:>9.3f}{ms['max']:>9.3f}"
        f"{fact['algbw_MB_per_s']:>9.1f}{fact['busbw_MB_per_s']:>9.1f}{of_link:>9}{ratio:>14}{fact['wrong']:>7}"
        + ("" if good(fact, args.iterations) else "  WRONG"),
        flush=True,
    )


def _report(topology: Topology, args: argparse.Namespace, facts: list[dict]) -> dict:
    return {
        "command": shlex.join(["python", "-m", "bench.collectives", *sys.argv[1:]]),
        "topology": asdict(topology),
        "link_bits_per_s": link.bits_per_s(),
        "backend": dist.get_backend(),
        "warmup": args.warmup,
        "iterations": args.iterations,
        "versions": record.versions(),
        "hardware": record.hardware(),
        "collectives": facts,
    }


def check(args: argparse.Namespace, ranks: int, ranks_per_host: int | None = None) -> Topology:
    """The shape to run; ranks_per_host: of a machine, None: all on this one.

    Raises:
        UserError: one that cannot be.
    """
    return launch.shape(args, ranks, args.ranks_per_host or ranks_per_host or ranks)


def size(text: str) -> int:
    """4MiB, 512KiB, or a number of bytes."""
    for unit, factor in ("KiB", 2**10), ("MiB", MiB), ("GiB", 2**30):
        if text.endswith(unit):
            return whole(1)(text.removesuffix(unit)) * factor
    return whole(4)(text)


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Arguments of the command line (argv: None), or of a list."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.collectives", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    count = whole(1)
    parser.add_argument(
        "--ranks", type=count, help="ranks to start here (default 4); not where they are started already"
    )
    parser.add_argument("--ranks-per-host", type=count, help="L, of logical hosts (default: a machine's)")
    parser.add_argument("--kinds", choices=KINDS, nargs="+", default=list(KINDS), help="(default: all)")
    parser.add_argument(
        "--sizes",
        type=size,
        nargs="+",
        default=[MiB, 4 * MiB, 16 * MiB],
        help="a rank: 512KiB, 4MiB (default 1 4 16 MiB)",
    )
    parser.add_argument("--warmup", type=count, default=2, help="calls before the timed ones (default %(default)s)")
    parser.add_argument("--iterations", type=count, default=5, help="timed calls (default %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures")
    return parsed(parser, argv)


def main() -> int | None:
    return launch.run("bench.collectives", parse(), check, compare)


if __name__ == "__main__":
    cli(main)
