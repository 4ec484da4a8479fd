"""Where ranks live: hosts, towers on hosts, peers, and the process groups that the exchange uses (paper, section 3.1).

G ranks, L ranks a host, K hosts a tower. Ranks are numbered host by host: rank g is on host g // L. Hosts are logical:
L is given, so that one machine can stand for several.

A slot is the K hosts, K * L ranks, that hold a tower (or several: a model of more towers than slots puts neighbouring
towers into one slot). Peers are the ranks at the same place of their slots, one of each slot. With K = 1 that is the
paper's g % L == g' % L. Peer order sorts ranks by (place, slot), so that peers become neighbours; the paper prints
(g % T, g // L), which agrees with its own definition of peers only where T = L, as in its example.
"""

import os
from dataclasses import dataclass

import torch.distributed as dist


@dataclass(frozen=True)
class Topology:
    """G ranks on G / L hosts, K hosts a tower.

    Raises:
        ValueError: a shape that cannot be; says why and names the nearest shapes that can.
    """

    ranks: int
    ranks_per_host: int
    hosts_per_tower: int = 1

    def __post_init__(self) -> None:
        for name in ("ranks", "ranks_per_host", "hosts_per_tower"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be at least 1")
        if self.ranks % self.ranks_per_host:
            low = self.ranks // self.ranks_per_host * self.ranks_per_host
            nearest = [number for number in (low, low + self.ranks_per_host) if number]
            raise ValueError(
                f"{self.ranks} ranks do not fill hosts of {self.ranks_per_host}: use {_or(nearest)} ranks, "
                f"or {_or(_divisors(self.ranks))} ranks a host"
            )
        if self.hosts % self.hosts_per_tower:
            raise ValueError(
                f"{self.hosts} hosts do not make towers of {self.hosts_per_tower} hosts: use "
                f"{_or(_divisors(self.hosts))} hosts a tower"
            )

    @staticmethod
    def from_environment(hosts_per_tower: int = 1) -> "Topology":
        """The shape that torchrun set: WORLD_SIZE ranks, LOCAL_WORLD_SIZE a host; or Slurm's tasks and tasks a node.

        Raises:
            ValueError: neither has set it, Slurm's nodes have unequal tasks, or a shape that cannot be.
        """
        env = os.environ
        if "WORLD_SIZE" in env and "LOCAL_WORLD_SIZE" in env:
            return Topology(int(env["WORLD_SIZE"]), int(env["LOCAL_WORLD_SIZE"]), hosts_per_tower)
        if "SLURM_NTASKS" in env and "SLURM_STEP_TASKS_PER_NODE" in env:
            per_node = env["SLURM_STEP_TASKS_PER_NODE"]  # such as 8(x4)
            if not per_node.partition("(")[0].isdigit() or "," in per_node:
                raise ValueError(f"Slurm's nodes have {per_node} tasks: give every node the same number")
            return Topology(int(env["SLURM_NTASKS"]), int(per_node.partition("(")[0]), hosts_per_tower)
        raise ValueError(
            "neither torchrun (WORLD_SIZE, LOCAL_WORLD_SIZE) nor Slurm (SLURM_NTASKS, SLURM_STEP_TASKS_PER_NODE) "
            "says how many ranks there are: start with one of them, or give Topology(ranks, ranks_per_host)"
        )

    @property
    def hosts(self) -> int:
        """G / L."""
        return self.ranks // self.ranks_per_host

    @property
    def tower_ranks(self) -> int:
        """K * L, the ranks of a slot."""
        return self.hosts_per_tower * self.ranks_per_host

    @property
    def slots(self) -> int:
        """G / (K * L): with a tower in each, the paper's T."""
        return self.ranks // self.tower_ranks

    def host_of(self, rank: int) -> list[int]:
        """All ranks on the host of this one."""
        first = rank - rank % self.ranks_per_host
        return list(range(first, first + self.ranks_per_host))

    def tower_of(self, rank: int) -> list[int]:
        """All ranks of the slot of this one."""
        first = rank - rank % self.tower_ranks
        return list(range(first, first + self.tower_ranks))

    def peers_of(self, rank: int) -> list[int]:
        """The ranks at this one's place of every slot, itself included, slot by slot."""
        return list(range(rank % self.tower_ranks, self.ranks, self.tower_ranks))

    def peer_order(self) -> list[int]:
        """All ranks, peers beside each other."""
        return sorted(range(self.ranks), key=lambda g: (g % self.tower_ranks, g // self.tower_ranks))

    def slot_of_tower(self, towers: int) -> list[int]:
        """The slot of each of `towers` towers: neighbours share one where there are more towers than slots.

        Raises:
            ValueError: no tower, or fewer than slots (some hosts would hold no tower).
        """
        if towers < 1:
            raise ValueError(f"there must be at least one tower, not {towers}")
        if towers < self.slots:
            fits = self.hosts // towers if self.hosts % towers == 0 else None
            advice = f"{fits} hosts a tower" if fits else f"a number of hosts that {towers} divides"
            raise ValueError(
                f"{towers} towers do not fill {self.hosts} hosts at {self.hosts_per_tower} a tower: use {advice}, "
                f"or at least {self.slots} towers"
            )
        return [tower * self.slots // towers for tower in range(towers)]


@dataclass(frozen=True)
class Groups:
    """The process groups of one rank: its host's ranks, its slot's ranks, its peers."""

    host: dist.ProcessGroup
    tower: dist.ProcessGroup
    peers: dist.ProcessGroup


def create_groups(topology: Topology, like: dist.ProcessGroup | None = None) -> Groups:
    """The groups of this rank, with the backend and the timeout of `like` (None: of the default group).

    Every rank calls this, at the same point: process groups are made by all ranks together.
    """
    like = like or dist.group.WORLD
    options = getattr(like._get_backend(like._device_types[0]), "options", None)
    timeout, backend = getattr(options, "_timeout", None), dist.get_backend(like)

    def mine(partition: list[list[int]]) -> dist.ProcessGroup:
        return dist.new_subgroups_by_enumeration(partition, timeout, backend)[0]

    def all_groups(of) -> list[list[int]]:
        return sorted({tuple(of(rank)) for rank in range(topology.ranks)})

    tower = mine(all_groups(topology.tower_of))
    peers = mine(all_groups(topology.peers_of))
    host = tower if topology.hosts_per_tower == 1 else mine(all_groups(topology.host_of))
    return Groups(host, tower, peers)


def _divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]


def _or(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:-1])) + (" or " if len(numbers) > 1 else "") + str(numbers[-1])
