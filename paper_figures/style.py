"""One look for all figures: sizes in inches as printed, colours that colour-blind readers tell apart, how to save."""

import os
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
import seaborn as sns  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

COLUMN = 3.4  # inches: a column of a two-column paper; text below stays readable at this width
WIDE = 7.0  # inches: both columns
_BLUE, _ORANGE, _GREEN, _VERMILION, _PINK, _SKY = (sns.color_palette("colorblind")[i] for i in (0, 1, 2, 3, 4, 9))
# the marker says the same as the colour
LOOKS = {"dlrm": {"color": _BLUE, "marker": "o"}, "dcn": {"color": _VERMILION, "marker": "s"}}
MORE_LOOKS = [
    {"color": _GREEN, "marker": "^"},
    {"color": _PINK, "marker": "v"},
    {"color": _ORANGE, "marker": "P"},
    {"color": _SKY, "marker": "X"},
]


def use() -> None:
    sns.set_theme(
        context="paper",
        style="ticks",
        rc={
            "font.size": 8,
            "axes.titlesize": 8,
            "axes.labelsize": 8,
            "xtick.labelsize": 7.5,
            "ytick.labelsize": 7.5,
            "legend.fontsize": 7,
            "legend.frameon": False,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "axes.grid.axis": "y",
            "grid.color": "#dddddd",
            "grid.linewidth": 0.6,
            "lines.linewidth": 1.3,
            "pdf.fonttype": 42,
            "svg.hashsalt": "dmt",
        },
    )


def save(figure: Figure, folder: Path, name: str) -> None:
    """name.pdf and name.png (300 dots an inch) in the folder, each whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    for kind in ("pdf", "png"):
        partial = folder / f".{name}.partial.{kind}"
        figure.savefig(partial, dpi=300, metadata={"CreationDate": None} if kind == "pdf" else None)
        os.replace(partial, folder / f"{name}.{kind}")
    plt.close(figure)
