"""Runs a kernel that releases the interpreter lock on as many threads as torch uses."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import torch


def split_range(size: int, work: Callable[[int, int], None]) -> None:
    """Call work(first, last) on parts of range(size) at once, one part a torch thread; returns when all are done."""
    workers = min(torch.get_num_threads(), size)
    if workers <= 1:
        work(0, size)
        return
    bounds = [size * i // workers for i in range(workers + 1)]
    list(_pool(workers).map(work, bounds[:-1], bounds[1:]))


@cache
def _pool(workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers)
