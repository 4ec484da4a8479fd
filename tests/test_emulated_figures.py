"""Figures, table and report of a made-up emulated cluster: known answers, provenance, and how faults show."""

import subprocess
import sys
from pathlib import Path

import made_up_study as made_up
import pandas as pd
import pytest

from bench import gather as gathering
from bench import record
from paper_figures import (
    apart,
    emulated,
    emulated_section,
    fig1_13,
    fig5,
    fig10,
    fig11,
    fig12,
    records,
    report,
    throughput_table,
)

# ms of an iteration in each of three turns: dmt_dcn over dcn is 1.6, 2.0, 1.5, though medians' ratio is 180 / 100 = 1.8
MS = {
    "dcn": (160, 200, 180),
    "sptt_dcn": (200, 200, 200),
    "dmt_dcn": (100, 100, 120),
    "sptt_dcn+embeddings=dmt_dcn": (170, 170, 170),
    "sptt_dcn+dense=dmt_dcn": (190, 190, 190),
    "dmt_dcn+embeddings=sptt_dcn+dense=sptt_dcn": (160, 160, 160),
    "dlrm": (100, 100, 100),
    "dlrm_small_over": (80, 80, 80),
    "sptt_dlrm": (125, 125, 125),
    "dmt_dlrm-D8": (50, 50, 50),
    "dmt_dlrm-D4": (25, 25, 25),
    "dmt_dcn:tower_collection": (200, 100, 240),
}
ALL_MIXTURES = {
    "sptt_dcn+embeddings=dmt_dcn+dense=dmt_dcn": (160, 160, 160),
    "dmt_dcn+embeddings=sptt_dcn": (150, 150, 150),
    "dmt_dcn+dense=sptt_dcn": (130, 130, 130),
}
LINK = made_up.calibration("2x2")


def study(contestants: dict, more: list[dict] = ()) -> pd.DataFrame:
    """records.csv of these contestants (name: ms), of more records, and of an accuracy run."""
    made = [made_up.record("dcn", 1, 0), *(made_up.throughput(name, ms) for name, ms in contestants.items()), *more]
    for one in made:
        record.check(one, Path(one["run"]))
    return pd.DataFrame([gathering.row(one) for one in made])


@pytest.fixture
def table() -> pd.DataFrame:
    return emulated.rows(study(MS))


def test_speedups_are_taken_turn_by_turn(table):
    found = emulated.speedup(table, (2, 2), "dmt_dcn", "dcn")
    assert (found.median, found.low, found.high) == pytest.approx((1.6, 1.5, 2.0)), "the medians' ratio is 1.8"
    assert emulated.times(found) == "1.60 (1.50 to 2.00)"
    assert emulated.speedup(table, (2, 2), "xlrm", "dcn") == "not run"


def test_turns_of_two_jobs_are_not_compared(tmp_path):
    with pytest.raises(records.InputError, match="ran 2 and 3 turns: time them again, in one job"):
        emulated.speedup(emulated.rows(study(MS | {"dmt_dcn": (1, 1)})), (2, 2), "dmt_dcn", "dcn")


def test_shapes_and_contestants_are_arranged():
    more = [
        made_up.throughput("dcn", (300, 300, 300), hosts=8, profiled=False),
        made_up.throughput("dcn", (200, 200, 200), hosts=4),
    ]
    table = emulated.rows(study(MS, more))
    assert emulated.shapes(table) == [(2, 2), (4, 2), (8, 2)] and emulated.main_shape(table) == (4, 2)
    order = list(table["contestant"][table["shape"] == (2, 2)])
    assert order[:2] == ["dcn", "dmt_dcn"] and order[3] == "dmt_dcn-tower_collection" and "+" in order[4]
    assert emulated.contestant_of(table, (2, 2), "dmt_dlrm") == "dmt_dlrm-D8", "the widest"
    about = emulated.about(table)
    for words in ("No number here is a measurement of GPUs", "100 Mbit/s at 4x2 (dilation 2)", "time dilation"):
        assert words in about


