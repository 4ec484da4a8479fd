"""Find the rate of the emulated links by a rule that no result of DMT enters.

    python -m bench.cluster --hosts 4 --ranks-per-host 2 --link 200mbit -- python -m bench.calibrate --json link.json

The rule: at this shape a flat DCN spends in exposed embedding communication the share of its iteration that the paper
reports (figure 1: 27.5 % on 64 H100). What it waits for the slowest rank counts neither as that nor as a part of the
iteration: ranks that share cores take turns, the paper's GPUs do not. Then `python -m bench.cluster --link link.json`
gives hosts links of that rate; at other shapes the rate scales with a rank's share of this machine's cores (time
dilation), so that computing and sending keep the ratio of a cluster that grows.

Exposed time over the rest is a straight line in 1 / rate, nearly. Two measurements, on both sides of bench.cluster's
rate, give a line, and the line an answer; this is measured too, and while it is off by more than what a busy machine
makes of it, its measurement moves the line. The rate measured nearest to the rule is taken. Where links cannot be
emulated the file says so, and a cluster of it runs over loopback.
"""

import argparse
import datetime
import json
import shlex
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np

from bench import launch, link, profiled, record, workload
from bench.arguments import parsed, share, whole
from bench.errors import cli
from bench.files import write_text
from bench.pairwise import pairwise_exchange
from bench.ranks import Ranks
from bench.running import Running
from dmt import Topology

PAPER = 0.275  # figure 1
NEAR = 0.02  # of the share wanted, and no nearer: the machine's noise
FURTHER = 3.0  # times: how far beyond what is measured a line is believed
AROUND = (0.7, 1.4)  # times the rate to start from: far enough apart for a line through noise


def next_rate(points: list[tuple[int, float]], wanted: float) -> int:
    """Bits a second at which the exposed share of an iteration is `wanted`, by a line through (rate, share) points.

    Where noise makes it a line that falls or has no such rate: by one through the origin and their mean. No further
    than FURTHER times below or above all points.
    """
    x = np.array([1 / rate for rate, _ in points])
    odds = np.array([found / (1 - found) for _, found in points])
    slope, start = np.polyfit(x, odds, 1)
    needed = wanted / (1 - wanted)
    if slope <= 0 or needed <= start:
        slope, start = max(odds.mean(), 0) / x.mean(), 0.0
    rates = [rate for rate, _ in points]
    return round(float(np.clip(slope / (needed - start), min(rates) / FURTHER, max(rates) * FURTHER)))


def calibrate(args: argparse.Namespace, ranks: Ranks) -> int:
    """Measure, step by step; rank 0 reports and writes. The exit code."""
    topology, (contestant,) = check(args, ranks.size, ranks.ranks_per_host)
    start = link.bits_per_s()
    points: list[dict] = []
    if start is not None:
        with pairwise_exchange():
            running = Running(contestant, args, topology, ranks)
            for _ in range(2):  # DistributedDataParallel settles its buckets in the first
                running()
            points += [_measure(running, round(start * factor), args, ranks) for factor in AROUND]
            while len(points) < len(AROUND) + args.tries and not _near(points[-1], args.share):
                rate = next_rate([(point["bits_per_s"], point["share"]) for point in points], args.share)
                points.append(_measure(running, rate, args, ranks))
    if ranks.first:
        _report(args, topology, contestant.name, points)
    return 0


def _near(point: dict, wanted: float) -> bool:
    return abs(point["share"] - wanted) <= NEAR


def exposed_share(parts: dict) -> float:
    """Exposed embedding communication / the iteration, both without the wait for the slowest rank.

    Args:
        parts: a breakdown of a record.
    """
    wait = parts["straggler_wait"]
    return (parts["embedding"] - wait) / (parts["iteration_ms"] - wait)


def _measure(running: Running, rate: int, args: argparse.Namespace, ranks: Ranks) -> dict:
    link.set_rate(rate)
    parts = profiled.breakdown(running, args.warmup, args.iterations, None, [], ranks)
    point = {"bits_per_s": rate, "share": exposed_share(parts), "breakdown": parts}
    if ranks.first:
        print(
            f"{rate / 1e6:8.1f} Mbit/s: exposed embedding communication {point['share']:.1%} ({parts['embedding']:.1f} "
            f"of {parts['iteration_ms']:.1f} ms, {parts['straggler_wait']:.1f} of them for the slowest rank)",
            file=sys.stderr,
            flush=True,
        )
    return point


def _report(args: argparse.Namespace, topology: Topology, name: str, points: list[dict]) -> None:
    best = min(points, key=lambda point: abs(point["share"] - args.share)) if points else None
    if best is None:
        print("links cannot be emulated here: clusters of this file run over loopback, unshaped")
    else:
        print(
            f"links of {best['bits_per_s'] / 1e6:.1f} Mbit/s: {name} spends {best['share']:.1%} of its iteration in "
            "exposed embedding communication"
        )
        if not _near(best, args.share):
            print(f"{len(points)} measurements came no nearer to {args.share:.1%}: is other work on this machine?")
    facts = {
        "bits_per_s": best and best["bits_per_s"],
        "topology": asdict(topology),
        "contestant": name,
        "wanted": args.share,
        "share": best and best["share"],
        "points": points,
        "command": shlex.join(["python", "-m", "bench.calibrate", *sys.argv[1:]]),
        "versions": record.versions(),
        "hardware": record.hardware(),
        "when": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    write_text(args.json, json.dumps(facts, indent=1) + "\n")


def check(args: argparse.Namespace, ranks: int, ranks_per_host: int | None = None):
    """The shape, and the one contestant in a list.

    Raises:
        UserError: what cannot be.
    """
    topology = launch.shape(args, ranks, args.ranks_per_host or ranks_per_host or ranks)
    return topology, workload.checked(args, topology, [args.contestant])


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Arguments of the command line (argv: None), or of a list."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.calibrate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks-per-host", type=whole(1), help="L, of logical hosts (default: a machine's)")
    parser.add_argument("--contestant", default="dcn", help="(default: dcn)")
    parser.add_argument("--share", type=share, default=PAPER, help="wanted (default %(default)s, the paper's)")
    parser.add_argument("--tries", type=whole(1), default=4, help="of the answer (default %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", required=True, help="where the rate goes")
    workload.add_arguments(parser)
    parser.set_defaults(ranks=None)
    return parsed(parser, argv)


def main() -> int | None:
    return launch.run("bench.calibrate", parse(), check, calibrate, profiled.TIMEOUT_S)


if __name__ == "__main__":
    cli(main)
