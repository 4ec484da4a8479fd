"""TrainStep against a plain loop of torch: the same model, torch's own Adam everywhere."""

import copy
import math

import pytest
import torch
from torch import nn
from torchrec.models.dlrm import InteractionArch

import baselines
from baselines import ModelSpec
from bench.batch import one_id_a_bag, tables
from bench.step import NotFiniteLoss, TrainStep

NAMES = ["a", "b", "c"]
SMALL = {"embedding_dim": 4, "bottom": (8,), "over": (8,), "small_over": (8,), "cross_rank": 3, "tower_cross_rank": 2}


def build(model, towers=1):
    torch.manual_seed(0)
    spec = ModelSpec(model, dense_features=5, towers=towers, **SMALL)
    return baselines.build(spec, tables(NAMES, [3, 4, 5], 4))


def batch(seed):
    random = torch.Generator().manual_seed(seed)
    rows = [torch.arange(12) % r for r in (3, 4, 5)]  # every row of every table, so that Adam and lazy Adam agree
    ids_BF = torch.stack([ids[torch.randperm(12, generator=random)] for ids in rows], 1)
    label_B = torch.randint(2, (12,), generator=random).float()
    return torch.randn(12, 5, generator=random), one_id_a_bag(NAMES, ids_BF), label_B


@pytest.mark.parametrize("model, towers", [("dlrm", 1), ("dcn", 1), ("dmt_dlrm", 2), ("dmt_dcn", 2), ("logistic", 1)])
def test_three_steps_equal_a_plain_loop(model, towers):
    theirs = build(model, towers)
    ours = copy.deepcopy(theirs)
    before = {name: value.clone() for name, value in theirs.named_parameters()}
    optimizer = torch.optim.Adam(theirs.parameters(), lr=0.0)
    learn = TrainStep(ours)
    for step, rate in enumerate((0.01, 0.03, 0.02)):
        dense, sparse, label_B = batch(step)
        loss = nn.functional.binary_cross_entropy_with_logits(theirs(dense, sparse), label_B)
        optimizer.zero_grad()
        loss.backward()
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        assert learn(dense, sparse, label_B, rate) == pytest.approx(loss.item(), rel=1e-5)
    found = dict(ours.named_parameters())
    for name, value in theirs.named_parameters():
        assert not torch.equal(value, before[name]), f"{name} did not learn"
        torch.testing.assert_close(found[name], value, rtol=1e-3, atol=1e-5, msg=name)


def test_a_loss_that_is_not_finite_changes_nothing():
    learn = TrainStep(build("dlrm"))
    before = copy.deepcopy(learn.model.state_dict())
    dense, sparse, label_B = batch(0)
    with pytest.raises(NotFiniteLoss, match="nan"):
        learn(dense * math.nan, sparse, label_B, 0.1)
    assert all(torch.equal(value, before[name]) for name, value in learn.model.state_dict().items())


def test_modules_of_ones_own_are_not_swapped():
    class Mine(InteractionArch):
        pass

    model = build("dlrm")
    model.inter_arch = Mine(3)
    TrainStep(model)
    assert type(model.inter_arch) is Mine
