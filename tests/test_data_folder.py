"""The folder of a data set: nothing of others is lost, one preparation at a time, sources that hold still."""

import fcntl
import os

import made_up_rows
import pytest

from bench.data import folder, passes
from bench.data.prepare import prepare
from bench.data.reader import open_dataset
from bench.errors import UserError

ROWS = made_up_rows.lines(3000, seed=2)


@pytest.fixture
def file(tmp_path):
    return made_up_rows.write(tmp_path / "rows.tsv", ROWS)


def contents(out):
    return {path.relative_to(out): path.read_bytes() for path in out.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", ["train-00000.safetensors", "vocabulary/00-C1.npy", "manifest.json", "notes.txt"])
def test_folder_of_something_else_is_refused(file, tmp_path, name):
    out = tmp_path / "out"
    (out / name).parent.mkdir(parents=True)
    (out / name).write_text('{"mine": 1}')
    before = contents(out)
    with pytest.raises(UserError, match="out is not empty and holds no data set"):
        prepare([file], out)
    assert contents(out) == before


def test_other_files_stay_in_the_folder(file, tmp_path):
    out = tmp_path / "out"
    prepare([file], out)
    kept = [out / name for name in ("notes.txt", "train-model.safetensors", "vocabulary/words.txt", "other/x.npy")]
    for path in kept:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    prepare([made_up_rows.write(tmp_path / "short.tsv", ROWS[:200])], out)
    assert [path.read_text() for path in kept] == ["mine"] * 4
    assert open_dataset(out).rows("train") == 160


@pytest.mark.parametrize("fault", ["split", "threshold", "schema", "absent", "junk", "empty", "disk"])
def test_bad_command_leaves_a_finished_data_set(file, tmp_path, monkeypatch, fault):
    out = tmp_path / "out"
    prepare([file], out)
    before, files, options = contents(out), [file], {}
    if fault in ("junk", "empty"):
        files = [file, made_up_rows.write(tmp_path / "bad.tsv", ["junk"] if fault == "junk" else [""])]
    elif fault == "absent":
        files = [tmp_path / "absent.tsv"]
    elif fault == "disk":
        monkeypatch.setattr("shutil.disk_usage", lambda path: _Usage)
    else:
        options = {"split": {"split": "0.5,0.5"}, "threshold": {"threshold": 0}, "schema": {"schema_name": "x"}}[fault]
    with pytest.raises(UserError):
        prepare(files, out, **options)
    assert contents(out) == before


class _Usage:
    free = 1000


def test_one_preparation_at_a_time(file, tmp_path):
    out = tmp_path / "out"
    prepare([file], out)
    before = contents(out)
    with open(out / folder.LOCK, "w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="another preparation is at work in .*out"):
            prepare([file], out, threshold=5)
    assert contents(out) == before
    assert prepare([file], out, threshold=5)["vocabulary"][0]["threshold"] == 5


@pytest.mark.parametrize("change", ["shorter", "longer", "other bytes", "shorter, old time"])
def test_files_that_change_meanwhile(file, tmp_path, monkeypatch, change):
    """Between the counting of keys and the encoding."""
    write, before = passes.Passes.write_vocabulary, file.stat()

    def changes(self, threshold):
        write(self, threshold)
        rows = {"longer": ROWS + ROWS[:5], "other bytes": ROWS[::-1]}.get(change, ROWS[:2000])
        made_up_rows.write(file, rows)
        if change != "other bytes":
            os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
        else:
            os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 10**9))

    with monkeypatch.context() as patch:
        patch.setattr(passes.Passes, "write_vocabulary", changes)
        with pytest.raises(UserError, match=r"rows\.tsv changed during the preparation"):
            prepare([file], tmp_path / "out")
    assert not (tmp_path / "out" / "manifest.json").exists()
    made = prepare([file], tmp_path / "out")  # what is there now, from the beginning
    assert made == prepare([file], tmp_path / "again")


def test_rows_that_vanish_without_a_trace_in_size_and_time(file, tmp_path, monkeypatch):
    """Rows are counted too, so that not all hangs on size and time."""
    write, before = passes.Passes.write_vocabulary, file.stat()

    def changes(self, threshold):
        write(self, threshold)
        text = file.read_bytes()
        file.write_bytes(text[: text.rfind(b"\n", 0, len(text) // 2) + 1].ljust(len(text), b"\n"))
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))

    monkeypatch.setattr(passes.Passes, "write_vocabulary", changes)
    with pytest.raises(UserError, match="changed during the preparation"):
        prepare([file], tmp_path / "out")
