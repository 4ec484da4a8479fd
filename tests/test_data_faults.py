"""Bad input: one sentence that names file, line and fault; what --bad-rows skip and --pad-short-rows make of it."""

import bz2
import gzip
import io
import lzma
import shutil
import subprocess
import sys
import zipfile

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


def _zipped(data):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        file.writestr("rows.tsv", data)
    return out.getvalue()


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
    with pytest.raises(UserError, match=r"needs 0\.067\d GB for 300 rows, 1e-06 GB are free"):
        prepare([file], tmp_path / "out")
    pairs = sum(len({row.split("\t")[column] for row in ROWS}) for column in range(14, 40))
    need = 300 * (4 * 39 + 1) + 24 * pairs + (64 << 20)  # shards; counts and vocabularies at most; some to spare
    for free, enough in ((need - 1, False), (need + 1, True)):
        monkeypatch.setattr(
            shutil, "disk_usage", lambda path, free=free: shutil._ntuple_diskusage(10**12, 10**12 - free, free)
        )
        if enough:
            prepare([file], tmp_path / "out")
        else:
            with pytest.raises(UserError, match="free some"):
                prepare([file], tmp_path / "out")


def test_no_room_for_a_large_file(tmp_path, monkeypatch):
    """Before the first pass, from the file's size: here 10 GB of rows, of which only the beginning is read."""
    file = made_up_rows.write(tmp_path / "rows.tsv", ROWS)
    size = file.stat().st_size
    with open(file, "r+b") as out:
        out.truncate(10**10)  # sparse: takes no room
    rows = 10**10 // (size // 300)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**12, 10**12, 157 * rows))
    monkeypatch.setattr(stream, "BLOCK_BYTES", 5000)
    with pytest.raises(UserError, match=rf"needs 2\d\.\d GB for {rows // 10**6}\d+ rows"):
        prepare([file], tmp_path / "out")


def test_day_of_one_line_and_few_rows(tmp_path):
    many, one = made_up_rows.write(tmp_path / "0.tsv", ROWS), made_up_rows.write(tmp_path / "1.tsv", ROWS[:1])
    with pytest.raises(UserError, match="leaves a split empty"):
        prepare([many, one], tmp_path / "out", split="day")
    two = made_up_rows.write(tmp_path / "2.tsv", ROWS[:2])
    with pytest.raises(UserError, match="leaves a split empty"):
        prepare([two], tmp_path / "out")
    bad = made_up_rows.write(tmp_path / "3.tsv", ROWS[:270] + ["x"] * 30)
    with pytest.raises(UserError, match="the test split of .* holds no good rows"):
        prepare([bad], tmp_path / "out", skip_bad=True)


@pytest.mark.parametrize(
    ("options", "says"),
    [({"threshold": 0}, "--threshold 0"), ({"cap": 2}, "--cap 2"), ({"shard_rows": 0}, "--shard-rows 0")],
)
def test_options_that_are_too_small(tmp_path, options, says):
    with pytest.raises(UserError, match=says):
        prepare([made_up_rows.write(tmp_path / "rows.tsv", ROWS)], tmp_path / "out", **options)


def test_file_given_twice(tmp_path):
    file = made_up_rows.write(tmp_path / "rows.tsv", ROWS)
    (tmp_path / "link.tsv").symlink_to(file)
    for again in (file, tmp_path / "link.tsv"):
        with pytest.raises(UserError, match="is given twice"):
            prepare([file, again], tmp_path / "out")


@pytest.mark.parametrize(("name", "pack"), [("bzip2", bz2.compress), ("xz", lzma.compress), ("zip", _zipped)])
def test_unsupported_compression_is_named(tmp_path, name, pack):
    file = tmp_path / "rows"
    file.write_bytes(pack("\n".join(ROWS).encode()))
    with pytest.raises(UserError, match=f"rows is a {name} file, which is not supported"):
        prepare([file], tmp_path / "out")


def test_what_messages_say(tmp_path):
    def says(row, **options):
        with pytest.raises(UserError) as caught:
            prepare([made_up_rows.write(tmp_path / "rows.tsv", [*ROWS, row, ROWS[0]])], tmp_path / "out", **options)
        return str(caught.value)

    assert f"{tmp_path}/rows.tsv line 301: " in says("x")
    assert "--pad-short-rows" in says("1\t2") and "--pad-short-rows" not in says("", pad=True)
    assert "not an integer of at most 18 digits, '1234567890123456789'" in says(
        with_field(ROWS[0], 4, "1234567890123456789")
    )
    schema = tmp_path / "table.yaml"
    schema.write_text(
        'name: t\nseparator: ","\ncolumns: [y, s, n]\nquote: \'"\'\n'
        'label: {column: y, positive: ["1"], negative: ["0"]}\n'
        "dense: {columns: [n]}\nsparse: {columns: [s]}\n"
    )
    file = made_up_rows.write(tmp_path / "quoted.csv", ['1,"a,b",wrong'])
    with pytest.raises(UserError, match="not a number, 'wrong' in column n"):
        prepare([file], tmp_path / "out", str(schema))


def test_row_of_a_label_alone_is_padded(tmp_path):
    made = prepare([made_up_rows.write(tmp_path / "rows.tsv", ["1", *ROWS[1:]])], tmp_path / "out", pad=True)
    assert made["padded_rows"] == 1
    whole = made_up_rows.write(tmp_path / "whole.tsv", ["1" + "\t" * 39, *ROWS[1:]])
    assert made["split_hash"] == prepare([whole], tmp_path / "whole")["split_hash"]


def test_command_ends_in_one_line(tmp_path):
    file = made_up_rows.write(tmp_path / "rows.tsv", [*ROWS, "x"])
    command = [sys.executable, "-m", "bench.data.prepare", "--input", str(file), "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    last = done.stderr.rstrip().replace("\r", "\n").split("\n")[-1]
    assert last.startswith(f"error: {file} line 301: wrong field count") and "Traceback" not in done.stderr
    assert not (tmp_path / "out" / "manifest.json").exists()
