"""The workflow on stand-ins for the slow commands: what runs, what reruns, what a failure and a second call say."""

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import made_up_study as made_up
import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bench import gather  # noqa: E402
from bench.errors import UserError  # noqa: E402
from workflow import sources, study  # noqa: E402

CONFIG = """
data: {generate: {rows: 100, seed: 7}, schema: criteo, split: [0.8, 0.1, 0.1]}
models:
  prior:
  dlrm:
  dmt_dlrm: {towers: [2], learning_rate: 0.002}
seeds: [0, 1]
sizes: {embedding_dim: 4, bottom: [16, 8], over: [8], small_over: [8], cross_layers: 1, cross_rank: 4,
  tower_cross_layers: 1, tower_cross_rank: 2}
training: {batch_size: 10, learning_rate: 0.001, warmup: 0.1}
threads: 1
"""
OTHER_MODELS = ("prior", "logistic", "dlrm_small_over", "dcn", "dmt_dcn", "sptt_dcn", "sptt_dlrm")
OUT = 'import sys; from pathlib import Path; args = sys.argv; out = Path(args[args.index("--out") + 1])\n'
GENERATE = (
    OUT
    + """
for name in (out, f"{out}.probability.npy", f"{out}.generator.json"): Path(name).write_text("rows")
"""
)
PREPARE = (
    OUT
    + """
import shutil
for file in args[args.index("--input") + 1 : args.index("--out")]: Path(file).read_text()
(out / "train-00000.safetensors").write_text("rows"); shutil.copy("manifest.json", out)
"""
)
TRAIN = (
    OUT
    + """
import json, made_up_study
def flag(name): return args[args.index(name) + 1]
model, towers, seed = flag("--model"), int(flag("--towers")), int(flag("--seed"))
checkpoint = Path(flag("--checkpoint")); checkpoint.parent.mkdir(exist_ok=True); checkpoint.write_text("step 3")
if Path("broken").exists() and model == "dlrm" and seed == 1: sys.exit("error: the disk is full")
record = made_up_study.record(model, towers, seed, study=flag("--study"), command=" ".join(args[1:]))
if model == "dmt_dlrm" and seed == 1: record |= dict(status="diverged", reason="loss is nan", accuracy=None)
out.write_text(json.dumps(record))
"""
)
COMPLEXITY = (
    OUT
    + """
import json, made_up_study
study = args[args.index("--study") + 1]
out.write_text(json.dumps([made_up_study.complexity("dlrm", 1, None, 14.738, 22777000000) | {"study": study}]))
"""
)


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def snakemake(root: Path, *args: str, **variables: str) -> subprocess.CompletedProcess:
    environment = {name: value for name, value in os.environ.items() if name != "CRITEO"}
    environment |= {"PYTHONPATH": "workflow/logger", "PATH": "/usr/bin:/bin"} | variables  # rules find their Python
    command = [sys.executable, "-m", "snakemake", "--cores", "2", *args]
    return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=120)


def run(root: Path, *args: str, **variables: str) -> subprocess.CompletedProcess:
    return snakemake(root, "--logger", "brief", *args, "--configfile", "tiny.yaml", **variables)


def refused(root: Path, *args: str, **variables: str) -> str:
    """What a call that must stop before any step says: one sentence."""
    done = snakemake(root, "--logger", "brief", *args, **variables)
    assert done.returncode == 2, done.stdout + done.stderr
    (sentence,) = done.stderr.strip().splitlines()[1:]  # the first names the profile
    assert sentence.startswith("error: ")
    return sentence.removeprefix("error: ")


