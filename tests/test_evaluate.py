"""Metrics against their definitions."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bench.data.reader import Batch
from bench.evaluate import NotFinite, metrics, predict


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
    """Stands in for a data set: five rows in batches of two."""

    sparse_names = ["a"]

    def rows(self, split):
        return 5

    def batches(self, split, batch_size, part):
        assert part == (0, 1)
        for first in range(0, 5, batch_size):
            rows = torch.arange(first, min(first + batch_size, 5)).float()
            yield Batch(dense=rows[:, None], sparse=torch.zeros(len(rows), 1, dtype=torch.int32), label=rows % 2)


class Model(torch.nn.Module):
    def __init__(self, bad):
        super().__init__()
        self.bad = bad

    def forward(self, dense, sparse):
        return torch.where(dense[:, 0] == self.bad, torch.nan, dense[:, 0])


def test_predict_gives_every_row_once_in_order_and_keeps_the_mode():
    model = Model(bad=-1)
    logits, labels = predict(model, Rows(), "test", 2)
    assert logits.tolist() == [0, 1, 2, 3, 4] and labels.tolist() == [0, 1, 0, 1, 0]
    assert model.training


def test_an_output_that_is_not_finite_is_named_by_its_rows():
    with pytest.raises(NotFinite, match="test rows 2 to 3"):
        predict(Model(bad=3), Rows(), "test", 2)
