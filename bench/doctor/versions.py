"""Which versions are installed, and do they go together. Reads metadata only: a wrong set would crash an import."""

import importlib.metadata
import re
import shutil
import sys
from pathlib import Path

from bench.doctor.report import Finding
from bench.errors import UserError

REQUIREMENTS = Path(__file__).resolve().parents[2] / "requirements"
PYTHONS = ("3.11", "3.12")
REINSTALL = "`make clean`, then `make venv`"

Versions = dict[str, str]  # normalised package name -> version


def read_pins() -> Versions:
    """The versions of requirements/pins.txt, which are the supported ones. UserError outside a checkout."""
    path = REQUIREMENTS / "pins.txt"
    if not path.exists():
        raise UserError(f"{path} is not there: run the doctor from a checkout of the repository")
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+)$", path.read_text(), flags=re.MULTILINE))


def read_names(file: str) -> list[str]:
    """The packages that requirements/<file> asks for, without options, paths and comments."""
    return re.findall(r"^([a-z0-9-]+)$", (REQUIREMENTS / file).read_text(), flags=re.MULTILINE)


def installed() -> Versions:
    """What is installed. fbgemm-gpu counts only as the CUDA build: the empty package that stands in for it does not."""
    found: Versions = {}
    for distribution in importlib.metadata.distributions():
        name = re.sub(r"[-_.]+", "-", distribution.metadata["Name"] or "").lower()
        stands_in = name == "fbgemm-gpu" and "fbgemm-gpu-cpu" in " ".join(distribution.requires or [])
        if not stands_in:
            found.setdefault(name, distribution.version)  # the first on the path is the one that imports
    return found


def public(version: str) -> str:
    """2.13.0+cpu -> 2.13.0"""
    return version.split("+")[0]


def minor(version: str) -> tuple[int, int]:
    """2.13.0+cpu -> (2, 13)"""
    numbers = [int(digits) for digits in re.findall(r"\d+", version)[:2]]
    return numbers[0], numbers[1] if len(numbers) > 1 else 0


def join(items: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(items[:-1]), *items[-1:]]))


def triple(found: Versions, pins: Versions) -> Finding:
    """torchrec 1.X and fbgemm 1.X go with torch 2.(X+5). Says which package to change, and to which version."""
    cpu, cuda = "fbgemm-gpu-cpu" in found, "fbgemm-gpu" in found
    on_gpu = shutil.which("nvidia-smi") is not None and "+cpu" not in found.get("torch", "")
    if cpu and cuda:
        keep, drop = ("fbgemm-gpu", "fbgemm-gpu-cpu") if on_gpu else ("fbgemm-gpu-cpu", "fbgemm-gpu")
        return Finding(
            "fail",
            "triple",
            f"{drop} {found[drop]} and {keep} {found[keep]} are both installed and overwrite each other: "
            f"uninstall both, then install {keep}=={pins[keep]} (requirements/{'cuda' if on_gpu else 'cpu'}.txt)",
        )
    fbgemm = "fbgemm-gpu" if cuda or (on_gpu and not cpu) else "fbgemm-gpu-cpu"
    names = ["torch", "torchrec", fbgemm]
    missing = [name for name in names if name not in found]
    if missing:
        wanted = join([f"{name}=={pins[name]}" for name in missing])
        return Finding("fail", "triple", f"{join(missing)} not installed: install {wanted} ({REINSTALL})")
    text = join([f"{name} {found[name]}" for name in names])
    torch_major, torch_minor = minor(found["torch"])
    if torch_major == 2 and all(minor(found[name]) == (1, torch_minor - 5) for name in names[1:]):
        if all(minor(found[name]) == minor(pins[name]) for name in names):
            return Finding("ok", "triple", f"{text} go together")
        supported = join([f"{name} {pins[name]}" for name in names])
        return Finding("warn", "triple", f"{text} should go together, but only {supported} were tried")
    wrong = [name for name in names if minor(found[name]) != minor(pins[name])]
    change = join([f"{name} {found[name]} to {pins[name]}" for name in wrong])
    return Finding("fail", "triple", f"{text} do not go together: change {change}")


def check(found: Versions, pins: Versions) -> list[Finding]:
    """Python, the packages of the triple, and every other pin in one line; the triple's own verdict last."""
    python = ".".join(map(str, sys.version_info[:3]))
    fits = f"{sys.version_info[0]}.{sys.version_info[1]}" in PYTHONS
    findings = [Finding("ok" if fits else "fail", "python", f"{python:<14} supported: {' and '.join(PYTHONS)}")]
    stack = ["torch", "torchrec", "fbgemm-gpu-cpu", "fbgemm-gpu"]
    for name in stack:
        if name in found:
            same = public(found[name]) == pins[name]
            findings.append(Finding("ok" if same else "warn", name, f"{found[name]:<14} supported: {pins[name]}"))

    for file, mark, title in (("base.txt", "fail", "packages"), ("dev.txt", "warn", "test packages")):
        missing = [f"{name} {pins[name]}" for name in read_names(file) if name not in found and name not in stack]
        if missing:
            findings.append(Finding(mark, title, f"{join(missing)} not installed: {REINSTALL}"))
    others = [name for name in pins if name in found and name not in stack]
    odd = [f"{name} {found[name]} ({pins[name]})" for name in others if public(found[name]) != pins[name]]
    same = f"{len(others) - len(odd)} of {len(others)} as pinned in requirements/pins.txt"
    findings.append(Finding("warn" if odd else "ok", "other packages", same + (f"; not {join(odd)}" if odd else "")))
    return [*findings, triple(found, pins)]
