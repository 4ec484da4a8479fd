"""Every file of baselines/ meets the contract of baselines/README.md.

B batch, F features.
"""

import argparse
import json
from dataclasses import replace

import pytest
import torch
from small_towers import ids
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig
from torchrec.models.dlrm import DLRM, DLRM_DCN

import baselines
from baselines import ModelSpec
from dmt import PassThrough, TowerEmbedding

FEATURES = 6
SMALL = ModelSpec(
    model="",
    dense_features=5,
    embedding_dim=8,
    bottom=(6,),
    over=(9, 7),
    small_over=(5,),
    cross_layers=2,
    cross_rank=3,
    tower_cross_layers=1,
    tower_cross_rank=2,
    towers=4,
)


def tables(features=FEATURES, dim=8):
    return [
        EmbeddingBagConfig(name=f"t{i}", embedding_dim=dim, num_embeddings=7 + i, feature_names=[f"f{i}"])
        for i in range(features)
    ]


def build(name, seed=0, **changes):
    torch.manual_seed(seed)
    return baselines.build(replace(SMALL, model=name, **changes), tables())


def state(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def test_the_models_of_the_suite_are_there():
    expected = "dcn dlrm dlrm_small_over dmt_dcn dmt_dlrm logistic prior sptt_dcn sptt_dlrm"
    assert set(expected.split()) <= set(baselines.names())
    assert "spec" not in baselines.names()


@pytest.mark.parametrize("name", baselines.names())
class TestContract:
    @pytest.mark.parametrize("batch", [1, 5])
    @pytest.mark.parametrize("dense_features", [1, 13, 47])
    def test_logits_are_one_number_a_sample(self, name, batch, dense_features):
        model = build(name, dense_features=dense_features)
        logits = model(torch.randn(batch, dense_features), ids(FEATURES, batch))
        assert logits.shape == (batch,) and logits.dtype == torch.float32 and torch.isfinite(logits).all()

    def test_every_parameter_gets_a_finite_gradient(self, name):
        model = build(name)
        loss = nn.functional.binary_cross_entropy_with_logits(
            model(torch.rand(64, 5), ids(FEATURES, 64)), torch.ones(64)
        )
        loss.backward()
        for parameter_name, parameter in model.named_parameters():
            assert parameter.grad is not None and torch.isfinite(parameter.grad).all(), parameter_name

    def test_torchs_seed_decides_the_initial_weights(self, name):
        first, again, other = state(build(name)), state(build(name)), state(build(name, seed=1))
        assert first.keys() == again.keys()
        assert all(torch.equal(first[key], again[key]) for key in first)
        if name not in ("prior", "logistic"):  # these start at zero
            assert any(not torch.equal(first[key], other[key]) for key in first)

    def test_lookups_are_in_embedding_bag_collections_with_a_table_a_feature(self, name):
        model = build(name)
        collections = [module for module in model.modules() if isinstance(module, EmbeddingBagCollection)]
        configs = [config for collection in collections for config in collection.embedding_bag_configs()]
        assert sorted(c.name for c in configs) == ([] if name == "prior" else [f"t{i}" for i in range(FEATURES)])
        bags = {
            id(bag) for collection in collections for bag in collection.modules() if isinstance(bag, nn.EmbeddingBag)
        }
        assert all(id(m) in bags for m in model.modules() if isinstance(m, (nn.Embedding, nn.EmbeddingBag)))

    def test_a_sample_is_scored_alone(self, name):
        model, dense, kjt = build(name), torch.randn(5, 5), ids(FEATURES)
        whole = model(dense, kjt)
        bags = kjt.to_dict()
        for b in range(5):
            parts = [bags[f"f{i}"].to_dense()[b] for i in range(FEATURES)]
            one = type(kjt)(
                keys=kjt.keys(), values=torch.cat(parts), lengths=torch.tensor([len(part) for part in parts])
            )
            torch.testing.assert_close(model(dense[b : b + 1], one)[0], whole[b], rtol=1e-4, atol=1e-5)

    def test_the_order_of_keys_plays_no_part(self, name):
        model, dense, kjt = build(name), torch.randn(5, 5), ids(FEATURES)
        assert torch.equal(model(dense, kjt), model(dense, kjt.permute([3, 0, 5, 1, 4, 2])))

    def test_it_learns(self, name):
        model = build(name)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
        dense, kjt, label = torch.randn(64, 5), ids(FEATURES, 64), (torch.arange(64) % 4 == 0).float()
        losses = []
        for _ in range(15):
            optimizer.zero_grad()
            losses.append(nn.functional.binary_cross_entropy_with_logits(model(dense, kjt), label))
            losses[-1].backward()
            optimizer.step()
        assert losses[-1] < losses[0] - 0.02

    def test_on_meta_nothing_is_allocated(self, name):
        model = baselines.build(replace(SMALL, model=name), tables(), torch.device("meta"))
        assert all(tensor.is_meta for tensor in model.state_dict().values())

    def test_tables_and_towers_are_described(self, name):
        model = build(name)
        if name.startswith(("dmt", "sptt")):
            assert model.partition == ((0, 4), (1, 5), (2,), (3,))
            towers = [module for module in model.modules() if isinstance(module, TowerEmbedding)]
            assert len(towers) == 1 and model.compression_ratio == towers[0].compression_ratio
        else:
            assert model.partition is None and model.compression_ratio == 1.0

    def test_more_towers_than_features_are_refused_where_there_are_towers(self, name):
        if name.startswith(("dmt", "sptt")):
            with pytest.raises(ValueError, match="7 towers need at least 7 features, and there are 6"):
                build(name, towers=7)
            with pytest.raises(ValueError, match=r"features \[5\] are in no tower"):
                build(name, towers=2, partition=((0, 1), (2, 3, 4)))
        else:
            build(name, towers=7)


def test_flat_models_are_torchrecs_own_classes():
    assert isinstance(build("dlrm"), DLRM) and not isinstance(build("dlrm"), DLRM_DCN)
    assert isinstance(build("dcn"), DLRM_DCN)
    assert isinstance(build("sptt_dlrm"), DLRM) and isinstance(build("sptt_dcn"), DLRM_DCN)


@pytest.mark.parametrize("name", ["dlrm", "dcn"])
def test_sptt_equals_flat_on_the_same_weights(name):
    flat, sptt = build(name), build(f"sptt_{name}", partition=((4, 1, 0), (5,), (2,), (3,)))
    old = "sparse_arch.embedding_bag_collection."
    sptt.load_state_dict(
        {key.replace(old, f"{old}embedding_bag_collection."): value for key, value in flat.state_dict().items()}
    )
    dense = torch.randn(5, 5)
    assert torch.equal(sptt(dense, ids(FEATURES)), flat(dense, ids(FEATURES)))
    assert sptt.partition == ((4, 1, 0), (5,), (2,), (3,)) and sptt.compression_ratio == 1.0 and sptt.tower_dim is None


def widths(module):
    return [(layer.in_features, layer.out_features) for layer in module.modules() if isinstance(layer, nn.Linear)]


def test_the_papers_shapes():
    def meta(name, **changes):
        return baselines.build(ModelSpec(name, **changes), tables(26, 128), torch.device("meta"))

    flat = meta("dlrm")
    assert widths(flat.dense_arch) == [(13, 512), (512, 256), (256, 128)]
    assert widths(flat.over_arch) == [(479, 1024), (1024, 1024), (1024, 512), (512, 256), (256, 1)]
    assert widths(meta("dlrm_small_over").over_arch) == [(479, 1024), (1024, 512), (512, 256), (256, 1)]
    eight, sixteen = meta("dmt_dlrm", towers=8), meta("dmt_dlrm", towers=16)
    assert (eight.tower_dim, eight.compression_ratio) == (64, 2.0)
    assert widths(eight.over_arch)[0] == (64 + 27 * 26 // 2, 1024)
    assert (sixteen.tower_dim, sixteen.compression_ratio) == (128, 26 / 16)
    assert [meta("dmt_dlrm", towers=8, tower_dim=d).compression_ratio for d in (32, 16, 8)] == [4.0, 8.0, 16.0]
    two = meta("dmt_dcn", towers=2)
    assert (two.tower_dim, two.compression_ratio) == (128, 13.0)
    assert two.inter_arch.crossnet.V_kernels[0].shape == (512, 3 * 128) and len(two.inter_arch.crossnet.V_kernels) == 3
    cross = two.tower_embedding.towers[0].cross
    assert cross.V_kernels[0].shape == (256, 13 * 128) and len(cross.V_kernels) == 2
    assert widths(two.over_arch) == [(384, 1024), (1024, 1024), (1024, 512), (512, 256), (256, 1)]
    assert all(isinstance(tower, PassThrough) for tower in meta("dmt_dcn", towers=26).tower_embedding.towers)


def test_prior_is_one_constant_and_starts_from_a_label_rate():
    model = build("prior")
    model.start_from(0.2)
    probability = torch.sigmoid(model(torch.randn(5, 5), ids(FEATURES)))
    torch.testing.assert_close(probability, torch.full((5,), 0.2))


def test_logistic_is_a_sum_of_weights():
    model = build("logistic")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    weights = model.state_dict()
    dense, kjt = torch.randn(5, 5), ids(FEATURES)
    for b, logit in enumerate(model(dense, kjt)):
        expected = weights["bias"] + (weights["dense_weight"] * dense[b]).sum()
        for i in range(FEATURES):
            table = weights[f"embedding_bag_collection.embedding_bags.t{i}.weight"]
            assert table.shape == (7 + i, 1)
            expected = expected + table[kjt[f"f{i}"].to_dense()[b]].sum()
        torch.testing.assert_close(logit, expected)


@pytest.mark.parametrize("name", ["dlrm", "dcn", "sptt_dlrm", "dmt_dlrm", "dmt_dcn"])
def test_no_dense_features_are_refused_by_models_that_need_them(name):
    with pytest.raises(ValueError, match=f"{name} needs at least one dense feature"):
        build(name, dense_features=0)


@pytest.mark.parametrize("name", ["logistic", "prior"])
def test_controls_need_no_dense_features(name):
    assert build(name, dense_features=0)(torch.zeros(5, 0), ids(FEATURES)).shape == (5,)


def test_an_unknown_name_is_refused_with_the_names_there_are():
    with pytest.raises(ValueError, match="unknown model 'dlrn': choose one of dcn, dlrm, "):
        build("dlrn")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"embedding_dim": 0}, "embedding_dim is 0"),
        ({"bottom": (4, -1)}, "bottom is -1"),
        ({"over": ()}, "over has no hidden layer"),
        ({"towers": 0}, "towers is 0"),
        ({"tower_dim": 0}, "tower_dim is 0"),
        ({"dense_features": -1}, "dense_features is -1"),
        ({"towers": 3, "partition": ((0,), (1,))}, "the partition has 2 towers and towers is 3"),
    ],
)
def test_sizes_that_cannot_be_are_refused(changes, reason):
    with pytest.raises(ValueError, match=reason):
        replace(SMALL, **changes)


