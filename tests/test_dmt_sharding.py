"""What else a sharded tower model must do: plans, refusals, number formats, pipelines, checkpoints, towerize."""

import copy
import dataclasses
import math
from datetime import timedelta
from unittest import mock

import pytest
import small_towers
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
from ranks import on_ranks
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.distributed import comm_ops
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.fbgemm_qcomm_codec import CommType, QCommsConfig
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.planner.types import HardwareConfig, ParameterConstraints, PlannerError
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, data_parallel, table_wise
from torchrec.distributed.train_pipeline import TrainPipelineSparseDist
from torchrec.distributed.types import BoundsCheckMode, ShardingEnv, ShardingPlan
from torchrec.models.dlrm import DLRM
from torchrec.streamable import Pipelineable
from tower_case import RATE, ROWS, Case, apart, batch, build, joined, optimizers, shard

from dmt import (
    DCNTower,
    DLRMTower,
    PassThrough,
    Topology,
    TowerEmbedding,
    TowerEmbeddingSharder,
    naive_partition,
    sharding_plan,
    towerize,
)
from dmt.planning import InSlots
from dmt.sharding import check_ids, check_plan

MIXED = Case(  # 2 hosts of 2, three towers of different size, every kind of sharding, a feature of two tables
    shape=(4, 2, 1),
    features=[[0], [1], [2, 0], [3], [4], [5]],
    dims=[8, 4, 4, 8, 12, 4],
    pooling=["sum", "mean", "sum", "mean", "sum", "sum"],
    sharding=["table_wise", "column_wise", "table_row_wise", "table_row_wise", "column_wise", "table_wise"],
    partition=[[3, 0], [1, 4, 5], [2]],
    modules=[True, False, True],
    batches=[[3, 1, 2, 4]] * 4,
)


# ---------------------------------------------------------------- number formats


def outputs(rank, case):
    """Outputs and tables after a step, of this rank."""
    model = shard(case, build(case))
    dense, sparse, labels = batch(case, 0)[rank]
    out = model(dense, sparse)
    ((out - labels) ** 2).sum().backward()
    return out.detach(), {name: _local(value) for name, value in model.state_dict().items()}


def _local(value):
    """This rank's part of a table, or the parameter itself."""
    if not hasattr(value, "local_shards"):
        return value
    return torch.cat([torch.empty(0), *(shard.tensor.flatten() for shard in value.local_shards())])


@pytest.mark.parametrize("where", ["inside", "peer"])
@pytest.mark.parametrize(
    ("precision", "relative"),
    [(CommType.FP16, 2e-3), (CommType.BF16, 2e-2), (CommType.INT8, 5e-2), (CommType.FP8, 0.2)],
    ids=str,
)
def test_a_number_format_on_the_wire_costs_its_precision_and_no_more(where, precision, relative):
    exact = on_ranks(4, outputs, MIXED)
    packed = on_ranks(4, outputs, dataclasses.replace(MIXED, sharder={where: QCommsConfig(precision, precision)}))
    some = False
    for (out, tables), (out_packed, tables_packed) in zip(exact, packed, strict=True):
        error = (out - out_packed).abs().max().item()
        assert error <= relative * out.abs().max().item() + 1e-3 * relative
        some |= error > 0
        for name, table in tables.items():
            torch.testing.assert_close(tables_packed[name], table, rtol=0, atol=relative * 0.5)
    assert some  # the format was used


# ---------------------------------------------------------------- plans


def planned(rank, case):
    model = build(case)
    sharders = [TowerEmbeddingSharder(Topology(*case.shape))]
    plan = sharding_plan(model, sharders)
    return {table: (p.sharding_type, list(p.ranks)) for table, p in plan.plan["towers"].items()}


@pytest.mark.parametrize("shape", [(4, 2, 1), (4, 1, 2), (6, 2, 1)])
def test_the_planners_plan_stays_inside_the_tower(shape):
    found = on_ranks(shape[0], planned, dataclasses.replace(MIXED, shape=shape, batches=[]))
    assert all(plan == found[0] for plan in found)
    places = Topology(*shape).slot_of_tower(3)
    width = Topology(*shape).tower_ranks
    for group, place in zip(MIXED.partition, places, strict=True):
        for table in group:
            assert set(found[0][f"t{table}"][1]) <= set(range(place * width, (place + 1) * width))


