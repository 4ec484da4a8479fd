"""Bad input: one sentence that names file, line and fault; what --bad-rows skip and --pad-short-rows make of it."""

import gzip
import shutil
import subprocess
import sys

import made_up_rows
import pytest
import zstandard

from bench.data import stream
from bench.data.prepare import prepare
from bench.errors import UserError

ROWS = made_up_rows.lines(300, seed=5)


def with_field(row: str, field: int, value: str) -> str:
    fields = row.split("\t")
    fields[field] = value
    return "\t".join(fields)


FAULTS = {  # name of the fault -> bad versions of a row
    "wrong field count": [lambda row: row + "\t", lambda row: row.rsplit("\t", 1)[0], lambda row: ""],
    "bad label": [lambda row: with_field(row, 0, "2"), lambda row: with_field(row, 0, "")],
    "not an integer": [
        lambda row: with_field(row, 3, "1.5"),
        lambda row: with_field(row, 13, "x"),
        lambda row: with_field(row, 1, "-"),
        lambda row: with_field(row, 1, "1234567890123456789"),
    ],
    "not a hex value": [
        lambda row: with_field(row, 14, "0x12"),
        lambda row: with_field(row, 39, "12345678901234567"),
        lambda row: with_field(row, 20, " a"),
    ],
}
CASES = [(name, number) for name, makers in FAULTS.items() for number in range(len(makers))]


@pytest.mark.parametrize(("name", "number"), CASES)
@pytest.mark.parametrize("line", [1, 100, 250])
def test_bad_row(tmp_path, monkeypatch, name, number, line):
    monkeypatch.setattr(stream, "BLOCK_BYTES", 5000)  # lines are counted across blocks
    rows = list(ROWS)
    rows[line - 1] = FAULTS[name][number](rows[line - 1])
    file = made_up_rows.write(tmp_path / "bad.tsv", rows)
    word = "label" if name == "bad label" else name
    with pytest.raises(UserError, match=rf"bad\.tsv line {line}: {word}"):
        prepare([file], tmp_path / "out")
    made = prepare([file], tmp_path / "out", skip_bad=True)
    assert made["bad_rows"] == {name: 1}
    assert sum(part["rows"] for part in made["splits"].values()) == 299
    good = made_up_rows.expected(ROWS, (240, 270), 3)["splits"]
    lost = "train" if line <= 240 else "validation"
    for split, part in made["splits"].items():
        assert part["rows"] == len(good[split][0]) - (split == lost)


def test_line_and_file_of_a_later_file(tmp_path):
    first = made_up_rows.write(tmp_path / "a.tsv", ROWS)
    second = made_up_rows.write(tmp_path / "b.tsv", [*ROWS[:41], "junk", *ROWS[41:]])
    with pytest.raises(UserError, match=r"b\.tsv line 42: wrong field count, 1 instead of 40"):
        prepare([first, second], tmp_path / "out")


def test_faults_are_counted_by_kind(tmp_path):
    rows = [*ROWS, "a", "b", with_field(ROWS[0], 0, "7")]
    made = prepare([made_up_rows.write(tmp_path / "bad.tsv", rows)], tmp_path / "out", skip_bad=True)
    assert made["bad_rows"] == {"bad label": 1, "wrong field count": 2}


def test_cut_last_line(tmp_path):
    file = tmp_path / "cut.tsv"
    text = "\n".join(ROWS)
    file.write_text(text[: text.rindex("\t")])
    for pad in (False, True):  # a cut line cannot be told from a stripped one: never padded
        with pytest.raises(UserError, match=r"cut\.tsv line 300: truncated last line"):
            prepare([file], tmp_path / "out", pad=pad)
    made = prepare([file], tmp_path / "out", skip_bad=True, pad=True)
    assert made["bad_rows"] == {"truncated last line": 1}


