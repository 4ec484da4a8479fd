"""A contestant on the ranks: its tables sharded, its training as TorchRec's pipeline, its bytes by the formulas.

All contestants (bench.contestants) train alike: TorchRec's TrainPipelineSparseDist (the next batch's indices travel
while this one is computed), embeddings and their gradients as 16-bit numbers on the wire or as they are, FBGEMM's fused
row-wise Adagrad for tables, Adam for all else, DistributedDataParallel for dense layers.
"""

import argparse
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass

import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import nn
from torchrec import EmbeddingBagCollection, KeyedJaggedTensor, KeyedTensor
from torchrec.datasets.utils import Batch
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embedding_tower_sharding import EmbeddingTowerCollectionSharder
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.fbgemm_qcomm_codec import CommType, QCommsConfig, get_qcomm_codecs_registry
from torchrec.distributed.model_parallel import DefaultDataParallelWrapper
from torchrec.distributed.planner import EmbeddingShardingPlanner
from torchrec.distributed.planner import types as planner
from torchrec.distributed.train_pipeline import TrainPipelineSparseDist
from torchrec.distributed.types import ModuleSharder, ShardingPlan, ShardingType
from torchrec.modules.embedding_tower import EmbeddingTowerCollection
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter

import baselines
from bench import mixture, tower_collection
from bench import traffic_formulas as formulas
from bench.batch import tables
from bench.contestants import Contestant
from bench.quiet import quiet
from bench.ranks import Ranks
from bench.workload import Workload
from dmt import Partition, Topology, TowerEmbedding, TowerEmbeddingSharder, sharding_plan
from dmt.sharding import ShardedTowerEmbedding

FUSED = {"optimizer": EmbOptimType.EXACT_ROWWISE_ADAGRAD, "learning_rate": 0.01, "eps": 1e-8}
warnings.filterwarnings("ignore", "`torch.distributed", FutureWarning)  # old names that TorchRec calls, at every step


@dataclass(frozen=True)
class About:
    """What sharding leaves unseen of a model.

    partition, tower_dim, compression_ratio: as baselines/ has them.
    tower_widths: numbers a sample out of each tower; module_bytes: of each tower module's parameters.
    dense_bytes: of the parameters that all ranks share.
    """

    partition: Partition | None
    tower_dim: int | None
    compression_ratio: float
    tower_widths: list[int]
    module_bytes: list[int]
    dense_bytes: int

    @staticmethod
    def of(model: nn.Module) -> "About":
        modules = list(model.modules())
        towers = next((list(module.towers) for module in modules if isinstance(module, TowerEmbedding)), [])
        apart = [*towers, *(module for module in modules if isinstance(module, EmbeddingBagCollection))]
        elsewhere = {id(parameter) for module in apart for parameter in module.parameters()}
        return About(
            model.partition,
            model.tower_dim,
            model.compression_ratio,
            [tower.out_features for tower in towers],
            [sum(parameter.nbytes for parameter in tower.parameters()) for tower in towers],
            sum(parameter.nbytes for parameter in model.parameters() if id(parameter) not in elsewhere),
        )


