"""How fast models train over these ranks and links, by model and by how their tables are sharded: weak scaling.

    python -m bench.throughput --ranks 4 --ranks-per-host 2 --contestants dcn sptt_dcn dmt_dcn      # starts the ranks
    python -m bench.cluster --hosts 4 --ranks-per-host 2 --link 200mbit -- python -m bench.throughput

Contestants (bench.contestants says how each is written and made) train on random data with a fixed local batch, with
one tower a host, all in one job, in turn: A B C A B C. Each turn is --iterations long; its first --warmup are not
counted. gloo's AlltoAll is pairwise (bench.pairwise) for all. One line each:

    samples/s   of all ranks together, by the slowest rank: median of the turns, smallest and largest
    ms          of an iteration: median, 90th percentile; `open`: with links opened wide, what operations alone take
    compute, embedding, dense, others   where an iteration's time goes (bench.breakdown), in a turn of its own under the
                profiler, mean over iterations and ranks; `wait`: what of it was waiting for the slowest rank
    MB across   what a host sends to others in one iteration, by the formulas (bench.traffic_formulas); what the ranks
                really hand over is counted in an iteration that is not timed (bench.traffic), and what the links carry
                in every turn: a contestant where they disagree is void, and gets no number

A contestant that cannot be built has a record too, with the reason. Ranks share the cores of an emulated cluster, and
their operations are not those of a GPU: nothing of this is a measurement of GPUs unless it ran on them.
"""

import argparse
import datetime
import json
import resource
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torchrec.distributed.planner.types import PlannerError

from baselines import ModelSpec
from bench import contestants, launch, link, profiled, record
from bench import traffic_formulas as formulas
from bench.arguments import parsed, positive, whole
from bench.contestants import Contestant, Running, Workload
from bench.errors import UserError, cli
from bench.files import write_text
from bench.mixture import Shares
from bench.pairwise import pairwise_exchange
from bench.ranks import Ranks
from bench.together import barrier, of_all
from bench.traffic import Sent, Traffic
from dmt import Topology

DEFAULT = ("dlrm", "dlrm_small_over", "sptt_dlrm", "dmt_dlrm", "dcn", "sptt_dcn", "dmt_dcn")
TIMEOUT_S = 300  # for which ranks wait for each other: the first one reads traces alone


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
        for _ in range(3):  # until DistributedDataParallel has settled its buckets and the pipeline is full
            self.running()
        with Traffic(self.ranks_per_host) as counter:
            self.running()
        self.counted = of_all(counter.sent())
        for where in ("inside", "across"):
            counted, predicted = (sum(getattr(s, where) for s in sent) for sent in (self.counted, self.predicted))
            if abs(counted - predicted) > link.HEADERS * predicted:
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


