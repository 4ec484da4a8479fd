"""The workflow's emulated cluster on stand-ins: what runs with which flags, alone, and what changes rerun."""

import json
from pathlib import Path

import pytest
import test_workflow
from test_workflow import CONFIG, OUT, TRAIN, refused, run, would_run, write

MIXTURE = "sptt_dcn+embeddings=dmt_dcn"
EMULATED = f"""
emulated:
  main: 4x2
  link: 150mbit
  workload: {{local_batch: 64, features: 8, rows: 10, bucket_mib: 0.4, iterations: 3, warmup: 1}}
  sizes: {{embedding_dim: 4, bottom: [16, 8], over: [8], small_over: [8], cross_layers: 1, cross_rank: 4,
    tower_cross_layers: 1, tower_cross_rank: 2}}
  repeats: {{2x2: 3, 4x2: 2}}
  contestants:
    2x2: [dcn, dmt_dcn, dlrm, sptt_dlrm, dmt_dlrm-D2]
    4x2: [dcn, "dcn:table_row_wise", sptt_dcn, dmt_dcn, "{MIXTURE}", dlrm, sptt_dlrm, dmt_dlrm-D2]
  collectives: {{sizes: 1MiB, warmup: 1, iterations: 2}}
"""
SPAN = """
import atexit, os, time
started = time.time()
def ended():
    with open("spans", "a") as spans: spans.write(f"{os.path.basename(args[0])} {started} {time.time()}\\n")
atexit.register(ended)
time.sleep(0.3)
"""
CLUSTER = (
    "import sys; from pathlib import Path; args = sys.argv\n"
    + SPAN
    + """
import json, made_up_study
def flag(name): return args[args.index(name) + 1]
inner = args[args.index("--"):]
module, shape = inner[3], f"{flag('--hosts')}x{flag('--ranks-per-host')}"
assert inner[1:3] == ["python", "-m"] and "--or-loopback" in args
made = {
    "bench.calibrate": lambda: made_up_study.calibration(shape),
    "bench.collectives": lambda: made_up_study.collectives(shape),
    "bench.throughput": lambda: [
        made_up_study.throughput(name, (100 + 10 * i,) * 3, int(flag("--hosts"))) | {"study": flag("--study")}
        for i, name in enumerate(inner[inner.index("--contestants") + 1 : inner.index("--json")])
    ],
}[module]()
Path(inner[inner.index("--json") + 1]).write_text(json.dumps(made))
print(*args)
"""
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A study with an emulated cluster, after a call that went through."""
    root = test_workflow.suite.__wrapped__(tmp_path_factory)
    files = {f"bench/{name}.py": "" for name in ("cluster_hosts", "calibrate", "throughput", "collectives")}
    files |= {"tiny.yaml": CONFIG + EMULATED, "bench/cluster.py": CLUSTER, "bench/train.py": OUT + SPAN + TRAIN}
    files["bench/throughput.py"] = "from bench import cluster"
    write(root, files)
    done = run(root)
    assert done.returncode == 0, done.stdout + done.stderr
    return root


def log(root: Path, step: str) -> str:
    return (root / f"results/tiny/logs/emulated/{step}.log").read_text()


def test_what_measures_time_runs_alone(finished):
    spans = [line.split() for line in (finished / "spans").read_text().splitlines()]
    spans = [(name, float(start), float(end)) for name, start, end in spans]
    timing = [span for span in spans if span[0] == "cluster.py"]
    assert len(timing) == 1 + 2 + 2 and len(spans) == len(timing) + 6
    for one in timing:
        for other in spans:
            assert other is one or other[1] >= one[2] or other[2] <= one[1], f"{one} beside {other}"


def test_each_step_gets_its_flags(finished):
    calibrate = log(finished, "calibrate")
    assert "--hosts 4 --ranks-per-host 2 --link 150mbit --or-loopback -- python -m bench.calibrate" in calibrate
    for shape, others, repeats in (("2x2", True, 3), ("4x2", False, 2)):
        said = log(finished, f"throughput-{shape}")
        assert f"--hosts {shape[0]} --ranks-per-host 2 --link results/tiny/emulated/link.json" in said
        assert "--study tiny --ranks-per-host 2 --local-batch 64 --features 8 --rows 10 --bucket-mib 0.4" in said
        assert "--embedding-dim 4 --bottom 16,8" in said and f"--repeats {repeats}" in said
        assert ("--turns-only" in said) == others  # where time goes is shown at the main shape
        collectives = log(finished, f"collectives-{shape}")
        assert "--link 150mbit" in collectives and "--sizes 1MiB --warmup 1 --iterations 2" in collectives
    assert MIXTURE in log(finished, "throughput-4x2")


def test_what_was_measured_is_gathered_and_shown(finished):
    results = finished / "results/tiny"
    records = (results / "records.csv").read_text()
    assert "dcn-table_row_wise-4x2" in records and MIXTURE in records
    assert len((results / "collectives.csv").read_text().splitlines()) == 1 + 2 * 3
    assert json.loads((results / "link.json").read_text())["contestant"] == "dcn"
    assert "On an emulated cluster" in (results / "report.html").read_text()


@pytest.mark.parametrize(
    ("file", "reruns"),
    [
        ("baselines/dmt_dcn.py", {"throughput": 2}),
        ("baselines/sptt_dcn.py", {"throughput": 1}),
        ("bench/throughput.py", {"throughput": 2}),
        ("bench/calibrate.py", {"calibrate": 1, "throughput": 2}),
        ("bench/cluster_hosts.py", {"calibrate": 1, "throughput": 2, "collectives": 2}),
    ],
)
def test_a_change_reruns_what_depends_on_it(finished, file, reruns):
    assert would_run(finished) == {}
    before = (finished / file).read_text()
    stat = (finished / file).stat()
    (finished / file).write_text(before + "\n")
    try:
        found = would_run(finished)
    finally:
        (finished / file).write_text(before)
        __import__("os").utime(finished / file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    timing = {rule: count for rule, count in found.items() if rule in ("calibrate", "throughput", "collectives")}
    assert timing == reruns and found["gather"] == 1


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("main: 4x2", "main: 8x2", "has no contestants for 8x2, the main shape: list some under emulated.contestants"),
        ("2x2: 3, ", "", "does not say how many turns the contestants of 2x2 take: add it to emulated.repeats"),
        ("main: 4x2", "main: four", "does not fit at emulated.main"),
        ("[dcn, dmt_dcn,", "[dcn, dmt_dcm,", "names the model dmt_dcm, and there is no baselines/dmt_dcm.py"),
        ("link: 150mbit", "link: fast", "does not fit at emulated.link"),
    ],
)
def test_a_study_that_cannot_be_is_refused(finished, old, new, sentence):
    (finished / "other.yaml").write_text((CONFIG + EMULATED).replace(old, new))
    assert sentence in refused(finished, "--configfile", "other.yaml")
