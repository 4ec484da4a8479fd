"""bench.train: reproducible, resumable, honest about runs that fail."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch

from bench import checkpoint, record, step, train
from bench.errors import UserError

SIZES = ["--embedding-dim", "4", "--bottom", "8", "--over", "8", "--small-over", "8", "--batch-size", "256"]
SIZES += ["--learning-rate", "0.01", "--threads", "1"]


def run_step(*command, **kwargs):
    return subprocess.run([sys.executable, "-m", *command], cwd=record.ROOT, capture_output=True, text=True, **kwargs)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A prepared data set of 8,100 generated rows: the last training batch is short, no two splits have one size."""
    folder = tmp_path_factory.mktemp("data")
    raw = folder / "rows.tsv"
    for command in (
        ["bench.data.generate", "--rows", "8100", "--seed", "3", "--out", str(raw)],
        [
            "bench.data.prepare",
            "--input",
            str(raw),
            "--out",
            str(folder / "data"),
            "--shard-rows",
            "1500",
            "--split",
            "0.8,0.12,0.08",
        ],
    ):
        done = run_step(*command)
        assert done.returncode == 0, done.stderr
    return folder / "data"


def arguments(data, out, *more):
    return ["--data", str(data), "--out", str(out), "--study", "test", *SIZES, *more]


def train_here(data, out, *more):
    args = train.parse(arguments(data, out, *more))
    result = train.run(args)
    record.write(out, result)
    return result


def scores(result):
    """What must be equal between equal runs: all but times."""
    return {k: v for k, v in result["accuracy"].items() if k != "samples_per_s"}


def test_same_seed_same_numbers_other_seed_other_numbers(data, tmp_path):
    first, again, other = (
        train_here(data, tmp_path / f"{i}.json", "--model", "dlrm", "--seed", seed) for i, seed in enumerate("775")
    )
    assert scores(first) == scores(again)
    assert first["accuracy"]["test"]["logloss"] != other["accuracy"]["test"]["logloss"]
    rows = {split: first["data"][f"{split}_rows"] for split in ("train", "validation", "test")}
    assert first["accuracy"]["train_samples"] == rows["train"]
    assert first["accuracy"]["train_steps"] == math.ceil(rows["train"] / 256)
    for split in ("validation", "test"):
        assert first["accuracy"][split]["evaluated"] == rows[split]


def watched(monkeypatch, data, out, *more):
    """(result, rates, first dense batch, losses, batch sizes) of a run."""
    calls = []
    call = train.TrainStep.__call__

    def watch(self, dense, sparse, label_B, rate):
        loss = call(self, dense, sparse, label_B, rate)
        calls.append((rate, dense.clone(), loss, len(label_B)))
        return loss

    monkeypatch.setattr(train.TrainStep, "__call__", watch)
    result = train_here(data, out, *more)
    monkeypatch.undo()
    rates, dense, losses, sizes = zip(*calls, strict=True)
    return result, rates, dense[0], losses, sizes


def test_rates_follow_the_schedule_and_losses_are_weighed_by_rows(data, tmp_path, monkeypatch):
    result, rates, _, losses, sizes = watched(monkeypatch, data, tmp_path / "a.json", "--model", "dlrm")
    steps = len(rates)
    assert steps == 26 and sizes[-1] == 80 and set(sizes[:-1]) == {256}
    assert list(rates) == [train.learning_rate(step, steps, 0.01, 0.1) for step in range(steps)]
    expected = sum(loss * size for loss, size in zip(losses, sizes, strict=True)) / sum(sizes)
    assert result["accuracy"]["progressive_logloss"] == pytest.approx(expected, rel=1e-12)


