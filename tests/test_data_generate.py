"""Generated rows: the same for a seed whatever the file, the look of Criteo's, groups, and a bound on the AUC."""

import json

import numpy as np
import pytest
import sklearn.metrics

from bench.data import generate, look, stream, world
from bench.data.prepare import prepare
from bench.data.reader import open_dataset
from bench.data.rows import RowParser
from bench.data.schema import load

N = 40_000  # more than one random stream


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("rows") / "rows.tsv"
    generate.generate(N, 7, path)
    return path


@pytest.fixture(scope="module")
def prepared(file):
    prepare([file], file.parent / "data")
    return open_dataset(file.parent / "data")


@pytest.fixture(scope="module")
def rows(file):
    return RowParser(load("criteo"), [file])(next(stream.blocks([file], False)))  # the first block is enough


@pytest.fixture(scope="module")
def fields(file):
    return np.array([line.split("\t") for line in file.read_text().splitlines()])  # (N, 40) text


def test_same_seed_same_bytes(file, tmp_path):
    generate.generate(N, 7, tmp_path / "again.tsv")
    generate.generate(5000, 7, tmp_path / "short.tsv")
    generate.generate(5000, 8, tmp_path / "other.tsv")
    whole, short = file.read_bytes(), (tmp_path / "short.tsv").read_bytes()
    assert (tmp_path / "again.tsv").read_bytes() == whole
    assert whole.startswith(short)
    assert (tmp_path / "other.tsv").read_bytes() != short


def test_days_are_the_parts_of_one_file(file, tmp_path):
    days = generate.generate(N, 7, tmp_path / "day.tsv", days=3)
    assert [day.name for day in days] == ["day_0.tsv", "day_1.tsv", "day_2.tsv"]
    assert b"".join(day.read_bytes() for day in days) == file.read_bytes()
    parts = np.concatenate([np.load(f"{day}.probability.npy") for day in days])
    np.testing.assert_array_equal(parts, np.load(f"{file}.probability.npy"))
    made = prepare(days, tmp_path / "out", split="day")
    assert made["generator"]["rows"] == N
    label = np.concatenate([batch.label for batch in open_dataset(tmp_path / "out").batches("test", 10_000)])
    assert made["generator"]["auc_ceiling"]["test"] == pytest.approx(
        sklearn.metrics.roc_auc_score(label, parts[-len(label) :]), abs=1e-5
    )


def test_look(fields):
    missing = fields == ""
    share = dict(zip(load("criteo").columns, missing.mean(0), strict=True))
    for column in (*look.COUNTS, *look.CATEGORICALS):
        want = look.MISSING_SHARE.get(column.missing, 0)
        assert share[column.name] == pytest.approx(want, abs=0.01), column.name
    at = {name: i for i, name in enumerate(load("criteo").columns)}
    for tied in (["C3", "C4", "C12", "C16", "C21", "C24"], ["C19", "C20", "C25", "C26"], ["I1", "I10"], ["I4", "I13"]):
        columns = missing[:, [at[name] for name in tied]]
        assert (columns.all(1) == columns.any(1)).all(), tied
    for column in look.COUNTS:
        values = fields[:, at[column.name]]
        values = values[values != ""].astype(int)
        assert np.median(values) == pytest.approx(column.median, rel=0.05, abs=1), column.name
        assert np.quantile(values, 0.99) == pytest.approx(column.p99, rel=0.15, abs=1), column.name
        assert values.max() <= column.most
        assert (values < 0).mean() == pytest.approx(look.NEGATIVE_SHARE if column.name == "I2" else 0, abs=0.01)
    for column in look.CATEGORICALS:
        values = fields[:, at[column.name]]
        values, counts = np.unique(values[values != ""], return_counts=True)
        assert len(values) <= column.universe
        assert all(len(value) == 8 for value in values)
        head = counts.max() / counts.sum()
        assert head == pytest.approx(column.head, abs=0.01) if column.head else head < 0.5, column.name
        if column.universe > 10**6:
            assert 0.02 < head < 0.07 and 0.3 < np.sort(counts)[-100:].sum() / counts.sum() < 0.6
    assert 0.35 < np.mean(missing[:, -1]) < 0.5  # trailing tabs
    assert fields[:, 0].astype(int).mean() == pytest.approx(world.LABEL_RATE, abs=0.01)


