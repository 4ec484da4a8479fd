"""Tables, figure and report of a made-up study: medians, pairs of seeds, provenance, and how faults show."""

import json
import re
import statistics
import subprocess
import sys
from pathlib import Path

import made_up_study as made_up
import pandas as pd
import pytest

from bench import gather as gathering
from bench.errors import UserError
from paper_figures import auc_towers, comparison, complexity, findings, paper_values, records, report, style, table4

COUNTED = [
    made_up.complexity("dlrm", 1, None, 14.738, 22777000000),
    made_up.complexity("dmt_dlrm", 8, 64, 8.953, 22777000000),
    made_up.complexity("dmt_dlrm", 8, 32, 7.928, 22777000000),
]


def study(tmp_path: Path, runs: list[dict], counted: list[dict] = COUNTED) -> pd.DataFrame:
    """records.csv of the runs, written and read as the workflow does."""
    files = made_up.write(tmp_path / "study", runs, counted)
    table = gathering.gather([files["runs"]], files["complexity"], [], files["manifest"])
    table.to_csv(tmp_path / "records.csv", index=False)
    return records.read(tmp_path / "records.csv")


def with_auc(run: dict, auc: float | None) -> dict:
    scores = run["accuracy"]["test"] | {"auc": auc, "auc_reason": None if auc else "one class only"}
    return run | {"accuracy": run["accuracy"] | {"test": scores}}


AUC = {"dlrm": (0.80, 0.81, 0.85), "dmt_dlrm": (0.805, 0.812, 0.851), "dlrm_small_over": (0.804, 0.815, 0.845)}


@pytest.fixture
def uneven(tmp_path) -> pd.DataFrame:
    """Medians of differences here are not differences of medians."""
    towers = {"dmt_dlrm": 8}
    return study(
        tmp_path,
        [
            with_auc(made_up.record(m, towers.get(m, 1), s), auc)
            for m, values in AUC.items()
            for s, auc in enumerate(values)
        ],
    )


def row(table: pd.DataFrame, model: str, towers: int) -> pd.Series:
    found = table[(table["model"] == model) & (table["towers"] == towers)]
    assert len(found) == 1
    return found.iloc[0]


def test_table4_statistics(uneven):
    built = row(table4.build(uneven), "dmt_dlrm", 8)
    assert built["measured_auc_median"] == pytest.approx(0.812)
    assert built["measured_auc_std"] == pytest.approx(statistics.stdev(AUC["dmt_dlrm"]))
    assert built["measured_seeds"] == 3
    # seed by seed: +50, +20, +10 against flat; +10, -30, +60 against flat with the same over arch
    assert built["measured_difference_to_flat_median"] == pytest.approx(20)
    assert (built["measured_difference_to_flat_low"], built["measured_difference_to_flat_high"]) == pytest.approx(
        (10, 50)
    )
    assert built["measured_difference_to_same_over_arch_median"] == pytest.approx(10)
    text = table4.readable(table4.build(uneven)).set_index(["model", "towers"]).loc[("DMT-DLRM", "8")]
    assert text["measured_auc"] == "0.8120 ± 0.0248"
    assert text["measured_difference_to_flat"] == "+20.0 (+10.0 to +50.0)"


def test_table4_pairs_by_seed_not_by_place(tmp_path):
    runs = [with_auc(made_up.record("dlrm", 1, s), 0.8 + 0.01 * s) for s in (0, 1, 2)]
    runs += [with_auc(made_up.record("dmt_dlrm", 8, s), 0.8 + 0.01 * s + 0.001) for s in (2, 1)]
    delta = comparison.difference(study(tmp_path, runs), "dmt_dlrm", 8, "dlrm")
    assert (delta.n, delta.low, delta.high) == (2, pytest.approx(10), pytest.approx(10))


