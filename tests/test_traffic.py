"""Counted bytes against bytes counted by hand, and against the formulas, on ranks."""

import random

import pytest
import torch
import torch.distributed as dist
from ranks import on_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embedding_tower_sharding import EmbeddingTowerCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.sharding_plan import column_wise, construct_module_sharding_plan, table_wise
from torchrec.distributed.types import ShardingPlan

from bench import traffic_formulas as formulas
from bench.tower_collection import shardable, tower_collection
from bench.traffic import Sent, Traffic
from dmt import PassThrough, Topology, TowerEmbedding, TowerEmbeddingSharder


def fp32(numbers):
    return torch.zeros(numbers)


def collectives_of_everyone(rank):
    """Four ranks, two a host: one collective of each kind."""
    four = [fp32(3) for _ in range(4)]
    with Traffic(ranks_per_host=2) as traffic:
        dist.all_to_all_single(fp32(8), fp32(8))
        dist.all_reduce(fp32(100))
        dist.reduce_scatter(fp32(3), four)
        dist.reduce_scatter_tensor(fp32(5), fp32(20))
        dist.all_gather(four, fp32(3))
        dist.all_gather_into_tensor(fp32(20), fp32(5))
        dist.broadcast(fp32(10), src=1)
        dist.reduce(fp32(10), dst=2)
        dist.gather(fp32(3), four if rank == 3 else None, dst=3)
        dist.scatter(fp32(3), four if rank == 0 else None, src=0)
        dist.send(fp32(7), 2) if rank == 1 else dist.recv(fp32(7), 1) if rank == 2 else None
        dist.barrier()
    return [(call.kind, call.sent.inside, call.sent.across) for call in traffic.calls]


def test_each_kind_of_collective():
    """By hand, with the ring 0 -> 1 -> 2 -> 3 -> 0: ranks 0 and 2 send to their own host, 1 and 3 to the other."""
    counted = on_ranks(4, collectives_of_everyone)

    def in_ring(rank, size):
        return (size, 0) if rank in (0, 2) else (0, size)

    for rank, calls in enumerate(counted):
        assert calls == [
            ("all_to_all", 2 * 4, 4 * 4),
            ("all_reduce", *in_ring(rank, 600)),  # 2 * 3/4 of 400
            ("reduce_scatter", *in_ring(rank, 3 * 12)),
            ("reduce_scatter", *in_ring(rank, 3 * 20)),
            ("all_gather", *in_ring(rank, 3 * 12)),
            ("all_gather", *in_ring(rank, 3 * 20)),
            ("broadcast", *((0, 0) if rank == 0 else in_ring(rank, 40))),  # from 1 round the ring, to 0 last
            ("reduce", *((0, 0) if rank == 2 else in_ring(rank, 40))),
            ("gather", *[(0, 12), (0, 12), (12, 0), (0, 0)][rank]),
            ("scatter", *((12, 24) if rank == 0 else (0, 0))),
            *([("send", 0, 28)] if rank == 1 else []),
        ]


def uneven_all_to_all(rank, ranks_per_host, of_group):
    """Rank r sends 10 * r + to rows of 2 numbers to each rank `to` of the group."""
    group = dist.new_group(of_group)
    if rank not in of_group:
        return None
    send, receive = [10 * rank + to for to in of_group], [10 * other + rank for other in of_group]
    with Traffic(ranks_per_host) as traffic:
        dist.all_to_all_single(torch.empty(sum(receive), 2), torch.ones(sum(send), 2), receive, send, group=group)
        dist.all_reduce(torch.zeros(len(of_group) * 4), group=group)
    assert traffic.sent(kind="all_to_all") + traffic.sent(kind="all_reduce") == traffic.sent(group=of_group[::-1])
    assert traffic.sent(group=[0]) == Sent()
    return traffic.sent(kind="all_to_all"), traffic.sent(kind="all_reduce")


