"""How often each key occurs in a column, in bounded memory: a hash table that is spilled to disk as sorted runs.

A run is a .npy file of (key, count) pairs sorted by key. Runs of a column are merged over ranges of keys.
"""

import shutil
from pathlib import Path

import numba
import numpy as np

from bench.data.parse import MISSING
from bench.errors import UserError
from bench.files import replacing

PAIR = np.dtype([("key", "<u8"), ("count", "<i8")])
BUDGET_BYTES = 512 << 20  # of all columns' tables together
MERGE_PAIRS = 8 << 20  # pairs of all runs that are merged at once: some 400 MB with the sort's copies
_FIRST_SLOTS = 1 << 10

_options = {"nogil": True, "cache": True, "boundscheck": False}


class KeyCounter:
    """Counts the keys of one column."""

    def __init__(self, folder: Path, name: str, budget_bytes: int, runs: list[str] | None = None):
        """Runs go to folder/name-<number>.npy, after the given ones; the table stays below budget_bytes."""
        self.folder, self.name = folder, name
        self.most_slots = 1 << max((budget_bytes // PAIR.itemsize).bit_length() - 1, 4)
        self.table = _empty(min(_FIRST_SLOTS, self.most_slots))
        self.used = 0
        self.runs = list(runs or [])

    def add(self, keys: np.ndarray) -> None:
        """Count (n,) uint64 keys; missing values do not count."""
        done = 0
        while True:
            done, self.used = _add(keys, done, *self.table, self.used)
            if done == len(keys):
                return
            slots = len(self.table[0])
            if slots < self.most_slots:
                self.table = _grown(*self.table, 2 * slots)
            else:
                self.spill()

    def spill(self) -> None:
        """Write the table as a run and empty it.

        Raises:
            UserError: the disk is full.
        """
        if not self.used:
            return
        keys, counts = self.table
        pairs = np.empty(self.used, PAIR)
        full = counts > 0
        order = np.argsort(keys[full])
        pairs["key"], pairs["count"] = keys[full][order], counts[full][order]
        if shutil.disk_usage(self.folder).free < pairs.nbytes + (64 << 20):
            raise UserError(f"no room in {self.folder} for counts of column {self.name}: free some disk and run again")
        run = f"{self.name}-{len(self.runs):05d}.npy"
        with replacing(self.folder / run) as file:
            np.save(file, pairs)
        self.runs.append(run)
        self.table, self.used = _empty(len(keys)), 0


def merged(runs: list[Path], merge_pairs: int = MERGE_PAIRS):
    """(keys, counts) of all runs together in ascending order of the keys, in pieces of about merge_pairs pairs."""
    if not runs:
        return  # a column without any value
    sizes = [len(np.load(run, mmap_mode="r")) for run in runs]
    pieces = -(-sum(sizes) // merge_pairs)
    cuts = []
    if pieces > 1:
        step = max(merge_pairs // (8 * len(runs)), 1)  # a piece holds at most one step more of each run than it should
        samples = np.sort(np.concatenate([np.load(run, mmap_mode="r")["key"][::step] for run in runs]))
        cuts = [samples[len(samples) * i // pieces] for i in range(1, pieces)]
    begins = [0] * len(runs)
    for cut in [*cuts, None]:
        parts = []
        for i, run in enumerate(runs):
            pairs = np.load(run, mmap_mode="r")
            end = len(pairs) if cut is None else int(np.searchsorted(pairs["key"], cut))
            parts.append(np.array(pairs[begins[i] : end]))
            begins[i] = end
        pairs = np.concatenate(parts)
        if len(pairs):
            pairs = pairs[np.argsort(pairs["key"], kind="stable")]
            first = np.flatnonzero(np.concatenate(([True], pairs["key"][1:] != pairs["key"][:-1])))
            yield pairs["key"][first], np.add.reduceat(pairs["count"], first)


def _empty(slots: int) -> tuple[np.ndarray, np.ndarray]:
    return np.empty(slots, np.uint64), np.zeros(slots, np.int64)


@numba.njit(**_options)
def _slot(key, mask):
    mixed = key * np.uint64(0x9E3779B97F4A7C15)
    return np.int64((mixed ^ (mixed >> np.uint64(32))) & mask)


@numba.njit(**_options)
def _add(keys, start, table_keys, table_counts, used):
    """Count keys[start:] until the table is three quarters full. Returns (keys done, slots used)."""
    mask = np.uint64(len(table_keys) - 1)
    limit = len(table_keys) * 3 // 4
    for i in range(start, len(keys)):
        key = keys[i]
        if key == MISSING:
            continue
        slot = _slot(key, mask)
        while table_counts[slot] and table_keys[slot] != key:
            slot = np.int64(np.uint64(slot + 1) & mask)
        if not table_counts[slot]:
            if used >= limit:
                return i, used
            table_keys[slot] = key
            used += 1
        table_counts[slot] += 1
    return len(keys), used


@numba.njit(**_options)
def _grown(old_keys, old_counts, slots):
    keys, counts = np.empty(slots, np.uint64), np.zeros(slots, np.int64)
    mask = np.uint64(slots - 1)
    for i in range(len(old_keys)):
        if old_counts[i]:
            slot = _slot(old_keys[i], mask)
            while counts[slot]:
                slot = np.int64(np.uint64(slot + 1) & mask)
            keys[slot], counts[slot] = old_keys[i], old_counts[i]
    return keys, counts
