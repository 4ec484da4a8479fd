"""Files that are whole or not there: written beside their place, then moved onto it in one step."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


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
