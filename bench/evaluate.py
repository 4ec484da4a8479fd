"""Exact metrics over a whole split: AUC, logloss and normalised entropy.

B batch.
"""

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import nn
from tqdm import tqdm

from bench.batch import one_id_a_bag
from bench.data.reader import DataSet


class NotFinite(ArithmeticError):
    """The model's output is NaN or infinite; the message says for which rows."""


@torch.no_grad()
def predict(model: nn.Module, data: DataSet, split: str, batch_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Logits (rows,) float32 and labels (rows,) float32 of every row of the split, in file order, each row once.

    Raises:
        NotFinite: an output that is not a finite number.
    """
    was_training = model.training
    model.eval()
    logits, labels = [], []
    with tqdm(total=data.rows(split), desc=f"evaluate {split}", unit="row", unit_scale=True) as progress:
        for batch in data.batches(split, batch_size):
            out_B = model(batch.dense, one_id_a_bag(data.sparse_names, batch.sparse))
            if not torch.isfinite(out_B).all():
                first = len(logits) * batch_size
                raise NotFinite(f"output of {split} rows {first} to {first + len(out_B) - 1} is not finite")
            logits.append(out_B.numpy())
            labels.append(batch.label.numpy())
            progress.update(len(out_B))
    model.train(was_training)
    return np.concatenate(logits), np.concatenate(labels)


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
