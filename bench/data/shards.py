"""Shards: safetensors files of encoded rows, written atomically, with their sha256.

dense float32 (rows, n_dense), log(1 + max(x, 0)) · sparse int32 (rows, n_sparse), ids · label uint8 (rows)
"""

import hashlib
import os
from pathlib import Path

import numpy as np
import safetensors.numpy


def write(folder: Path, name: str, label: np.ndarray, dense: np.ndarray, sparse: np.ndarray) -> dict:
    """Write a shard and return what the manifest says of it."""
    tensors = {"dense": dense, "label": label, "sparse": sparse}
    partial = folder / f".{name}.partial"
    safetensors.numpy.save_file({key: np.ascontiguousarray(value) for key, value in tensors.items()}, partial)
    with open(partial, "rb+") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        os.fsync(file.fileno())
    os.replace(partial, folder / name)
    return {"file": name, "rows": len(label), "positives": int(label.sum()), "sha256": digest}
