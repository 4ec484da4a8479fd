"""A TowerEmbedding on many ranks: what DistributedModelParallel, the planner and TorchRec's pipelines need for it.

Tables, their optimizers and their state_dict are a ShardedEmbeddingBagCollection's over all ranks, with the tables of
each tower on the ranks of its slot (dmt.topology); the exchange of its outputs is replaced by SPTT's (dmt.exchange).
"""

from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torchrec import EmbeddingBagConfig, KeyedJaggedTensor, KeyedTensor
from torchrec.distributed.embedding_types import BaseEmbeddingSharder, KJTList, ShardedEmbeddingModule
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionAwaitable, EmbeddingBagCollectionContext
from torchrec.distributed.fbgemm_qcomm_codec import QCommsConfig
from torchrec.distributed.types import Awaitable, BoundsCheckMode, LazyAwaitable, ParameterSharding, ShardingEnv
from torchrec.optim.fused import FusedOptimizerModule
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizer

from dmt.exchange import Columns, TowerExchange
from dmt.modules import PassThrough
from dmt.sharded_tables import BY_COLUMNS, BY_ROWS, ShardedTables
from dmt.topology import Groups, Topology, create_groups
from dmt.towers import TowerEmbedding

Permute = Literal["none", "indices", "embeddings"]


class TowerEmbeddingSharder(BaseEmbeddingSharder[TowerEmbedding]):
    """Shards a TowerEmbedding: pass it to DistributedModelParallel beside the sharders of other modules.

    Args:
        topology: the ranks, hosts and hosts a tower to run on.
        fused_params: of the tables' fused optimizer, as for TorchRec's EmbeddingBagCollectionSharder; ids out of range
            are fatal unless they say otherwise (TorchRec would look them up as 0).
        inside, peer: number formats of the exchange inside a tower and of that between peers; None: as they are.
        permute: step c. "none": indices arrive in peer order, so that nothing is left to permute (the paper's process
            group in peer order); "indices": c before b; "embeddings": c after b, the paper's order.
        one_hot: every bag has one id, as in Criteo's tables: lengths of bags are not sent then, but to tables in rows.
            (Ids travel in the type in which they come, as in TorchRec: int32 takes half of int64's bytes.)

    Raises:
        ValueError: no such permute, or a number format with an output_dtype.
    """

    def __init__(
        self,
        topology: Topology,
        fused_params: dict[str, Any] | None = None,
        inside: QCommsConfig | None = None,
        peer: QCommsConfig | None = None,
        permute: Permute = "none",
        one_hot: bool = False,
    ) -> None:
        if permute not in ("none", "indices", "embeddings"):
            raise ValueError(f"permute is {permute!r}: it can be 'none', 'indices' or 'embeddings'")
        for config in (inside, peer):
            if config is not None and config.output_dtype is not None:
                raise ValueError(f"output_dtype is {config.output_dtype}: towers compute in fp32, leave it out")
        super().__init__({"bounds_check_mode": BoundsCheckMode.FATAL} | (fused_params or {}))
        self.topology, self.inside, self.peer, self.permute, self.one_hot = topology, inside, peer, permute, one_hot
        self._groups: Groups | None = None

    def shard(
        self,
        module: TowerEmbedding,
        params: dict[str, ParameterSharding],
        env: ShardingEnv,
        device: torch.device | None = None,
        module_fqn: str | None = None,
    ) -> "ShardedTowerEmbedding":
        """The sharded module. Every rank calls this at the same point.

        Raises:
            ValueError: ranks that are not the topology's, fewer towers than slots, or a plan that takes a table out of
                the ranks of its tower.
        """
        if env.world_size != self.topology.ranks:
            raise ValueError(f"the topology is for {self.topology.ranks} ranks, and there are {env.world_size}")
        check_plan(module, params, self.topology)
        if self._groups is None:
            self._groups = create_groups(self.topology, env.process_group)
        return ShardedTowerEmbedding(self, module, params, env, self._groups, device, module_fqn)

    def shardable_parameters(self, module: TowerEmbedding) -> dict[str, nn.Parameter]:
        """The tables by name."""
        bags = module.embedding_bag_collection.embedding_bags
        return {name.partition(".")[0]: parameter for name, parameter in bags.named_parameters()}

    def sharding_types(self, compute_device_type: str) -> list[str]:
        """Whole tables, and columns or rows of tables inside a slot."""
        return [*BY_COLUMNS, *BY_ROWS]

    @property
    def module_type(self) -> type[TowerEmbedding]:
        return TowerEmbedding


