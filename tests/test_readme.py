"""What README.md promises exists: files it links to, targets and modules it names, and the YAML it shows."""

import contextlib
import importlib.util
import io
import os
import re
import subprocess
import sys
from pathlib import Path
from unittest import mock

import jsonschema
import pandas as pd
import pytest
import yaml
from ranks import on_ranks

from bench.data.schema import load
from paper_figures.comparison import NAMES

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()


def test_links_lead_to_files():
    targets = re.findall(r"\]\(([^)#]+)\)", README)
    local = [target for target in targets if "://" not in target]
    assert local and [target for target in local if not (ROOT / target).exists()] == []


def test_named_targets_are_in_the_makefile():
    named = set(re.findall(r"make ([a-z]+)\b", README)) - {"on"}
    there = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    assert {"run", "test", "figures", "doctor"} <= named <= there


def test_named_modules_and_rooms_exist():
    modules = set(re.findall(r"python -m ([\w.]+)", README))
    assert modules and all(importlib.util.find_spec(module) for module in modules)
    rooms = re.findall(r"`([\w/]+/)`", README)
    assert [room for room in rooms if not room.startswith("results/") and not (ROOT / room).is_dir()] == []


def test_the_schema_shown_for_a_table_of_ones_own_is_valid(tmp_path):
    blocks = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", README, flags=re.DOTALL)]
    schema = next(block for block in blocks if "separator" in block)
    (tmp_path / "clicks.yaml").write_text(yaml.safe_dump(schema))
    read = load(str(tmp_path / "clicks.yaml"))
    assert read.name == "clicks"


def test_the_study_shown_for_a_table_of_ones_own_is_valid():
    blocks = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", README, flags=re.DOTALL)]
    study = yaml.safe_load((ROOT / "workflow/config/laptop.yaml").read_text())
    study |= next(block for block in blocks if "data" in block)
    schema = yaml.safe_load((ROOT / "workflow/config/schema.yaml").read_text())
    assert [error.message for error in jsonschema.Draft202012Validator(schema).iter_errors(study)] == []


def test_the_table_is_that_of_the_reference_results():
    records = pd.read_csv(ROOT / "results/reference/laptop/records.csv")
    runs = records[(records["kind"] == "accuracy") & (records["status"] == "ok")]
    found = runs.groupby(["model", "towers"])["test_auc"].agg(["median", "std"])
    expected = {
        (NAMES.get(model, model).split(" (control)")[0], "–" if towers == 1 else str(towers)): f"{m:.4f} ± {s:.4f}"
        for (model, towers), m, s in found.itertuples()
    }
    expected[("logistic regression", "–")] = expected.pop(("logistic", "–"))
    rows = [line.strip("| ").split(" | ") for line in README.splitlines() if " ± " in line]
    assert {(row[0], row[1]): row[2] for row in rows} == expected


def run_here(rank, script):
    """What the script prints on this rank of a job that has begun already."""
    said = io.StringIO()
    with (
        mock.patch("torch.distributed.init_process_group"),
        mock.patch("torch.distributed.destroy_process_group"),
        contextlib.redirect_stdout(said),
    ):
        exec(compile(script, "train.py", "exec"), {"__name__": "__main__"})
    return said.getvalue()


def losses(said):
    return [float(loss) for loss in re.findall(r"^step \d: loss (.*)$", said, flags=re.MULTILINE)]


def test_the_trainer_shown_computes_the_same_before_and_after(tmp_path):
    (shown,) = re.findall(r"```diff\n(.*?)```", README, flags=re.DOTALL)
    before, after = ("\n".join(line[1:] for line in shown.splitlines() if not line.startswith(other)) for other in "+-")
    expected = losses(on_ranks(4, run_here, before)[0])
    assert len(expected) == 3
    script = tmp_path / "train.py"
    script.write_text(after)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4", str(script)]
    done = subprocess.run(torchrun, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert losses(done.stdout) == pytest.approx(expected, abs=1.5e-5)  # printed with five decimals
    still = losses(on_ranks(4, run_here, after.replace('rate": 0.1', 'rate": 0.0'))[0])
    assert abs(still[2] - expected[2]) > 0.01  # tables learn, and it shows
