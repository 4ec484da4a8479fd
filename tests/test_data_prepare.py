"""Preparation against a slow, independent one; splits; compressed and odd files; vocabularies in bounded memory."""

import gzip
import json

import made_up_rows
import numpy as np
import pytest
import zstandard

from bench.data import counting, manifest, passes, stream, vocabulary
from bench.data.prepare import prepare
from bench.errors import UserError

ROWS = made_up_rows.lines(3000)
BOUNDS = (2400, 2700)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return made_up_rows.write(tmp_path_factory.mktemp("rows") / "rows.tsv", ROWS)


def assert_as_expected(out, made, want):
    for split, (label, dense, sparse) in want["splits"].items():
        got_label, got_dense, got_sparse = made_up_rows.stored(out, made, split)
        np.testing.assert_array_equal(got_label, label)
        np.testing.assert_allclose(got_dense, dense, rtol=1e-6)
        np.testing.assert_array_equal(got_sparse, sparse)
        assert made["splits"][split]["positives"] == label.sum()
    for part, values in zip(made["vocabulary"], want["vocabularies"], strict=True):
        np.testing.assert_array_equal(np.load(out / part["file"]), np.array(values, np.uint64))


@pytest.mark.parametrize(("threshold", "cap"), [(3, None), (1, None), (2, 7)])
def test_same_as_slow_preparation(file, tmp_path, threshold, cap):
    made = prepare([file], tmp_path, threshold=threshold, cap=cap, shard_rows=700)
    assert_as_expected(tmp_path, made, made_up_rows.expected(ROWS, BOUNDS, threshold, cap))
    assert [s["rows"] for s in made["splits"]["train"]["shards"]] == [700, 700, 700, 300]
    if cap:
        assert max(made["cardinalities"]) == cap
    assert manifest.read(tmp_path) == made
    assert not (tmp_path / ".unfinished").exists()


def test_small_memory_gives_the_same(file, tmp_path, monkeypatch):
    """Tables of 16 slots, blocks of 10 kB, merges of 64 pairs, mapped vocabularies: same bytes as with much memory."""
    plain = prepare([file], tmp_path / "plain", threshold=2)
    spilled = []
    spill = counting.KeyCounter.spill
    monkeypatch.setattr(counting.KeyCounter, "spill", lambda self: (spilled.append(self.name), spill(self))[1])
    monkeypatch.setattr(counting, "BUDGET_BYTES", 26 * 16 * 16)
    monkeypatch.setattr(counting, "MERGE_PAIRS", 64)
    monkeypatch.setattr(stream, "BLOCK_BYTES", 10_000)
    monkeypatch.setattr(vocabulary, "LOADED_BYTES", 0)
    monkeypatch.setattr(vocabulary, "_MAPPED_PIECE", 8)
    monkeypatch.setattr(vocabulary, "_INDEXED_PIECE", 16)
    monkeypatch.setattr(passes, "SAVE_ROWS", 1000)
    small = prepare([file], tmp_path / "small", threshold=2)
    assert len(spilled) > 500
    assert small == plain


def test_training_rows_alone_make_the_vocabulary(tmp_path):
    new = "\t".join(["1", *["5"] * 13, *["deadbeef"] * 26])
    file = made_up_rows.write(tmp_path / "rows.tsv", ROWS[:900] + [new] * 100)
    made = prepare([file], tmp_path / "out", split="0.9,0.05,0.05", threshold=1)
    for split in ("validation", "test"):
        assert set(made["splits"][split]["unseen_share"].values()) == {1.0}
        assert (made_up_rows.stored(tmp_path / "out", made, split)[2] == 1).all()
    for part in made["vocabulary"]:
        assert 0xDEADBEEF not in np.load(tmp_path / "out" / part["file"])


@pytest.mark.parametrize("loaded_bytes", [vocabulary.LOADED_BYTES, 0])
def test_shares_of_rare_and_of_unseen_values(file, tmp_path, monkeypatch, loaded_bytes):
    monkeypatch.setattr(vocabulary, "LOADED_BYTES", loaded_bytes)
    made = prepare([file], tmp_path, shard_rows=100)
    names, test = made["columns"]["sparse"], made["splits"]["test"]
    sparse = made_up_rows.stored(tmp_path, made, "test")[2]
    rare = dict(zip(names, (sparse == 1).mean(0).round(6), strict=True))
    assert test["rare_or_unseen_share"] == pytest.approx(rare, abs=1e-6)
    values = np.array([row.split("\t")[14:] for row in ROWS])
    unseen = {}
    for name, column in zip(names, values.T, strict=True):
        seen = set(column[: BOUNDS[0]]) | {""}
        unseen[name] = np.mean([value not in seen for value in column[BOUNDS[1] :]])
    assert test["unseen_share"] == pytest.approx(unseen, abs=1e-6)
    assert all(unseen[name] <= rare[name] + 1e-6 for name in names)
    assert 0 < sum(unseen.values()) < 0.9 * sum(rare.values())


def _streamed(parameters, text):
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return packer.compress(text) + packer.flush()


