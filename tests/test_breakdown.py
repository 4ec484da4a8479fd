"""bench.breakdown on traces made by hand, with known answers, and against counting microsecond by microsecond."""

import json
import random

import pytest
import torch
import torch.distributed as dist
from ranks import on_ranks
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, record_function

from bench.breakdown import ITERATION, WAIT, Breakdown, mean, merged, of_iterations, straggler_wait, without
from bench.pairwise import pairwise_exchange

MAIN, WORKER = 7, 8


def event(category, name, start, end, thread=MAIN):
    return {"ph": "X", "cat": category, "name": name, "ts": start, "dur": end - start, "tid": thread}


def test_a_cpu_trace_by_hand():
    """Iteration 0..100: computing 0..30 and 60..90, of which 70..80 is a wait inside an operator."""
    events = [
        {"ph": "M", "name": "process_name"},
        event("user_annotation", ITERATION, 0, 100),
        event("cpu_op", "aten::mm", 0, 30),
        event("cpu_op", "aten::addmm", 5, 25),  # nested: counts once
        event("cpu_op", "c10d::alltoall_base_", 30, 34),  # only the launch
        event("cpu_op", "_Receive", 60, 90),
        event("user_annotation", WAIT, 70, 80),
        event("cpu_op", "aten::mm", 40, 60, thread=WORKER),  # of another thread
        event("user_annotation", "gloo:all_to_all", 20, 45, thread=WORKER),  # 30..45 exposed
        event("user_annotation", WAIT, 42, 50),  # 45..50 more
        event("user_annotation", "gloo:recv", 42, 99),  # asked for at 42, waited for at 99: says nothing of its bytes
        event("user_annotation", "gloo:send", 72, 99),
        event("user_annotation", "gloo:all_reduce", 48, 59, thread=WORKER),  # 50..59: before it embeddings went too
        event("user_annotation", "something else", 90, 95),
    ]
    (found,) = of_iterations(events)
    assert found == Breakdown(compute=50, embedding=15 + 5 + 10, dense=9, others=100 - 50 - 30 - 9)
    assert found.total == 100


def test_a_gpu_trace_by_hand():
    """Kernels count, operators do not; copies between host and device compute nothing but keep the GPU busy."""
    events = [
        event("user_annotation", ITERATION, 0, 100),
        event("cpu_op", "aten::mm", 0, 100),
        event("kernel", "ampere_sgemm", 0, 20, thread=1),
        event("gpu_memcpy", "Memcpy HtoD", 20, 25, thread=2),
        event("kernel", "ncclDevKernel_SendRecv", 10, 45, thread=3),
        event("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 40, 70, thread=4),
        event("kernel", "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL", 80, 85, thread=3),
    ]
    assert of_iterations(events) == [Breakdown(compute=25, embedding=20 + 5, dense=25, others=25)]


def test_iterations_come_in_order_and_take_what_is_inside_them():
    events = [
        event("user_annotation", ITERATION, 100, 150),
        event("user_annotation", ITERATION, 0, 40),
        event("cpu_op", "aten::mm", 30, 110),
    ]
    assert of_iterations(events) == [Breakdown(10, 0, 0, 30), Breakdown(10, 0, 0, 40)]


def test_a_trace_without_iterations_is_refused():
    with pytest.raises(ValueError, match="no annotation named 'iteration'"):
        of_iterations([event("cpu_op", "aten::mm", 0, 1)])


@pytest.mark.parametrize("seed", range(20))
def test_against_counting_moment_by_moment(seed):
    draw = random.Random(seed)

    def drawn():
        starts = [draw.randrange(-10, 110) for _ in range(draw.randrange(8))]
        return [(start, start + draw.randrange(0, 30)) for start in starts]

    kinds = {"cpu_op": drawn(), "gloo:all_to_all": drawn(), "gloo:all_reduce": drawn(), WAIT: drawn()}
    events = [event("user_annotation", ITERATION, 0, 100)]
    for name, intervals in kinds.items():
        category = "cpu_op" if name == "cpu_op" else "user_annotation"
        events += [event(category, name, *interval) for interval in intervals]

    def covered(name, moment):
        return any(start <= moment < end for start, end in kinds[name])

    expected = {"compute": 0, "embedding": 0, "dense": 0, "others": 0}
    for moment in range(100):
        computing = covered("cpu_op", moment) and not covered(WAIT, moment)
        exchanging = covered("gloo:all_to_all", moment) or covered(WAIT, moment)
        synchronising = covered("gloo:all_reduce", moment)
        first = [computing, exchanging, synchronising, True].index(True)
        expected[list(expected)[first]] += 1
    assert of_iterations(events) == [Breakdown(**expected)]


def test_unions_and_differences():
    assert merged([(3, 5), (0, 1), (4, 8), (8, 9), (2, 2)]) == [(0, 1), (3, 9)]
    assert without([(0, 10), (20, 30)], [(2, 3), (5, 25), (29, 40)]) == [(0, 2), (3, 5), (25, 29)]


def test_the_wait_for_the_slowest_rank_is_what_goes_beyond_the_least():
    def of(embedding, dense):
        return Breakdown(10, embedding, dense, 0)

    waits = straggler_wait([[of(5, 1), of(2, 0)], [of(1, 1), of(9, 1)]])
    assert waits == [[4, 0], [0, 7]]  # of exchanges alone
    assert mean([of(5, 1), of(2, 0)]) == Breakdown(10, 3.5, 0.5, 0)
    with pytest.raises(ValueError):
        straggler_wait([[of(5, 1)], []])


def traced(rank, folder):
    """Two iterations of a model with DDP and a pairwise exchange; rank 1 comes 60 ms late to it."""
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    x, received = torch.randn(32, 64), torch.empty(200, 64)
    with pairwise_exchange(), profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(2):
            dist.barrier()
            with record_function(ITERATION):
                model(x).sum().backward()
                if rank == 1:
                    torch.ops.aten.mm(torch.ones(1, 1), torch.ones(1, 1))
                    __import__("time").sleep(0.06)
                dist.all_to_all_single(received, torch.ones(200, 64))
    profiler.export_chrome_trace(f"{folder}/{rank}.json")


def test_a_real_trace_over_gloo(tmp_path):
    on_ranks(2, traced, str(tmp_path))
    found = [of_iterations(json.loads((tmp_path / f"{rank}.json").read_text())["traceEvents"]) for rank in range(2)]
    for of_rank in found:
        assert len(of_rank) == 2
        for breakdown in of_rank:
            assert min(breakdown.compute, breakdown.embedding) > 0 and breakdown.dense >= 0
    waits = straggler_wait(found)
    assert min(waits[0]) > 30_000
    assert min(b.embedding for b in found[0]) > 30_000
    assert min(b.others for b in found[1]) > 40_000  # it slept
