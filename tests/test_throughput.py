"""bench.throughput: what it refuses, what its records say, and that wrong bytes make a contestant void."""

import json
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from ranks import on_ranks
from test_cluster import command, needs_namespaces

from baselines import ModelSpec
from bench import record, running, throughput
from bench import traffic_formulas as formulas
from bench.contestants import parse
from bench.errors import UserError
from bench.ranks import Ranks

ROOT = Path(__file__).resolve().parents[1]
SMALL = (
    "--embedding-dim 8 --bottom 16 --over 32,16 --small-over 16 --cross-layers 1 --cross-rank 8 --tower-cross-layers 1 "
    "--tower-cross-rank 4 --features 6 --rows 50 --local-batch 16 --iterations 3 --repeats 2 --bucket-mib 0.01"
).split()
MIXED = "dmt_dcn+embeddings=sptt_dcn+dense=sptt_dcn"


def compared(rank, folder, names, more=()):
    """Records of these contestants on two hosts of two ranks each."""
    file = Path(folder, "records.json")
    args = throughput.parse([*SMALL, *more, "--ranks-per-host", "2", "--json", str(file), "--contestants", *names])
    assert throughput.compare(args, Ranks(rank, dist.get_world_size(), 2, torch.device("cpu"))) == 0
    return json.loads(file.read_text()) if rank == 0 else None


def test_each_kind_of_contestant_has_a_record_with_the_bytes_of_the_formulas(tmp_path):
    names = ["dcn", "dcn:table_row_wise", "dlrm_small_over", "sptt_dcn", "dmt_dcn-D4", "dmt_dcn:tower_collection"]
    names += ["dmt_dcn", MIXED, "sptt_dcn+dense=dmt_dcn"]
    records = on_ranks(4, compared, str(tmp_path), names, timeout=240)[0]
    assert [one["run"] for one in records] == [f"{name.replace(':', '-')}-2x2" for name in names]
    by_name = dict(zip(names, records, strict=True))
    for name, one in by_name.items():
        assert record.check(one, "one") is None and one["reason"] is None, name
        shown, sent = one["throughput"], one["bytes"]
        assert len(shown["samples_per_s"]) == 2 and len(shown["iteration_ms"]) == 2 * 2  # repeats x counted iterations
        for where in ("inside", "across"):
            assert sent["counted"][where] == pytest.approx(sent["predicted"][where], rel=0.03), (name, where)
            parts = sum(part[where] for part in sent["predicted_parts"].values())
            assert parts == pytest.approx(sent["predicted"][where])
        if "+" in name:
            assert one["breakdown"] is None
        else:
            parts = [one["breakdown"][part] for part in ("compute", "embedding", "dense", "others")]
            assert sum(parts) == pytest.approx(one["breakdown"]["iteration_ms"], rel=0.02)
    assert {one["provenance"] for one in records} == {"emulated"}
    across = {name: one["bytes"]["predicted"]["across"] for name, one in by_name.items()}
    # the operations of DMT, the bytes of SPTT, but for the rounding of a part
    assert across[MIXED] == pytest.approx(across["sptt_dcn"], rel=0.02) and across[MIXED] > 1.2 * across["dmt_dcn"]
    assert across["dmt_dcn-D4"] < across["dmt_dcn"] < across["sptt_dcn"]
    lengths = 6 * 16 * 2 / 4 * 4  # of 6 features and 16 samples, to 2 of the 4 ranks, over all of them, 4 bytes each
    assert across["dmt_dcn:tower_collection"] == pytest.approx(across["dmt_dcn"] + lengths, rel=0.01)
    assert by_name[MIXED]["throughput"]["parts_of"] == {
        "operations": "dmt_dcn",
        "embeddings": "sptt_dcn",
        "dense": "sptt_dcn",
    }
    assert by_name["dmt_dcn-D4"]["tower_dim"] == 4
    plans = [
        one["throughput"]["plan"]["t_f0"]["sharding_type"] for one in (by_name["dcn"], by_name["dcn:table_row_wise"])
    ]
    assert plans == ["table_wise", "table_row_wise"]


def with_a_wrong_formula(rank, folder):
    flat = formulas.flat

    def wrong(work, of_rank):
        parts = flat(work, of_rank)
        return parts | {part: parts[part].times(1.5) for part in parts}

    with mock.patch.object(formulas, "flat", wrong):
        return compared(rank, folder, ["dcn", "sptt_dcn"], ["--turns-only"])


def test_bytes_that_the_formulas_do_not_say_make_a_contestant_void(tmp_path):
    void, good = on_ranks(4, with_a_wrong_formula, str(tmp_path), timeout=120)[0]
    assert void["status"] == "failed" and void["throughput"] is None and void["bytes"] is None
    assert void["reason"].startswith("void: the ranks sent ") and "the formulas say" in void["reason"]
    assert good["status"] == "ok" and good["breakdown"] is None


