"""make builds .venv when it is missing or stale, and a build that was cut short is not taken for a finished one.

A script plays Python: it makes the folder of a venv, notes every pip command, and fails where it is told to.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FAKE_PYTHON = """#!/bin/bash
case "$1 $2" in
  -c*) exit ${WRONG_PYTHON:-0} ;;
  --version*) echo Python 3.11.0 ;;
  "-m venv") mkdir -p .venv/bin; echo "prompt = 'dmt-suite'" > .venv/pyvenv.cfg; cp "$0" .venv/bin/python ;;
  "-m pip") echo "$3 $5 $6 $7" >> pip.log; exit ${BROKEN_PIP:-0} ;;
esac
"""
CPU = "install -r requirements/cpu.txt -r"
CUDA = "install -r requirements/cuda.txt -r"


@pytest.fixture
def checkout(tmp_path):
    """The Makefile and the requirements in a folder of their own, and three Pythons that only pretend."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    shutil.copytree(ROOT / "requirements", tmp_path / "requirements")
    for name in ("python3.11", "python3", "python3.12"):
        script = tmp_path / "fakes" / name
        script.parent.mkdir(exist_ok=True)
        script.write_text(FAKE_PYTHON)
        script.chmod(0o755)
    return tmp_path


def make(checkout: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    of_make = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "CUDA", "CRITEO")
    clean = {key: value for key, value in os.environ.items() if key not in of_make}
    path = f"{checkout / 'fakes'}:{os.environ['PATH']}"
    return subprocess.run(
        ["make", "--no-print-directory", *arguments],
        cwd=checkout,
        env=clean | {"PATH": path} | environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


def installs(checkout: Path) -> list[str]:
    log = checkout / "pip.log"
    return [line.strip() for line in log.read_text().splitlines() if line.startswith("install")] if log.exists() else []


def test_a_missing_venv_is_built_once(checkout):
    first = make(checkout, "venv")
    assert first.returncode == 0 and "Building .venv with Python 3.11.0 from requirements/cpu.txt" in first.stdout
    assert make(checkout, "venv").returncode == 0
    assert installs(checkout) == [CPU]


def test_changed_pins_rebuild_and_a_new_date_does_not(checkout):
    make(checkout, "venv")
    (checkout / "requirements/pins.txt").touch()
    make(checkout, "venv")
    assert len(installs(checkout)) == 1
    with (checkout / "requirements/pins.txt").open("a") as pins:
        pins.write("one-more==1.0\n")
    left = checkout / ".venv/left-over"
    left.touch()
    make(checkout, "venv")
    assert len(installs(checkout)) == 2 and not left.exists()


def test_a_build_cut_short_is_done_again(checkout):
    assert make(checkout, "venv", BROKEN_PIP="1").returncode != 0
    assert (checkout / ".venv").exists()
    assert make(checkout, "venv").returncode == 0
    assert len(installs(checkout)) == 2


def test_a_moved_checkout_rebuilds(checkout):
    make(checkout, "venv")
    moved = checkout.rename(checkout.with_name(checkout.name + "-moved"))
    make(moved, "venv")
    assert len(installs(moved)) == 2


def test_cuda_is_asked_for_once_and_then_remembered(checkout):
    make(checkout, "venv", "CUDA=1")
    make(checkout, "venv")
    assert installs(checkout) == [CUDA]
    make(checkout, "venv", "CUDA=0")
    make(checkout, "venv")
    assert installs(checkout) == [CUDA, CPU]


def test_a_venv_of_somebody_else_is_left_alone(checkout):
    (checkout / ".venv").mkdir()
    (checkout / ".venv/pyvenv.cfg").write_text("version = 3.11.0\n")
    done = make(checkout, "venv")
    assert done.returncode == 2 and "was not built by make" in done.stderr
    assert (checkout / ".venv/pyvenv.cfg").exists() and installs(checkout) == []


def test_a_wrong_python_ends_in_one_sentence(checkout):
    done = make(checkout, "venv", WRONG_PYTHON="1")
    assert done.returncode == 2
    sentence, from_make = done.stderr.strip().splitlines()
    assert sentence.startswith("error: neither python3.11 nor python3 is Python 3.11 or 3.12")
    assert from_make.startswith("make: ***")
    assert not (checkout / ".venv").exists()


def test_an_unknown_study_is_named_with_those_there_are(checkout):
    for name in ("laptop", "smoke", "schema"):
        file = checkout / f"workflow/config/{name}.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    for name in ("nope", "schema", "%"):
        done = make(checkout, "run", f"STUDY={name}")
        assert done.returncode == 2
        first = done.stderr.splitlines()[0]
        assert first == f"error: there is no study '{name}': set STUDY to one of laptop smoke"


@pytest.mark.parametrize("name", ["rows.txt", "my rows.txt", "it's $b.txt", ""])
def test_a_name_of_rows_arrives_as_it_is(checkout, name):
    (checkout / "workflow/config").mkdir(parents=True)
    (checkout / "workflow/config/laptop.yaml").touch()
    snakemake = checkout / "fakes/snakemake"
    snakemake.write_text('#!/bin/bash\necho "CRITEO [${CRITEO-none}]"\n')
    snakemake.chmod(0o755)
    assert "CRITEO [none]" in make(checkout, "run").stdout
    assert f"CRITEO [{name}]" in make(checkout, "run", f"CRITEO={name}").stdout
    assert f"CRITEO [{name}]" in make(checkout, "run", CRITEO=name).stdout


def test_help_lists_every_target_and_is_the_default(checkout):
    done = make(checkout)
    for target in ("help", "run", "test", "figures", "doctor", "lint", "venv", "clean"):
        assert f"\n  {target} " in done.stdout
    assert installs(checkout) == []
