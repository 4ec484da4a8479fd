"""Control: one constant logit for every sample, so that it learns the label rate and nothing else. B batch."""

import math

import torch
from torch import nn
from torchrec import EmbeddingBagConfig, KeyedJaggedTensor

from baselines.spec import ModelSpec


class Prior(nn.Module):
    """One parameter, the logit."""

    compression_ratio = 1.0
    partition = None
    tower_dim = None

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(()))

    def start_from(self, label_rate: float) -> None:
        """Start at the logit of the training rows' label rate (0 < rate < 1), in place of zero."""
        nn.init.constant_(self.bias, math.log(label_rate / (1 - label_rate)))

    def forward(self, dense_features: torch.Tensor, sparse_features: KeyedJaggedTensor) -> torch.Tensor:
        """Dense features, of which only their count matters -> the same logit for each, (B,)."""
        return self.bias.expand(len(dense_features))


def build(spec: ModelSpec, tables: list[EmbeddingBagConfig], device: torch.device | None = None) -> nn.Module:
    """The prior; it has no tables."""
    return Prior()
