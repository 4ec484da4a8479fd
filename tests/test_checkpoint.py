"""bench.checkpoint where folders of other runs, or of this one, are already there."""

import pytest
import torch

from bench import checkpoint
from bench.errors import UserError


def stored(folder, identity):
    """(step, tensor) of the checkpoint that this run would go on from, or None."""
    state = {"weight": torch.zeros(3)}
    progress = checkpoint.load(folder, {"run": identity}, state)
    return progress and (progress["step"], state["weight"].tolist())


def save(folder, identity, step):
    checkpoint.save(folder, {"run": identity}, {"step": step}, {"weight": torch.full((3,), float(step))})


def steps(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_newer_one_takes_the_place_of_the_last(tmp_path):
    assert stored(tmp_path / "run", "a") is None
    for step in (3, 6, 12):
        save(tmp_path / "run", "a", step)
        assert steps(tmp_path / "run") == [f"step-{step}"]
        assert stored(tmp_path / "run", "a") == (step, [step] * 3)


def test_it_takes_the_place_of_another_runs_of_the_same_step(tmp_path, capsys):
    save(tmp_path, "a", 3)
    assert stored(tmp_path, "b") is None
    assert "is of another run (run differ): starting anew" in capsys.readouterr().err
    save(tmp_path, "b", 3)
    assert steps(tmp_path) == ["step-3"] and stored(tmp_path, "b") == (3, [3] * 3)


def test_it_takes_the_place_of_a_damaged_one_of_the_same_step(tmp_path):
    save(tmp_path, "a", 3)
    for file in (tmp_path / "step-3").glob("*.distcp"):
        file.write_bytes(b"")
    with pytest.raises(checkpoint.Damaged):
        stored(tmp_path, "a")
    save(tmp_path, "a", 3)
    assert steps(tmp_path) == ["step-3"] and stored(tmp_path, "a") == (3, [3] * 3)


def test_a_newer_one_of_another_run_does_not_hide_ours(tmp_path):
    """As a kill leaves them between the two last lines of save."""
    save(tmp_path / "a", "a", 24)
    save(tmp_path / "b", "b", 3)
    (tmp_path / "a/step-24").rename(tmp_path / "b/step-24")
    assert stored(tmp_path / "b", "b") == (3, [3] * 3)


def test_a_place_without_room_is_said_in_one_sentence(tmp_path, monkeypatch):
    class Full(checkpoint.dcp.FileSystemWriter):
        def write_data(self, *_):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint.dcp, "FileSystemWriter", Full)
    with pytest.raises(UserError, match=r"^cannot write checkpoint \S+: free space there or name another place$"):
        save(tmp_path / "run", "a", 3)
