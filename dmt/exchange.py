"""The exchange of SPTT (paper, section 3.1 and figure 7): steps c to f, between the lookup and the model, on one rank.

Steps a (indices to the ranks that hold the tables) and b (lookup) are TorchRec's; dmt.sharding puts all six in order.

Layout letters: G ranks, M ranks of a tower's slot, S slots, B_g samples of rank g, B samples of this rank, P samples of
this rank's peers together, W_m numbers a sample that rank m of the slot looks up, I numbers a sample into the tower
modules of this slot, O_s numbers a sample out of those of slot s.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torchrec import KeyedJaggedTensor
from torchrec.distributed.comm_ops import get_gradient_division
from torchrec.distributed.fbgemm_qcomm_codec import QCommsConfig
from torchrec.distributed.types import Awaitable

from dmt.alltoall import AllToAll
from dmt.topology import Groups, Topology


@dataclass(frozen=True)
class Columns:
    """How a matrix is made of the columns of blocks.

    widths: columns of each block.
    pieces: (block, first column, columns) of each part of the matrix, left to right; each column is used once.
    summed: the last `summed` columns of every block are partial sums; added up they are block number len(widths).
    """

    widths: tuple[int, ...]
    pieces: tuple[tuple[int, int, int], ...]
    summed: int = 0

    @staticmethod
    def of(widths: Sequence[int], pieces: Sequence[tuple[int, int, int]], summed: int = 0) -> "Columns":
        """With neighbouring pieces joined: every piece is a copy."""
        joined: list[tuple[int, int, int]] = []
        for block, first, columns in pieces:
            if joined and joined[-1][0] == block and joined[-1][1] + joined[-1][2] == first:
                _, first, before = joined.pop()
                columns += before
            joined.append((block, first, columns))
        return Columns(tuple(widths), tuple(joined), summed)


class TowerExchange:
    """Steps c to f for one rank of a sharded TowerEmbedding.

    Args:
        topology, rank, groups: where this rank is.
        inner: what a rank of the slot receives in step d, and how step e orders it.
        outer: what a rank receives in step f, and how it is ordered for the model.
        inside, peer: number formats of steps d and f; None: as they are.
        modules_learn: whether the slot's tower modules have parameters that learn. If not, gradients are divided once,
            on step d's way back, instead of on f's and on d's.
    """

    def __init__(
        self,
        topology: Topology,
        rank: int,
        groups: Groups,
        inner: Columns,
        outer: Columns,
        inside: QCommsConfig | None,
        peer: QCommsConfig | None,
        modules_learn: bool,
    ) -> None:
        self.topology, self.rank, self.groups = topology, rank, groups
        self.inner, self.outer = inner, outer
        self.inside, self.peer = inside, peer
        self.tower, self.peers = topology.tower_of(rank), topology.peers_of(rank)
        self.peer_order = topology.peer_order()
        self.divide_at_peers = len(self.peers) if modules_learn else 1

    def permute_indices(self, features: KeyedJaggedTensor, batch_G: list[int]) -> KeyedJaggedTensor:
        """Step c before step b: each feature's bags, sum of B_g of them, from rank order to peer order."""
        keys, samples = len(features.keys()), sum(batch_G)
        if keys == 0 or samples == 0:
            return features
        starts = [sum(batch_G[:g]) for g in range(len(batch_G))]
        order = torch.cat([torch.arange(starts[g], starts[g] + batch_G[g], dtype=torch.int32) for g in self.peer_order])
        bags = (torch.arange(keys, dtype=torch.int32).unsqueeze(1) * samples + order).flatten().to(features.device())
        lengths, values, weights = torch.ops.fbgemm.permute_1D_sparse_data(
            bags, features.lengths().flatten(), features.values(), features.weights_or_none(), features.values().numel()
        )
        return KeyedJaggedTensor(features.keys(), values, weights, lengths, stride=samples)

    def permute(self, embeddings: torch.Tensor, batch_G: list[int]) -> torch.Tensor:
        """Step c, peer permute: the ranks' samples, (sum of B_g, W), from rank order to peer order."""
        chunks = embeddings.split(batch_G)
        return torch.cat([chunks[g] for g in self.peer_order])

    def inner_exchange(self, embeddings: torch.Tensor, batch_G: list[int]) -> Awaitable[torch.Tensor]:
        """Step d: AlltoAll inside the slot of (sum of B_g, W) in peer order -> flat blocks (P, W_m), one a rank m.

        Of tables in rows the blocks hold partial sums, which step e adds up: together a ReduceScatter, with the same
        bytes, for batches of any size.

        The loss is the mean over G ranks, each with its own samples, and a table's gradient sums over all of them: it
        is divided by G, of which f's way back may have done a part. set_gradient_division(False) leaves that sum.
        """
        samples_M = [sum(batch_G[g] for g in self.topology.peers_of(m)) for m in self.tower]
        place = self.tower.index(self.rank)
        width, samples = self.inner.widths[place], samples_M[place]
        return AllToAll(
            embeddings.reshape(-1),
            [samples_m * width for samples_m in samples_M],
            [samples * width_m for width_m in self.inner.widths],
            self.groups.tower,
            self.inside,
            divide_gradient=(self.topology.ranks if get_gradient_division() else 1) / self.divide_at_peers,
        )

    def local_shuffle(self, blocks: torch.Tensor, batch_G: list[int]) -> torch.Tensor:
        """Step e: from (features, peers) to (peers, features), flat blocks (P, W_m) -> (P, I)."""
        return _Shuffle.apply(blocks, self.inner, sum(batch_G[g] for g in self.peers))

    def peer_exchange(self, outputs: torch.Tensor, batch_G: list[int]) -> Awaitable[torch.Tensor]:
        """Step f: AlltoAll between peers of (P, O) -> (B, sum of O_s), everything of this rank's own samples."""
        samples, width = batch_G[self.rank], outputs.shape[1]
        exchange = AllToAll(
            outputs.reshape(-1),
            [batch_G[peer] * width for peer in self.peers],
            [samples * width for width in self.outer.widths],
            self.groups.peers,
            self.peer,
            divide_gradient=self.divide_at_peers,
        )
        exchange.callbacks.append(lambda blocks: _Shuffle.apply(blocks, self.outer, samples))
        return exchange


