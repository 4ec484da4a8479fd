"""How fast embeddings get from the ranks that hold them to the ranks that need them: flat, tower collection, SPTT.

    python -m bench.exchange --ranks 4 --ranks-per-host 2            # starts the ranks itself
    torchrun --nproc-per-node 4 -m bench.exchange --ranks-per-host 2

Hosts are logical, so that one machine can stand for several. All ways (bench.exchange_ways) run on the same ranks and
the same batches, in turn, A B C A B C; a step is ids in, embeddings out, gradient back, tables updated. gloo's AlltoAll
is pairwise (bench.pairwise) for all. One line each:

    ms          of a step on the slowest rank: median of the repeats, smallest and largest
    / flat      median over the repeats of its time / the flat exchange's in the same repeat; / tc: the tower
                collection's, embeddings passed through
    MB a rank   what a rank sends inside its host and across hosts, mean over the ranks, counted in a step that is not
                timed (bench.traffic); `=` where every rank's bytes are exactly the formula's, else the formula's
    errors      largest difference from one process with the whole batch, in parts of its largest number: embeddings,
                tables after one step, gradient of the tower modules; no way may go beyond TOLERANCE

Exits with 1 where bytes or numbers are not as they should be. With modules (CR) the tower collection copies once more
each way: TorchRec hands a tower its embeddings in the order of the lookup, and SPTT's step e in the module's.
"""

import argparse
import json
import shlex
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torchrec import KeyedJaggedTensor

from bench import launch, link, record
from bench import traffic_formulas as formulas
from bench.arguments import parsed, whole
from bench.errors import UserError, cli
from bench.exchange_ways import LEARNING_RATE, PERMUTES, Case, Sizes, Way, table_shards, tower_gradients
from bench.files import write_text
from bench.pairwise import pairwise_exchange
from bench.quiet import quiet
from bench.ranks import Ranks
from bench.traffic import Traffic
from dmt import Topology, naive_partition

TOLERANCE = 1e-5  # sums of fp32 in another order
BATCHES = 4  # that steps take in turn


@dataclass(frozen=True)
class Batch:
    """Ids of one rank: (features, B, ids a bag)."""

    ids_FBI: torch.Tensor
    sizes: Sizes

    def features(self) -> KeyedJaggedTensor:
        """A new one for each step: TorchRec keeps in it what it has found out about it."""
        features, batch, bag = self.ids_FBI.shape
        lengths = torch.full((features * batch,), bag, dtype=torch.int32, device=self.ids_FBI.device)
        return KeyedJaggedTensor(self.sizes.names, self.ids_FBI.flatten(), lengths=lengths, stride=batch)


@dataclass(frozen=True)
class Expected:
    """What one process makes of all ranks' samples: this rank's output and its gradient, the model after a step."""

    keys: list[tuple[str, int]]
    output: torch.Tensor  # (B, W)
    gradient: torch.Tensor  # (B, W), of this rank's loss
    tables: dict[str, torch.Tensor]
    towers: list[torch.Tensor | None]  # gradients

    def columns(self, way: Way) -> torch.Tensor:
        """Which column of `output` each column of the way's output is."""
        starts, start = {}, 0
        for key, width in self.keys:
            starts[key] = range(start, start + width)
            start += width
        return torch.tensor([column for key, _ in way.keys for column in starts[key]])


def draw_ids(sizes: Sizes, rank: int, seed: int) -> torch.Tensor:
    """Ids of one rank's batch, even over the rows: (F, B, ids a bag)."""
    random = torch.Generator().manual_seed(seed * 1_000_003 + rank)
    return torch.randint(sizes.rows, (sizes.features, sizes.local_batch, sizes.ids), generator=random)


