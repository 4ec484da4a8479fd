"""Flat DCN: TorchRec's DLRM_DCN (low-rank cross network) at the sizes of the spec.

B batch.
"""

import torch
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.models.dlrm import DLRM_DCN

from baselines.spec import ModelSpec


class DCN(DLRM_DCN):
    """TorchRec's DLRM_DCN with logits (B,) instead of (B, 1)."""

    compression_ratio = 1.0
    partition = None
    tower_dim = None

    def forward(self, dense_features: torch.Tensor, sparse_features: KeyedJaggedTensor) -> torch.Tensor:
        """Dense features and one key for each sparse feature -> logits (B,)."""
        return super().forward(dense_features, sparse_features).squeeze(1)


def build(spec: ModelSpec, tables: list[EmbeddingBagConfig], device: torch.device | None = None) -> nn.Module:
    """Flat DCN with the over arch `spec.over`."""
    return dcn(spec, EmbeddingBagCollection(tables=tables, device=device))


def dcn(spec: ModelSpec, embeddings: nn.Module) -> DCN:
    """DCN over `embeddings` (an EmbeddingBagCollection or what stands in for one)."""
    return DCN(
        embedding_bag_collection=embeddings,
        dense_in_features=spec.dense_features,
        dense_arch_layer_sizes=spec.bottom_layers(spec.embedding_dim),
        over_arch_layer_sizes=[*spec.over, 1],
        dcn_num_layers=spec.cross_layers,
        dcn_low_rank_dim=spec.cross_rank,
    )