@pytest.mark.parametrize(
    ("contestant", "said"),
    [
        ("dmt_dlrm-D8", "DMT-DLRM (D = 8)"),
        ("dcn-table_row_wise", "DCN (flat), table-row-wise"),
        ("sptt_dcn+dense=dmt_dcn", "SPTT-DCN with dense gradients' bytes of DMT-DCN"),
        ("dmt_dcn+embeddings=sptt_dcn+dense=sptt_dcn", "DMT-DCN with all bytes of SPTT-DCN"),
    ],
)
def test_contestants_in_words(contestant, said):
    assert emulated.name(contestant) == said


def test_waterfall_sums(table):
    found = apart.taken(table)
    assert (found.flat, found.whole) == (pytest.approx(180), pytest.approx(100))
    assert [found.alone(part) for part in apart.PARTS] == pytest.approx([40, 30, 10])
    assert found.remainder == pytest.approx(20)
    assert found.shapley() is None, "three mixtures are missing"
    words = apart.words(found)
    assert "the sum of the three is 80 ms, 80 % of the whole" in words and "SPTT-DCN 200 ms (+20)" in words
    heights = [bar.get_height() for bar in apart.draw(table).axes[0].patches]
    assert heights == pytest.approx([180, 20, -40, -30, -10, -20, 100])


def test_waterfall_without_some_mixtures():
    some = {name: ms for name, ms in MS.items() if name != "sptt_dcn+dense=dmt_dcn"}
    table = emulated.rows(study(some | {"dmt_dcn+embeddings=sptt_dcn+dense=sptt_dcn": None}))
    found = apart.taken(table)
    assert found.alone("dense") is None and found.alone("operations") is None and found.remainder is None
    assert "dense gradients alone: not run" in apart.words(found)
    written = [text.get_text() for text in apart.draw(table).axes[0].texts]
    assert (written.count("not run"), written.count("unknown")) == (2, 1)
    none = {name: ms for name, ms in MS.items() if "+" not in name}
    assert apart.taken(emulated.rows(study(none))).whole == pytest.approx(100)


def test_what_cannot_be_drawn_is_said():
    table = emulated.rows(study({"dcn": MS["dcn"], "dmt_dcn": None}))
    table["breakdown_iteration_ms"] = None
    for module, why in ((apart, "one was not run, or failed"), (fig1_13, "profiled"), (fig12, "DMT-DLRM was not run")):
        (text,) = module.draw(table).texts
        assert why in text.get_text().replace("\n", " ")
    assert emulated_section.parts(table) == []
    slower = apart.taken(emulated.rows(study(MS | {"dmt_dcn": (200, 200, 200)})))
    assert "(nothing is spared)" in apart.words(slower)


def states(ms) -> apart.Apart:
    """ms: of the parts that are DMT-DCN's."""
    subsets = [frozenset(s) for s in ((), ("operations",), ("embeddings",), ("dense",))]
    subsets += [apart.ALL - {part} for part in apart.PARTS] + [apart.ALL]
    return apart.Apart((4, 2), 100.0, {state: ms(state) for state in subsets})


def test_shapley_values():
    worth = {"operations": 5.0, "embeddings": 3.0, "dense": 2.0}
    additive = states(lambda state: 90 - sum(worth[part] for part in state))
    assert additive.shapley() == pytest.approx(worth) and additive.remainder == pytest.approx(0)
    # operations and embeddings spare 12 only together, dense gradients 2 alone
    both = states(lambda state: 90 - 12 * ({"operations", "embeddings"} <= state) - 2 * ("dense" in state))
    assert both.shapley() == pytest.approx({"operations": 6, "embeddings": 6, "dense": 2})
    assert both.remainder == pytest.approx(12) and sum(both.shapley().values()) == pytest.approx(both.whole)


def test_all_mixtures_give_shapley_values():
    found = apart.taken(emulated.rows(study(MS | ALL_MIXTURES)))
    # operations: 40 first, 170 - 130 or 190 - 150 second, 160 - 100 last: (2 x 40 + 40 + 40 + 2 x 60) / 6
    assert found.shapley()["operations"] == pytest.approx((2 * 40 + 40 + 40 + 2 * 60) / 6)
    assert sum(found.shapley().values()) == pytest.approx(found.whole)
    assert "Shapley" in apart.words(found)


def test_wait_is_taken_out_of_communication(table):
    parts = fig1_13.measured(table)["dcn"]
    assert parts == {"compute": 50, "embedding": 10, "dense": 10, "others": 10, "wait": 20}
    assert fig1_13.shares(parts)["embedding"] == pytest.approx(12.5), "of 80 ms, as bench.calibrate has it"


