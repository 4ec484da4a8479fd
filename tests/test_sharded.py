"""bench.sharded: tables that train in their shards equal one process; what it refuses; batches without rows."""

import copy

import pytest
import torch
from ranks import on_ranks
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.models.dlrm import InteractionDCNArch
from torchrec.modules.crossnet import LowRankCrossNet
from torchrec.modules.embedding_configs import PoolingType

from bench import sharded
from dmt import Topology

CPU = torch.device("cpu")
DENSE = 3
RATE = 0.1
ROWS, DIMS = [5, 9, 40, 7, 11], [4, 8, 12, 4, 8]
# Of weights, exp_avg and exp_avg_sq, for fp32 sums in another order; seen: 1.8e-7, 3.7e-9 and 2.9e-11, of numbers up to
# 0.7, 0.08 and 0.0007.
TOLERANCE = [1e-6, 2e-8, 2e-10]
NAMES = [f"f{f}" for f in range(len(ROWS))]


class Model(nn.Module):
    """A dense layer over the inputs and all that the tables give."""

    def __init__(self, configs, weighted=False):
        super().__init__()
        self.tables = EmbeddingBagCollection(configs, is_weighted=weighted)
        self.keys = [name for config in configs for name in config.feature_names]
        width = sum(config.embedding_dim * len(config.feature_names) for config in configs)
        self.over = nn.Linear(DENSE + width, 1)

    def forward(self, dense, sparse):
        found = self.tables(sparse)
        return self.over(torch.cat([dense, *(found[key] for key in self.keys)], 1)).squeeze(1)


def build():
    torch.manual_seed(0)
    return Model(
        [
            EmbeddingBagConfig(name=f"t{f}", embedding_dim=dim, num_embeddings=rows, feature_names=[NAMES[f]])
            for f, (rows, dim) in enumerate(zip(ROWS, DIMS, strict=True))
        ]
    )


def batch(step, size):
    """Dense inputs, ids of each feature's bags (0 to 3 a bag) and labels, of the whole batch."""
    random = torch.Generator().manual_seed(step)
    bags = [
        [torch.randint(rows, (int(torch.randint(4, (), generator=random)),), generator=random) for _ in range(size)]
        for rows in ROWS
    ]
    return torch.randn(size, DENSE, generator=random), bags, torch.randn(size, generator=random)


def as_kjt(bags):
    lengths = torch.tensor([len(bag) for mine in bags for bag in mine], dtype=torch.int32)
    values = torch.cat([bag for mine in bags for bag in mine] + [torch.zeros(0, dtype=torch.long)])
    return KeyedJaggedTensor(NAMES, values, lengths=lengths, stride=len(bags[0]))


def on_shards(rank, parts):
    """Trains on this rank's rows of each batch: (table, place, weight, exp_avg, exp_avg_sq) of its shards; `over`."""
    model, adams = sharded.shard(build(), Topology(2, 2), CPU)
    optimizer = torch.optim.Adam([p for name, p in model.named_parameters() if "over" in name], lr=RATE)
    for adam in adams:
        adam.learning_rate = RATE
    for step, sizes in enumerate(parts):
        dense, bags, labels = batch(step, sum(sizes))
        here = slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))
        output = model(dense[here], as_kjt([mine[here] for mine in bags]))
        optimizer.zero_grad()
        # a rank's loss is its share of the mean over the global batch, times the ranks since gradients are averaged
        (((output - labels[here]) ** 2).sum() * len(sizes) / sum(sizes)).backward()
        optimizer.step()
    moments = {
        weight.data_ptr(): pair
        for adam in adams
        for weight, *pair in zip(adam.weights, adam.exp_avg, adam.exp_avg_sq, strict=True)
    }
    state, found = model.state_dict(), []
    for f in range(len(ROWS)):
        for shard in state[f"tables.embedding_bags.t{f}.weight"].local_shards():
            (row, column), (rows, columns) = shard.metadata.shard_offsets, shard.metadata.shard_sizes
            place = (slice(row, row + rows), slice(column, column + columns))
            found.append((f, place, shard.tensor, *moments[shard.tensor.data_ptr()]))
    return found, state["over.weight"]


