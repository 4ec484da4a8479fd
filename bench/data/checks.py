"""What is checked of a preparation: before anything is written its options, files and the disk; later its splits."""

import shutil
from pathlib import Path

import numpy as np

from bench.data import stream
from bench.data.counting import PAIR
from bench.data.rows import RowParser
from bench.data.schema import Schema
from bench.data.splits import NAMES
from bench.data.state import State
from bench.data.stream import Cursor
from bench.errors import UserError

PACKED = 4  # bytes of text in a byte of a compressed file, about


def options(threshold: int, cap: int | None, shard_rows: int) -> None:
    """
    Raises:
        UserError: an option is too small.
    """
    for name, value, least in (("threshold", threshold, 1), ("cap", cap, 3), ("shard-rows", shard_rows, 1)):
        if value is not None and value < least:
            raise UserError(f"--{name} {value}: must be at least {least}")


def sources(files: list[Path]) -> None:
    """
    Raises:
        UserError: a file is missing or given twice.
    """
    seen = set()
    for file in files:
        if not file.is_file():
            raise UserError(f"no file {file}: give the path of a file of rows")
        if file.resolve() in seen:
            raise UserError(f"{file} is given twice: name each file of rows once")
        seen.add(file.resolve())


def first_rows(parser: RowParser) -> tuple[int, float]:
    """Parse the first block of each file. Returns (rows of all files, bytes on disk for each), both estimates.

    Counts and vocabularies take no more for a row than in the first blocks, as distinct values become fewer.

    Raises:
        UserError: a file cannot be read, holds no rows, or begins with bad ones that are not to be skipped.
    """
    rows = need = 0.0
    for index, file in enumerate(parser.files):
        block = next(stream.blocks(parser.files, parser.schema.header, Cursor(file=index)), None)
        if block is None or block.start.file != index:
            raise UserError(f"{file} holds no rows: give a file with rows")
        keys = parser(block).keys
        text = file.stat().st_size * (PACKED if stream.packing(file) else 1)
        here = text * block.lines / len(block.text)
        pairs = sum(len(np.unique(column)) for column in keys) / block.lines
        rows += here
        need += here * (shard_row(parser.schema) + pairs * (PAIR.itemsize + 8))
    return round(rows), need / rows


def shard_row(schema: Schema) -> int:
    """Bytes of a row in a shard."""
    return 4 * len(schema.dense) + 4 * len(schema.sparse) + 1


def disk(out: Path, rows: int, row_bytes: float) -> None:
    """
    Raises:
        UserError: no room in folder out for so many rows.
    """
    need, free = rows * row_bytes + (64 << 20), shutil.disk_usage(out).free
    if free < need:
        raise UserError(
            f"{out} needs {need / 1e9:.3g} GB for {rows} rows, {free / 1e9:.3g} GB are free: free some or give another "
            "folder"
        )


def training(now: State, files: list[Path]) -> None:
    """
    Raises:
        UserError: nothing can be learned from the training rows.
    """
    if not now.train_rows:
        raise UserError(
            f"the training split of {_names(files)} holds no good rows: give more rows or a larger first fraction"
        )
    if now.train_positives in (0, now.train_rows):
        only = "negative" if now.train_positives == 0 else "positive"
        raise UserError(
            f"all {now.train_rows} training rows of {_names(files)} are {only}, nothing to learn: give more rows"
        )


def encoded(now: State, files: list[Path], key: str) -> str | None:
    """Why what was encoded is not what was counted; None where it is.

    Args:
        key: the state's, made anew from the files as they are now.
    """
    total = sum(now.lines)
    rows = sum(shard["rows"] for shards in now.shards.values() for shard in shards)
    if key == now.key and now.encoding.row == total and rows + sum(now.bad.values()) == total:
        return None
    return f"{_names(files)} changed during the preparation: give the same command again when nothing writes there"


def no_split_is_empty(now: State, files: list[Path]) -> None:
    """
    Raises:
        UserError: a split holds no rows.
    """
    for name in NAMES:
        if not now.shards[name]:
            raise UserError(
                f"the {name} split of {_names(files)} holds no good rows: give more rows or other fractions"
            )


def _names(files: list[Path]) -> str:
    return ", ".join(str(file) for file in files[:3]) + (", ..." if len(files) > 3 else "")
