"""records.csv (bench/gather.py) as tables and figures want it, and how their command lines end on bad input."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pandas as pd

NEEDED = ("study", "kind", "run", "model", "towers", "tower_dim", "seed", "status", "reason", "test_auc", "auc_ceiling")


class InputError(Exception):
    """Bad input. The message is one line: what is wrong, where, and what to do about it."""


def read(path: Path) -> pd.DataFrame:
    """Records of one study, a row a record; columns as bench/gather.py writes them.

    Raises:
        InputError: no such file, columns missing, no accuracy runs, or several studies in one file.
    """
    table = read_table(path, NEEDED)
    runs = accuracy(table)
    if runs.empty:
        raise InputError(f"{path} holds no accuracy runs: train some first")
    if runs["study"].nunique() > 1:
        raise InputError(f"{path} mixes the studies {', '.join(sorted(runs['study'].unique()))}: gather each by itself")
    return table


def read_table(path: Path, needed: tuple[str, ...]) -> pd.DataFrame:
    """A table that bench/gather.py wrote.

    Raises:
        InputError: no such file, or columns missing.
    """
    try:
        table = pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {path}: {error}; `python -m bench.gather` writes it") from None
    missing = [name for name in needed if name not in table]
    if missing:
        raise InputError(f"{path} has no column {', '.join(missing)}: write it again with `python -m bench.gather`")
    return table


def accuracy(table: pd.DataFrame) -> pd.DataFrame:
    """Training runs, whatever their status."""
    return table[table["kind"] == "accuracy"]


def complexity(table: pd.DataFrame) -> pd.DataFrame:
    """Complexity counted at the paper's sizes."""
    return table[(table["kind"] == "complexity") & (table["sizes"] == "paper")]


def ceiling(table: pd.DataFrame) -> float | None:
    """Test AUC of the generator's true probability; None where rows are not generated."""
    values = accuracy(table)["auc_ceiling"].dropna()
    return float(values.iloc[0]) if len(values) else None


def write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text)
    os.replace(partial, path)


def cli(main: Callable[[], None]) -> None:
    """Run a command-line step: bad input ends with one line on stderr and exit code 2."""
    try:
        main()
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