def compare(args: argparse.Namespace, ranks: Ranks) -> int:
    """Build all contestants, run them in turn, write their records; rank 0 reports. The exit code."""
    topology, chosen = check(args, ranks.size, ranks.ranks_per_host)
    started = datetime.datetime.now(datetime.UTC)
    workload = Workload(args.features, args.rows, args.local_batch, args.seed)
    with pairwise_exchange():
        shown: dict[Contestant, Turns | str] = {}
        for contestant in chosen:
            shares = _shares(contestant, shown)
            shown[contestant] = _begin(contestant, workload, topology, args, ranks, shares)
        _take_turns(args, shown, ranks)
    memory = of_all(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    records = [_record(args, topology, contestant, turns, memory, started) for contestant, turns in shown.items()]
    if ranks.first:
        _print(args, topology, records)
        if args.json:
            for one in records:
                record.check(one, args.json)
            write_text(args.json, json.dumps(records, indent=1, allow_nan=False) + "\n")
    return 0


def _shares(contestant: Contestant, shown: dict[Contestant, Turns | str]) -> Shares | None:
    """How much of its own bytes it sends; None where a contestant that it has bytes of could not be built."""
    if not contestant.is_mixture:
        return Shares()
    built = {other.name: turns for other, turns in shown.items() if isinstance(turns, Turns)}
    own, embeddings, dense = (
        built.get(name) for name in (contestant.operations, contestant.embeddings, contestant.dense)
    )
    if own is None or embeddings is None or dense is None:
        return None

    def between(turns: Turns) -> float:
        return sum(turns.parts[part]["across"] for part in ("embeddings between", "gradients between"))

    own_dense, other_dense = (turns.running.about.dense_bytes for turns in (own, dense))
    return Shares(between(embeddings) / between(own), other_dense / own_dense)


def _begin(
    contestant: Contestant,
    workload: Workload,
    topology: Topology,
    args: argparse.Namespace,
    ranks: Ranks,
    shares: Shares | None,
) -> Turns | str:
    """Ready for its turns; or why it cannot be, which every rank finds by itself."""
    if shares is None:
        return "a contestant whose bytes it should have could not be built"
    try:
        running = Running(contestant, workload, topology, ranks, args.wire == "half", args.bucket_mib, shares)
    except (ValueError, PlannerError) as error:
        return str(error).partition("\n")[0]
    turns = Turns(running, ranks)
    try:
        turns.count()
    except Void as void:
        return f"void: {void}"
    return turns


def _take_turns(args: argparse.Namespace, shown: dict[Contestant, Turns | str], ranks: Ranks) -> None:
    """All turns of all contestants. One that turns out void becomes its reason."""
    emulated = link.bits_per_s()

    def everyone(what: str, turn, mixtures: bool = False) -> None:
        if ranks.first:
            print(what, file=sys.stderr, flush=True)
        for contestant, turns in shown.items():
            if isinstance(turns, str) or (contestant.is_mixture and not mixtures):
                continue
            try:
                turn(turns)
            except Void as void:
                shown[contestant] = f"void: {void}"

    for repeat in range(args.repeats):
        what = f"repeat {repeat + 1} of {args.repeats}"
        everyone(what, lambda turns: turns.take(args.warmup, args.iterations), mixtures=True)
    if args.turns_only:
        return
    if emulated:
        set_links(link.OPEN, ranks)
        everyone("links open", lambda turns: turns.take(args.warmup, args.iterations, open_links=True))
        set_links(emulated, ranks)

    def profile(turns: Turns) -> None:
        trace = args.traces and args.traces / turns.running.contestant.name.replace(":", "-")
        turns.breakdown = profiled.breakdown(
            turns.running, args.warmup, args.iterations, trace, args.trace_ranks, ranks
        )

    everyone("breakdown", profile)


def set_links(rate: int, ranks: Ranks) -> None:
    """Give the cluster's links another rate, in bits a second. All ranks call it."""
    barrier()
    if ranks.first:
        link.set_rate(rate)
    barrier()


def _record(
    args: argparse.Namespace,
    topology: Topology,
    contestant: Contestant,
    turns: Turns | str,
    memory: list[float],
    started: datetime.datetime,
) -> dict:
    spec, shape = contestant.spec, f"{topology.hosts}x{topology.ranks_per_host}"
    built = not isinstance(turns, str)
    about = turns.running.about if built else None
    groups = [list(group) for group in about.partition] if built and about.partition else None
    process = record.of_process("bench.throughput", started, topology.ranks_per_host)
    if process["topology"]["link"] != "none" and process["hardware"]["gpus"] == []:
        process["provenance"] = "emulated"  # ranks of one machine, or processors that stand for GPUs
    return {
        "kind": "throughput",
        "study": args.study or (args.json.resolve().parent.name if args.json else "none"),
        "run": f"{contestant.name.replace(':', '-')}-{shape}",
        "model": spec.model,
        "towers": spec.towers,
        "tower_dim": about.tower_dim if built else spec.tower_dim,
        "compression_ratio": about.compression_ratio if built else 1.0,
        "partition": {"name": "naive" if groups else "none", "groups": groups},
        **process,
        "seed": args.seed,
        "data": None,
        "options": {
            name: str(value) if isinstance(value, Path) else value
            for name, value in vars(args).items()
            if name not in ("contestants", "json", "ranks")
        },
        "status": "ok" if built else "failed",
        "reason": None if built else turns,
        "accuracy": None,
        "complexity": None,
        "throughput": _throughput(args, contestant, turns, memory) if built else None,
        "bytes": _bytes(turns) if built else None,
        "breakdown": turns.breakdown if built else None,
    }


def _throughput(args: argparse.Namespace, contestant: Contestant, turns: Turns, memory: list[float]) -> dict:
    rate = link.bits_per_s()
    return {
        "sharding": contestant.sharding,
        "wire": args.wire,
        "local_batch": args.local_batch,
        "warmup": args.warmup,
        "iterations": args.iterations,
        "repeats": args.repeats,
        "samples_per_s": turns.samples_per_s,
        "iteration_ms": turns.ms,
        "open_ms": turns.open_ms or None,
        "link_bits_per_s": rate,
        "dilation": link.dilation(),
        "parts_of": {part: getattr(contestant, part) for part in ("operations", "embeddings", "dense")}
        if contestant.is_mixture
        else None,
        "memory_MiB": {"max": max(memory), "mean": statistics.mean(memory)},
        "plan": {
            table: {"sharding_type": sharding.sharding_type, "ranks": list(sharding.ranks)}
            for module in turns.running.plan.plan.values()
            for table, sharding in module.items()
        },
    }


def _bytes(turns: Turns) -> dict:
    def mean(of_ranks: list[Sent]) -> dict:
        return {where: statistics.mean(getattr(sent, where) for sent in of_ranks) for where in ("inside", "across")}

    links = None
    if turns.link_bytes:
        means = [statistics.mean(of_host) for of_host in zip(*turns.link_bytes, strict=True)]
        links = {"sent": means, "predicted": turns.across_by_host()}
    return {
        "counted": mean(turns.counted),
        "predicted": mean(turns.predicted),
        "predicted_parts": turns.parts,
        "links": links,
    }


def _print(args: argparse.Namespace, topology: Topology, records: list[dict]) -> None:
    print(
        f"{topology.hosts} hosts x {topology.ranks_per_host} ranks, {dist.get_backend()}, {link.description()}; local "
        f"batch {args.local_batch}, {args.repeats} turns of {args.iterations} iterations, {args.warmup} to warm up"
    )
    print(
        f"{'contestant':28}{'samples/s (min..max)':>26}{'ms':>8}{'p90':>8}{'open':>8}"
        f"{'compute':>9}{'embed.':>8}{'dense':>7}{'others':>8}{'wait':>7}{'MB across':>11}"
    )
    for one in records:
        print(_line(one))


def _line(one: dict) -> str:
    name = f"{one['run'].rpartition('-')[0]:28}"
    if one["status"] != "ok":
        return f"{name} {one['status']}: {one['reason']}"
    shown, parts = one["throughput"], one["breakdown"]
    rates, ms = shown["samples_per_s"], sorted(shown["iteration_ms"])
    open_ms = f"{statistics.median(shown['open_ms']):.1f}" if shown["open_ms"] else "-"
    p90 = ms[min(len(ms) - 1, int(0.9 * len(ms)))]
    line = f"{name}{statistics.median(rates):10,.0f} ({min(rates):,.0f}..{max(rates):,.0f})".ljust(54)
    line += f"{statistics.median(ms):8.1f}{p90:8.1f}{open_ms:>8}"
    if parts:
        line += f"{parts['compute']:9.1f}{parts['embedding']:8.1f}{parts['dense']:7.1f}{parts['others']:8.1f}"
        line += f"{parts['straggler_wait']:7.1f}"
    else:
        line += f"{'-':>9}{'-':>8}{'-':>7}{'-':>8}{'-':>7}"
    local = one["topology"]["ranks_per_host"]
    return line + f"{one['bytes']['predicted']['across'] * local / 1e6:11.3f}"


def check(args: argparse.Namespace, ranks: int, ranks_per_host: int | None = None) -> tuple[Topology, list[Contestant]]:
    """The shape and the contestants; ranks_per_host: of a machine, None: all on this one.

    Raises:
        UserError: what cannot be.
    """
    topology = launch.shape(args, ranks, args.ranks_per_host or ranks_per_host or ranks)
    chosen = checked_workload(args, topology, args.contestants)
    before: list[str] = []
    for contestant in chosen:
        for other in (contestant.operations, contestant.embeddings, contestant.dense) if contestant.is_mixture else ():
            if other not in before or ":" in other:
                raise UserError(
                    f"--contestants: {contestant.name} has parts of {other}: put that one, sharded as towers, before it"
                )
        before.append(contestant.name)
    return topology, chosen


def checked_workload(args: argparse.Namespace, topology: Topology, names: list[str]) -> list[Contestant]:
    """The contestants of these names, at the sizes of add_workload_arguments.

    Raises:
        UserError: what cannot be.
    """
    if args.iterations <= args.warmup:
        raise UserError(
            f"--iterations {args.iterations}: the first {args.warmup} warm up and are not counted (--warmup); give more"
        )
    if topology.ranks == 1:
        raise UserError("one rank has nobody to exchange with: give more (--ranks)")
    if args.features < topology.hosts:
        raise UserError(f"--features {args.features}: {topology.hosts} hosts need a feature each, give as many")
    sizes = ("embedding_dim", "bottom", "over", "small_over", "cross_layers", "cross_rank")
    sizes += ("tower_cross_layers", "tower_cross_rank")
    if args.embedding_dim % 4:
        raise UserError(f"--embedding-dim {args.embedding_dim}: FBGEMM takes multiples of 4")
    spec = ModelSpec("none", **{name: getattr(args, name) for name in sizes})
    try:
        chosen = [contestants.parse(text, spec, topology.hosts) for text in names]
    except ValueError as error:
        raise UserError(f"--contestants: {error}") from None
    twice = [contestant.name for contestant in chosen if chosen.count(contestant) > 1]
    if twice:
        raise UserError(f"--contestants: {twice[0]} is there twice")
    return chosen


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Arguments of the command line (argv: None), or of a list."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.throughput", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    count = whole(1)
    parser.add_argument("--ranks", type=count, help="to start here (default 4); not where they are started already")
    parser.add_argument("--ranks-per-host", type=count, help="L, of logical hosts (default: a machine's)")
    parser.add_argument("--contestants", nargs="+", default=list(DEFAULT), metavar="MODEL[-Dn][:SHARDING]")
    parser.add_argument("--repeats", type=count, default=3, help="turns of each (default %(default)s)")
    parser.add_argument(
        "--turns-only", action="store_true", help="no turn over open links, and none under the profiler"
    )
    parser.add_argument("--traces", type=Path, metavar="DIR", help="keep traces of the profiled turn, for Perfetto")
    parser.add_argument("--trace-ranks", type=whole(0), nargs="+", default=[0], help="whose (default: 0)")
    parser.add_argument("--study", help="name in the records (default: that of the folder of --json)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the records (bench/record.schema.json)")
    add_workload_arguments(parser)
    return parsed(parser, argv)


def add_workload_arguments(parser: argparse.ArgumentParser) -> None:
    """What contestants train on, and how long a turn is."""
    count = whole(1)
    parser.add_argument("--features", type=count, default=26, help="F, a table each (default %(default)s)")
    parser.add_argument("--rows", type=count, default=10_000, help="rows of a table (default %(default)s)")
    parser.add_argument("--local-batch", type=count, default=2048, help="samples a rank (default %(default)s)")
    parser.add_argument(
        "--wire", choices=("half", "single"), default="half", help="embeddings' numbers on the wire: 16 or 32 bits"
    )
    parser.add_argument(
        "--bucket-mib",
        type=positive,
        default=25,
        help="of dense gradients, sent while the next are computed (default %(default)s, DistributedDataParallel's)",
    )
    parser.add_argument("--iterations", type=count, default=6, help="of a turn, with its warm-up (default %(default)s)")
    parser.add_argument("--warmup", type=whole(0), default=1, help="iterations not counted (default %(default)s)")
    parser.add_argument("--seed", type=whole(0), default=0, help="of weights and data (default %(default)s)")
    ModelSpec.add_size_arguments(parser.add_argument_group("sizes of the models"))


def main() -> int | None:
    return launch.run("bench.throughput", parse(), check, compare, TIMEOUT_S)


if __name__ == "__main__":
    cli(main)
