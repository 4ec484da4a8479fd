"""Flat DLRM: TorchRec's own class at the sizes of the spec.

B batch.
"""

import torch
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.models.dlrm import DLRM as TorchRecDLRM

from baselines.spec import ModelSpec


class DLRM(TorchRecDLRM):
    """TorchRec's DLRM with logits (B,) instead of (B, 1)."""

    compression_ratio = 1.0
    partition = None
    tower_dim = None

    def forward(self, dense_features: torch.Tensor, sparse_features: KeyedJaggedTensor) -> torch.Tensor:
        """Dense features and one key for each sparse feature -> logits (B,)."""
        return super().forward(dense_features, sparse_features).squeeze(1)


def build(spec: ModelSpec, tables: list[EmbeddingBagConfig], device: torch.device | None = None) -> nn.Module:
    """Flat DLRM with the over arch `spec.over`."""
    return dlrm(spec, EmbeddingBagCollection(tables=tables, device=device), spec.over)


def dlrm(spec: ModelSpec, embeddings: nn.Module, over: tuple[int, ...]) -> DLRM:
    """DLRM over `embeddings` (an EmbeddingBagCollection or what stands in for one) with hidden layers `over`."""
    return DLRM(
        embedding_bag_collection=embeddings,
        dense_in_features=spec.dense_features,
        dense_arch_layer_sizes=spec.bottom_layers(spec.embedding_dim),
        over_arch_layer_sizes=[*over, 1],
    )
