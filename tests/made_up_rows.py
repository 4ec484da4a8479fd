"""Criteo-like lines for tests, and a slow, independent preparation of them to compare with."""

import math
import random
from collections import Counter
from pathlib import Path

import numpy as np
import safetensors.numpy


def lines(n: int, seed: int = 0) -> list[str]:
    """n lines: label, 13 integers, 26 hex strings; negative and missing values, tied missing columns, skewed ids."""
    rng = random.Random(seed)
    rows = []
    for _ in range(n):
        tied = rng.random() < 0.3
        integers = ["" if rng.random() < 0.2 else str(int(rng.expovariate(0.05)) - 3) for _ in range(13)]
        ids = [
            "" if tied and column in (18, 19, 24, 25) else f"{int(rng.paretovariate(0.5) * (column + 1)) % 2**32:08x}"
            for column in range(26)
        ]
        rows.append("\t".join([str(int(rng.random() < 0.3)), *integers, *ids]))
    return rows


def write(path: Path, rows: list[str], end: str = "\n") -> Path:
    """The rows as a file."""
    path.write_bytes((end.join(rows) + end).encode())
    return path


def expected(rows: list[str], bounds: tuple[int, int], threshold: int, cap: int | None = None) -> dict:
    """What preparation must give: per split (label, dense, sparse), and sorted frequent values per column."""
    fields = [row.split("\t") for row in rows]
    vocabularies, ids = [], []
    for column in range(14, 40):
        counts = Counter(int(row[column], 16) for row in fields[: bounds[0]] if row[column])
        frequent = sorted(value for value, count in counts.items() if count >= threshold)
        size = len(frequent) if cap is None else min(len(frequent), cap - 2)
        vocabularies.append(frequent)
        ids.append({value: 2 + rank % size for rank, value in enumerate(frequent)})
    splits = {}
    for name, begin, end in (("train", 0, bounds[0]), ("validation", *bounds), ("test", bounds[1], len(rows))):
        part = fields[begin:end]
        label = [int(row[0]) for row in part]
        dense = [[math.log1p(max(int(value), 0)) if value else 0.0 for value in row[1:14]] for row in part]
        sparse = [[ids[c].get(int(value, 16), 1) if value else 0 for c, value in enumerate(row[14:40])] for row in part]
        splits[name] = (np.array(label), np.array(dense, np.float32), np.array(sparse))
    return {"splits": splits, "vocabularies": vocabularies}


def stored(folder: Path, manifest: dict, split: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(label, dense, sparse) of a prepared split, read without the reader."""
    shards = [safetensors.numpy.load_file(folder / s["file"]) for s in manifest["splits"][split]["shards"]]
    return tuple(np.concatenate([shard[name] for shard in shards]) for name in ("label", "dense", "sparse"))