def with_one_that_cannot_be_built(rank, folder):
    def refuse(*args, **options):
        raise ValueError("no towers of this size\nand more")

    with mock.patch.object(running, "TowerEmbeddingSharder", refuse):
        return compared(rank, folder, ["dcn", "sptt_dcn", "dmt_dcn", MIXED], ["--turns-only"])


def test_a_contestant_that_cannot_be_built_has_a_record_and_others_go_on(tmp_path):
    records = on_ranks(4, with_one_that_cannot_be_built, str(tmp_path), timeout=120)[0]
    assert [one["status"] for one in records] == ["ok", "failed", "failed", "failed"]
    assert [one["reason"] for one in records[1:]] == ["no towers of this size"] * 2 + [
        "a contestant whose bytes it should have could not be built"
    ]


@needs_namespaces
def test_on_an_emulated_cluster(tmp_path):
    """The links' counters and the formulas agree, and links opened wide are another turn."""
    out, traces = tmp_path / "records.json", tmp_path / "traces"
    words = [sys.executable, "-m", "bench.throughput", *SMALL, "--local-batch", "256", "--json", str(out)]
    words += ["--traces", str(traces), "--trace-ranks", "1", "--contestants", "dcn", "dmt_dcn-D4"]
    done = subprocess.run(command(*words, link="30mbit"), cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "2 hosts x 2 ranks, gloo, links of 30 Mbit/s (emulated)" in done.stdout
    records = json.loads(out.read_text())
    assert [one["status"] for one in records] == ["ok", "ok"], records
    for one in records:
        record.check(one, out)
        assert one["topology"] == {"ranks": 4, "ranks_per_host": 2, "hosts": 2, "link": "emulated"}
        assert one["command"].startswith(
            "python -m bench.cluster --hosts 2 --ranks-per-host 2 --link 30mbit -- python "
        )
        assert one["throughput"]["link_bits_per_s"] == 3e7 and len(one["throughput"]["open_ms"]) == 2
        links = one["bytes"]["links"]
        for sent, predicted in zip(links["sent"], links["predicted"], strict=True):
            assert predicted == pytest.approx(2 * one["bytes"]["predicted"]["across"], rel=0.2)
            assert predicted * 0.97 < sent < predicted * 1.03 + 65_536 / 2
    assert sorted(file.name for file in traces.iterdir()) == ["dcn-rank1.json", "dmt_dcn-D4-rank1.json"]
    assert json.loads((traces / "dcn-rank1.json").read_text())["traceEvents"]


SIZES = ModelSpec("none", embedding_dim=8)


def test_how_a_contestant_is_written():
    one = parse("dmt_dlrm-D4:tower_collection", SIZES, 3)
    assert (one.spec.model, one.spec.towers, one.spec.tower_dim) == ("dmt_dlrm", 3, 4)
    assert (one.sharding, one.is_mixture, one.has_towers) == ("tower_collection", False, True)
    flat = parse("dcn", SIZES, 3)
    assert (flat.spec.towers, flat.sharding, flat.has_towers) == (1, "planner", False)
    mixed = parse("sptt_dcn+dense=dmt_dcn-D2", SIZES, 2)
    assert (mixed.operations, mixed.embeddings, mixed.dense) == ("sptt_dcn", "sptt_dcn", "dmt_dcn-D2")
    assert mixed.is_mixture and mixed.sharding == "towers"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("DCN", "is no contestant: write MODEL"),
        ("dcn:towers", "dcn can be sharded by planner or table_row_wise, not by towers"),
        ("sptt_dcn:planner", "sptt_dcn can be sharded by towers or tower_collection"),
        ("dcn+dense=dmt_dcn", "only contestants of the sharding towers"),
        ("../dcn", "is no contestant"),
        ("dmt_dcn-D4-D4", "dmt_dcn-D4"),
    ],
)
def test_what_is_no_contestant(text, sentence):
    with pytest.raises(ValueError, match=sentence) as error:
        parse(text, SIZES, 2)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--iterations", "2", "--warmup", "2"], "--iterations 2: the first 2 warm up and are not counted"),
        (["--features", "1"], "--features 1: 2 hosts need a feature each"),
        (["--embedding-dim", "6"], "--embedding-dim 6: FBGEMM takes multiples of 4"),
        (["--contestants", "dcn", "dcn"], "--contestants: dcn is there twice"),
        (["--contestants", "sptt_dcn", "dmt_dcn+dense=sptt_dcn"], "dmt_dcn.dense=sptt_dcn has parts of dmt_dcn: put"),
        (["--ranks-per-host", "3"], "--ranks-per-host 3"),
    ],
)
def test_what_is_refused_before_anything_starts(words, sentence):
    args = throughput.parse(["--ranks-per-host", "2", *words])
    with pytest.raises(UserError, match=sentence) as error:
        throughput.check(args, 4)
    assert "\n" not in str(error.value)


def test_one_rank_alone_is_refused():
    with pytest.raises(UserError, match="one rank has nobody to exchange with"):
        throughput.check(throughput.parse([]), 1)
