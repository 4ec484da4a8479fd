"""Figure 11: tower modules over SPTT by scale, and SPTT alone over the flat baseline; emulated, then the paper's.

Writes fig11.pdf and fig11.png. Samples a second, turn by turn: bars are medians, whiskers lowest to highest.
"""

import matplotlib.pyplot as plt
import pandas as pd

from paper_figures import auc_towers, bars, emulated, records, style


def series(table: pd.DataFrame, family: str) -> list[bars.Series]:
    """SPTT over the flat model of the family, DMT (tower modules) over SPTT."""
    color = style.LOOKS[family]["color"]
    plain = {"facecolor": "white", "edgecolor": color, "hatch": "////"}
    pairs = [
        (f"sptt_{family}", family, "SPTT over flat", plain),
        (f"dmt_{family}", f"sptt_{family}", "tower modules over SPTT", {"facecolor": color, "edgecolor": "black"}),
    ]
    shapes = emulated.shapes(table)
    return [
        bars.Series(label, [emulated.speedup_of_model(table, shape, model, over) for shape in shapes], look)
        for model, over, label, look in pairs
    ]


def draw(table: pd.DataFrame) -> plt.Figure:
    style.use()
    figure, axes = plt.subplots(
        1, 3, figsize=(style.WIDE, 2.7), sharey=True, layout="constrained", width_ratios=(2, 2, 3)
    )
    for panel, (family, name) in zip(axes, auc_towers.FAMILIES.items(), strict=False):
        bars.draw(panel, emulated.ticks(table), series(table, family))
        panel.set_title(f"{name}: emulated", loc="left")
        panel.set_xlabel("ranks (hosts x ranks a host)")
    bars.paper(axes[2], "fig11", "dlrm")
    axes[2].set_title("Paper: DLRM, tower modules over SPTT", loc="left")
    axes[2].set_xlabel("GPUs")
    axes[0].set_ylabel("speedup")
    axes[0].set_ylim(0, axes[0].get_ylim()[1] * 1.25)
    for panel in axes:
        panel.legend(loc="upper left", handlelength=1.4, borderaxespad=0, labelspacing=0.3)
    return figure


if __name__ == "__main__":
    records.cli(lambda: emulated.draw_figure("fig11", __doc__, draw))
