"""DMT-DLRM at the paper's settings (section 5, tables 4 and 5). N embedding dim, T towers, D tower output dim."""

import torch
from torch import nn
from torchrec import EmbeddingBagConfig

from baselines.spec import ModelSpec
from dmt import DMTDLRM, TowerEmbedding, dlrm_towers


def build(spec: ModelSpec, tables: list[EmbeddingBagConfig], device: torch.device | None = None) -> nn.Module:
    """DMT-DLRM with `spec.towers` towers, D = `spec.tower_dim` or the paper's, and the over arch `spec.small_over`."""
    p, c, tower_dim = paper_setting(spec.towers, spec.embedding_dim)
    tower_dim = spec.tower_dim or tower_dim
    partition = spec.groups(len(tables))
    modules = dlrm_towers(partition, spec.embedding_dim, tower_dim, p, c)
    return DMTDLRM(
        TowerEmbedding(tables, partition, modules, device),
        dense_in_features=spec.dense_features,
        dense_arch_layer_sizes=spec.bottom_layers(tower_dim),
        over_arch_layer_sizes=[*spec.small_over, 1],
    )


def paper_setting(towers: int, embedding_dim: int) -> tuple[int, int, int]:
    """(p, c, D): one vector of N for each of 16 towers; at any other T, one vector of N / 2 for each feature."""
    return (1, 0, embedding_dim) if towers == 16 else (0, 1, embedding_dim // 2)
