"""Flat DLRM with DMT-DLRM's over arch: the honest comparison.

Most of what DMT-DLRM saves in operations comes from its smaller over arch (one layer of 1024 fewer) and not from its
tower modules; this is the flat model that has the same one.
"""

import torch
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig

from baselines.dlrm import dlrm
from baselines.spec import ModelSpec


def build(spec: ModelSpec, tables: list[EmbeddingBagConfig], device: torch.device | None = None) -> nn.Module:
    """Flat DLRM with the over arch `spec.small_over`."""
    return dlrm(spec, EmbeddingBagCollection(tables=tables, device=device), spec.small_over)