def flat_and_tower_tables(constraints, memory_MB, which=("flat", "towers")):
    """Bytes of tables on each rank of 2 hosts of 2; four tables of 25.6 MB flat, as many in two towers."""
    meta, model = torch.device("meta"), nn.Module()
    configs = {
        which: [
            EmbeddingBagConfig(name=f"{which}{i}", embedding_dim=64, num_embeddings=100_000, feature_names=[f"f{i}"])
            for i in range(4)
        ]
        for which in which
    }
    if "flat" in which:
        model.flat = EmbeddingBagCollection(configs["flat"], device=meta)
    if "towers" in which:
        model.towers = TowerEmbedding(configs["towers"], ((0, 1), (2, 3)), [PassThrough(128), PassThrough(128)], meta)
    sharders = [TowerEmbeddingSharder(Topology(4, 2)), EmbeddingBagCollectionSharder()]
    hardware = HardwareConfig(ddr_cap_bytes=memory_MB * 10**6)
    plan = sharding_plan(model, sharders, hardware=hardware, constraints=constraints)
    held = {name: [0] * 4 for name in which}
    for table, parameter in (item for module in plan.plan.values() for item in module.items()):
        for piece in parameter.sharding_spec.shards:
            held[table.rstrip("0123")][piece.placement.rank()] += 4 * math.prod(piece.shard_sizes)
    return held


def test_tables_in_towers_and_others_share_the_memory():
    for alone in ("flat", "towers"):
        assert sum(flat_and_tower_tables({}, 45, [alone])[alone]) == 4 * 25_600_000
    with pytest.raises(PlannerError):
        flat_and_tower_tables({}, 45)
    held = flat_and_tower_tables({}, 65)  # 15 % of it are reserved
    assert max(map(sum, zip(*held.values(), strict=True))) <= 0.85 * 65e6


def test_other_tables_go_where_towers_leave_time():
    busy = {f"towers{i}": ParameterConstraints(pooling_factors=[500.0]) for i in (2, 3)}
    whole = {f"flat{i}": ParameterConstraints(sharding_types=["table_wise"]) for i in range(4)}
    assert flat_and_tower_tables(busy | whole, 10_000)["flat"] == [2 * 25_600_000] * 2 + [0, 0]


def test_trying_a_plan_leaves_the_machines_as_they_are_for_the_next_try():
    original, left = InSlots.partition, []

    def partition(self, proposal, storage_constraint):
        before = copy.deepcopy(storage_constraint.devices)
        made = original(self, proposal, storage_constraint)
        left.append(storage_constraint.devices == before)
        return made

    with mock.patch.object(InSlots, "partition", partition):
        flat_and_tower_tables({}, 65)
    assert left and all(left)


def test_a_table_too_small_for_rows_on_each_rank_is_not_divided_by_rows_unless_its_user_says_so():
    tables = small_towers.tables(4)
    tables[0].num_embeddings = 1
    towers = TowerEmbedding(tables, naive_partition(4, 2), [PassThrough(8), PassThrough(8)])
    sharders, busy = [TowerEmbeddingSharder(Topology(4, 2))], {"pooling_factors": [500.0]}
    plan = sharding_plan(towers, sharders, constraints={"t0": ParameterConstraints(**busy)}).plan[""]
    assert plan["t0"].sharding_type in ("table_wise", "column_wise")
    check_plan(towers, plan, Topology(4, 2))
    by_rows = {"t0": ParameterConstraints(["table_row_wise"], **busy)}
    plan = sharding_plan(towers, sharders, constraints=by_rows).plan[""]
    assert plan["t0"].sharding_type == "table_row_wise"
    with pytest.raises(ValueError, match="leaves a rank without a part of table t0: it is too small .* by 2 ranks"):
        check_plan(towers, plan, Topology(4, 2))


def refusal(rank, kind):
    model = build(MIXED)
    sharder = TowerEmbeddingSharder(Topology(4, 2))
    towers = model.towers
    where = {f"t{table}": table_wise(rank=2 if table == 2 else 0) for table in range(6)}  # tower 2 is table 2 alone
    if kind == "outside":
        where["t2"] = table_wise(rank=1)
    if kind == "data parallel":
        where["t3"] = data_parallel()
    if kind == "ranks":
        sharder = TowerEmbeddingSharder(Topology(8, 2))
    if kind == "towers":
        sharder = TowerEmbeddingSharder(Topology(4, 1))
    params = construct_module_sharding_plan(
        towers, where, _any_kind(sharder), local_size=2, world_size=4, device_type="cpu"
    )
    with pytest.raises(ValueError) as error:
        DistributedModelParallel(model, plan=ShardingPlan({"towers": params}), sharders=[sharder])
    return str(error.value)


