"""A drawn case of a tower model on ranks, and what it should equal: the same model on one device.

F features, T towers, G ranks, B_g samples of rank g.
"""

import copy
from dataclasses import dataclass, field

import torch
from hypothesis import strategies as st
from small_towers import cut
from torch import nn
from torchrec import EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.modules.embedding_configs import PoolingType
from torchrec.optim.optimizers import in_backward_optimizer_filter

from dmt import PassThrough, Topology, TowerEmbedding, TowerEmbeddingSharder, sharding_plan

DENSE = 3
ROWS = 40  # of the smallest table: enough for a row on each of 8 ranks
RATE = 0.1
SHAPES = [
    (1, 1, 1), (2, 1, 1), (2, 2, 1), (4, 1, 1), (4, 2, 1), (4, 2, 2), (4, 4, 1), (6, 3, 1), (6, 2, 3), (6, 1, 2),
    (8, 2, 1), (8, 2, 2),
    (8, 4, 1), (8, 1, 4),
]  # fmt: skip
KINDS = ["table_wise", "column_wise", "table_row_wise"]


@dataclass
class Case:
    """features and dims of each table; "sum" or "mean"; how each is sharded; which towers have a module."""

    shape: tuple[int, int, int]
    features: list[list[int]]
    dims: list[int]
    pooling: list[str]
    sharding: list[str]
    partition: tuple[tuple[int, ...], ...]
    modules: list[bool]
    batches: list[list[int]]  # B_g of each rank, for each step
    weighted: bool = False
    permute: str = "none"
    seed: int = 0
    sharder: dict = field(default_factory=dict)  # further arguments of the sharder
    fused: dict = field(default_factory=dict)  # further fused_params


@st.composite
def cases(draw):
    shape = draw(st.sampled_from(SHAPES))
    topology = Topology(*shape)
    tables = draw(st.integers(topology.slots, topology.slots + 5))
    towers = draw(st.integers(topology.slots, tables))
    order = draw(st.permutations(range(tables)))
    weighted = draw(st.booleans())
    own = [[i] for i in range(tables)]  # feature i belongs to table i, some tables have one more, a new or a shared one
    features = [mine + draw(st.sampled_from([[], [], [tables + mine[0]], [(mine[0] + 1) % tables]])) for mine in own]
    features = [sorted(set(mine)) for mine in features]
    each = st.lists(st.integers(0, 4), min_size=topology.ranks, max_size=topology.ranks)
    return Case(
        shape,
        features,
        draw(st.lists(st.sampled_from([4, 8, 12]), min_size=tables, max_size=tables)),
        draw(st.lists(st.sampled_from(["sum"] if weighted else ["sum", "mean"]), min_size=tables, max_size=tables)),
        draw(st.lists(st.sampled_from(KINDS), min_size=tables, max_size=tables)),
        draw(cut(order, towers)),
        draw(st.lists(st.booleans(), min_size=towers, max_size=towers)),
        [[2] * topology.ranks, draw(each.filter(any)), draw(each.filter(any))],
        weighted,
        draw(st.sampled_from(["none", "indices", "embeddings"])),
        draw(st.integers(0, 2**31)),
        {"one_hot": draw(st.booleans())},
    )


class Model(nn.Module):
    """Towers, a dense layer and a product of the two, so that every gradient depends on every part."""

    def __init__(self, towers: TowerEmbedding) -> None:
        super().__init__()
        width = sum(towers.out_features)
        self.towers, self.dense, self.over = towers, nn.Linear(DENSE, width), nn.Linear(width, 1)
        self.keys = towers.out_keys

    def forward(self, dense, sparse):
        found = self.towers(sparse)
        return self.over(self.dense(dense) * torch.cat([found[key] for key in self.keys], dim=1)).squeeze(1)


