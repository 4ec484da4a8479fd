"""The look of Criteo's Kaggle rows: cardinalities, head shares, missing values that go together, integers' quantiles.

Numbers are of the published training file: cardinalities of all of it, shares and quantiles of a uniform sample.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

SLOPE = 1.05  # Zipf exponent of the share of rank r, (r + flatness) ** -SLOPE
HEAD_IDS = 2048  # ids with a share of their own; rarer ones share the tail's buckets
TAIL_BUCKETS = 64
FLAT = 1.5  # flatness of the columns without a dominant value
_DOMINANT = 0.1  # a most frequent value with this share stands apart from the Zipf law


@dataclass(frozen=True)
class Categorical:
    """A column of hex values."""

    name: str
    universe: int  # distinct values
    head: float | None  # share of the most frequent one; None: as the Zipf law has it
    missing: str | None = None  # columns with the same word are missing together


@dataclass(frozen=True)
class Count:
    """A column of heavy-tailed integers."""

    name: str
    median: float
    p99: float  # 99th percentile
    most: int
    missing: str | None = None


MISSING_SHARE = {
    "C3": 0.0345, "C19": 0.4418, "C22": 0.761, "C6": 0.122,
    "I1": 0.451, "I3": 0.213, "I4": 0.215, "I5": 0.026, "I6": 0.223, "I7": 0.043, "I8": 0.001, "I12": 0.765,
}  # fmt: skip
COUNTS = (
    Count("I1", 1, 39, 5775, "I1"),
    Count("I2", 3, 2234, 257675),
    Count("I3", 6, 216, 65535, "I3"),
    Count("I4", 4, 41, 969, "I4"),
    Count("I5", 2796, 345908, 2070000, "I5"),
    Count("I6", 32, 1323, 233523, "I6"),
    Count("I7", 3, 219, 26279, "I7"),
    Count("I8", 7, 48, 5106, "I8"),
    Count("I9", 39, 1003, 24376, "I7"),
    Count("I10", 1, 3, 9, "I1"),
    Count("I11", 1, 26, 181, "I7"),
    Count("I12", 0, 19, 4008, "I12"),
    Count("I13", 4, 49, 6568, "I4"),
)
NEGATIVE_COLUMN, NEGATIVE_SHARE = "I2", 0.103  # of its rows are -1, few of them -2 or -3
CATEGORICALS = (
    Categorical("C1", 1460, 0.50),
    Categorical("C2", 583, 0.11),
    Categorical("C3", 10131227, None, "C3"),
    Categorical("C4", 2202608, None, "C3"),
    Categorical("C5", 305, 0.67),
    Categorical("C6", 24, None, "C6"),
    Categorical("C7", 12517, None),
    Categorical("C8", 633, 0.60),
    Categorical("C9", 3, 0.90),
    Categorical("C10", 93145, 0.22),
    Categorical("C11", 5683, None),
    Categorical("C12", 8351593, None, "C3"),
    Categorical("C13", 3194, None),
    Categorical("C14", 27, 0.35),
    Categorical("C15", 14992, None),
    Categorical("C16", 5461306, None, "C3"),
    Categorical("C17", 10, 0.46),
    Categorical("C18", 5652, None),
    Categorical("C19", 2173, None, "C19"),
    Categorical("C20", 4, None, "C19"),
    Categorical("C21", 7046547, None, "C3"),
    Categorical("C22", 18, None, "C22"),
    Categorical("C23", 15, 0.44),
    Categorical("C24", 286181, None, "C3"),
    Categorical("C25", 105, None, "C19"),
    Categorical("C26", 142572, None, "C19"),
)


def shares(column: Categorical) -> tuple[np.ndarray, float]:
    """(shares of the most frequent ids, at most HEAD_IDS, in descending order; share of all others)"""
    own = min(column.universe, HEAD_IDS)
    flatness = 0.0 if column.head or column.universe < 100 else FLAT
    ranks = np.arange(1, own + 1) + flatness
    weights = ranks**-SLOPE
    tail = 0.0
    if column.universe > own:
        tail = (ranks[-1] ** (1 - SLOPE) - (column.universe + flatness) ** (1 - SLOPE)) / (SLOPE - 1)
    if column.head and column.head >= _DOMINANT:
        others = weights[1:].sum() + tail
        weights, tail = weights * (1 - column.head) / others, tail * (1 - column.head) / others
        weights[0] = column.head
        return weights, tail
    total = weights.sum() + tail
    return weights / total, tail / total


def integers(column: Count, normal: np.ndarray) -> np.ndarray:
    """(rows,) int64 values with the column's median and 99th percentile, rising with the (rows,) normal scores."""
    spread = np.log((column.p99 + 1) / (column.median + 1)) / ndtri(0.99)
    values = (column.median + 1) * np.exp(spread * normal) - 0.5
    values = np.minimum(np.floor(np.maximum(values, 0)), column.most).astype(np.int64)
    if column.name == NEGATIVE_COLUMN:
        for value, share in ((-1, NEGATIVE_SHARE), (-2, NEGATIVE_SHARE / 100), (-3, NEGATIVE_SHARE / 1000)):
            values[normal < ndtri(share)] = value
    return values
