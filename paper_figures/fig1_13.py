"""Figures 1 and 13: where an iteration's time goes, of flat DCN and DMT-DCN; emulated above, the paper's below.

Writes fig1_13.pdf and fig1_13.png: milliseconds at the left, shares of the iteration at the right. In the emulated bars
the wait for the slowest rank, which is not communication, stands apart (hatched) and is left out of the shares: ranks
share cores, and one of them is always behind. DLRM and SPTT stand beside where they were profiled.
"""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes

from paper_figures import comparison, emulated, paper_values, records, style

MODELS = ("dcn", "sptt_dcn", "dmt_dcn", "dlrm", "sptt_dlrm", "dmt_dlrm")
PARTS = {  # part: (label, look)
    "compute": ("compute", {"facecolor": "#0173b2"}),
    "embedding": ("exposed embedding communication", {"facecolor": "#de8f05", "hatch": "////"}),
    "dense": ("exposed dense synchronisation", {"facecolor": "#029e73", "hatch": "...."}),
    "others": ("others (paper: with dense synchronisation)", {"facecolor": "#cccccc"}),
    "wait": ("wait for the slowest rank", {"facecolor": "white", "hatch": "xxxx"}),
}
PAPER_PARTS = {
    "compute": "compute",
    "exposed_embedding_communication": "embedding",
    "others_and_exposed_dense_synchronization": "others",
}


def measured(table: pd.DataFrame) -> dict[str, dict[str, float]]:
    """Milliseconds by contestant and part, at the main shape; "wait" is taken out of the embeddings' time."""
    shape = emulated.main_shape(table)
    found = {}
    for model in MODELS:
        row = emulated.of(table, shape, emulated.contestant_of(table, shape, model))
        if row is None or pd.isna(row["breakdown_iteration_ms"]):
            continue
        parts = {part: row[f"breakdown_{part}_ms"] for part in ("compute", "embedding", "dense", "others")}
        parts["wait"] = row["breakdown_straggler_wait_ms"]
        parts["embedding"] -= parts["wait"]
        found[row["contestant"]] = parts
    return found


def printed() -> dict[str, dict[str, float]]:
    """Milliseconds of figure 13 by model and part."""
    rows = paper_values.values()
    rows = rows[rows["item"] == "fig13"]
    return {
        model: {PAPER_PARTS[row["metric"]]: row["value"] for _, row in of_model.iterrows()}
        for model, of_model in rows.groupby("series", sort=False)
    }


def printed_shares() -> dict[str, float]:
    """Percent of DCN's iteration, as figure 1 prints them, by part."""
    rows = paper_values.values()
    rows = rows[rows["item"] == "fig1"]
    return {PAPER_PARTS[row["series"]]: row["value"] for _, row in rows.iterrows()}


def shares(parts: dict[str, float]) -> dict[str, float]:
    """Percent of the iteration without the wait for the slowest rank."""
    own = {part: ms for part, ms in parts.items() if part != "wait"}
    return {part: 100 * ms / sum(own.values()) for part, ms in own.items()}


def draw(table: pd.DataFrame) -> plt.Figure:
    style.use()
    ours, papers = measured(table), printed()
    if not ours:
        return emulated.nothing("no contestant was profiled.")
    figure, axes = plt.subplots(
        2, 2, figsize=(style.WIDE, 1.75 + 0.24 * (len(ours) + len(papers))), sharey="row", layout="constrained",
        height_ratios=(len(ours), len(papers)), width_ratios=(3, 2),
    )  # fmt: skip
    names = {contestant: emulated.name(contestant) for contestant in ours}
    _stack(axes[0][0], names, ours)
    _stack(axes[0][1], names, {name: shares(parts) for name, parts in ours.items()}, share=True)
    names = {model: comparison.NAMES[model] for model in papers}
    paper_shares = {name: shares(parts) for name, parts in papers.items()} | {"dcn": printed_shares()}
    _stack(axes[1][0], names, papers)
    _stack(axes[1][1], names, paper_shares, share=True)
    hosts, ranks = emulated.main_shape(table)
    axes[0][0].set_title(f"Emulated: {hosts * ranks} ranks on {hosts} hosts, profiled", loc="left")
    axes[0][1].set_title("Emulated: shares without the wait", loc="left")
    axes[1][0].set_title("Paper, figure 13: 64 H100", loc="left")
    axes[1][1].set_title("Paper, figures 1 and 13: shares", loc="left")
    for left, right in axes:
        left.set_xlabel("ms an iteration")
        right.set_xlabel("% of an iteration")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=3, handlelength=1.5, columnspacing=1.2)
    return figure


def _stack(axes: Axes, names: dict[str, str], bars: dict[str, dict[str, float]], share: bool = False) -> None:
    """Bars from left to right, a part after the other; the first bar at the top."""
    for place, parts in enumerate(bars.values()):
        left = 0.0
        for part, (label, look) in PARTS.items():
            value = parts.get(part, 0)
            axes.barh(place, value, 0.72, left, label=label if place == 0 else "_", edgecolor="#333333", lw=0.5, **look)
            if share and value >= 9:
                text = {"fontsize": 6.5, "ha": "center", "va": "center"}
                box = {"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.9}
                axes.text(left + value / 2, place, f"{value:.1f}", bbox=box, **text)
            left += value
        if not share:
            axes.text(left, place, f" {left:.{1 if left < 100 else 0}f}", fontsize=6.5, va="center")
    axes.set_yticks(range(len(names)), names.values())
    axes.set_ylim(len(names) - 0.45, -0.55)
    axes.set_xlim(0, 100 if share else axes.get_xlim()[1] * 1.1)
    axes.grid(axis="x")
    axes.grid(False, axis="y")
    axes.set_axisbelow(True)


if __name__ == "__main__":
    records.cli(lambda: emulated.draw_figure("fig1_13", __doc__, draw))
