"""SPTT-DCN: flat DCN with tables in pass-through towers; the same function of the same weights (paper, table 3)."""

import torch
from torch import nn
from torchrec import EmbeddingBagConfig

from baselines.dcn import dcn
from baselines.spec import ModelSpec
from dmt import TowerEmbedding, pass_through_towers


def build(spec: ModelSpec, tables: list[EmbeddingBagConfig], device: torch.device | None = None) -> nn.Module:
    """DCN whose embeddings pass through `spec.towers` towers."""
    partition = spec.groups(len(tables))
    towers = TowerEmbedding(tables, partition, pass_through_towers(partition, spec.embedding_dim), device)
    model = dcn(spec, towers)
    model.partition = towers.partition
    return model
