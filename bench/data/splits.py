"""Which split a row belongs to: by row order, by day (one file a day), or by a group that must stay together."""

from dataclasses import dataclass

import numpy as np

from bench.data.rows import Rows
from bench.errors import UserError

NAMES = ("train", "validation", "test")


@dataclass(frozen=True)
class Split:
    """The split of each row. Rows are lines of all files in order; a bad line keeps its place."""

    bounds: tuple[int, int]  # first line of validation, first line of test
    shares: tuple[float, float] | None = None  # by group: shares of train, and of train and validation together

    def of(self, rows: Rows) -> np.ndarray:
        """(rows,) uint8 indices into NAMES."""
        if self.shares is None:
            return np.searchsorted(self.bounds, rows.number, side="right").astype(np.uint8)
        return np.searchsorted(self.shares, _uniform(rows.group), side="right").astype(np.uint8)

    @property
    def train_end(self) -> int | None:
        """Number of the line behind the last training row; None: training rows are everywhere."""
        return self.bounds[0] if self.shares is None else None


def plan(option: str, lines: list[int], grouped: bool) -> Split:
    """The split for an option ("0.8,0.1,0.1" or "day") and the number of lines of each file.

    Raises:
        UserError: the option is none of these, does not fit the files, or leaves a split empty.
    """
    total, shares = sum(lines), fractions(option, len(lines), grouped)
    if shares is None:
        bounds = total - lines[-1], total - lines[-1] // 2
    elif grouped:
        return Split((0, 0), (shares[0], shares[0] + shares[1]))
    else:
        bounds = round(total * shares[0]), round(total * (shares[0] + shares[1]))
    if not 0 < bounds[0] < bounds[1] < total:
        raise UserError(f"--split {option} of {total} rows leaves a split empty: give more rows or other fractions")
    return Split(bounds)


def fractions(option: str, files: int, grouped: bool) -> list[float] | None:
    """Fractions of train, validation and test; None: by day.

    Raises:
        UserError: the option is neither, or does not fit the number of files or a schema with groups.
    """
    if option == "day":
        if grouped:
            raise UserError("--split day: the schema names a group column, so rows are split by group; give fractions")
        if files < 2:
            raise UserError("--split day needs at least two files, in the order of days; the last day is halved")
        return None
    try:
        shares = [float(share) for share in option.split(",")]
    except ValueError:
        shares = []
    if len(shares) != 3 or not (min(shares) > 0 and abs(sum(shares) - 1) < 1e-6):
        raise UserError(
            f"--split {option}: give 'day' or three fractions above 0 that add up to 1, such as 0.8,0.1,0.1"
        )
    return shares


def _uniform(group: np.ndarray) -> np.ndarray:
    """(rows,) numbers in [0, 1), a function of the group's key alone."""
    key = group * np.uint64(0x9E3779B97F4A7C15)
    return ((key ^ (key >> np.uint64(29))) >> np.uint64(11)) * 2.0**-53
