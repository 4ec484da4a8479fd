"""The tables of a TowerEmbedding on many ranks: TorchRec's sharded collection, with its exchange of outputs left out.

Tables are whole, in columns, or in rows over the ranks of their tower's slot (dmt.topology).
"""

from typing import Any

import torch
from torchrec import KeyedJaggedTensor
from torchrec.distributed.embedding_sharding import (
    BaseSparseFeaturesDist,
    EmbeddingSharding,
    EmbeddingShardingInfo,
    group_tables,
)
from torchrec.distributed.embeddingbag import ShardedEmbeddingBagCollection
from torchrec.distributed.sharding.cw_sharding import CwPooledEmbeddingSharding
from torchrec.distributed.sharding.tw_sharding import TwSparseFeaturesDist
from torchrec.distributed.sharding.twrw_sharding import TwRwPooledEmbeddingSharding
from torchrec.distributed.types import Awaitable, ShardingEnv, ShardingType
from torchrec.modules.embedding_configs import PoolingType

from dmt.exchange import Columns
from dmt.topology import Groups

BY_COLUMNS = (ShardingType.TABLE_WISE.value, ShardingType.COLUMN_WISE.value)
BY_ROWS = (ShardingType.TABLE_ROW_WISE.value,)


class ShardedTables(ShardedEmbeddingBagCollection):
    """The tables over all ranks, each inside its slot; its outputs stay where they were looked up.

    Args:
        groups: of this rank.
        stagger: the number of slots to receive samples in peer order, 1 for rank order (TorchRec's KJTAllToAll).
        one_hot: every bag has one id.
        args, kwargs: of the ShardedEmbeddingBagCollection.
    """

    def __init__(self, groups: Groups, stagger: int, one_hot: bool, *args: Any, **kwargs: Any) -> None:
        self._groups, self._stagger, self._one_hot = groups, stagger, one_hot
        super().__init__(*args, **kwargs)
        self._has_mean_pooling_callback = False  # means of tables in rows are made before step a

    @classmethod
    def create_grouped_sharding_infos(cls, *args: Any, **kwargs: Any) -> dict:
        """Whole tables are tables in one column shard: one lookup and one exchange for both."""
        infos = super().create_grouped_sharding_infos(*args, **kwargs)
        columns = [info for kind in BY_COLUMNS for info in infos.get(kind, [])]
        rows = [info for kind in BY_ROWS for info in infos.get(kind, [])]
        return ({"columns": columns} if columns else {}) | ({"rows": rows} if rows else {})

    def create_embedding_bag_sharding(self, sharding_infos, env, device=None, *_: Any, **__: Any):
        if sharding_infos[0].param_sharding.sharding_type in BY_ROWS:
            return _TowerRows(self._stagger, self._groups, sharding_infos, env, device)
        return _TowerColumns(self._stagger, self._one_hot, sharding_infos, env, device)

    def lookup(self, features: list[KeyedJaggedTensor], samples: int) -> torch.Tensor:
        """(samples, W): the columns' part, then the rows' part."""
        parts = [lookup(kjt) for lookup, kjt in zip(self._lookups, features, strict=True)]
        parts = [part if part.dim() == 2 else part.view(samples, 0) for part in parts]  # (0,) of a rank without tables
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def columns(self, tower: list[int], names: list[str]) -> Columns:
        """What the ranks of a slot look up, in the order of the embeddings `names`."""
        widths, summed, pieces = self._pieces(tower)
        return Columns.of([width + summed for width in widths], [p for name in names for p in pieces[name]], summed)

    def in_lookup_order(self, tower: list[int], names: list[str]) -> list[str]:
        """These embeddings in the order in which the ranks of a slot have them: columns() then has few pieces."""
        _, _, pieces = self._pieces(tower)
        return sorted(names, key=lambda name: pieces[name][0])

    def _pieces(self, tower: list[int]) -> tuple[list[int], int, dict[str, list[tuple[int, int, int]]]]:
        """Columns of each rank's block but for those of rows; columns of rows; pieces of each embedding (Columns)."""
        found: dict[str, list[tuple[int, int, int, int]]] = {}  # name -> (column of the table, block, first, width)
        widths = []
        for block, rank in enumerate(tower):
            width = 0
            for name, dim, first_of_table in _looked_up(self._sharding(_TowerColumns), rank):
                found.setdefault(name, []).append((first_of_table, block, width, dim))
                width += dim
            widths.append(width)
        summed = 0
        for name, dim, _ in _looked_up(self._sharding(_TowerRows), tower[0]):
            found[name] = [(0, len(tower), summed, dim)]
            summed += dim
        return widths, summed, {name: [piece[1:] for piece in sorted(of_name)] for name, of_name in found.items()}

    def _sharding(self, kind: type):
        return next((sharding for sharding in self._embedding_shardings if isinstance(sharding, kind)), None)


def _looked_up(sharding, rank: int) -> list[tuple[str, int, int]]:
    """(embedding name, columns, first column in the table) of all that a rank looks up, in order."""
    groups = sharding._grouped_embedding_configs_per_rank[rank] if sharding else []
    return [
        (name, dim, shard.shard_offsets[1])
        for group in groups
        for name, dim, shard in zip(
            group.embedding_names(), group.embedding_dims(), group.embedding_shard_metadata(), strict=True
        )
    ]


