"""bench.mixture: an exchange with another's bytes sends so many, and what is left of it arrives where it should."""

import pytest
import torch
import torch.distributed as dist
from ranks import on_ranks
from torch.nn.parallel import DistributedDataParallel

from bench.mixture import peers_exchange, share_dense
from bench.pairwise import pairwise_exchange
from bench.traffic import Traffic


def exchanged(rank, share, asynchronous):
    """Rank r sends 10 numbers r * 100 + i to each of the two peers; bytes sent, and what came."""
    peers, others = dist.new_group([0, 1]), dist.new_group([0, 1])
    received = torch.full((20,), -1.0)
    sent = torch.arange(20.0) + 100 * rank
    with pairwise_exchange(), Traffic(ranks_per_host=1) as traffic, peers_exchange(share, peers):
        work = dist.all_to_all_single(received, sent, [10, 10], [10, 10], peers, async_op=asynchronous)
        if asynchronous:
            work.wait()
        counted = traffic.sent().across
        ids = torch.empty(4, dtype=torch.int64)
        dist.all_to_all_single(ids, torch.full((4,), rank), [2, 2], [2, 2], peers)  # indices are left as they are
        plain = torch.empty(4)
        dist.all_to_all_single(plain, torch.full((4,), float(rank)), [2, 2], [2, 2], others)
    assert ids.tolist() == [0, 0, 1, 1] and plain.tolist() == [0, 0, 1, 1]
    return counted, received.tolist()


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(("share", "numbers"), [(0.25, 3), (0.5, 5), (1.0, 10), (2.5, 25)])
def test_an_exchange_between_peers_is_cut_short_or_padded(share, numbers, asynchronous):
    for rank, (counted, received) in enumerate(on_ranks(2, exchanged, share, asynchronous)):
        assert counted == numbers * 4  # to the one other rank
        arrived = min(numbers, 10)
        for source in range(2):
            part = received[10 * source : 10 * (source + 1)]
            assert part == [100 * source + 10 * rank + i for i in range(arrived)] + [0] * (10 - arrived)


def reduced(rank, share):
    model = DistributedDataParallel(torch.nn.Linear(10, 10, bias=False))
    share_dense(model, share)
    for _ in range(3):
        model.zero_grad()
        with Traffic(ranks_per_host=1) as traffic:
            model(torch.full((1, 10), float(rank))).sum().backward()
    return traffic.sent().across, model.module.weight.grad.flatten().tolist()


@pytest.mark.parametrize(("share", "numbers"), [(0.5, 50), (1.0, 100), (1.7, 170)])
def test_dense_gradients_are_cut_short_or_padded(share, numbers):
    for rank, (sent, gradients) in enumerate(on_ranks(2, reduced, share)):
        assert sent == numbers * 4
        whole = min(numbers, 100)
        assert gradients[:whole] == [0.5] * whole  # the mean of 0 and 1
        assert gradients[whole:] == [rank / 2] * (100 - whole)
