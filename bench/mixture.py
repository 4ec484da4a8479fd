"""One contestant's operations with the bytes of another: what each part of a speedup is worth, one switched at a time.

The embeddings that go between peers, and the dense gradients, are cut short or padded to the other's number of bytes.
What then arrives is wrong, and no slower or faster for it: for timing alone.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from bench.pairwise import Works


@dataclass(frozen=True)
class Shares:
    """The other's bytes / its own: of embeddings (and their gradients) between peers, of dense gradients."""

    embeddings: float = 1.0
    dense: float = 1.0


OWN = Shares()


class _CutShort(dist.Work):
    """Puts what came into the beginning of each part of `output`, which is 0 beyond it."""

    def __init__(self, work: dist.Work, received: list[torch.Tensor], parts: list[torch.Tensor]) -> None:
        super().__init__()
        self._work, self._received, self._parts = work, received, parts

    def wait(self, timeout=None) -> bool:
        self._work.wait()
        for received, part in zip(self._received, self._parts, strict=True):
            part[: len(received)] = received
        return True


@contextmanager
def peers_exchange(share: float, peers: dist.ProcessGroup) -> Iterator[None]:
    """Inside this block the AlltoAll of floating-point numbers between these peers moves `share` times its bytes."""
    original = dist.all_to_all_single

    def sized(sizes: list[int]) -> list[int]:
        return [math.ceil(size * share) for size in sizes]

    def all_to_all_single(output, input, output_split_sizes=None, input_split_sizes=None, group=None, async_op=False):
        if group is not peers or not input.is_floating_point():
            return original(output, input, output_split_sizes, input_split_sizes, group, async_op)
        wanted, given = sized(output_split_sizes), sized(input_split_sizes)
        if share > 1:
            more_out = [wide - size for wide, size in zip(wanted, output_split_sizes, strict=True)]
            more_in = [wide - size for wide, size in zip(given, input_split_sizes, strict=True)]
            works = [
                original(output, input, output_split_sizes, input_split_sizes, group, True),
                original(input.new_empty(sum(more_out)), input.new_zeros(sum(more_in)), more_out, more_in, group, True),
            ]
            work = Works(works)
        else:
            sent = torch.cat([part[:size] for part, size in zip(input.split(input_split_sizes), given, strict=True)])
            received = output.new_empty(sum(wanted))
            output.zero_()
            work = _CutShort(
                original(received, sent, wanted, given, group, True),
                list(received.split(wanted)),
                list(output.split(output_split_sizes)),
            )
        if async_op:
            return work
        work.wait()
        return None

    dist.all_to_all_single = all_to_all_single
    try:
        yield
    finally:
        dist.all_to_all_single = original


def share_dense(model: torch.nn.Module, share: float) -> None:
    """Let the DistributedDataParallel over all ranks send `share` times the bytes of its gradients from now on."""
    data_parallel = next(m for m in model.modules() if isinstance(m, DistributedDataParallel))

    def reduce(_: None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        gradients = bucket.buffer().div_(dist.get_world_size())
        own, size = len(gradients), math.ceil(len(gradients) * share)
        sent = gradients[:size] if size <= own else torch.cat([gradients, gradients.new_zeros(size - own)])
        work = dist.all_reduce(sent, async_op=True)
        return work.get_future().then(lambda _: gradients if size <= own else sent[:own])

    data_parallel.register_comm_hook(None, reduce)
