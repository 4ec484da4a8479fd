"""AdamTables against torch's own Adam, and against TorchRec's EmbeddingBagCollection."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ranks import on_ranks
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig

from bench.batch import one_id_a_bag, tables
from bench.tables import AdamTables, use_adam_tables

NAMES = ["a", "b", "c"]


def collection(rows, dim=4):
    return EmbeddingBagCollection(tables(NAMES[: len(rows)], rows, dim))


def threads(count):
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    return before


@given(
    rows=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    dim=st.integers(1, 17),
    batch=st.integers(1, 20),
    workers=st.integers(1, 3),
    seed=st.integers(0, 9),
)
def test_lookup_equals_torchrec_and_update_equals_adam_of_seen_rows(rows, dim, batch, workers, seed):
    """Several steps equal torch.optim.Adam whose state of rows not in the batch is put back after each step."""
    torch.manual_seed(seed)
    flat = collection(rows, dim)
    ours = AdamTables(copy.deepcopy(flat))
    parameters = [flat.embedding_bags[f"t_{n}"].weight for n in NAMES[: len(rows)]]
    reference = torch.optim.Adam(parameters, lr=1e-2)
    before = threads(workers)
    for step in range(1, 4):
        ids_BF = torch.stack([torch.randint(r, (batch,)) for r in rows], 1)
        features = one_id_a_bag(NAMES[: len(rows)], ids_BF)
        weight = torch.randn(batch, dim * len(rows))
        reference.zero_grad()
        expected = flat(features)
        found = ours(features)
        assert found.keys() == expected.keys()
        torch.testing.assert_close(found.values(), expected.values(), rtol=0, atol=2e-6)
        (expected.values() * weight).sum().backward()
        kept = [(p.detach().clone(), {k: v.clone() for k, v in reference.state[p].items()}) for p in parameters]
        reference.step()
        for f, p in enumerate(parameters):
            unseen = ~torch.isin(torch.arange(rows[f]), ids_BF[:, f])
            old, state = kept[f]
            p.data[unseen] = old[unseen]
            for name in ("exp_avg", "exp_avg_sq"):
                reference.state[p][name][unseen] = state[name][unseen] if state else 0.0
        ours.adam.learning_rate = 1e-2
        (found.values() * weight).sum().backward()
        assert ours.adam.step == step
    threads(before)
    for name, p in zip(NAMES, parameters, strict=False):
        torch.testing.assert_close(ours.embedding_bags[f"t_{name}"].weight, p, rtol=1e-4, atol=2e-6)


def learned(rank, parts):
    """Weights and moments of three tables that learned from this rank's rows of each batch; one process: of all."""
    torch.manual_seed(0)
    ours = AdamTables(collection([3, 9, 40], dim=3), shared=len(parts[0]) > 1)
    ours.adam.learning_rate = 0.1
    for sizes in parts:
        total, ranks = sum(sizes), len(sizes)
        here = slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))
        ids_BF = torch.stack([torch.randint(rows, (total,)) for rows in (3, 9, 40)], 1)
        weight = torch.randn(total, 9)
        # a rank's loss is its share of the mean over the global batch, times the ranks since gradients are averaged
        ((ours(one_id_a_bag(NAMES, ids_BF[here])).values() * weight[here]).sum() * ranks / total).backward()
    return {
        "weight": torch.cat([p.detach() for p in ours.parameters()]),
        "exp_avg": torch.cat(ours.adam.exp_avg),
        "exp_avg_sq": torch.cat(ours.adam.exp_avg_sq),
    }


# Two ranks: their gradients times 2, divided by 2, and added in the order of one process. Three: times 3, divided by 3,
# which rounds; seen: 6.0e-8, 5.6e-9 and 5.8e-11, of numbers up to 0.7, 0.13 and 0.0014.
EXACT = {"weight": 0, "exp_avg": 0, "exp_avg_sq": 0}
ROUNDED = {"weight": 3e-7, "exp_avg": 3e-8, "exp_avg_sq": 3e-10}


@pytest.mark.parametrize(
    ("parts", "tolerance"),
    [
        ([[5, 2], [0, 6], [4, 0], [1, 1], [3, 8]], EXACT),
        ([[4, 1, 2], [0, 0, 7], [3, 0, 5], [0, 2, 0], [1, 1, 1]], ROUNDED),
    ],
    ids=["2 ranks", "3 ranks"],
)
def test_shared_tables_learn_on_ranks_as_one_process_does_from_the_whole_batch(parts, tolerance):
    """Parts of a batch are unequal, and some ranks have no rows; weights alone would not show a gradient's scale."""
    expected = learned(0, [[sum(sizes)] for sizes in parts])
    first, *others = on_ranks(len(parts[0]), learned, parts)
    for name, value in expected.items():
        assert all(torch.equal(other[name], first[name]) for other in others), name
        torch.testing.assert_close(first[name], value, rtol=0, atol=tolerance[name])