def test_paper_values_stand_beside_and_apart(uneven):
    built = table4.build(uneven)
    eight = row(built, "dmt_dlrm", 8)
    assert (eight["paper_auc"], eight["paper_auc_std"], eight["paper_mflop"], eight["paper_parameters_G"]) == (
        0.8045, 0.0001, 8.95, 22.78,
    )  # fmt: skip
    assert eight["measured_mflop_paper_sizes"] == 8.953, "D = 64 is table 4's; 32 is table 5's"
    small = row(built, "dlrm_small_over", 1)
    assert small["paper_auc"] == small["paper_mflop"] == "not in paper"
    marked = [name for name in built if name not in ("model", "towers")]
    assert all(name.startswith(("measured_", "paper_")) for name in marked)


def test_table4_has_the_studys_rows_and_names_the_papers_others(uneven, tmp_path):
    built = table4.build(uneven)
    assert set(built["model"]) == {"dlrm", "dlrm_small_over", "dmt_dlrm", "ceiling"}
    assert len(built) == 4, "no rows for numbers of towers that the study has not"
    others = (
        "In the paper's table 4, not in this study: DMT-DLRM with 2, 4, 16 and 26 towers; DCN (flat); "
        "DMT-DCN with 2, 4, 8, 16 and 26 towers."
    )
    assert others in table4.markdown(built) and others in html(uneven, tmp_path).replace("&#39;", "'")
    whole = table4.build(study(tmp_path / "whole", made_up.grid()))
    printed = paper_values.table("table4")
    assert set(zip(whole["model"], whole["towers"], strict=True)) >= set(
        zip(printed["model"], printed["towers"], strict=True)
    )
    assert table4.paper_only(whole) == "" and "not in this study" not in table4.markdown(whole)


def test_small_numbers_keep_their_decimals(tmp_path):
    runs = [made_up.record(model, 1, 0) for model in ("dlrm", "dcn", "logistic", "prior")]
    for run, mflop in zip(runs, (0.39, 1.924688, 2e-6, 0), strict=True):
        run["complexity"] = run["complexity"] | {"mflop_per_sample": mflop}
    text = table4.readable(table4.build(study(tmp_path, runs)))
    assert list(text["measured_mflop_study"]) == ["0.390", "1.925", "< 0.001", "0", "n/a"]


def test_nothing_is_blank_or_zero(uneven, tmp_path):
    built = table4.build(uneven)
    path = tmp_path / "table4.csv"
    path.write_text(built.to_csv(index=False))
    assert not pd.read_csv(path, keep_default_na=False).isin(["", "nan", "NaN"]).any().any()


def test_faults_are_named(tmp_path):
    runs = [made_up.record(m, 1, s) for m in ("dlrm", "dcn", "logistic") for s in (0, 1, 2)]
    runs[1] = made_up.failed("dlrm", 1, 1, "diverged", "loss is nan at step 3")
    runs[2] = made_up.failed("dlrm", 1, 2, "oom", "out of memory")
    runs[4] = with_auc(runs[4], None)
    del runs[5]
    table = study(tmp_path, runs)
    assert comparison.faults(table, "dlrm", 1) == "diverged (1 of 3), oom (1 of 3)"
    assert comparison.faults(table, "dcn", 1) == "AUC undefined (1 of 3), not run (1 of 3)"
    assert comparison.faults(table, "logistic", 1) == ""
    built = table4.build(table)
    assert row(built, "dlrm", 1)["measured_auc_std"] == "one seed"
    assert row(built, "dlrm", 1)["measured_auc_median"] == pytest.approx(runs[0]["accuracy"]["test"]["auc"])
    page = html(table, tmp_path)
    for words in ("loss is nan at step 3", "out of memory", "one class only", "diverged (1 of 3), oom (1 of 3)"):
        assert words in page


def test_ceiling_where_rows_are_generated(tmp_path):
    runs = [made_up.record("dlrm", 1, 0)]
    assert row(table4.build(study(tmp_path / "a", runs)), "ceiling", "n/a")["measured_auc_median"] == 0.8125
    runs[0]["data"]["auc_ceiling"] = None
    assert "ceiling" not in set(table4.build(study(tmp_path / "b", runs))["model"])


