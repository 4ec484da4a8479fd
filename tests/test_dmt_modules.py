"""Tower modules against the paper's shapes, written out by hand.

B batch, F_t features of the tower, N embedding dim, D tower output dim.
"""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from dmt import DCNTower, DLRMTower, PassThrough, dcn_towers, dlrm_towers, naive_partition, pass_through_towers

sizes = st.integers(1, 5)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@settings(max_examples=40)
@given(sizes, sizes, sizes, st.integers(0, 3), st.integers(0, 3))
def test_dlrm_tower_is_p_vectors_of_the_tower_then_c_of_each_feature(features, n, d, p, c):
    if p + c == 0:
        with pytest.raises(ValueError, match="p = 0, c = 0"):
            DLRMTower(features, n, d, p, c)
        return
    tower = DLRMTower(features, n, d, p, c)
    x = torch.randn(3, features * n)
    weights = dict(tower.named_parameters())
    expected = []
    if p:
        expected.append(torch.einsum("bi,oi->bo", x, weights["of_tower.weight"]) + weights["of_tower.bias"])
    for f in range(features if c else 0):
        own = x[:, f * n : (f + 1) * n]
        expected.append(torch.einsum("bn,on->bo", own, weights["of_each.weight"]) + weights["of_each.bias"])
    out = tower(x)
    torch.testing.assert_close(out, torch.cat(expected, 1))
    assert out.shape == (3, tower.out_features) and tower.out_features == d * (c * features + p)
    assert tower.in_features == features * n
    assert set(weights) == {
        f"{part}.{kind}" for part in ["of_tower"] * (p > 0) + ["of_each"] * (c > 0) for kind in ("weight", "bias")
    }


@settings(max_examples=30)
@given(sizes, sizes, sizes, st.integers(1, 3), sizes)
@example(features=2, n=2, d=4, layers=1, rank=2)  # as wide out as in, and still with its Linear
@example(features=1, n=4, d=4, layers=1, rank=2)
def test_dcn_tower_is_cross_layers_then_one_vector(features, n, d, layers, rank):
    tower = DCNTower(features, n, d, layers, rank)
    for bias in tower.cross.bias:
        nn.init.normal_(bias)  # TorchRec starts them at zero
    x = torch.randn(3, features * n)
    y = x
    for layer in range(layers):
        v, w, b = tower.cross.V_kernels[layer], tower.cross.W_kernels[layer], tower.cross.bias[layer]
        assert v.shape == (rank, features * n)
        y = x * (torch.einsum("br,ir->bi", torch.einsum("bi,ri->br", y, v), w) + b) + y
    if features == 1 and n == d:
        assert not list(tower.linear.parameters())
    else:
        y = torch.einsum("bi,di->bd", y, tower.linear.weight) + tower.linear.bias
    torch.testing.assert_close(tower(x), y, rtol=1e-4, atol=1e-4)
    assert tower(x).shape == (3, d) == (3, tower.out_features)


def test_a_sizeless_dlrm_tower_is_refused():
    with pytest.raises(ValueError, match="sizes must be positive"):
        DLRMTower(2, 8, 0, p=0, c=1)


def test_dlrm_towers_of_one_feature_pass_through_only_where_a_module_would_reduce_nothing():
    sixteen = dlrm_towers(naive_partition(26, 16), 128, 128, p=1, c=0)
    assert [isinstance(tower, PassThrough) for tower in sixteen] == [False] * 10 + [True] * 6
    assert [tower.out_features for tower in sixteen] == [128] * 16
    twenty_six = dlrm_towers(naive_partition(26, 26), 128, 64, p=0, c=1)
    assert all(isinstance(tower, DLRMTower) and tower.out_features == 64 for tower in twenty_six)


def test_dcn_towers_of_one_feature_skip_the_linear_and_pass_through_where_all_are_single():
    sixteen = dcn_towers(naive_partition(26, 16), 128, 128, layers=2, rank=8)
    assert [isinstance(tower.linear, nn.Identity) for tower in sixteen] == [False] * 10 + [True] * 6
    assert all(isinstance(tower, PassThrough) for tower in dcn_towers(naive_partition(26, 26), 128, 128, 2, 8))
    assert all(isinstance(tower, DCNTower) for tower in dcn_towers(naive_partition(26, 26), 128, 64, 2, 8))


def test_pass_through_gives_back_its_input():
    x = torch.randn(3, 8)
    (tower,) = pass_through_towers(((0, 1),), 4)
    assert tower(x) is x and tower.in_features == tower.out_features == 8 and not list(tower.parameters())


def test_dcn_tower_draws_all_its_parameters_anew():
    tower = DCNTower(2, 4, 3, layers=2, rank=2)
    with torch.no_grad():
        for parameter in tower.parameters():
            parameter.fill_(torch.nan)
    tower.reset_parameters()
    for name, parameter in tower.named_parameters():
        assert parameter.isfinite().all()
        assert parameter.any() != name.startswith("cross.bias")  # these start at zero
