"""DLRM's dot interaction for training on a CPU: what TorchRec's InteractionArch computes, in one walk over the batch.

The batched matrix product of many small matrices and the indexing of its upper triangle take a fifth of a laptop-size
step; here each sample's products are formed while its vectors are in the cache.

B batch, F sparse vectors, D their dimension.
"""

import numba
import numpy as np
import torch
from torch import nn
from torchrec.models.dlrm import InteractionArch

from bench.workers import split_range


@numba.njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
def _forward(dense_BD, sparse_BFD, out, first, last):
    features, dim = sparse_BFD.shape[1], sparse_BFD.shape[2]
    x = np.empty((features + 1, dim), np.float32)
    for b in range(first, last):
        for d in range(dim):
            x[0, d] = dense_BD[b, d]
            out[b, d] = dense_BD[b, d]
        for f in range(features):
            for d in range(dim):
                x[f + 1, d] = sparse_BFD[b, f, d]
        k = dim
        for i in range(features):
            for j in range(i + 1, features + 1):
                dot = np.float32(0)
                for d in range(dim):
                    dot += x[i, d] * x[j, d]
                out[b, k] = dot
                k += 1


@numba.njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
def _backward(dense_BD, sparse_BFD, grad_out, grad_dense_BD, grad_sparse_BFD, first, last):
    features, dim = sparse_BFD.shape[1], sparse_BFD.shape[2]
    x = np.empty((features + 1, dim), np.float32)
    grad = np.empty((features + 1, dim), np.float32)
    for b in range(first, last):
        for d in range(dim):
            x[0, d] = dense_BD[b, d]
            grad[0, d] = grad_out[b, d]
        for f in range(features):
            for d in range(dim):
                x[f + 1, d] = sparse_BFD[b, f, d]
                grad[f + 1, d] = 0
        k = dim
        for i in range(features):
            for j in range(i + 1, features + 1):
                g = grad_out[b, k]
                k += 1
                for d in range(dim):
                    grad[i, d] += g * x[j, d]
                    grad[j, d] += g * x[i, d]
        for d in range(dim):
            grad_dense_BD[b, d] = grad[0, d]
        for f in range(features):
            for d in range(dim):
                grad_sparse_BFD[b, f, d] = grad[f + 1, d]


class _Dots(torch.autograd.Function):
    @staticmethod
    def forward(ctx, dense_BD, sparse_BFD):
        ctx.save_for_backward(dense_BD, sparse_BFD)
        batch, features, dim = sparse_BFD.shape
        out = torch.empty(batch, dim + features * (features + 1) // 2)
        arrays = [t.detach().numpy() for t in (dense_BD, sparse_BFD, out)]
        split_range(batch, lambda first, last: _forward(*arrays, first, last))
        return out

    @staticmethod
    def backward(ctx, grad_out):
        dense_BD, sparse_BFD = ctx.saved_tensors
        grads = torch.empty_like(dense_BD), torch.empty_like(sparse_BFD)
        arrays = [t.detach().numpy() for t in (dense_BD, sparse_BFD, grad_out.contiguous(), *grads)]
        split_range(len(dense_BD), lambda first, last: _backward(*arrays, first, last))
        return grads


class CpuInteraction(nn.Module):
    """(B, D) dense and (B, F, D) sparse float32 -> (B, D + F * (F + 1) / 2), as InteractionArch gives."""

    def forward(self, dense_features: torch.Tensor, sparse_features: torch.Tensor) -> torch.Tensor:
        return _Dots.apply(dense_features.contiguous(), sparse_features.contiguous())


def use_cpu_interaction(model: nn.Module) -> None:
    """Swap every InteractionArch in the model for CpuInteraction, in place; subclasses stay what they are."""
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if type(child) is InteractionArch:
                setattr(parent, name, CpuInteraction())
