"""Small tables, ids and partitions that the tests of towers and models draw.

F features, N embedding dim.
"""

import torch
from hypothesis import strategies as st
from torchrec import EmbeddingBagConfig, KeyedJaggedTensor

N = 4


def tables(features, dims=None):
    dims = dims or [N] * features
    return [
        EmbeddingBagConfig(name=f"t{i}", embedding_dim=dims[i], num_embeddings=7 + i, feature_names=[f"f{i}"])
        for i in range(features)
    ]


def ids(features, batch=5, seed=0):
    """Bags of 0 to 3 ids, a key for each feature."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 4, (features * batch,), generator=generator)
    values = torch.randint(0, 7, (int(lengths.sum()),), generator=generator)
    return KeyedJaggedTensor(keys=[f"f{i}" for i in range(features)], values=values, lengths=lengths)


@st.composite
def cut(draw, order, towers):
    """The order cut into that many towers, none of them empty."""
    inner = st.sets(st.integers(1, len(order) - 1), min_size=towers - 1, max_size=towers - 1)
    cuts = sorted(draw(inner)) if towers > 1 else []
    return tuple(tuple(order[a:b]) for a, b in zip([0, *cuts], [*cuts, len(order)], strict=True))


@st.composite
def partitions(draw, max_features=9):
    """Any assignment of features to towers without an empty tower, in any order inside a tower."""
    features = draw(st.integers(1, max_features))
    towers = draw(st.integers(1, features))
    return draw(cut(draw(st.permutations(range(features))), towers))
