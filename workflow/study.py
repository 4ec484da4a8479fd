"""What the rules ask of a study's config: whether it is right, its data, its grid of runs, flags for command lines."""

import fcntl
import os
import re
import shlex
import sys
from pathlib import Path
from typing import NoReturn, TextIO

import jsonschema
import yaml

from bench.data import schema
from bench.errors import UserError


def stop(sentence: str) -> NoReturn:
    """End at once with one sentence: the config or a path in it is at fault."""
    sys.stderr.write(f"error: {sentence}\n")  # one write: the progress lines come from another thread
    sys.exit(2)


def say(sentence: str) -> None:
    sys.stderr.write(f"{sentence}\n")


_held: list[TextIO] = []  # lock files stay open until the process ends


def lock(results: str) -> None:
    """Keep a second call away from the study for as long as this process lives.

    Snakemake's own lock outlives a kill and must then be removed by hand; the kernel drops this one with the process.
    """
    Path(results).mkdir(parents=True, exist_ok=True)
    file = open(f"{results}/.lock", "w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        stop(f"another call is at work on {results}/: wait for its end, or stop it")
    _held.append(file)


def use_this_python() -> None:
    """Let `python -m ...` in rules be the Python that runs Snakemake, also where no environment is active."""
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


def check(config: dict, file: Path) -> None:
    """Stop, naming the field and the fault, unless the config read from this file fits workflow/config/schema.yaml."""
    form = yaml.safe_load(Path(__file__).with_name("config").joinpath("schema.yaml").read_text())
    errors = jsonschema.Draft202012Validator(form).iter_errors(config)
    error = jsonschema.exceptions.best_match(errors, key=lambda error: len(error.absolute_path))  # the innermost field
    if error is not None:
        field = ".".join(map(str, error.absolute_path)) or "the whole"
        stop(f"the study {file} does not fit at {field}: {error.message[:300]}")


def name_and_data(config: dict, file: Path) -> tuple[str, dict]:
    """The study's name, that of its file, and its data settings; the variable CRITEO puts Criteo rows of one's own."""
    name, data = file.stem, config["data"]
    if not re.fullmatch(r"[A-Za-z0-9_-]+", name) or name in ("reference", "from_reference"):
        stop(f"{file} cannot name a study: call it by letters, digits, _ and -, and not reference or from_reference")
    if "CRITEO" in os.environ:
        name += "-criteo"
        data = {key: value for key, value in data.items() if key != "generate"}
        data |= {"files": _paths(os.environ["CRITEO"]), "schema": "criteo"}
    if os.path.isfile(f"results/{name}"):
        stop(f"results/{name} is a file, and the study's results go into a folder of this name: move the file away")
    for path in data.get("files", []):
        if not os.path.isfile(path):
            fault = f"{path} is a folder" if os.path.isdir(path) else f"there is no file {path}"
            stop(f"{fault}: give the path of a table with one row a line (plain, .gz or .zst)")
        if "{" in path or "}" in path:
            stop(f"{path} has a brace in its name, which Snakemake takes for a wildcard: rename it")
    return name, data


def _paths(text: str) -> list[str]:
    """One path as it stands, or several, separated by blanks and quoted as in a shell."""
    if not text.strip():
        stop("CRITEO is empty: give the path of a file of Criteo rows, or leave it out")
    if os.path.exists(text):
        return [text]
    try:
        return shlex.split(text)
    except ValueError:
        stop(f"there is no file {text}: for several files, put those with blanks or quotes in their names in quotes")


def check_models(config: dict, file: Path, data: dict) -> None:
    """Stop where a model has no file, or more towers than the data have categorical columns."""
    there = sorted(path.stem for path in Path("baselines").glob("[!_]*.py") if path.stem != "spec")
    try:
        columns = len(schema.load(data["schema"]).sparse)
    except UserError as error:
        stop(str(error))
    emulated = config.get("emulated", {"contestants": {}})
    compared = [model for shape in emulated["contestants"] for model in compared_models(emulated, shape)]
    for model in [*config["models"], *compared]:
        if model not in there:
            stop(f"{file} names the model {model}, and there is no baselines/{model}.py: choose of {', '.join(there)}")
    if compared and emulated["main"] not in emulated["contestants"]:
        stop(f"{file} has no contestants for {emulated['main']}, the main shape: list some under emulated.contestants")
    for shape in emulated["contestants"]:
        if shape not in emulated["repeats"]:
            stop(f"{file} does not say how many turns the contestants of {shape} take: add it to emulated.repeats")
    for model, options in config["models"].items():
        towers = max((options or {}).get("towers", [1]))
        if towers > columns:
            stop(f"{file} gives {model} {towers} towers for {columns} categorical columns: a tower needs one at least")


def schema_file(data: dict) -> str:
    """The file behind the name or path that says what the columns are."""
    name = data["schema"]
    return name if name.endswith((".yaml", ".yml")) else f"bench/data/schemas/{name}.yaml"


def runs(config: dict) -> list[str]:
    """Names of the training runs, seed by seed: {model}-T{towers}-s{seed}; flat models have one tower."""
    return [
        f"{model}-T{towers}-s{seed}"
        for seed in config["seeds"]
        for model, options in config["models"].items()
        for towers in (options or {}).get("towers", [1])
    ]


def training_flags(config: dict, model: str) -> str:
    """Sizes and optimizer settings of a model's runs: the study's, then what the model's entry overrides."""
    own = {key: value for key, value in (config["models"][model] or {}).items() if key != "towers"}
    return flags(config["sizes"] | config["training"] | own)


def cluster_flags(shape: str) -> str:
    """Of bench.cluster: 4x2 is 4 hosts of 2 ranks."""
    hosts, ranks_per_host = shape.split("x")
    return flags({"hosts": hosts, "ranks_per_host": ranks_per_host})


def _ranks_per_host(shape: str) -> dict:
    return {"ranks_per_host": shape.split("x")[1]}  # said again to the ranks, which may be on loopback


def calibration_flags(emulated: dict) -> str:
    return flags(_ranks_per_host(emulated["main"]) | emulated["workload"] | emulated["sizes"])


def throughput_flags(emulated: dict, shape: str) -> str:
    """Where time goes is looked at in the main shape."""
    more = {"repeats": emulated["repeats"][shape], "turns_only": shape != emulated["main"]}
    names = " ".join(map(shlex.quote, emulated["contestants"][shape]))
    return f"{flags(_ranks_per_host(shape) | emulated['workload'] | emulated['sizes'] | more)} --contestants {names}"


def collectives_flags(emulated: dict, shape: str) -> str:
    return flags(_ranks_per_host(shape) | emulated["collectives"])


def compared_models(emulated: dict, shape: str) -> list[str]:
    """Models behind the contestants of a shape: "dmt_dcn-D4:towers" is of dmt_dcn."""
    return sorted({re.match("[a-z0-9_]*", contestant)[0] for contestant in emulated["contestants"][shape]})


def flags(options: dict) -> str:
    """{"cap": 9, "bottom": [128, 64]} -> "--cap 9 --bottom 128,64"; null and false are left out."""
    words = []
    for name, value in options.items():
        if value is None or value is False:
            continue
        words.append(f"--{name.replace('_', '-')}")
        if value is not True:
            words.append(shlex.quote(",".join(map(str, value)) if isinstance(value, list) else str(value)))
    return " ".join(words)


def stored(place: str) -> Path:
    """Folder of a place's records: results/<study>, or results/reference/<study> for from_reference/<study>."""
    return Path("results", place.replace("from_reference/", "reference/"))


def reference_places() -> list[str]:
    """Places to draw from results/reference/, one for each study stored there."""
    studies = [path.parent.name for path in sorted(Path("results/reference").glob("*/records.csv"))]
    if not studies:
        stop("there is no results/reference/*/records.csv to draw from: `make run` makes results of your own")
    return [f"from_reference/{study}" for study in studies]