def one_process(case: Case, ratio: int, rank: int, seed: int) -> Expected:
    """The oracle. The loss is the mean over ranks of (output x gradient).sum(), with a fixed random gradient."""
    ranks, batch = case.topology.ranks, case.sizes.local_batch
    model = case.one_process(ratio)
    ids_FBI = torch.cat([draw_ids(case.sizes, r, seed) for r in range(ranks)], dim=1)
    output = model(Batch(ids_FBI, case.sizes).features()).values()
    gradient = torch.randn(output.shape, generator=torch.Generator().manual_seed(seed))
    ((output * gradient).sum() / ranks).backward()
    bags = model.embedding_bag_collection.embedding_bags
    tables = {table: bag.weight.detach() - LEARNING_RATE * bag.weight.grad for table, bag in bags.items()}
    towers = [next((p.grad for p in tower.parameters()), None) for tower in model.towers]
    mine = slice(rank * batch, (rank + 1) * batch)
    keys = list(zip(model.out_keys, model.out_length_per_key, strict=True))
    return Expected(keys, output.detach()[mine], gradient[mine], tables, towers)


def step(way: Way, batch: Batch, gradient: torch.Tensor) -> torch.Tensor:
    """Ids in, embeddings out, gradient back; the tables learn. Gives the output."""
    for parameter in way.dense:
        parameter.grad = None
    output = way(batch.features())
    output.backward(gradient)
    return output


def errors(way: Way, case: Case, expected: Expected, batch: Batch, gradient: torch.Tensor) -> dict[str, float]:
    """Take one step from the weights of the case: what differs from one process, the worst of all ranks."""
    device = case.device
    case.set_tables(way)
    output = step(way, batch, gradient).detach().cpu()
    found = {"output": _error(output, expected.output[:, expected.columns(way)]), "tables": 0.0, "towers": 0.0}
    for table, shard, (row, column) in table_shards(way.model):
        rows, columns = shard.shape
        whole = expected.tables[table]
        found["tables"] = max(
            found["tables"], _error(shard.cpu(), whole[row : row + rows, column : column + columns], whole)
        )
    for tower, of_tower in tower_gradients(way.model).items():
        found["towers"] = max(found["towers"], _error(of_tower.cpu(), expected.towers[tower]))
    worst = torch.tensor(list(found.values()), dtype=torch.float64, device=device)
    dist.all_reduce(worst, dist.ReduceOp.MAX)
    return dict(zip(found, worst.tolist(), strict=True))


def _error(found: torch.Tensor, expected: torch.Tensor, scale: torch.Tensor | None = None) -> float:
    if found.numel() == 0:
        return 0.0
    largest = (expected if scale is None else scale).abs().max()
    return float((found - expected).abs().max() / largest)


def traffic(way: Way, case: Case, rank: int, batch: Batch, gradient: torch.Tensor) -> dict:
    """Bytes that each rank sends in one step, counted and by the formula (which is given by part)."""
    for _ in range(2):  # in its second step, or its third, DistributedDataParallel tells its buckets, once
        step(way, batch, gradient)
    with Traffic(case.topology.ranks_per_host) as counter:
        step(way, batch, gradient)
    sizes, ranks = case.sizes, case.topology.ranks
    ids = [[sizes.local_batch * sizes.ids] * sizes.features] * ranks
    work = formulas.Workload(case.topology, [sizes.local_batch] * ranks, ids, way.shards)
    parts = way.predict(work, rank)
    of_ranks = [None] * ranks
    dist.all_gather_object(of_ranks, (counter.sent(), formulas.total(parts), parts))
    return {
        "counted": [asdict(counted) for counted, _, _ in of_ranks],
        "predicted": [asdict(predicted) for _, predicted, _ in of_ranks],
        "parts": [{part: asdict(sent) for part, sent in parts.items()} for _, _, parts in of_ranks],
    }


