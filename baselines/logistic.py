"""Control: logistic regression, one weight for each id and one for each dense feature.

B batch, F sparse features.
"""

from dataclasses import replace

import torch
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor

from baselines.spec import ModelSpec


class Logistic(nn.Module):
    """Sum of the weights of a sample's ids, dense features times their weights, and a bias. All start at zero."""

    compression_ratio = 1.0
    partition = None
    tower_dim = None

    def __init__(
        self, dense_features: int, tables: list[EmbeddingBagConfig], device: torch.device | None = None
    ) -> None:
        super().__init__()
        # An id unseen in training then adds nothing, as it should in a linear model.
        weights = [replace(table, embedding_dim=1, init_fn=nn.init.zeros_) for table in tables]
        self.embedding_bag_collection = EmbeddingBagCollection(tables=weights, device=device)
        self.dense_weight = nn.Parameter(torch.zeros(dense_features))
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, dense_features: torch.Tensor, sparse_features: KeyedJaggedTensor) -> torch.Tensor:
        """Dense features and one key for each sparse feature -> logits (B,)."""
        weights_BF = self.embedding_bag_collection(sparse_features).values()
        return weights_BF.sum(1) + dense_features @ self.dense_weight + self.bias


def build(spec: ModelSpec, tables: list[EmbeddingBagConfig], device: torch.device | None = None) -> nn.Module:
    """Logistic regression over the rows of `tables`; their embedding dimension plays no part."""
    return Logistic(spec.dense_features, tables, device)
