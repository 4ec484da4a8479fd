"""A killed preparation goes on where it was, and ends with the same bytes."""

import hashlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import made_up_rows
import pytest

from bench.data import checks, counting, folder, passes, shards, state, stream, vocabulary
from bench.data.prepare import prepare

ROWS = made_up_rows.lines(4000, seed=9)


class Killed(BaseException):
    """Stands for the end of the process: no handler of the code under test may catch it."""


def dies_at(original, calls):
    """The function, which ends the process at the call after so many."""
    left = [calls]

    def dies(*args, **how):
        left[0] -= 1
        if left[0] < 0:
            raise Killed
        return original(*args, **how)

    return dies


def hashes(folder):
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setattr(stream, "BLOCK_BYTES", 20_000)
    monkeypatch.setattr(passes, "SAVE_ROWS", 600)
    rows = [*ROWS[:3900], "bad", *ROWS[3900:]]  # its count must not be lost or doubled
    return made_up_rows.write(tmp_path / "rows.tsv", rows)


def run(file, out):
    return prepare([file], out, skip_bad=True, shard_rows=300)


@pytest.mark.parametrize(
    ("owner", "name", "calls"),
    [
        (counting.KeyCounter, "spill", (1, 30, 100)),
        (vocabulary, "write", (1, 20)),
        (shards, "write", (1, 4, 13)),
        (state.State, "save", (1, 3, 8, 12, 14)),
    ],
)
def test_killed_at(file, tmp_path, monkeypatch, owner, name, calls):
    run(file, tmp_path / "whole")
    want = hashes(tmp_path / "whole")
    for call in calls:
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, dies_at(getattr(owner, name), call))
            with pytest.raises(Killed):
                run(file, tmp_path / f"{call}")
        assert not (tmp_path / f"{call}" / "manifest.json").exists()
        run(file, tmp_path / f"{call}")
        assert hashes(tmp_path / f"{call}") == want


def test_work_is_not_done_twice(file, tmp_path, monkeypatch):
    def counted_blocks(limit=None):
        """Lines that the parser meets until so many shards are written."""
        seen, original = [0], passes.RowParser.__call__

        def parse(self, block):
            seen[0] += block.lines
            return original(self, block)

        monkeypatch.setattr(passes.RowParser, "__call__", parse)
        if limit is not None:
            write = shards.write

            def dies(*args):
                if limit[0] == 0:
                    raise Killed
                limit[0] -= 1
                return write(*args)

            with monkeypatch.context() as patch, pytest.raises(Killed):
                patch.setattr(shards, "write", dies)
                run(file, tmp_path / "out")
        else:
            run(file, tmp_path / "out")
        monkeypatch.setattr(passes.RowParser, "__call__", original)
        return seen[0]

    monkeypatch.setattr(checks, "first_rows", lambda parser: (4001, 200))  # it parses the first block each time
    counted_blocks([8])
    assert counted_blocks() == 4001 - 8 * 300


def test_other_options_start_afresh(file, tmp_path, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        patch.setattr(shards, "write", lambda *args: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            run(file, tmp_path / "out")
    capsys.readouterr()
    made = prepare([file], tmp_path / "out", skip_bad=True, threshold=5)
    assert "starting afresh" in capsys.readouterr().err
    assert made["vocabulary"][0]["threshold"] == 5
    assert (
        hashes(tmp_path / "out")
        == (prepare([file], tmp_path / "b", skip_bad=True, threshold=5), hashes(tmp_path / "b"))[1]
    )


def test_same_size_other_bytes_start_afresh(file, tmp_path, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        patch.setattr(state.State, "save", dies_at(state.State.save, 9))
        with pytest.raises(Killed):
            run(file, tmp_path / "out")
    before = file.stat()
    file.write_bytes(file.read_bytes().replace(b"\n0\t", b"\n1\t", 50))
    assert file.stat().st_size == before.st_size
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 10**9))
    made = run(file, tmp_path / "out")
    assert "starting afresh" in capsys.readouterr().err
    assert made == run(file, tmp_path / "whole")


@pytest.mark.parametrize(
    ("calls", "lost"),
    [(5, "*.npy"), (12, "*.safetensors"), (12, "vocabulary/*-C7.npy"), (12, ".unfinished/rare-03.npy")],
)
def test_lost_files_start_afresh(file, tmp_path, monkeypatch, capsys, calls, lost):
    run(file, tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(state.State, "save", dies_at(state.State.save, calls))
        with pytest.raises(Killed):
            run(file, tmp_path / "out")
    where = tmp_path / "out"
    sorted(where.glob(lost) if lost != "*.npy" else (where / ".unfinished").glob(lost))[0].unlink()
    capsys.readouterr()
    run(file, where)
    assert "is gone: starting afresh" in capsys.readouterr().err
    assert hashes(where) == hashes(tmp_path / "whole")


def test_killed_while_an_old_data_set_is_cleared(file, tmp_path, monkeypatch):
    """The state goes first, so that it never names shards that are gone."""
    with monkeypatch.context() as patch:
        patch.setattr(state.State, "save", dies_at(state.State.save, 12))
        with pytest.raises(Killed):
            run(file, tmp_path / "out")
    made_up_rows.write(file, ROWS[:2000])
    removed = []
    with monkeypatch.context() as patch:
        patch.setattr(pathlib.Path, "unlink", lambda path, missing_ok=False: removed.append(path.name))
        patch.setattr(shutil, "rmtree", dies_at(shutil.rmtree, 0))
        with pytest.raises(Killed):
            folder.clear(tmp_path / "out")
    assert removed[:2] == ["state.json", "manifest.json"] and "train-00000.safetensors" in removed


def test_counted_files_are_not_counted_again(tmp_path, monkeypatch):
    files = [made_up_rows.write(tmp_path / f"{i}.tsv", ROWS[1000 * i : 1000 * i + 1000]) for i in range(4)]
    want = prepare(files, tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(state.State, "save", dies_at(state.State.save, 2))
        with pytest.raises(Killed):
            prepare(files, tmp_path / "out")
    starts, blocks = [], stream.blocks
    monkeypatch.setattr(checks, "first_rows", lambda parser: (4000, 200))
    monkeypatch.setattr(stream, "blocks", lambda *args, **how: (starts.append(args[2].file), blocks(*args, **how))[1])
    assert prepare(files, tmp_path / "out") == want
    assert starts[0] == 2  # two files were counted


def test_changed_rows_start_afresh(file, tmp_path, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        patch.setattr(shards, "write", lambda *args: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            run(file, tmp_path / "out")
    made_up_rows.write(file, ROWS[:1000])
    assert sum(part["rows"] for part in run(file, tmp_path / "out")["splits"].values()) == 1000
    assert "starting afresh" in capsys.readouterr().err


def test_sigkill(tmp_path):
    file = made_up_rows.write(tmp_path / "rows.tsv", ROWS * 10)
    command = [sys.executable, "-m", "bench.data.prepare", "--input", str(file), "--shard-rows", "200", "--out"]
    subprocess.run([*command, str(tmp_path / "whole")], check=True, capture_output=True)
    process = subprocess.Popen([*command, str(tmp_path / "out")], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not list((tmp_path / "out").glob("train-0000[3-9]*")) and time.monotonic() < deadline:
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not os.path.exists(tmp_path / "out" / "manifest.json")
    again = subprocess.run([*command, str(tmp_path / "out")], check=True, capture_output=True, text=True)
    assert "going on with the unfinished preparation" in again.stderr
    assert hashes(tmp_path / "out") == hashes(tmp_path / "whole")
