"""Ranks that fail end their job everywhere, under torchrun and where nobody watches; and the tests' own ranks.

Time limits are generous: the machine may be busy. TIMEOUT_S is what a job is told.
"""

import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import failing_ranks
import psutil
import pytest
import torch
import torch.distributed as dist
from ranks import on_ranks, quick_start
from torchrec.distributed.collective_utils import init_collective_validation
from torchrec.distributed.comm import intra_and_cross_node_pg

from bench.errors import UserError
from bench.ranks import joined

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = failing_ranks.__file__
TIMEOUT_S = 8
LIMIT_S = 90
SENTENCE = "rows.npz is not there: prepare it"
DIED = "died without a word (killed, or out of memory?)"
LATE = f"kept the others waiting for {TIMEOUT_S} s"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def variables(rank: int, size: int, port: int) -> dict[str, str]:
    names = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": size}
    return {name: str(value) for name, value in names.items()} | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


class Job:
    """Ranks started by hand; `present`: the numbers of those that are started."""

    def __init__(self, folder: Path, way: str, who: str, size: int = 4, present: tuple[int, ...] = ()):
        folder.mkdir()
        port = free_port()
        self.files = [folder / str(i) for i in range(len(present) or size)]
        self.processes = [
            failing_ranks.start(quick_start(), variables(rank, size, port), [way, who, str(TIMEOUT_S)], file)
            for rank, file in zip(present or range(size), self.files, strict=True)
        ]

    def ended(self) -> tuple[list[int], list[str]]:
        """Exit codes and what stood on stderr, of each process; asserts that all have ended."""
        deadline = time.monotonic() + LIMIT_S
        for process in self.processes:
            process.join(max(0.0, deadline - time.monotonic()))
        assert not [process.pid for process in self.processes if process.is_alive()]
        return [process.exitcode for process in self.processes], [file.read_text() for file in self.files]


JOBS = {  # first those where ranks must come in time: later ones start beside seventy others
    "one does not come": ("none", "", 3, (0, 2)),
    "first does not come": ("none", "", 2, (1,)),
    "twice the same": ("none", "", 3, (0, 2, 2)),
    "one user error": ("user error", "2"),
    "the same user error": ("user error", "0,1,2,3"),
    "one error": ("error", "2"),
    "the same error": ("error", "0,1,2,3"),
    "exit": ("exit", "1"),
    "interrupt": ("interrupt", "2"),
    "killed": ("kill", "2"),
    "first killed": ("kill", "0"),
    "stopped": ("stop", "2"),
    "first stopped": ("stop", "0"),
    "loop": ("loop", "2"),
    "first loops": ("loop", "0"),
    "two loop": ("loop", "1,2"),
    "all stopped": ("stop", "0,1,2,3"),
    "one leaves": ("leave", "2"),
}


