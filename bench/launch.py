"""Commands that run on ranks: their shape, and starting them on this machine where they were not started as ranks."""

import argparse
import os
import sys
from collections.abc import Callable
from typing import NoReturn

import torch.distributed as dist

from bench.errors import UserError
from bench.files import check_place
from bench.rank_environment import MEMORY, threads
from bench.ranks import Ranks, joined
from dmt import Topology


def run(
    module: str,
    args: argparse.Namespace,
    check: Callable,
    compare: Callable[[argparse.Namespace, Ranks], int],
    timeout_s: float = 120,
):
    """compare(args, ranks) on the ranks there are; without any, check(args, ranks) and start args.ranks, or 4.

    No rank waits longer than timeout_s for another.
    """
    with joined(timeout_s) as ranks:
        if dist.is_initialized():
            return compare(args, ranks)
    check(args, args.ranks or 4)
    on_ranks(module, args.ranks or 4)


def shape(args: argparse.Namespace, ranks: int, ranks_per_host: int) -> Topology:
    """The topology of `ranks` ranks; checks --ranks and --json too.

    Raises:
        UserError: one that cannot be.
    """
    if args.ranks not in (None, ranks):
        raise UserError(f"--ranks {args.ranks}: {ranks} ranks were started; leave --ranks out")
    check_place(args.json, "--json")
    try:
        return Topology(ranks, ranks_per_host)
    except ValueError as error:
        raise UserError(f"--ranks-per-host {ranks_per_host}: {error}") from None


def on_ranks(module: str, ranks: int) -> NoReturn:
    """`python -m module` with this process's arguments on so many ranks: torchrun takes the place of this process."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    environment = MEMORY | threads(ranks) | os.environ
    sys.stdout.flush()
    os.execve(sys.executable, [*command, "-m", module, *sys.argv[1:]], environment)