class Trained(nn.Module):
    """A model with its loss, as TorchRec's pipelines call it: batch -> (mean loss, (that loss, detached))."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch) -> tuple[torch.Tensor, tuple[torch.Tensor]]:
        logits = self.model(batch.dense_features, batch.sparse_features)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, batch.labels)
        return loss, (loss.detach(),)


class OverTowerCollection(nn.Module):
    """Stands where a TowerEmbedding stood, with TorchRec's EmbeddingTowerCollection of the same tables and modules.

    Its outputs come host by host and, inside a tower that passes through, in the order of the lookup: `settle` them
    once the collection is sharded.
    """

    def __init__(self, towers: TowerEmbedding) -> None:
        super().__init__()
        self._configs = towers.embedding_bag_configs()
        modules = list(towers.towers)
        self.collection: EmbeddingTowerCollection = tower_collection.tower_collection(
            self._configs, towers.partition, modules
        )
        self.keys: list[str] = []
        self.widths: list[int] = []

    def settle(self) -> None:
        """Learn the order of the outputs; every rank calls this."""
        found = tower_collection.output_keys(self.collection)
        self.keys, self.widths = [key for key, _ in found], [width for _, width in found]

    def forward(self, features: KeyedJaggedTensor) -> KeyedTensor:
        """Ids of all features -> KeyedTensor (B, sum of O_t)."""
        return keyed(self.keys, self.widths, self.collection(features))

    def embedding_bag_configs(self):
        return self._configs


def keyed(keys: list[str], widths: list[int], values: torch.Tensor) -> KeyedTensor:
    return KeyedTensor(keys, widths, values)


torch.fx.wrap("keyed")  # TorchRec's pipeline traces the model


class _OnAnyDevice(EmbeddingBagCollectionSharder):
    """TorchRec offers its planner no rows on CPUs, though they run there."""

    def sharding_types(self, compute_device_type: str) -> list[str]:
        return super().sharding_types("cuda")


class Running:
    """A contestant on the ranks, ready to iterate.

    Args:
        args: of bench.workload.
        shares: of its own bytes that it sends.

    Raises:
        ValueError: sizes or a topology that the model cannot have.
        torchrec.distributed.planner.types.PlannerError: no plan fits.
    """

    def __init__(
        self,
        contestant: Contestant,
        args: argparse.Namespace,
        topology: Topology,
        ranks: Ranks,
        shares: mixture.Shares = mixture.OWN,
    ) -> None:
        device, workload = ranks.device, Workload(args.features, args.rows, args.local_batch, args.seed)
        self.contestant, self.workload, self.topology, self.device = contestant, workload, topology, device
        spec = contestant.spec
        torch.manual_seed(workload.seed)
        self.tables = tables(workload.names, [workload.rows] * workload.features, spec.embedding_dim)
        meta = torch.device("meta")
        model = baselines.build(spec, self.tables, tables_device=meta)
        self.about = About.of(model)
        self.formats = _formats(device) if args.wire == "half" else None
        self._data_parallel = DefaultDataParallelWrapper(bucket_cap_mb=args.bucket_mib)
        with quiet():
            self.plan, self.model = self._sharded(Trained(model))
        self._peers: dist.ProcessGroup | None = None
        self.shares = shares
        if shares.dense != 1:
            mixture.share_dense(self.model, shares.dense)
        if shares.embeddings != 1:
            towers = next(m for m in self.model.modules() if isinstance(m, ShardedTowerEmbedding))
            self._peers = towers.exchange.groups.peers
        parameters = dict(in_backward_optimizer_filter(self.model.named_parameters()))
        dense = KeyedOptimizerWrapper(parameters, lambda params: torch.optim.Adam(params, lr=1e-3, fused=True))
        optimizer = CombinedOptimizer([self.model.fused_optimizer, dense])
        self._pipeline = TrainPipelineSparseDist(self.model, optimizer, device)
        self._batches = workload.batches(ranks.rank, spec.dense_features, device)

    def parts(self, rank: int) -> formulas.Parts:
        """Bytes that a rank sends in one iteration, by the formulas, by part."""
        topology, workload, about = self.topology, self.workload, self.about
        feature = {table.name: i for i, table in enumerate(self.tables)}
        shards = [
            formulas.Shard(feature[table], shard.shard_sizes[1], shard.placement.rank())
            for module in self.plan.plan.values()
            for table, sharding in module.items()
            for shard in sharding.sharding_spec.shards
        ]
        number_bytes = 2 if self.formats else formulas.FP32
        ids = [[workload.local_batch] * workload.features] * topology.ranks
        batches = [workload.local_batch] * topology.ranks
        work = formulas.Workload(
            topology, batches, ids, shards, number_bytes=number_bytes, id_bytes=formulas.INT32, one_hot=True
        )
        if not self.contestant.has_towers:
            exchange = formulas.flat if self.contestant.sharding == "planner" else formulas.table_row_wise
            return exchange(work, rank) | formulas.dense(work, rank, about.dense_bytes)
        slot_of = {shard.feature: shard.rank // topology.tower_ranks for shard in shards}
        outputs, modules = [0] * topology.slots, [0] * topology.slots
        for group, width, size in zip(about.partition, about.tower_widths, about.module_bytes, strict=True):
            outputs[slot_of[group[0]]] += width
            modules[slot_of[group[0]]] += size
        exchange = formulas.sptt if self.contestant.sharding == "towers" else formulas.tower_collection
        exchanged = exchange(work, rank, outputs, modules[rank // topology.tower_ranks])
        for part in ("embeddings between", "gradients between"):
            exchanged[part] = exchanged[part].times(self.shares.embeddings)
        return exchanged | formulas.dense(work, rank, round(about.dense_bytes * self.shares.dense))

    def __call__(self) -> torch.Tensor:
        """One iteration: forward, backward, update. The loss before the update."""
        return self._progress(self._batches)

    def drain(self) -> None:
        """Train the batches that the pipeline holds: nothing is in flight then. The next iteration fills it again."""
        none: Iterator[Batch] = iter(())
        with suppress(StopIteration):
            while True:
                self._progress(none)

    def _progress(self, batches: Iterator[Batch]) -> torch.Tensor:
        with mixture.peers_exchange(self.shares.embeddings, self._peers) if self._peers else nullcontext():
            (loss,) = self._pipeline.progress(batches)
        return loss

    def _sharded(self, model: Trained) -> tuple[ShardingPlan, DistributedModelParallel]:
        make: dict[str, Callable[[], tuple[ModuleSharder, ShardingPlan]]] = {
            "planner": lambda: self._flat(model, self._whole_or_cut()),
            "table_row_wise": lambda: self._flat(model, ShardingType.TABLE_ROW_WISE),
            "towers": lambda: self._towers(model),
            "tower_collection": lambda: self._tower_collection(model),
        }
        sharder, plan = make[self.contestant.sharding]()
        with tower_collection.shardable(self.topology.ranks_per_host):
            sharded = DistributedModelParallel(
                model, device=self.device, plan=plan, sharders=[sharder], data_parallel_wrapper=self._data_parallel
            )
        for module in sharded.modules():
            if isinstance(module, OverTowerCollection):
                module.settle()
        return plan, sharded

    def _whole_or_cut(self) -> ShardingType:
        return ShardingType.TABLE_WISE if self._cuts() == 1 else ShardingType.COLUMN_WISE

    def _cuts(self) -> int:
        """Parts of each table that ranks which outnumber tables ask for (the paper's column-wise factor)."""
        return -(-self.topology.ranks // self.workload.features)

    def _flat(self, model: Trained, kind: ShardingType) -> tuple[ModuleSharder, ShardingPlan]:
        sharder = _OnAnyDevice(FUSED, qcomm_codecs_registry=self._registry())
        return sharder, self._plan(model, sharder, kind)

    def _towers(self, model: Trained) -> tuple[ModuleSharder, ShardingPlan]:
        sharder = TowerEmbeddingSharder(self.topology, FUSED, inside=self.formats, peer=self.formats, one_hot=True)
        constraints = self._constraints(self._whole_or_cut())
        batch = self.workload.local_batch
        return sharder, sharding_plan(model, [sharder], self.device, batch_size=batch, constraints=constraints)

    def _tower_collection(self, model: Trained) -> tuple[ModuleSharder, ShardingPlan]:
        for parent in list(model.modules()):
            for name, child in list(parent._modules.items()):
                if isinstance(child, TowerEmbedding):
                    setattr(parent, name, OverTowerCollection(child))
        sharder = EmbeddingTowerCollectionSharder(FUSED, qcomm_codecs_registry=self._registry())
        return sharder, self._plan(model, sharder, ShardingType.TABLE_COLUMN_WISE)

    def _plan(self, model: Trained, sharder: ModuleSharder, kind: ShardingType) -> ShardingPlan:
        """By TorchRec's planner, on all ranks."""
        machines = planner.TopologyFactory.create_topology(
            planner.TrainerConfig(world_size=self.topology.ranks, local_world_size=self.topology.ranks_per_host),
            kernel_config=planner.KernelConfig(compute_device=self.device.type),
        )
        constraints = self._constraints(kind)
        made = EmbeddingShardingPlanner(machines, self.workload.local_batch, constraints=constraints)
        return made.collective_plan(model, [sharder], dist.group.WORLD)

    def _constraints(self, kind: ShardingType) -> dict[str, planner.ParameterConstraints]:
        dim = self.contestant.spec.embedding_dim
        cut = kind == ShardingType.COLUMN_WISE
        of_each = planner.ParameterConstraints(
            sharding_types=[kind.value],
            compute_kernels=[EmbeddingComputeKernel.FUSED.value],
            min_partition=max(4, dim // self._cuts() // 4 * 4) if cut else dim,
        )
        return {table.name: of_each for table in self.tables}

    def _registry(self):
        return self.formats and get_qcomm_codecs_registry(self.formats, device=self.device)


def _formats(device: torch.device) -> QCommsConfig:
    """fp16 forward and bf16 backward, as large models are trained; gloo knows no bf16."""
    backward = CommType.FP16 if device.type == "cpu" else CommType.BF16
    return QCommsConfig(forward_precision=CommType.FP16, backward_precision=backward)
