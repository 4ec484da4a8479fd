"""The ranks of one job: joined at its start, ended together where one of them fails."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from bench.errors import UserError
from bench.watch import Watch

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
SLURM = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE")


@dataclass(frozen=True)
class Ranks:
    """This process among the `size` of its job; ranks_per_host of them on each host."""

    rank: int
    size: int
    ranks_per_host: int
    device: torch.device

    @property
    def first(self) -> bool:
        """Whether this is the rank that speaks for all: logs, records, progress."""
        return self.rank == 0


@contextmanager
def joined(timeout_s: float = 120) -> Iterator[Ranks]:
    """Joins the ranks that torchrun or srun started into the default process group; leaves it when all are through.

    gloo on CPU; NCCL where there is a GPU for every rank of the host. The environment gives RANK, WORLD_SIZE,
    LOCAL_RANK and LOCAL_WORLD_SIZE (torchrun; from Slurm's variables under srun), MASTER_ADDR and MASTER_PORT. With
    none of them set this is a job of one rank, without a process group.

    No rank waits longer than timeout_s for another: to come, in an exchange, or at the end. A rank that raises, dies,
    stops or hangs ends the job, at once or after a time between timeout_s / 2 and 2 x timeout_s (bench.watch says how
    it is found): every rank writes one line with that rank's number and what it said, and exits, with 2 from an error
    that is the user's, else 1, without running what stands behind the block. What all ranks raise is written once.

    Raises:
        UserError: the environment lacks a variable or contradicts itself, or a rank did not come.
    """
    if "WORLD_SIZE" not in os.environ and int(os.environ.get("SLURM_STEP_NUM_TASKS", 1)) == 1:
        yield Ranks(0, 1, 1, _device(0, 1))
        return
    rank, size, local_rank, ranks_per_host = _environment()
    ranks = Ranks(rank, size, ranks_per_host, _device(local_rank, ranks_per_host))
    store = _store(rank, size, timeout_s)
    watch = Watch(store, rank, size, timeout_s)
    leave = None
    try:
        if ranks.device.type == "cuda":
            torch.cuda.set_device(ranks.device)
        dist.init_process_group(
            "nccl" if ranks.device.type == "cuda" else "gloo",
            store=dist.PrefixStore("group", store),
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=timeout_s),
        )
        try:
            yield ranks
        except SystemExit as error:
            if error.code:
                raise
            leave = error  # such as --help: as good as the end of the block
        watch.meet()
    except BaseException as error:
        watch.fail(error)
    dist.destroy_process_group()
    watch.close()
    if leave is not None:
        raise leave


def _device(local_rank: int, ranks_per_host: int) -> torch.device:
    if torch.cuda.device_count() >= ranks_per_host:
        return torch.device("cuda", local_rank)
    return torch.device("cpu")


def _environment() -> tuple[int, int, int, int]:
    """The values of NAMES. Those of Slurm are set under NAMES too: TorchRec reads them there."""
    found = {name: os.environ.get(name, "") for name in (*NAMES, "MASTER_ADDR", "MASTER_PORT")}
    if not found["WORLD_SIZE"]:
        tasks = os.environ.get(SLURM[3], "")
        if "," in tasks:
            raise UserError(f"{SLURM[3]}={tasks}: every host must have the same number of ranks")
        slurm = zip(NAMES, SLURM, strict=True)
        found |= {name: os.environ.get(theirs, "").partition("(")[0] for name, theirs in slurm}  # 4(x2): 4 a node
    missing = [name for name, value in found.items() if not value]
    if missing:
        raise UserError(f"{', '.join(missing)} not set: start the ranks with torchrun, or set them for each rank")
    try:
        rank, size, local_rank, ranks_per_host = (int(found[name]) for name in NAMES)
        port = int(found["MASTER_PORT"])
        fits = 0 <= rank < size and 0 <= local_rank < ranks_per_host and size % ranks_per_host == 0 and 0 < port < 65536
    except ValueError:
        fits = False
    if not fits:
        shown = ", ".join(f"{name}={found[name]}" for name in (*NAMES, "MASTER_PORT"))
        raise UserError(f"{shown} is no rank of a job: ranks count from 0, and every host has the same number of them")
    os.environ.update(found)
    return rank, size, local_rank, ranks_per_host


def _store(rank: int, size: int, timeout_s: float) -> dist.Store:
    """The key-value store at MASTER_ADDR: torchrun's own, or else rank 0 opens it."""
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    opens = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    try:
        store = dist.TCPStore(host, port, is_master=opens, timeout=timedelta(seconds=timeout_s), wait_for_workers=False)
    except dist.DistNetworkError as error:
        if opens:
            raise UserError(f"rank 0 cannot listen on {host}:{port}: set MASTER_PORT to a free port") from error
        raise UserError(f"rank 0 of {size} did not come to {host}:{port} within {timeout_s:g} s") from error
    return dist.PrefixStore(f"job-{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store)
