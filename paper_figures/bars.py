"""Grouped bars of speedups: emulated ones in colour with whiskers, the paper's in grey, each in panels of their own."""

from dataclasses import dataclass

from matplotlib.axes import Axes

from paper_figures import paper_values
from paper_figures.comparison import Spread

PAPER = {  # by hardware: a grey, and hatches for those who cannot tell greys apart
    "V100": {"facecolor": "#e6e6e6", "edgecolor": "#444444", "hatch": ""},
    "A100": {"facecolor": "#bdbdbd", "edgecolor": "#444444", "hatch": "////"},
    "H100": {"facecolor": "#737373", "edgecolor": "#222222", "hatch": ".."},
}


@dataclass(frozen=True)
class Series:
    """One bar in each group; a word stands where there is no number. look: of matplotlib's bar."""

    label: str
    values: list[Spread | str]
    look: dict


def draw(axes: Axes, groups: list[str], series: list[Series], written: bool = True) -> None:
    """Bars reach to medians, whiskers from the lowest to the highest; `written`: with the median above each bar."""
    width = 0.8 / len(series)
    for number, one in enumerate(series):
        for place, value in enumerate(one.values):
            x = place + width * (number - (len(series) - 1) / 2)
            label = one.label if place == 0 else "_"
            if isinstance(value, str):
                axes.bar(x, 0, width, label=label, linewidth=0.6, **one.look)
                axes.text(x, 0.03, value, rotation=90, fontsize=6.5, ha="center", va="bottom")
                continue
            axes.bar(x, value.median, width * 0.94, label=label, linewidth=0.6, **one.look)
            if value.n > 1:
                reach = [[value.median - value.low], [value.high - value.median]]
                axes.errorbar(x, value.median, reach, color="black", linewidth=0.8, capsize=1.8, capthick=0.8)
            if written:
                box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 0.5}
                axes.text(x, value.high + 0.04, f"{value.median:.2f}", fontsize=6.5, ha="center", va="bottom", bbox=box)
    axes.axhline(1, color="black", linewidth=0.8, linestyle=(0, (4, 2)))
    axes.set_xticks(range(len(groups)), groups)
    axes.set_axisbelow(True)


def paper(axes: Axes, item: str, panel: str, by: str = "gpus", names: dict | None = None) -> None:
    """A panel of the paper's speedups (values.csv), by hardware.

    Args:
        by: the column whose values are the groups, in the paper's order.
        names: of groups, where the column's values are not what stands below them.
    """
    rows = paper_values.values()
    rows = rows[(rows["item"] == item) & (rows["panel"] == panel)].astype({"gpus": int})
    groups = list(rows[by].drop_duplicates())
    series = []
    for hardware, look in PAPER.items():
        values = rows[rows["hardware"] == hardware].set_index(by)["value"]
        own = [Spread(values[g], None, values[g], values[g], 1) if g in values else "not in paper" for g in groups]
        series.append(Series(hardware, own, look))
    draw(axes, [(names or {}).get(group, str(group)) for group in groups], series, written=False)
