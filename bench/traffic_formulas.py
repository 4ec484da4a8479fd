"""What a rank must send in one iteration, forward and backward: the flat exchange, TorchRec's hierarchical sharding,
SPTT, TorchRec's tower collection, and the dense layers.

The formulas behind `Traffic`'s counts, exact for tables that are whole or cut by columns (in a flat exchange all of one
kind, since TorchRec sends indices once a kind), for batches that differ by
rank and bags of any size. Each gives bytes by part, so that a difference between two ways can be explained:

    splits      one int64 a tensor and receiver, and one more for the batch: how much will come
    lengths, ids, weights   the indices
    embeddings, gradients   of the one AlltoAll of a flat exchange; or `... inside` a tower and `... between` peers
    modules     the ring all_reduce of a tower module's gradients over the ranks of its tower
    dense       the ring all_reduce of all else

G ranks, L a host, K hosts a tower; B[r] samples of rank r, D[r] embedding columns that rank r holds, O[s] numbers a
sample that leave slot s (= its columns, where towers pass through), e bytes a number:

                    flat                    SPTT, inside a tower                    SPTT, between peers
    forward         B[to] * D[r] * e        sum of B over peers of `to` * D[r] * e  B[to] * O[slot of r] * e
    backward        B[r] * D[to] * e        sum of B over peers of r * D[to] * e    B[r] * O[slot of `to`] * e

With equal batches a flat exchange sends B * D[r] * (G - L) * e across hosts, and SPTT B * (T - 1) * (sum of D over the
tower) * e: the same, summed over a tower's ranks. The indices travel as in a flat exchange, but for the lengths of
bags that are said to have one id each (dmt.TowerEmbeddingSharder's one_hot).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from bench.traffic import Sent, all_reduce_bytes, next_in_ring, sent
from dmt import Topology

Parts = dict[str, Sent]
FP32 = INT32 = 4  # bytes: dense gradients, embeddings as they are; lengths of bags
INT64 = 8


@dataclass(frozen=True)
class Shard:
    """Columns of one feature's table on one rank; a table cut by columns has several."""

    feature: int
    columns: int
    rank: int


@dataclass(frozen=True)
class Workload:
    """What there is to exchange.

    Args:
        topology: G, L, K.
        batches: samples of each rank, G numbers.
        ids: ids of each rank and feature, in all its bags together, G lists of F numbers.
        shards: of all tables.
        weighted: whether ids carry weights (fp32).
        number_bytes: e, of an embedding's or gradient's number on the wire.
        id_bytes: of an id.
        one_hot: whether SPTT leaves out the lengths of bags, which all have one id.
    """

    topology: Topology
    batches: Sequence[int]
    ids: Sequence[Sequence[int]]
    shards: Sequence[Shard]
    weighted: bool = False
    number_bytes: int = FP32
    id_bytes: int = INT64
    one_hot: bool = False

    def features_on(self, rank: int) -> list[int]:
        """Features that a rank looks up, once for each shard that it holds."""
        return [shard.feature for shard in self.shards if shard.rank == rank]

    def features_of_tower(self, rank: int) -> list[int]:
        """Features of the tower of this rank, each once."""
        tower = self.topology.tower_of(rank)
        return sorted({shard.feature for shard in self.shards if shard.rank in tower})

    def columns(self, ranks: Iterable[int]) -> int:
        """D, summed over these ranks."""
        ranks = set(ranks)
        return sum(shard.columns for shard in self.shards if shard.rank in ranks)

    def samples(self, ranks: Iterable[int]) -> int:
        """B, summed over these ranks."""
        return sum(self.batches[rank] for rank in ranks)


def total(parts: Parts) -> Sent:
    """All parts together."""
    return sum(parts.values(), Sent())


def flat(work: Workload, rank: int) -> Parts:
    """Tables spread over all ranks: one AlltoAll of indices, one of embeddings, one of gradients."""
    everyone = range(work.topology.ranks)
    return {
        **_indices(work, rank, everyone, [rank], work.features_on),
        "embeddings": _all_to_all(work, rank, everyone, lambda to: work.samples([to]) * _held(work, rank)),
        "gradients": _all_to_all(work, rank, everyone, lambda to: work.samples([rank]) * _held(work, to)),
    }


def sptt(work: Workload, rank: int, slot_outputs: Sequence[int] | None = None, module_bytes: int = 0) -> Parts:
    """Indices as in a flat exchange, embeddings inside the tower (step d), then what leaves it between peers (step f).

    Args:
        slot_outputs: O of each slot, where tower modules make fewer numbers of a tower; None: it passes through.
        module_bytes: of the parameters of this rank's tower modules, in one bucket of DistributedDataParallel.
    """
    everyone = range(work.topology.ranks)
    indices = _indices(work, rank, everyone, [rank], work.features_on, lengths=not work.one_hot)
    return {**indices, **_two_steps(work, rank, slot_outputs), **_modules(work, rank, module_bytes)}