def slot_of_table(module: TowerEmbedding, topology: Topology) -> dict[str, int]:
    """The slot whose ranks hold each table."""
    slots = topology.slot_of_tower(len(module.partition))
    tables = module.embedding_bag_configs()
    return {tables[i].name: slot for group, slot in zip(module.partition, slots, strict=True) for i in group}


def check_plan(module: TowerEmbedding, params: dict[str, ParameterSharding], topology: Topology) -> None:
    """Raise ValueError where the plan cannot serve the towers; names the table and the ranks."""
    for table, slot in slot_of_table(module, topology).items():
        if table not in params:
            raise ValueError(f"the sharding plan lacks table {table}")
        first = slot * topology.tower_ranks
        allowed, plan = range(first, first + topology.tower_ranks), params[table]
        if plan.sharding_type not in (*BY_COLUMNS, *BY_ROWS):
            raise ValueError(
                f"the plan shards table {table} {plan.sharding_type}: towers can have {', '.join(BY_COLUMNS + BY_ROWS)}"
            )
        outside = [rank for rank in plan.ranks if rank not in allowed]
        if outside or (plan.sharding_type in BY_ROWS and list(plan.ranks) != list(allowed)):
            raise ValueError(
                f"the plan puts table {table} on ranks {list(plan.ranks)}, and its tower lives on ranks "
                f"{allowed[0]} to {allowed[-1]}: make the plan with dmt.sharding_plan"
            )
        if any(0 in shard.shard_sizes for shard in plan.sharding_spec.shards):  # FBGEMM cannot look up such a shard
            raise ValueError(
                f"the plan leaves a rank without a part of table {table}: it is too small to be shared by "
                f"{len(plan.ranks)} ranks"
            )


