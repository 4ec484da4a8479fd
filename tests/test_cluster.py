"""bench.cluster: what its links carry and how fast, how it ends, and that nothing of it is left."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import psutil
import pytest

from bench import cluster
from bench.arguments import cores
from bench.errors import UserError

ROOT = Path(__file__).resolve().parents[1]
RANKS = str(ROOT / "tests/cluster_ranks.py")


def reason_against() -> str:
    try:
        cluster.entrance()
    except UserError as error:
        return str(error)
    return ""


REASON = reason_against()
needs_namespaces = pytest.mark.skipif(bool(REASON), reason=REASON)


def command(*words, hosts=2, ranks_per_host=2, link="1gbit", options=()):
    shape = ["--hosts", str(hosts), "--ranks-per-host", str(ranks_per_host), "--link", link]
    return [sys.executable, "-m", "bench.cluster", *shape, *options, "--", *words]


def run(*words, **options):
    done = subprocess.run(command(*words, **options), cwd=ROOT, capture_output=True, text=True, timeout=90)
    return done.returncode, done.stdout, done.stderr


def left(mark):
    return [process for process in psutil.process_iter(["cmdline"]) if mark in (process.info["cmdline"] or [])]


@pytest.mark.parametrize("text, rate", [("200mbit", 2e8), ("1.5gbit", 1.5e9), ("800Kbit", 8e5)])
def test_rates(text, rate):
    assert cluster.bits_per_s(text) == rate


@pytest.mark.parametrize("text", ["200", "200mb", "-1mbit", "0mbit", "fast", "2000gbit", "1 gbit"])
def test_what_is_no_rate_is_refused(text):
    with pytest.raises(ValueError, match="is no rate: write it as 200mbit"):
        cluster.bits_per_s(text)


def test_a_bad_command_line_is_one_sentence():
    code, _, stderr = run("true", link="2mb")
    assert (code, stderr) == (2, "error: --link 2mb is no rate: write it as 200mbit or 1.5gbit\n")
    code, _, stderr = run()
    assert code == 2 and stderr.startswith("error: no command: write it behind --") and stderr.count("\n") == 1


@needs_namespaces
@pytest.mark.parametrize(
    ("hosts", "group", "across"),
    [
        (2, [0, 1, 2, 3], {0: 4, 1: 4}),  # each of a host's two ranks sends to two of the other's
        (3, [1, 2, 5], {0: 2, 1: 2, 2: 2}),
        (2, [2, 3], {0: 0, 1: 0}),  # of one host: over its loopback
    ],
)
def test_each_link_carries_what_its_ranks_send_to_other_hosts(tmp_path, hosts, group, across):
    size, out = 2_000_000, tmp_path / "links.json"
    code, stdout, stderr = run(
        sys.executable, RANKS, str(size), *map(str, group), hosts=hosts, options=["--json", str(out)]
    )
    assert code == 0, stderr
    assert sorted(re.findall(r"^rank (\d) of (\d), (\d) a host", stdout, re.MULTILINE)) == [
        (str(rank), str(2 * hosts), "2") for rank in group
    ]
    found = json.loads(out.read_text())
    assert (found["hosts"], found["ranks_per_host"], found["bits_per_s"]) == (hosts, 2, 10**9)
    for host, link in enumerate(found["links"]):
        for way in ("sent", "received"):
            assert across[host] * size <= link[way] <= across[host] * size * 1.03 + 50_000
            assert f"{way} {link[way]:,} bytes" in stderr


@needs_namespaces
def test_a_link_is_no_faster_than_its_rate():
    """The token bucket's 256 kB come free; after them bytes take their time, both ways at once."""
    size, rate = 1_500_000, 20e6
    code, stdout, _ = run(sys.executable, RANKS, str(size), "0", "2", link="20mbit")
    seconds = [float(text) for text in re.findall(r": (\S+) s$", stdout, re.MULTILINE)]
    assert code == 0 and len(seconds) == 2
    assert max(seconds) >= (size - 256 * 1024) * 8 / rate


@needs_namespaces
@pytest.mark.parametrize("how", ["executed", "forked"])
@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_run_that_is_killed_leaves_nothing(signal_number, how):
    mark = f"mark-{uuid.uuid4()}"
    script = f"import os, time; os.write(1, b'up\\n'); time.sleep(600)  # {mark}"
    words = ["-c", script] if how == "executed" else ["-m", "tests.cluster_sleep"]
    process = subprocess.Popen(
        command(sys.executable, *words, mark), cwd=ROOT, stdout=subprocess.PIPE, start_new_session=True, text=True
    )
    for _ in range(4):
        assert process.stdout.readline() == "up\n"
    assert len(left(mark)) >= 4
    if signal_number == signal.SIGINT:  # as a terminal sends it
        os.killpg(process.pid, signal_number)
    else:
        process.send_signal(signal_number)
    process.wait(timeout=30)
    deadline = time.monotonic() + 20
    while left(mark) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left(mark)
    assert not list(Path("/run/netns").glob("host*")) if Path("/run/netns").exists() else True


