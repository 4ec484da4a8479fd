"""Exact metrics over a whole split: AUC, logloss and normalised entropy.

B batch.
"""

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import nn
from tqdm import tqdm

from bench.batch import one_id_a_bag
from bench.data.reader import DataSet, part_of
from bench.ranks import Ranks
from bench.together import ALONE, at_first, from_first


class NotFinite(ArithmeticError):
    """The model's output is NaN or infinite; the message says for which rows."""


@torch.no_grad()
def predict(
    model: nn.Module, data: DataSet, split: str, batch_size: int, ranks: Ranks = ALONE
) -> tuple[np.ndarray, np.ndarray] | None:
    """Logits (rows,) float32 and labels (rows,) float32 of every row of the split, in file order, each row once.

    Each rank computes its part of every batch (bench.data.reader.part_of); rank 0 gets all, the others None.

    Raises:
        NotFinite: an output that is not a finite number; on all ranks.
    """
    was_training = model.training
    model.eval()
    parts = []
    with tqdm(
        total=data.rows(split), desc=f"evaluate {split}", unit="row", unit_scale=True, disable=not ranks.first
    ) as progress:
        for batch in data.batches(split, batch_size, part=(ranks.rank, ranks.size)):
            ids = one_id_a_bag(data.sparse_names, batch.sparse).to(ranks.device)
            out_B = model(batch.dense.to(ranks.device), ids)
            parts.append(np.stack([out_B.cpu().numpy(), batch.label.numpy()]))
            progress.update(min(batch_size, data.rows(split) - progress.n))
    model.train(was_training)

    found = at_first(np.concatenate(parts, axis=1))
    logits, labels = _in_file_order(found, data.rows(split), batch_size) if ranks.first else (None, None)
    bad = from_first(np.flatnonzero(~np.isfinite(logits))[:1].tolist() if ranks.first else None)
    if bad:
        first = bad[0] // batch_size * batch_size
        last = min(first + batch_size, data.rows(split)) - 1
        raise NotFinite(f"output of {split} rows {first} to {last} is not finite")
    return (logits, labels) if ranks.first else None


def _in_file_order(parts: list[np.ndarray], rows: int, batch_size: int) -> np.ndarray:
    """(2, rows) from what each rank has of each batch, (2, its rows), batch after batch."""
    if len(parts) == 1:
        return parts[0]
    whole, used = np.empty((2, rows), np.float32), [0] * len(parts)
    for begin in range(0, rows, batch_size):
        for rank, part in enumerate(parts):
            low, high = part_of(min(batch_size, rows - begin), rank, len(parts))
            whole[:, begin + low : begin + high] = part[:, used[rank] : used[rank] + high - low]
            used[rank] += high - low
    return whole


def metrics(logits: np.ndarray, labels: np.ndarray) -> dict:
    """Metrics of logits (rows,) against labels (rows,) of 0 and 1, in float64.

    logloss is in nats. NE is logloss over the entropy of the rows' own positive rate (He et al. 2014, section 2,
    with the rate of the evaluated rows as TorchRec's metric has it). With one class only, AUC and NE are undefined:
    None, and auc_reason says why.
    """
    x, y = logits.astype(np.float64), labels.astype(np.float64)
    logloss = float(np.mean(np.logaddexp(0, x) - y * x))
    positives, rows = int(y.sum()), len(y)
    result = {"auc": None, "auc_reason": None, "logloss": logloss, "ne": None}
    result |= {"evaluated": rows, "positives": positives}
    if 0 < positives < rows:
        rate = positives / rows
        result["auc"] = float(roc_auc_score(y, x))
        result["ne"] = logloss / float(-(rate * np.log(rate) + (1 - rate) * np.log(1 - rate)))
    else:
        result["auc_reason"] = f"all {rows} evaluated rows are {'positive' if positives else 'negative'}"
    return result
