"""A model on ranks: TorchRec's DistributedModelParallel around it, and on CPUs the Adam of bench.tables in its shards.

Every rank gets a part of the global batch; the loss to differentiate on it is the sum over its rows, times the ranks,
over the rows of the global batch. Ranks' gradients are averaged (DistributedDataParallel, and TorchRec's exchanges for
what reaches the tables), so that training equals that of one device, however the rows are divided.

B batch, F features, D numbers a sample that they look up.
"""

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import SplitTableBatchedEmbeddingBagsCodegen
from torch import nn
from torchrec import EmbeddingBagCollection
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DefaultDataParallelWrapper
from torchrec.distributed.planner import ParameterConstraints
from torchrec.distributed.types import BoundsCheckMode, ShardingPlan, ShardingType
from torchrec.models.dlrm import InteractionDCNArch

from bench.quiet import quiet
from bench.tables import BETA1, BETA2, EPS, RowAdam, use_adam_tables
from dmt import Topology, TowerEmbeddingSharder, sharding_plan

# Not data_parallel, whose tables no RowAdam would train. Not by rows, which a table of three rows has too few of.
SHARDED = [ShardingType.TABLE_WISE.value, ShardingType.COLUMN_WISE.value]


def shard(model: nn.Module, topology: Topology, device: torch.device) -> tuple[DistributedModelParallel, list[RowAdam]]:
    """The model over the ranks of the default process group, with its present weights, and its tables' optimizers.

    Every rank calls this with the same model. Tables are divided by TorchRec's planner; those whose dimension FBGEMM
    cannot have (no multiple of 4) stay whole on every rank. On GPUs there are no RowAdam: the tables' optimizer is
    FBGEMM's Adam, the model's `fused_optimizer`.

    Raises:
        ValueError: towers of tables that FBGEMM cannot have, or fewer towers than the topology needs.
    """
    tables: list[RowAdam] = []
    with quiet():
        use_empty_batches(model)
        collections = [module for module in model.modules() if isinstance(module, EmbeddingBagCollection)]
        dims = {config.embedding_dim for collection in collections for config in collection.embedding_bag_configs()}
        if any(dim % 4 for dim in dims):
            if getattr(model, "partition", None) is not None or device.type != "cpu":
                raise ValueError(f"on several ranks tables need a dimension that 4 divides, not {max(dims)}")
            tables = [module.adam for module in use_adam_tables(model, shared=True)]
            collections = []

        weights = model.state_dict()
        sharders = _sharders(topology, device)
        names = [config.name for collection in collections for config in collection.embedding_bag_configs()]
        constraints = dict.fromkeys(names, ParameterConstraints(sharding_types=SHARDED))
        plan = sharding_plan(model, sharders, device, constraints=constraints) if names else ShardingPlan({})
        parallel = DefaultDataParallelWrapper(static_graph=False)  # one pass settles the layout of gradients
        sharded = DistributedModelParallel(
            model, device=device, plan=plan, sharders=sharders, data_parallel_wrapper=parallel
        )
        sharded.load_state_dict(weights)
        if device.type == "cpu":
            tables += use_adam_shards(sharded)
    return sharded, tables


def _sharders(topology: Topology, device: torch.device) -> list:
    fused = {"bounds_check_mode": BoundsCheckMode.FATAL}
    if device.type != "cpu":
        fused |= {"optimizer": EmbOptimType.ADAM, "beta1": BETA1, "beta2": BETA2, "eps": EPS}
    return [TowerEmbeddingSharder(topology, fused), EmbeddingBagCollectionSharder(fused)]


class AdamShard(nn.Module):
    """Takes the place of FBGEMM's lookup in a TorchRec lookup: looks up with it, and in backward applies RowAdam.

    Raises:
        ValueError: several features a table, or bags that are not summed.
    """

    def __init__(self, lookup: SplitTableBatchedEmbeddingBagsCodegen) -> None:
        super().__init__()
        if lookup.feature_table_map != list(range(len(lookup.feature_table_map))):
            raise ValueError("AdamShard needs one feature a table")
        if lookup.pooling_mode != PoolingMode.SUM:
            raise ValueError("AdamShard knows bags that are summed only")
        self.lookup = lookup
        self.adam = RowAdam(lookup.split_embedding_weights())
        self._leaf = torch.empty(0, requires_grad=True)  # without an input that needs a gradient there is no backward

    def forward(
        self, indices: torch.Tensor, offsets: torch.Tensor, per_sample_weights: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Ids of the features' bags and where each bag begins, (F * B + 1,) -> (B, D)."""
        if per_sample_weights is not None:
            raise ValueError("AdamShard knows no weighted bags")
        return _Lookup.apply(self._leaf, indices, offsets, self)

    def split_embedding_weights(self) -> list[torch.Tensor]:
        return self.lookup.split_embedding_weights()

    def flush(self) -> None:
        self.lookup.flush()

    def reset_cache_states(self) -> None:
        self.lookup.reset_cache_states()


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(ctx, leaf, indices, offsets, shard):
        ctx.bags, ctx.shard = (indices, offsets), shard
        return shard.lookup(indices, offsets)

    @staticmethod
    def backward(ctx, grad_BD):
        ctx.shard.adam.update(*ctx.bags, grad_BD)
        return None, None, None, None


def use_adam_shards(sharded: nn.Module) -> list[RowAdam]:
    """Put an AdamShard into every lookup of the sharded tables, over the same weights; returns their optimizers."""
    made = []
    for module in sharded.modules():
        for lookup in getattr(module, "_lookups", ()):
            for kernel in lookup._emb_modules:
                kernel._emb_module = AdamShard(kernel.emb_module)
                made.append(kernel.emb_module.adam)
    return made


class _DCNInteraction(nn.Module):
    """TorchRec's InteractionDCNArch, for batches that may be empty: (B, D) and (B, F, D) -> (B, (F + 1) * D)."""

    def __init__(self, crossnet: nn.Module) -> None:
        super().__init__()
        self.crossnet = crossnet

    def forward(self, dense_features: torch.Tensor, sparse_features: torch.Tensor) -> torch.Tensor:
        return self.crossnet(torch.cat([dense_features.unsqueeze(1), sparse_features], 1).flatten(1))


def use_empty_batches(model: nn.Module) -> None:
    """Swap every InteractionDCNArch, which reshapes to (B, -1), for an equal module that takes B = 0, in place."""
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if type(child) is InteractionDCNArch:
                setattr(parent, name, _DCNInteraction(child.crossnet))
