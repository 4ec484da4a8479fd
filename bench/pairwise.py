"""AlltoAll over gloo as pairs of sends and receives, all receives posted first.

gloo's own AlltoAll posts its sends before its receives. Over links that are slower than memory a pair then often waits
to send until it has received: half duplex, up to twice the time, and not the same from call to call. NCCL's is posted
as it is here. The bytes are the same.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.profiler import record_function

from bench.breakdown import WAIT


class Works(dist.Work):
    """Several transfers in flight, as one. TorchRec waits for what is a Work and for nothing else."""

    def __init__(self, works: list[dist.Work]) -> None:
        super().__init__()
        self._works = works

    def wait(self, timeout: timedelta | None = None) -> bool:
        with record_function(WAIT):
            for work in self._works:
                work.wait(*(() if timeout is None else (timeout,)))
        return True


def all_to_all_single(
    output: torch.Tensor,
    input: torch.Tensor,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
) -> Works | None:
    """torch.distributed.all_to_all_single: rows of `input` to each rank of the group, rows of `output` from each."""
    group = group or dist.group.WORLD
    ranks, me = group.size(), group.rank()
    received = output.split(list(output_split_sizes or [len(output) // ranks] * ranks))
    sent = input.split(list(input_split_sizes or [len(input) // ranks] * ranks))
    steps = range(1, ranks)
    works = [
        dist.irecv(received[source], group=group, group_src=source)
        for source in ((me - step) % ranks for step in steps)
        if received[source].numel()
    ]
    works += [
        dist.isend(sent[to], group=group, group_dst=to)
        for to in ((me + step) % ranks for step in steps)
        if sent[to].numel()
    ]
    received[me].copy_(sent[me])
    in_flight = Works(works)
    if async_op:
        return in_flight
    in_flight.wait()
    return None


@contextmanager
def pairwise_exchange() -> Iterator[None]:
    """Everything that calls torch.distributed.all_to_all_single inside this block exchanges pairwise, if it is gloo."""
    if dist.get_backend() != "gloo":
        yield
        return
    original = dist.all_to_all_single
    dist.all_to_all_single = all_to_all_single
    try:
        yield
    finally:
        dist.all_to_all_single = original
