"""requirements/pins.txt is the one place that holds a version: every other file agrees with it or names none."""

import ast
import importlib.metadata
import platform
import re
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from bench.doctor import versions

ROOT = Path(__file__).resolve().parents[1]
PINS = versions.read_pins()
NAMES = {path.name: versions.read_names(path.name) for path in versions.REQUIREMENTS.glob("*.txt")}
STAND_IN = tomllib.loads((ROOT / "requirements/fbgemm-gpu/pyproject.toml").read_text())["project"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FOUND = versions.installed()
OWN = {"dmt", "baselines", "bench", "paper_figures", "workflow", "tests"}


def lines(path: Path) -> list[str]:
    return [line.split("#")[0].strip() for line in path.read_text().splitlines() if line.split("#")[0].strip()]


def test_pins_are_exact_and_written_once():
    pinned = [line.split("==") for line in lines(versions.REQUIREMENTS / "pins.txt")]
    assert all(len(pin) == 2 for pin in pinned)
    assert [name for name, _ in pinned] == [canonicalize_name(name) for name, _ in pinned]
    assert len({name for name, _ in pinned}) == len(pinned) == len(PINS)


def test_the_pinned_triple_obeys_the_rule():
    fbgemm = {"fbgemm-gpu-cpu": PINS["fbgemm-gpu-cpu"]}
    assert versions.triple({"torch": PINS["torch"], "torchrec": PINS["torchrec"]} | fbgemm, PINS).mark == "ok"
    assert PINS["fbgemm-gpu"] == PINS["fbgemm-gpu-cpu"]


@pytest.mark.parametrize("file", ["base.txt", "cpu.txt", "cuda.txt", "dev.txt"])
def test_requirements_hold_names_of_pinned_packages_only(file):
    options = [line for line in lines(versions.REQUIREMENTS / file) if line not in NAMES[file]]
    assert set(options) <= {"-c pins.txt", "-r base.txt", "./requirements/fbgemm-gpu"}
    assert "-c pins.txt" in options
    assert set(NAMES[file]) <= set(PINS)


def test_the_stand_in_has_the_version_of_what_it_stands_for():
    assert (STAND_IN["name"], STAND_IN["version"]) == ("fbgemm-gpu", PINS["fbgemm-gpu"])
    assert STAND_IN["dependencies"] == ["fbgemm-gpu-cpu"]


def test_the_package_metadata_asks_for_what_the_requirements_name():
    extra = PROJECT["optional-dependencies"]["bench"]
    assert sorted([*PROJECT["dependencies"], *extra]) == sorted(NAMES["base.txt"])


def test_the_pythons_are_the_same_everywhere():
    first, last = versions.PYTHONS[0], versions.PYTHONS[-1]
    beyond = f"3.{int(last.split('.')[1]) + 1}"
    assert PROJECT["requires-python"] == f">={first},<{beyond}"
    makefile = (ROOT / "Makefile").read_text()
    assert (
        f"{tuple(map(int, first.split('.')))} <= sys.version_info[:2] <= {tuple(map(int, last.split('.')))}" in makefile
    )
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    assert f"python={first}" in environment
    assert {"pip": ["-r requirements/cpu.txt", "-r requirements/dev.txt"]} in environment


@pytest.mark.parametrize("file", ["README.md", "Makefile", "environment.yml", "pyproject.toml", ".ci/run"])
def test_a_version_written_elsewhere_is_the_pinned_one(file):
    stated = re.findall(r"\b([A-Za-z][\w.-]*?) ?(?:==|>=|~=| )v?(\d+\.\d+(?:\.\d+)*)\b", (ROOT / file).read_text())
    pinned = [(canonicalize_name(name), version) for name, version in stated if canonicalize_name(name) in PINS]
    assert [(name, version) for name, version in pinned if version != PINS[name]] == []


def needed(names: list[str]) -> set[str]:
    """These packages and everything they ask for, by the metadata of what is installed here."""
    reached: set[str] = set()
    waiting = [Requirement(name) for name in names]
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        if name in reached:
            continue
        reached.add(name)
        for line in importlib.metadata.requires(name) or []:
            requirement = Requirement(line)
            extras = wanted.extras or {""}
            if not requirement.marker or any(
                requirement.marker.evaluate({**default_environment(), "extra": extra}) for extra in extras
            ):
                waiting.append(requirement)
    return reached


@pytest.mark.skipif(
    "fbgemm-gpu" in FOUND or sys.version_info[:2] != (3, 11) or platform.machine() != "x86_64",
    reason="pins are resolved for Python 3.11 on x86-64 with the CPU build; others bring packages of their own",
)
def test_everything_the_cpu_set_up_installs_is_pinned_and_nothing_else():
    names = ["fbgemm-gpu", *NAMES["base.txt"], *NAMES["dev.txt"]]
    reached = needed(names)
    assert reached == set(PINS)
    wrong = {name: FOUND[name] for name in reached & set(FOUND) if versions.public(FOUND[name]) != PINS[name]}
    assert wrong == {}


def imports(path: Path) -> set[str]:
    modules: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules.add(node.module.split(".")[0])
    return modules - OWN - sys.stdlib_module_names


@pytest.mark.parametrize("room", sorted(OWN))
def test_every_import_is_asked_for_by_name(room):
    """What the code imports stands in a file of requirements, not only below something else."""
    allowed = {"dmt": PROJECT["dependencies"], "baselines": PROJECT["dependencies"]}.get(room, NAMES["base.txt"])
    allowed = [*allowed, "fbgemm-gpu", "fbgemm-gpu-cpu"]  # cpu.txt and cuda.txt bring a build each
    if room == "tests":
        allowed = [*allowed, *NAMES["dev.txt"]]
    files = list((ROOT / room).rglob("*.py"))
    beside = {path.stem for path in files if path.parent == ROOT / "tests"}  # helpers that tests import from tests/
    packages = importlib.metadata.packages_distributions()
    for path in files:
        for module in imports(path) - beside:
            owners = {canonicalize_name(owner) for owner in packages.get(module, [])}
            assert owners & set(allowed), f"{path} imports {module} ({owners or 'not installed'})"
