"""Shards: safetensors files of encoded rows, written atomically, with their sha256.

dense float32 (rows, n_dense), log(1 + max(x, 0)) · sparse int32 (rows, n_sparse), ids · label uint8 (rows)
"""

import hashlib
from pathlib import Path

import numpy as np
import safetensors.numpy

from bench.files import replacing


def write(folder: Path, name: str, label: np.ndarray, dense: np.ndarray, sparse: np.ndarray) -> dict:
    """Write a shard and return what the manifest says of it."""
    tensors = {"dense": dense, "label": label, "sparse": sparse}
    data = safetensors.numpy.save({key: np.ascontiguousarray(value) for key, value in tensors.items()})
    with replacing(folder / name) as file:
        file.write(data)
    digest = hashlib.sha256(data).hexdigest()
    return {"file": name, "rows": len(label), "positives": int(label.sum()), "sha256": digest}
