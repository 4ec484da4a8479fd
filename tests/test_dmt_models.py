"""Tower models: pass-through equals flat; with modules, they equal the formulas written out by hand.

B batch, F features, N embedding dim, D tower output dim.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_towers import N, ids, partitions, tables
from torch.nn import functional
from torchrec import EmbeddingBagCollection
from torchrec.models.dlrm import DLRM, DLRM_DCN

from dmt import DMTDCN, DMTDLRM, PassThrough, TowerEmbedding, dcn_towers, dlrm_towers, pass_through_towers

DENSE = 3


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def flat(kind, embeddings):
    if kind == "dlrm":
        return DLRM(embeddings, DENSE, [6, N], [7, 5, 1])
    return DLRM_DCN(embeddings, DENSE, [6, N], [7, 5, 1], dcn_num_layers=2, dcn_low_rank_dim=3)


def logits_and_gradients(model, dense, kjt):
    """Logits, and the gradient of each parameter and of the dense input for a loss that weighs samples differently."""
    dense = dense.clone().requires_grad_()
    logits = model(dense, kjt).flatten()
    (logits * torch.arange(1.0, len(logits) + 1)).sum().backward()
    return logits, dense.grad, {name: p.grad for name, p in model.named_parameters()}


@pytest.mark.parametrize("kind", ["dlrm", "dcn"])
@settings(max_examples=15)
@given(partitions())
def test_pass_through_towers_change_neither_outputs_nor_gradients(kind, partition):
    features = sum(map(len, partition))
    model = flat(kind, EmbeddingBagCollection(tables=tables(features)))
    sptt = flat(kind, TowerEmbedding(tables(features), partition, pass_through_towers(partition, N)))

    def in_sptt(name):  # the documented mapping of weights
        old = "sparse_arch.embedding_bag_collection."
        return name.replace(old, f"{old}embedding_bag_collection.")

    sptt.load_state_dict({in_sptt(name): value for name, value in model.state_dict().items()})
    dense, kjt = torch.randn(5, DENSE), ids(features)
    expected, expected_dense, expected_weights = logits_and_gradients(model, dense, kjt)
    logits, dense_gradient, weights = logits_and_gradients(sptt, dense, kjt)
    assert torch.equal(logits, expected)
    assert torch.equal(dense_gradient, expected_dense)
    assert {in_sptt(name) for name in expected_weights} == set(weights)
    for name, gradient in expected_weights.items():
        assert torch.equal(weights[in_sptt(name)], gradient), name


# The models by hand: plain operations on the weights of the module's state_dict, feature by feature.


def mlp(weights, prefix, x, last_relu):
    names = [name.removesuffix(".weight") for name in weights if name.startswith(prefix) and name.endswith(".weight")]
    for i, name in enumerate(names):
        x = torch.einsum("bi,oi->bo", x, weights[f"{name}.weight"]) + weights[f"{name}.bias"]
        if last_relu or i + 1 < len(names):
            x = x.clamp(min=0)
    return x


def cross(weights, prefix, x, layers):
    y = x
    for layer in range(layers):
        low = torch.einsum("bi,ri->br", y, weights[f"{prefix}V_kernels.{layer}"])
        y = (
            x
            * (torch.einsum("br,ir->bi", low, weights[f"{prefix}W_kernels.{layer}"]) + weights[f"{prefix}bias.{layer}"])
            + y
        )
    return y


def pooled(weights, kjt, feature):
    bag = kjt[f"f{feature}"]
    weight = weights[f"tower_embedding.embedding_bag_collection.embedding_bags.t{feature}.weight"]
    segments = torch.arange(len(bag.lengths())).repeat_interleave(bag.lengths())
    return torch.zeros(len(bag.lengths()), N).index_add(0, segments, weight[bag.values()])


def dmt_dlrm_by_hand(weights, partition, dense, kjt, d, p, c):
    vectors = [mlp(weights, "dense_arch", dense, last_relu=True)]
    for tower, group in enumerate(partition):
        prefix = f"tower_embedding.towers.{tower}."
        inputs = [pooled(weights, kjt, feature) for feature in group]
        if len(group) == 1 and (p + c) * d == N:
            vectors += inputs[0].split(d, 1)
            continue
        if p:
            of_tower = functional.linear(torch.cat(inputs, 1), weights[f"{prefix}of_tower.weight"])
            vectors += (of_tower + weights[f"{prefix}of_tower.bias"]).split(d, 1)
        for x in inputs if c else []:
            of_each = functional.linear(x, weights[f"{prefix}of_each.weight"]) + weights[f"{prefix}of_each.bias"]
            vectors += of_each.split(d, 1)
    pairs = [(vectors[i] * vectors[j]).sum(1) for i in range(len(vectors)) for j in range(i + 1, len(vectors))]
    return mlp(weights, "over_arch", torch.cat([vectors[0], torch.stack(pairs, 1)], 1), last_relu=False)[:, 0]


def dmt_dcn_by_hand(weights, partition, dense, kjt, d, layers, tower_layers):
    vectors = [mlp(weights, "dense_arch", dense, last_relu=True)]
    all_single = all(len(group) == 1 for group in partition)
    for tower, group in enumerate(partition):
        prefix = f"tower_embedding.towers.{tower}."
        x = torch.cat([pooled(weights, kjt, feature) for feature in group], 1)
        if not (all_single and d == N):
            x = cross(weights, f"{prefix}cross.", x, tower_layers)
            if len(group) > 1 or d != N:
                x = functional.linear(x, weights[f"{prefix}linear.weight"]) + weights[f"{prefix}linear.bias"]
        vectors.append(x)
    x = cross(weights, "inter_arch.crossnet.", torch.cat(vectors, 1), layers)
    return mlp(weights, "over_arch", x, last_relu=False)[:, 0]


def dmt_dlrm(partition, d, p, c):
    features = sum(map(len, partition))
    towers = TowerEmbedding(tables(features), partition, dlrm_towers(partition, N, d, p, c))
    return DMTDLRM(towers, DENSE, [6, d], [7, 5, 1])


def dmt_dcn(partition, d):
    features = sum(map(len, partition))
    towers = TowerEmbedding(tables(features), partition, dcn_towers(partition, N, d, layers=2, rank=3))
    return DMTDCN(towers, DENSE, [6, d], [7, 5, 1], dcn_num_layers=3, dcn_low_rank_dim=2)


def assert_equal_by_hand(model, by_hand, features):
    """The module's logits and gradients are those of the formulas on the same weights."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.4 * torch.randn_like(parameter))  # biases too: zeros would hide one left out
    dense, kjt = torch.randn(5, DENSE), ids(features)
    logits = model(dense, kjt)
    weights = dict(model.named_parameters())
    expected = by_hand(weights, dense, kjt)
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
    assert logits.shape == (5,)
    scale = torch.randn(5)
    gradients = torch.autograd.grad((logits * scale).sum(), list(weights.values()))
    for name, gradient, other in zip(
        weights, gradients, torch.autograd.grad((expected * scale).sum(), list(weights.values())), strict=True
    ):
        torch.testing.assert_close(gradient, other, rtol=1e-3, atol=1e-4, msg=lambda m, name=name: f"{name}: {m}")