class _Shuffle(torch.autograd.Function):
    """Flat blocks (rows, widths[m]), one after the other -> the matrix (rows, columns) that `columns` describes."""

    @staticmethod
    def forward(ctx, flat, columns, rows):
        ctx.columns = columns
        blocks = _blocks(flat, columns, rows)
        if columns.summed:
            blocks.append(sum(block[:, block.shape[1] - columns.summed :] for block in blocks))
        return torch.cat([blocks[b][:, first : first + width] for b, first, width in columns.pieces], dim=1)

    @staticmethod
    def backward(ctx, gradient):
        columns, rows = ctx.columns, gradient.shape[0]
        parts: list[list[tuple[int, torch.Tensor]]] = [[] for _ in range(len(columns.widths) + 1)]
        at = 0
        for block, first, width in columns.pieces:
            parts[block].append((first, gradient[:, at : at + width]))
            at += width
        of_sum = _in_order(parts.pop())
        flat = gradient.new_empty(rows * sum(columns.widths))
        for block, part in zip(_blocks(flat, columns, rows), parts, strict=True):
            if part or of_sum:
                torch.cat(_in_order(part) + of_sum, dim=1, out=block)
        return flat, None, None


def _blocks(flat: torch.Tensor, columns: Columns, rows: int) -> list[torch.Tensor]:
    parts = flat.split([rows * width for width in columns.widths])
    return [part.view(rows, width) for part, width in zip(parts, columns.widths, strict=True)]


def _in_order(parts: list[tuple[int, torch.Tensor]]) -> list[torch.Tensor]:
    return [part for _, part in sorted(parts, key=lambda first_and_part: first_and_part[0])]