def torchrun(way: str, who: str = "", size: int = 2) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a job under torchrun; asserts that no process of it is left."""
    mark = f"mark-{uuid.uuid4()}"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={size}"]
    return finished(Popen([*command, SCRIPT, way, who, str(TIMEOUT_S), mark], {"OMP_NUM_THREADS": "1"}), mark)


def Popen(command: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(process: subprocess.Popen[str], mark: str) -> tuple[int, str, str]:
    try:
        stdout, stderr = process.communicate(timeout=LIMIT_S)
    finally:
        left = [p for p in psutil.process_iter(["cmdline"]) if mark in (p.info["cmdline"] or [])]
        for p in left:
            p.kill()
        process.kill()
    assert not left
    return process.returncode, stdout, stderr


UNDER_TORCHRUN = {"none": "", "user error": "1", "kill": "1", "stop": "1", "loop": "1"}


@pytest.fixture(scope="module")
def under_torchrun():
    """One after the other, beside the tests: each imports torch three times."""
    with ThreadPoolExecutor(1) as pool:
        yield {way: pool.submit(torchrun, way, who) for way, who in UNDER_TORCHRUN.items()}


@pytest.fixture(scope="module")
def jobs(tmp_path_factory, under_torchrun):
    """All at once: they wait more than they work."""
    folder = tmp_path_factory.mktemp("jobs")
    running = {name: Job(folder / name, *how) for name, how in JOBS.items()}
    yield running
    for job in running.values():
        for process in job.processes:
            process.kill()


@pytest.mark.parametrize(
    ("job", "failing", "code", "message"),
    [
        ("one user error", 2, 2, f"error: rank 2 of 4: {SENTENCE}"),
        ("exit", 1, 3, "error: rank 1 of 4: exit code 3"),
        ("killed", 2, -signal.SIGKILL, f"error: rank 2 of 4 {DIED}"),
        ("first killed", 0, -signal.SIGKILL, f"error: rank 0 of 4 {DIED}"),
    ],
)
def test_every_rank_ends_with_one_line(jobs, job, failing, code, message):
    codes, texts = jobs[job].ended()
    assert codes == [code if rank == failing else 1 for rank in range(4)]
    assert texts == ["" if rank == failing and code < 0 else f"{message}\n" for rank in range(4)]


@pytest.mark.parametrize(("job", "failing"), [("stopped", 2), ("first stopped", 0)])
def test_a_stopped_rank_is_killed(jobs, job, failing):
    codes, texts = jobs[job].ended()
    assert codes == [-signal.SIGKILL if rank == failing else 1 for rank in range(4)]
    others = texts[:failing] + texts[failing + 1 :]
    silent = [text.startswith(f"error: rank {failing} of 4 does not answer (last sign of life") for text in others]
    assert all(text.count("\n") == 1 for text in others)
    # who finds rank 0 silent kills it; another rank may see its end before it has found out by itself
    first_ended = [failing == 0 and text == f"error: rank 0 of 4 {DIED}\n" for text in others]
    assert any(silent) and all(map(max, silent, first_ended)), others


def test_a_job_that_is_stopped_as_a_whole_goes_on(jobs):
    ranks = [psutil.Process(process.pid) for process in jobs["all stopped"].processes]
    deadline = time.monotonic() + LIMIT_S
    while any(rank.status() != psutil.STATUS_STOPPED for rank in ranks) and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(TIMEOUT_S / 2 + 1)  # one that is stopped alone for so long is killed
    for rank in ranks:
        rank.resume()
    assert jobs["all stopped"].ended() == ([0] * 4, [""] * 4)


@pytest.mark.parametrize(("job", "failing"), [("loop", [2]), ("first loops", [0]), ("two loop", [1, 2])])
def test_a_rank_that_loops_is_named_and_shows_where_it_is(jobs, job, failing):
    codes, texts = jobs[job].ended()
    assert codes == [1] * 4
    name = {"loop": "rank 2", "first loops": "rank 0", "two loop": "ranks 1, 2"}[job]
    for rank, text in enumerate(texts):
        assert text.endswith(f"error: {name} of 4 {LATE}\n")
        assert text.count("error: ") == 1
        assert ("while True:" in text) == (rank in failing)


def test_a_fault_of_the_program_shows_its_traceback_once(jobs):
    codes, texts = jobs["one error"].ended()
    assert codes == [1] * 4
    message = "error: rank 2 of 4: ValueError: three rows\n"
    assert [text for rank, text in enumerate(texts) if rank != 2] == [message] * 3
    assert texts[2].startswith("Traceback") and "in fail" in texts[2] and texts[2].endswith(message)


def test_what_all_raise_is_written_once(jobs):
    assert jobs["the same user error"].ended() == ([2] * 4, [f"error: {SENTENCE}\n", "", "", ""])
    codes, texts = jobs["the same error"].ended()
    assert codes == [1] * 4
    assert texts[1:] == [""] * 3
    assert texts[0].count("Traceback") == 1 and texts[0].endswith("\nerror: ValueError: three rows\n")


def test_an_interrupt_ends_quietly(jobs):
    assert jobs["interrupt"].ended() == ([130] * 4, ["", "", "interrupted\n", ""])


def test_a_rank_that_leaves_too_early_is_named(jobs):
    codes, texts = jobs["one leaves"].ended()
    assert codes == [1] * 4
    assert set(texts) == {f"error: rank 2 of 4 had finished while others waited {TIMEOUT_S} s for it\n"}


def test_ranks_that_do_not_come_are_named(jobs):
    message = f"error: rank 1 of 3 did not come within {TIMEOUT_S} s\n"
    assert jobs["one does not come"].ended() == ([2, 2], [message, message])
    codes, texts = jobs["first does not come"].ended()
    assert codes == [2] and "error: rank 0 of 2 did not come to 127.0.0.1:" in texts[0]
    codes, texts = jobs["twice the same"].ended()
    assert codes == [2] * 3 and "error: two processes say that they are rank 2 of 3\n" in texts


def test_ranks_that_succeed_write_nothing():
    """Each a process of its own; one job with Slurm's variables."""
    mark = f"mark-{uuid.uuid4()}"
    command = [sys.executable, SCRIPT, "none", "", str(TIMEOUT_S), mark]
    port, processes = free_port(), []
    for rank in range(2):
        slurm = {"SLURM_PROCID": rank, "SLURM_STEP_NUM_TASKS": 2, "SLURM_LOCALID": rank}
        slurm = {name: str(value) for name, value in slurm.items()} | {"SLURM_STEP_TASKS_PER_NODE": "2(x1)"}
        processes.append(Popen(command, slurm | {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}))
    ended = [process.communicate(timeout=LIMIT_S) for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert ended == [("[4.0, 4.0]\n", ""), ("", "")]


def test_one_process_is_one_rank_without_a_group(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(ValueError, match="as it was"), joined() as ranks:
        assert (ranks.rank, ranks.size, ranks.ranks_per_host, ranks.first) == (0, 1, 1, True)
        assert not dist.is_initialized()
        raise ValueError("as it was")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"LOCAL_RANK": None, "MASTER_PORT": None}, "^LOCAL_RANK, MASTER_PORT not set: start the ranks with torchrun"),
        ({"RANK": "4"}, "^RANK=4, WORLD_SIZE=4, .* is no rank of a job"),
        ({"RANK": "first"}, "^RANK=first, WORLD_SIZE=4, .* is no rank of a job"),
        ({"LOCAL_WORLD_SIZE": "3"}, "LOCAL_WORLD_SIZE=3, .* is no rank of a job"),
        ({"MASTER_PORT": "http"}, "MASTER_PORT=http is no rank of a job"),
        (
            {"WORLD_SIZE": None, "SLURM_STEP_NUM_TASKS": "8", "SLURM_STEP_TASKS_PER_NODE": "2(x2),4"},
            r"^SLURM_STEP_TASKS_PER_NODE=2\(x2\),4: every host must have the same number of ranks",
        ),
        ({"WORLD_SIZE": None, "SLURM_STEP_NUM_TASKS": "2"}, "^RANK, LOCAL_RANK, LOCAL_WORLD_SIZE not set"),
    ],
)
def test_an_environment_that_is_no_rank_is_refused(monkeypatch, change, message):
    for name, value in (variables(0, 4, 1) | change).items():
        monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name, raising=False)
    before = dict(os.environ)
    with pytest.raises(UserError, match=message), joined():
        pass
    assert dict(os.environ) == before


