"""One look for all figures: sizes in inches as printed, colours that colour-blind readers tell apart, how to save."""

import os
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

COLUMN = 3.4  # inches: a column of a two-column paper; text below stays readable at this width
# Okabe and Ito 2008; the marker says the same as the colour
LOOKS = {"dlrm": {"color": "#0072B2", "marker": "o"}, "dcn": {"color": "#D55E00", "marker": "s"}}
MORE_LOOKS = [
    {"color": "#009E73", "marker": "^"},
    {"color": "#CC79A7", "marker": "v"},
    {"color": "#E69F00", "marker": "P"},
    {"color": "#56B4E9", "marker": "X"},
]


def use() -> None:
    plt.rcParams.update(
        {
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
            "axes.axisbelow": True,
            "lines.linewidth": 1.3,
            "pdf.fonttype": 42,
            "svg.hashsalt": "dmt",
        }
    )


def save(figure: Figure, folder: Path, name: str) -> None:
    """name.pdf and name.png (300 dots an inch) in the folder, each whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    for kind in ("pdf", "png"):
        partial = folder / f".{name}.partial.{kind}"
        figure.savefig(partial, dpi=300, metadata={"CreationDate": None} if kind == "pdf" else None)
        os.replace(partial, folder / f"{name}.{kind}")
    plt.close(figure)
