"""The ways to get embeddings from the ranks that hold them to the ranks that need them, which bench.exchange compares.

    flat              TorchRec's EmbeddingBagCollection, tables whole, over all ranks
    tower_collection  TorchRec's EmbeddingTowerCollection, a tower a host
    sptt              dmt.TowerEmbedding, a tower a host; one way for each form of step c

All have the same tables with the same weights, FBGEMM's fused SGD, and plans of TorchRec's planner; the tower ways have
the same towers, which pass through or (CR 2, 4, ...) are one linear layer each.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import get_args

import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor, KeyedTensor
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embedding_tower_sharding import EmbeddingTowerCollectionSharder
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner
from torchrec.distributed.planner import types as planner
from torchrec.distributed.types import Awaitable, ModuleSharder, ShardingPlan, ShardingType

from bench import traffic_formulas as formulas
from bench.batch import tables
from bench.tower_collection import output_keys, shardable, tower_collection
from dmt import PassThrough, Topology, TowerEmbedding, TowerEmbeddingSharder, naive_partition, sharding_plan
from dmt.sharding import Permute

PERMUTES: tuple[str, ...] = get_args(Permute)
LEARNING_RATE = 0.5
FUSED_SGD = {"optimizer": EmbOptimType.EXACT_SGD, "learning_rate": LEARNING_RATE}


@dataclass(frozen=True)
class Sizes:
    """F features of `dim` columns and `rows` rows each, `local_batch` samples a rank, `ids` ids a bag."""

    features: int
    dim: int
    rows: int
    local_batch: int
    ids: int

    @property
    def names(self) -> list[str]:
        return [f"f{i}" for i in range(self.features)]

    def tables(self) -> list[EmbeddingBagConfig]:
        return tables(self.names, [self.rows] * self.features, self.dim)


@dataclass
class Way:
    """One way, ready to run on this rank.

    name: as printed.
    ratio: compression ratio of its tower modules, 1 where embeddings pass through.
    model: sharded.
    keys: what the columns of its output are, (feature or tower_t, width) from left to right.
    shards: where the tables are.
    dense: parameters of its tower modules on this rank.
    predict: its formula of bench.traffic_formulas, (workload, rank) -> bytes by part.
    """

    name: str
    ratio: int
    model: nn.Module
    keys: list[tuple[str, int]]
    shards: list[formulas.Shard]
    predict: Callable[[formulas.Workload, int], formulas.Parts]

    def __post_init__(self) -> None:
        self.dense = [parameter for name, parameter in self.model.named_parameters() if "embedding_bags" not in name]

    def __call__(self, features: KeyedJaggedTensor) -> torch.Tensor:
        """Ids of this rank's samples -> (B, sum of the keys' widths)."""
        output = self.model(features)
        output = output.wait() if isinstance(output, Awaitable) else output
        return output.values() if isinstance(output, KeyedTensor) else output


class Case:
    """The model that all ways are forms of: tables, partition, weights; T towers, one a host.

    Weights come from the seed and are the same on every rank.
    """

    def __init__(self, sizes: Sizes, topology: Topology, device: torch.device, seed: int) -> None:
        self.sizes, self.topology, self.device, self.seed = sizes, topology, device, seed
        self.tables = sizes.tables()
        self.partition = naive_partition(sizes.features, topology.hosts)

    def table_weight(self, table: str) -> torch.Tensor:
        """(rows, dim) of the table of this name."""
        place = [config.name for config in self.tables].index(table)
        random = torch.Generator().manual_seed(self.seed + place)
        return torch.rand(self.sizes.rows, self.sizes.dim, generator=random) - 0.5

    def towers(self, ratio: int) -> list[nn.Module]:
        """A module for each tower: PassThrough for a ratio of 1, else Linear to 1 / ratio of its width."""
        widths = [len(group) * self.sizes.dim for group in self.partition]
        if ratio == 1:
            return [PassThrough(width) for width in widths]
        random = torch.Generator().manual_seed(self.seed - ratio)
        towers = [nn.Linear(width, width // ratio, bias=False) for width in widths]
        for tower in towers:
            with torch.no_grad():
                tower.weight.copy_(torch.randn(tower.weight.shape, generator=random) / tower.in_features**0.5)
        return towers

    def one_process(self, ratio: int) -> TowerEmbedding:
        """The oracle: all tables and towers in this process."""
        model = TowerEmbedding(self.tables, self.partition, self.towers(ratio))
        with torch.no_grad():
            for table, bag in model.embedding_bag_collection.embedding_bags.items():
                bag.weight.copy_(self.table_weight(table))
        return model

    def set_tables(self, way: Way) -> None:
        """Put the weights back into the sharded tables."""
        for table, shard, offsets in table_shards(way.model):
            rows, columns = shard.shape
            whole = self.table_weight(table)
            shard.copy_(whole[offsets[0] : offsets[0] + rows, offsets[1] : offsets[1] + columns])

    def flat(self) -> Way:
        model = EmbeddingBagCollection(tables=self.tables, device=torch.device("meta"))
        sharder = EmbeddingBagCollectionSharder(fused_params=FUSED_SGD)
        plan = self._plan(model, sharder, ShardingType.TABLE_WISE)
        sharded = self._sharded(model, plan, sharder)
        keys = [(name, self.sizes.dim) for name in sharded.module._embedding_names]
        return Way("flat", 1, sharded, keys, self._shards(plan), formulas.flat)

    def tower_collection(self, ratio: int = 1) -> Way:
        model = tower_collection(self.tables, self.partition, self.towers(ratio))
        sharder = EmbeddingTowerCollectionSharder(fused_params=FUSED_SGD)
        plan = self._plan(model, sharder, ShardingType.TABLE_COLUMN_WISE)
        with shardable(self.topology.ranks_per_host):
            sharded = self._sharded(model, plan, sharder)
        return self._tower_way(
            "tower_collection", ratio, sharded, output_keys(sharded), plan, formulas.tower_collection
        )

    def sptt(self, permute: str, ratio: int = 1) -> Way:
        model = TowerEmbedding(self.tables, self.partition, self.towers(ratio), device=torch.device("meta"))
        sharder = TowerEmbeddingSharder(self.topology, fused_params=FUSED_SGD, permute=permute)
        constraints, batch = self._whole_tables(ShardingType.TABLE_WISE), self.sizes.local_batch
        plan = sharding_plan(model, [sharder], self.device, batch_size=batch, constraints=constraints)
        sharded = self._sharded(model, plan, sharder)
        keys = list(zip(sharded.module.out_keys, sharded.module.out_length_per_key, strict=True))
        return self._tower_way(f"sptt {permute}", ratio, sharded, keys, plan, formulas.sptt)

    def _tower_way(self, name, ratio, sharded, keys, plan, formula) -> Way:
        towers = self.towers(ratio)
        shards = self._shards(plan)
        slot_of = {shard.feature: shard.rank // self.topology.tower_ranks for shard in shards}
        outputs, module_bytes = [0] * self.topology.slots, [0] * self.topology.slots
        for group, tower in zip(self.partition, towers, strict=True):
            outputs[slot_of[group[0]]] += tower.out_features
            module_bytes[slot_of[group[0]]] += sum(parameter.nbytes for parameter in tower.parameters())

        def predict(work: formulas.Workload, rank: int) -> formulas.Parts:
            return formula(work, rank, outputs, module_bytes[rank // self.topology.tower_ranks])

        name = name if ratio == 1 else f"{name} CR {ratio}"
        return Way(name, ratio, sharded, keys, shards, predict)

    def _plan(self, model: nn.Module, sharder: ModuleSharder, sharding: ShardingType) -> ShardingPlan:
        """By TorchRec's planner, on all ranks."""
        topology = planner.TopologyFactory.create_topology(
            planner.TrainerConfig(world_size=self.topology.ranks, local_world_size=self.topology.ranks_per_host),
            kernel_config=planner.KernelConfig(compute_device=self.device.type),
        )
        constraints = self._whole_tables(sharding)
        made = EmbeddingShardingPlanner(topology, self.sizes.local_batch, constraints=constraints)
        return made.collective_plan(model, [sharder], dist.group.WORLD)

    def _whole_tables(self, sharding: ShardingType) -> dict[str, planner.ParameterConstraints]:
        """Every table whole, on a rank that the planner chooses."""
        whole = planner.ParameterConstraints(
            sharding_types=[sharding.value],
            compute_kernels=[EmbeddingComputeKernel.FUSED.value],
            min_partition=self.sizes.dim,
        )
        return {table.name: whole for table in self.tables}

    def _sharded(self, model: nn.Module, plan: ShardingPlan, sharder: ModuleSharder) -> nn.Module:
        return DistributedModelParallel(model, device=self.device, plan=plan, sharders=[sharder])

    def _shards(self, plan: ShardingPlan) -> list[formulas.Shard]:
        feature = {table.name: i for i, table in enumerate(self.tables)}
        return [
            formulas.Shard(feature[table], shard.shard_sizes[1], shard.placement.rank())
            for module in plan.plan.values()
            for table, sharding in module.items()
            for shard in sharding.sharding_spec.shards
        ]


def table_shards(model: nn.Module) -> list[tuple[str, torch.Tensor, list[int]]]:
    """(table, the shard itself, its first row and column) of each table shard on this rank."""
    found = []
    for name, value in model.state_dict().items():
        table = re.search(r"embedding_bags\.(.+)\.weight$", name)
        for shard in value.local_shards() if table else ():
            found.append((table[1], shard.tensor, shard.metadata.shard_offsets))
    return found


def tower_gradients(model: nn.Module) -> dict[int, torch.Tensor]:
    """Gradient of each linear tower that this rank has, by tower."""
    found = {}
    for name, parameter in model.named_parameters():
        tower = re.search(r"towers\.(\d+)\.(interaction\.tower\.)?weight$", name)
        if tower:
            found[int(tower[1])] = parameter.grad
    return found
