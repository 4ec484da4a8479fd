"""From rows of a prepared data set to what a TorchRec model takes.

B batch, F sparse features, N embedding dim.
"""

import torch
from torchrec import EmbeddingBagConfig, KeyedJaggedTensor


def tables(names: list[str], cardinalities: list[int], embedding_dim: int) -> list[EmbeddingBagConfig]:
    """One table a feature, in feature order."""
    return [
        EmbeddingBagConfig(name=f"t_{name}", embedding_dim=embedding_dim, num_embeddings=rows, feature_names=[name])
        for name, rows in zip(names, cardinalities, strict=True)
    ]


def one_id_a_bag(names: list[str], sparse_BF: torch.Tensor) -> KeyedJaggedTensor:
    """(B, F) ids, one for each feature of each row, as a KeyedJaggedTensor of their type with one key a feature."""
    batch, features = sparse_BF.shape
    return KeyedJaggedTensor(
        keys=names,
        values=sparse_BF.t().reshape(-1),  # (F * B,)
        lengths=torch.ones(features * batch, dtype=torch.int32),
        stride=batch,
    )
