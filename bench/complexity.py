"""Operations and parameters of a model, counted by PyTorch's profiler on tables of one row.

MFLOP a sample = 1e-6 floating-point operations that the profiler counts in a forward and a backward pass / batch size.
Parameters = rows of the real tables x their dimension + dense parameters.
"""

import argparse
import json
import os
from datetime import UTC, datetime
from pathlib import Path

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torchrec import EmbeddingBagCollection

import baselines
from baselines import ModelSpec
from bench import record
from bench.batch import one_id_a_bag, tables
from bench.errors import UserError, cli
from bench.files import write_text

# Rows of the 26 tables behind the paper's 22.78G parameters: Criteo 1TB, no cap, from an older public row list
# (177,944,275 in all; MLPerf's list, capped at 40M rows, would give 26.1G).
# fmt: off
PAPER_ROWS = (
    45833188, 36746, 17245, 7413, 20243, 3, 7114, 1441, 62, 29275261, 1572176, 345138, 10, 2209, 11267, 128, 4, 974, 14,
    48937457, 11316796, 40094537, 452104, 12606, 104, 35,
)
# fmt: on

BATCH = 4  # the count is proportional to it


def measure(spec: ModelSpec, cardinalities: list[int]) -> dict[str, float | int]:
    """Count a model's operations and parameters; allocates no table and leaves torch's random state as it was.

    Args:
        spec: the model and its sizes.
        cardinalities: rows of each sparse feature's table, in feature order.

    Returns:
        {"mflop_per_sample": float, "parameters": int, "dense_parameters": int}

    Raises:
        ValueError: an unknown model, or sizes that it cannot have.
    """
    return count(tiny(spec, len(cardinalities)), spec, cardinalities)


def _names(features: int) -> list[str]:
    return [f"f{i}" for i in range(features)]


def tiny(spec: ModelSpec, features: int) -> nn.Module:
    """The model over tables of one row; torch's random state stays as it was. Raises ValueError as measure does."""
    with torch.random.fork_rng(devices=[]):
        return baselines.build(spec, tables(_names(features), [1] * features, spec.embedding_dim))


def count(model: nn.Module, spec: ModelSpec, cardinalities: list[int]) -> dict[str, float | int]:
    """Count a model that `tiny` built; as measure."""
    names = _names(len(cardinalities))
    dense = torch.zeros(BATCH, spec.dense_features)
    sparse = one_id_a_bag(names, torch.zeros(BATCH, len(names), dtype=torch.int64))

    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # or the profiler's backend writes to stderr
    with profile(activities=[ProfilerActivity.CPU], with_flops=True) as counts:
        model(dense, sparse).sum().backward()
    flop = sum(event.flops for event in counts.key_averages())

    rows = dict(zip(names, cardinalities, strict=True))
    collections = [module for module in model.modules() if isinstance(module, EmbeddingBagCollection)]
    configs = [config for collection in collections for config in collection.embedding_bag_configs()]
    in_tables = {id(parameter) for collection in collections for parameter in collection.parameters()}
    dense_parameters = sum(p.numel() for p in model.parameters() if id(p) not in in_tables)
    return {
        "mflop_per_sample": flop / BATCH / 1e6,
        "parameters": dense_parameters + sum(rows[c.feature_names[0]] * c.embedding_dim for c in configs),
        "dense_parameters": dense_parameters,
    }


def paper_specs() -> list[ModelSpec]:
    """Every model of the paper's tables 3, 4 and 5 once, and dlrm_small_over, the flat model for DMT-DLRM.

    Table 3 does not say on how many towers SPTT ran; 8 stand here (the count does not depend on it).
    """
    flat = [ModelSpec(model) for model in ("dlrm", "dlrm_small_over", "dcn")]
    sptt = [ModelSpec(model, towers=8) for model in ("sptt_dlrm", "sptt_dcn")]
    by_towers = [ModelSpec(model, towers=t) for model in ("dmt_dlrm", "dmt_dcn") for t in (2, 4, 8, 16, 26)]
    by_ratio = [ModelSpec("dmt_dlrm", towers=8, tower_dim=d) for d in (32, 16, 8)]  # 64 is table 4's
    return flat + sptt + by_towers + by_ratio


def paper_record(spec: ModelSpec, study: str) -> dict:
    """Record (bench/record.schema.json) of one model's complexity at the paper's sizes."""
    started = datetime.now(UTC)
    model = tiny(spec, len(PAPER_ROWS))
    complexity = count(model, spec, list(PAPER_ROWS))
    return {
        "kind": "complexity",
        "study": study,
        "run": f"{spec.model}-T{spec.towers}" + (f"-D{spec.tower_dim}" if spec.tower_dim else ""),
        **record.of_model(spec, model, "naive"),
        **record.of_process("bench.complexity", started),
        "seed": None,
        "data": None,
        "options": {"embedding_dim": spec.embedding_dim, "rows": sum(PAPER_ROWS)},
        "status": "ok",
        "reason": None,
        "accuracy": None,
        "complexity": {**complexity, "sizes": "paper"},
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.complexity",
        description="MFLOP a sample (forward and backward, PyTorch profiler) and parameters of a model, at the "
        "paper's sizes unless flags say otherwise, with Criteo 1TB's 26 tables (177,944,275 rows). Takes seconds.",
        epilog="examples: python -m bench.complexity --model dmt_dlrm --towers 8 --tower-dim 32 --json; "
        "python -m bench.complexity --paper-tables --out complexity.json",
    )
    ModelSpec.add_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--paper-tables", action="store_true", help="all models of the paper's tables 3, 4 and 5, as records in --out"
    )
    parser.add_argument("--out", type=Path, help="JSON file for --paper-tables")
    parser.add_argument("--study", help="study named in the records (default: the name of --out's folder)")
    args = parser.parse_args()
    torch.set_num_threads(1)  # batches are too small to share
    if args.paper_tables:
        _write_paper_tables(args)
        return
    try:
        spec = ModelSpec.from_args(args)
        complexity = measure(spec, list(PAPER_ROWS))
    except ValueError as error:
        raise UserError(str(error)) from None
    if args.json:
        print(json.dumps({"model": spec.model, "towers": spec.towers, **complexity}))
    else:
        print(_line(spec, complexity))


def _write_paper_tables(args: argparse.Namespace) -> None:
    if args.out is None:
        raise UserError("--paper-tables needs --out: name the JSON file to write")
    if args.model is not None:
        raise UserError("--paper-tables counts every model of the tables: leave --model out")
    study = args.study or args.out.resolve().parent.name
    records = []
    for spec in paper_specs():
        records.append(paper_record(spec, study))
        record.check(records[-1], args.out)
        print(_line(spec, records[-1]["complexity"]))
    write_text(args.out, json.dumps(records, indent=1, allow_nan=False) + "\n")


def _line(spec: ModelSpec, complexity: dict) -> str:
    dim = f", D={spec.tower_dim}" if spec.tower_dim else ""
    name = f"{spec.model} (T={spec.towers}{dim})"
    mflop, billions = complexity["mflop_per_sample"], complexity["parameters"] / 1e9
    dense = complexity["dense_parameters"]
    return f"{name:28} {mflop:9.3f} MFLOP a sample, {billions:.3f}G parameters, {dense:,} of them dense"


if __name__ == "__main__":
    cli(main)
