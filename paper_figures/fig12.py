"""Figure 12: speedup of DMT-DLRM over SPTT-DLRM by compression ratio; emulated at the left, the paper's at the right.

Writes fig12.pdf and fig12.png. Samples a second, turn by turn: bars are medians, whiskers lowest to highest. The
compression ratio is bytes into the tower modules / bytes out of them, set by their width D.
"""

import matplotlib.pyplot as plt
import pandas as pd

from paper_figures import bars, emulated, records, style

OVER = "sptt_dlrm"
PAPER = {f"cr{ratio}_over_sptt": str(ratio) for ratio in (2, 4, 8, 16)}


def contestants(table: pd.DataFrame, shape: emulated.Shape) -> dict[str, str]:
    """DMT-DLRM's contestants of that shape by compression ratio, rising; failed ones, which have none, by D."""
    rows = table[(table["shape"] == shape) & table["contestant"].str.fullmatch(r"dmt_dlrm(-D\d+)?")]
    rows = rows.sort_values("compression_ratio").sort_values("status", key=lambda s: s != "ok", kind="stable")
    return {
        f"{row['compression_ratio']:g}" if row["status"] == "ok" else f"D = {row['tower_dim']:g}": row["contestant"]
        for _, row in rows.iterrows()
    }


def draw(table: pd.DataFrame) -> plt.Figure:
    """At the shape with most compression ratios."""
    style.use()
    shape = max(emulated.shapes(table), key=lambda shape: (len(contestants(table, shape)), shape))
    names = contestants(table, shape)
    if not names:
        return emulated.nothing("DMT-DLRM was not run.")
    values = [emulated.speedup(table, shape, name, OVER) for name in names.values()]
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(style.WIDE, 2.6), sharey=True, layout="constrained", width_ratios=(2, 3)
    )
    look = {"facecolor": style.LOOKS["dlrm"]["color"], "edgecolor": "black"}
    bars.draw(left, list(names), [bars.Series("DMT-DLRM", values, look)])
    ranks = shape[0] * shape[1]
    left.set_title(f"Emulated: {ranks} ranks, {shape[0]} towers", loc="left")
    bars.paper(right, "fig12", "dlrm", by="series", names=PAPER)
    right.set_title("Paper: 64 GPUs, 8 towers", loc="left")
    right.legend(loc="upper left", ncols=3, handlelength=1.4, borderaxespad=0)
    left.set_ylim(0, left.get_ylim()[1] * 1.12)
    left.set_ylabel("speedup of DMT-DLRM over SPTT")
    for panel in (left, right):
        panel.set_xlabel("compression ratio")
    return figure


if __name__ == "__main__":
    records.cli(lambda: emulated.draw_figure("fig12", __doc__, draw))