def test_a_new_baseline_shows_everywhere(tmp_path):
    runs = [made_up.record(m, t, s) for m, t in (("dlrm", 1), ("my_idea", 4), ("logistic", 1)) for s in (0, 1)]
    table = study(tmp_path, runs)
    assert [m for m, _ in comparison.grid(table)] == ["dlrm", "my_idea", "logistic"]
    assert row(table4.build(table), "my_idea", 4)["measured_seeds"] == 2
    figure = auc_towers.draw(table)
    assert "my_idea" in [text.get_text() for text in figure.legends[0].get_texts()]
    assert "my_idea-T4-s1" in html(table, tmp_path)


def test_complexity_beside_the_papers_tables(tmp_path):
    built = complexity.build(study(tmp_path, [made_up.record("dlrm", 1, 0)]))
    assert built["table"].value_counts().to_dict() == {3: 4, 4: 12, 5: 4}
    five = built[(built["table"] == 5) & (built["tower_dim"] == 32)].iloc[0]
    assert (five["measured_mflop"], five["paper_mflop"], five["difference_mflop"]) == (7.928, 7.93, -0.002)
    assert set(built[built["model"] == "dcn"]["measured_mflop"]) == {"not counted"}


def test_figure_draws_seeds_medians_and_the_paper_apart(tmp_path):
    runs = made_up.grid()
    runs = [r for r in runs if r["run"] not in ("dmt_dlrm-T8-s0", "dmt_dlrm-T8-s1", "dmt_dlrm-T8-s2")]
    table = study(tmp_path, runs)
    measured, paper = auc_towers.draw(table).axes
    lines = {line.get_label(): line for line in measured.get_lines()}
    drawn = lines["DLRM (flat), DMT-DLRM"].get_ydata()
    expected = [comparison.auc(table, "dlrm", 1)] + [comparison.auc(table, "dmt_dlrm", t) for t in (2, 4, 8, 16, 26)]
    assert expected[3] is None and pd.isna(drawn[3]), "a number of towers without runs is a gap, not a line across"
    assert [d for d in drawn if not pd.isna(d)] == pytest.approx([e.median for e in expected if e])
    notes = " ".join(text.get_text() for text in measured.texts).replace("\n", " ")
    assert "No AUC" not in notes, "8 towers are not of this study: nothing went wrong there"
    assert "ceiling 0.8125" in notes and "logistic regression 0.74" in notes
    blue = tuple(style.LOOKS["dlrm"]["color"])
    points = [c for c in measured.collections if len(c.get_offsets()) == 3 and tuple(c.get_facecolor()[0][:3]) == blue]
    assert len(points) == 5, "three seeds for the flat DLRM and each number of towers that ran"
    low, high = paper.get_ylim()
    assert low < 0.7998 and high > 0.8047 and not low < measured.get_ylim()[0] < high
    assert "Paper" in paper.get_title(loc="left") and "Measured" in measured.get_title(loc="left")


def test_figure_of_a_part_of_the_grid(tmp_path):
    runs = [made_up.record(m, t, s) for m, t in (("dlrm", 1), ("dlrm_small_over", 1), ("dmt_dlrm", 2)) for s in (0, 1)]
    runs[3] = made_up.failed("dlrm_small_over", 1, 1, "oom", "out of memory")
    runs[5] = made_up.failed("dmt_dlrm", 2, 1, "diverged", "loss is nan at step 3")
    figure = auc_towers.draw(study(tmp_path, runs))
    measured, paper = figure.axes
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["DLRM (flat), DMT-DLRM", "DLRM (flat) with DMT's over arch"], "as the tables call it; no DCN"
    assert len(paper.containers) == 1, "of the paper, too, the study's families only"
    notes = " ".join(text.get_text() for text in measured.texts).replace("\n", " ")
    faults = "DLRM (flat) with DMT's over arch: oom (1 of 2); DMT-DLRM with 2 towers: diverged (1 of 2)"
    assert f"No AUC (×): {faults}" in notes and "not in this study" not in notes
    assert [line.get_marker() for line in measured.get_lines()].count("x") == 2