def test_stripped_rows_are_padded(tmp_path):
    rows = [with_field(with_field(row, 39, ""), 38, "") if i % 3 else row for i, row in enumerate(ROWS)]
    whole = prepare([made_up_rows.write(tmp_path / "whole.tsv", rows)], tmp_path / "whole")
    stripped = made_up_rows.write(tmp_path / "stripped.tsv", [row.rstrip("\t") for row in rows])
    with pytest.raises(UserError, match="pad-short-rows"):
        prepare([stripped], tmp_path / "out")
    made = prepare([stripped], tmp_path / "out", pad=True)
    assert made["split_hash"] == whole["split_hash"]
    assert made["padded_rows"] == sum(row.endswith("\t") for row in rows)


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.ZstdCompressor(write_checksum=True).compress])
def test_corrupt_and_truncated_streams(tmp_path, pack):
    packed = pack(("\n".join(made_up_rows.lines(2000)) + "\n").encode())
    file = tmp_path / "rows.packed"
    broken = bytearray(packed)
    broken[len(packed) // 2] ^= 0xFF
    for data in (packed[: len(packed) // 2], packed[:-1], bytes(broken)):
        file.write_bytes(data)
        for skip in (False, True):
            with pytest.raises(UserError, match=r"rows\.packed is corrupt after line \d+") as caught:
                prepare([file], tmp_path / "out", skip_bad=skip)
            assert "\n" not in str(caught.value)
    file.write_bytes(packed[: len(packed) // 2])
    with pytest.raises(UserError) as caught:
        prepare([file], tmp_path / "out")
    line = int(str(caught.value).split("after line ")[1].split()[0])
    assert 400 < line < 1100  # zstandard decodes blocks of 128 kB
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_not_rows_at_all(tmp_path, monkeypatch):
    empty = tmp_path / "empty.tsv"
    for data in (b"", b"\n\n", b"\xef\xbb\xbf", gzip.compress(b"")):
        empty.write_bytes(data)
        with pytest.raises(UserError, match=r"empty\.tsv holds no rows"):
            prepare([empty], tmp_path / "out")
    with pytest.raises(UserError, match=r"no file .*absent\.tsv"):
        prepare([tmp_path / "absent.tsv"], tmp_path / "out")
    monkeypatch.setattr(stream, "LONGEST_LINE", 1000)
    monkeypatch.setattr(stream, "BLOCK_BYTES", 100)
    empty.write_bytes(b"x" * 5000)
    with pytest.raises(UserError, match="line 1 is longer"):
        prepare([empty], tmp_path / "out")


def test_header_is_named(tmp_path):
    file = made_up_rows.write(tmp_path / "head.tsv", ["label\tI1\tI2", *ROWS])
    with pytest.raises(UserError, match=r"head\.tsv line 1 is a header"):
        prepare([file], tmp_path / "out")


@pytest.mark.parametrize("label", ["0", "1"])
def test_one_class_in_training(tmp_path, label):
    rows = [with_field(row, 0, label) for row in ROWS[:240]] + ROWS[240:]
    with pytest.raises(UserError, match="nothing to learn"):
        prepare([made_up_rows.write(tmp_path / "rows.tsv", rows)], tmp_path / "out")


def test_no_room(tmp_path, monkeypatch):
    file = made_up_rows.write(tmp_path / "rows.tsv", ROWS)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9 - 1000, 1000))
    with pytest.raises(UserError, match="GB for 300 rows"):
        prepare([file], tmp_path / "out")


def test_command_ends_in_one_line(tmp_path):
    file = made_up_rows.write(tmp_path / "rows.tsv", [*ROWS, "x"])
    command = [sys.executable, "-m", "bench.data.prepare", "--input", str(file), "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    last = done.stderr.rstrip().replace("\r", "\n").split("\n")[-1]
    assert last.startswith("error: rows.tsv line 301: wrong field count") and "Traceback" not in done.stderr
    assert not (tmp_path / "out" / "manifest.json").exists()
