"""Sharding plans that keep each tower on its own ranks, by TorchRec's planner."""

import copy
import dataclasses
import math
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torchrec.distributed.embedding_types import ModuleSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner
from torchrec.distributed.planner import Topology as Machines
from torchrec.distributed.planner.constants import INTRA_NODE_BANDWIDTH
from torchrec.distributed.planner.partitioners import GreedyPerfPartitioner
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.planner.types import (
    BasicCommsBandwidths,
    HardwareConfig,
    KernelConfig,
    ParameterConstraints,
    Partitioner,
    ShardingOption,
    TopologyFactory,
    TrainerConfig,
)
from torchrec.distributed.types import ShardingPlan

from dmt.sharded_tables import BY_COLUMNS
from dmt.sharding import TowerEmbeddingSharder, slot_of_table
from dmt.topology import Topology
from dmt.towers import TowerEmbedding


def sharding_plan(
    model: nn.Module,
    sharders: list[ModuleSharder[nn.Module]],
    device: torch.device | None = None,
    hardware: HardwareConfig | None = None,
    **planner: Any,
) -> ShardingPlan:
    """The plan of TorchRec's EmbeddingShardingPlanner in which tables of a tower stay on the ranks of its slot.

    Every rank calls this at the same point; rank 0 plans. Modules without towers are planned over all ranks.

    Args:
        sharders: as given to DistributedModelParallel; one of them a TowerEmbeddingSharder.
        hardware: memory and bandwidths; TorchRec's defaults are a V100's. The bandwidth between hosts is not asked
            for: what crosses hosts is the same in every plan.
        planner: further arguments of EmbeddingShardingPlanner: batch_size, constraints, ...

    Raises:
        ValueError: no TowerEmbeddingSharder, or fewer towers than slots.
        torchrec.distributed.planner.types.PlannerError: no plan fits the memory.
    """
    topology = next((sharder.topology for sharder in sharders if isinstance(sharder, TowerEmbeddingSharder)), None)
    if topology is None:
        raise ValueError("none of the sharders is a TowerEmbeddingSharder, which says where towers are")
    device = device or torch.device("cpu")
    hardware = hardware or HardwareConfig()
    inside = hardware.intra_host_bw or INTRA_NODE_BANDWIDTH
    machines = TopologyFactory.create_topology(
        # The planner spreads a table's rows over local_world_size ranks: a slot's.
        TrainerConfig(world_size=topology.ranks, local_world_size=topology.tower_ranks),
        hardware,
        KernelConfig(compute_device=device.type, generalized_comms_bandwidths=BasicCommsBandwidths(inside, inside)),
    )
    planner.setdefault("storage_reservation", FixedPercentageStorageReservation(percentage=0.15))
    planner["constraints"] = _without_empty_shards(model, topology, planner.get("constraints") or {})
    made = EmbeddingShardingPlanner(machines, partitioner=InSlots(topology), **planner)
    if dist.is_initialized() and topology.ranks > 1:
        return made.collective_plan(model, sharders, dist.GroupMember.WORLD)
    return made.plan(model, sharders)


def _without_empty_shards(
    model: nn.Module, topology: Topology, constraints: dict[str, ParameterConstraints]
) -> dict[str, ParameterConstraints]:
    """Tables that have too few rows for the ranks of a slot are left whole or divided by columns, if not forbidden."""
    tables = [t for m in model.modules() if isinstance(m, TowerEmbedding) for t in m.embedding_bag_configs()]
    ranks, found = topology.tower_ranks, dict(constraints)
    for table in tables:
        given = constraints.get(table.name, ParameterConstraints())
        # the planner gives ceil(rows / ranks) rows to each rank, as long as there are some
        is_small = math.ceil(table.num_embeddings / ranks) * (ranks - 1) >= table.num_embeddings
        if is_small and not given.sharding_types:
            found[table.name] = dataclasses.replace(given, sharding_types=list(BY_COLUMNS))
    return found


class InSlots(Partitioner):
    """TorchRec's greedy partitioner, slot by slot: for an EmbeddingShardingPlanner of your own."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._greedy = GreedyPerfPartitioner()

    def partition(self, proposal: list[ShardingOption], storage_constraint: Machines) -> list[ShardingOption]:
        """Give each shard a rank; options of towers get ranks of their slot."""
        places: dict[int, dict[str, int]] = {}  # module -> table -> slot
        by_slot: dict[int | None, list[ShardingOption]] = {}
        for option in proposal:
            module = option.module[1]
            if id(module) not in places:
                has_towers = isinstance(module, TowerEmbedding)
                places[id(module)] = slot_of_table(module, self._topology) if has_towers else {}
            slot = places[id(module)].get(option.name)
            by_slot.setdefault(slot, []).append(option)
        left = copy.copy(storage_constraint)  # what each partition leaves to the next one
        left._devices = copy.deepcopy(storage_constraint.devices)
        for slot in sorted(by_slot, key=lambda slot: (slot is None, slot)):  # those without a choice of hosts first
            self._greedy.partition(by_slot[slot], left if slot is None else self._of_slot(left, slot))
            for shard in (shard for option in by_slot[slot] for shard in option.shards):
                left.devices[shard.rank].storage -= shard.storage
                left.devices[shard.rank].perf += shard.perf
        return proposal

    def _of_slot(self, machines: Machines, slot: int) -> Machines:
        part, ranks = copy.copy(machines), self._topology.tower_ranks
        part._devices = machines.devices[slot * ranks : (slot + 1) * ranks]
        part._world_size = ranks
        return part
