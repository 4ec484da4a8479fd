"""The record of a run: one JSON file, written last and atomically, validated when written and when read.

The schema is record.schema.json beside this file. This module imports neither torch nor numpy: figures read records.
"""

import datetime
import hashlib
import importlib.metadata
import json
import os
import platform
import shlex
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NoReturn

import jsonschema

from bench.arguments import cores
from bench.errors import UserError
from bench.files import write_text

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("torch", "torchrec", "fbgemm-gpu", "fbgemm-gpu-cpu", "numpy", "numba", "scikit-learn")


def write(path: str | Path, record: dict) -> None:
    """Validate the record and put it in place in one step.

    Raises:
        UserError: the record does not fit the schema; names the field.
    """
    check(record, path)
    write_text(path, json.dumps(record, indent=1, allow_nan=False) + "\n")


def read(path: str | Path) -> dict:
    """Read a record and validate it.

    Raises:
        UserError: no such file, not JSON, or a field that does not fit the schema; names file, field and fault.
    """
    try:
        record = json.loads(Path(path).read_text(), parse_constant=_no_constant)
    except OSError as error:
        raise UserError(f"cannot read record {path}: {error.strerror}") from None
    except ValueError as error:
        raise UserError(f"record {path} is not JSON ({error}); delete it and run its step again") from None
    check(record, path)
    return record


def of_model(spec, model, partition_name: str) -> dict:
    """The fields that say which model ran: of a baselines.ModelSpec and the module built from it."""
    groups = model.partition and [list(group) for group in model.partition]
    return {
        "model": spec.model,
        "towers": spec.towers,
        "tower_dim": model.tower_dim,
        "compression_ratio": model.compression_ratio,
        "partition": {"name": partition_name if groups else "none", "groups": groups},
    }


def of_process(module: str, started: datetime.datetime, ranks_per_host: int | None = None) -> dict:
    """The fields that say what measured: this process, begun at `started` (UTC) as `python -m module`, and its ranks.

    Args:
        ranks_per_host: of the hosts that the ranks stand for, where they are not those of a machine.
    """
    ranks, local = (int(os.environ.get(name, 1)) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    ranks_per_host = ranks_per_host or local
    launcher = ["python"]
    if rate := os.environ.get("EMULATED_LINK"):
        launcher += ["-m", "bench.cluster", "--hosts", str(ranks // local), "--ranks-per-host", str(local), "--link"]
        launcher += [f"{int(rate) / 1e6:g}mbit", "--", "python"]
    elif "WORLD_SIZE" in os.environ:
        launcher = ["torchrun", *(["--nnodes", str(ranks // local)] if ranks > local else []), "--nproc-per-node"]
        launcher += [str(local)]
    return {
        "format": 1,
        "provenance": "measured",
        "topology": {
            "ranks": ranks,
            "ranks_per_host": ranks_per_host,
            "hosts": ranks // ranks_per_host,
            "link": "none" if ranks == 1 else _link(ranks == local),
        },
        "command": shlex.join([*launcher, "-m", module, *sys.argv[1:]]),
        "versions": versions(),
        "hardware": hardware(),
        "source_hash": source_hash(),
        "started": started.isoformat(timespec="seconds"),
        "wall_s": round((datetime.datetime.now(datetime.UTC) - started).total_seconds(), 3),
    }


def _link(one_machine: bool) -> str:
    if os.environ.get("EMULATED_LINK"):  # of bench.cluster, also with one host
        return "emulated"
    return "loopback" if one_machine else "network"


def versions() -> dict[str, str]:
    """Versions of Python and of the installed packages that a result depends on."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def hardware() -> dict:
    """CPU model, usable cores, memory in GiB and GPU names of this machine."""
    return {
        "cpu": _cpu_name(),
        "cores": cores(),
        "memory_GiB": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "gpus": _gpu_names(),
    }


@cache
def source_hash() -> str:
    """sha256 over the Python sources of dmt/, baselines/ and bench/: the code that a result came from."""
    digest = hashlib.sha256()
    for package in ("dmt", "baselines", "bench"):
        for file in sorted((ROOT / package).rglob("*.py")):
            digest.update(f"{file.relative_to(ROOT)}\0".encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()


@cache
def _validator() -> jsonschema.Draft202012Validator:
    schema = json.loads(Path(__file__).with_name("record.schema.json").read_text())
    return jsonschema.Draft202012Validator(schema)


def check(record: dict, path: str | Path) -> None:
    """Raise UserError, naming the field, when the record of this path does not fit the schema."""
    error = jsonschema.exceptions.best_match(_validator().iter_errors(record))
    if error is not None:
        field = ".".join(str(part) for part in error.absolute_path) or "record"
        raise UserError(f"record {path} does not fit its schema at {field}: {error.message[:300]}")
    for fault in _contradictions(record):
        raise UserError(f"record {path} contradicts itself: {fault}")


def _contradictions(record: dict) -> Iterator[str]:
    """What a schema cannot say."""
    topology, groups = record["topology"], record["partition"]["groups"]
    if topology["ranks"] != topology["ranks_per_host"] * topology["hosts"]:
        yield "topology.ranks is not ranks_per_host x hosts"
    if groups is not None and len(groups) != record["towers"]:
        yield f"partition.groups has {len(groups)} groups and towers is {record['towers']}"
    for split in ("validation", "test") if record["accuracy"] else ():
        scores = record["accuracy"][split]
        if scores["positives"] > scores["evaluated"]:
            yield f"accuracy.{split}.positives is more than evaluated"
        if scores["evaluated"] != record["data"][f"{split}_rows"]:
            yield f"accuracy.{split}.evaluated is not data.{split}_rows: rows were left out or seen twice"


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _gpu_names() -> list[str]:
    torch = sys.modules.get("torch")  # asked only where the run has loaded it
    if torch is None or not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