def parse(*flags):
    parser = argparse.ArgumentParser()
    ModelSpec.add_arguments(parser)
    return ModelSpec.from_args(parser.parse_args(flags))


def test_flags_without_values_are_the_papers_sizes():
    assert parse("--model", "dlrm") == ModelSpec("dlrm")


def test_flags_set_every_size(tmp_path):
    file = tmp_path / "partition.json"
    file.write_text(json.dumps([[2, 0], [1]]))
    spec = parse(
        *"--model dmt_dcn --embedding-dim 16 --bottom 8,4 --over 9 --small-over 3,2 --cross-layers 5".split(),
        *"--cross-rank 6 --tower-cross-layers 7 --tower-cross-rank 11 --tower-dim 12 --partition".split(),
        str(file),
    )
    assert spec == ModelSpec("dmt_dcn", 13, 16, (8, 4), (9,), (3, 2), 5, 6, 7, 11, 2, 12, ((2, 0), (1,)))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[[0, 1], [2]", "cannot read the partition file"),
        ('{"a": 1}', "no partition"),
        ("[[0, true]]", "no partition"),
        ("[0, 1]", "no partition"),
    ],
)
def test_a_partition_file_at_fault_is_refused_with_its_name(tmp_path, text, reason):
    file = tmp_path / "partition.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=reason) as caught:
        parse("--model", "dmt_dlrm", "--partition", str(file))
    assert "partition.json" in str(caught.value) and "\n" not in str(caught.value)


def test_missing_and_misspelt_models_are_refused():
    with pytest.raises(ValueError, match="no model given: add --model"):
        parse()
    with pytest.raises(ValueError, match="unknown model 'x'"):
        parse("--model", "x")
