"""The doctor on faked installations: folders of metadata, so that no real package is needed or touched."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench import cluster
from bench.doctor import machine, probes, versions

ROOT = Path(__file__).resolve().parents[1]
PINS = versions.read_pins()
NAMES = versions.read_names("base.txt") + versions.read_names("dev.txt")
RIGHT = {name: PINS[name] for name in [*NAMES, "fbgemm-gpu-cpu"]}


def fake_site(folder: Path, packages: dict[str, str], stand_in: bool = True) -> Path:
    """A site-packages folder that holds the metadata of these packages, and no code."""
    for name, version in packages.items():
        add_metadata(folder, name, version)
    if stand_in:
        add_metadata(folder, "fbgemm-gpu", PINS["fbgemm-gpu"], "Requires-Dist: fbgemm-gpu-cpu\n")
    return folder


def add_metadata(folder: Path, name: str, version: str, extra: str = "") -> None:
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{extra}")


def doctor(site: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """The command itself. -S leaves the real packages out of the doctor's own process (not out of its probes)."""
    return subprocess.run(
        [sys.executable, *options, "-m", "bench.doctor"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        timeout=300,
    )


def verdict(**changes: str | None):
    """The verdict on the pinned set after these changes (None removes a package)."""
    found = dict(RIGHT)
    for name, version in changes.items():
        found.pop(name.replace("_", "-"), None)
        if version:
            found[name.replace("_", "-")] = version
    return versions.triple(found, PINS)


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    monkeypatch.setattr(versions.shutil, "which", lambda name, path=None: None)


WRONG = [
    ({"torch": "2.12.0"}, "change torch 2.12.0 to {torch}"),
    ({"torch": "2.12.0+cpu"}, "change torch 2.12.0+cpu to {torch}"),
    ({"torch": "2.14.1"}, "change torch 2.14.1 to {torch}"),
    ({"torch": "1.13.0"}, "change torch 1.13.0 to {torch}"),
    ({"torchrec": "1.7.0"}, "change torchrec 1.7.0 to {torchrec}"),
    ({"torchrec": "0.8.0"}, "change torchrec 0.8.0 to {torchrec}"),
    ({"fbgemm_gpu_cpu": "1.7.0"}, "change fbgemm-gpu-cpu 1.7.0 to {fbgemm-gpu-cpu}"),
    ({"fbgemm_gpu_cpu": None, "fbgemm_gpu": "1.9.0"}, "change fbgemm-gpu 1.9.0 to {fbgemm-gpu}"),
    ({"torch": "2.12.0", "torchrec": "1.7.0"}, "change torch 2.12.0 to {torch} and torchrec 1.7.0 to {torchrec}"),
    ({"torch": None}, "torch not installed: install torch=={torch}"),
    ({"torchrec": None}, "torchrec not installed: install torchrec=={torchrec}"),
    ({"fbgemm_gpu_cpu": None}, "fbgemm-gpu-cpu not installed: install fbgemm-gpu-cpu=={fbgemm-gpu-cpu}"),
    ({"fbgemm_gpu": PINS["fbgemm-gpu"]}, "uninstall both, then install fbgemm-gpu-cpu=={fbgemm-gpu-cpu}"),
]


@pytest.mark.parametrize(("changes", "advice"), WRONG)
def test_a_wrong_triple_names_the_package_and_the_version(changes, advice):
    finding = verdict(**changes)
    assert finding.mark == "fail"
    expected = re.sub(r"\{([a-z-]+)\}", lambda match: PINS[match[1]], advice)
    assert expected in finding.text
    assert "\n" not in finding.text


def test_the_pinned_triples_are_right():
    assert verdict().mark == "ok"
    assert verdict(torch=PINS["torch"] + "+cpu").mark == "ok"
    assert verdict(fbgemm_gpu_cpu=None, fbgemm_gpu=PINS["fbgemm-gpu"]).mark == "ok"


def test_another_triple_that_obeys_the_rule_is_only_a_warning():
    finding = verdict(torch="2.12.1", torchrec="1.7.0", fbgemm_gpu_cpu="1.7.2")
    assert finding.mark == "warn" and f"torch {PINS['torch']}" in finding.text


def test_on_a_gpu_the_cuda_build_is_the_one_to_keep(monkeypatch):
    monkeypatch.setattr(versions.shutil, "which", lambda name, path=None: f"/usr/bin/{name}")
    both = verdict(torch="2.13.0+cu130", fbgemm_gpu=PINS["fbgemm-gpu"])
    assert f"install fbgemm-gpu=={PINS['fbgemm-gpu']} (requirements/cuda.txt)" in both.text
    neither = verdict(fbgemm_gpu_cpu=None)
    assert f"install fbgemm-gpu=={PINS['fbgemm-gpu']}" in neither.text


def test_installed_tells_the_stand_in_from_the_cuda_build(tmp_path, monkeypatch):
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cuda").mkdir()
    monkeypatch.setattr(sys, "path", [str(fake_site(tmp_path / "cpu", {"fbgemm-gpu-cpu": "1.8.0"}))])
    assert versions.installed() == {"fbgemm-gpu-cpu": "1.8.0"}
    monkeypatch.setattr(sys, "path", [str(fake_site(tmp_path / "cuda", {"fbgemm-gpu": "1.8.0"}, stand_in=False))])
    assert versions.installed() == {"fbgemm-gpu": "1.8.0"}


def test_a_missing_or_moved_package_is_named():
    found = {name: version for name, version in RIGHT.items() if name not in ("numba", "ruff")} | {"numpy": "1.0.0"}
    marks = {finding.name: finding for finding in versions.check(found, PINS)}
    assert marks["packages"][::2] == ("fail", f"numba {PINS['numba']} not installed: {versions.REINSTALL}")
    assert marks["test packages"].mark == "warn" and f"ruff {PINS['ruff']}" in marks["test packages"].text
    assert marks["other packages"].mark == "warn" and f"numpy 1.0.0 ({PINS['numpy']})" in marks["other packages"].text


def test_the_command_stops_before_any_import_on_a_wrong_triple(tmp_path):
    # without site-packages there is no torch at all: an import of it would end in a traceback
    done = doctor(fake_site(tmp_path, RIGHT | {"torch": "2.12.0"}), "-S")
    assert done.returncode == 1
    assert done.stderr == ""
    assert (
        f"triple: torch 2.12.0, torchrec {PINS['torchrec']} and fbgemm-gpu-cpu {PINS['fbgemm-gpu-cpu']}" in done.stdout
    )
    assert done.stdout.rstrip().endswith(f"do not go together: change torch 2.12.0 to {PINS['torch']}")
    assert "not tried: mend the versions first" in done.stdout


def test_an_undefined_symbol_becomes_a_sentence(tmp_path):
    site = fake_site(tmp_path, RIGHT)
    (site / "torchrec.py").write_text("raise OSError('libfbgemm.so: undefined symbol: _ZN3c104impl3cow')\n")
    done = doctor(site, "-S")
    assert done.returncode == 1
    assert "symbol" not in done.stdout + done.stderr
    assert "lookup: torchrec does not work although its versions fit" in done.stdout


def test_the_probes_pass_here():
    """One real forward and backward, and one real exchange: the set-up these tests run in works."""
    assert [(finding.name, finding.mark) for finding in probes.check()] == [("lookup", "ok"), ("gloo", "ok")]


def test_a_probe_that_hangs_or_dies_is_a_fault(tmp_path, monkeypatch):
    assert "ValueError" in probes.run(["gloo", "not-a-rank", "store"])
    monkeypatch.setattr(probes, "TIMEOUT_S", 5.0)
    alone = probes.run(["gloo", "0", str(tmp_path / "store")])  # its peer never comes
    assert alone == "no answer after 5 s"


def test_the_machine_is_described_without_gpu_and_slurm():
    findings = {finding.name: finding for finding in machine.check(RIGHT, ROOT)}
    assert list(findings) == ["gpus", "cores", "memory", "disk", "namespaces", "slurm"]
    assert findings["gpus"] == ("info", "gpus", "none: everything runs on the CPU")
    assert findings["slurm"].mark == "info"
    assert findings["namespaces"].text == (
        "unshare, setpriv, ip, tc not found: install iproute2, util-linux (packages of Debian)"
    )
    assert int(findings["cores"].text.split()[0]) == len(os.sched_getaffinity(0))


def test_a_gpu_with_the_cpu_set_up_is_a_warning(monkeypatch):
    monkeypatch.setattr(machine.shutil, "which", lambda name, path=None: name)
    monkeypatch.setattr(machine, "output", lambda command: (True, "NVIDIA H100, 81559 MiB\nNVIDIA H100, 81559 MiB"))
    assert machine.gpus(RIGHT).mark == "warn" and machine.gpus(RIGHT).text.startswith("2 (NVIDIA H100, 81559 MiB)")
    assert machine.gpus({"fbgemm-gpu": "1.8.0"}).mark == "ok"


def test_namespaces_that_are_forbidden_are_said_to_be(monkeypatch):
    monkeypatch.setattr(cluster, "PROGRAMS", {})
    monkeypatch.setattr(cluster, "PROBE", "echo Operation not permitted >&2; false")
    assert machine.namespaces().mark == "info"
    assert machine.namespaces().text.startswith(
        "no namespaces for emulated hosts here (Operation not permitted): be ro"
    )


def test_a_command_that_fails_or_is_absent_gives_its_last_line():
    assert machine.output(["sh", "-c", "echo first >&2; echo last >&2; exit 3"]) == (False, "last")
    assert machine.output(["no-such-command"])[0] is False
    assert machine.output(["echo", "well"]) == (True, "well")
