from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from ranks import FOREVER, on_ranks

from dmt import Topology
from dmt.topology import create_groups


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        ((10, 4), r"10 ranks do not fill hosts of 4: use 8 or 12 ranks, or 1, 2, 5 or 10 ranks a host"),
        ((3, 4), r"3 ranks do not fill hosts of 4: use 4 ranks, or 1 or 3 ranks a host"),
        ((8, 2, 3), r"4 hosts do not make towers of 3 hosts: use 1, 2 or 4 hosts a tower"),
        ((0, 1), "ranks is 0: it must be at least 1"),
        ((4, 0), "ranks_per_host is 0"),
        ((4, 2, -1), "hosts_per_tower is -1"),
    ],
)
def test_a_shape_that_cannot_be_is_refused_with_those_that_can(shape, reason):
    with pytest.raises(ValueError, match=reason):
        Topology(*shape)


@pytest.mark.parametrize(
    ("towers", "reason"),
    [
        (2, "2 towers do not fill 4 hosts at 1 a tower: use 2 hosts a tower, or at least 4 towers"),
        (3, "use a number of hosts that 3 divides, or at least 4 towers"),
        (0, "there must be at least one tower, not 0"),
    ],
)
def test_fewer_towers_than_places_are_refused(towers, reason):
    with pytest.raises(ValueError, match=reason):
        Topology(8, 2).slot_of_tower(towers)


def test_the_papers_example():
    four = Topology(4, 2)
    assert (four.hosts, four.slots, four.tower_ranks) == (2, 2, 2)
    assert [four.peers_of(rank) for rank in range(4)] == [[0, 2], [1, 3], [0, 2], [1, 3]]
    assert four.peer_order() == [0, 2, 1, 3]


def test_peers_follow_the_definition_where_the_printed_key_does_not():
    """2 hosts of 3: the printed key (g % T, g // L) would put 0, 2, 4 first, which share no g % L."""
    six = Topology(6, 3)
    assert six.peers_of(4) == [1, 4]
    assert six.peer_order() == [0, 3, 1, 4, 2, 5]


@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 4))
def test_groups_of_any_shape(slots, hosts_per_tower, ranks_per_host):
    topology = Topology(slots * hosts_per_tower * ranks_per_host, ranks_per_host, hosts_per_tower)
    ranks = range(topology.ranks)
    for groups in (topology.host_of, topology.tower_of, topology.peers_of):
        assert all(rank in groups(rank) and groups(rank) == groups(other) for rank in ranks for other in groups(rank))
        assert sorted({g for rank in ranks for g in groups(rank)}) == list(ranks)
    for rank in ranks:
        assert set(topology.host_of(rank)) <= set(topology.tower_of(rank))
        assert set(topology.tower_of(rank)) & set(topology.peers_of(rank)) == {rank}  # one peer a slot
        assert len(topology.peers_of(rank)) == topology.slots
        if hosts_per_tower == 1:
            assert topology.peers_of(rank) == [g for g in ranks if g % ranks_per_host == rank % ranks_per_host]
    order = topology.peer_order()
    assert order == [g for place in range(topology.tower_ranks) for g in topology.peers_of(place)]


@given(st.integers(1, 9), st.integers(0, 9))
def test_towers_fill_all_slots_in_order_and_evenly(slots, more):
    places = Topology(slots, 1).slot_of_tower(slots + more)
    assert places == sorted(places)
    held = [places.count(slot) for slot in range(slots)]
    assert min(held) >= 1 and max(held) - min(held) <= 1


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}, (8, 4)),
        ({"SLURM_NTASKS": "16", "SLURM_STEP_TASKS_PER_NODE": "8(x2)"}, (16, 8)),
        ({"SLURM_NTASKS": "4", "SLURM_STEP_TASKS_PER_NODE": "4"}, (4, 4)),
    ],
)
def test_the_shape_comes_from_the_launcher(monkeypatch, environment, expected):
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "SLURM_NTASKS", "SLURM_STEP_TASKS_PER_NODE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert Topology.from_environment() == Topology(*expected)


def test_without_a_launcher_or_with_uneven_nodes_it_says_so(monkeypatch):
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "SLURM_NTASKS"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match="neither torchrun .* nor Slurm"):
        Topology.from_environment()
    monkeypatch.setenv("SLURM_NTASKS", "12")
    monkeypatch.setenv("SLURM_STEP_TASKS_PER_NODE", "8,4")
    with pytest.raises(ValueError, match="nodes have 8,4 tasks: give every node the same number"):
        Topology.from_environment()


def timeouts(rank):
    """Of the groups made like a group with a timeout of its own, and of those made like the default group."""
    short = dist.new_group(timeout=timedelta(seconds=77))
    found = []
    for like in (short, None):
        groups = create_groups(Topology(4, 1, 2), like)
        cpu = [group._get_backend(torch.device("cpu")) for group in (groups.host, groups.tower, groups.peers)]
        found.append([backend.options._timeout for backend in cpu])
    return found


def test_groups_have_the_timeout_of_the_group_they_are_made_like():
    for like_short, like_default in on_ranks(4, timeouts):
        assert like_short == [timedelta(seconds=77)] * 3
        assert like_default == [FOREVER] * 3
