"""Fields, numbers, keys, counts and ids against Python's own, on examples that hypothesis looks for."""

from collections import Counter

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from bench.data import counting, parse, schema, vocabulary
from bench.data.rows import RowParser
from bench.data.stream import Block, Cursor
from bench.errors import UserError

TABLE = {
    "name": "table",
    "separator": ",",
    "columns": ["y", "ignored", "n", "s", "g"],
    "label": {"column": "y", "positive": ["yes", "y"], "negative": ["no"]},
    "dense": {"columns": ["n"]},
    "sparse": {"columns": ["s"]},
    "group": "g",
    "missing": ["?", "NA"],
}


def parser(tmp_path_factory, **changes):
    path = tmp_path_factory.mktemp("schema") / "table.yaml"
    path.write_text(yaml.safe_dump({**TABLE, **changes}))
    return RowParser(schema.load(str(path)), [path], skip_bad=True)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return parser(tmp_path_factory)


@pytest.fixture(scope="module")
def quoted(tmp_path_factory):
    return parser(tmp_path_factory, quote='"', strip=True)


def parsed(table, *lines):
    text = "".join(line + "\n" for line in lines).encode()
    return table(Block(text, len(lines), Cursor(), Cursor(0, len(text), len(lines), len(lines))))


def key(table, text):
    return int(parsed(table, f"no,,1,{text},").keys[0, 0])


@given(st.floats(allow_nan=False, allow_infinity=False, width=32) | st.integers(-(10**17), 10**17))
def test_numbers(plain, value):
    for text in {repr(value), f"{value:e}", f"{value:.3f}", f"+{abs(value)}"}:
        got = parsed(plain, f"no,,{text},a,").dense[0, 0]
        assert got == pytest.approx(np.float32(float(text)), rel=3e-7, abs=1e-44)


@given(st.text("0123456789.eE+-x ", max_size=8))
def test_what_is_a_number(plain, text):
    rows = parsed(plain, f"no,,{text},a,")
    try:
        value = float(text) if text == text.strip() and "_" not in text else None
    except ValueError:
        value = None
    if text == "":
        assert rows.dense[0, 0] == 0
    elif value is None or abs(value) > 1e38:
        assert rows.bad == {"not a number": 1}
    else:
        assert rows.dense[0, 0] == pytest.approx(np.float32(value), rel=3e-7, abs=1e-44)


@given(
    st.lists(st.text(st.characters(exclude_characters=',\n\r"? \t', exclude_categories=["Cs"]), min_size=1), min_size=2)
)
def test_keys_tell_texts_apart(plain, texts):
    rows = parsed(plain, *(f"no,,1,{text},{text}" for text in texts))
    missing = [text == "NA" for text in texts]
    assert len(set(rows.keys[0].tolist())) == len({"" if gone else t for t, gone in zip(texts, missing, strict=True)})
    np.testing.assert_array_equal(rows.keys[0] == parse.MISSING, missing)
    np.testing.assert_array_equal(rows.group, rows.keys[0])


def test_keys_are_fixed(plain):
    """Stored vocabularies hold these numbers: FNV-1a 64 and murmur3's finish, computed here with Python integers."""
    value = 0xCBF29CE484222325
    for byte in b"Caucasian":
        value = (value ^ byte) * 0x100000001B3 % 2**64
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        value = (value ^ value >> 33) * factor % 2**64
    assert key(plain, "Caucasian") == value ^ value >> 33


@pytest.mark.parametrize("field", ["", "?", "NA"])
def test_missing_markers(plain, field):
    rows = parsed(plain, f"yes,,{field},{field},{field}")
    assert rows.keys[0, 0] == parse.MISSING and rows.dense[0, 0] == 0 and rows.label[0] == 1


def test_quotes_and_blanks(plain, quoted):
    want = key(plain, "a b")
    for field in ('"a b"', " a b ", '  "a b"  ', "a b", "\ta b"):
        assert key(quoted, field) == want, field
    assert key(quoted, '"a,b"') == key(quoted, '" a,b"'.replace(" ", ""))
    assert parsed(quoted, 'no, "x,y""z" ,1, "," ,').bad == {}
    assert parsed(quoted, 'no,,1,"?",').keys[0, 0] == parse.MISSING
    assert parsed(quoted, 'no,,1,"open,').bad == {"bad quote": 1}
    assert parsed(quoted, 'no,,1,"a"b,').bad == {"bad quote": 1}
    assert parsed(quoted, " yes ,, 1 , a , ", "no,,-2.5,b,\r").label.tolist() == [1, 0]
    assert parsed(plain, 'no,,1,"a,b",').bad == {"wrong field count": 1}  # without quote: in the schema