@needs_namespaces
def test_two_clusters_at_once_do_not_meet():
    """Both use the same addresses, ports and names."""
    both = [
        subprocess.Popen(command(sys.executable, RANKS, "1000", "0", "2"), cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for process in both:
        stdout, _ = process.communicate(timeout=60)
        assert process.returncode == 0 and len(stdout.splitlines()) == 2


@needs_namespaces
def test_the_first_rank_that_fails_ends_all():
    code, _, _ = run("sh", "-c", "test $RANK != 2 || exit 7; sleep 600")
    assert code == 7


@needs_namespaces
def test_a_module_is_loaded_once_and_its_ranks_are_as_if_executed():
    """Each its own process with its own rank, arguments and namespace, of one that has loaded the module."""
    words = ("-m", "tests.cluster_forked", "one", "two")
    code, stdout, stderr = run(sys.executable, *words, link="100mbit")
    assert code == 0, stderr
    ranks = [json.loads(line) for line in stdout.splitlines()]
    assert sorted(rank["rank"] for rank in ranks) == [0, 1, 2, 3]
    assert len({rank["process"] for rank in ranks}) == 4 and len({rank["parent"] for rank in ranks}) == 1
    assert {rank["address"] for rank in ranks if rank["rank"] < 2} == {"10.77.0.1"}
    assert {rank["address"] for rank in ranks if rank["rank"] >= 2} == {"10.77.0.2"}
    for rank in ranks:
        assert rank["arguments"] == ["one", "two"] and rank["name"] == "__main__"
        assert rank["threads"] == str(max(1, cores() // 4)) and rank["master"] == "10.77.0.1"


@needs_namespaces
def test_what_cannot_be_run_is_one_sentence():
    code, _, stderr = run(sys.executable, "-m", "bench.nothing")
    assert (code, stderr) == (2, "error: python -m bench.nothing: No module named 'bench.nothing'\n")
    code, _, stderr = run("/no/such/program", hosts=1, ranks_per_host=1)
    assert code == 1 and "error: /no/such/program cannot be run: No such file or directory\n" in stderr
    assert "Traceback" not in stderr


@needs_namespaces
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_without_root_through_user_namespaces():
    python = "/usr/bin/python3"
    if not os.access(python, os.X_OK):
        pytest.skip("no python that every user can run")
    words = command("sh", "-c", "echo $RANK of $WORLD_SIZE")
    nobody = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "env", "HOME=/tmp", python]
    done = subprocess.run([*nobody, *words[1:]], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"{rank} of 4" for rank in range(4)]


def test_where_hosts_cannot_be_emulated_it_says_so_and_can_go_on(monkeypatch, capfd):
    monkeypatch.setattr(cluster, "PROBE", "echo not here >&2; false")
    words = command(sys.executable, RANKS, "1000", "0", "3")[3:]
    monkeypatch.setattr(sys, "argv", ["cluster", *words])
    with pytest.raises(UserError, match=r"^no namespaces for emulated hosts here \(not here\): .*add --or-loopback"):
        cluster.main()
    monkeypatch.setattr(sys, "argv", ["cluster", "--or-loopback", *words])
    assert cluster.main() == 0
    stdout, stderr = capfd.readouterr()
    assert re.findall(r"^rank (\d) of 4, 4 a host", stdout, re.MULTILINE)
    assert "going on over loopback, unshaped" in stderr


@needs_namespaces
def test_ranks_share_the_cores_whatever_the_environment_says(monkeypatch):
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, "16")
    ranks = cores() + 1
    code, stdout, _ = run("sh", "-c", "echo $OMP_NUM_THREADS $MKL_NUM_THREADS", hosts=1, ranks_per_host=ranks)
    assert code == 0 and stdout.splitlines() == ["1 1"] * ranks


BLOCKS = """
import ctypes, resource
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
faults = []
for _ in range(10):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    block = libc.malloc(16 << 20)
    ctypes.memset(block, 1, 16 << 20)
    libc.free(block)
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(faults[0], faults[-1])
"""


@needs_namespaces
def test_ranks_keep_the_memory_that_they_freed():
    first, last = run(sys.executable, "-c", BLOCKS, hosts=1, ranks_per_host=1)[1].splitlines()[0].split()
    assert int(first) > 0 and int(last) * 10 < int(first)


@needs_namespaces
def test_a_record_says_that_its_link_is_emulated():
    code = "import datetime; from bench import record; " + (
        "print(record.of_process('x', datetime.datetime.now(datetime.UTC))['topology']['link'])"
    )
    status, stdout, _ = run(sys.executable, "-c", code)
    assert status == 0 and stdout.replace("\n", "") == "emulated" * 4  # ranks share one output