class ShardedTowerEmbedding(
    ShardedEmbeddingModule[KJTList, torch.Tensor, KeyedTensor, EmbeddingBagCollectionContext],
    FusedOptimizerModule,
):
    """One rank's part of a TowerEmbedding: its shards of the tables of its slot, and the slot's tower modules.

    Names in the state_dict are those of the TowerEmbedding; a rank has the tower modules of its own slot only.

    The output has the keys of the TowerEmbedding's, tower by tower; those of a pass-through tower come in the order in
    which its ranks look them up, as in TorchRec's own sharded collections.
    """

    def __init__(
        self,
        sharder: TowerEmbeddingSharder,
        module: TowerEmbedding,
        params: dict[str, ParameterSharding],
        env: ShardingEnv,
        groups: Groups,
        device: torch.device | None,
        module_fqn: str | None,
    ) -> None:
        super().__init__()
        topology, rank = sharder.topology, env.rank
        self._permute, self._one_hot = sharder.permute, sharder.one_hot
        self._configs = module.embedding_bag_configs()
        self._is_weighted = module.embedding_bag_collection.is_weighted()
        stagger = topology.slots if sharder.permute == "none" else 1
        collection, fused_params = module.embedding_bag_collection, sharder.fused_params
        self.embedding_bag_collection = ShardedTables(
            groups, stagger, sharder.one_hot, collection, params, env, fused_params, device, module_fqn=module_fqn
        )

        slots = topology.slot_of_tower(len(module.partition))
        mine = [tower for tower, slot in enumerate(slots) if slot == rank // topology.tower_ranks]
        self.towers = nn.ModuleDict({str(tower): module.towers[tower] for tower in mine})
        self._synchronized = _synchronized(_Towers(self.towers), groups.tower, device)

        # Embeddings are read by key, so those that pass through come in the order that is quickest to put together.
        widths, names = [0] * topology.slots, []  # numbers a sample out of each slot; embeddings of this rank's slot
        self.out_keys: list[str] = []
        for tower, slot in enumerate(slots):
            widths[slot] += module.out_features[tower]
            passes, of_tower = isinstance(module.towers[tower], PassThrough), module.embedding_names[tower]
            if passes:
                ranks = topology.tower_of(slot * topology.tower_ranks)
                of_tower = self.embedding_bag_collection.in_lookup_order(ranks, of_tower)
            self.out_keys += of_tower if passes else [f"tower_{tower}"]
            names += of_tower if tower in mine else []
        length = dict(zip(module.out_keys, module.out_length_per_key, strict=True))
        self.out_length_per_key: list[int] = [length[key] for key in self.out_keys]
        self.exchange = TowerExchange(
            topology,
            rank,
            groups,
            inner=self.embedding_bag_collection.columns(topology.tower_of(rank), names),
            outer=Columns.of(widths, [(slot, 0, width) for slot, width in enumerate(widths)]),
            inside=sharder.inside,
            peer=sharder.peer,
            modules_learn=_learns(self.towers),
        )
        self.register_load_state_dict_pre_hook(_without_other_towers)

    def create_context(self) -> EmbeddingBagCollectionContext:
        return EmbeddingBagCollectionContext()

    def input_dist(
        self, ctx: EmbeddingBagCollectionContext, features: KeyedJaggedTensor
    ) -> Awaitable[Awaitable[KJTList]]:
        """Step a, feature distribution: the global AlltoAll of indices. With permute "none" they arrive in peer order.

        Raises:
            ValueError: an id that its table does not have, a batch size that differs by feature, or a bag that does
                not have one id where the sharder was told that all do.
        """
        if features.variable_stride_per_key():
            raise ValueError("features of one batch have different numbers of samples: towers need one number for all")
        if not self._is_weighted and features.weights_or_none() is not None:  # TorchRec would apply them
            features = KeyedJaggedTensor(
                features.keys(), features.values(), lengths=features.lengths(), stride=features.stride()
            )
        if self._one_hot:
            check_one_hot(features)
        if features.device().type == "cpu":  # elsewhere FBGEMM's own check does it, without waiting for the device
            check_ids(features, self._configs)
        return self.embedding_bag_collection.input_dist(ctx, features)

    def compute(self, ctx: EmbeddingBagCollectionContext, dist_input: KJTList) -> torch.Tensor:
        """Step b, lookup of this rank's shards for all ranks' samples -> (sum of B_g, W)."""
        features = list(dist_input)
        if self._permute == "indices":
            features = [self.exchange.permute_indices(kjt, _batch(ctx)) for kjt in features]
        return self.embedding_bag_collection.lookup(features, sum(_batch(ctx)))

    def output_dist(self, ctx: EmbeddingBagCollectionContext, output: torch.Tensor) -> LazyAwaitable[KeyedTensor]:
        """Steps c to f, with the tower modules between e and f."""
        exchange, batch_G = self.exchange, _batch(ctx)
        if self._permute == "embeddings":
            output = exchange.permute(output, batch_G)  # c
        blocks = exchange.inner_exchange(output, batch_G).wait()  # d
        tower_inputs = exchange.local_shuffle(blocks, batch_G)  # e
        tower_outputs = self.tower_modules(tower_inputs)  # figure 8; without them SPTT alone, figure 7
        embeddings = exchange.peer_exchange(tower_outputs, batch_G)  # f
        return EmbeddingBagCollectionAwaitable([embeddings], self.out_length_per_key, self.out_keys)

    @property
    def tower_modules(self) -> nn.Module:
        """Those of this rank's slot, with gradients averaged over its ranks: (P, I) -> (P, O)."""
        return self._synchronized[0]

    @property
    def fused_optimizer(self) -> KeyedOptimizer:
        return CombinedOptimizer([("embedding_bag_collection", self.embedding_bag_collection.fused_optimizer)])


def check_ids(features: KeyedJaggedTensor, configs: list[EmbeddingBagConfig]) -> None:
    """Raise ValueError for the first id that is not a row of its table; names table, feature and id."""
    tables: dict[str, EmbeddingBagConfig] = {}  # the smallest of a feature's tables
    for config in sorted(configs, key=lambda config: -config.num_embeddings):
        tables |= dict.fromkeys(config.feature_names, config)
    keys, ids, lengths = features.keys(), features.values(), features.length_per_key()
    rows = [tables[key].num_embeddings if key in tables else torch.iinfo(torch.int64).max for key in keys]
    limits = torch.tensor(rows).repeat_interleave(torch.tensor(lengths), output_size=len(ids))
    outside = (ids < 0) | (ids >= limits)
    if not outside.any():
        return
    for feature, of_feature, out in zip(keys, ids.split(lengths), outside.split(lengths), strict=True):
        if feature in tables and out.any():
            table = tables[feature]
            raise ValueError(
                f"id {int(of_feature[out][0])} of feature {feature} is not a row of table {table.name}, "
                f"which has {table.num_embeddings}"
            )


def check_one_hot(features: KeyedJaggedTensor) -> None:
    """Raise ValueError where a bag does not have one id; names the feature and the ids of the bag.

    On a GPU, which nobody waits for, such a bag is a device-side assertion.
    """
    is_one = features.lengths() == 1  # (F * B,)
    if is_one.device.type != "cpu":
        torch._assert_async(is_one.all(), "a bag does not have one id, and the sharder was told that all do (one_hot)")
    elif not is_one.all():
        bag = int((~is_one).nonzero()[0])
        raise ValueError(
            f"a bag of feature {features.keys()[bag // features.stride()]} has {int(features.lengths()[bag])} ids, and "
            "the TowerEmbeddingSharder was told that all have one: leave out one_hot"
        )


class _Towers(nn.Module):
    """The tower modules of one slot: (P, I) -> (P, O)."""

    def __init__(self, towers: nn.ModuleDict) -> None:
        super().__init__()
        self.towers = towers
        self.in_features = [tower.in_features for tower in towers.values()]

    def forward(self, tower_inputs: torch.Tensor) -> torch.Tensor:
        if len(self.towers) == 1:
            return next(iter(self.towers.values()))(tower_inputs)
        parts = tower_inputs.split(self.in_features, dim=1)
        return torch.cat([tower(part) for tower, part in zip(self.towers.values(), parts, strict=True)], dim=1)


def _synchronized(towers: _Towers, group: dist.ProcessGroup, device: torch.device | None) -> list[nn.Module]:
    """The towers with their gradients averaged over the ranks of the slot; in a list, which hides it from state_dict.

    Why that is the one-device gradient: the loss is the mean over G ranks of each rank's own loss. A rank of the slot
    has samples of its S peers, and step f's way back divides by S; the average over the M ranks of the slot then makes
    the sum over all G = M * S ranks, divided by G.
    """
    _leave_meta(towers, "towers", device or torch.device("cpu"))
    towers.to(device or torch.device("cpu"))
    if group.size() == 1:
        return [towers]
    if not _learns(towers):  # nobody synchronises these later
        for tensor in (*towers.parameters(), *towers.buffers()):
            dist.broadcast(tensor.detach(), group=group, group_src=0)
        return [towers]
    return [
        DistributedDataParallel(
            towers,
            device_ids=None if device is None or device.type == "cpu" else [device],
            process_group=group,
            forward_sync_buffers=False,
            gradient_as_bucket_view=True,
        )
    ]


def _leave_meta(module: nn.Module, name: str, device: torch.device) -> None:
    """Allocate and initialise what is on the meta device, by the outermost reset_parameters around it.

    Raises:
        ValueError: there is none.
    """

    def on_meta(recurse: bool) -> bool:
        return any(tensor.is_meta for tensor in (*module.parameters(recurse), *module.buffers(recurse)))

    if not on_meta(recurse=True):
        return
    if hasattr(module, "reset_parameters"):
        module.to_empty(device=device)
        module.reset_parameters()
        return
    if on_meta(recurse=False):
        kind = type(module).__name__
        raise ValueError(f"{name} ({kind}) is on the meta device, and nothing around it has reset_parameters")
    for child_name, child in module.named_children():
        _leave_meta(child, f"{name}.{child_name}", device)


def _learns(towers: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in towers.parameters())


def _without_other_towers(module: ShardedTowerEmbedding, state_dict: dict, prefix: str, *_: Any) -> None:
    """A checkpoint has the modules of all towers, a rank those of its own slot."""
    own = tuple(f"{prefix}towers.{tower}." for tower in module.towers)
    for key in [k for k in state_dict if k.startswith(f"{prefix}towers.") and not k.startswith(own)]:
        del state_dict[key]


def _batch(ctx: EmbeddingBagCollectionContext) -> list[int]:
    """B_g of each rank, as step a learned them."""
    return ctx.sharding_contexts[0].batch_size_per_rank
