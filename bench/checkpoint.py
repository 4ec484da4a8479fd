"""Checkpoints of a run: written atomically by all its ranks, used again only by the very same run, on any ranks.

A checkpoint is a folder. In it each `step-N` is complete, and a run's newest counts. It holds run.json and the files of
torch.distributed.checkpoint, of which each rank reads its own parts however the writer's ranks divided them.
"""

import fcntl
import json
import os
import re
import shutil
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch.distributed as dist
from torch.distributed import checkpoint as dcp

from bench.errors import UserError
from bench.files import write_text
from bench.together import barrier, from_first

PARTIAL, RUN = "partial", "run.json"


class Damaged(Exception):
    """A checkpoint with a file that is missing or cut short; what it was to fill may hold parts of it."""


@contextmanager
def alone(path: str | Path | None) -> Iterator[None]:
    """Hold a run's checkpoint for this process: a run whose caller was killed may still be at work on it.

    Raises:
        UserError: another process holds it.
    """
    if path is None:
        yield
        return
    lock = Path(f"{path}.lock")
    lock.parent.mkdir(parents=True, exist_ok=True)
    with open(lock, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(f"another process trains the run of {path}: wait for its end, or stop it") from None
        yield  # the file stays: removing it would let a third process lock another one of the same name


def check_place(path: str | Path) -> None:
    """Raise UserError where something stands that is no checkpoint: it is never written into, nor removed."""
    path = Path(path)
    if path.exists() and not (path.is_dir() and all(_is_ours(entry) for entry in path.iterdir())):
        raise UserError(f"{path} cannot be written: it is there and is no checkpoint folder; name another place")


def save(path: str | Path, identity: dict, progress: dict, state: dict) -> None:
    """Write `state` (tensors by name) and progress (with its "step") of the run with this identity.

    Every rank calls this. The checkpoint before stays usable until this one is complete.

    Raises:
        UserError: a rank could not write its part.
    """
    path, partial = Path(path), Path(path) / PARTIAL
    if _first():
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
    barrier()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that one process saves alone
        try:
            dcp.save(state, storage_writer=dcp.FileSystemWriter(partial))
        except dcp.api.CheckpointException as error:
            rank, (fault, _) = next(iter(error.failures.items()))
            on_rank = f" (on rank {rank})" if dist.is_initialized() else ""
            raise UserError(
                f"cannot write checkpoint {path}{on_rank}: free space there or name another place"
            ) from fault
    if _first():
        write_text(partial / RUN, json.dumps({"identity": identity, "progress": progress}))
        _to_disk(partial)
        complete = path / f"step-{progress['step']}"
        before = [old for old in _steps(path) if old != complete]
        shutil.rmtree(complete, ignore_errors=True)  # of another run, or damaged: this run was never here before
        os.replace(partial, complete)
        _to_disk(path)
        for old in before:
            shutil.rmtree(old, ignore_errors=True)


def load(path: str | Path, identity: dict, state: dict) -> dict | None:
    """Fill the tensors of `state` with those that `save` stored for this identity; returns the progress.

    None, with a line on stderr, when there is no checkpoint that fits. Every rank calls this; rank 0's identity counts.

    Raises:
        Damaged: a file is missing or cut short; some tensors may have been filled. Bits that flipped are not noticed.
    """
    found = from_first(_newest(Path(path), identity) if _first() else None)
    if found is None:
        return None
    folder, progress = found
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            dcp.load(state, storage_reader=dcp.FileSystemReader(folder))
        except dcp.api.CheckpointException as error:
            fault, _ = next(iter(error.failures.values()))
            raise Damaged(f"checkpoint {folder} cannot be read ({type(fault).__name__})") from None
    return progress


def remove(path: str | Path) -> None:
    """Remove a run's checkpoint."""
    path = Path(path)
    for entry in path.iterdir() if path.is_dir() else ():
        if _is_ours(entry):
            shutil.rmtree(entry)
    if path.is_dir():
        path.rmdir()


def _newest(path: Path, identity: dict) -> tuple[Path, dict] | None:
    """Folder and progress of the newest complete checkpoint of this identity; None, and why on stderr."""
    identity = json.loads(json.dumps(identity))  # tuples are lists there
    reasons = []
    for folder in reversed(_steps(path)):
        try:
            stored = json.loads((folder / RUN).read_text())
            other, progress = stored["identity"], stored["progress"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            reasons.append(f"checkpoint {folder} cannot be read ({type(error).__name__}): starting anew")
            continue
        differing = sorted(key for key in other.keys() | identity.keys() if other.get(key) != identity.get(key))
        if not differing:
            return folder, progress
        reasons.append(f"checkpoint {path} is of another run ({', '.join(differing)} differ): starting anew")
    if reasons:
        print(reasons[0], file=sys.stderr)
    return None


def _steps(path: Path) -> list[Path]:
    """Complete checkpoints, oldest first."""
    found = [entry for entry in path.glob("step-*") if _is_ours(entry)]
    return sorted(found, key=lambda entry: int(entry.name.removeprefix("step-")))


def _is_ours(entry: Path) -> bool:
    return entry.name == PARTIAL or re.fullmatch(r"step-\d+", entry.name) is not None


def _first() -> bool:
    return not dist.is_initialized() or dist.get_rank() == 0


def _to_disk(folder: Path) -> None:
    """Make sure that the names in a folder outlast a loss of power."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