SAID = "With 8 towers DMT-DLRM's test AUC"


@pytest.mark.parametrize(
    ("flat", "towers", "said"),
    [
        ((0.80, 0.8004, 0.8002), (0.798, 0.7985, 0.7985), f"{SAID} lies 0.0019 below that of DLRM (flat)."),
        ((0.80, 0.8004, 0.8002), (0.802, 0.8025, 0.8025), f"{SAID} lies 0.0021 above that of DLRM (flat)."),
        ((0.80, 0.8004, 0.8002), (0.798, 0.7985, 0.8003), f"{SAID} cannot be told from that of DLRM (flat)."),
        ((0.80, 0.8044, 0.8002), (0.798, 0.8024, 0.7982), f"{SAID} cannot be told from that of DLRM (flat)."),
        ((0.80,), (0.798,), f"{SAID} cannot be judged against that of DLRM (flat): one seed shows no spread."),
        ((0.80, 0.81), (None, None), f"{SAID} cannot be compared with that of DLRM (flat): no seed has both."),
        ((None, None), (0.80, 0.81), f"{SAID} cannot be compared with that of DLRM (flat): no seed has both."),
    ],
    ids=["below", "above", "seeds disagree", "within the flat model's seeds", "one seed", "no AUC", "no AUC of flat"],
)
def test_the_answer_in_words(tmp_path, flat, towers, said):
    runs = [with_auc(made_up.record("dlrm", 1, s), auc) for s, auc in enumerate(flat)]
    runs += [with_auc(made_up.record("dmt_dlrm", 8, s), auc) for s, auc in enumerate(towers)]
    table = study(tmp_path, runs)
    (found,) = findings.findings(table)
    assert found.answer == said
    page = html(table, tmp_path).replace("&#39;", "'")
    assert said in page
    assert f'<span class="paper">{found.paper}</span>' in page and "-0.0002 to +0.0000 from its flat" in found.paper


def test_the_answer_parts_the_numbers_of_towers(tmp_path):
    auc = {2: 0.797, 4: 0.798, 26: 0.8002}
    runs = [with_auc(made_up.record("dcn", 1, s), 0.80 + 0.0003 * s) for s in (0, 1)]
    runs += [with_auc(made_up.record("dmt_dcn", t, s), auc[t] + 0.0003 * s) for t in auc for s in (0, 1)]
    (found,) = findings.findings(study(tmp_path, runs))
    assert found.answer == (
        "With 2 and 4 towers DMT-DCN's test AUC lies 0.0020 to 0.0030 below that of DCN (flat). "
        "With 26 towers DMT-DCN's test AUC cannot be told from that of DCN (flat)."
    )
    assert found.numbers == "2 towers -30.0; 4 towers -20.0; 26 towers +2.0; the flat model's own seeds lie 3.0 apart"


def html(table: pd.DataFrame, tmp_path: Path) -> str:
    return report.render(table, made_up.MANIFEST, b"png")


def test_report_tells_the_whole_study(tmp_path):
    table = study(tmp_path, made_up.grid())
    page = html(table, tmp_path)
    assert "45 training runs (45 ok)" in page
    for words in (
        made_up.SPLIT_HASH,
        "8,000",
        "0.2490",
        "1.20% (C2)",
        "torch: 2.13.0",
        "cpu: a CPU",
        "memory_GiB: 24.0",
    ):
        assert words in page
    assert page.count("python -m bench.train --model dmt_dcn --towers 26") == 3
    assert not re.search(r"""(src|href|url)\s*[=(]\s*["']?(?!data:)[\w/]""", page.split("<body>")[1])
    assert "http" not in page
    cells = re.findall(r'<td class="paper[^"]*">([^<]*)</td>', page)
    assert [cell for cell in cells if "±" in cell and cell.startswith("0.79")] == ["0.7998 ± 0.0002"], (
        "2T-DCN, the paper's"
    )


