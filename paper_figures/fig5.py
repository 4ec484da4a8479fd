"""Figure 5: bus bandwidth of AlltoAll and AllReduce against scale; emulated at the left and middle, the paper's right.

Writes fig5.pdf and fig5.png from collectives.csv (bench/gather.py). Left: MB/s in the formulas of nccl-tests, largest
size. Middle: what hosts send to each other / what their links carry in that time, whatever their rate is at each shape.
One host uses no link.
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.ticker import LogLocator

from paper_figures import paper_values, records, style

NEEDED = ("ranks", "ranks_per_host", "hosts", "link_bits_per_s", "kind", "size", "busbw_MB_per_s", "of_link")
KINDS = {  # kind: (label, look, the paper's series)
    "flat": ("AlltoAll", style.LOOKS["dcn"], "alltoall_256MB"),
    "peer": ("AlltoAll of peers", style.MORE_LOOKS[0], None),
    "allreduce": ("AllReduce", style.LOOKS["dlrm"], "allreduce_64MB"),
}


def read(path: Path) -> pd.DataFrame:
    """Rows of the largest size of each kind and shape, fewest ranks first.

    Raises:
        InputError: no such file, or columns missing.
    """
    table = records.read_table(path, NEEDED)
    return table.sort_values(["ranks", "hosts", "size"]).drop_duplicates(["kind", "ranks", "hosts"], keep="last")


def draw(table: pd.DataFrame) -> plt.Figure:
    style.use()
    figure, (speed, share, paper) = plt.subplots(1, 3, figsize=(style.WIDE, 2.7), layout="constrained")
    rows = paper_values.values()
    rows = rows[rows["item"] == "fig5"]
    for kind, (label, look, series) in KINDS.items():
        own = table[table["kind"] == kind]
        speed.plot(own["ranks"], own["busbw_MB_per_s"], label=label, markersize=4, **look)
        own = own[own["hosts"] > 1]
        share.plot(own["ranks"], 100 * own["of_link"], label=label, markersize=4, **look)
        if series:
            printed = rows[rows["series"] == series]
            text = f"{label}, {series.split('_')[1]}"
            looks = look | {"markerfacecolor": "white", "linestyle": "--", "markersize": 4}
            paper.plot(printed["gpus"].astype(int), printed["value"], label=text, **looks)
    sizes = " or ".join(f"{size / 2**20:.3g} MiB" for size in sorted(table["size"].unique()))
    slower = table[table["hosts"] > 1]["link_bits_per_s"].nunique() > 1
    speed.set_title(f"Emulated, {sizes} a rank" + ("\n(links slower with scale)" if slower else ""), loc="left")
    share.set_title("Emulated: use of the links", loc="left")
    paper.set_title("Paper: A100", loc="left")
    speed.set_ylabel("bus bandwidth (MB/s)")
    share.set_ylabel("% of the link's rate")
    paper.set_ylabel("bus bandwidth (GB/s)")
    share.set_ylim(0, 115)
    for panel in (speed, paper):
        panel.set_yscale("log")
        panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        panel.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    shapes = table.drop_duplicates("ranks")
    for panel, ranks in ((speed, shapes), (share, shapes[shapes["hosts"] > 1])):
        panel.set_xscale("log", base=2)
        names = [
            f"{r}\n({h}x{n})" for r, h, n in zip(ranks["ranks"], ranks["hosts"], ranks["ranks_per_host"], strict=True)
        ]
        panel.set_xticks(list(ranks["ranks"]), names)
        panel.set_xlabel("ranks (hosts x ranks a host)")
    paper.set_xscale("log", base=2)
    paper.set_xticks(sorted(rows["gpus"].astype(int).unique()))
    paper.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    paper.set_xlabel("GPUs")
    for panel in (speed, share, paper):
        panel.minorticks_off()
    share.legend(loc="lower left", handlelength=1.8, labelspacing=0.3)
    paper.legend(loc="center right", bbox_to_anchor=(1, 0.5), handlelength=1.8, labelspacing=0.3)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m paper_figures.fig5", description=__doc__.split("\n\n")[0])
    parser.add_argument("--collectives", type=Path, required=True, help="collectives.csv of a study")
    parser.add_argument("--out-dir", type=Path, required=True, help="folder for fig5.pdf and fig5.png")
    args = parser.parse_args()
    style.save(draw(read(args.collectives)), args.out_dir, "fig5")


if __name__ == "__main__":
    records.cli(main)