def build(case: Case) -> Model:
    torch.manual_seed(case.seed)
    tables = [
        EmbeddingBagConfig(
            name=f"t{i}", embedding_dim=dim, num_embeddings=ROWS + i, feature_names=[f"f{f}" for f in case.features[i]],
            pooling=PoolingType.MEAN if case.pooling[i] == "mean" else PoolingType.SUM,
        )
        for i, dim in enumerate(case.dims)
    ]  # fmt: skip
    modules = []
    for group, has_module in zip(case.partition, case.modules, strict=True):
        width = sum(case.dims[i] * len(case.features[i]) for i in group)
        modules.append(
            nn.Sequential(nn.Linear(width, 6), nn.Tanh(), nn.Linear(6, 3)) if has_module else PassThrough(width)
        )
        modules[-1].in_features, modules[-1].out_features = width, 3 if has_module else width
    return Model(TowerEmbedding(tables, case.partition, modules, is_weighted=case.weighted))


def shard(case: Case, model: nn.Module) -> DistributedModelParallel:
    """The model on the ranks that run this, with the weights it has."""
    weights = copy.deepcopy(model.state_dict())
    fused = {"learning_rate": RATE} | case.fused
    sharders = [TowerEmbeddingSharder(Topology(*case.shape), fused, permute=case.permute, **case.sharder)]
    constraints = {
        f"t{i}": ParameterConstraints(sharding_types=[kind], min_partition=4) for i, kind in enumerate(case.sharding)
    }
    plan = sharding_plan(model, sharders, constraints=constraints)
    sharded = DistributedModelParallel(copy.deepcopy(model), plan=plan, sharders=sharders)
    sharded.load_state_dict(weights)
    return sharded


def optimizers(model: nn.Module) -> torch.optim.Optimizer:
    """Of all that no fused optimizer updates; those update sharded tables, and not tables that every rank has whole."""
    return torch.optim.SGD(dict(in_backward_optimizer_filter(model.named_parameters())).values(), lr=RATE)


def batch(case: Case, step: int) -> list[tuple[torch.Tensor, KeyedJaggedTensor, torch.Tensor]]:
    """Dense inputs, ids and labels of each rank; bags of 0 to 3 ids, of one int32 id where the sharder expects one."""
    generator = torch.Generator().manual_seed(case.seed + step)
    names = sorted({f for features in case.features for f in features})
    made = []
    for samples in case.batches[step]:
        one_hot = case.sharder.get("one_hot", False)
        least, most = (1, 1) if one_hot else (0, 3)
        lengths = torch.randint(least, most + 1, (len(names) * samples,), generator=generator, dtype=torch.int32)
        total = int(lengths.sum())
        id_type = torch.int32 if one_hot else torch.int64
        values = torch.randint(0, ROWS, (total,), generator=generator, dtype=id_type)
        weights = torch.rand(total, generator=generator) if case.weighted else None
        sparse = KeyedJaggedTensor([f"f{f}" for f in names], values, weights, lengths, stride=samples)
        dense = torch.randn(samples, DENSE, generator=generator)
        made.append((dense, sparse, torch.randn(samples, generator=generator)))
    return made


def joined(batches: list) -> tuple[torch.Tensor, KeyedJaggedTensor, torch.Tensor]:
    """All ranks' samples as one batch, rank by rank."""
    dense, sparse, labels = zip(*batches, strict=True)
    keys, weighted = sparse[0].keys(), sparse[0].weights_or_none() is not None
    bags = [[] for _ in range(3)]
    for key_index in range(len(keys)):
        for kjt in sparse:
            samples, offsets = kjt.stride(), kjt.offset_per_key()
            here = slice(offsets[key_index], offsets[key_index + 1])
            bags[0].append(kjt.values()[here])
            bags[1].append(kjt.lengths().view(len(keys), samples)[key_index])
            if weighted:
                bags[2].append(kjt.weights()[here])
    total = sum(len(label) for label in labels)
    one = KeyedJaggedTensor(
        keys, torch.cat(bags[0]), torch.cat(bags[2]) if weighted else None, torch.cat(bags[1]), stride=total
    )
    return torch.cat(dense), one, torch.cat(labels)


def apart(full: torch.Tensor, found) -> float:
    """Largest difference between a parameter and this rank's part of it (a ShardedTensor or the whole)."""
    if not hasattr(found, "local_shards"):
        return (full - found).abs().max().item() if full.numel() else 0.0
    worst = 0.0
    for shard in found.local_shards():
        (row, column), (rows, columns) = shard.metadata.shard_offsets, shard.metadata.shard_sizes
        worst = max(worst, (full[row : row + rows, column : column + columns] - shard.tensor).abs().max().item())
    return worst