def would_run(root: Path) -> dict[str, int]:
    """Jobs by rule that a call would run, from a dry run."""
    done = snakemake(root, "--dry-run", "--configfile", "tiny.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    jobs = dict(re.findall(r"^(\w+) +(\d+)$", done.stdout + done.stderr, re.M))
    return {rule: int(count) for rule, count in jobs.items() if rule not in ("all", "total")}


@pytest.fixture(scope="module")
def suite(tmp_path_factory) -> Path:
    """The workflow and the light commands as they are, stand-ins for the slow ones."""
    root = tmp_path_factory.mktemp("suite")
    ignore = shutil.ignore_patterns("__pycache__")
    for name in ("workflow", "profiles", "slurm", "paper_figures"):
        shutil.copytree(ROOT / name, root / name, ignore=ignore)
    (root / "bench").mkdir()
    for name in ("arguments", "errors", "files", "record", "gather", "__init__"):
        shutil.copy(ROOT / f"bench/{name}.py", root / "bench")
    shutil.copy(ROOT / "bench/record.schema.json", root / "bench")
    shutil.copytree(ROOT / "bench/data/schemas", root / "bench/data/schemas")
    for name in ("__init__.py", "schema.py"):
        shutil.copy(ROOT / "bench/data" / name, root / "bench/data")
    for file in (ROOT / "Snakefile", ROOT / "environment.yml", ROOT / "tests" / "made_up_study.py"):
        shutil.copy(file, root)
    write(
        root,
        {
            "tiny.yaml": CONFIG,
            "manifest.json": json.dumps(made_up.MANIFEST),
            "bench/data/generate.py": GENERATE,
            "bench/data/prepare.py": PREPARE,
            "bench/train.py": "import baselines.spec\n" + TRAIN,
            "bench/complexity.py": COMPLEXITY,
            "baselines/__init__.py": "",
            "baselines/spec.py": "import dmt.towers",
            **{f"baselines/{name}.py": "" for name in OTHER_MODELS},
            "baselines/dlrm.py": "",
            "baselines/dmt_dlrm.py": "from baselines import dlrm",
            "dmt/towers.py": "",
            "torch/__init__.py": "raise ImportError('torch was imported')",
        },
    )
    return root


@pytest.fixture(scope="module")
def finished(suite) -> tuple[Path, str]:
    """The suite after a call that broke, a call that went through; what the calls said."""
    (suite / "broken").touch()
    broken = run(suite)
    assert broken.returncode == 1
    assert "Exception" not in broken.stderr and "WorkflowError" not in broken.stderr
    assert "FAILED train dlrm-T1-s1: error: the disk is full" in broken.stderr
    assert "read results/tiny/logs/train/dlrm-T1-s1.log" in broken.stderr
    assert (suite / "results/tiny/checkpoints/dlrm-T1-s1").exists(), "a killed run resumes from its checkpoint"
    assert not (suite / "results/tiny/runs/dlrm-T1-s1.json").exists()
    assert len(list((suite / "results/tiny/runs").glob("*.json"))) == 5, "one failure must not stop the others"
    (suite / "broken").unlink()
    whole = run(suite)
    assert whole.returncode == 0, whole.stdout + whole.stderr
    return suite, whole.stderr


def test_only_what_is_missing_runs(finished):
    root, said = finished
    assert "to do: 1 train, 1 gather" in said
    assert re.search(r"^\[1/6\] train dlrm-T1-s1: \d+ s", said, re.M)
    assert "6 runs, 1 of them without AUC (dmt_dlrm-T2-s1)" in said
    assert "report: results/tiny/report.html" in said


def test_report_shows_runs_without_auc(finished):
    root, _ = finished
    report = (root / "results/tiny/report.html").read_text()
    assert "diverged (1 of 2)" in report and "loss is nan" in report
    assert not re.search(r"""(src|href)=["'](?!data:)""", report), "the report must open offline"
    for name in ("tables/table4.csv", "tables/table4.md", "figures/auc_towers.pdf", "figures/auc_towers.png"):
        assert (root / "results/tiny" / name).stat().st_size > 100


def test_second_call_does_nothing(finished):
    root, _ = finished
    again = run(root)
    assert again.returncode == 0
    assert "Nothing to be done" in again.stderr
    assert "[1/" not in again.stderr


def test_a_failed_rerun_is_not_forgotten(finished):
    root, _ = finished
    before = (root / "baselines/dlrm.py").stat()
    (root / "baselines/dlrm.py").write_text("\n")
    (root / "broken").touch()
    for _ in range(2):
        failed = run(root)
        assert failed.returncode == 1, failed.stderr
        assert "FAILED train dlrm-T1-s1: error: the disk is full" in failed.stderr
    (root / "broken").unlink()
    mended = run(root)
    assert mended.returncode == 0 and "to do: 1 train, 1 gather" in mended.stderr
    (root / "baselines/dlrm.py").write_text("")
    os.utime(root / "baselines/dlrm.py", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert would_run(root) == {}


PRODUCTS = {
    "raw/rows.tsv": "generate",
    "data/manifest.json": "prepare",
    "runs/dlrm-T1-s1.json": "train",
    "complexity.json": "complexity",
    "records.csv": "gather",
    "manifest.json": "gather",
    "tables/table4.csv": "table4",
    "tables/table4.md": "table4",
    "tables/complexity.csv": "complexity_table",
    "tables/complexity.md": "complexity_table",
    "figures/auc_towers.pdf": "auc_towers",
    "figures/auc_towers.png": "auc_towers",
    "report.html": "report",
}


def test_a_lost_product_is_made_again(finished):
    root, _ = finished
    for product, rule in PRODUCTS.items():
        file, aside = root / "results/tiny" / product, root / "aside"
        file.rename(aside)
        try:
            assert would_run(root).get(rule) == 1, product
        finally:
            aside.rename(file)


def test_one_call_at_a_time(finished):
    root, _ = finished
    with open(root / "results/tiny/.lock") as file:  # left by a call that ended: no hindrance to those before
        fcntl.flock(file, fcntl.LOCK_EX)
        second = run(root, "--forceall")
    assert second.returncode == 2
    said = [line for line in second.stderr.splitlines() if line.startswith("error: ")]
    assert said and said[0].startswith("error: another call is at work on results/tiny/"), second.stderr
    assert "Traceback" not in second.stderr
    assert would_run(root) == {}


def test_flags_reach_the_command(finished):
    root, _ = finished
    command = json.loads((root / "results/tiny/runs/dmt_dlrm-T2-s0.json").read_text())["command"]
    for words in ("--bottom 16,8", "--embedding-dim 4", "--batch-size 10", "--learning-rate 0.002", "--threads 1"):
        assert words in command
    assert command.count("--learning-rate") == 1


FIGURES = {"table4": 1, "complexity_table": 1, "auc_towers": 1, "report": 1}


@pytest.mark.parametrize(
    ("file", "reruns"),
    [
        ("baselines/dmt_dlrm.py", {"train": 2, "complexity": 1, "gather": 1, **FIGURES}),
        ("dmt/towers.py", {"train": 6, "complexity": 1, "gather": 1, **FIGURES}),
        ("bench/data/prepare.py", {"prepare": 1, "train": 6, "gather": 1, **FIGURES}),
        ("bench/data/schemas/criteo.yaml", {"prepare": 1, "train": 6, "gather": 1, **FIGURES}),
        ("bench/record.schema.json", {"gather": 1, **FIGURES}),
        ("paper_figures/style.py", {"auc_towers": 1, "report": 1}),
        ("paper_figures/report.html.j2", {"report": 1}),
    ],
)
def test_a_change_reruns_what_depends_on_it(finished, file, reruns):
    root, _ = finished
    before = (root / file).stat()
    with open(root / file, "a") as text:
        text.write("\n")
    try:
        assert would_run(root) == reruns
    finally:
        os.truncate(root / file, before.st_size)
        os.utime(root / file, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_figures_from_stored_results_without_torch(finished):
    root, _ = finished
    missing = snakemake(root, "figures", "--logger", "brief")
    assert missing.returncode != 0
    assert "error: there is no results/reference/*/records.csv" in missing.stderr
    shutil.copytree(root / "results/tiny", root / "results/reference/stored", ignore=lambda folder, names: {
        name for name in names if name not in ("records.csv", "manifest.json")
    })  # fmt: skip
    drawn = snakemake(root, "figures", "--logger", "brief")
    assert drawn.returncode == 0, drawn.stderr
    assert not (root / "results/laptop").exists(), "the study that is the default has no part in this"
    with open(root / "results/from_reference/.lock") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        second = snakemake(root, "figures", "--logger", "brief", "--forceall")
    assert second.returncode == 2 and "another call is at work on results/from_reference/" in second.stderr
    assert sorted(re.findall(r"1 (\w+)", drawn.stderr.split("to do: ")[1].splitlines()[0])) == sorted(FIGURES)
    assert (root / "results/from_reference/stored/report.html").exists()
    assert sorted(os.listdir(root / "results/reference/stored")) == ["manifest.json", "records.csv"]


@pytest.mark.parametrize("name", ["own.txt", "my rows.txt", "it's.txt", "$b;c.txt"])
def test_rows_of_ones_own(suite, name):
    (suite / name).write_text("rows")
    own = run(suite, "--force", "results/tiny-criteo/data/manifest.json", CRITEO=name)
    assert own.returncode == 0, own.stderr
    assert "to do: 1 prepare" in own.stderr


def test_several_files_of_rows_and_criteo_columns(suite):
    (suite / "own.txt").write_text("rows")
    (suite / "my rows.txt").write_text("rows")
    (suite / "adult.yaml").write_text(CONFIG.replace("schema: criteo", "schema: adult"))
    arguments = ("results/adult-criteo/data/manifest.json", "--dry-run", "--configfile", "adult.yaml")
    own = snakemake(suite, *arguments, CRITEO="own.txt 'my rows.txt'")
    assert own.returncode == 0, own.stderr
    assert "--input own.txt 'my rows.txt' --out results/adult-criteo/data --schema criteo" in own.stdout + own.stderr


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("no/such.txt", "there is no file no/such.txt"),
        ("123", "there is no file 123"),
        ("no such's.txt", "there is no file no such's.txt"),
        ("baselines", "baselines is a folder"),
        ("x.txt " * 100, "there is no file x.txt"),
        ("a{b}.txt", "a{b}.txt has a brace in its name"),
        ("", "CRITEO is empty"),
    ],
)
def test_rows_that_cannot_be_read(suite, given, sentence):
    (suite / "a{b}.txt").write_text("rows")
    assert refused(suite, "--configfile", "tiny.yaml", CRITEO=given).startswith(sentence)


@pytest.mark.parametrize(
    ("name", "change", "sentence"),
    [
        ("faulty", ("seeds: [0, 1]", "seeds: []"), "the study faulty.yaml does not fit at seeds: [] "),
        ("faulty", ("threads: 1", ""), "the study faulty.yaml does not fit at the whole: 'threads' is a required"),
        ("faulty", ("size: 10", "size: a"), "the study faulty.yaml does not fit at training.batch_size: 'a' is not"),
        ("faulty", ("learning_rate: 0.002", "rate: 1"), "the study faulty.yaml does not fit at models.dmt_dlrm: "),
        ("faulty", ("learning_rate: 0.002", "over: 1"), "the study faulty.yaml does not fit at models.dmt_dlrm.over: "),
        ("faulty", ("prior:", "pryor:"), "faulty.yaml names the model pryor, and there is no baselines/pryor.py"),
        ("faulty", ("towers: [2]", "towers: [27]"), "faulty.yaml gives dmt_dlrm 27 towers for 26 categorical columns"),
        ("faulty", ("schema: criteo", "schema: cryteo"), "no schema cryteo"),
        ("a b", ("", ""), "a b.yaml cannot name a study"),
        ("reference", ("", ""), "reference.yaml cannot name a study"),
    ],
)
def test_faulty_config_is_refused(suite, name, change, sentence):
    (suite / f"{name}.yaml").write_text(CONFIG.replace(*change, 1))
    assert refused(suite, "--configfile", f"{name}.yaml").startswith(sentence)


def test_a_study_writes_into_the_folder_of_its_name(suite):
    (suite / "copied.yaml").write_text(CONFIG)
    (suite / "results").mkdir(exist_ok=True)
    (suite / "results/copied").touch()
    assert refused(suite, "--configfile", "copied.yaml").startswith("results/copied is a file")


def test_slurm_profile_is_found(suite):
    done = snakemake(
        suite, "results/tiny/complexity.json", "--profile", "slurm", "--dry-run", "--configfile", "tiny.yaml"
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["laptop", "smoke"])
def test_studies_of_the_suite(name):
    """Each config fits the schema, and every step of the DAG can be planned."""
    config = f"workflow/config/{name}.yaml"
    done = snakemake(ROOT, "--dry-run", "--nolock", "--forceall", "--configfile", config)
    assert done.returncode == 0, done.stdout + done.stderr
    for rule in ("generate", "prepare", "train", "complexity", "gather", *FIGURES):
        assert re.search(rf"^{rule} +\d+$", done.stdout + done.stderr, re.M)


@pytest.mark.parametrize("module", ["bench.gather", "paper_figures.report"])
def test_sources_are_what_is_imported(module):
    """Against Python's own list of loaded modules."""
    code = f"import sys, {module}; print([m.__file__ for m in sys.modules.values() if getattr(m, '__file__', None)])"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    own = {str(Path(file).relative_to(ROOT)) for file in eval(loaded) if Path(file).is_relative_to(ROOT)}
    own = {file for file in own if file.split("/")[0] in sources.PACKAGES}
    assert own == {file for file in sources.sources(module) if file.endswith(".py")}
    assert not any("torch" in Path(file).parts for file in eval(loaded))


def test_flags_of_options():
    options = {"bottom": [128, 64], "cap": None, "pad_short_rows": True, "skip": False, "learning_rate": 0.001}
    assert study.flags(options) == "--bottom 128,64 --pad-short-rows --learning-rate 0.001"
    assert study.flags({"schema": "my columns.yaml"}) == "--schema 'my columns.yaml'"


@pytest.mark.parametrize(
    ("name", "change", "sentence"),
    [
        ("dlrm-T1-s1", {}, "dlrm-T1-s1.json holds the record of the run dlrm-T1-s0"),
        ("dlrm-T1-s0", {"study": "other"}, "records of the studies made-up and other"),
    ],
)
def test_gather_refuses_a_record_of_another_run_or_study(tmp_path, name, change, sentence):
    counted = [made_up.complexity("dlrm", 1, None, 14.738, 22777000000)]
    files = made_up.write(tmp_path / "study", [], counted)
    (files["runs"] / f"{name}.json").write_text(json.dumps(made_up.record("dlrm", 1, 0) | change))
    with pytest.raises(UserError, match=sentence):
        gather.gather([files["runs"]], files["complexity"], [], files["manifest"])
