"""bench.collectives and the pairwise AlltoAll: right numbers, right bytes, and faults that are found."""

import json
import random
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from ranks import on_ranks
from test_cluster import command, needs_namespaces

from bench import collectives, link
from bench.collectives import KINDS, Collective, MiB
from bench.pairwise import all_to_all_single, pairwise_exchange
from bench.ranks import Ranks
from bench.traffic import Traffic
from dmt import Topology
from dmt.topology import create_groups

ROOT = Path(__file__).resolve().parents[1]


def exchanged(rank, seed, of_group, dtype, asynchronous):
    """What torch's AlltoAll and the pairwise one receive: rows of 3 numbers, splits drawn, many of them 0."""
    group = dist.new_group(of_group)
    if rank not in of_group:
        return True
    draw = random.Random(seed)
    rows = [[draw.choice([0, 0, 1, 5]) for _ in of_group] for _ in of_group]  # rows[i][j]: from i to j
    me = of_group.index(rank)
    send = (torch.arange(sum(rows[me]) * 3).view(-1, 3) + 100 * rank).to(dtype)
    sizes = [of_rank[me] for of_rank in rows], rows[me]
    expected, found = (torch.full((sum(sizes[0]), 3), 7, dtype=dtype) for _ in range(2))
    dist.all_to_all_single(expected, send, *sizes, group)
    in_flight = all_to_all_single(found, send, *sizes, group, async_op=asynchronous)
    assert isinstance(in_flight, dist.Work) if asynchronous else in_flight is None  # TorchRec asks for a Work
    if asynchronous:
        in_flight.wait()
    return torch.equal(found, expected)


@pytest.mark.parametrize("of_group", [[0, 1, 2, 3], [1, 3], [2]])
@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8])
def test_pairwise_is_the_all_to_all_of_torch(of_group, dtype):
    for seed in range(3):
        assert on_ranks(4, exchanged, seed, of_group, dtype, bool(seed % 2)) == [True] * 4


def in_block(rank):
    outside = dist.all_to_all_single
    with pairwise_exchange():
        inside = dist.all_to_all_single
        received = torch.empty(4)
        dist.all_to_all_single(received, torch.full((4,), float(rank)))
    return inside is all_to_all_single, outside is dist.all_to_all_single, received.tolist()


def test_in_its_block_everyone_exchanges_pairwise():
    assert on_ranks(2, in_block) == [(True, True, [0, 0, 1, 1])] * 2


def counted(rank, topology, size):
    """Bytes to other hosts that the counter sees in one call of each kind; and what is wrong after it."""
    groups = create_groups(topology)
    of_kind = {"inside": groups.host, "peer": groups.peers}
    found = []
    for kind in KINDS:
        collective = Collective(kind, topology)
        call, wrong = collective.call(
            collective.whole_size(size), of_kind.get(kind, dist.group.WORLD), torch.device("cpu")
        )
        with pairwise_exchange(), Traffic(topology.ranks_per_host) as traffic:
            call()
        with pairwise_exchange():
            found.append((traffic.sent().across, wrong()))
    return found


@pytest.mark.parametrize("shape", [(4, 2), (4, 1), (6, 3), (2, 2)])
def test_what_goes_to_other_hosts_is_what_the_counter_counts(shape):
    topology = Topology(*shape)
    found = on_ranks(topology.ranks, counted, topology, 480)
    for i, kind in enumerate(KINDS):
        collective = Collective(kind, topology)
        for host in range(topology.hosts):
            ranks = range(host * topology.ranks_per_host, (host + 1) * topology.ranks_per_host)
            assert sum(found[rank][i][0] for rank in ranks) == collective.across(480)
        assert all(of_rank[i][1] == 0 for of_rank in found)


def test_the_factors_of_nccl_tests():
    topology = Topology(8, 2)
    factors = {kind: Collective(kind, topology).bus_factor() for kind in KINDS}
    assert factors == {"flat": 7 / 8, "inside": 1 / 2, "peer": 3 / 4, "allreduce": 14 / 8}


def compared(rank, arguments):
    return collectives.compare(collectives.parse(arguments), Ranks(rank, 4, 4, torch.device("cpu")))


def with_a_rank_that_sends_nonsense(rank, arguments):
    def broken(output, *args, **kwargs):
        all_to_all_single(output, *args, **kwargs)
        output[-1] += rank == 2

    with mock.patch("bench.pairwise.all_to_all_single", broken):
        return compared(rank, arguments)


def with_a_link_that_carries_too_much(rank, arguments):
    carried = iter(range(0, 10**12, 10**9))
    with (
        mock.patch.object(link, "bits_per_s", lambda: 10**9),
        mock.patch.object(link, "sent", lambda: next(carried)),
    ):
        return compared(rank, arguments)


ARGUMENTS = ["--ranks-per-host", "2", "--sizes", "4KiB", "--iterations", "2", "--json"]


@pytest.mark.parametrize(
    ("way", "code"), [(compared, 0), (with_a_rank_that_sends_nonsense, 1), (with_a_link_that_carries_too_much, 1)]
)
def test_a_wrong_number_or_a_wrong_link_ends_with_1(way, code, tmp_path):
    out = tmp_path / "collectives.json"
    assert on_ranks(4, way, [*ARGUMENTS, str(out)]) == [code] * 4
    facts = {fact["kind"]: fact for fact in json.loads(out.read_text())["collectives"]}
    assert list(facts) == list(KINDS)
    assert (facts["flat"]["wrong"] > 0) == (way is with_a_rank_that_sends_nonsense)
    assert (facts["flat"]["link_bytes"] is not None) == (way is with_a_link_that_carries_too_much)
    for fact in facts.values():
        assert 0 < fact["ms"]["min"] <= fact["ms"]["mean"] <= fact["ms"]["max"]
        assert fact["algbw_MB_per_s"] == pytest.approx(fact["size"] / fact["ms"]["max"] / 1e3)


@needs_namespaces
def test_over_emulated_links(tmp_path):
    """Bytes of every link within 3 % of the formula; and the peer exchange no faster than its link."""
    out = tmp_path / "collectives.json"
    words = [sys.executable, "-m", "bench.collectives", "--sizes", "1MiB", "--iterations", "3", "--json", str(out)]
    done = subprocess.run(command(*words, link="100mbit"), cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    report = json.loads(out.read_text())
    assert report["topology"] == {"ranks": 4, "ranks_per_host": 2, "hosts_per_tower": 1}
    for fact in report["collectives"]:
        for sent in fact["link_bytes"]:
            assert fact["across_bytes"] <= sent <= fact["across_bytes"] * 1.03 + 30_000
        assert fact["of_link"] <= 1 + 256 * 1024 / MiB


def test_bad_arguments_are_one_sentence():
    words = [sys.executable, "-m", "bench.collectives", "--ranks", "4", "--ranks-per-host", "3"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("error: --ranks-per-host 3: ")
    assert done.stderr.count("\n") == 1