@settings(max_examples=20)
@given(partitions(), st.sampled_from([(2, 0, 1), (4, 1, 0), (4, 0, 1), (2, 1, 1), (2, 2, 0), (3, 1, 2)]))
def test_dmt_dlrm_equals_the_formulas(partition, setting):
    d, p, c = setting
    model = dmt_dlrm(partition, d, p, c)
    assert_equal_by_hand(
        model, lambda w, dense, kjt: dmt_dlrm_by_hand(w, partition, dense, kjt, d, p, c), sum(map(len, partition))
    )
    assert model.partition == partition


@settings(max_examples=20)
@given(partitions(), st.sampled_from([2, 4]))
def test_dmt_dcn_equals_the_formulas(partition, d):
    model = dmt_dcn(partition, d)
    assert_equal_by_hand(
        model, lambda w, dense, kjt: dmt_dcn_by_hand(w, partition, dense, kjt, d, 3, 2), sum(map(len, partition))
    )
    assert model.compression_ratio == pytest.approx(sum(map(len, partition)) * N / (len(partition) * d))


def test_an_output_that_is_no_whole_number_of_vectors_is_refused():
    towers = TowerEmbedding(tables(3), ((0, 1), (2,)), dlrm_towers(((0, 1), (2,)), N, 3, p=1, c=0))
    with pytest.raises(ValueError, match="tower 0 gives 3 numbers a sample, no whole number of vectors of 2"):
        DMTDLRM(towers, DENSE, [6, 2], [7, 1])


def test_a_model_of_pass_through_towers_in_feature_order_equals_flat_dlrm():
    partition = ((0, 1), (2,))
    towers = TowerEmbedding(tables(3), partition, [PassThrough(2 * N), PassThrough(N)])
    tower_model = DMTDLRM(towers, DENSE, [6, N], [7, 5, 1])
    model = flat("dlrm", EmbeddingBagCollection(tables=tables(3)))
    names = {name: name.replace("sparse_arch.", "tower_embedding.") for name in model.state_dict()}
    tower_model.load_state_dict({names[name]: value for name, value in model.state_dict().items()})
    dense = torch.randn(5, DENSE)
    assert torch.equal(tower_model(dense, ids(3)), model(dense, ids(3)).squeeze(1))