def _any_kind(sharder):
    other = copy.copy(sharder)
    other.sharding_types = lambda device: ["table_wise", "data_parallel"]
    return other


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("outside", "puts table t2 on ranks [1], and its tower lives on ranks 2 to 3: make the plan with dmt.sharding"),
        ("data parallel", "the plan shards table t3 data_parallel: towers can have table_wise, column_wise"),
        ("ranks", "the topology is for 8 ranks, and there are 4"),
        ("towers", "3 towers do not fill 4 hosts at 1 a tower"),
    ],
)  # fmt: skip
def test_what_cannot_run_is_refused_on_every_rank(kind, reason):
    for message in on_ranks(4, refusal, kind):
        assert reason in message


@pytest.mark.parametrize("value", [ROWS + 3, -1])
def test_an_id_out_of_range_is_refused_with_table_feature_and_id(value):
    case = dataclasses.replace(MIXED, batches=[[6, 6, 6, 6]])
    for message in on_ranks(4, refused_ids, case, value):
        assert message == f"id {value} of feature f3 is not a row of table t3, which has {ROWS + 3}"


def refused_ids(rank, case, value):
    model = shard(case, build(case))
    dense, sparse, _ = batch(case, 0)[rank]
    sparse.values()[sparse.offset_per_key()[4] - 1] = value  # the last id of f3
    with pytest.raises(ValueError) as error:
        model(dense, sparse)
    return str(error.value)


@pytest.mark.parametrize("sizes", [(9, 5), (5, 9)])
def test_an_id_must_be_a_row_of_every_table_of_its_feature(sizes):
    configs = [
        EmbeddingBagConfig(name=f"t{i}", embedding_dim=4, num_embeddings=rows, feature_names=["a"])
        for i, rows in enumerate(sizes)
    ]
    keys, lengths = ["none", "a", "other"], torch.tensor([2, 2, 1])
    check_ids(KeyedJaggedTensor(keys, torch.tensor([-7, 10**12, 0, 4, -1]), lengths=lengths), configs)
    message = f"id 5 of feature a is not a row of table t{sizes.index(5)}, which has 5"
    with pytest.raises(ValueError, match=message):
        check_ids(KeyedJaggedTensor(keys, torch.tensor([-7, 10**12, 0, 5, -1]), lengths=lengths), configs)


def looked_up_unchecked(rank, fused_params):
    sharder = TowerEmbeddingSharder(Topology(1, 1), fused_params)
    towers = TowerEmbedding(small_towers.tables(2), ((0, 1),), [PassThrough(8)])
    model = DistributedModelParallel(towers, plan=sharding_plan(towers, [sharder]), sharders=[sharder])
    with mock.patch("dmt.sharding.check_ids"):
        model(KeyedJaggedTensor(["f0", "f1"], torch.tensor([7, 0]), lengths=torch.tensor([1, 1]))).values()


def test_the_lookup_itself_refuses_an_id_out_of_range_unless_told_otherwise():
    on_ranks(1, looked_up_unchecked, {"bounds_check_mode": BoundsCheckMode.IGNORE})
    with pytest.raises(RuntimeError, match="idx < num_rows"):
        on_ranks(1, looked_up_unchecked, {"learning_rate": RATE})


def weights_unasked(rank):
    """How far the outputs are from the one-device form's, for weighted ids and towers without weights."""
    model = build(MIXED)
    dense, sparse, _ = batch(dataclasses.replace(MIXED, weighted=True), 0)[rank]
    return (shard(MIXED, model)(dense, sparse) - model(dense, sparse)).abs().max().item()


def test_weights_of_ids_are_ignored_where_towers_take_none():
    assert max(on_ranks(4, weights_unasked)) <= 2e-6  # as in test_dmt_ranks


def without_samples(rank, case):
    model = shard(case, build(case))
    before = {name: _local(value).clone() for name, value in model.state_dict().items()}
    optimizer = optimizers(model)
    dense, sparse, _ = batch(case, 0)[rank]
    embeddings = model.module.towers(sparse).values()
    out = model(dense, sparse)
    (out.sum() + embeddings.sum()).backward()
    optimizer.step()
    assert all(torch.equal(before[name], _local(value)) for name, value in model.state_dict().items())
    return tuple(out.shape), tuple(embeddings.shape)


