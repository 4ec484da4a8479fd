"""Metrics against their definitions."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ranks import on_ranks
from sklearn.metrics import roc_auc_score

from bench.data.reader import Batch, part_of
from bench.evaluate import NotFinite, metrics, predict
from bench.ranks import Ranks


@given(seed=st.integers(0, 99), rows=st.integers(2, 200), levels=st.integers(1, 20))
def test_auc_is_the_share_of_ordered_pairs_with_ties_at_half(seed, rows, levels):
    rng = np.random.default_rng(seed)
    logits = rng.integers(0, levels, rows).astype(np.float32)
    labels = np.r_[0, 1, rng.integers(0, 2, rows - 2)].astype(np.float32)
    positive, negative = logits[labels == 1][:, None], logits[labels == 0][None, :]
    pairs = np.mean((positive > negative) + 0.5 * (positive == negative))
    found = metrics(logits, labels)
    assert found["auc"] == pytest.approx(pairs, abs=1e-12)
    assert found["evaluated"] == rows and found["positives"] == labels.sum()


def test_logloss_and_ne_by_hand():
    found = metrics(np.array([0.0, math.log(3)], np.float32), np.array([0.0, 1.0], np.float32))
    expected = (math.log(2) - math.log(0.75)) / 2
    assert found["logloss"] == pytest.approx(expected, rel=1e-6)
    assert found["ne"] == pytest.approx(expected / math.log(2), rel=1e-6)


def test_prior_has_ne_one_and_auc_half():
    labels = np.array([1.0] + [0.0] * 3, np.float32)
    found = metrics(np.full(4, math.log(1 / 3), np.float32), labels)
    assert found["auc"] == 0.5
    assert found["ne"] == pytest.approx(1, rel=1e-6)


def test_large_logits_do_not_overflow():
    found = metrics(np.array([1e4, -1e4, 1e4], np.float32), np.array([1.0, 0.0, 0.0], np.float32))
    assert found["logloss"] == pytest.approx(1e4 / 3)


@pytest.mark.parametrize("label, word", [(0.0, "negative"), (1.0, "positive")])
def test_one_class_has_no_auc_and_says_why(label, word):
    found = metrics(np.zeros(3, np.float32), np.full(3, label, np.float32))
    assert found["auc"] is None and found["ne"] is None
    assert found["auc_reason"] == f"all 3 evaluated rows are {word}"


class Rows:
    """Stands in for a data set: rows that hold their number; every third one and all after 50 are positive."""

    sparse_names = ["a"]

    def __init__(self, count=5):
        self.count = count

    def rows(self, split):
        return self.count

    def labels(self):
        rows = torch.arange(self.count)
        return ((rows % 3 == 1) | (rows > 50)).float()

    def batches(self, split, batch_size, part):
        for first in range(0, self.count, batch_size):
            size = min(batch_size, self.count - first)
            low, high = part_of(size, *part)
            rows = torch.arange(first + low, first + high)
            ids = torch.zeros(len(rows), 1, dtype=torch.int32)
            yield Batch(dense=rows.float()[:, None], sparse=ids, label=self.labels()[rows])


class Model(torch.nn.Module):
    def __init__(self, bad):
        super().__init__()
        self.bad = bad

    def forward(self, dense, sparse):
        return torch.where(dense[:, 0] == self.bad, torch.nan, dense[:, 0])


def test_predict_gives_every_row_once_in_order_and_keeps_the_mode():
    model = Model(bad=-1)
    logits, labels = predict(model, Rows(), "test", 2)
    assert logits.tolist() == [0, 1, 2, 3, 4] and labels.tolist() == [0, 1, 0, 0, 1]
    assert model.training


def test_an_output_that_is_not_finite_is_named_by_its_rows():
    with pytest.raises(NotFinite, match="test rows 2 to 3"):
        predict(Model(bad=3), Rows(), "test", 2)


def predicted(rank, ranks, bad):
    found = predict(Model(bad), Rows(101), "test", 20, Ranks(rank, ranks, ranks, torch.device("cpu")))
    assert (found is None) == (rank > 0)
    return found


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_ranks_evaluate_every_row_once_though_rows_do_not_divide(ranks):
    """101 rows in batches of 20: the last batch is one row, so that all ranks but one have none of it."""
    logits, labels = on_ranks(ranks, predicted, ranks, -1)[0]
    assert logits.tolist() == list(range(101)) and labels.tolist() == Rows(101).labels().tolist()
    assert metrics(logits, labels)["auc"] == roc_auc_score(Rows(101).labels(), np.arange(101))


def test_an_output_that_is_not_finite_ends_all_ranks():
    with pytest.raises(NotFinite, match="test rows 80 to 99"):
        on_ranks(4, predicted, 4, 87)
