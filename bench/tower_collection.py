"""TorchRec's EmbeddingTowerCollection, the nearest public relative of SPTT, made to run where TorchRec's code does not.

What TorchRec 1.8 needs, and what this module changes (nothing of the exchange itself):
- on CPU it hands DistributedDataParallel device_ids=[cpu], which DDP refuses: they are left out;
- an interaction without parameters (embeddings pass through) is refused by DDP too: it has no gradient to synchronise,
  and runs as it is;
- it finds hosts through LOCAL_WORLD_SIZE, the ranks a host: set for the time that the module is sharded.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedTensor
from torchrec.distributed import comm, embedding_tower_sharding
from torchrec.distributed.embedding_tower_sharding import ShardedEmbeddingTowerCollection
from torchrec.modules.embedding_tower import EmbeddingTower, EmbeddingTowerCollection

from dmt import PassThrough


class OfTower(nn.Module):
    """An interaction: a tower module over the tower's embeddings, flattened; (B, I) -> (B, O).

    Args:
        tower: the module; a PassThrough takes the embeddings in the order that TorchRec looks them up.
        names: of the embeddings, in the order that any other module wants.
    """

    def __init__(self, tower: nn.Module, names: list[str]) -> None:
        super().__init__()
        self.tower, self.names = tower, names

    def forward(self, embeddings: KeyedTensor) -> torch.Tensor:
        if isinstance(self.tower, PassThrough) or embeddings.keys() == self.names:
            return self.tower(embeddings.values())
        return self.tower(torch.cat([embeddings[name] for name in self.names], dim=1))


def tower_collection(
    tables: Sequence[EmbeddingBagConfig], partition: Sequence[Sequence[int]], towers: Sequence[nn.Module]
) -> EmbeddingTowerCollection:
    """As dmt.TowerEmbedding(tables, partition, towers), for tables of one feature each -> (B, sum of O_t)."""
    made = []
    for group, tower in zip(partition, towers, strict=True):
        of_tower = [tables[i] for i in group]
        names = [table.feature_names[0] for table in of_tower]
        made.append(EmbeddingTower(EmbeddingBagCollection(tables=of_tower), OfTower(tower, names)))
    return EmbeddingTowerCollection(made)


def output_keys(model: nn.Module) -> list[tuple[str, int]]:
    """What the columns of the sharded collection's output are: (feature, or tower_t of a tower module, width).

    Every rank calls this: each knows only the towers of its own host.
    """
    sharded = next(m for m in model.modules() if isinstance(m, ShardedEmbeddingTowerCollection))
    mine: list[tuple[str, int]] = []
    for tower, embedding in sharded.embeddings.items():
        module = sharded.interactions[tower].module.tower
        if isinstance(module, PassThrough):
            mine += zip(embedding._embedding_names, embedding._embedding_dims, strict=True)
        else:
            mine.append((f"tower_{tower}", module.out_features))
    of_peers = [None] * sharded._cross_pg_world_size
    dist.all_gather_object(of_peers, mine, group=sharded._cross_pg)
    return [key for keys in of_peers for key in keys]


@contextmanager
def shardable(ranks_per_host: int) -> Iterator[None]:
    """TorchRec shards over hosts of this many ranks inside this block, and can shard an EmbeddingTowerCollection."""
    before = os.environ.get("LOCAL_WORLD_SIZE")
    os.environ["LOCAL_WORLD_SIZE"] = str(ranks_per_host)
    comm._INTRA_PG = comm._CROSS_PG = None  # groups of an earlier process group, or of other hosts
    embedding_tower_sharding.DistributedDataParallel = _distributed
    try:
        yield
    finally:
        embedding_tower_sharding.DistributedDataParallel = DistributedDataParallel
        if before is None:
            del os.environ["LOCAL_WORLD_SIZE"]
        else:
            os.environ["LOCAL_WORLD_SIZE"] = before


def _distributed(module: nn.Module, device_ids: list | None = None, **options) -> nn.Module:
    if not any(parameter.requires_grad for parameter in module.parameters()):
        return _AsItIs(module)
    on_cpu = next(module.parameters()).device.type == "cpu"
    return DistributedDataParallel(module, device_ids=None if on_cpu else device_ids, **options)


class _AsItIs(nn.Module):
    """Stands where DDP stands: TorchRec reads `.module`."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x):
        return self.module(x)