@pytest.mark.parametrize("permute", ["none", "indices", "embeddings"])
def test_a_batch_that_is_empty_on_every_rank_goes_there_and_back(permute):
    case = dataclasses.replace(MIXED, batches=[[0] * 4], permute=permute)
    width = sum(build(case).towers.out_features)
    assert on_ranks(4, without_samples, case) == [((0,), (0, width))] * 4


def refused_variable(rank):
    model = shard(MIXED, build(MIXED))
    keys = [f"f{i}" for i in range(6)]
    sparse = KeyedJaggedTensor(
        keys, torch.zeros(7, dtype=torch.long), lengths=torch.ones(7, dtype=torch.int32),
        stride_per_key_per_rank=[[1], [1], [1], [1], [1], [2]],
    )  # fmt: skip
    with pytest.raises(ValueError) as error:
        model(torch.zeros(1, 3), sparse)
    return str(error.value)


def test_a_batch_whose_size_differs_by_feature_is_refused():
    for message in on_ranks(4, refused_variable):
        assert "features of one batch have different numbers of samples" in message


def refused_bag(rank, ids):
    """The message about a batch of one sample a feature whose fourth feature has so many ids."""
    case = dataclasses.replace(MIXED, sharder={"one_hot": True})
    model = shard(case, build(case))
    lengths = torch.ones(6, dtype=torch.int32)
    lengths[3] = ids
    sparse = KeyedJaggedTensor([f"f{i}" for i in range(6)], torch.zeros(5 + ids, dtype=torch.int32), lengths=lengths)
    with pytest.raises(ValueError) as error:
        model(torch.zeros(1, 3), sparse)
    return str(error.value)


@pytest.mark.parametrize("ids", [0, 2])
def test_a_bag_of_another_number_of_ids_is_refused_where_the_sharder_expects_one(ids):
    for message in on_ranks(4, refused_bag, ids):
        assert message.startswith(f"a bag of feature f3 has {ids} ids, and the TowerEmbeddingSharder was told that all")


# ---------------------------------------------------------------- a rank that does not come


class Late(Exception):
    pass


def late_between_a_and_d(rank):
    """The error of a rank that the last one keeps waiting, after step a, until all others have given up."""
    store = dist.distributed_c10d._get_default_store()
    group = dist.new_group(timeout=timedelta(seconds=5))
    sharders = [TowerEmbeddingSharder(Topology(4, 2))]
    model = build(MIXED)
    model = DistributedModelParallel(
        model, ShardingEnv.from_process_group(group), plan=sharding_plan(model, sharders), sharders=sharders
    )
    dense, sparse, _ = batch(MIXED, 0)[rank]

    def wait_for_others(*_):
        store.wait([f"rank {other} gave up" for other in range(3)])
        raise Late

    if rank == 3:
        model.module.towers.compute = wait_for_others
    try:
        model(dense, sparse).sum().item()
    except Late:
        return "others gave up"
    except RuntimeError as error:
        store.set(f"rank {rank} gave up", "")
        return str(error)


def test_ranks_give_up_after_the_timeout_of_the_models_group():
    found = on_ranks(4, late_between_a_and_d)
    assert all("imed out" in message or "closed" in message for message in found[:3])
    assert found[3] == "others gave up"


# ---------------------------------------------------------------- gradients of TorchRec's setting without division


def undivided(rank):
    """How far each parameter of this rank moves in a step, with gradients of tables averaged over ranks and summed."""
    moved = {}
    for division in (True, False):
        comm_ops.set_gradient_division(division)
        try:
            model = shard(MIXED, build(MIXED))
            before = {name: _local(value).clone() for name, value in model.state_dict().items()}
            optimizer = optimizers(model)
            dense, sparse, labels = batch(MIXED, 0)[rank]
            ((model(dense, sparse) - labels) ** 2).sum().backward()
            optimizer.step()
            moved[division] = {name: _local(value) - before[name] for name, value in model.state_dict().items()}
        finally:
            comm_ops.set_gradient_division(True)
    return moved


def test_torchrecs_gradient_division_is_for_tables_alone():
    for moved in on_ranks(4, undivided):
        assert any(step.any() for name, step in moved[True].items() if "embedding_bags" in name)
        for name, step in moved[True].items():
            factor = 4 if "embedding_bags" in name else 1
            torch.testing.assert_close(moved[False][name], factor * step, rtol=1e-4, atol=1e-5)


