"""Tower modules: what a tower makes of its own features before anything leaves its host (paper, section 3.2).

Each is (B, F_t * N) -> (B, out_features), made of operators of the parent model's interaction only: no activation.
B batch, F_t features of the tower, N embedding dim, D tower output dim, p and c numbers of vectors of D.
"""

from collections.abc import Sequence

import torch
from torch import nn
from torchrec.modules.crossnet import LowRankCrossNet


class PassThrough(nn.Module):
    """The tower's embeddings as they are: SPTT without a tower module. (B, I) -> (B, I)."""

    def __init__(self, in_features: int) -> None:
        super().__init__()
        self.in_features = self.out_features = in_features

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, I) -> the same (B, I)."""
        return x


class DLRMTower(nn.Module):
    """DLRM's tower module: p vectors of all features of the tower together, and c vectors of each feature.

    o1 = Linear(F_t * N -> p * D) of the flattened tower, o2 = Linear(N -> c * D) of each feature (one Linear for the
    tower), output concat(o1, o2): p + c * F_t vectors of D. A part whose p or c is 0 does not exist.

    Raises:
        ValueError: p and c both 0, or a size that is not positive.
    """

    def __init__(self, features: int, embedding_dim: int, tower_dim: int, p: int, c: int) -> None:
        super().__init__()
        if min(features, embedding_dim, tower_dim) < 1:
            raise ValueError(
                f"a tower of {features} features of {embedding_dim} -> {tower_dim}: sizes must be positive"
            )
        if min(p, c) < 0 or p + c == 0:
            raise ValueError(f"p = {p}, c = {c}: a tower gives p + c * F_t vectors, and one of them must be positive")
        self.embedding_dim = embedding_dim
        self.in_features = features * embedding_dim
        self.out_features = (p + c * features) * tower_dim
        self.of_tower = nn.Linear(self.in_features, p * tower_dim) if p else None
        self.of_each = nn.Linear(embedding_dim, c * tower_dim) if c else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, F_t * N) -> (B, (p + c * F_t) * D), the p vectors first, then c for each feature in turn."""
        parts = []
        if self.of_tower is not None:
            parts.append(self.of_tower(x))  # (B, p * D)
        if self.of_each is not None:
            each = self.of_each(x.unflatten(1, (-1, self.embedding_dim)))  # (B, F_t, c * D)
            parts.append(each.flatten(1))  # (B, F_t * c * D)
        return torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]


class DCNTower(nn.Module):
    """DCN's tower module: a low-rank CrossNet over the flattened tower, then Linear to ONE vector of D.

    A tower of one feature with D = N keeps its CrossNet and skips the Linear, which would reduce nothing.
    """

    def __init__(self, features: int, embedding_dim: int, tower_dim: int, layers: int, rank: int) -> None:
        super().__init__()
        self.in_features = features * embedding_dim
        self.out_features = tower_dim
        self.cross = LowRankCrossNet(in_features=self.in_features, num_layers=layers, low_rank=rank)
        skip = features == 1 and embedding_dim == tower_dim
        self.linear = nn.Identity() if skip else nn.Linear(self.in_features, tower_dim)

    def reset_parameters(self) -> None:
        """Draw all parameters anew, as at the start."""
        for kernel in (*self.cross.W_kernels, *self.cross.V_kernels):
            nn.init.xavier_normal_(kernel)
        for bias in self.cross.bias:
            nn.init.zeros_(bias)
        if isinstance(self.linear, nn.Linear):
            self.linear.reset_parameters()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, F_t * N) -> (B, D)."""
        return self.linear(self.cross(x))


def pass_through_towers(partition: Sequence[Sequence[int]], embedding_dim: int) -> list[nn.Module]:
    """A PassThrough for each tower of features of `embedding_dim`."""
    return [PassThrough(len(group) * embedding_dim) for group in partition]


def dlrm_towers(
    partition: Sequence[Sequence[int]], embedding_dim: int, tower_dim: int, p: int, c: int
) -> list[nn.Module]:
    """DMT-DLRM's module for each tower; a tower of one feature passes through where a module would reduce nothing.

    That rule is what the printed 8.75 MFLOP of 16 towers (p=1, c=0, D=N: six towers of one feature) comes from.
    """
    return [
        PassThrough(embedding_dim)
        if len(group) == 1 and (p + c) * tower_dim == embedding_dim
        else DLRMTower(len(group), embedding_dim, tower_dim, p, c)
        for group in partition
    ]


def dcn_towers(
    partition: Sequence[Sequence[int]], embedding_dim: int, tower_dim: int, layers: int, rank: int
) -> list[nn.Module]:
    """DMT-DCN's module for each tower; one feature in each tower and D = N: all pass through (paper: 26 towers)."""
    if tower_dim == embedding_dim and all(len(group) == 1 for group in partition):
        return pass_through_towers(partition, embedding_dim)
    return [DCNTower(len(group), embedding_dim, tower_dim, layers, rank) for group in partition]
