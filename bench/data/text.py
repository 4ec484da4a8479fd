"""Drawn rows as Criteo's text: tabs, decimal integers, eight hex digits, missing = empty, no header."""

import numba
import numpy as np

from bench.data.world import Sample


def lines(sample: Sample) -> np.ndarray:
    """The rows as (bytes,) uint8, each line with its newline."""
    rows, n_counts = sample.counts.shape
    out = np.empty(rows * (3 + 12 * n_counts + 9 * sample.ids.shape[1]), np.uint8)
    return out[: _write(sample.label, sample.counts, sample.counts_missing, sample.ids, sample.ids_missing, out)]


@numba.njit(nogil=True, cache=True)
def _write(label, counts, counts_missing, ids, ids_missing, out):
    """Returns the number of bytes written."""
    at = 0
    digits = np.empty(20, np.uint8)
    for row in range(len(label)):
        out[at] = 48 + label[row]
        at += 1
        for j in range(counts.shape[1]):
            out[at] = 9
            at += 1
            if counts_missing[row, j]:
                continue
            value = counts[row, j]
            if value < 0:
                out[at] = 45
                at += 1
                value = -value
            length = 0
            while length == 0 or value > 0:
                digits[length] = 48 + value % 10
                value //= 10
                length += 1
            for k in range(length):
                out[at + k] = digits[length - 1 - k]
            at += length
        for j in range(ids.shape[1]):
            out[at] = 9
            at += 1
            if ids_missing[row, j]:
                continue
            value = ids[row, j]
            for k in range(8):
                digit = (value >> np.uint32(28 - 4 * k)) & np.uint32(15)
                out[at + k] = digit + 48 if digit < 10 else digit + 87
            at += 8
        out[at] = 10
        at += 1
    return at