# ---------------------------------------------------------------- pipelines


class Batch(Pipelineable):
    """What TrainPipelineSparseDist moves about."""

    def __init__(self, dense, sparse, labels):
        self.dense, self.sparse, self.labels = dense, sparse, labels

    def to(self, device, non_blocking=False):
        return self

    def record_stream(self, stream):
        pass

    def pin_memory(self):
        return self


class Trained(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, batch):
        logits = self.model(batch.dense, batch.sparse)
        loss = ((logits - batch.labels) ** 2).mean()
        return loss, (loss.detach(),)


def pipelined(rank, case):
    """Losses and state with a plain loop and with the pipeline; when indices of the next batch leave."""
    plain = shard(case, Trained(build(case)))
    optimizer, losses = optimizers(plain), []
    batches = [Batch(*batch(case, step)[rank]) for step in range(len(case.batches))]
    for one in batches:
        optimizer.zero_grad()
        loss, _ = plain(one)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    wrapped = shard(case, Trained(build(case)))
    sharded, events = wrapped.module.model.towers, []
    for name in ("input_dist", "compute"):
        original = getattr(sharded, name)
        setattr(sharded, name, lambda *args, name=name, original=original: (events.append(name), original(*args))[1])
    pipeline = TrainPipelineSparseDist(wrapped, optimizers(wrapped), torch.device("cpu"))
    rest, found = iter(batches), []
    while True:
        try:
            found.append(pipeline.progress(rest)[0].item())
        except StopIteration:
            break
    state = {name: _local(value) for name, value in wrapped.state_dict().items()}
    for name, value in plain.state_dict().items():
        assert torch.equal(_local(value), state[name])
    assert found == losses
    return events


@pytest.mark.parametrize("one_hot", [False, True])
def test_torchrecs_pipeline_sends_the_next_batchs_indices_before_it_computes_this_one(one_hot):
    for events in on_ranks(4, pipelined, dataclasses.replace(MIXED, sharder={"one_hot": one_hot})):
        assert events[:3] == ["input_dist", "input_dist", "compute"]
        assert events.count("input_dist") == events.count("compute") == 4


# ---------------------------------------------------------------- checkpoints


def save(rank, case, folder):
    model = shard(case, build(case))
    dcp.save(model.state_dict(), checkpoint_id=folder)


def load(rank, case, folder):
    """The largest difference from the saved model, after loading at another shape."""
    expected = build(case).state_dict()
    model = shard(case, build(dataclasses.replace(case, seed=case.seed + 1)))
    state = model.state_dict()
    assert max(apart(expected[name], found) for name, found in state.items()) > 0
    dcp.load(state, checkpoint_id=folder)
    model.load_state_dict(state)
    return max(apart(expected[name], found) for name, found in model.state_dict().items())


@pytest.mark.parametrize("other", [(2, 1, 1), (8, 2, 2), (1, 1, 1), (2, 2, 1)])
def test_a_checkpoint_of_one_shape_loads_at_another(tmp_path, other):
    on_ranks(4, save, MIXED, str(tmp_path / "saved"))
    case = dataclasses.replace(MIXED, shape=other, batches=[])
    assert max(on_ranks(other[0], load, case, str(tmp_path / "saved"))) == 0


def test_a_checkpoint_of_ranks_loads_into_the_one_device_model(tmp_path):
    on_ranks(4, save, MIXED, str(tmp_path / "saved"))
    expected, model = build(MIXED).state_dict(), build(dataclasses.replace(MIXED, seed=1))
    state = model.state_dict()
    assert set(state) == set(expected)
    dcp.load(state, checkpoint_id=str(tmp_path / "saved"))
    assert all(torch.equal(state[name], expected[name]) for name in expected)


def trained(rank, case, folder, first, steps):
    """Trains from what is in the folder (first > 0) for these steps, saves it under the next step's number."""
    model = shard(case, build(dataclasses.replace(case, seed=case.seed + first)))
    if first:
        state = {"model": model.state_dict(), "tables": model.fused_optimizer.state_dict()}
        dcp.load(state, checkpoint_id=f"{folder}/{first}")
        model.load_state_dict(state["model"])
        model.fused_optimizer.load_state_dict(state["tables"])
    optimizer = optimizers(model)
    for step in range(first, first + steps):
        parts = batch(MIXED, step)  # of 4 ranks: two for each of 2
        each = 4 // case.shape[0]
        dense, sparse, labels = joined(parts[rank * each : (rank + 1) * each])
        optimizer.zero_grad()
        (((model(dense, sparse) - labels) ** 2).sum() / each).backward()
        optimizer.step()
    state = {"model": model.state_dict(), "tables": model.fused_optimizer.state_dict()}
    dcp.save(state, checkpoint_id=f"{folder}/{first + steps}")


