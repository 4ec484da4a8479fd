"""A job whose ranks fail in the way that is asked for: python failing_ranks.py WAY RANKS TIMEOUT_S [MARK].

MARK is for the caller, to find the processes by.
"""

import os
import signal
import sys
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch
import torch.distributed as dist

from bench.errors import UserError, cli
from bench.ranks import joined


def fail(way: str) -> None:
    match way:
        case "user error":
            raise UserError("rows.npz is not there: prepare it")
        case "error":
            raise ValueError("three rows\nof which none is right")
        case "exit":
            sys.exit(3)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "interrupt":
            raise KeyboardInterrupt
        case "loop":
            while True:
                pass


def main() -> None:
    way, who, timeout_s = sys.argv[1], sys.argv[2].split(","), float(sys.argv[3])
    with joined(timeout_s) as ranks:
        ones = torch.ones(2)
        dist.all_reduce(ones)
        if str(ranks.rank) in who:
            if way == "leave":
                return
            fail(way)
        dist.all_reduce(ones)
    if ranks.first:
        print(ones.tolist(), flush=True)


def start(context: ForkServerContext, variables: dict[str, str], arguments: list[str], stderr: Path) -> BaseProcess:
    """A rank with these variables, started by hand: nothing but the caller knows of its process."""
    process = context.Process(target=_rank, args=(variables, arguments, stderr), daemon=True)
    process.start()
    return process


def _rank(variables: dict[str, str], arguments: list[str], stderr: Path) -> None:
    os.environ.update(variables)
    sys.argv[1:] = arguments
    os.dup2(os.open(stderr, os.O_WRONLY | os.O_CREAT), 2)
    cli(main)


if __name__ == "__main__":
    cli(main)
