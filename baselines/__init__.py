"""Flat models, controls and tower models under one contract (README.md); one file a model."""

import importlib

import torch
from torch import nn
from torchrec import EmbeddingBagConfig

from baselines.spec import ModelSpec, check_name, names

__all__ = ["ModelSpec", "build", "names"]


def build(
    spec: ModelSpec,
    tables: list[EmbeddingBagConfig],
    device: torch.device | None = None,
    tables_device: torch.device | None = None,
) -> nn.Module:
    """Model `spec.model` over `tables`, one table for each sparse feature, in feature order.

    On `device`; with `tables_device` the embedding tables alone are made there ("meta" allocates nothing).

    The model's forward takes dense (B, dense_features) float32 and a KeyedJaggedTensor with one key for each feature,
    and returns logits (B,). Initial weights are a function of torch's random state alone.
    Raises ValueError for an unknown name, or sizes that the model cannot have.
    """
    check_name(spec.model)
    model = importlib.import_module(f"baselines.{spec.model}").build(spec, tables, tables_device or device)
    return model if device is None else model.to(device)
