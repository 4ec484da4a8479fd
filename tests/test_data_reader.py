"""Batches: every row once, order from the seed alone, resumable at any step; data sets that do not fit are refused."""

import hashlib
import json
import shutil
from unittest import mock

import made_up_rows
import numpy as np
import pytest
import safetensors.numpy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.data import manifest, reader
from bench.data.prepare import prepare
from bench.data.reader import open_dataset, part_of
from bench.errors import UserError

ROWS = made_up_rows.lines(2500, seed=3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    prepare([made_up_rows.write(folder / "rows.tsv", ROWS)], folder / "out", shard_rows=300)
    return folder / "out"


@pytest.fixture
def copy(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "copy")


@pytest.fixture(scope="module")
def one_thread():
    """Threads on cores that others use wait for each other ten times longer than they copy small batches."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def whole(batches):
    """(rows, n) all columns of all batches side by side, in order."""
    return torch.cat([torch.cat([b.label[:, None], b.dense, b.sparse.float()], 1) for b in batches])


def in_order(rows):
    return rows[np.lexsort(rows.numpy().T)]


@pytest.mark.parametrize("batch_size", [1, 64, 300, 301, 1999])
def test_every_row_once(folder, batch_size):
    data = open_dataset(folder)
    label, dense, sparse = made_up_rows.stored(folder, data.manifest, "train")
    want = torch.from_numpy(np.concatenate([label[:, None], dense, sparse], 1).astype(np.float32))
    assert len(want) == data.rows("train") == 2000
    ordered = list(data.batches("train", batch_size))
    shuffled = list(data.batches("train", batch_size, seed=1))
    for batches in (ordered, shuffled):
        sizes = [len(batch.label) for batch in batches]
        assert sizes == [batch_size] * (2000 // batch_size) + ([2000 % batch_size] if 2000 % batch_size else [])
    torch.testing.assert_close(whole(ordered), want, rtol=0, atol=0)
    assert not torch.equal(whole(shuffled), want)
    torch.testing.assert_close(in_order(whole(shuffled)), in_order(want), rtol=0, atol=0)


def test_types(folder):
    batch = next(open_dataset(folder).batches("test", 10))
    assert (batch.dense.dtype, batch.sparse.dtype, batch.label.dtype) == (torch.float32, torch.int32, torch.float32)
    assert (batch.dense.shape, batch.sparse.shape, batch.label.shape) == ((10, 13), (10, 26), (10,))


def test_order_is_a_function_of_the_seed(folder):
    first, again, other = (whole(open_dataset(folder).batches("train", 128, seed=s)) for s in (4, 4, 5))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(first, whole(open_dataset(folder).batches("train", 77, seed=4)))  # not of the batch size


def places_of(data, monkeypatch, group, seed):
    """Shard of each training row in shuffled order, and its place in the shard."""
    monkeypatch.setattr(reader, "GROUP_SHARDS", group)
    place = {tuple(row): i for i, row in enumerate(whole(data.batches("train", 300)).tolist())}
    places = np.array([place[tuple(row)] for row in whole(data.batches("train", 300, seed=seed)).tolist()])
    return places // 300, places % 300


def test_early_batches_hold_rows_of_many_shards(folder, monkeypatch):
    shard, _ = places_of(open_dataset(folder), monkeypatch, 8, 0)
    for batch in shard[:1800].reshape(-1, 100):
        assert len(set(batch)) == 7
    shard, _ = places_of(open_dataset(folder), monkeypatch, 3, 0)
    assert [len(set(shard[i : i + 600])) for i in (0, 900)] == [3, 3]


def test_each_group_has_its_own_order(folder, monkeypatch):
    """With groups of one shard, and of one seed: the order inside differs between the groups."""
    shard, place = places_of(open_dataset(folder), monkeypatch, 1, 0)
    orders = [tuple(place[shard == number]) for number in range(6)]
    assert len(set(orders)) == 6


def test_shuffling_leaves_no_trace_of_the_file_order(folder):
    data = open_dataset(folder)
    file_order = whole(data.batches("train", 300))
    shuffled = whole(data.batches("train", 300, seed=0))
    place = {tuple(row): i for i, row in enumerate(file_order.tolist())}
    places = np.array([place[tuple(row)] for row in shuffled.tolist()])
    assert abs(np.corrcoef(places, np.arange(len(places)))[0, 1]) < 0.1
    assert np.abs(np.diff(places)).mean() > 500


@pytest.mark.parametrize("seed", [None, 2])
def test_start_at_any_step(folder, seed):
    data = open_dataset(folder)
    batches = list(data.batches("train", 130, seed=seed))
    for start in (0, 1, 2, 3, 7, 14, 15, 16, 99):
        rest = list(data.batches("train", 130, seed=seed, start_step=start))
        assert len(rest) == max(len(batches) - start, 0)
        for got, want in zip(rest, batches[start:], strict=True):
            assert torch.equal(got.sparse, want.sparse) and torch.equal(got.dense, want.dense)
            assert torch.equal(got.label, want.label)


@given(rows=st.integers(0, 99), ranks=st.integers(1, 9))
def test_parts_of_rows_lie_side_by_side_and_differ_by_at_most_one(rows, ranks):
    parts = [part_of(rows, rank, ranks) for rank in range(ranks)]
    assert [begin for begin, _ in parts] + [rows] == [0] + [end for _, end in parts]
    sizes = [end - begin for begin, end in parts]
    assert max(sizes) - min(sizes) <= 1


@settings(max_examples=60)
@given(
    group=st.sampled_from([1, 2, 8]),
    seed=st.sampled_from([None, 3]),
    ranks=st.sampled_from([2, 3, 5]),
    start=st.sampled_from([0, 1, 4]),
    batch_size=st.sampled_from([3, 17, 64, 130, 300, 301, 700, 1999]),
)
def test_parts_of_all_ranks_are_the_whole_batches(folder, one_thread, group, seed, ranks, start, batch_size):
    """Batches lie inside shards of 300 rows and across the seams of several; the smallest leave ranks without rows."""
    data = open_dataset(folder)
    with mock.patch.object(reader, "GROUP_SHARDS", group):
        want = list(data.batches("train", batch_size, seed=seed))
        parts = [
            list(data.batches("train", batch_size, seed=seed, start_step=start, part=(rank, ranks)))
            for rank in range(ranks)
        ]
    together = []
    for whole_batch, of_ranks in zip(want[start:], zip(*parts, strict=True), strict=True):
        sizes = [len(batch.label) for batch in of_ranks]
        assert max(sizes) - min(sizes) <= 1
        for name in ("dense", "sparse", "label"):
            found = [getattr(batch, name) for batch in of_ranks]
            assert [len(tensor) for tensor in found] == sizes
            assert torch.equal(torch.cat(found), getattr(whole_batch, name))
        together += of_ranks
    label, dense, sparse = made_up_rows.stored(folder, data.manifest, "train")
    stored = torch.from_numpy(np.concatenate([label[:, None], dense, sparse], 1).astype(np.float32))
    assert torch.equal(in_order(whole(want[:start] + together)), in_order(stored))


def test_skipped_shards_are_not_read(copy):
    data = open_dataset(copy)
    for entry in data.manifest["splits"]["train"]["shards"][:3]:
        (copy / entry["file"]).unlink()
    assert sum(len(batch.label) for batch in data.batches("train", 100, start_step=9)) == 1100
    with pytest.raises(UserError, match="cannot read shard"):
        list(data.batches("train", 100, start_step=8))


def test_skipped_groups_are_not_read(copy, monkeypatch):
    monkeypatch.setattr(reader, "GROUP_SHARDS", 2)
    data = open_dataset(copy)
    want = list(data.batches("train", 100, seed=2))
    read, load = [], reader.DataSet._load
    monkeypatch.setattr(reader.DataSet, "_load", lambda self, entry: (read.append(entry["file"]), load(self, entry))[1])
    rest = list(data.batches("train", 100, seed=2, start_step=13))
    assert torch.equal(whole(rest), whole(want[13:]))
    assert len(read) == len(set(read)) <= 3


def test_missing_shard_is_found_at_once(copy):
    (copy / "train-00004.safetensors").unlink()
    with pytest.raises(UserError, match=r"lacks shard train-00004\.safetensors"):
        open_dataset(copy)


def test_fewer_training_rows_than_a_batch(folder):
    data = open_dataset(folder)
    with pytest.raises(UserError, match="2000 rows, fewer than one batch of 2001"):
        data.batches("train", 2001, seed=0)
    assert len(next(data.batches("test", 100_000)).label) == 250  # evaluation takes what there is


def rewrite(folder, change):
    made = json.loads((folder / "manifest.json").read_text())
    change(made)
    (folder / "manifest.json").write_text(json.dumps(made))


def swap(made, one, other):
    splits = made["splits"]
    splits[one], splits[other] = splits[other], splits[one]
    made["split_hash"] = manifest.split_hash(splits)


def listed_twice(made):
    train, shard = made["splits"]["train"], made["splits"]["test"]["shards"][0]
    train["shards"].append(shard)
    for field in ("rows", "positives"):
        train[field] += shard[field]
    made["split_hash"] = manifest.split_hash(made["splits"])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda m: m.pop("splits"), "splits"),
        (lambda m: m.update(format=2), "format"),
        (lambda m: m["cardinalities"].pop(), "cardinalities has 25 entries"),
        (lambda m: m["cardinalities"].__setitem__(3, "many"), r"cardinalities\.3"),
        (lambda m: m["splits"]["test"].update(rows=1), "rows of split test"),
        (lambda m: m["splits"]["test"]["shards"][0].update(sha256="0" * 64), "split_hash"),
        (lambda m: m["splits"]["test"]["shards"][0].update(file="../x.safetensors"), "file"),
        (lambda m: m["cardinalities"].__setitem__(0, 10 * m["cardinalities"][0]), "does not follow from its"),
        (lambda m: m["vocabulary"][3].update(kept=m["vocabulary"][3]["kept"] + 1), "column C4 does not follow"),
        (lambda m: m["columns"]["sparse"].reverse(), "vocabulary has column C1 where columns has C26"),
        (lambda m: m["columns"]["dense"].__setitem__(1, "I1"), "columns names a column twice"),
        (lambda m: swap(m, "validation", "test"), "split validation names shard test-00000.safetensors"),
        (lambda m: listed_twice(m), "names a shard twice"),
    ],
)
def test_manifest_that_does_not_fit(copy, change, says):
    rewrite(copy, change)
    with pytest.raises(UserError, match=says):
        open_dataset(copy)


def test_other_positives(copy):
    def change(made):
        for entry in (made["splits"]["test"], made["splits"]["test"]["shards"][0]):
            entry["positives"] += 1

    rewrite(copy, change)
    with pytest.raises(UserError, match=r"test-00000\.safetensors: \d+ positives instead of \d+"):
        list(open_dataset(copy).batches("test", 100))


def test_no_manifest(tmp_path):
    with pytest.raises(UserError, match="not a prepared data set"):
        open_dataset(tmp_path)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(UserError, match="not JSON"):
        open_dataset(tmp_path)


def test_damaged_shard(copy):
    shard = copy / "test-00000.safetensors"
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    with pytest.raises(UserError, match=r"test-00000\.safetensors is not the one that the manifest describes"):
        list(open_dataset(copy).batches("test", 100))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda t: t["sparse"].__setitem__((5, 2), 10**6), "id 1000000 in column C3 is outside its table of"),
        (lambda t: t["sparse"].__setitem__((0, 25), -1), "id -1 in column C26"),
        (lambda t: t.update(dense=t["dense"][:, :12].copy()), r"dense is \(\d+, 12\)"),
        (lambda t: t.update(sparse=t["sparse"].astype(np.int64)), "int64"),
        (lambda t: t.pop("label"), "label is missing"),
    ],
)
def test_shard_that_does_not_fit(copy, change, says):
    """The manifest agrees with the shard's bytes, but the tensors do not fit the tables."""
    entry = json.loads((copy / "manifest.json").read_text())["splits"]["test"]["shards"][0]
    tensors = safetensors.numpy.load_file(copy / entry["file"])
    change(tensors)
    data = safetensors.numpy.save(tensors)
    (copy / entry["file"]).write_bytes(data)

    def trust(made):
        made["splits"]["test"]["shards"][0]["sha256"] = hashlib.sha256(data).hexdigest()
        made["split_hash"] = manifest.split_hash(made["splits"])

    rewrite(copy, trust)
    with pytest.raises(UserError, match=says):
        list(open_dataset(copy).batches("test", 100))
