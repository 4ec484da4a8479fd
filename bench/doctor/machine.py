"""What the machine allows: GPUs, cores, memory, disk, network namespaces, Slurm. Facts and limits, never a failure."""

import os
import shutil
import subprocess
from pathlib import Path

from bench import cluster
from bench.doctor.report import Finding
from bench.doctor.versions import Versions
from bench.errors import UserError

GiB = 2**30


def output(command: list[str], timeout_s: float = 20.0) -> tuple[bool, str]:
    """(it worked, what it printed, or the last line of its complaint)."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as error:
        return False, str(error)
    if done.returncode:
        return False, (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return True, done.stdout.strip()


def gpus(found: Versions) -> Finding:
    if not shutil.which("nvidia-smi"):
        return Finding("info", "gpus", "none: everything runs on the CPU")
    worked, text = output(["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"])
    if not worked or not text:
        return Finding("warn", "gpus", f"nvidia-smi is there but lists none ({text}): look at the driver")
    models = text.splitlines()
    text = f"{len(models)} ({'; '.join(sorted(set(models)))})"
    if "fbgemm-gpu" not in found:
        return Finding("warn", "gpus", f"{text}, unused: this is the CPU set-up, `make venv CUDA=1` builds the other")
    return Finding("ok", "gpus", text)


def cores() -> Finding:
    """Those this process may use, which a batch system or a container can make fewer than there are."""
    allowed, present = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    text = f"{allowed}" + (f" of {present}" if allowed < present else "")
    return Finding("ok", "cores", text) if allowed > 1 else Finding("warn", "cores", f"{text}: runs will take longer")


def memory() -> Finding:
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    total, free = (int(fields[key].split()[0]) * 1024 / GiB for key in ("MemTotal", "MemAvailable"))
    text = f"{free:.0f} GiB free of {total:.0f}"
    return Finding("ok", "memory", text) if free >= 4 else Finding("warn", "memory", f"{text}: 4 GiB are advised")


def disk(folder: Path) -> Finding:
    free = shutil.disk_usage(folder).free / GiB
    text = f"{free:.0f} GiB free for results/"
    return Finding("ok", "disk", text) if free >= 5 else Finding("warn", "disk", f"{text}: 5 GiB are advised")


def namespaces() -> Finding:
    """Whether bench.cluster can emulate hosts: tries it, as root or in a user namespace."""
    try:
        command = cluster.entrance()
    except UserError as error:
        return Finding("info", "namespaces", str(error))
    means = "in user namespaces" if "--user" in command else "as root"
    return Finding("ok", "namespaces", f"{means}, with shaped links: hosts can be emulated")


def slurm() -> Finding:
    if not (shutil.which("sinfo") and shutil.which("srun")):
        return Finding("info", "slurm", "none: jobs run on this machine")
    worked, text = output(["sinfo", "--noheader", "--format=%P %D nodes %G"])
    if not worked:
        return Finding("warn", "slurm", f"sinfo is there but does not answer ({text})")
    return Finding("ok", "slurm", "; ".join(text.splitlines()))


def check(found: Versions, folder: Path) -> list[Finding]:
    return [gpus(found), cores(), memory(), disk(folder), namespaces(), slurm()]
