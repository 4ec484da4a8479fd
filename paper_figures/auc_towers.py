"""AUC against the number of towers, with its spread: measured above, the paper's table 4 below, never on one axis.

Writes auc_towers.pdf and auc_towers.png. Points are seeds, the line joins medians, the band is lowest to highest.
"""

import argparse
import itertools
import textwrap
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FormatStrFormatter, MaxNLocator

from paper_figures import comparison, paper_values, records, style

FAMILIES = {"dlrm": "DLRM", "dcn": "DCN"}
LEFT = -0.24  # of the axes' width: where titles and notes begin, so that a column's width is used


def draw(table: pd.DataFrame) -> plt.Figure:
    style.use()
    counts = {towers for _, towers in comparison.grid(table)} | set(paper_values.table("table4")["towers"])
    places = {towers: place for place, towers in enumerate(sorted(counts))}  # even steps: 2 and 26 both readable
    figure, (above, below) = plt.subplots(2, 1, figsize=(style.COLUMN, 5.2), layout="constrained")
    present = {model for model, _ in comparison.grid(table)}
    families = [family for family in FAMILIES if {family, f"dmt_{family}"} & present]
    notes = _measured(above, table, places, families)
    _paper(below, places, families or list(FAMILIES))
    for axes in (above, below):
        axes.set_xticks(list(places.values()), ["flat", *(str(towers) for towers in list(places)[1:])])
        axes.set_xlim(-0.5, len(places) - 0.5)
        axes.set_ylabel("test AUC")
        axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))  # not 2.5: labels have four decimals
        axes.yaxis.set_major_formatter(FormatStrFormatter("%.4f"))
        axes.set_xlabel("number of towers")
    note = "\n".join(textwrap.fill(note, 62) for note in notes)
    above.text(LEFT, -0.36, note, transform=above.transAxes, fontsize=7, va="top")
    entries = {}
    for axes in (below, above):  # a line drawn in both is shown as measured
        handles, labels = axes.get_legend_handles_labels()
        entries |= dict(zip(labels, handles, strict=True))
    figure.legend(entries.values(), entries, loc="outside upper left", handlelength=1.8)
    return figure


def _label(family: str) -> str:
    return f"{FAMILIES[family]} (flat), DMT-{FAMILIES[family]}"


def _series(
    table: pd.DataFrame, places: dict[int, int], families: list[str]
) -> list[tuple[str, list[tuple[str, int]], dict]]:
    """(label, its models and numbers of towers, its look) of each line: those of the paper's families, then others."""
    lines = []
    for family in families:
        pairs = [(family if towers == 1 else f"dmt_{family}", towers) for towers in places]
        lines.append((_label(family), pairs, style.LOOKS[family]))
    drawn = {"dlrm_small_over", *comparison.CONTROLS, *FAMILIES, *(f"dmt_{family}" for family in FAMILIES)}
    others = dict.fromkeys(model for model, _ in comparison.grid(table) if model not in drawn)
    for model, look in zip(others, itertools.cycle(style.MORE_LOOKS)):
        pairs = [pair for pair in comparison.grid(table) if pair[0] == model]
        lines.append((comparison.NAMES.get(model, model), pairs, look))
    return lines


def _measured(axes: Axes, table: pd.DataFrame, places: dict[int, int], families: list[str]) -> list[str]:
    """Draw the study's runs; returns in words what cannot be drawn: runs without an AUC, values off the scale."""
    series = _series(table, places, families)
    grid = comparison.grid(table)
    for number, (label, pairs, look) in enumerate(series):
        shift = 0.14 * (number - (len(series) - 1) / 2)  # side by side where values are equal
        rows = []
        for model, towers in pairs:
            values = comparison.runs_of(table, model, towers)["test_auc"].dropna()
            x = places[towers] + shift
            axes.scatter([x] * len(values), values, s=9, alpha=0.6, linewidths=0, **look)
            rows.append((x, values.median(), values.min(), values.max()))  # nan: a gap in the line
            if (model, towers) in grid and comparison.faults(table, model, towers):
                _cross(axes, x, look["color"])
        x, median, low, high = zip(*rows, strict=True)
        axes.plot(x, median, markersize=4, label=label, **look)
        axes.fill_between(x, low, high, color=look["color"], alpha=0.18, linewidth=0)
    if ("dlrm_small_over", 1) in grid and comparison.faults(table, "dlrm_small_over", 1):
        _cross(axes, -0.35, style.LOOKS["dlrm"]["color"])
    if small := comparison.auc(table, "dlrm_small_over", 1):
        reach = [[small.median - small.low], [small.high - small.median]]
        look = {"fmt": "D", "color": style.LOOKS["dlrm"]["color"], "mfc": "white", "ms": 4, "lw": 0.9}
        axes.errorbar(-0.35, small.median, reach, label=comparison.NAMES["dlrm_small_over"], **look)
    runs = records.accuracy(table)
    seeds = runs["seed"].nunique()
    drawn = "one seed: no spread" if seeds == 1 else f"points: {seeds} seeds; line: median; band: lowest to highest"
    axes.set_title(f"Measured here, data set {runs['data_name'].iloc[0]}\n{drawn}", loc="left", x=LEFT)
    axes.margins(y=0.2)
    return _faults(table) + _off_scale(table)


def _cross(axes: Axes, x: float, color: tuple) -> None:
    """At the lower edge: a run here gave no AUC."""
    axes.plot(x, 0.04, "x", color=color, ms=4, transform=axes.get_xaxis_transform())


def _faults(table: pd.DataFrame) -> list[str]:
    """Which runs of the study gave no AUC, and how they ended; models that end alike at some towers stand together."""
    without: dict[str, list[tuple[str, int]]] = {}
    for model, towers in comparison.grid(table):
        if fault := comparison.faults(table, model, towers):
            without.setdefault(fault, []).append((model, towers))
    words = [f"{', '.join(comparison.in_words(pairs))}: {fault}" for fault, pairs in without.items()]
    return [f"No AUC (×): {'; '.join(words)}"] if words else []


def _off_scale(table: pd.DataFrame) -> list[str]:
    """Ceiling and controls lie far from the models: said in words, so that the models' own spread stays visible."""
    best = records.ceiling(table)
    words = [] if best is None else [f"AUC ceiling {best:.4f}"]
    for model, name in (("logistic", "logistic regression"), ("prior", "constant")):
        control = comparison.auc(table, model, 1)
        words += [f"{name} {control.median:.4f}"] if control else []
    return [f"Not drawn: {', '.join(words)}"] if words else []


def _paper(axes: Axes, places: dict[int, int], families: list[str]) -> None:
    printed = paper_values.table("table4")
    for family in families:
        rows = printed[printed["model"].str.endswith(family)]
        x = [places[towers] for towers in rows["towers"]]
        look = style.LOOKS[family] | {"mfc": "white", "ms": 4, "linestyle": "--", "linewidth": 1, "capsize": 2}
        axes.errorbar(x, rows["auc"], rows["auc_std"], label=_label(family), **look)
    title = "Paper, table 4: Criteo 1TB, other sizes, other data\nmedian ± standard deviation"
    axes.set_title(title, loc="left", x=LEFT)
    axes.margins(y=0.15)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m paper_figures.auc_towers", description=__doc__.split("\n\n")[0])
    parser.add_argument("--records", type=Path, required=True, help="records.csv of a study")
    parser.add_argument("--out-dir", type=Path, required=True, help="folder for auc_towers.pdf and auc_towers.png")
    args = parser.parse_args()
    style.save(draw(records.read(args.records)), args.out_dir, "auc_towers")


if __name__ == "__main__":
    records.cli(main)
