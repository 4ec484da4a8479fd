"""bench.calibrate: the rate by the rule, and a cluster that takes it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from test_cluster import command, needs_namespaces

from bench.calibrate import FURTHER, exposed_share, next_rate
from bench.cluster import read_rate

ROOT = Path(__file__).resolve().parents[1]


def share_at(rate, slope, start):
    odds = slope / rate + start
    return odds / (1 + odds)


@pytest.mark.parametrize(("slope", "start"), [(3e7, 0.0), (5e7, 0.1), (2e7, -0.05)])
def test_the_rate_on_a_line(slope, start):
    points = [(rate, share_at(rate, slope, start)) for rate in (1.05e8, 2.1e8)]
    found = next_rate(points, 0.275)
    assert share_at(found, slope, start) == pytest.approx(0.275, abs=1e-6)
    assert next_rate([*points, (found, 0.275)], 0.275) == pytest.approx(found, rel=1e-6)


def test_noise_that_makes_no_line():
    falling = next_rate([(100_000_000, 0.2), (200_000_000, 0.3)], 0.275)  # as if faster links cost more
    assert 100_000_000 < falling < 200_000_000
    assert next_rate([(100, 0.9), (200, 0.89)], 0.01) == 200 * FURTHER  # no further than that
    assert next_rate([(90, -0.1), (180, 0.0)], 0.275) == 90 / FURTHER  # nothing is exposed: slower


def test_the_share_is_without_the_wait_for_the_slowest_rank():
    parts = {"embedding": 40.0, "straggler_wait": 10.0, "iteration_ms": 110.0}
    assert exposed_share(parts) == pytest.approx(0.3)


def written(folder, rate, ranks=8):
    file = folder / "link.json"
    file.write_text(json.dumps({"bits_per_s": rate, "topology": {"ranks": ranks, "ranks_per_host": 2}}))
    return str(file)


def test_a_rank_with_less_of_the_cores_gets_less_of_the_link(tmp_path):
    file = written(tmp_path, 160_000_000)
    assert [read_rate(file, ranks) for ranks in (4, 8, 16)] == [(320_000_000, 0.5), (160_000_000, 1), (80_000_000, 2)]
    assert read_rate(written(tmp_path, None), 16) == (None, 2)
    assert read_rate("160mbit", 16) == (160_000_000, 1)


@pytest.mark.parametrize("text", ["{}", "[1]", "rate", '{"bits_per_s": 5, "topology": null}'])
def test_a_file_that_is_not_of_a_calibration(tmp_path, text):
    file = tmp_path / "link.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"link.json is not what `python -m bench.calibrate` writes: run that again$"):
        read_rate(str(file), 4)
    with pytest.raises(ValueError, match=r"other.json cannot be read .* writes it$"):
        read_rate(str(tmp_path / "other.json"), 4)


@needs_namespaces
def test_links_change_their_rate_while_ranks_run_and_a_calibration_says_what_it_found(tmp_path):
    out = tmp_path / "link.json"
    sizes = "--embedding-dim 8 --bottom 16 --over 32,16 --small-over 16 --cross-layers 1 --cross-rank 8".split()
    words = [
        sys.executable,
        "-m",
        "bench.calibrate",
        *sizes,
        "--features",
        "4",
        "--rows",
        "50",
        "--local-batch",
        "2048",
    ]
    words += ["--iterations", "2", "--tries", "1", "--json", str(out)]
    done = subprocess.run(command(*words, link="20mbit"), cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    rates = [point["bits_per_s"] for point in found["points"]]
    assert rates[:2] == [14_000_000, 28_000_000] and len(rates) in (2, 3)
    best = min(found["points"], key=lambda point: abs(point["share"] - 0.275))
    assert (found["bits_per_s"], found["share"]) == (best["bits_per_s"], best["share"]) and found["wanted"] == 0.275
    slow = found["points"][0]["breakdown"]["iteration_ms"]
    across = 2048 * 2 * 4 * 8 * 2 * 2 / 2  # bytes of fp16 embeddings and gradients that a host sends
    assert slow > across * 8 / 14e6 * 1e3 * 0.8  # so long bytes take at this rate, less what a full bucket gives
    done = subprocess.run(
        command("sh", "-c", "echo $EMULATED_LINK", link=str(out), ranks_per_host=1),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert set(done.stdout.split()) == {str(found["bits_per_s"] * 2)}  # half the ranks, twice the rate


def test_loopback_of_a_calibration_that_found_no_links(tmp_path):
    words = command("sh", "-c", "echo $GLOO_SOCKET_IFNAME", link=written(tmp_path, None))
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "says that links cannot be emulated here; or add --or-loopback" in done.stderr
    words.insert(words.index("--"), "--or-loopback")
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout.split() == ["lo"] * 4
