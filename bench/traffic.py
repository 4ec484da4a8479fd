"""What a rank sends in collectives, inside its host and across hosts, by kind of collective and process group.

    with Traffic(ranks_per_host=2) as traffic:
        loss = model(batch)
        loss.backward()
    traffic.sent()                                   # Sent(inside=..., across=...) in bytes
    traffic.sent(kind="all_to_all", group=(0, 2))

Hosts are logical: rank r is on host r // ranks_per_host. What is counted is payload, as the library hands it to the
process group; what a rank keeps for itself is not sent.

- all_to_all, gather, scatter, send: each byte goes straight to its receiver, so the count is exact, uneven splits too.
- all_reduce, reduce_scatter, all_gather, broadcast, reduce: what the ring algorithm sends, whichever one the backend
  runs. The ring holds the group's ranks in ascending order, so that ranks of one host are neighbours and a ring over h
  hosts crosses h links; all that a rank sends goes to the next rank of the ring, and is across hosts where that rank is
  on another one. Of n ranks and `size` bytes each sends 2 (n - 1) / n size in an all_reduce (rounded down); all but its
  own chunk in a reduce_scatter; all but the next rank's chunk in an all_gather; `size` in a broadcast, the rank before
  the root excepted; `size` in a reduce, the root excepted.
- barriers send no payload.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


@dataclass(frozen=True)
class Sent:
    """Bytes that one rank sends: to ranks of its own host, and to ranks of other hosts."""

    inside: int = 0
    across: int = 0

    def __add__(self, other: "Sent") -> "Sent":
        return Sent(self.inside + other.inside, self.across + other.across)

    def times(self, factor: float) -> "Sent":
        """So many times as much, in whole bytes."""
        return Sent(round(self.inside * factor), round(self.across * factor))


@dataclass(frozen=True)
class Call:
    """One collective that this rank took part in: its kind, the group's global ranks, the bytes' dtype, bytes sent."""

    kind: str
    group: tuple[int, ...]
    dtype: torch.dtype
    sent: Sent


def sent(rank: int, bytes_to: dict[int, int], ranks_per_host: int) -> Sent:
    """What goes from `rank` to each global rank of `bytes_to`, by host; what it keeps for itself is not sent."""
    host = rank // ranks_per_host
    inside = sum(size for to, size in bytes_to.items() if to // ranks_per_host == host and to != rank)
    across = sum(size for to, size in bytes_to.items() if to // ranks_per_host != host)
    return Sent(inside, across)


def next_in_ring(rank: int, group: Sequence[int]) -> int:
    """The rank that `rank` sends to in a ring over the group's global ranks."""
    ring = sorted(group)
    return ring[(ring.index(rank) + 1) % len(ring)]


def all_reduce_bytes(size: int, ranks: int) -> int:
    """What each of `ranks` ranks sends in a ring all_reduce of `size` bytes."""
    return 2 * (ranks - 1) * size // ranks


class Traffic(TorchDispatchMode):
    """Counts the collectives of this process while its `with` block is open, forward and backward.

    It sees the c10d operators, through which torch.distributed calls, TorchRec's exchanges and the reducer of
    DistributedDataParallel (C++) all go. It slows down every operator: count one iteration, time others.

    Args:
        ranks_per_host: L.

    Raises:
        NotImplementedError: inside the block, at a collective that it cannot count (functional collectives, which
            torch.compile and DTensor use): a count that leaves something out would be worse.
    """

    def __init__(self, ranks_per_host: int) -> None:
        super().__init__()
        self.ranks_per_host = ranks_per_host
        self.calls: list[Call] = []  # in the order of the calls

    def sent(self, kind: str | None = None, group: Sequence[int] | None = None) -> Sent:
        """Bytes sent in all, or only in collectives of this kind, or of the group of these global ranks."""
        of_group = None if group is None else sorted(group)
        chosen = [
            call.sent
            for call in self.calls
            if kind in (None, call.kind) and (of_group is None or of_group == sorted(call.group))
        ]
        return sum(chosen, Sent())

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if "c10d" in func.namespace:
            self._count(func, args)
        return func(*args, **(kwargs or {}))

    def _count(self, func: torch._ops.OpOverload, args: tuple) -> None:
        name = func.overloadpacket._qualified_op_name
        if name in _SEND_NOTHING:
            return
        if name not in _COUNTED:
            raise NotImplementedError(f"{name}: a collective that bench.traffic does not count yet; add it to _COUNTED")
        kind, bytes_to = _COUNTED[name]
        named = {argument.name: value for argument, value in zip(func._schema.arguments, args, strict=False)}
        group = tuple(dist.get_process_group_ranks(dist.ProcessGroup.unbox(named["process_group"])))
        rank = dist.get_rank()
        dtype = next((leaf.dtype for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor)), torch.uint8)
        moved = sent(rank, bytes_to(named, group, rank), self.ranks_per_host)
        self.calls.append(Call(kind, group, dtype, moved))