def test_bad_rows_leave_the_good_ones(plain):
    rows = parsed(plain, "no,,1,a,", "maybe,,1,a,", "yes,,2,b,", "yes,2", "no,,x,a,", "y,,3,c,")
    assert rows.label.tolist() == [0, 1, 1]
    assert rows.dense[:, 0].tolist() == [1, 2, 3]
    assert rows.number.tolist() == [0, 2, 5]
    assert rows.bad == {"bad label": 1, "wrong field count": 1, "not a number": 1}


@given(st.lists(st.integers(0, 2**64 - 1)), st.integers(1, 4), st.integers(1, 9), st.randoms(use_true_random=False))
def test_counts_and_ids(tmp_path_factory, keys, threshold, merge_pairs, rng):
    """Tiny tables and merges count as a Counter does; ids of loaded and mapped vocabularies are ranks."""
    folder = tmp_path_factory.mktemp("counts")
    keys = keys + rng.choices(keys, k=3 * len(keys)) if keys else keys
    counter = counting.KeyCounter(folder, "x", 0)
    for begin in range(0, len(keys), 7):
        counter.add(np.array(keys[begin : begin + 7], np.uint64))
    counter.spill()
    want = Counter(k for k in keys if k != int(parse.MISSING))
    runs = [folder / run for run in counter.runs]
    found = [
        (k, c) for ks, cs in counting.merged(runs, merge_pairs) for k, c in zip(ks.tolist(), cs.tolist(), strict=True)
    ]
    assert found == sorted(want.items())
    frequent = sorted(k for k, c in want.items() if c >= threshold)
    assert vocabulary.write(folder / "v.npy", folder / "r.npy", runs, threshold) == (len(want), len(frequent))
    assert np.load(folder / "r.npy").tolist() == sorted(want.keys() - frequent)
    asked = np.array([*keys, 0, 1, 2**63, int(parse.MISSING)], np.uint64)
    for cap in (None, 4):
        size = len(frequent) if cap is None else min(len(frequent), cap - 2)
        ids = {k: 2 + rank % size for rank, k in enumerate(frequent)} | {int(parse.MISSING): 0}
        for load in (True, False):
            got = np.empty((len(asked), 2), np.int32)
            rare = vocabulary.Vocabulary(folder / "v.npy", cap, load).encode(asked, got[:, 1])
            assert got[:, 1].tolist() == [ids.get(k, 1) for k in asked.tolist()]
            assert rare == (got[:, 1] == 1).sum()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"separator": ";;"}, "separator"),
        ({"extra": 1}, "extra"),
        ({"columns": ["y", "n"]}, "column s is not in its list"),
        ({"header": True}, "either header: true or the list of columns"),
        ({"dense": {"columns": ["n", "s"]}}, "uses column s twice"),
        ({"label": {"column": "y", "positive": ["a"], "negative": ["a"]}}, "both positive and negative"),
        ({"label": {"column": "y", "positive": [1], "negative": ["0"]}}, r"label\.positive\.0"),
    ],
)
def test_schemas_that_do_not_fit(tmp_path, changes, says):
    path = tmp_path / "t.yaml"
    path.write_text(yaml.safe_dump({**TABLE, **changes}))
    with pytest.raises(UserError, match=says):
        schema.load(str(path))


def test_unknown_schema():
    with pytest.raises(UserError, match="adult, bank_marketing, criteo, diabetes130, obd"):
        schema.load("nothing")


def test_header_without_the_columns(tmp_path):
    table = {name: value for name, value in TABLE.items() if name != "columns"}
    (tmp_path / "t.yaml").write_text(yaml.safe_dump({**table, "header": True}))
    (tmp_path / "rows.csv").write_text("y,s,g\n")
    with pytest.raises(UserError, match=r"rows\.csv has no column n"):
        RowParser(schema.load(str(tmp_path / "t.yaml")), [tmp_path / "rows.csv"])
