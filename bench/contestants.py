"""What bench.throughput compares: a model of baselines/ and how its tables are sharded.

A contestant is written MODEL[-Dn][:SHARDING]: dlrm, dmt_dlrm-D4, dcn:table_row_wise, dmt_dcn:tower_collection. -Dn sets
the width of the towers' vectors. Contestants of the sharding `towers` can have bytes of each other (bench.mixture):
dmt_dcn+embeddings=sptt_dcn+dense=sptt_dcn has the operations of DMT-DCN and sends as much as SPTT-DCN. Shardings:

    planner           of flat models: TorchRec's planner, tables whole or by columns; where ranks outnumber tables, each
                      table is cut by columns into as many parts as it takes
    table_row_wise    of flat models: TorchRec's hierarchical sharding, a table's rows over the ranks of one host
    towers            of tower models: dmt.TowerEmbeddingSharder, a tower a host
    tower_collection  of tower models: TorchRec's EmbeddingTowerCollection with the same towers and modules
"""

import re
from dataclasses import dataclass, replace

import baselines
from baselines import ModelSpec

SHARDINGS = {"flat": ("planner", "table_row_wise"), "towers": ("towers", "tower_collection")}


@dataclass(frozen=True)
class Contestant:
    """A model and how it is sharded."""

    spec: ModelSpec
    sharding: str
    name: str
    operations: str  # MODEL[-Dn][:SHARDING]; the other two name a contestant whose bytes it sends
    embeddings: str
    dense: str

    @property
    def is_mixture(self) -> bool:
        """Whether it sends bytes of others."""
        return self.name != self.operations

    @property
    def has_towers(self) -> bool:
        return self.sharding in SHARDINGS["towers"]


def parse(text: str, sizes: ModelSpec, towers: int) -> Contestant:
    """A contestant as written, at these sizes, with a tower a host.

    Raises:
        ValueError: no such model or sharding, in one line.
    """
    match = re.fullmatch(r"(([a-z0-9_]+?)(?:-D(\d+))?(?::([a-z_]+))?)(\+embeddings=[^+]+)?(\+dense=[^+]+)?", text)
    if match is None:
        raise ValueError(f"{text!r} is no contestant: write MODEL[-Dn][:SHARDING], as in dmt_dlrm-D4:tower_collection")
    operations, model, tower_dim, sharding, *others = match.groups()
    baselines.spec.check_name(model)
    kind = "towers" if model.startswith(("dmt_", "sptt_")) else "flat"
    sharding = sharding or SHARDINGS[kind][0]
    if sharding not in SHARDINGS[kind]:
        raise ValueError(f"{text}: {model} can be sharded by {' or '.join(SHARDINGS[kind])}, not by {sharding}")
    spec = replace(
        sizes,
        model=model,
        towers=towers if kind == "towers" else 1,
        tower_dim=int(tower_dim) if tower_dim else None,
    )
    if any(others) and sharding != "towers":
        raise ValueError(f"{text}: only contestants of the sharding towers can have bytes of each other")
    embeddings, dense = (other.partition("=")[2] if other else operations for other in others)
    return Contestant(spec, sharding, text, operations, embeddings, dense)
