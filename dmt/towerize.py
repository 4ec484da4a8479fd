"""From any TorchRec model to its pass-through tower form: the same weights, the same outputs, SPTT's exchange."""

from collections.abc import Sequence

import torch
from torch import nn
from torchrec import EmbeddingBagCollection

from dmt.modules import PassThrough
from dmt.topology import Topology
from dmt.towers import TowerEmbedding


def towerize(model: nn.Module, partition: Sequence[Sequence[int]], topology: Topology | None = None) -> nn.Module:
    """Put the model's EmbeddingBagCollection into pass-through towers, in place; returns the model.

    The tables themselves move over (parameters, their optimizers' settings), so nothing is copied, and what the model
    computes stays the same. To run it, shard it with a TowerEmbeddingSharder.

    Args:
        model: a module that is or holds one EmbeddingBagCollection, not yet sharded.
        partition: indices of tables, in the collection's order, for each tower.
        topology: where it will run: towers that do not fit it are refused here, before a job starts.

    Raises:
        ValueError: no EmbeddingBagCollection, or several (then towerize the submodule that holds one), a partition at
            fault, or fewer towers than the topology has places for.
    """
    found: dict[EmbeddingBagCollection, list[str]] = {}  # the same one may be known under several names
    for name, module in model.named_modules(remove_duplicate=False):
        if type(module) is EmbeddingBagCollection:
            found.setdefault(module, []).append(name)
    if len(found) != 1:
        what = f"{len(found)} ({', '.join(names[0] for names in found.values())})" if found else "none"
        raise ValueError(f"the model must hold one EmbeddingBagCollection and holds {what}: towerize a part of it")
    ((collection, names),) = found.items()
    if topology is not None:
        topology.slot_of_tower(len(partition))
    towers = _in_towers(collection, partition)
    if names == [""]:
        return towers
    for full_name in names:
        parent, _, name = full_name.rpartition(".")
        setattr(model.get_submodule(parent), name, towers)
    return model


def _in_towers(collection: EmbeddingBagCollection, partition: Sequence[Sequence[int]]) -> TowerEmbedding:
    tables = collection.embedding_bag_configs()
    width = [table.embedding_dim * len(table.feature_names) for table in tables]
    passes = [PassThrough(sum(width[i] for i in group if 0 <= i < len(tables))) for group in partition]
    meta, is_weighted = torch.device("meta"), collection.is_weighted()
    towers = TowerEmbedding(tables, partition, passes, meta, is_weighted, in_table_order=True)
    inner = towers.embedding_bag_collection
    for name, bag in collection.embedding_bags.items():
        inner.embedding_bags[name] = bag
    inner._device = collection.device
    return towers
