"""Records of a made-up study for tests of the workflow and of figures: plain numbers, no training."""

import json
from pathlib import Path

SPLIT_HASH = "a" * 64
TOWERS = {"dmt_dlrm": (2, 4, 8, 16, 26), "dmt_dcn": (2, 4, 8, 16, 26)}
BASE = {
    "prior": 0.5,
    "logistic": 0.741,
    "dlrm": 0.7921,
    "dlrm_small_over": 0.7919,
    "dmt_dlrm": 0.7920,
    "dcn": 0.7910,
    "dmt_dcn": 0.7908,
}
BATCH, RATE = 1000, 200_000_000  # of throughput: samples a rank, bits a second of a link at 2x2
MANIFEST = {
    "format": 1,
    "name": "made up",
    "columns": {"label": "label", "dense": ["I1"], "sparse": ["C1", "C2"]},
    "cardinalities": [12, 40],
    "vocabulary": [
        {"column": "C1", "distinct": 30, "kept": 10, "threshold": 3, "cap": None},
        {"column": "C2", "distinct": 90, "kept": 38, "threshold": 3, "cap": None},
    ],
    "options": {"threshold": 3, "split": "0.8,0.1,0.1"},
    "sources": [{"file": "rows.tsv", "bytes": 1000}],
    "splits": {
        "train": {"rows": 8000, "positives": 2000, "shards": []},
        "validation": {
            "rows": 1000,
            "positives": 251,
            "shards": [],
            "rare_or_unseen_share": {"C1": 0.0, "C2": 0.011},
            "unseen_share": {"C1": 0.0, "C2": 0.004},
        },
        "test": {
            "rows": 1000,
            "positives": 249,
            "shards": [],
            "rare_or_unseen_share": {"C1": 0.0, "C2": 0.012},
            "unseen_share": {"C1": 0.0, "C2": 0.005},
        },
    },
    "split_hash": SPLIT_HASH,
    "bad_rows": {},
    "padded_rows": 0,
    "generator": {
        "seed": 7,
        "rows": 10000,
        "label_rate": 0.25,
        "auc_ceiling": {"all": 0.8123, "validation": 0.812, "test": 0.8125},
    },
}


def record(model: str, towers: int, seed: int, study: str = "made-up", **changes) -> dict:
    """An accuracy record that fits the schema; its AUC follows from model, towers and seed alone."""
    auc = 0.5 if model == "prior" else BASE.get(model, 0.79) - 0.0001 * (towers % 5) + 0.0002 * (seed % 3)
    part = {"auc": auc, "auc_reason": None, "logloss": 0.45, "ne": 0.8, "evaluated": 1000, "positives": 249}
    made = _frame(study, f"{model}-T{towers}-s{seed}", model, towers) | {
        "kind": "accuracy",
        "seed": seed,
        "data": {
            "name": "made up",
            "split_hash": SPLIT_HASH,
            "train_rows": 8000,
            "validation_rows": 1000,
            "test_rows": 1000,
            "auc_ceiling": 0.8125,
        },
        "accuracy": {
            "validation": part,
            "test": part,
            "train_samples": 8000,
            "train_steps": 8,
            "samples_per_s": 50000.0,
            "progressive_logloss": 0.47,
        },
        "complexity": {"mflop_per_sample": 0.4, "parameters": 900000, "dense_parameters": 90000, "sizes": "study"},
    }
    return made | changes


def failed(model: str, towers: int, seed: int, status: str, reason: str) -> dict:
    return record(model, towers, seed, status=status, reason=reason, accuracy=None)


def complexity(model: str, towers: int, tower_dim: int | None, mflop: float, parameters: int) -> dict:
    name = f"complexity-{model}-T{towers}" + (f"-D{tower_dim}" if tower_dim else "")
    counted = {"mflop_per_sample": mflop, "parameters": parameters, "dense_parameters": 10**6, "sizes": "paper"}
    return _frame("made-up", name, model, towers) | {
        "kind": "complexity",
        "tower_dim": tower_dim,
        "seed": None,
        "data": None,
        "accuracy": None,
        "complexity": counted,
    }