def test_zipf_beyond_the_head():
    column = look.Categorical("x", 5000, None)
    own, tail = look.shares(column)
    assert own.sum() + tail == pytest.approx(1)
    slope = np.polyfit(np.log(np.arange(200, 2000)), np.log(own[200:2000]), 1)[0]
    assert -1.1 < slope < -0.95


def test_best_auc(file, prepared):
    probability, about = np.load(f"{file}.probability.npy"), prepared.manifest["generator"]
    label = {
        split: np.concatenate([b.label for b in prepared.batches(split, 8192)]) for split in prepared.manifest["splits"]
    }
    auc = sklearn.metrics.roc_auc_score
    everything = np.concatenate(list(label.values()))
    assert about["auc_ceiling"]["all"] == pytest.approx(auc(everything, probability), abs=1e-5)
    assert about["auc_ceiling"]["validation"] == pytest.approx(
        auc(label["validation"], probability[32000:36000]), abs=1e-5
    )
    assert about["auc_ceiling"]["test"] == pytest.approx(auc(label["test"], probability[36000:]), abs=1e-5)
    assert json.loads(open(f"{file}.generator.json").read())["auc_ceiling"] == about["auc_ceiling"]["all"]
    assert 0.79 < about["auc_ceiling"]["all"] < 0.83
    assert (about["seed"], about["rows"]) == (7, N)
    assert about["label_rate"] == pytest.approx(everything.mean(), abs=1e-6)
    edges = np.quantile(probability, np.linspace(0, 1, 11))  # labels follow the probability
    for low, high in zip(edges[:-1], edges[1:], strict=True):
        inside = (probability >= low) & (probability <= high)
        assert everything[inside].mean() == pytest.approx(probability[inside].mean(), abs=0.03)


@pytest.mark.parametrize("fault", ["rows changed", "no probabilities", "rows skipped"])
def test_no_best_auc_for_rows_that_are_not_as_generated(tmp_path, fault):
    file = tmp_path / "rows.tsv"
    generate.generate(2000, 1, file)
    if fault == "rows changed":
        lines = file.read_text().splitlines(keepends=True)
        file.write_text("".join([lines[1], lines[0], *lines[2:]]))
    elif fault == "no probabilities":
        (tmp_path / "rows.tsv.probability.npy").unlink()
    else:
        file.write_text(file.read_text() + "junk\n")
    assert prepare([file], tmp_path / "out", skip_bad=True)["generator"] is None


def test_groups_vary_together(rows):
    """An id says more of an id of its own group than of another group's."""
    names = list(load("criteo").sparse)

    def told(a, b):
        """Cramer's V of two columns, over their 20 most frequent ids."""
        keys_a, keys_b = rows.keys[names.index(a)], rows.keys[names.index(b)]
        tables = []
        for keys in (keys_a, keys_b):
            values, counts = np.unique(keys, return_counts=True)
            top = values[np.argsort(-counts)[:20]]
            tables.append(np.where(np.isin(keys, top), keys, 1))
        codes = [np.unique(table, return_inverse=True)[1] for table in tables]
        seen = np.zeros((codes[0].max() + 1, codes[1].max() + 1))
        np.add.at(seen, tuple(codes), 1)
        chance = seen.sum(1, keepdims=True) * seen.sum(0) / seen.sum()
        return np.sqrt(((seen - chance) ** 2 / chance).sum() / seen.sum() / (min(seen.shape) - 1))

    assert told("C7", "C17") > 2 * told("C7", "C18")
    assert told("C5", "C11") > 2 * told("C5", "C15")
    groups = [[name for name in group if name in names] for group in world.GROUPS]
    assert sorted(sum(groups, [])) == sorted(names)
