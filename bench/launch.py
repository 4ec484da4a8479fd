"""Start a command of bench on ranks of this machine, for one that was not started as a rank itself."""

import os
import sys
from typing import NoReturn

from bench.arguments import cores


def on_ranks(module: str, ranks: int) -> NoReturn:
    """`python -m module` with this process's arguments on so many ranks: torchrun takes the place of this process."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    threads = str(max(1, cores() // ranks))
    sys.stdout.flush()
    os.execve(sys.executable, [*command, "-m", module, *sys.argv[1:]], {"OMP_NUM_THREADS": threads} | os.environ)
