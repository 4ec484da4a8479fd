"""Keys of a column into ids: 0 missing, 1 rare or not in training, from 2 on the frequent keys in ascending order.

On disk a vocabulary is vocabulary/<number>-<column>.npy: the frequent keys, sorted, (kept,) uint64.
With a cap of M rows a table, the key of rank r has id 2 + r % (M - 2).
"""

import mmap
import re
from pathlib import Path

import numba
import numpy as np

from bench.data.counting import merged
from bench.data.parse import MISSING
from bench.files import replacing

MISSING_ID, RARE_ID, FIRST_ID = 0, 1, 2
LOADED_BYTES = 384 << 20  # vocabularies that are held in memory; larger ones are mapped and let go after each use
_INDEXED_PIECE = 4 << 20  # keys
_MAPPED_PIECE = 4096  # keys looked up in a mapped vocabulary before its pages are let go

_options = {"nogil": True, "cache": True, "boundscheck": False}


def file_name(number: int, column: str) -> str:
    """Name of a column's vocabulary file."""
    return f"{number:02d}-{re.sub('[^A-Za-z0-9_-]', '_', column)}.npy"


def write(path: Path, rare_path: Path, runs: list[Path], threshold: int) -> tuple[int, int]:
    """Merge a column's runs and write the keys that occur at least `threshold` times, and the others to rare_path.

    Returns:
        (distinct, kept)
    """
    distinct = kept = 0
    with replacing(path) as file, replacing(rare_path) as rare_file:
        _write_header(file, 0)
        _write_header(rare_file, 0)
        for keys, counts in merged(runs):
            frequent = counts >= threshold
            distinct, kept = distinct + len(keys), kept + int(frequent.sum())
            file.write(keys[frequent].astype("<u8", copy=False).tobytes())
            rare_file.write(keys[~frequent].astype("<u8", copy=False).tobytes())
        for each, length in ((file, kept), (rare_file, distinct - kept)):
            each.seek(0)
            _write_header(each, length)  # numpy pads headers, so that the length can be written last
    return distinct, kept


def table_rows(kept: int, cap: int | None) -> int:
    """Rows of a column's table."""
    return min(kept + FIRST_ID, cap or kept + FIRST_ID)


class Vocabulary:
    """The ids of one column."""

    def __init__(self, path: Path, cap: int | None, load: bool):
        """load: hold the keys in memory; else they stay in the file, mapped, and little of it is resident at a time."""
        self.keys = np.load(path, mmap_mode=None if load else "r")
        self.modulo = table_rows(len(self.keys), cap) - FIRST_ID
        self.mapped = None if load or not len(self.keys) else self.keys._mmap
        first, last = (int(self.keys[0]), int(self.keys[-1])) if len(self.keys) else (0, 0)
        # first place of each range of 2**shift keys: hashes are spread evenly, so a range holds few keys
        self.first = np.uint64(first)
        bits = max(min(len(self.keys).bit_length() - 1, 20), 0)
        self.shift = np.uint64(max((last - first).bit_length() - bits, 0))
        ranges = ((last - first) >> int(self.shift)) + 1
        self.places = np.zeros(ranges + 1, np.int64)
        for begin in range(0, len(self.keys), _INDEXED_PIECE):
            _index(self.keys[begin : begin + _INDEXED_PIECE], self.first, self.shift, self.places)
            self._let_go()
        np.cumsum(self.places, out=self.places)

    def encode(self, keys: np.ndarray, ids: np.ndarray) -> int:
        """Write ids of (n,) uint64 keys into (n,) int32 ids. Returns how many are rare or not in training."""
        if self.mapped is None:
            return _encode(keys, self.keys, self.first, self.shift, self.places, self.modulo, ids)
        unique, inverse = np.unique(keys, return_inverse=True)
        unique_ids = np.empty(len(unique), np.int32)
        for begin in range(0, len(unique), _MAPPED_PIECE):
            piece = slice(begin, begin + _MAPPED_PIECE)
            _encode(unique[piece], self.keys, self.first, self.shift, self.places, self.modulo, unique_ids[piece])
            self._let_go()
        ids[:] = unique_ids[inverse]
        return int(np.count_nonzero(ids == RARE_ID))

    def _let_go(self) -> None:
        """Pages of a mapped vocabulary leave this process (they stay in the system's cache)."""
        if self.mapped is not None and hasattr(mmap, "MADV_DONTNEED"):
            self.mapped.madvise(mmap.MADV_DONTNEED)


def open_all(paths: list[Path], cap: int | None, loaded_bytes: int = LOADED_BYTES) -> list[Vocabulary]:
    """Vocabularies of all columns; the smallest ones are held in memory as far as loaded_bytes go."""
    loaded = set()
    for path in sorted(paths, key=lambda path: path.stat().st_size):
        loaded_bytes -= path.stat().st_size
        if loaded_bytes >= 0:
            loaded.add(path)
    return [Vocabulary(path, cap, path in loaded) for path in paths]


def _write_header(file, length: int) -> None:
    np.lib.format.write_array_header_1_0(file, {"descr": "<u8", "fortran_order": False, "shape": (length,)})


@numba.njit(**_options)
def _index(vocabulary, first, shift, places):
    """Count the keys of each range, one place further on: their running sum is where each range begins."""
    for key in vocabulary:
        places[((key - first) >> shift) + np.uint64(1)] += 1


@numba.njit(**_options)
def _encode(keys, vocabulary, first, shift, places, modulo, ids):
    rare = 0
    for i in range(len(keys)):
        key = keys[i]
        ids[i] = MISSING_ID
        if key == MISSING:
            continue
        ids[i] = RARE_ID
        part = (key - first) >> shift
        if key >= first and part < np.uint64(len(places) - 1):
            low, high = places[part], places[part + np.uint64(1)]
            while low < high:  # first place whose key is not below
                middle = (low + high) >> 1
                if vocabulary[middle] < key:
                    low = middle + 1
                else:
                    high = middle
            if low < len(vocabulary) and vocabulary[low] == key:
                ids[i] = FIRST_ID + low % modulo
                continue
        rare += 1
    return rare
