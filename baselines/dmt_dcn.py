"""DMT-DCN at the paper's settings (section 5, table 4). N embedding dim, T towers, D tower output dim."""

import torch
from torch import nn
from torchrec import EmbeddingBagConfig

from baselines.spec import ModelSpec
from dmt import DMTDCN, TowerEmbedding, dcn_towers


def build(spec: ModelSpec, tables: list[EmbeddingBagConfig], device: torch.device | None = None) -> nn.Module:
    """DMT-DCN with `spec.towers` towers, each giving one vector of `spec.tower_dim` (the paper's: N)."""
    tower_dim = spec.tower_dim or spec.embedding_dim
    partition = spec.groups(len(tables))
    modules = dcn_towers(partition, spec.embedding_dim, tower_dim, spec.tower_cross_layers, spec.tower_cross_rank)
    return DMTDCN(
        TowerEmbedding(tables, partition, modules, device),
        dense_in_features=spec.dense_features,
        dense_arch_layer_sizes=spec.bottom_layers(tower_dim),
        over_arch_layer_sizes=[*spec.over, 1],
        dcn_num_layers=spec.cross_layers,
        dcn_low_rank_dim=spec.cross_rank,
    )
