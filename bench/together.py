"""What ranks tell each other outside of a training step. Without a process group every function is that of one rank."""

from typing import Any

import torch
import torch.distributed as dist

from bench.ranks import Ranks

ALONE = Ranks(0, 1, 1, torch.device("cpu"))  # one process, without a process group


def from_first(value: Any) -> Any:
    """Rank 0's value, on every rank."""
    if not dist.is_initialized():
        return value
    values = [value]
    dist.broadcast_object_list(values, src=0)
    return values[0]


def of_all(value: Any) -> list[Any]:
    """The values of all ranks, by rank, on every rank."""
    if not dist.is_initialized():
        return [value]
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def at_first(value: Any) -> list[Any] | None:
    """The values of all ranks, by rank, on rank 0; None elsewhere."""
    if not dist.is_initialized():
        return [value]
    values = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(value, values)
    return values


def barrier() -> None:
    """Wait for all ranks."""
    if dist.is_initialized():
        dist.barrier()