def seconds_a_step(way: Way, batches: Sequence[Batch], gradient: torch.Tensor, iterations: int) -> float:
    """Of the slowest rank, from a barrier to its own end."""
    device = gradient.device
    dist.barrier()
    _finish(device)
    started = time.perf_counter()
    for i in range(iterations):
        step(way, batches[i % len(batches)], gradient)
    _finish(device)
    elapsed = torch.tensor(time.perf_counter() - started, dtype=torch.float64, device=device)
    dist.all_reduce(elapsed, dist.ReduceOp.MAX)
    return elapsed.item() / iterations


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def checked(args: argparse.Namespace, case: Case, batch: Batch, rank: int) -> list[tuple[Way, torch.Tensor, dict]]:
    """Every way, the gradient of its output, and what there is to say about it but for its time."""
    found = []
    for ratio in (1, *args.ratios):
        expected = one_process(case, ratio, rank, args.seed)
        ways = [case.flat()] if ratio == 1 else []
        ways += [case.tower_collection(ratio), *(case.sptt(permute, ratio) for permute in args.permutes)]
        for way in ways:
            gradient = expected.gradient[:, expected.columns(way)].to(case.device)
            wrong = errors(way, case, expected, batch, gradient)
            sent = traffic(way, case, rank, batch, gradient)
            found.append((way, gradient, {"way": way.name, "compression_ratio": ratio, "errors": wrong, "bytes": sent}))
    return found


def timed(
    args: argparse.Namespace, ways: list[tuple[Way, torch.Tensor, dict]], batches: list[Batch], ranks: Ranks
) -> list[list[float]]:
    """Milliseconds a step of each way, in each repeat."""
    times: list[list[float]] = [[] for _ in ways]
    for repeat in range(-1, args.repeats):  # the first warms up
        if ranks.first:
            print(f"repeat {repeat + 1} of {args.repeats}" if repeat >= 0 else "warming up", file=sys.stderr)
        for (way, gradient, _), of_way in zip(ways, times, strict=True):
            seconds = seconds_a_step(way, batches, gradient, args.iterations)
            if repeat >= 0:
                of_way.append(seconds * 1e3)
    return times


def compare(args: argparse.Namespace, ranks: Ranks) -> int:
    """Build, check, count and time every way; rank 0 reports. The exit code."""
    topology, sizes = check(args, ranks.size)
    case = Case(sizes, topology, ranks.device, args.seed)
    batches = [Batch(draw_ids(sizes, ranks.rank, args.seed + i).to(ranks.device), sizes) for i in range(BATCHES)]
    with pairwise_exchange():
        with quiet():
            ways = checked(args, case, batches[0], ranks.rank)
        times = timed(args, ways, batches, ranks)
    facts = [fact for _, _, fact in ways]
    for fact, of_way in zip(facts, times, strict=True):
        fact["ms"] = of_way
        for name, beside in ("flat", times[0]), ("tower_collection", times[1]):
            fact[f"of_{name}"] = statistics.median(a / b for a, b in zip(of_way, beside, strict=True))
    if ranks.first:
        _print(topology, sizes, args, facts)
        if args.json:
            write_text(args.json, json.dumps(_report(topology, sizes, args, facts), indent=1) + "\n")
    return 0 if all(_good(fact) for fact in facts) else 1


def _good(fact: dict) -> bool:
    return fact["bytes"]["counted"] == fact["bytes"]["predicted"] and max(fact["errors"].values()) <= TOLERANCE


def _print(topology: Topology, sizes: Sizes, args: argparse.Namespace, facts: list[dict]) -> None:
    print(
        f"{topology.hosts} hosts x {topology.ranks_per_host} ranks, {sizes.features} features of {sizes.dim}, "
        f"{sizes.rows} rows, local batch {sizes.local_batch}, {sizes.ids} ids a bag; {dist.get_backend()}, "
        f"{link.description()}; {args.repeats} repeats of {args.iterations} steps"
    )
    print(
        f"{'way':26} {'ms (min..max)':>23} {'/ flat':>7} {'/ tc':>6}  {'MB a rank inside':>17} {'across':>14}  errors"
    )
    for fact in facts:
        ms, sent = fact["ms"], fact["bytes"]
        print(
            f"{fact['way']:26} {statistics.median(ms):7.2f} ({min(ms):6.2f}..{max(ms):6.2f}) "
            f"{fact['of_flat']:7.2f} {fact['of_tower_collection']:6.2f}  {_mega(sent, 'inside'):>17} "
            f"{_mega(sent, 'across'):>14}  "
            + " ".join(f"{name} {error:.0e}" if error else f"{name} 0" for name, error in fact["errors"].items())
            + ("" if _good(fact) else "  WRONG")
        )


