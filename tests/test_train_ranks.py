"""bench.train on ranks gives what it gives on one device: TOLERANCE is what the order of fp32 sums is worth here."""

import os
import signal
import subprocess
import sys
import time

import pytest
from test_train import arguments, scores
from test_train import data as data  # the fixture

from bench import record

TOLERANCE = 2e-4  # of AUC and logloss, with 648 test rows: a swapped pair of rows moves AUC by 1e-5


def command(ranks, data, out, *more):
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), "-m"]
    return [*start, "bench.train", *arguments(data, out, *more)]


def on(ranks, data, out, *more):
    done = subprocess.run(command(ranks, data, out, *more), cwd=record.ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return record.read(out)


def assert_near(found, expected):
    for split in ("validation", "test"):
        ours, theirs = found["accuracy"][split], expected["accuracy"][split]
        assert (ours["evaluated"], ours["positives"]) == (theirs["evaluated"], theirs["positives"])
        for metric in ("auc", "logloss"):
            assert ours[metric] == pytest.approx(theirs[metric], abs=TOLERANCE)
    assert found["accuracy"]["train_samples"] == expected["accuracy"]["train_samples"]


@pytest.mark.parametrize(
    ("ranks", "model"),
    [
        (3, ["--model", "dlrm"]),
        (4, ["--model", "dmt_dcn", "--towers", "5", "--ranks-per-host", "2"]),
        (2, ["--model", "sptt_dlrm", "--towers", "2", "--ranks-per-host", "1"]),
        (2, ["--model", "logistic"]),
    ],
)
def test_the_same_numbers_on_ranks(data, tmp_path, ranks, model):
    alone = [word for word in model if word != "--ranks-per-host"]
    if len(alone) < len(model):
        alone.pop()
    found = on(ranks, data, tmp_path / "ranks.json", *model)
    done = subprocess.run(
        [sys.executable, "-m", "bench.train", *arguments(data, tmp_path / "one.json", *alone)], cwd=record.ROOT
    )
    assert done.returncode == 0
    assert_near(found, record.read(tmp_path / "one.json"))
    assert found["topology"]["ranks"] == ranks


def test_a_run_killed_on_ranks_goes_on_at_the_same_and_at_another_shape(data, tmp_path):
    more = ["--model", "dmt_dcn", "--towers", "4", "--checkpoint", str(tmp_path / "run"), "--checkpoint-every", "3"]
    whole = on(2, data, tmp_path / "whole.json", *more[:4])
    for ranks in (2, 1):
        out = tmp_path / f"{ranks}.json"
        process = subprocess.Popen(
            command(2, data, out, *more), cwd=record.ROOT, start_new_session=True, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + 120
        while not list((tmp_path / "run").glob("step-*")) and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert not out.exists(), "to be killed between checkpoint and record"
        resumed = on(ranks, data, out, *more)
        assert_near(resumed, whole)
        if ranks == 2:
            assert scores(resumed) == scores(whole)
