"""What the rules ask of a study's config: its data, its grid of runs, and flags for command lines."""

import fcntl
import os
import shlex
import sys
from pathlib import Path
from typing import NoReturn, TextIO


def stop(sentence: str) -> NoReturn:
    """End at once with one sentence: the config or a path in it is at fault."""
    print(f"error: {sentence}", file=sys.stderr)
    sys.exit(2)


def say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


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


def name_and_data(config: dict) -> tuple[str, dict]:
    """The study's name (its folder under results/) and data settings; --config criteo=... puts rows of one's own."""
    name, data = config["study"], config["data"]
    if "criteo" in config:
        name += "-criteo"
        files = [config["criteo"]] if Path(config["criteo"]).is_file() else shlex.split(config["criteo"])
        data = {key: value for key, value in data.items() if key != "generate"} | {"files": files}
    for file in data.get("files", []):
        if not Path(file).is_file():
            stop(f"there is no file {file}: give the path of a table with one row a line (plain, .gz or .zst)")
    return name, data


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


def flags(options: dict) -> str:
    """{"cap": 9, "bottom": [128, 64]} -> "--cap 9 --bottom 128,64"; null and false are left out."""
    words = []
    for name, value in options.items():
        if value is None or value is False:
            continue
        words.append(f"--{name.replace('_', '-')}")
        if value is not True:
            words.append(",".join(map(str, value)) if isinstance(value, list) else str(value))
    return " ".join(words)


def stored(place: str) -> Path:
    """Folder of a place's records: results/<study>, or results/reference/<study> for from_reference/<study>."""
    return Path("results", place.replace("from_reference/", "reference/"))


def reference_reports() -> list[str]:
    """Reports to draw from results/reference/, one for each study stored there."""
    studies = [path.parent.name for path in sorted(Path("results/reference").glob("*/records.csv"))]
    if not studies:
        stop("there is no results/reference/*/records.csv to draw from: `make run` makes results of your own")
    return [f"results/from_reference/{study}/report.html" for study in studies]
