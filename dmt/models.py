"""Tower models: TorchRec's DLRM and DLRM_DCN with the outputs of towers in the place of embeddings.

B batch, F features, T towers, N embedding dim, D tower output dim, V vectors of D that all towers give together,
dense_in dense features. The pass-through (SPTT) form needs no class: it is TorchRec's own model over a TowerEmbedding
of pass-through towers.
"""

import torch
from torch import nn
from torchrec import KeyedJaggedTensor
from torchrec.models.dlrm import DenseArch, InteractionArch, InteractionDCNArch, OverArch
from torchrec.modules.crossnet import LowRankCrossNet

from dmt.towers import Partition, TowerEmbedding


class _TowerModel(nn.Module):
    """Dense MLP, towers, an interaction over (V + 1) vectors of D, over MLP; the last width of the dense MLP is D.

    Raises:
        ValueError: a tower whose output is not a whole number of vectors of D.
    """

    def __init__(
        self,
        tower_embedding: TowerEmbedding,
        dense_in_features: int,
        dense_arch_layer_sizes: list[int],
        dense_device: torch.device | None,
    ) -> None:
        super().__init__()
        self.tower_dim: int = dense_arch_layer_sizes[-1]
        for tower, width in enumerate(tower_embedding.out_features):
            if width % self.tower_dim:
                raise ValueError(
                    f"tower {tower} gives {width} numbers a sample, no whole number of vectors of {self.tower_dim}, "
                    "the last layer of the dense MLP"
                )
        self.vectors: int = sum(tower_embedding.out_features) // self.tower_dim
        self.tower_embedding = tower_embedding
        self.dense_arch = DenseArch(dense_in_features, dense_arch_layer_sizes, dense_device)

    @property
    def compression_ratio(self) -> float:
        """Bytes into the tower modules / bytes out of them."""
        return self.tower_embedding.compression_ratio

    @property
    def partition(self) -> Partition:
        """Feature indices of each tower."""
        return self.tower_embedding.partition

    def forward(self, dense_features: torch.Tensor, sparse_features: KeyedJaggedTensor) -> torch.Tensor:
        """Dense features (B, dense_in) and one key for each sparse feature -> logits (B,)."""
        dense_BD = self.dense_arch(dense_features)
        towers_BVD = self.tower_embedding(sparse_features).values().reshape(-1, self.vectors, self.tower_dim)
        interactions = self.inter_arch(dense_features=dense_BD, sparse_features=towers_BVD)
        return self.over_arch(interactions).squeeze(1)


class DMTDLRM(_TowerModel):
    """DMT-DLRM: pairwise dot products of the towers' vectors and the dense vector, as in DLRM.

    Args:
        tower_embedding: tables in towers, for the paper's shapes with the modules of `dmt.modules.dlrm_towers`.
        dense_in_features: width of the dense input.
        dense_arch_layer_sizes: layers of the dense MLP; the last is D (paper: 512, 256, D).
        over_arch_layer_sizes: layers of the over MLP; the last is 1 (paper: 1024, 512, 256, 1).
        dense_device: of all but the tables and tower modules.
    """

    def __init__(
        self,
        tower_embedding: TowerEmbedding,
        dense_in_features: int,
        dense_arch_layer_sizes: list[int],
        over_arch_layer_sizes: list[int],
        dense_device: torch.device | None = None,
    ) -> None:
        super().__init__(tower_embedding, dense_in_features, dense_arch_layer_sizes, dense_device)
        self.inter_arch = InteractionArch(self.vectors).to(dense_device)
        pairs = (self.vectors + 1) * self.vectors // 2
        self.over_arch = OverArch(self.tower_dim + pairs, over_arch_layer_sizes, dense_device)


class DMTDCN(_TowerModel):
    """DMT-DCN: a low-rank CrossNet over the towers' vectors and the dense vector, as in TorchRec's DLRM_DCN.

    Args: as DMTDLRM, with modules of `dmt.modules.dcn_towers`; the paper's over MLP is 1024, 1024, 512, 256, 1, and
        dcn_num_layers: layers of the global CrossNet over (V + 1) * D numbers (paper: 3).
        dcn_low_rank_dim: their rank (paper: 512).
    """

    def __init__(
        self,
        tower_embedding: TowerEmbedding,
        dense_in_features: int,
        dense_arch_layer_sizes: list[int],
        over_arch_layer_sizes: list[int],
        dcn_num_layers: int,
        dcn_low_rank_dim: int,
        dense_device: torch.device | None = None,
    ) -> None:
        super().__init__(tower_embedding, dense_in_features, dense_arch_layer_sizes, dense_device)
        width = (self.vectors + 1) * self.tower_dim
        crossnet = LowRankCrossNet(in_features=width, num_layers=dcn_num_layers, low_rank=dcn_low_rank_dim)
        self.inter_arch = InteractionDCNArch(self.vectors, crossnet.to(dense_device))
        self.over_arch = OverArch(width, over_arch_layer_sizes, dense_device)