def test_uneven_splits_and_groups():
    row = 2 * 4
    on_one_host = on_ranks(4, uneven_all_to_all, 2, [2, 3])
    assert on_one_host == [None, None, (Sent(23 * row, 0), Sent(32, 0)), (Sent(32 * row, 0), Sent(32, 0))]
    peers = on_ranks(4, uneven_all_to_all, 2, [1, 3])
    assert peers == [None, (Sent(0, 13 * row), Sent(0, 32)), None, (Sent(0, 31 * row), Sent(0, 32))]
    mixed = on_ranks(4, uneven_all_to_all, 2, [0, 2, 3])  # in the ring 0 -> 2 -> 3 -> 0
    assert mixed[0] == (Sent(0, (3 + 2) * row), Sent(0, 64))
    assert mixed[2] == (Sent(23 * row, 20 * row), Sent(64, 0))
    assert mixed[3] == (Sent(32 * row, 30 * row), Sent(0, 64))


def of_a_reducer(rank):
    """DistributedDataParallel's all_reduce, which C++ issues in the backward pass."""
    model = DistributedDataParallel(nn.Linear(5, 3))
    with Traffic(ranks_per_host=1) as traffic:
        loss = model(torch.ones(2, 5)).sum()
        before = traffic.sent()
        loss.backward()
    return before, traffic.sent(kind="all_reduce")


def test_the_reducer_of_ddp_is_seen():
    assert on_ranks(2, of_a_reducer) == [(Sent(), Sent(0, (5 * 3 + 3) * 4))] * 2


def functional(rank):
    from torch.distributed import _functional_collectives

    with Traffic(ranks_per_host=1):
        _functional_collectives.all_reduce(torch.ones(1), "sum", dist.group.WORLD)


def test_a_collective_that_cannot_be_counted_is_refused():
    with pytest.raises(NotImplementedError, match="_c10d_functional::all_reduce"):
        on_ranks(2, functional)


def drawn(seed, ranks, ranks_per_host, hosts_per_tower=1, one_batch=False):
    """Batches and bags that differ, and tables whole or in columns inside the tower of their feature."""
    draw = random.Random(seed)
    topology = Topology(ranks, ranks_per_host, hosts_per_tower)
    batches = [draw.randint(0, 5) for _ in range(ranks)]
    batches[draw.randrange(ranks)] = 7
    if one_batch:
        batches = [5] * ranks
    features = draw.randint(topology.slots, 9)
    partition = [list(range(slot, features, topology.slots)) for slot in range(topology.slots)]
    tables = [
        EmbeddingBagConfig(name=f"t{i}", embedding_dim=draw.choice([8, 16]), num_embeddings=9, feature_names=[f"f{i}"])
        for i in range(features)
    ]
    places = {}
    for slot, group in enumerate(partition):
        tower = range(slot * topology.tower_ranks, (slot + 1) * topology.tower_ranks)
        for feature in group:
            places[f"t{feature}"] = draw.sample(tower, draw.choice([1, 2]) if len(tower) > 1 else 1)
    bags = [[[draw.randint(0, 3) for _ in range(batches[r])] for _ in range(features)] for r in range(ranks)]
    return topology, batches, partition, tables, places, bags


