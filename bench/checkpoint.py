"""Checkpoints of a run: written atomically, used again only by the very same run."""

import pickle
import sys
from pathlib import Path

import torch

from bench.files import replacing


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
    except (RuntimeError, pickle.UnpicklingError, EOFError) as error:
        print(f"checkpoint {path} cannot be read ({str(error).splitlines()[0]}): starting anew", file=sys.stderr)
        return None
    other = stored["identity"]
    differing = sorted(key for key in other.keys() | identity.keys() if other.get(key) != identity.get(key))
    if differing:
        print(f"checkpoint {path} is of another run ({', '.join(differing)} differ): starting anew", file=sys.stderr)
        return None
    return stored["state"]