def in_one_process(parts):
    """torch's own Adam; rows that a batch does not have keep weights and moments. (weight, moments) a table; `over`."""
    model = build()
    tables = [model.tables.embedding_bags[f"t{f}"].weight for f in range(len(ROWS))]
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    state = [[weight.detach(), torch.zeros_like(weight), torch.zeros_like(weight)] for weight in tables]
    for step, sizes in enumerate(parts):
        dense, bags, labels = batch(step, sum(sizes))
        optimizer.zero_grad()
        ((model(dense, as_kjt(bags)) - labels) ** 2).mean().backward()
        before = copy.deepcopy(state)
        optimizer.step()
        for f, weight in enumerate(tables):
            state[f] = [weight.detach(), optimizer.state[weight]["exp_avg"], optimizer.state[weight]["exp_avg_sq"]]
            unseen = ~torch.isin(torch.arange(ROWS[f]), torch.cat(bags[f]))
            for now, old in zip(state[f], before[f], strict=True):
                now[unseen] = old[unseen]
    return state, model.over.weight.detach()


def test_tables_in_shards_learn_as_in_one_process():
    """Parts of a batch are unequal, and some ranks have no rows; weights alone would not show a gradient's scale."""
    parts = [[5, 2], [0, 6], [4, 0], [1, 1], [3, 8]]
    expected, expected_over = in_one_process(parts)
    found = on_ranks(2, on_shards, parts)
    assert all(shards for shards, _ in found)  # each rank has a table
    whole = [[torch.full_like(kind, torch.nan) for kind in of_table] for of_table in expected]
    for shards, over in found:
        torch.testing.assert_close(over, expected_over, rtol=0, atol=TOLERANCE[0])
        for f, place, *kinds in shards:
            for full, part in zip(whole[f], kinds, strict=True):
                full[place] = part
    for of_table, wanted in zip(whole, expected, strict=True):
        for full, want, tolerance in zip(of_table, wanted, TOLERANCE, strict=True):
            torch.testing.assert_close(full, want, rtol=0, atol=tolerance)


def refusal(rank, features, pooling, weighted):
    """What a table of these features is refused with."""
    config = EmbeddingBagConfig(
        name="t", embedding_dim=4, num_embeddings=5, feature_names=features, pooling=PoolingType(pooling)
    )
    bags = len(features) * 2
    sparse = KeyedJaggedTensor(
        features, torch.zeros(bags, dtype=torch.long), torch.ones(bags) if weighted else None,
        torch.ones(bags, dtype=torch.int32), stride=2,
    )  # fmt: skip
    try:
        model, _ = sharded.shard(Model([config], weighted), Topology(1, 1), CPU)
        model(torch.zeros(2, DENSE), sparse)
    except ValueError as error:
        return str(error)
    return "nothing"


@pytest.mark.parametrize(
    ("features", "pooling", "weighted", "says"),
    [
        (["a", "b"], "SUM", False, "AdamShard needs one feature a table"),
        (["a"], "MEAN", False, "AdamShard knows bags that are summed only"),
        (["a"], "SUM", True, "AdamShard knows no weighted bags"),
        (["a"], "SUM", False, "nothing"),
    ],
)
def test_tables_that_it_cannot_train_are_refused(features, pooling, weighted, says):
    assert on_ranks(1, refusal, features, pooling, weighted) == [says]


class Inner(nn.Module):
    def __init__(self, features, dim):
        super().__init__()
        width = (features + 1) * dim
        self.inner = nn.ModuleDict({"cross": InteractionDCNArch(features, LowRankCrossNet(width, 2, 3))})

    def forward(self, dense, sparse):
        return self.inner["cross"](dense, sparse)


@pytest.mark.parametrize(("features", "dim"), [(1, 4), (3, 5)])
def test_interaction_without_rows(features, dim):
    """Equal to the last bit where there are rows: the same cross network over the same numbers."""
    torch.manual_seed(0)
    theirs = Inner(features, dim)
    for p in theirs.parameters():  # biases begin as zero
        nn.init.normal_(p)
    ours = copy.deepcopy(theirs)
    sharded.use_empty_batches(ours)
    assert not any(isinstance(module, InteractionDCNArch) for module in ours.modules())
    assert list(ours.state_dict()) == list(theirs.state_dict())
    for size in (1, 6):
        dense, sparse = torch.randn(size, dim), torch.randn(size, features, dim)
        assert torch.equal(ours(dense, sparse), theirs(dense, sparse))
    none = ours(torch.randn(0, dim), torch.randn(0, features, dim))
    assert none.shape == (0, (features + 1) * dim)
    none.sum().backward()  # as DistributedDataParallel needs it: a gradient, of zero, for every parameter
    assert all(p.grad is not None and not p.grad.any() for p in ours.parameters())
