"""Towers on one device: which feature belongs to which tower, and the lookup with a module for each tower.

B batch, F features, T towers, F_t features of tower t, N embedding dim, I_t and O_t numbers a sample into and out of
tower t's module (I_t = F_t * N where all tables have one dimension).
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate

import torch
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor, KeyedTensor
from torchrec.modules.embedding_configs import PoolingType
from torchrec.modules.embedding_modules import get_embedding_names_by_table

from dmt.modules import PassThrough

Partition = tuple[tuple[int, ...], ...]


def naive_partition(features: int, towers: int) -> Partition:
    """Feature i to tower i % T (paper, section 4: naive assignment); sizes differ by at most one.

    Raises:
        ValueError: no tower, or more towers than features (a tower cannot be empty).
    """
    if towers < 1:
        raise ValueError(f"there must be at least one tower, not {towers}")
    if towers > features:
        raise ValueError(f"{towers} towers need at least {towers} features, and there are {features}: use fewer towers")
    return tuple(tuple(range(tower, features, towers)) for tower in range(towers))


def check_partition(partition: Sequence[Sequence[int]], features: int) -> None:
    """Check that each of the `features` features is in exactly one tower and that no tower is empty.

    Raises:
        ValueError: names the tower and the feature at fault.
    """
    tower_of: dict[int, int] = {}
    for tower, group in enumerate(partition):
        if len(group) == 0:
            raise ValueError(f"tower {tower} of the partition is empty: give it a feature or leave it out")
        for feature in group:
            if not 0 <= feature < features:
                raise ValueError(f"tower {tower} holds feature {feature}: feature indices go from 0 to {features - 1}")
            if feature in tower_of:
                raise ValueError(f"feature {feature} is in tower {tower_of[feature]} and again in tower {tower}")
            tower_of[feature] = tower
    missing = [feature for feature in range(features) if feature not in tower_of]
    if missing:
        raise ValueError(f"features {missing} are in no tower: each feature belongs to exactly one")


class TowerEmbedding(nn.Module):
    """Embedding tables in towers: look up all tables, then let each tower's module see its own features only.

    Like an EmbeddingBagCollection it takes a KeyedJaggedTensor and returns a KeyedTensor. Its values are the outputs of
    the towers, tower by tower; inside a tower, features come in the order of the partition. A pass-through tower keeps
    a key for each of its embeddings, any other tower t has the one key `tower_t`. So a TowerEmbedding of pass-through
    towers alone gives, under each name, what the EmbeddingBagCollection of the same tables gives, and takes its place
    in TorchRec models, which read embeddings by name: that is the single-device form of SPTT. Weights carry over with
    `embedding_bag_collection.` put before the names in the collection's state_dict. On many ranks:
    dmt.TowerEmbeddingSharder.

    Args:
        tables: one for each feature, in feature order; a table with several features moves as one.
        partition: indices into `tables` for each tower.
        towers: one module for each tower, (B, I_t) -> (B, O_t), with attributes in_features = I_t, out_features = O_t.
        device: of the tables ("meta" allocates nothing).
        is_weighted: ids come with weights, as for an EmbeddingBagCollection.
        in_table_order: keys come in the order of the tables and not of the towers, as the EmbeddingBagCollection of the
            same tables has them; for pass-through towers alone.

    Raises:
        ValueError: a partition at fault, as many modules as towers not given, a module of the wrong width,
            in_table_order with a tower that does not pass through, or means of weighted ids (torch has none).

    Example (two features in one tower, one in the other)::

        tables = [EmbeddingBagConfig(name=f"t{i}", embedding_dim=8, num_embeddings=10, feature_names=[f"f{i}"])
                  for i in range(3)]
        towers = TowerEmbedding(tables, ((0, 2), (1,)), [nn_module_16_to_4, PassThrough(8)])
        towers(kjt).to_dict()  # {"tower_0": (B, 4), "f1": (B, 8)}
    """

    def __init__(
        self,
        tables: Sequence[EmbeddingBagConfig],
        partition: Sequence[Sequence[int]],
        towers: Iterable[nn.Module],
        device: torch.device | None = None,
        is_weighted: bool = False,
        in_table_order: bool = False,
    ) -> None:
        super().__init__()
        check_partition(partition, len(tables))
        means = [table.name for table in tables if is_weighted and table.pooling == PoolingType.MEAN]
        if means:
            raise ValueError(f"tables {', '.join(means)} take means, and ids are weighted: only sums can be weighted")
        self.partition: Partition = tuple(tuple(group) for group in partition)
        self.towers = nn.ModuleList(towers)
        if len(self.towers) != len(self.partition):
            raise ValueError(f"{len(self.partition)} towers need as many tower modules, not {len(self.towers)}")

        # Tables stand tower by tower, so that a tower's features are neighbours in the lookup's output.
        self._tables = list(tables)
        tower_order = [tables[feature] for group in self.partition for feature in group]
        self.embedding_bag_collection = EmbeddingBagCollection(tower_order, is_weighted, device)

        names = dict(zip([table.name for table in tower_order], get_embedding_names_by_table(tower_order), strict=True))
        self.embedding_names: list[list[str]] = [
            [name for i in group for name in names[tables[i].name]] for group in self.partition
        ]
        self._in_features: list[int] = []
        self.out_keys: list[str] = []
        self.out_length_per_key: list[int] = []
        for tower, (group, module) in enumerate(zip(self.partition, self.towers, strict=True)):
            embeddings = [(name, tables[i].embedding_dim) for i in group for name in names[tables[i].name]]
            in_features = sum(dim for _, dim in embeddings)
            if module.in_features != in_features:
                raise ValueError(
                    f"the module of tower {tower} takes {module.in_features} numbers a sample, "
                    f"and the embeddings of features {list(group)} are {in_features}"
                )
            self._in_features.append(in_features)
            keys = embeddings if isinstance(module, PassThrough) else [(f"tower_{tower}", module.out_features)]
            self.out_keys += [name for name, _ in keys]
            self.out_length_per_key += [length for _, length in keys]
        self._columns: list[slice] = []  # of the towers' outputs, in the order of the tables
        if in_table_order:
            if not all(isinstance(module, PassThrough) for module in self.towers):
                raise ValueError("only outputs of pass-through towers can come in the order of the tables")
            ends = accumulate(self.out_length_per_key)
            of_key = {
                key: slice(end - width, end)
                for key, width, end in zip(self.out_keys, self.out_length_per_key, ends, strict=True)
            }
            self.out_keys = [name for table in tables for name in names[table.name]]
            self._columns = [of_key[name] for name in self.out_keys]
            self.out_length_per_key = [columns.stop - columns.start for columns in self._columns]

    def forward(self, features: KeyedJaggedTensor) -> KeyedTensor:
        """Ids of all features, keys in any order -> KeyedTensor with values (B, sum of O_t)."""
        embeddings = self.embedding_bag_collection(features).values()  # (B, sum of I_t)
        tower_inputs = embeddings.split(self._in_features, dim=1)  # T x (B, I_t)
        outputs = [tower(x) for tower, x in zip(self.towers, tower_inputs, strict=True)]  # T x (B, O_t)
        values = torch.cat(outputs, dim=1)
        if self._columns:
            values = torch.cat([values[:, columns] for columns in self._columns], dim=1)
        return KeyedTensor(self.out_keys, self.out_length_per_key, values)

    def embedding_bag_configs(self) -> list[EmbeddingBagConfig]:
        """Tables in feature order, as given. TorchRec's models ask for them to know which name to read when."""
        return self._tables

    @property
    def out_features(self) -> list[int]:
        """O_t of each tower."""
        return [tower.out_features for tower in self.towers]

    @property
    def compression_ratio(self) -> float:
        """Bytes into the tower modules / bytes out of them (the paper's CR as its tables use it)."""
        return sum(self._in_features) / sum(self.out_features)
