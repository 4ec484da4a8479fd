"""How fast the suite's training step is beside TorchRec's stock one and the machine's own matrix product.

    python -m bench.train_speed

Each size is run in turn, stock, suite, stock, suite, on the same random batches. Stock is TorchRec's model with
FBGEMM's fused Adagrad in the tables (its CPU build has no Adam) and torch's Adagrad elsewhere; suite is bench.step.
Prints medians with the smallest and the largest, samples/s, GFLOP/s by the profiler's count, and the share of a
2048 x 2048 fp32 matrix product. Run it on a machine that does nothing else.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection

import baselines
from baselines.spec import ModelSpec
from bench import complexity
from bench.arguments import whole
from bench.batch import one_id_a_bag, tables
from bench.errors import cli
from bench.step import TrainStep


@dataclass(frozen=True)
class Size:
    """A model, the rows of each of its 26 tables, and the batch."""

    spec: ModelSpec
    rows: int
    batch: int


FEATURES = [f"C{i}" for i in range(1, 27)]
SIZES = {
    "laptop_dlrm": Size(ModelSpec("dlrm", embedding_dim=16, bottom=(128, 64), over=(256, 128)), 20_000, 4096),
    "paper_dlrm": Size(ModelSpec("dlrm"), 1_000, 2048),
    "paper_dcn": Size(ModelSpec("dcn"), 1_000, 2048),
}


def batches(size: Size, count: int) -> list[tuple]:
    """Random batches: dense (B, 13), one skewed id a feature, labels (B,)."""
    made = []
    for _ in range(count):
        ids_BF = (torch.rand(size.batch, len(FEATURES)) ** 4 * size.rows).long()
        label_B = (torch.rand(size.batch) < 0.25).float()
        made.append((torch.randn(size.batch, 13), one_id_a_bag(FEATURES, ids_BF), label_B))
    return made


def build(size: Size) -> nn.Module:
    torch.manual_seed(0)
    return baselines.build(size.spec, tables(FEATURES, [size.rows] * len(FEATURES), size.spec.embedding_dim))


def stock_step(size: Size) -> Callable[..., float]:
    """TorchRec's own modules and FBGEMM's fused Adagrad."""
    model = build(size)
    arch = model.sparse_arch
    arch.embedding_bag_collection = FusedEmbeddingBagCollection(
        arch.embedding_bag_collection.embedding_bag_configs(),
        optimizer_type=torch.optim.Adagrad,
        optimizer_kwargs={"lr": 1e-3},
        device=torch.device("cpu"),
    )
    in_tables = {id(p) for p in arch.parameters()}
    optimizer = torch.optim.Adagrad([p for p in model.parameters() if id(p) not in in_tables], lr=1e-3)

    def step(dense, sparse, label_B, rate):
        optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(model(dense, sparse), label_B)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def seconds_a_step(step: Callable[..., float], data: list[tuple]) -> float:
    started = time.perf_counter()
    for dense, sparse, label_B in data:
        step(dense, sparse, label_B, 1e-3)
    return (time.perf_counter() - started) / len(data)


def matrix_product_gflops(repeats: int = 7) -> float:
    """Median GFLOP/s of a 2048 x 2048 x 2048 fp32 product on torch's threads."""
    a, b = torch.randn(2048, 2048), torch.randn(2048, 2048)
    times = []
    for _ in range(repeats + 2):
        started = time.perf_counter()
        a @ b
        times.append(time.perf_counter() - started)
    return 2 * 2048**3 / statistics.median(times[2:]) / 1e9


def compare(name: str, steps: int, repeats: int) -> None:
    size = SIZES[name]
    mflop = complexity.measure(size.spec, [size.rows] * len(FEATURES))["mflop_per_sample"]
    data = batches(size, steps)
    paths = {"stock": stock_step(size), "suite": TrainStep(build(size))}
    times = {path: [] for path in paths}
    for step in paths.values():
        seconds_a_step(step, data[:3])  # compiles, allocates
    peaks = []
    for _ in range(repeats):
        for path, step in paths.items():
            times[path].append(seconds_a_step(step, data))
        peaks.append(matrix_product_gflops())
    peak = statistics.median(peaks)
    for path, seconds in times.items():
        median = statistics.median(seconds)
        gflops = size.batch * mflop / median / 1e3
        print(
            f"{name:12s} {path:6s} {median * 1e3:7.1f} ms/step ({min(seconds) * 1e3:.1f} to {max(seconds) * 1e3:.1f})"
            f" {size.batch / median:9.0f} samples/s {gflops:6.1f} GFLOP/s = {gflops / peak:.2f} of {peak:.0f}"
        )
    ratios = [stock / suite for stock, suite in zip(times["stock"], times["suite"], strict=True)]
    print(f"{name:12s} suite/stock speed {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.train_speed", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", choices=SIZES, nargs="+", default=list(SIZES), help="which to run (default: all)")
    parser.add_argument(
        "--steps",
        type=int,
        default=20,
        choices=range(1, 10_001),
        metavar="N",
        help="steps a repeat (default %(default)s)",
    )
    parser.add_argument(
        "--repeats",
        type=int,
        default=5,
        choices=range(1, 1001),
        metavar="N",
        help="repeats in turn (default %(default)s)",
    )
    parser.add_argument("--threads", type=whole(1, 1024), help="CPU threads (default: torch's own choice)")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    for name in args.size:
        compare(name, args.steps, args.repeats)


if __name__ == "__main__":
    cli(main)