@pytest.mark.parametrize("other", [(2, 1, 1), (2, 2, 1)])
def test_the_tables_optimizer_goes_on_at_another_shape(tmp_path, other):
    adagrad = dataclasses.replace(MIXED, fused={"optimizer": EmbOptimType.EXACT_ADAGRAD})
    on_ranks(4, trained, adagrad, str(tmp_path / "whole"), 0, 4)
    on_ranks(4, trained, adagrad, str(tmp_path / "cut"), 0, 2)
    on_ranks(2, trained, dataclasses.replace(adagrad, shape=other), str(tmp_path / "cut"), 2, 2)
    whole, cut = build(MIXED).state_dict(), build(MIXED).state_dict()
    dcp.load({"model": whole}, checkpoint_id=str(tmp_path / "whole" / "4"))
    dcp.load({"model": cut}, checkpoint_id=str(tmp_path / "cut" / "4"))
    for name, value in whole.items():
        torch.testing.assert_close(cut[name], value, rtol=0, atol=1e-6)  # measured: 6e-8; with a new optimizer 0.19


# ---------------------------------------------------------------- meta device


class Odd(nn.Module):
    in_features, out_features = 8, 2

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(2, 8))


MODULES = {
    "linear": lambda: nn.Linear(8, 2),
    "dlrm": lambda: DLRMTower(2, 4, 3, p=1, c=1),
    "dcn": lambda: DCNTower(2, 4, 3, layers=2, rank=2),
    "odd": Odd,
}


def from_meta(rank, kind, learns):
    torch.manual_seed(rank)  # each rank would draw other weights
    tables = small_towers.tables(4)
    with torch.device("meta"):
        modules = [MODULES[kind]().requires_grad_(learns) for _ in range(2)]
    towers = TowerEmbedding(tables, naive_partition(4, 2), modules, torch.device("meta"))
    sharders = [TowerEmbeddingSharder(Topology(4, 2))]
    model = DistributedModelParallel(towers, plan=sharding_plan(towers, sharders), sharders=sharders)
    model(small_towers.ids(4)).values()
    return {name: parameter.detach() for name, parameter in model.module.towers.named_parameters()}


@pytest.mark.parametrize(
    ("kind", "learns"), [("linear", True), ("linear", False), ("dlrm", True), ("dcn", True), ("dcn", False)]
)
def test_a_model_on_meta_starts_equal_on_the_ranks_of_a_tower(kind, learns):
    found = on_ranks(4, from_meta, kind, learns)
    for one, other in ((0, 1), (2, 3)):
        assert found[one].keys() == found[other].keys() != found[2 - one].keys()
        assert all(torch.equal(found[one][name], found[other][name]) for name in found[one])
        for name, parameter in found[one].items():
            assert parameter.any() != ("cross.bias" in name)  # those start at zero


def with_buffers_on_meta(rank):
    with torch.device("meta"):
        modules = [nn.BatchNorm1d(8, affine=False) for _ in range(2)]
    for module in modules:
        module.in_features = module.out_features = 8
    towers = TowerEmbedding(small_towers.tables(4), naive_partition(4, 2), modules)
    sharders = [TowerEmbeddingSharder(Topology(4, 2))]
    model = DistributedModelParallel(towers, plan=sharding_plan(towers, sharders), sharders=sharders)
    model(small_towers.ids(4)).values()
    return [buffer.is_meta for buffer in model.module.towers.buffers()]


def test_buffers_on_meta_start_too():
    assert on_ranks(4, with_buffers_on_meta) == [[False] * 3] * 4


def test_a_number_format_with_another_output_is_refused():
    config = QCommsConfig(CommType.FP16, output_dtype=SparseType.BF16)
    for place in ("inside", "peer"):
        with pytest.raises(ValueError, match="towers compute in fp32, leave it out"):
            TowerEmbeddingSharder(Topology(4, 2), **{place: config})


