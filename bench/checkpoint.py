"""Checkpoints of a run: written atomically, used again only by the very same run."""

import fcntl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from bench.errors import UserError
from bench.files import replacing


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


def save(path: str | Path, identity: dict, state: dict) -> None:
    """Write the state with the identity (options, data, code) of the run that it belongs to."""
    with replacing(path) as file:
        torch.save({"identity": identity, "state": state}, file)


def load(path: str | Path, identity: dict) -> dict | None:
    """The state that `save` stored for this identity; None, with a line on stderr, when there is none that fits."""
    path = Path(path)
    if not path.exists():
        return None
    try:
        stored = torch.load(path, weights_only=True)
        other, state = stored["identity"], stored["state"]
    except Exception as error:  # a damaged file fails in as many ways as it can be damaged
        print(f"checkpoint {path} cannot be read ({type(error).__name__}): starting anew", file=sys.stderr)
        return None
    differing = sorted(key for key in other.keys() | identity.keys() if other.get(key) != identity.get(key))
    if differing:
        print(f"checkpoint {path} is of another run ({', '.join(differing)} differ): starting anew", file=sys.stderr)
        return None
    return state
