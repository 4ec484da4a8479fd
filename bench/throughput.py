"""How fast models train over these ranks and links, by model and by how their tables are sharded: weak scaling.

    python -m bench.throughput --ranks 4 --ranks-per-host 2 --contestants dcn sptt_dcn dmt_dcn      # starts the ranks
    python -m bench.cluster --hosts 4 --ranks-per-host 2 --link 200mbit -- python -m bench.throughput

Contestants (bench.contestants: how they are written, bench.running: how they train) see random data with a fixed local
batch; towers are hosts. All run in one job, in turn: A B C A B C. Each turn is --iterations long; its first --warmup
are not counted. gloo's AlltoAll is pairwise (bench.pairwise) for all. One line each:

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
from pathlib import Path

import numpy as np
import torch.distributed as dist
from torchrec.distributed.planner.types import PlannerError

from bench import launch, link, profiled, record, workload
from bench.arguments import parsed, whole
from bench.contestants import Contestant
from bench.errors import UserError, cli
from bench.files import write_text
from bench.mixture import OWN, Shares
from bench.pairwise import pairwise_exchange
from bench.ranks import Ranks
from bench.running import Running
from bench.together import of_all
from bench.traffic import Sent
from bench.turns import Turns, Void
from dmt import Topology

DEFAULT = ("dlrm", "dlrm_small_over", "sptt_dlrm", "dmt_dlrm", "dcn", "sptt_dcn", "dmt_dcn")


def compare(args: argparse.Namespace, ranks: Ranks) -> int:
    """Build all contestants, run them in turn, write their records; rank 0 reports. The exit code."""
    topology, chosen = check(args, ranks.size, ranks.ranks_per_host)
    started = datetime.datetime.now(datetime.UTC)
    emulated = link.bits_per_s()
    with pairwise_exchange():
        if emulated:
            link.set_rate(link.OPEN)  # for what is counted, not timed
        shown: dict[Contestant, Turns | str] = {}
        for contestant in chosen:
            shares = _shares(contestant, shown)
            shown[contestant] = _begin(contestant, topology, args, ranks, shares)
        if emulated:
            link.set_rate(emulated)
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
        return OWN
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
    topology: Topology,
    args: argparse.Namespace,
    ranks: Ranks,
    shares: Shares | None,
) -> Turns | str:
    """Ready for its turns; or why it cannot be, which every rank finds by itself."""
    if shares is None:
        return "a contestant whose bytes it should have could not be built"
    try:
        running = Running(contestant, args, topology, ranks, shares)
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
        link.set_rate(link.OPEN)
        everyone("links open", lambda turns: turns.take(args.warmup, args.iterations, open_links=True))
        link.set_rate(emulated)

    def profile(turns: Turns) -> None:
        trace = args.traces and args.traces / turns.running.contestant.name.replace(":", "-")
        turns.breakdown = profiled.breakdown(
            turns.running, args.warmup, args.iterations, trace, args.trace_ranks, ranks
        )

    everyone("breakdown", profile)


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
    rates, ms = shown["samples_per_s"], shown["iteration_ms"]
    open_ms = f"{statistics.median(shown['open_ms']):.1f}" if shown["open_ms"] else "-"
    line = f"{name}{statistics.median(rates):10,.0f} ({min(rates):,.0f}..{max(rates):,.0f})".ljust(54)
    line += f"{statistics.median(ms):8.1f}{np.percentile(ms, 90):8.1f}{open_ms:>8}"
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
    chosen = workload.checked(args, topology, args.contestants)
    before: list[str] = []
    for contestant in chosen:
        for other in (contestant.operations, contestant.embeddings, contestant.dense) if contestant.is_mixture else ():
            if other not in before or ":" in other:
                raise UserError(
                    f"--contestants: {contestant.name} has parts of {other}: put that one, sharded as towers, before it"
                )
        before.append(contestant.name)
    return topology, chosen


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
    workload.add_arguments(parser)
    return parsed(parser, argv)


def main() -> int | None:
    return launch.run("bench.throughput", parse(), check, compare, profiled.TIMEOUT_S)


if __name__ == "__main__":
    cli(main)