def test_the_seed_orders_the_rows(data, tmp_path, monkeypatch):
    first, again, other = (
        watched(monkeypatch, data, tmp_path / "a.json", "--model", "prior", "--seed", seed)[2] for seed in "556"
    )
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_a_checkpoint_is_tied_to_all_that_the_numbers_depend_on(data, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(checkpoint, "load", lambda path, identity, state: asked.append(identity))
    train_here(data, tmp_path / "a.json", "--model", "dlrm", "--checkpoint", str(tmp_path / "run"))
    manifest = json.loads((data / "manifest.json").read_text())
    expected = {
        "split_hash": manifest["split_hash"],
        "cardinalities": manifest["cardinalities"],
        "source_hash": record.source_hash(),
        "versions": record.versions(),
        "seed": 0,
        "batch_size": 256,
        "learning_rate": 0.01,
        "model": "dlrm",
        "embedding_dim": 4,
        "threads": 1,
    }
    assert asked[0] | expected == asked[0]


def test_a_model_learns_and_the_prior_is_the_entropy(data, tmp_path):
    dlrm, prior = (train_here(data, tmp_path / f"{m}.json", "--model", m) for m in ("dmt_dlrm", "prior"))
    assert prior["accuracy"]["test"]["auc"] == 0.5
    assert prior["accuracy"]["test"]["ne"] == pytest.approx(1, abs=0.01)
    assert dlrm["accuracy"]["test"]["auc"] > 0.55
    assert dlrm["accuracy"]["test"]["ne"] < 1
    assert dlrm["compression_ratio"] == 2.0 and prior["compression_ratio"] == 1.0


def test_a_killed_run_goes_on_and_ends_with_the_same_numbers(data, tmp_path):
    whole = train_here(data, tmp_path / "whole.json", "--model", "dmt_dcn", "--towers", "4")
    store, out = tmp_path / "run", tmp_path / "killed.json"
    more = ["--model", "dmt_dcn", "--towers", "4", "--checkpoint", str(store), "--checkpoint-every", "1"]
    command = [sys.executable, "-m", "bench.train", *arguments(data, out, *more)]
    process = subprocess.Popen(command, cwd=record.ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not list(store.glob("step-*")) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert list(store.glob("step-*")) and not out.exists(), "to be killed between checkpoint and record"
    resumed = subprocess.run(command, cwd=record.ROOT, capture_output=True, text=True)
    assert resumed.returncode == 0, resumed.stderr
    assert "resuming at step" in resumed.stderr
    assert scores(record.read(out)) == scores(whole)
    assert not store.exists()


def test_a_checkpoint_of_another_run_is_not_used(data, tmp_path, capsys, monkeypatch):
    store = tmp_path / "run"
    more = ["--model", "dlrm", "--checkpoint", str(store), "--checkpoint-every", "3"]
    train_here(data, tmp_path / "a.json", *more, "--seed", "1")  # train.run leaves the file; main removes it
    assert store.exists()
    fresh = train_here(data, tmp_path / "b.json", "--model", "dlrm", "--seed", "2")
    capsys.readouterr()
    found = train_here(data, tmp_path / "c.json", *more, "--seed", "2")
    assert "of another run (seed differ" in capsys.readouterr().err
    assert scores(found) == scores(fresh)


def test_two_processes_never_train_one_run(data, tmp_path):
    store = tmp_path / "run"
    with checkpoint.alone(store):
        command = arguments(data, tmp_path / "a.json", "--model", "prior", "--checkpoint", str(store))
        second = run_step("bench.train", *command)
    assert second.returncode == 2 and "another process trains" in second.stderr
    assert run_step("bench.train", *command).returncode == 0
    assert {path.name for path in tmp_path.iterdir()} == {"a.json", "run.lock"}


def test_a_broken_checkpoint_starts_anew(data, tmp_path, capsys):
    store = tmp_path / "run"
    more = ["--model", "dlrm", "--checkpoint", str(store), "--checkpoint-every", "3"]
    whole = train_here(data, tmp_path / "a.json", *more)
    kept = tmp_path / "kept"
    shutil.copytree(store, kept)
    (last,) = kept.iterdir()
    for name in [entry.name for entry in last.iterdir()]:
        for share in (0, 0.5):
            shutil.rmtree(store)
            shutil.copytree(kept, store)
            damaged = store / last.name / name
            damaged.write_bytes(damaged.read_bytes()[: int(share * damaged.stat().st_size)])
            capsys.readouterr()
            assert scores(train_here(data, tmp_path / "b.json", *more)) == scores(whole)
            assert "cannot be read" in capsys.readouterr().err, (name, share)


def test_a_loss_that_is_not_finite_ends_as_diverged_without_an_auc(data, tmp_path):
    result = train_here(data, tmp_path / "a.json", "--model", "dcn", "--learning-rate", "1e30")
    assert result["status"] == "diverged"
    assert result["accuracy"] is None
    assert "not finite" in result["reason"] or "at step" in result["reason"]


def test_diverged_names_step_and_rows(data, tmp_path, monkeypatch):
    call = train.TrainStep.__call__

    def poisoned(self, dense, sparse, label_B, rate):
        self.calls = getattr(self, "calls", 0) + 1
        return call(self, dense * math.nan if self.calls == 3 else dense, sparse, label_B, rate)

    monkeypatch.setattr(train.TrainStep, "__call__", poisoned)
    result = train_here(data, tmp_path / "a.json", "--model", "dlrm")
    assert result["status"] == "diverged"
    assert "at step 2 of" in result["reason"] and "training rows 512 to 767" in result["reason"]


@pytest.mark.parametrize("fault", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")])
def test_out_of_memory_is_a_result(data, tmp_path, monkeypatch, fault):
    def fail(*_):
        raise fault

    monkeypatch.setattr(train.TrainStep, "__call__", fail)
    result = train_here(data, tmp_path / "a.json", "--model", "dlrm")
    assert result["status"] == "oom" and result["accuracy"] is None and result["reason"]


@pytest.mark.parametrize("owner, function", [(train, "tables"), (step, "use_adam_tables"), (checkpoint, "load")])
@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")]
)
def test_tables_too_large_for_the_memory_are_a_result(data, tmp_path, monkeypatch, owner, function, error):
    def fail(*_):
        raise error

    monkeypatch.setattr(owner, function, fail)
    result = train_here(data, tmp_path / "a.json", "--model", "dlrm", "--checkpoint", str(tmp_path / "run"))
    assert result["status"] == "oom" and result["accuracy"] is None


@pytest.mark.parametrize("out", ["a", "folder.json", "file.txt/a.json"])
def test_a_place_that_cannot_be_written_is_refused_before_training(data, tmp_path, out, monkeypatch):
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "file.txt").write_text("")
    monkeypatch.setattr(train, "attempt", lambda *_: pytest.fail("trained"))
    with pytest.raises((UserError, OSError)):
        train_here(data, tmp_path / out, "--model", "prior")


def test_any_other_fault_is_not_swallowed(data, tmp_path, monkeypatch):
    def fail(*_):
        raise RuntimeError("shapes do not match")

    monkeypatch.setattr(train.TrainStep, "__call__", fail)
    with pytest.raises(RuntimeError, match="shapes"):
        train_here(data, tmp_path / "a.json", "--model", "dlrm")


@pytest.mark.parametrize(
    "more, said",
    [
        (["--model", "nope"], "nope"),
        (["--model", "dmt_dlrm", "--towers", "40"], "40"),
        (["--model", "dlrm", "--batch-size", "1000000"], "1000000|1,000,000"),
        (["--model", "dlrm", "--towers", "2"], "dlrm has no towers"),
        (["--model", "dlrm", "--checkpoint", "."], "cannot be written"),
    ],
)
def test_bad_input_is_one_sentence(data, tmp_path, more, said):
    with pytest.raises(UserError, match=said):
        train_here(data, tmp_path / "a.json", *more)
    assert not (tmp_path / "a.json").exists()


def test_command_line_without_data_ends_in_one_line(tmp_path):
    done = run_step("bench.train", *arguments(tmp_path / "nothing", tmp_path / "a.json", "--model", "dlrm"))
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.strip().splitlines()[-1].startswith("error: ")


def test_ids_that_do_not_fit_are_refused(data, tmp_path):
    manifest = json.loads((data / "manifest.json").read_text())
    copy = tmp_path / "data"
    copy.mkdir()
    for file in data.iterdir():
        if file.is_file():
            os.link(file, copy / file.name)
    (copy / "manifest.json").unlink()
    manifest["cardinalities"][4] = 2
    (copy / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError, match="C5"):
        train_here(copy, tmp_path / "a.json", "--model", "dlrm")


@pytest.mark.parametrize("steps, warmup", [(1, 0.1), (10, 0.0), (100, 0.1), (100, 1.0), (7, 0.5)])
def test_learning_rate_rises_then_falls_and_is_never_zero(steps, warmup):
    rates = [train.learning_rate(step, steps, 2.0, warmup) for step in range(steps)]
    peak = rates.index(max(rates))
    assert max(rates) == pytest.approx(2.0)
    assert min(rates) > 0
    assert all(a <= b for a, b in zip(rates[:peak], rates[1 : peak + 1], strict=True))
    assert all(a >= b for a, b in zip(rates[peak:-1], rates[peak + 1 :], strict=True))
