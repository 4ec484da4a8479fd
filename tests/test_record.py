"""Records are validated when written and when read, and never half written."""

import copy
import json
import subprocess
import sys

import pytest

from bench import record
from bench.errors import UserError

SCORES = {"auc": 0.8, "auc_reason": None, "logloss": 0.4, "ne": 0.9, "evaluated": 10, "positives": 2}
GOOD = {
    "format": 1,
    "kind": "accuracy",
    "provenance": "measured",
    "study": "smoke",
    "run": "dlrm-T1-s0",
    "model": "dlrm",
    "towers": 1,
    "tower_dim": None,
    "compression_ratio": 1.0,
    "partition": {"name": "none", "groups": None},
    "seed": 0,
    "topology": {"ranks": 1, "ranks_per_host": 1, "hosts": 1, "link": "none"},
    "data": {
        "name": "d",
        "split_hash": "0" * 64,
        "train_rows": 80,
        "validation_rows": 10,
        "test_rows": 10,
        "auc_ceiling": None,
    },
    "command": "python -m bench.train",
    "options": {},
    "versions": record.versions(),
    "hardware": record.hardware(),
    "source_hash": record.source_hash(),
    "started": "2024-05-01T00:00:00+00:00",
    "wall_s": 1.0,
    "status": "ok",
    "reason": None,
    "accuracy": {
        "validation": dict(SCORES),
        "test": dict(SCORES),
        "train_samples": 80,
        "train_steps": 8,
        "samples_per_s": 100.0,
        "progressive_logloss": 0.5,
    },
    "complexity": {"mflop_per_sample": 1.0, "parameters": 10, "dense_parameters": 5, "sizes": "study"},
}


def test_written_and_read_back(tmp_path):
    record.write(tmp_path / "runs" / "a.json", GOOD)
    assert record.read(tmp_path / "runs" / "a.json") == GOOD
    assert [p.name for p in (tmp_path / "runs").iterdir()] == ["a.json"]


@pytest.mark.parametrize(
    "path, value, field",
    [
        (("status",), "fine", "status"),
        (("status",), "diverged", "reason|accuracy"),
        (("accuracy",), None, "accuracy"),
        (("accuracy", "test", "auc"), 1.2, "accuracy.test.auc"),
        (("accuracy", "test", "evaluated"), 0, "accuracy.test.evaluated"),
        (("seed",), None, "seed"),
        (("data", "split_hash"), "abc", "data.split_hash"),
        (("extra",), 1, "extra"),
        (("towers",), 0, "towers"),
        (("started",), "yesterday", "started"),
        (("accuracy", "test", "auc"), None, "auc_reason"),
        (("accuracy", "test", "auc_reason"), "because", "auc_reason"),
        (("accuracy", "test", "positives"), 11, "test.positives"),
        (("accuracy", "test", "evaluated"), 9, "test_rows"),
        (("topology", "hosts"), 2, "ranks_per_host"),
        (("partition", "groups"), [[0], [1]], "2 groups"),
    ],
)
def test_a_field_that_does_not_fit_is_named_and_nothing_is_written(tmp_path, path, value, field):
    bad = copy.deepcopy(GOOD)
    inner = bad
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    with pytest.raises(UserError, match=field):
        record.write(tmp_path / "a.json", bad)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "a.json").write_text(json.dumps(bad))
    with pytest.raises(UserError, match=rf"a\.json.*({field})"):
        record.read(tmp_path / "a.json")


def test_a_nan_never_gets_into_a_record(tmp_path):
    bad = copy.deepcopy(GOOD)
    bad["accuracy"]["progressive_logloss"] = float("nan")
    with pytest.raises((UserError, ValueError)):
        record.write(tmp_path / "a.json", bad)
    assert list(tmp_path.iterdir()) == []


def test_a_broken_file_and_a_missing_one_end_in_one_sentence(tmp_path):
    (tmp_path / "a.json").write_text('{"format": 1,')
    with pytest.raises(UserError, match="not JSON.*delete it"):
        record.read(tmp_path / "a.json")
    with pytest.raises(UserError, match="No such file"):
        record.read(tmp_path / "b.json")


def test_reading_records_needs_no_torch():
    code = "import sys, bench.record; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=record.ROOT).returncode == 0
