"""Start a command of bench on ranks of this machine, for one that was not started as a rank itself."""

import os
import subprocess
import sys

from bench.arguments import cores


def on_ranks(module: str, ranks: int) -> int:
    """`python -m module` with this process's arguments on so many ranks, by torchrun; its exit code."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    threads = str(max(1, cores() // ranks))
    env = {"OMP_NUM_THREADS": threads} | os.environ
    return subprocess.run([*command, "-m", module, *sys.argv[1:]], env=env).returncode