def table_row_wise(work: Workload, rank: int) -> Parts:
    """TorchRec's hierarchical sharding: every host's tables by rows over its L ranks, a shard of each on every one.

    Ids go to the rank that has their row (a share of 1 / L of them: an expectation, exact to the chance of the draw),
    sums of rows inside a host are a ring reduce_scatter (backward an all_gather), and go on between peers.
    """
    topology = work.topology
    everyone, host, peers = range(topology.ranks), topology.host_of(rank), topology.peers_of(rank)
    local = len(host)
    moved = _indices(work, rank, everyone, [rank], work.features_on)
    moved |= {part: moved[part].times(1 / local) for part in ("ids", "weights")}
    held = work.columns([rank]) * work.number_bytes  # of each table on the host: its columns are on all ranks
    of_host = work.samples(everyone) * held * (local - 1) // local
    next_inside = sent(rank, {next_in_ring(rank, host): of_host}, topology.ranks_per_host)
    return {
        **moved,
        "embeddings inside": next_inside,
        "embeddings between": _all_to_all(work, rank, peers, lambda to: work.batches[to] * held),
        "gradients between": _all_to_all(
            work, rank, peers, lambda to: work.batches[rank] * work.columns([to]) * work.number_bytes
        ),
        "gradients inside": next_inside,
    }


def dense(work: Workload, rank: int, size: int) -> Parts:
    """Gradients of `size` bytes that all ranks share, in one bucket of DistributedDataParallel."""
    everyone = range(work.topology.ranks)
    if len(everyone) == 1:
        return {"dense": Sent()}
    to = {next_in_ring(rank, everyone): all_reduce_bytes(size, len(everyone))}
    return {"dense": sent(rank, to, work.topology.ranks_per_host)}


def tower_collection(
    work: Workload, rank: int, slot_outputs: Sequence[int] | None = None, module_bytes: int = 0
) -> Parts:
    """TorchRec's EmbeddingTowerCollection: indices go to the peer on the tower's host, then to the table's rank."""
    topology = work.topology
    peers, tower = topology.peers_of(rank), topology.tower_of(rank)
    between = _indices(work, rank, peers, [rank], work.features_of_tower)
    inside = _indices(work, rank, tower, peers, work.features_on)
    indices = {f"{part} between": moved for part, moved in between.items()}
    indices |= {f"{part} inside": moved for part, moved in inside.items()}
    return {**indices, **_two_steps(work, rank, slot_outputs), **_modules(work, rank, module_bytes)}


def _two_steps(work: Workload, rank: int, slot_outputs: Sequence[int] | None) -> Parts:
    topology, e = work.topology, work.number_bytes
    tower, peers = topology.tower_of(rank), topology.peers_of(rank)

    def samples_of_peers(of: int) -> int:
        return work.samples(topology.peers_of(of))

    def leaving(of: int) -> int:
        slot = of // topology.tower_ranks
        return work.columns(topology.tower_of(of)) if slot_outputs is None else slot_outputs[slot]

    return {
        "embeddings inside": _all_to_all(work, rank, tower, lambda to: samples_of_peers(to) * _held(work, rank)),
        "embeddings between": _all_to_all(work, rank, peers, lambda to: work.batches[to] * leaving(rank) * e),
        "gradients between": _all_to_all(work, rank, peers, lambda to: work.batches[rank] * leaving(to) * e),
        "gradients inside": _all_to_all(work, rank, tower, lambda to: samples_of_peers(rank) * _held(work, to)),
    }


def _indices(
    work: Workload,
    rank: int,
    group: Sequence[int],
    of: Sequence[int],
    features: Callable[[int], list[int]],
    lengths: bool = True,
) -> Parts:
    """TorchRec's KJTAllToAll over `group`: features(to) of the samples of the ranks `of` go to each rank `to`."""
    if len(group) == 1:
        return {}

    def ids(to: int) -> int:
        return sum(work.ids[source][feature] for source in of for feature in features(to))

    bag_bytes = INT32 if lengths else 0
    splits = 2 + lengths + work.weighted  # of each tensor, and the batch
    return {
        "splits": _all_to_all(work, rank, group, lambda to: INT64 * splits),
        "lengths": _all_to_all(work, rank, group, lambda to: len(features(to)) * work.samples(of) * bag_bytes),
        "ids": _all_to_all(work, rank, group, lambda to: ids(to) * work.id_bytes),
        "weights": _all_to_all(work, rank, group, lambda to: ids(to) * 4 if work.weighted else 0),
    }


def _modules(work: Workload, rank: int, module_bytes: int) -> Parts:
    tower = work.topology.tower_of(rank)
    size = all_reduce_bytes(module_bytes, len(tower))
    return {"modules": sent(rank, {next_in_ring(rank, tower): size}, work.topology.ranks_per_host)}


def _all_to_all(work: Workload, rank: int, group: Iterable[int], bytes_to: Callable[[int], int]) -> Sent:
    return sent(rank, {to: bytes_to(to) for to in group}, work.topology.ranks_per_host)


def _held(work: Workload, rank: int) -> int:
    """Bytes a sample of the embeddings that this rank looks up, and of their gradients."""
    return work.columns([rank]) * work.number_bytes