def test_a_module_on_meta_that_cannot_start_is_named():
    with pytest.raises(ValueError, match=r"towers.0 \(Odd\) is on the meta device, and nothing .* reset_parameters"):
        on_ranks(2, odd_from_meta)


def odd_from_meta(rank):
    with torch.device("meta"):
        towers = TowerEmbedding(small_towers.tables(2), ((0, 1),), [Odd()])
    sharders = [TowerEmbeddingSharder(Topology(2, 2))]
    DistributedModelParallel(towers, plan=sharding_plan(towers, sharders), sharders=sharders)


# ---------------------------------------------------------------- towerize


def dlrm():
    torch.manual_seed(0)
    return DLRM(EmbeddingBagCollection(small_towers.tables(5)), 3, [16, small_towers.N], [16, 1])


PARTITION = ((4, 1), (0, 3, 2))


def flat_and_towers(rank, topology):
    """Outputs of three steps, flat and in towers, both on these ranks."""
    seen = []
    for in_towers in (False, True):
        model = dlrm()
        weights = copy.deepcopy(model.state_dict())
        fused = {"learning_rate": RATE}
        if in_towers:
            model = towerize(model, PARTITION, topology)
            sharders = [TowerEmbeddingSharder(topology, fused)]
            model = DistributedModelParallel(model, plan=sharding_plan(model, sharders), sharders=sharders)
            weights = {
                k.replace("embedding_bags", "embedding_bag_collection.embedding_bags"): v for k, v in weights.items()
            }
        else:
            model = DistributedModelParallel(model, sharders=[EmbeddingBagCollectionSharder(fused)])
        model.load_state_dict(weights)
        optimizer, outs = optimizers(model), []
        for step in range(3):
            seed = 10 * step + rank
            dense = torch.randn(6, 3, generator=torch.Generator().manual_seed(seed))
            out = model(dense, small_towers.ids(5, batch=6, seed=seed))
            optimizer.zero_grad()
            (out**2).mean().backward()
            optimizer.step()
            outs.append(out.detach())
        seen.append(torch.stack(outs))
    return (seen[0] - seen[1]).abs().max().item()


@pytest.mark.parametrize("shape", [(4, 2), (2, 1), (4, 2, 2)])
def test_a_towerized_dlrm_trains_as_the_flat_one_does(shape):
    assert max(on_ranks(shape[0], flat_and_towers, Topology(*shape))) <= 1e-6


def test_towerize_keeps_parameters_keys_and_values():
    flat = dlrm()
    towers = towerize(copy.deepcopy(flat), PARTITION)
    sparse = small_towers.ids(5, batch=2)
    expected = flat.sparse_arch.embedding_bag_collection(sparse)
    found = towers.sparse_arch.embedding_bag_collection(sparse)
    assert found.keys() == expected.keys()
    assert torch.equal(found.values(), expected.values())
    dense = torch.randn(2, 3)
    assert torch.equal(towers(dense, sparse), flat(dense, sparse))
    collection = EmbeddingBagCollection(flat.sparse_arch.embedding_bag_collection.embedding_bag_configs())
    itself = towerize(collection, PARTITION)
    for name, bag in collection.embedding_bags.items():
        assert itself.embedding_bag_collection.embedding_bags[name] is bag


@pytest.mark.parametrize(
    ("model", "topology", "reason"),
    [
        (lambda: nn.Linear(1, 1), None, "must hold one EmbeddingBagCollection and holds none"),
        (lambda: nn.ModuleList([dlrm(), dlrm()]), None, r"holds 2 \(0.sparse_arch.embedding_bag_collection, 1.sparse"),
        (dlrm, Topology(4, 1), "2 towers do not fill 4 hosts at 1 a tower: use 2 hosts a tower"),
    ],
)  # fmt: skip
def test_what_cannot_be_towerized_is_refused(model, topology, reason):
    with pytest.raises(ValueError, match=reason):
        towerize(model(), PARTITION, topology)


def test_no_towers_at_all_are_refused():
    with pytest.raises(ValueError, match="at least one tower, not 0"):
        towerize(dlrm(), (), Topology(4, 2))


def test_a_collection_under_two_names_is_in_towers_under_both():
    model = nn.ModuleDict({"model": dlrm()})
    model["again"] = model["model"].sparse_arch.embedding_bag_collection
    towers = towerize(model, PARTITION)["again"]
    assert type(towers) is TowerEmbedding
    assert model["model"].sparse_arch.embedding_bag_collection is towers
