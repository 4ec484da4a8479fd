"""An upper bound on the AUC of any model on generated rows: that of the true probability, from the generator's files.

It is above what models can reach: the probability also depends on scores that the rows show rounded or not at all.
The generator leaves FILE.generator.json and FILE.probability.npy beside FILE.
"""

import hashlib
import json
from pathlib import Path

import numpy as np
import safetensors

from bench.data.splits import NAMES, Split

HEAD_BYTES = 1 << 20  # of the rows, hashed, so that side files of another file are found out
_BINS = 1 << 20


def describe(files: list[Path], splits: dict, split: Split, out: Path) -> dict | None:
    """The manifest's "generator" entry; None where the files were not generated or are not as generated.

    Args:
        splits: the manifest's, for rows in file order without gaps.
        out: the data set's folder.
    """
    sides = [_side(file) for file in files]
    if None in sides or len({side["seed"] for side in sides}) != 1 or split.shares is not None:
        return None
    probability = [np.load(f"{file}.probability.npy", mmap_mode="r") for file in files]
    rows = sum(side["rows"] for side in sides)
    if rows != sum(len(part) for part in probability) or rows != sum(splits[name]["rows"] for name in NAMES):
        return None
    counts, begin = {}, 0
    for name in NAMES:
        counts[name] = histogram()
        for shard in splits[name]["shards"]:
            with safetensors.safe_open(out / shard["file"], "numpy") as file:
                label = file.get_tensor("label")
            add(counts[name], _rows(probability, begin, begin + len(label)), label)
            begin += len(label)
    return {
        "seed": sides[0]["seed"],
        "rows": rows,
        "label_rate": round(sum(splits[name]["positives"] for name in NAMES) / rows, 6),
        "auc_ceiling": {
            "all": auc(sum(counts.values())),
            "validation": auc(counts["validation"]),
            "test": auc(counts["test"]),
        },
        "groups": sides[0]["groups"],
    }


def histogram() -> np.ndarray:
    """Empty counts for add: (2, bins), negatives and positives by probability."""
    return np.zeros((2, _BINS), np.int64)


def add(counts: np.ndarray, probability: np.ndarray, label: np.ndarray) -> None:
    """Count rows with probabilities (n,) in [0, 1] and labels (n,) of 0 and 1."""
    bins = np.minimum((probability * _BINS).astype(np.int64), _BINS - 1)
    for value in (0, 1):
        counts[value] += np.bincount(bins[label == value], minlength=_BINS)


def auc(counts: np.ndarray) -> float | None:
    """AUC from a histogram, to 6 digits; probabilities closer than 1e-6 count as equal. None: one class only."""
    negatives, positives = counts
    pairs = int(negatives.sum()) * int(positives.sum())
    if not pairs:
        return None
    below = np.cumsum(negatives) - negatives / 2
    return round(float((below * positives).sum() / pairs), 6)


def head_hash(path: Path) -> str:
    """sha256 of the first MiB of a file."""
    with open(path, "rb") as file:
        return hashlib.sha256(file.read(HEAD_BYTES)).hexdigest()


def _side(path: Path) -> dict | None:
    try:
        side = json.loads(Path(f"{path}.generator.json").read_text())
        same = side["bytes"] == path.stat().st_size and side["head_sha256"] == head_hash(path)
        return side if same and Path(f"{path}.probability.npy").is_file() else None
    except (OSError, ValueError, KeyError):
        return None


def _rows(parts: list[np.ndarray], begin: int, end: int) -> np.ndarray:
    """Rows begin to end of the parts put one after the other."""
    found, at = [], 0
    for part in parts:
        found.append(part[max(begin - at, 0) : max(end - at, 0)])
        at += len(part)
    return np.concatenate(found)