class _TowerColumns(CwPooledEmbeddingSharding):
    """Tables whole or in columns: TorchRec's, with samples received in the order that `stagger` asks for."""

    def __init__(self, stagger: int, one_hot: bool, *args: Any) -> None:
        self._stagger, self._one_hot = stagger, one_hot
        super().__init__(*args, permute_embeddings=True)

    def create_input_dist(self, device: torch.device | None = None) -> BaseSparseFeaturesDist:
        kind = _OneHotFeaturesDist if self._one_hot else TwSparseFeaturesDist
        return _staggered(kind(self._pg, self.features_per_rank()), self._stagger)


class _TowerRows(TwRwPooledEmbeddingSharding):
    """Tables in rows over all ranks of a slot: TorchRec's, with the slot's ranks in the place of a host's."""

    def __init__(
        self,
        stagger: int,
        groups: Groups,
        sharding_infos: list[EmbeddingShardingInfo],
        env: ShardingEnv,
        device: torch.device | None,
    ) -> None:
        EmbeddingSharding.__init__(self)  # not TwRw's: it finds hosts, and makes groups, by LOCAL_WORLD_SIZE
        self._env, self._pg, self._device = env, env.process_group, device
        self._world_size, self._rank = env.world_size, env.rank
        self._is_2D_parallel = self._need_pos = self._has_feature_processor = False
        self._intra_pg, self._cross_pg, self._local_size = groups.tower, groups.peers, groups.tower.size()
        self._grouped_embedding_configs_per_rank = group_tables(self._shard(sharding_infos))
        self._grouped_embedding_configs_per_node = self._grouped_embedding_configs_per_rank[:: self._local_size]
        self._stagger = stagger

    def create_input_dist(self, device: torch.device | None = None) -> BaseSparseFeaturesDist:
        groups = [group for groups in self._grouped_embedding_configs_per_node for group in groups]
        means = [group.pooling == PoolingType.MEAN for group in groups for _ in range(group.num_features())]
        return _RowsFeaturesDist(_staggered(super().create_input_dist(device), self._stagger), means)


def _staggered(features: BaseSparseFeaturesDist, stagger: int) -> BaseSparseFeaturesDist:
    """TorchRec's feature distribution with its AlltoAll told how to order the ranks' samples."""
    features._dist._stagger = stagger
    return features


class _OneHotFeaturesDist(TwSparseFeaturesDist):
    """TorchRec's, for bags of one id: sends no lengths."""

    def forward(self, sparse_features: KeyedJaggedTensor) -> Awaitable[Awaitable[KeyedJaggedTensor]]:
        return super().forward(_OneHot(sparse_features))


class _OneHot(KeyedJaggedTensor):
    """Features whose bags have one id; TorchRec's AlltoAll asks its input what to send and how to put it together."""

    def __init__(self, features: KeyedJaggedTensor) -> None:
        keys, stride = features.keys(), features.stride()
        super().__init__(
            keys,
            features.values(),
            features.weights_or_none(),
            lengths=features.lengths(),
            stride=stride,
            length_per_key=[stride] * len(keys),
        )

    def dist_labels(self) -> list[str]:
        return super().dist_labels()[1:]

    def dist_splits(self, key_splits: list[int]) -> list[list[int]]:
        return super().dist_splits(key_splits)[1:]

    def dist_tensors(self) -> list[torch.Tensor]:
        return super().dist_tensors()[1:]

    @staticmethod
    def dist_init(keys: list[str], tensors: list[torch.Tensor], *args: Any, **kwargs: Any) -> KeyedJaggedTensor:
        lengths = torch.ones_like(tensors[0], dtype=torch.int32)  # as many as ids
        return KeyedJaggedTensor.dist_init(keys, [lengths, *tensors], *args, **kwargs)


class _RowsFeaturesDist(BaseSparseFeaturesDist[KeyedJaggedTensor]):
    """Sends each id to the rank that holds its row; weights 1 / (ids of the bag) make a mean of the ranks' sums."""

    def __init__(self, buckets: BaseSparseFeaturesDist, means: list[bool]) -> None:
        super().__init__()
        self._buckets, self._means = buckets, means

    def forward(self, sparse_features: KeyedJaggedTensor) -> Awaitable[Awaitable[KeyedJaggedTensor]]:
        if any(self._means):
            sparse_features = self._with_mean_weights(sparse_features)
        return self._buckets(sparse_features)

    def _with_mean_weights(self, features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        lengths = features.lengths().view(len(self._means), -1)  # (features, B)
        is_mean = torch.tensor(self._means, device=lengths.device).unsqueeze(1)
        per_bag = torch.where(is_mean, 1 / lengths.clamp(min=1), 1.0)
        weights = per_bag.flatten().repeat_interleave(lengths.flatten())
        return KeyedJaggedTensor(
            features.keys(), features.values(), weights, features.lengths(), stride=features.stride()
        )