def test_the_papers_values_stand_apart(table):
    assert fig1_13.printed_shares() == {"compute": 70.4, "embedding": 27.5, "others": 2.1}
    assert fig1_13.printed()["dmt_dcn"] == {"compute": 21.8, "embedding": 2.5, "others": 1.2}
    for draw in (fig1_13.draw, fig10.draw, fig11.draw, fig12.draw):
        titles = [axes.get_title(loc="left") for axes in draw(table).axes]
        assert all(("mulated" in title) != ("aper" in title) for title in titles), titles


def test_dmt_stands_beside_the_flat_model_with_its_over_arch(table):
    dmt, small = fig10.series(table, "dlrm")
    assert (dmt.values[0].median, small.values[0].median) == (pytest.approx(2), pytest.approx(1.25))
    alone, modules = fig11.series(table, "dlrm")
    assert (alone.values[0].median, modules.values[0].median) == (pytest.approx(0.8), pytest.approx(2.5))


def test_compression_ratios():
    failed = made_up.throughput("dmt_dlrm-D2", None)
    table = emulated.rows(study(MS, [failed]))
    assert fig12.contestants(table, (2, 2)) == {"2": "dmt_dlrm-D8", "4": "dmt_dlrm-D4", "D = 2": "dmt_dlrm-D2"}
    written = [text.get_text() for text in fig12.draw(table).axes[0].texts]
    assert written == ["2.50", "5.00", "failed"]


def test_table_cells(table):
    built = throughput_table.build(table).set_index("contestant")
    dmt = built.loc["dmt_dcn"]
    assert dmt["emulated_samples_per_s_median"] == pytest.approx(40_000)
    assert (dmt["emulated_ms_median"], dmt["emulated_ms_p90"]) == pytest.approx((100, 116))
    assert (dmt["emulated_speedup_median"], dmt["speedup_over"]) == (pytest.approx(1.6), "dcn")
    assert dmt["emulated_across_MB"] == pytest.approx(1.25)
    assert dmt["emulated_link_over_formula"] == pytest.approx(1.02), "the host where they differ most"
    # 60 ms over open links, and 1.5 MB at 200 Mbit/s are 60 ms
    assert dmt["emulated_predicted_over_measured"] == pytest.approx(1.2)
    assert built.loc["dmt_dcn-tower_collection", "emulated_speedup_median"] == pytest.approx(0.8)
    assert built.loc["sptt_dcn+dense=dmt_dcn", "emulated_predicted_over_measured"] == "not timed"
    assert built.loc["dcn", "emulated_speedup_median"] == "baseline"
    assert "2.00 (1.00 to 2.00) times the samples/s, turn by turn" in throughput_table.markdown(table)
    text = throughput_table.readable(throughput_table.build(table)).set_index("contestant").loc["DMT-DCN"]
    assert (text["samples"], text["speedup"]) == ("40,000 (33,333 to 40,000)", "1.60 (1.50 to 2.00)")


def test_failed_contestants_are_shown():
    table = emulated.rows(study(MS | {"dmt_dcn": None}))
    row = throughput_table.build(table).set_index("contestant").loc["dmt_dcn"]
    assert row["emulated_samples_per_s_median"] == row["emulated_speedup_median"] == "failed"
    assert "failed: no plan fits" in throughput_table.markdown(table)
    axes = fig10.draw(table).axes[2]
    assert [text.get_text() for text in axes.texts] == ["failed"]
    page = emulated_section.html(table, {}, LINK)
    assert "failed at 2x2" in page and '<td class="reason bad">failed: no plan fits</td>' in page