def _odd_files(folder):
    text = ("\n".join(ROWS[:300]) + "\n").encode()
    half = len(text) // 2
    yield "rows.gz", gzip.compress(text)
    yield "members.gz", gzip.compress(text[:half]) + gzip.compress(text[half:])
    yield "rows.zst", zstandard.compress(text)
    yield "tape.gz", gzip.compress(text[:half]) + gzip.compress(text[half:]) + b"\0" * 20_000
    skipped = b"\x50\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"notes"
    yield "skipped.zst", skipped + zstandard.compress(text[:half]) + skipped + zstandard.compress(text[half:])
    long = zstandard.ZstdCompressionParameters.from_level(3, window_log=28)
    yield "long.zst", _streamed(long, text)
    yield "frames.zst", zstandard.compress(text[:half]) + zstandard.compress(text[half:])
    yield "return.tsv", text.replace(b"\n", b"\r\n")
    yield "mark.tsv", b"\xef\xbb\xbf" + text
    yield "open_end.tsv", text[:-1]
    yield "blank_end.tsv", text + b"\n\r\n\n"
    yield "upper.tsv", text.upper()


def test_odd_files_give_the_same_rows(tmp_path):
    plain = made_up_rows.write(tmp_path / "plain.tsv", ROWS[:300])
    want = prepare([plain], tmp_path / "plain")
    for name, data in _odd_files(tmp_path):
        (tmp_path / name).write_bytes(data)
        made = prepare([tmp_path / name], tmp_path / f"{name}.out")
        assert (made["split_hash"], made["cardinalities"]) == (want["split_hash"], want["cardinalities"]), name


def test_rows_may_come_in_several_files(file, tmp_path):
    parts = [made_up_rows.write(tmp_path / f"{i}.tsv", ROWS[i * 1000 : (i + 1) * 1000]) for i in range(3)]
    assert prepare(parts, tmp_path / "parts")["split_hash"] == prepare([file], tmp_path / "one")["split_hash"]


def test_split_by_day(tmp_path):
    days = [made_up_rows.write(tmp_path / f"{i}.tsv", ROWS[i * 501 : (i + 1) * 501]) for i in range(3)]
    made = prepare(days, tmp_path / "out", split="day")
    assert_as_expected(tmp_path / "out", made, made_up_rows.expected(ROWS[:1503], (1002, 1002 + 251), 3))


@pytest.mark.parametrize(
    "split",
    ["0.5,0.5", "0.9,0.2,0.1", "0,0.5,0.5", "0.9,0.1,0", "0.9,0,0.1", "1.2,-0.1,-0.1", "nan,0,1", "weeks", "day"],
)
def test_bad_splits_are_refused(file, tmp_path, split):
    with pytest.raises(UserError, match="--split"):
        prepare([file], tmp_path, split=split)


def test_groups_stay_together(tmp_path):
    (tmp_path / "visits.yaml").write_text(
        'name: visits\nseparator: ","\nheader: true\ngroup: patient\nlabel: {column: y, positive: [p], negative: [n]}\n'
        "dense: {columns: [x]}\nsparse: {columns: [patient_copy]}\n"
    )
    rng = np.random.default_rng(0)
    patients = rng.integers(0, 500, 4000)
    rows = [f"{'pn'[i % 2]},{i},q{p},q{p}" for i, p in enumerate(patients)]
    file = made_up_rows.write(tmp_path / "visits.csv", ["y,x,patient,patient_copy", *rows])
    made = prepare([file], tmp_path / "out", str(tmp_path / "visits.yaml"), threshold=1, shard_rows=1000)
    assert sum(part["rows"] for part in made["splits"].values()) == 4000
    assert made["splits"]["train"]["rows"] == pytest.approx(3200, abs=250)
    found = {split: set() for split in made["splits"]}
    for split in found:
        row = np.rint(np.expm1(made_up_rows.stored(tmp_path / "out", made, split)[1][:, 0].astype(float))).astype(int)
        found[split] = set(patients[row])
    assert not found["train"] & (found["validation"] | found["test"])
    assert not found["validation"] & found["test"]
    # a patient's value is in the vocabulary only if the patient is in training
    assert made["vocabulary"][0]["distinct"] == len(found["train"])
    for split in ("validation", "test"):
        assert made["splits"][split]["unseen_share"] == {"patient_copy": 1.0}
    other = made_up_rows.write(tmp_path / "other.csv", ["y,x,patient,patient_copy", *rows])
    with pytest.raises(UserError, match="names a group column"):
        prepare([file, other], tmp_path / "day", str(tmp_path / "visits.yaml"), split="day")


def test_manifest_says_nothing_of_the_place(file, tmp_path):
    prepare([file], tmp_path / "a")
    prepare([file], tmp_path / "b")
    text = (tmp_path / "a" / "manifest.json").read_text()
    assert text == (tmp_path / "b" / "manifest.json").read_text()
    assert str(tmp_path) not in text
    made = json.loads(text)
    assert made["sources"] == [{"file": "rows.tsv", "bytes": file.stat().st_size}]


def test_fewer_rows_replace_an_older_data_set(file, tmp_path):
    prepare([file], tmp_path / "out", shard_rows=100)
    short = made_up_rows.write(tmp_path / "short.tsv", ROWS[:200])
    made = prepare([short], tmp_path / "out", shard_rows=100)
    names = {shard["file"] for part in made["splits"].values() for shard in part["shards"]}
    assert {path.name for path in (tmp_path / "out").glob("*.safetensors")} == names
