"""Disaggregated Multi-Tower (DMT) for TorchRec models: towers of sparse features, tower modules, tower models.

Needs torch and torchrec only. Paper: Luo et al., MLSys 2024, arXiv 2403.00877.
"""

from dmt.models import DMTDCN, DMTDLRM
from dmt.modules import DCNTower, DLRMTower, PassThrough, dcn_towers, dlrm_towers, pass_through_towers
from dmt.towers import Partition, TowerEmbedding, check_partition, naive_partition

__all__ = [
    "DCNTower",
    "DLRMTower",
    "DMTDCN",
    "DMTDLRM",
    "Partition",
    "PassThrough",
    "TowerEmbedding",
    "check_partition",
    "dcn_towers",
    "dlrm_towers",
    "naive_partition",
    "pass_through_towers",
]
