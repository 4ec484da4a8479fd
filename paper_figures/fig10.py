"""Figure 10: speedup of DMT over the strong flat baseline by scale; emulated at the left, the paper's at the right.

Writes fig10.pdf and fig10.png. Samples a second, turn by turn: bars are medians, whiskers lowest to highest. Beside
DMT-DLRM stands the flat DLRM that has DMT's smaller over arch: what of the speedup that alone gives, without towers.
"""

import matplotlib.pyplot as plt
import pandas as pd

from paper_figures import auc_towers, bars, emulated, records, style


def series(table: pd.DataFrame, family: str) -> list[bars.Series]:
    """DMT over the flat model of the family, and the flat DLRM with DMT's over arch over the flat DLRM."""
    look = {"facecolor": style.LOOKS[family]["color"], "edgecolor": "black"}
    plain = {"facecolor": "white", "edgecolor": style.LOOKS[family]["color"], "hatch": "////"}
    name = auc_towers.FAMILIES[family]
    models = [(f"dmt_{family}", f"DMT-{name}", look)]
    if family == "dlrm":
        models.append(("dlrm_small_over", "flat, with DMT's over arch", plain))
    return [
        bars.Series(
            label, [emulated.speedup_of_model(table, shape, model, family) for shape in emulated.shapes(table)], look
        )
        for model, label, look in models
    ]


def draw(table: pd.DataFrame) -> plt.Figure:
    style.use()
    figure, axes = plt.subplots(
        2, 2, figsize=(style.WIDE, 4.4), sharey="row", layout="constrained", width_ratios=(2, 3)
    )
    for (left, right), (family, name) in zip(axes, auc_towers.FAMILIES.items(), strict=True):
        bars.draw(left, emulated.ticks(table), series(table, family))
        bars.paper(right, "fig10", family)
        left.set_title(f"{name}: emulated, over flat {name}", loc="left")
        right.set_title(f"{name}: paper, on GPUs", loc="left")
        left.set_ylabel("speedup")
        left.set_ylim(0, left.get_ylim()[1] * 1.2)
        for panel in (left, right):
            panel.legend(loc="upper left", ncols=3, handlelength=1.4, columnspacing=1, borderaxespad=0)
    axes[1][0].set_xlabel("ranks (hosts x ranks a host)")
    axes[1][1].set_xlabel("GPUs")
    return figure


if __name__ == "__main__":
    records.cli(lambda: emulated.draw_figure("fig10", __doc__, draw))