def test_a_port_that_is_taken_is_named(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        for name, value in variables(0, 2, server.getsockname()[1]).items():
            monkeypatch.setenv(name, value)
        with pytest.raises(UserError, match="^rank 0 cannot listen on 127.0.0.1:.*set MASTER_PORT"), joined():
            pass


def add_up(rank: int, addend: float) -> tuple[int, float, str]:
    total = torch.tensor(addend + rank)
    dist.all_reduce(total)
    return os.getpid(), total.item(), f"{os.environ['RANK']} of {os.environ['WORLD_SIZE']}"


def first_model(rank: int) -> list[int]:
    """Ranks of the host, after what a process does once, with all ranks, before its first models."""
    init_collective_validation(dist.group.WORLD)
    host, _ = intra_and_cross_node_pg(torch.device("cpu"))
    return dist.get_process_group_ranks(host)


def fail_on(rank: int, failing: int, way: str) -> None:
    if rank == failing:
        failing_ranks.fail(way)
    dist.barrier()


def test_on_ranks_returns_the_results_by_rank_and_uses_its_processes_again():
    eight, four = on_ranks(8, add_up, 1.0), on_ranks(4, add_up, 2.0)
    assert [result[1:] for result in eight] == [(36.0, f"{rank} of 8") for rank in range(8)]
    assert [result[1:] for result in four] == [(14.0, f"{rank} of 4") for rank in range(4)]
    assert [pid for pid, *_ in four] == [pid for pid, *_ in eight[:4]]
    with pytest.raises(ValueError, match="size is 9"):
        on_ranks(9, add_up, 1.0)


def test_on_ranks_starts_torchrec_anew_for_each_call():
    for size in (2, 8, 4):
        assert on_ranks(size, first_model) == [list(range(size))] * size


@pytest.mark.parametrize(
    ("way", "error", "message"),
    [
        ("error", ValueError, "three rows"),
        ("user error", UserError, SENTENCE),
        ("kill", RuntimeError, "rank 2 of 4 died, exit code -9"),
        ("loop", TimeoutError, "after 1 s rank 0, 1, 2, 3 of 4 had not returned"),
    ],
)
def test_on_ranks_raises_what_the_first_rank_raised_and_works_again(way, error, message):
    with pytest.raises(error, match=message) as raised:
        on_ranks(4, fail_on, 2, way, timeout=1 if way == "loop" else 60)
    notes = "".join(raised.value.__notes__)
    assert ("rank 2 was in:" if way == "loop" else "on rank 2 of 4: ") in notes
    assert way == "kill" or ("failing_ranks.py" in notes and "in fail\n" in notes)
    assert [total for _, total, _ in on_ranks(4, add_up, 0.0)] == [6.0] * 4


def test_the_ranks_of_tests_that_are_killed_end():
    program = "import ranks, test_ranks as t; print(*[r[0] for r in ranks.on_ranks(2, t.add_up, 0)], flush=1); input()"
    process = Popen([sys.executable, "-c", program], {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"})
    workers = [psutil.Process(int(pid)) for pid in process.stdout.readline().split()]
    assert len(workers) == 2
    workers.append(workers[0].parent())  # the server they were forked from
    process.kill()
    process.communicate()
    assert not psutil.wait_procs(workers, timeout=LIMIT_S)[1]


def test_under_torchrun_success_writes_nothing(under_torchrun):
    assert under_torchrun["none"].result() == (0, "[4.0, 4.0]\n", "")


@pytest.mark.parametrize(
    ("way", "message"),
    [
        ("user error", f"error: rank 1 of 2: {SENTENCE}"),
        ("kill", f"error: rank 1 of 2 {DIED}"),
        ("stop", "error: rank 1 of 2 does not answer (last sign of life"),
        ("loop", f"error: rank 1 of 2 {LATE}"),
    ],
)
def test_under_torchrun_the_failing_rank_is_named(under_torchrun, way, message):
    code, stdout, stderr = under_torchrun[way].result()
    assert (code, stdout) == (1, "")
    assert message in stderr
    assert "rank      : 1 (local_rank: 1)" in stderr.partition("Root Cause")[2]
