"""Files that are whole or not there: written beside their place, then moved onto it in one step."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from bench.errors import UserError


@contextmanager
def replacing(path: str | Path) -> Iterator[BinaryIO]:
    """A file open for writing that takes the place of `path` when the block ends, and vanishes when it raises."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")  # one name: a kill leaves one file, and the next try takes it
    try:
        with open(partial, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    """Replace a text file; readers see the old one or the whole new one."""
    with replacing(path) as file:
        file.write(text.encode())


def check_place(path: Path | None, option: str) -> None:
    """Find out before the work, not after it, that a file could not be written.

    Raises:
        UserError: a folder stands there.
        OSError: its folder cannot be made.
    """
    if path is None:
        return
    if path.is_dir():
        raise UserError(f"{option} {path}: it is a folder, name a file")
    path.parent.mkdir(parents=True, exist_ok=True)
