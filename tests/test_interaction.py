"""CpuInteraction against TorchRec's InteractionArch."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torchrec.models.dlrm import InteractionArch

from bench.interaction import CpuInteraction, use_cpu_interaction


@given(
    batch=st.integers(1, 40),
    features=st.integers(1, 30),
    dim=st.sampled_from([1, 3, 8, 16, 33]),
    workers=st.integers(1, 3),
    seed=st.integers(0, 9),
)
def test_values_and_gradients_equal_torchrec(batch, features, dim, workers, seed):
    torch.manual_seed(seed)
    dense_BD = torch.randn(batch, dim, requires_grad=True)
    sparse_BFD = torch.randn(batch, features, dim, requires_grad=True)
    before = torch.get_num_threads()
    torch.set_num_threads(workers)
    found = CpuInteraction()(dense_BD, sparse_BFD)
    expected = InteractionArch(features)(dense_BD, sparse_BFD)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    weight = torch.randn_like(expected)
    for ours, theirs in zip(
        torch.autograd.grad(found, (dense_BD, sparse_BFD), weight),
        torch.autograd.grad(expected, (dense_BD, sparse_BFD), weight),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    torch.set_num_threads(before)


def test_swap_reaches_nested_modules():
    model = nn.Sequential(nn.Identity(), nn.Sequential(InteractionArch(3)))
    use_cpu_interaction(model)
    assert isinstance(model[1][0], CpuInteraction)
