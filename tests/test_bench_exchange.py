"""bench.exchange on four ranks: what it says of errors and bytes, and that it finds faults."""

import json
import re
import statistics
import subprocess
import sys
import uuid
from pathlib import Path
from unittest import mock

import psutil
import pytest
import torch
from ranks import on_ranks

from bench import exchange, exchange_ways
from bench.errors import UserError
from bench.exchange import TOLERANCE
from bench.ranks import Ranks
from bench.traffic import Sent
from dmt.exchange import TowerExchange

ROOT = Path(__file__).resolve().parents[1]
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
        assert way["errors"]["tables"] > 0  # something was compared
        assert (way["errors"]["towers"] > 0) == ("CR" in way["way"])
        for name, beside in ("flat", "flat"), ("tower_collection", "tower_collection"):
            ratios = [a / b for a, b in zip(way["ms"], ways[beside]["ms"], strict=True)]
            assert way[f"of_{name}"] == pytest.approx(statistics.median(ratios))

    def across(way, *parts):
        return sum(of_rank[part]["across"] for of_rank in ways[way]["bytes"]["parts"] for part in parts)

    indices = ("splits", "lengths", "ids", "weights")
    both = across("flat", "embeddings", "gradients")
    assert across("sptt none", *indices) == across("flat", *indices)
    assert across("sptt none", "embeddings between", "gradients between") == both
    assert across("sptt none CR 2", "embeddings between", "gradients between") == both // 2


def with_the_fault_on_one_rank(rank, arguments):
    return with_a_fault_in_step_e(rank, arguments) if rank == 2 else compared(rank, arguments)


def with_gradients_of_tables_not_divided(rank, arguments):
    with mock.patch("dmt.exchange.get_gradient_division", lambda: False):
        return compared(rank, arguments)


def with_gradients_of_modules_not_divided(rank, arguments):
    """By the peers: the tables' are divided all the same."""
    create = TowerExchange.__init__

    def created(self, *args, **kwargs):
        create(self, *args, **kwargs)
        self.divide_at_peers = 1

    with mock.patch.object(TowerExchange, "__init__", created):
        return compared(rank, arguments)


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (with_another_formula, None),
        (with_a_fault_in_step_e, "output"),
        (with_the_fault_on_one_rank, "output"),
        (with_gradients_of_tables_not_divided, "tables"),
        (with_gradients_of_modules_not_divided, "towers"),
    ],
)
def test_a_fault_is_said_and_ends_with_1(fault, error, tmp_path):
    out = tmp_path / "exchange.json"
    arguments = ["--json", str(out), "--ratios", "2", "--permutes", "none"]
    assert on_ranks(4, fault, arguments, timeout=120) == [1] * 4
    ways = {way["way"]: way for way in json.loads(out.read_text())["ways"]}
    wrong = {name for name, way in ways.items() if not exchange._good(way)}
    assert wrong == {"sptt none CR 2"} if error == "towers" else {"sptt none", "sptt none CR 2"}
    for name in wrong:
        assert error is None or ways[name]["errors"][error] > 0.1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--ranks 3", "--ranks 3: 4 ranks were started"),
        ("--ranks-per-host 3", "--ranks-per-host 3: "),
        ("--features 1", "--features 1: 2 hosts need a feature each"),
        ("--dim 6", "--dim 6: FBGEMM takes multiples of 4"),
        ("--features 3 --dim 4 --ratios 5", "--ratios 5: it does not divide the 8 numbers of a tower"),
        ("--json .", "--json .: it is a folder"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_one_sentence(words, said):
    with pytest.raises(UserError, match=f"^{re.escape(said)}"):
        exchange.check(exchange.parse(words.split()), 4)


def test_the_command_prints_a_line_a_way_and_ends_its_ranks_when_it_is_terminated():
    command = [sys.executable, "-m", "bench.exchange", *SMALL, "--ratios", "--permutes", "none", "--ranks", "2"]
    done = subprocess.run([*command, "--ranks-per-host", "1"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()[2:]] == ["flat", "tower_collection", "sptt"]
    mark = f"/{uuid.uuid4()}.json"
    endless = subprocess.Popen(
        [*command, "--repeats", "100000", "--json", f"/tmp{mark}"], cwd=ROOT, stderr=subprocess.PIPE, text=True
    )
    for line in endless.stderr:
        if line.startswith("repeat"):
            break
    endless.terminate()
    endless.communicate(timeout=60)
    assert not [p for p in psutil.process_iter(["cmdline"]) if any(mark in word for word in p.info["cmdline"] or ())]