def throughput(contestant: str, ms: tuple | None, hosts: int = 2, profiled: bool = True) -> dict:
    """A record as bench.throughput writes it, ms in three turns on hosts of two ranks; ms None: it failed."""
    operations, *others = contestant.split("+")
    model, _, sharding = operations.partition(":")
    model, _, dim = model.partition("-D")
    ratio = 1.0 if not model.startswith("dmt_") else 16 / int(dim) if dim else 6.5
    whose = {"operations": operations, "embeddings": operations, "dense": operations} | dict(
        other.split("=") for other in others
    )
    made = _frame("made-up", f"{contestant.replace(':', '-')}-{hosts}x2", model, 1) | {
        "kind": "throughput",
        "provenance": "emulated",
        "tower_dim": int(dim) if dim else None,
        "compression_ratio": ratio if ms else 1.0,
        "topology": {"ranks": 2 * hosts, "ranks_per_host": 2, "hosts": hosts, "link": "emulated"},
        "seed": 0,
        "data": None,
        "accuracy": None,
        "complexity": None,
        "command": "python -m bench.throughput",
    }
    if ms is None:
        return made | {
            "status": "failed",
            "reason": "no plan fits",
            "throughput": None,
            "bytes": None,
            "breakdown": None,
        }
    made["throughput"] = {
        "sharding": sharding or ("towers" if "_d" in model else "planner"),
        "wire": "half",
        "local_batch": BATCH,
        "warmup": 1,
        "iterations": 3,
        "repeats": 3,
        "samples_per_s": [1e3 * 2 * hosts * BATCH / one for one in ms],
        "iteration_ms": [float(one) for one in ms],
        "open_ms": None if others else [60.0, 60.0, 60.0],
        "link_bits_per_s": RATE * 2 // hosts,
        "dilation": hosts / 2,
        "parts_of": whose if others else None,
        "memory_MiB": {"max": 512.0, "mean": 500.0},
        "plan": {},
    }
    predicted = [1_000_000.0, 1_500_000.0] * (hosts // 2)
    made["bytes"] = {
        "counted": {"inside": 1.0, "across": 625_000.0},
        "predicted": {"inside": 1.0, "across": 625_000.0},
        "predicted_parts": {},
        "links": {"sent": [1_010_000.0, 1_530_000.0] * (hosts // 2), "predicted": predicted},
    }
    parts = {"iteration_ms": 100, "compute": 50, "embedding": 30, "dense": 10, "others": 10, "straggler_wait": 20}
    parts |= {"iterations": 3, "embedding_max": 30, "dense_max": 10}
    made["breakdown"] = parts if profiled and not others else None
    return made


def collectives(shape: str, rate: int = 100_000_000) -> dict:
    """What bench.collectives writes: AlltoAll of all and of peers, AllReduce, of 4 MiB at 0.9 of the links' rate."""
    hosts, ranks_per_host = map(int, shape.split("x"))
    ranks, size = hosts * ranks_per_host, 4 << 20
    of_kind = {"flat": (ranks, (ranks - 1) / ranks), "peer": (hosts, (hosts - 1) / hosts), "allreduce": (ranks, 2.0)}
    made = []
    for kind, (of_group, factor) in of_kind.items():
        across = factor * size
        ms = across * 8 / rate / 0.9 * 1e3
        made.append(
            {
                "kind": kind,
                "ranks": of_group,
                "size": size,
                "ms": {"min": ms, "mean": ms, "max": ms},
                "algbw_MB_per_s": size / ms / 1e3,
                "busbw_MB_per_s": factor * size / ms / 1e3,
                "across_bytes": across,
                "of_link": 0.9,
                "link_bytes": [across * 1.01] * hosts,
                "wrong": 0,
            }
        )
    return {
        "command": "python -m bench.collectives",
        "topology": {"ranks": ranks, "ranks_per_host": ranks_per_host, "hosts_per_tower": 1},
        "link_bits_per_s": rate,
        "backend": "gloo",
        "warmup": 1,
        "iterations": 2,
        "versions": {},
        "hardware": {},
        "collectives": made,
    }


def calibration(shape: str, rate: int = RATE) -> dict:
    """What bench.calibrate writes."""
    hosts, ranks_per_host = map(int, shape.split("x"))
    topology = {"ranks": hosts * ranks_per_host, "ranks_per_host": ranks_per_host, "hosts_per_tower": 1}
    points = [{"bits_per_s": rate / 2, "share": 0.4}, {"bits_per_s": rate, "share": 0.2811}]
    return {
        "bits_per_s": rate,
        "topology": topology,
        "contestant": "dcn",
        "wanted": 0.275,
        "share": 0.2811,
        "points": points,
        "command": "python -m bench.calibrate",
        "versions": {},
        "hardware": {},
        "when": "2026-01-01T00:00:00Z",
    }


def grid(seeds=(0, 1, 2)) -> list[dict]:
    return [record(m, t, s) for m in BASE for t in TOWERS.get(m, (1,)) for s in seeds]


def write(folder: Path, runs: list[dict], counted: list[dict]) -> dict[str, Path]:
    """The files a study leaves for bench.gather: runs/, complexity.json, manifest.json."""
    (folder / "runs").mkdir(parents=True)
    for run in runs:
        (folder / "runs" / f"{run['run']}.json").write_text(json.dumps(run))
    (folder / "complexity.json").write_text(json.dumps(counted))
    (folder / "manifest.json").write_text(json.dumps(MANIFEST))
    return {"runs": folder / "runs", "complexity": folder / "complexity.json", "manifest": folder / "manifest.json"}


def _frame(study: str, run: str, model: str, towers: int) -> dict:
    return {
        "format": 1,
        "provenance": "measured",
        "study": study,
        "run": run,
        "model": model,
        "towers": towers,
        "tower_dim": None,
        "compression_ratio": 2.0 if model.startswith("dmt_") else 1.0,
        "partition": {"name": "naive" if towers > 1 else "none", "groups": None},
        "topology": {"ranks": 1, "ranks_per_host": 1, "hosts": 1, "link": "none"},
        "command": f"python -m bench.train --model {model} --towers {towers}",
        "options": {"batch_size": 1024},
        "versions": {"python": "3.11.7", "torch": "2.13.0"},
        "hardware": {"cpu": "a CPU", "cores": 2, "memory_GiB": 24.0, "gpus": []},
        "source_hash": "b" * 64,
        "started": "2026-01-01T00:00:00Z",
        "wall_s": 12.5,
        "status": "ok",
        "reason": None,
    }