def workload(topology, batches, partition, tables, places, bags, weighted, **more):
    shards = [
        formulas.Shard(feature, table.embedding_dim // len(places[table.name]), rank)
        for feature, table in enumerate(tables)
        for rank in places[table.name]
    ]
    ids = [[sum(bag) for bag in of_rank] for of_rank in bags]
    return formulas.Workload(topology, batches, ids, shards, weighted, **more)


def counted(rank, way, weighted, case, id_type=torch.int64):
    """What this rank sends in one iteration of the way, the first one (which sets up) left out."""
    topology, _, partition, tables, places, bags = case
    embeddings = EmbeddingBagCollection(tables=tables, is_weighted=weighted)
    towers = [PassThrough(sum(tables[i].embedding_dim for i in group)) for group in partition]
    if way == "flat":
        sharder = EmbeddingBagCollectionSharder()
        model = embeddings
    elif way == "tower_collection":
        sharder = EmbeddingTowerCollectionSharder()
        model = tower_collection(tables, partition, towers)
    else:
        sharder = TowerEmbeddingSharder(topology, one_hot=way == "sptt one-hot")
        model = TowerEmbedding(tables, partition, towers, is_weighted=weighted)
    per_table = {
        name: table_wise(rank=ranks[0], compute_kernel="fused")
        if len(ranks) == 1
        else column_wise(ranks=ranks, compute_kernel="fused")
        for name, ranks in places.items()
    }
    plan = construct_module_sharding_plan(
        embeddings, per_table, local_size=topology.ranks, world_size=topology.ranks, device_type="cpu"
    )
    if way == "tower_collection":
        for placed in plan.values():
            placed.sharding_type = "table_column_wise"
    with shardable(topology.ranks_per_host):
        model = DistributedModelParallel(
            model, device=torch.device("cpu"), plan=ShardingPlan({"": plan}), sharders=[sharder]
        )
    lengths = torch.tensor([length for of_feature in bags[rank] for length in of_feature], dtype=torch.int32)
    ids = (torch.arange(int(lengths.sum())) % 9).to(id_type)
    for _ in range(2):
        features = KeyedJaggedTensor(
            [f"f{i}" for i in range(len(tables))],
            ids,
            ids.float() if weighted else None,
            lengths,
            stride=len(bags[rank][0]),
        )
        with Traffic(topology.ranks_per_host) as traffic:
            output = model(features)
            output = output.wait() if hasattr(output, "wait") else output
            (output if isinstance(output, torch.Tensor) else output.values()).sum().backward()
    return traffic.sent()


@pytest.mark.parametrize("ranks, ranks_per_host, weighted", [(4, 2, False), (4, 2, True), (3, 1, False), (4, 4, False)])
def test_flat_exchange_sends_what_the_formula_says(ranks, ranks_per_host, weighted):
    for seed in range(2):
        topology, *case = drawn(seed, ranks, ranks_per_host)
        places = {name: places_of[:1] for name, places_of in case[3].items()}  # one sharding: one AlltoAll
        case[3] = places
        work = workload(topology, *case, weighted)
        expected = [formulas.total(formulas.flat(work, rank)) for rank in range(ranks)]
        assert on_ranks(ranks, counted, "flat", weighted, (topology, *case)) == expected


@pytest.mark.parametrize("ranks, ranks_per_host, weighted", [(4, 2, False), (6, 2, True)])
def test_tower_collection_sends_what_the_formula_says(ranks, ranks_per_host, weighted):
    """It cannot do batches that differ by rank."""
    for seed in range(2):
        topology, *case = drawn(seed, ranks, ranks_per_host, one_batch=True)
        work = workload(topology, *case, weighted)
        expected = [formulas.total(formulas.tower_collection(work, rank)) for rank in range(ranks)]
        assert on_ranks(ranks, counted, "tower_collection", weighted, (topology, *case)) == expected


@pytest.mark.parametrize(
    "ranks, ranks_per_host, hosts_per_tower", [(4, 2, 1), (4, 1, 2), (4, 1, 1), (2, 2, 1), (6, 2, 1)]
)
def test_sptt_sends_what_the_formula_says(ranks, ranks_per_host, hosts_per_tower):
    for seed, weighted in enumerate((False, True)):
        topology, *case = drawn(seed, ranks, ranks_per_host, hosts_per_tower)
        work = workload(topology, *case, weighted)
        expected = [formulas.total(formulas.sptt(work, rank)) for rank in range(ranks)]
        assert on_ranks(ranks, counted, "sptt", weighted, (topology, *case)) == expected


@pytest.mark.parametrize("weighted", [False, True])
def test_one_hot_bags_need_no_lengths_and_ids_travel_in_their_own_type(weighted):
    topology, batches, *case, bags = drawn(0, 4, 2)
    bags = [[[1] * len(of_feature) for of_feature in of_rank] for of_rank in bags]
    case = (batches, *case, bags)
    work = workload(topology, *case, weighted, id_bytes=formulas.INT32, one_hot=True)
    assert formulas.sptt(work, 0)["lengths"] == formulas.total({})
    expected = [formulas.total(formulas.sptt(work, rank)) for rank in range(4)]
    assert on_ranks(4, counted, "sptt one-hot", weighted, (topology, *case), torch.int32) == expected
    one_place = {name: places[:1] for name, places in case[3].items()}
    case = (*case[:3], one_place, bags)
    work = workload(topology, *case, weighted, id_bytes=formulas.INT32)
    flat = [formulas.total(formulas.flat(work, rank)) for rank in range(4)]
    assert on_ranks(4, counted, "flat", weighted, (topology, *case), torch.int32) == flat
