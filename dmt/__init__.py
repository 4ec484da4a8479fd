"""Disaggregated Multi-Tower (DMT) for TorchRec models: towers of sparse features, tower modules, tower models, SPTT.

Needs torch and torchrec only. Paper: Luo et al., MLSys 2024, arXiv 2403.00877.
"""

from dmt.models import DMTDCN, DMTDLRM
from dmt.modules import DCNTower, DLRMTower, PassThrough, dcn_towers, dlrm_towers, pass_through_towers
from dmt.planning import InSlots, sharding_plan
from dmt.sharding import TowerEmbeddingSharder
from dmt.topology import Topology
from dmt.towerize import towerize
from dmt.towers import Partition, TowerEmbedding, check_partition, naive_partition

__all__ = [
    "DCNTower",
    "DLRMTower",
    "DMTDCN",
    "DMTDLRM",
    "InSlots",
    "Partition",
    "PassThrough",
    "Topology",
    "TowerEmbedding",
    "TowerEmbeddingSharder",
    "check_partition",
    "dcn_towers",
    "dlrm_towers",
    "naive_partition",
    "pass_through_towers",
    "sharding_plan",
    "towerize",
]
