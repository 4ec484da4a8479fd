"""The folder that a data set is prepared into: only one preparation at a time, and nothing of others is deleted."""

import fcntl
import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.data import manifest
from bench.data.splits import NAMES
from bench.errors import UserError

LOCK = ".prepare.lock"  # stays in the folder: it also says that the folder is a data set's
_SHARD = re.compile(rf"[.]?({'|'.join(NAMES)})-[0-9]{{5,}}[.]safetensors([.]partial)?")
_VOCABULARY = re.compile(r"[.]?[0-9]{2,}-[A-Za-z0-9_-]+[.]npy([.]partial)?")


@contextmanager
def locked(out: Path) -> Iterator[None]:
    """Make the folder and keep other preparations out of it.

    Raises:
        UserError: another preparation is at work there, or the folder is not empty and was never a data set's.
    """
    out.mkdir(parents=True, exist_ok=True)
    if not _is_ours(out) and any(out.iterdir()):
        raise UserError(f"{out} is not empty and holds no data set: give a new or an empty folder")
    with open(out / LOCK, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"another preparation is at work in {out}: wait for its end or give another folder"
            ) from None
        yield


def work(out: Path) -> Path:
    """Where intermediate files of a preparation are."""
    return out / ".unfinished"


def state_file(out: Path) -> Path:
    """Where a preparation notes how far it is."""
    return work(out) / "state.json"


def clear(out: Path) -> None:
    """Delete an earlier data set or preparation, and make the folders of a new one. Other files stay."""
    state_file(out).unlink(missing_ok=True)  # first: it must never name what is gone
    (out / manifest.NAME).unlink(missing_ok=True)  # then: from here on the data set is not complete
    vocabularies = out / "vocabulary"
    vocabularies.mkdir(exist_ok=True)
    for folder, ours in ((out, _SHARD), (vocabularies, _VOCABULARY)):
        for path in folder.iterdir():
            if ours.fullmatch(path.name):
                path.unlink()
    shutil.rmtree(work(out), ignore_errors=True)
    work(out).mkdir()


def _is_ours(out: Path) -> bool:
    if (out / LOCK).exists() or state_file(out).exists():
        return True
    try:
        return "split_hash" in json.loads((out / manifest.NAME).read_text())
    except (OSError, ValueError, TypeError):
        return False