def _mega(sent: dict, where: str) -> str:
    counted, predicted = ([of_rank[where] for of_rank in sent[kind]] for kind in ("counted", "predicted"))
    mean = statistics.mean(counted) / 1e6
    return f"{mean:.3f} =" if counted == predicted else f"{mean:.3f} not {statistics.mean(predicted) / 1e6:.3f}"


def _report(topology: Topology, sizes: Sizes, args: argparse.Namespace, facts: list[dict]) -> dict:
    return {
        "command": shlex.join(["python", "-m", "bench.exchange", *sys.argv[1:]]),
        "topology": asdict(topology),
        "sizes": asdict(sizes),
        "repeats": args.repeats,
        "iterations": args.iterations,
        "backend": dist.get_backend(),
        "link_bits_per_s": link.bits_per_s(),
        "versions": record.versions(),
        "hardware": record.hardware(),
        "ways": facts,
    }


def check(args: argparse.Namespace, ranks: int) -> tuple[Topology, Sizes]:
    """The shape to run.

    Raises:
        UserError: one that cannot be.
    """
    topology = launch.shape(args, ranks, args.ranks_per_host)
    if args.features < topology.hosts:
        raise UserError(f"--features {args.features}: {topology.hosts} hosts need a feature each, give as many")
    if args.dim % 4:
        raise UserError(f"--dim {args.dim}: FBGEMM takes multiples of 4")
    for ratio in args.ratios:
        for group in naive_partition(args.features, topology.hosts):
            if len(group) * args.dim % ratio:
                raise UserError(f"--ratios {ratio}: it does not divide the {len(group) * args.dim} numbers of a tower")
    return topology, Sizes(args.features, args.dim, args.rows, args.local_batch, args.ids)


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Arguments of the command line (argv: None), or of a list."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.exchange", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    count = whole(1)
    parser.add_argument("--ranks", type=count, help="ranks to start here (default 4); not under torchrun or srun")
    parser.add_argument("--ranks-per-host", type=count, default=2, help="L, of logical hosts (default %(default)s)")
    parser.add_argument("--features", type=count, default=24, help="F, a table each (default %(default)s)")
    parser.add_argument("--dim", type=count, default=64, help="columns of a table (default %(default)s)")
    parser.add_argument("--rows", type=count, default=10_000, help="rows of a table (default %(default)s)")
    parser.add_argument("--local-batch", type=count, default=1024, help="samples a rank (default %(default)s)")
    parser.add_argument("--ids", type=count, default=1, help="ids a bag (default %(default)s)")
    parser.add_argument(
        "--ratios", type=whole(2), nargs="*", default=[2, 4], help="compression ratios of tower modules (default 2 4)"
    )
    parser.add_argument(
        "--permutes", choices=PERMUTES, nargs="+", default=list(PERMUTES), help="forms of SPTT's step c (default: all)"
    )
    parser.add_argument("--repeats", type=count, default=5, help="of every way, in turn (default %(default)s)")
    parser.add_argument("--iterations", type=count, default=10, help="steps a repeat (default %(default)s)")
    parser.add_argument("--seed", type=whole(0), default=0, help="of weights and ids (default %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures")
    return parsed(parser, argv)


def main() -> int | None:
    return launch.run("bench.exchange", parse(), check, compare)


if __name__ == "__main__":
    cli(main)