def test_report_marks_each_number_by_its_source(tmp_path):
    page = html(study(tmp_path, made_up.grid()), tmp_path)
    assert '<th class="paper">AUC, Criteo 1TB</th>' in page
    assert page.count('<th class="both">') == 2
    columns = {kind: re.findall(rf'<th class="{kind}">([^<]*)</th>', page) for kind in ("paper", "both")}
    assert all("minus" not in name for name in columns["paper"])
    assert columns["both"] == ["MFLOP, measured minus paper", "10^9 parameters, measured minus paper"]
    assert page.count('<td class="both') == 2 * len(complexity.build(study(tmp_path / "b", made_up.grid())))


def test_report_captions_do_not_scroll_with_their_tables(tmp_path):
    page = html(study(tmp_path, made_up.grid()), tmp_path)
    assert "<caption" not in page and page.count('<p class="caption">') == page.count('<div class="scroll">') == 4


def test_only_faults_are_red(tmp_path):
    bad = ("oom", "diverged", "2; diverged (1 of 3)", "1; diverged (1 of 3), oom (1 of 3)", "undefined")
    bad += ("AUC undefined (1 of 3), not run (1 of 3)",)
    assert [report._mark(text) for text in bad] == ["bad"] * len(bad)
    assert [report._mark(text) for text in ("room_dlrm", "room_dlrm-T1-s0", "oom-T1-s0", "ok")] == [""] * 4
    assert '<td class="bad">' not in html(study(tmp_path, [made_up.record("room_dlrm", 1, 0)]), tmp_path)


def test_each_group_of_models_has_a_line_of_its_own():
    models = ["dlrm", "dlrm_small_over", "dmt_dlrm", "dcn", "my_idea", "my_idea", "logistic", "prior", "ceiling"]
    starts = report._group_starts(pd.Series(models))
    assert [model for model, start in zip(models, starts, strict=True) if start] == [
        "dcn", "my_idea", "logistic", "ceiling",
    ]  # fmt: skip


def test_report_refuses_another_manifest(tmp_path):
    table = study(tmp_path, [made_up.record("dlrm", 1, 0)])
    with pytest.raises(records.InputError, match="split hash"):
        report.render(table, made_up.MANIFEST | {"split_hash": "c" * 64}, b"")


def test_gather_keeps_what_was_recorded(tmp_path):
    table = study(tmp_path, [made_up.record("dmt_dlrm", 8, 2)])
    run = records.accuracy(table).iloc[0]
    assert (run["train_steps"], run["test_evaluated"], run["samples_per_s"], run["towers"]) == (8, 1000, 50000.0, 8)
    assert json.loads(run["hardware"])["cores"] == 2
    assert run["provenance"] == "measured"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda run: run.pop("seed"), "seed"),
        (lambda run: run["data"].update(split_hash="c" * 64), "made on other data"),
        (lambda run: run.update(run="dlrm-T1-s1"), "two records"),
    ],
)
def test_gather_refuses(tmp_path, change, message):
    runs = [made_up.record("dlrm", 1, 0), made_up.record("dlrm", 1, 1)]
    files = made_up.write(tmp_path / "study", runs, COUNTED)
    change(runs[0])
    (files["runs"] / "dlrm-T1-s0.json").write_text(json.dumps(runs[0]))
    with pytest.raises(UserError, match=message):
        gathering.gather([files["runs"]], files["complexity"], [], files["manifest"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot read"),
        ("study,kind\na,accuracy\n", "has no column"),
        (",".join(records.NEEDED) + "\n", "no accuracy runs"),
    ],
)
def test_bad_records_end_in_one_line(tmp_path, text, message):
    path = tmp_path / "records.csv"
    if text:
        path.write_text(text)
    command = [sys.executable, "-m", "paper_figures.table4", "--records", path, "--out-dir", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parent.parent)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1 and message in done.stderr
