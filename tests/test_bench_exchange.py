"""bench.exchange on four ranks: what it says of errors and bytes, and that it finds faults."""

import json
from unittest import mock

import pytest
import torch
from ranks import on_ranks

from bench import exchange, exchange_ways
from bench.exchange import TOLERANCE
from bench.ranks import Ranks
from bench.traffic import Sent
from dmt.exchange import TowerExchange

SMALL = "--features 7 --dim 8 --rows 50 --local-batch 6 --ids 2 --repeats 2 --iterations 1".split()


def compared(rank, arguments):
    ranks = Ranks(rank, 4, 4, torch.device("cpu"))
    return exchange.compare(exchange.parse([*SMALL, *arguments]), ranks)


def with_another_formula(rank, arguments):
    formula = exchange_ways.formulas.sptt
    wrong = mock.Mock(side_effect=lambda *args: formula(*args) | {"more": Sent(0, 1)})
    with mock.patch.object(exchange_ways.formulas, "sptt", wrong):
        return compared(rank, arguments)


def with_a_fault_in_step_e(rank, arguments):
    shuffle = TowerExchange.local_shuffle
    with mock.patch.object(TowerExchange, "local_shuffle", lambda *args: shuffle(*args).flip(0)):
        return compared(rank, arguments)


def test_all_ways_are_right_and_send_what_they_must(tmp_path):
    out = tmp_path / "exchange.json"
    assert on_ranks(4, compared, ["--json", str(out), "--ratios", "2"], timeout=120) == [0] * 4
    ways = {way["way"]: way for way in json.loads(out.read_text())["ways"]}
    assert list(ways) == [
        "flat",
        *("tower_collection", "sptt none", "sptt indices", "sptt embeddings"),
        *("tower_collection CR 2", "sptt none CR 2", "sptt indices CR 2", "sptt embeddings CR 2"),
    ]
    for way in ways.values():
        assert max(way["errors"].values()) <= TOLERANCE
        assert way["bytes"]["counted"] == way["bytes"]["predicted"]
        assert len(way["ms"]) == 2 and min(way["ms"]) > 0
    assert max(ways["sptt none CR 2"]["errors"].values()) > 0  # something was compared

    def across(way, *parts):
        return sum(of_rank[part]["across"] for of_rank in ways[way]["bytes"]["parts"] for part in parts)

    indices = ("splits", "lengths", "ids", "weights")
    both = across("flat", "embeddings", "gradients")
    assert across("sptt none", *indices) == across("flat", *indices)
    assert across("sptt none", "embeddings between", "gradients between") == both
    assert across("sptt none CR 2", "embeddings between", "gradients between") == both // 2


@pytest.mark.parametrize("fault", [with_another_formula, with_a_fault_in_step_e])
def test_a_fault_is_said_and_ends_with_1(fault, tmp_path):
    out = tmp_path / "exchange.json"
    arguments = ["--json", str(out), "--ratios", "--permutes", "none"]
    assert on_ranks(4, fault, arguments) == [1] * 4
    wrong = [way["way"] for way in json.loads(out.read_text())["ways"] if not exchange._good(way)]
    assert wrong == ["sptt none"]