def test_any_key_order_gives_the_same_columns():
    torch.manual_seed(0)
    ours = AdamTables(collection([5, 6, 7]))
    ids_BF = torch.tensor([[1, 2, 3], [4, 5, 6]])
    swapped = one_id_a_bag(["c", "a", "b"], ids_BF[:, [2, 0, 1]])
    with torch.no_grad():
        assert torch.equal(ours(one_id_a_bag(NAMES, ids_BF)).values(), ours(swapped).values())


def test_result_does_not_depend_on_the_number_of_threads():
    results = []
    for workers in (1, 3):
        torch.manual_seed(0)
        ours = AdamTables(collection([50, 60, 70]))
        ours.adam.learning_rate = 0.1
        features = one_id_a_bag(NAMES, torch.randint(50, (500, 3)))
        before = threads(workers)
        (ours(features).values() * torch.randn(500, 12)).sum().backward()
        threads(before)
        results.append(torch.cat([p.detach() for p in ours.parameters()]))
    assert torch.equal(*results)


def test_names_and_values_are_those_of_the_collection_and_survive_a_checkpoint():
    torch.manual_seed(0)
    flat = collection([5, 6, 7])
    stored = copy.deepcopy(flat.state_dict())
    model = nn.Sequential(flat)
    (ours,) = use_adam_tables(model)
    assert model[0] is ours
    for name, value in stored.items():
        assert torch.equal(ours.state_dict()[name], value), name
    ours.adam.learning_rate = 0.1
    features = one_id_a_bag(NAMES, torch.tensor([[1, 2, 3]]))
    ours(features).values().sum().backward()
    other = AdamTables(collection([5, 6, 7]))
    other.load_state_dict(ours.state_dict())
    with torch.no_grad():
        assert torch.equal(other(features).values(), ours(features).values())
    other.adam.step = ours.adam.step
    for found, kept in zip(
        other.adam.exp_avg + other.adam.exp_avg_sq, ours.adam.exp_avg + ours.adam.exp_avg_sq, strict=True
    ):
        assert kept.any() and not found.any()
        found.copy_(kept)
    for tables_ in (ours, other):  # with step and moments the next step is the same
        tables_.adam.learning_rate = 0.1
        tables_(features).values().sum().backward()
    assert torch.equal(other(features).values(), ours(features).values())


def test_tables_that_it_cannot_hold_are_refused():
    mixed = [
        EmbeddingBagConfig(name="t_a", embedding_dim=4, num_embeddings=3, feature_names=["a"]),
        EmbeddingBagConfig(name="t_b", embedding_dim=8, num_embeddings=3, feature_names=["b"]),
    ]
    with pytest.raises(ValueError, match="one embedding dimension"):
        AdamTables(EmbeddingBagCollection(mixed))
    shared = [EmbeddingBagConfig(name="t", embedding_dim=4, num_embeddings=3, feature_names=["a", "b"])]
    with pytest.raises(ValueError, match="one feature a table"):
        AdamTables(EmbeddingBagCollection(shared))
    frozen = collection([3])
    frozen.requires_grad_(False)
    with pytest.raises(ValueError, match="frozen"):
        AdamTables(frozen)
    with pytest.raises(ValueError, match="weighted"):
        AdamTables(EmbeddingBagCollection(tables(["a"], [3], 4), is_weighted=True))


def test_one_collection_in_two_places_becomes_one_module():
    flat = collection([3, 4])
    model = nn.ModuleDict({"x": flat, "y": nn.ModuleDict({"z": flat})})
    assert len(use_adam_tables(model)) == 1
    assert model["x"] is model["y"]["z"]


def test_two_lookups_before_a_backward_pass_are_refused():
    ours = AdamTables(collection([3]))
    features = one_id_a_bag(["a"], torch.tensor([[1]]))
    ours(features)
    with pytest.raises(ValueError, match="once for each backward"):
        ours(features)


def test_bags_of_more_than_one_id_are_refused():
    from torchrec import KeyedJaggedTensor

    ours = AdamTables(collection([5, 6]))
    two = KeyedJaggedTensor(keys=["a", "b"], values=torch.tensor([1, 2, 3]), lengths=torch.tensor([2, 1]))
    with pytest.raises(ValueError, match="one id a bag"):
        ours(two)
    skewed = KeyedJaggedTensor(keys=["a", "b"], values=torch.tensor([1, 2]), lengths=torch.tensor([2, 0]))
    with pytest.raises(ValueError, match="one id a bag"):
        ours(skewed)


def test_an_id_out_of_range_is_an_error_and_not_another_tables_row():
    ours = AdamTables(collection([5, 6]))
    with pytest.raises(ValueError, match=r"feature 'a'.*id 5.*5 rows"):
        ours(one_id_a_bag(["a", "b"], torch.tensor([[5, 0]])))
    with pytest.raises(ValueError, match=r"feature 'b'.*id -1.*6 rows"):
        AdamTables(collection([5, 6]))(one_id_a_bag(["a", "b"], torch.tensor([[0, -1]])))
    assert all(np.all(slots == -1) for slots in ours.adam._slots)
