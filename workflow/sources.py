"""Which of the project's own files a command runs: Snakemake does not look inside imported modules.

Rules name them as an input (`sources=`), so that a change in dmt/, baselines/ or bench/ reruns what depends on it.
"""

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("dmt", "baselines", "bench", "paper_figures")
DATA_SUFFIXES = (".json", ".yaml", ".csv", ".j2")


def sources(*modules: str) -> list[str]:
    """Files of the modules ("bench.train") and of all project modules they import, relative to the root, sorted.

    Imports are read from the text (nothing is run), also those inside functions, and so are names of data files that
    stand beside a module ("record.schema.json"). Modules found by name at run time are invisible: name them as well.
    """
    files: set[str] = set()
    waiting = list(modules)
    while waiting:
        for file in _files(waiting.pop()):
            if file not in files:
                files.add(file)
                imported, beside = _reads(file)
                files.update(beside)
                waiting.extend(imported)
    return sorted(files)


@cache
def _files(module: str) -> list[str]:
    """The module's file and the __init__.py of each package above it; [] where the name is no module of ours."""
    parts = module.split(".")
    if parts[0] not in PACKAGES:
        return []
    found = [Path(*parts[:depth], "__init__.py") for depth in range(1, len(parts) + 1)]
    found.append(Path(*parts).with_suffix(".py"))
    return [file.as_posix() for file in found if (ROOT / file).is_file()]


@cache
def _reads(file: str) -> tuple[list[str], list[str]]:
    """(names of imported modules, data files beside the file that its text names)"""
    names, beside = [], []
    package = file.split("/")[:-1]
    for node in ast.walk(ast.parse((ROOT / file).read_text(), file)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            names += [base, *(f"{base}.{alias.name}" for alias in node.names)]  # "from a import b": b may be a module
        elif isinstance(node, ast.Constant) and str(node.value).endswith(DATA_SUFFIXES):
            found = Path(*package, str(node.value))
            beside += [found.as_posix()] if (ROOT / found).is_file() else []
    return names, beside