# Each function below takes the operator's arguments by their name in its schema, the group's global ranks in group
# order and this rank, and gives the bytes that this rank sends to each global rank.


def _all_to_all_single(named: dict, group: tuple[int, ...], rank: int) -> dict[int, int]:
    x, rows = named["input"], named["input_split_sizes"]
    rows = rows or [x.shape[0] // len(group)] * len(group)
    row = prod(x.shape[1:]) * x.element_size()
    return {to: count * row for to, count in zip(group, rows, strict=True)}


def _all_to_all(named: dict, group: tuple[int, ...], rank: int) -> dict[int, int]:
    return {to: x.nbytes for to, x in zip(group, named["input_tensors"], strict=True)}


def _all_reduce(named: dict, group: tuple[int, ...], rank: int) -> dict[int, int]:
    return {next_in_ring(rank, group): all_reduce_bytes(_bytes(named["tensors"]), len(group))}


def _all_but_own(whole: str, own: str) -> Callable:
    """Chunks of one size in an all_gather, any in a reduce_scatter."""
    return lambda named, group, rank: {next_in_ring(rank, group): _bytes(named[whole]) - _bytes(named[own])}


def _all_gather(named: dict, group: tuple[int, ...], rank: int) -> dict[int, int]:
    to = next_in_ring(rank, group)
    return {to: sum(_bytes(chunks) - chunks[group.index(to)].nbytes for chunks in named["output_tensors"])}


def _broadcast(named: dict, group: tuple[int, ...], rank: int) -> dict[int, int]:
    to = next_in_ring(rank, group)
    return {} if to == group[named["root_rank"]] else {to: _bytes(named["tensors"])}


def _reduce(named: dict, group: tuple[int, ...], rank: int) -> dict[int, int]:
    return {} if rank == group[named["root_rank"]] else {next_in_ring(rank, group): _bytes(named["tensors"])}


def _gather(named: dict, group: tuple[int, ...], rank: int) -> dict[int, int]:
    return {group[named["root_rank"]]: _bytes(named["input_tensors"])}


def _scatter(named: dict, group: tuple[int, ...], rank: int) -> dict[int, int]:
    if rank != group[named["root_rank"]]:
        return {}
    return {to: x.nbytes for to, x in zip(group, named["input_tensors"][0], strict=True)}


def _send(named: dict, group: tuple[int, ...], rank: int) -> dict[int, int]:
    return {group[named["dst"]]: _bytes(named["tensors"])}


def _bytes(tensors: object) -> int:
    return sum(leaf.nbytes for leaf in tree_leaves(tensors) if isinstance(leaf, torch.Tensor))


_COUNTED = {
    "c10d::alltoall_base_": ("all_to_all", _all_to_all_single),
    "c10d::alltoall_": ("all_to_all", _all_to_all),
    "c10d::allreduce_": ("all_reduce", _all_reduce),
    "c10d::allreduce_coalesced_": ("all_reduce", _all_reduce),
    "c10d::reduce_scatter_": ("reduce_scatter", _all_but_own("input_tensors", "output_tensors")),
    "c10d::_reduce_scatter_base_": ("reduce_scatter", _all_but_own("input_tensor", "output_tensor")),
    "c10d::reduce_scatter_tensor_coalesced_": ("reduce_scatter", _all_but_own("inputs", "outputs")),
    "c10d::allgather_": ("all_gather", _all_gather),
    "c10d::_allgather_base_": ("all_gather", _all_but_own("output_tensor", "input_tensor")),
    "c10d::allgather_into_tensor_coalesced_": ("all_gather", _all_but_own("outputs", "inputs")),
    "c10d::broadcast_": ("broadcast", _broadcast),
    "c10d::reduce_": ("reduce", _reduce),
    "c10d::gather_": ("gather", _gather),
    "c10d::scatter_": ("scatter", _scatter),
    "c10d::send": ("send", _send),
}
_SEND_NOTHING = {
    "c10d::recv_",
    "c10d::recv_any_source_",
    "c10d::barrier",
    "c10d::monitored_barrier_",
    "c10d::check_for_nan",
}