def test_report_has_the_numbers_in_words():
    table = study(MS | ALL_MIXTURES)
    section = emulated_section.html(emulated.rows(table), {"fig10": b"png"}, LINK)
    page = report.render(table, made_up.MANIFEST, b"png", section).replace("&#39;", "'")
    for words in (
        "On an emulated cluster",
        "2 hosts of 2 ranks, DCN (flat) is to spend 27.5% of its iteration",
        "(paper, figure 1, DCN on 64 H100: 27.5%)",
        "After 2 measurements the rate is 200.0 Mbit/s, where the share was found to be 28.1%.",
        "DMT-DCN over the flat DCN, emulated, lowest to highest of the turns in brackets: 1.60 (1.50 to 2.00) at 2x2.",
        "The flat DLRM with DMT's smaller over arch over the flat DLRM: 1.25 (1.25 to 1.25) at 2x2",
        "SPTT-DLRM over the flat DLRM: 0.80 (0.80 to 0.80) at 2x2",
        "SPTT moves as many bytes across hosts as the flat exchange",
        "the sum of the three is 80 ms, 80 % of the whole",
        '<span class="paper">Paper, figure 10, DCN: 1.1 to 1.9 on 16 to 512 GPUs.</span>',
        "No number here is a measurement of GPUs",
        "How fast they train was timed on an emulated cluster",
    ):
        assert words in page, words
    assert "made at another rate" not in page and "http" not in page
    other = emulated_section.rate(LINK | {"bits_per_s": 2 * made_up.RATE}, emulated.rows(table))
    assert other.endswith("Records of that shape were made at another rate, 200.0 Mbit/s.")
    assert "unshaped" in emulated_section.rate(LINK | {"bits_per_s": None}, emulated.rows(table))
    with pytest.raises(records.InputError, match="link.json is not as bench.calibrate writes it"):
        emulated_section.rate({"bits_per_s": 1}, emulated.rows(table))


def test_a_study_without_an_emulated_cluster_reports_none():
    table = study({})
    assert emulated.rows(table).empty
    page = report.render(table, made_up.MANIFEST, b"png")
    assert "emulated" not in page.split("</style>")[1] and "Speed is no part of this study" in page


def test_measured_throughput_is_no_emulated_one():
    on_gpus = made_up.throughput("dcn", (1, 1, 1)) | {"provenance": "measured"}
    assert emulated.rows(study({}, [on_gpus])).empty


def collectives(tmp_path: Path) -> Path:
    same = {"ranks_per_host": 2, "link_bits_per_s": made_up.RATE}
    rows = [
        same | {"ranks": ranks, "hosts": ranks // 2, "kind": kind, "size": size, "busbw_MB_per_s": 1.0, "of_link": 0.9}
        for ranks in (2, 4)
        for kind in ("flat", "peer", "allreduce")
        for size in (2**20, 2**22)
    ]
    pd.DataFrame(rows).to_csv(tmp_path / "collectives.csv", index=False)
    return tmp_path / "collectives.csv"


def test_collectives_of_the_largest_size(tmp_path):
    table = fig5.read(collectives(tmp_path))
    assert set(table["size"]) == {2**22} and len(table) == 6
    speed, share, paper = fig5.draw(table).axes
    assert [len(line.get_xdata()) for line in share.get_lines()] == [1, 1, 1], "a single host uses no link"
    assert max(paper.get_lines()[0].get_ydata()) == 155 and "Paper" in paper.get_title(loc="left")


@pytest.mark.parametrize(
    ("module", "flag", "columns", "message"),
    [
        ("fig10", "--records", ["dilation"], "throughput records without a column dilation: write them again"),
        ("throughput_table", "--records", ["kind"], "has no column kind"),
        ("fig5", "--collectives", ["of_link", "size"], "has no column size, of_link: write it again"),
    ],
)
def test_missing_columns_end_in_one_line(tmp_path, module, flag, columns, message):
    path = collectives(tmp_path)
    if flag == "--records":
        path = tmp_path / "records.csv"
        study(MS).to_csv(path, index=False)
    pd.read_csv(path).drop(columns=columns).to_csv(path, index=False)
    done = run(module, flag, path, tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1 and message in done.stderr


def test_figures_of_a_study_without_throughput_end_in_one_line(tmp_path):
    study({}).to_csv(tmp_path / "records.csv", index=False)
    done = run("fig11", "--records", tmp_path / "records.csv", tmp_path)
    assert done.returncode == 2 and "holds no throughput of an emulated cluster" in done.stderr


def test_a_figure_from_the_command_line(tmp_path):
    study(MS).to_csv(tmp_path / "records.csv", index=False)
    done = run("fig10", "--records", tmp_path / "records.csv", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "fig10.pdf").stat().st_size and (tmp_path / "fig10.png").stat().st_size


def run(module: str, flag: str, path: Path, out: Path) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", f"paper_figures.{module}", flag, path, "--out-dir", out]
    return subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parent.parent)
