"""Partitions, and the TowerEmbedding on one device.

B batch, F features, N embedding dim.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_towers import N, ids, partitions, tables
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig
from torchrec.modules.embedding_configs import PoolingType

from dmt import DLRMTower, PassThrough, TowerEmbedding, check_partition, naive_partition, pass_through_towers


@settings(max_examples=50)
@given(st.integers(1, 60), st.integers(1, 60))
def test_naive_partition_sends_feature_i_to_tower_i_mod_t(features, towers):
    if towers > features:
        with pytest.raises(ValueError, match=f"there are {features}"):
            naive_partition(features, towers)
        return
    partition = naive_partition(features, towers)
    check_partition(partition, features)
    assert all(feature % towers == tower for tower, group in enumerate(partition) for feature in group)
    sizes = [len(group) for group in partition]
    assert len(partition) == towers and max(sizes) - min(sizes) <= 1


def test_26_features_over_16_towers_are_ten_of_two_and_six_of_one():
    assert sorted(map(len, naive_partition(26, 16))) == [1] * 6 + [2] * 10


def test_no_tower_is_refused():
    with pytest.raises(ValueError, match="at least one tower"):
        naive_partition(4, 0)


@pytest.mark.parametrize(
    ("partition", "reason"),
    [
        (((0, 1), ()), "tower 1 of the partition is empty"),
        (((0, 1), (1, 2)), "feature 1 is in tower 0 and again in tower 1"),
        (((0, 0, 1), (2,)), "feature 0 is in tower 0 and again in tower 0"),
        (((0,), (2,)), r"features \[1\] are in no tower"),
        (((0, 1), (2, 3)), "tower 1 holds feature 3"),
        (((0, 1), (-1,)), "tower 1 holds feature -1"),
        ((), r"features \[0, 1, 2\] are in no tower"),
    ],
)
def test_a_partition_at_fault_is_refused_with_the_reason(partition, reason):
    with pytest.raises(ValueError, match=reason):
        check_partition(partition, 3)
    with pytest.raises(ValueError, match=reason):
        TowerEmbedding(tables(3), partition, [PassThrough(N) for _ in partition])


@settings(max_examples=25)
@given(partitions(), st.data())
def test_pass_through_towers_give_each_feature_its_own_pooled_rows(partition, data):
    features = sum(map(len, partition))
    dims = data.draw(st.lists(st.sampled_from([1, 4, 6]), min_size=features, max_size=features))
    modules = [PassThrough(sum(dims[i] for i in group)) for group in partition]
    towers = TowerEmbedding(tables(features, dims), partition, modules)
    kjt = ids(features)
    out = towers(kjt)

    bags = kjt.to_dict()
    expected = {}
    for i in range(features):
        weight, bag = towers.embedding_bag_collection.embedding_bags[f"t{i}"].weight, bags[f"f{i}"]
        rows = [bag.values()[a:b] for a, b in zip(bag.offsets()[:-1], bag.offsets()[1:], strict=True)]
        expected[f"f{i}"] = torch.stack([weight[row].sum(0) for row in rows])
    assert out.keys() == [f"f{i}" for group in partition for i in group]
    for name, value in out.to_dict().items():
        torch.testing.assert_close(value, expected[name])
    assert towers.compression_ratio == 1.0
    assert [config.name for config in towers.embedding_bag_configs()] == [f"t{i}" for i in range(features)]


@settings(max_examples=10)
@given(partitions(), st.randoms(use_true_random=False))
def test_the_order_of_keys_in_the_input_plays_no_part(partition, random):
    features = sum(map(len, partition))
    towers = TowerEmbedding(tables(features), partition, pass_through_towers(partition, N))
    kjt = ids(features)
    order = list(range(features))
    random.shuffle(order)
    assert torch.equal(towers(kjt).values(), towers(kjt.permute(order)).values())


def test_each_module_sees_its_tower_alone_and_in_the_order_of_the_partition():
    class Keep(nn.Module):
        def __init__(self, in_features):
            super().__init__()
            self.in_features, self.out_features = in_features, 2

        def forward(self, x):
            self.seen = x
            return x[:, :2]

    partition = ((3, 0), (2,), (1, 4))
    modules = [Keep(2 * N), PassThrough(N), Keep(2 * N)]
    towers = TowerEmbedding(tables(5), partition, modules)
    out = towers(ids(5))
    pooled = towers.embedding_bag_collection(ids(5)).to_dict()
    assert torch.equal(modules[0].seen, torch.cat([pooled["f3"], pooled["f0"]], 1))
    assert torch.equal(modules[2].seen, torch.cat([pooled["f1"], pooled["f4"]], 1))
    assert out.keys() == ["tower_0", "f2", "tower_2"]
    assert out.length_per_key() == [2, N, 2]
    assert torch.equal(out["tower_2"], pooled["f1"][:, :2])
    assert towers.compression_ratio == 5 * N / (2 + N + 2)


def test_tables_with_several_features_and_features_with_several_tables_keep_torchrecs_names():
    shared = [
        EmbeddingBagConfig(name="t0", embedding_dim=4, num_embeddings=9, feature_names=["f0", "f1"]),
        EmbeddingBagConfig(name="t1", embedding_dim=2, num_embeddings=9, feature_names=["f2"]),
        EmbeddingBagConfig(name="t2", embedding_dim=4, num_embeddings=9, feature_names=["f1"]),
    ]
    flat = EmbeddingBagCollection(tables=shared)
    towers = TowerEmbedding(shared, ((1, 0), (2,)), [PassThrough(10), PassThrough(4)])
    towers.embedding_bag_collection.load_state_dict(flat.state_dict())
    expected, out = flat(ids(3)).to_dict(), towers(ids(3)).to_dict()
    assert set(out) == {"f0", "f1@t0", "f1@t2", "f2"}
    assert all(torch.equal(out[name], expected[name]) for name in expected)


def test_modules_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="2 towers need as many tower modules, not 1"):
        TowerEmbedding(tables(3), ((0, 1), (2,)), [PassThrough(2 * N)])
    with pytest.raises(ValueError, match=r"the module of tower 1 takes 8 .* embeddings of features \[2\] are 4"):
        TowerEmbedding(tables(3), ((0, 1), (2,)), [PassThrough(2 * N), DLRMTower(2, N, N, p=1, c=0)])


def test_means_of_weighted_ids_are_refused():
    of_means = tables(3)
    of_means[1].pooling = PoolingType.MEAN
    with pytest.raises(ValueError, match="tables t1 take means, and ids are weighted"):
        TowerEmbedding(of_means, ((0, 1), (2,)), [PassThrough(2 * N), PassThrough(N)], is_weighted=True)
    TowerEmbedding(of_means, ((0, 1), (2,)), [PassThrough(2 * N), PassThrough(N)])


def test_tables_on_meta_allocate_nothing():
    huge = [EmbeddingBagConfig(name="t0", embedding_dim=128, num_embeddings=10**9, feature_names=["f0"])]
    towers = TowerEmbedding(huge, ((0,),), [PassThrough(128)], device=torch.device("meta"))
    assert towers.embedding_bag_collection.embedding_bags["t0"].weight.is_meta
