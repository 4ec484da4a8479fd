"""Throughput on an emulated cluster (bench.throughput, by way of bench/gather.py) as its tables and figures want it.

A contestant is the record's run without its shape: "dmt_dlrm-D8", "dcn-table_row_wise", "sptt_dcn+dense=dmt_dcn". A
shape is (hosts, ranks a host). All contestants of a shape ran in one job, in turn, so they are compared turn by turn.
"""

import argparse
import json
import re
import textwrap
from collections.abc import Callable
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from paper_figures import comparison, records, style

Shape = tuple[int, int]  # (hosts, ranks a host)
LISTS = ("turn_samples_per_s", "iteration_ms", "open_ms", "parts_of", "link_sent", "link_predicted")
PARTS = ("iteration", "compute", "embedding", "dense", "others", "straggler_wait")
NEEDED = (
    *("provenance", "compression_ratio", "ranks", "ranks_per_host", "hosts", "hardware"),
    *("local_batch", "link_bits_per_s", "dilation", "memory_max_MiB", "predicted_across_bytes"),
    *LISTS,
    *(f"breakdown_{part}_ms" for part in PARTS),
)
PARTS_SENT = {"embeddings": "embedding bytes", "dense": "dense gradients' bytes"}
SHARDINGS = {"table_row_wise": "table-row-wise", "tower_collection": "EmbeddingTowerCollection"}


def read(path: Path) -> pd.DataFrame:
    """Rows of an emulated cluster out of a study's records.csv.

    Raises:
        InputError: as records.read has it; columns missing; no such rows.
    """
    table = rows(records.read(path))
    if table.empty:
        raise records.InputError(
            f"{path} holds no throughput of an emulated cluster: gather records of bench.throughput"
        )
    return table


def rows(table: pd.DataFrame) -> pd.DataFrame:
    """Throughput of an emulated cluster, arranged by shape, family and contestant, with `contestant` and `shape`.

    Columns of LISTS are lists and dicts; None where a record has none.

    Raises:
        InputError: columns missing.
    """
    if not (table["kind"] == "throughput").any():
        return table.iloc[:0]
    missing = [name for name in NEEDED if name not in table]
    if missing:
        raise records.InputError(
            f"throughput records without a column {', '.join(missing)}: write them again with `python -m bench.gather`"
        )
    found = table[(table["kind"] == "throughput") & (table["provenance"] == "emulated")].copy()
    for name in LISTS:
        found[name] = pd.Series(
            [json.loads(v) if isinstance(v, str) else None for v in found[name]], found.index, object
        )
    found["shape"] = list(zip(found["hosts"].astype(int), found["ranks_per_host"].astype(int), strict=True))
    found["contestant"] = [re.sub(r"-\d+x\d+$", "", run) for run in found["run"]]
    place = [
        (h * n, h, *_order(c, m))
        for (h, n), c, m in zip(found["shape"], found["contestant"], found["model"], strict=True)
    ]
    return found.assign(place=place).sort_values("place").drop(columns="place").reset_index(drop=True)


def _order(contestant: str, model: str) -> tuple:
    names = list(comparison.NAMES)
    dim = re.search(r"-D(\d+)", contestant)
    place = names.index(model) if model in names else len(names)
    kind = 2 if "+" in contestant else any(contestant.endswith(sharding) for sharding in SHARDINGS)
    return family(model), kind, place, -int(dim[1]) if dim else 0, contestant


def family(model: str) -> str:
    """The flat baseline that a model is compared with: "dlrm" of dmt_dlrm, sptt_dlrm, dlrm_small_over and dlrm."""
    return comparison.FLAT.get(model, model)


def shapes(table: pd.DataFrame) -> list[Shape]:
    """Fewest ranks first."""
    return list(dict.fromkeys(table["shape"]))


def main_shape(table: pd.DataFrame) -> Shape | None:
    """The largest shape with breakdowns."""
    return max(table["shape"][table["breakdown_iteration_ms"].notna()], default=None)


def of(table: pd.DataFrame, shape: Shape, contestant: str) -> pd.Series | None:
    found = table[(table["shape"] == shape) & (table["contestant"] == contestant)]
    return found.iloc[0] if len(found) else None


def contestant_of(table: pd.DataFrame, shape: Shape, model: str) -> str:
    """A model's contestant with the sharding that is its first: of several widths D the widest, the paper's choice."""
    names = table["contestant"][table["shape"] == shape]
    return next((name for name in names if re.fullmatch(rf"{model}(-D\d+)?", name)), model)


def turns(row: pd.Series | None) -> list[float] | None:
    """Samples a second of all ranks, one a turn; None where a contestant has none."""
    return None if row is None or row["status"] != "ok" else row["turn_samples_per_s"]


def speedup(table: pd.DataFrame, shape: Shape, contestant: str, over: str) -> comparison.Spread | str:
    """Samples a second over those of another, turn by turn; in a word, why there is none ("failed", "not run").

    Raises:
        InputError: they ran different numbers of turns.
    """
    pair = []
    for name in (contestant, over):
        row = of(table, shape, name)
        if row is None:
            return "not run"
        if (own := turns(row)) is None:
            return row["status"]
        pair.append(own)
    if len(pair[0]) != len(pair[1]):
        raise records.InputError(
            f"{contestant} and {over} at {in_short(shape)} ran {len(pair[0])} and {len(pair[1])} turns: time them "
            "again, in one job"
        )
    return comparison.spread(pd.Series([own / other for own, other in zip(*pair, strict=True)]))


def speedup_of_model(table: pd.DataFrame, shape: Shape, model: str, over: str) -> comparison.Spread | str:
    """`speedup` of the first contestant of one model over that of another."""
    return speedup(table, shape, contestant_of(table, shape, model), contestant_of(table, shape, over))


def turns_ms(row: pd.Series) -> pd.Series:
    """Milliseconds of an iteration, one a turn: the global batch / samples a second."""
    return pd.Series([1e3 * row["ranks"] * row["local_batch"] / rate for rate in row["turn_samples_per_s"]])


def name(contestant: str) -> str:
    """As a reader says it."""
    operations, *others = contestant.split("+")
    model, _, rest = operations.partition("-")
    text = comparison.NAMES.get(model, model)
    for part in filter(None, rest.split("-")):
        text += f" (D = {part[1:]})" if re.fullmatch(r"D\d+", part) else f", {SHARDINGS.get(part, part)}"
    whose = dict(other.split("=") for other in others)
    if len(whose) > 1 and len(set(whose.values())) == 1:
        return f"{text} with all bytes of {name(whose['dense'])}"
    words = [f"{PARTS_SENT[part]} of {name(other)}" for part, other in whose.items()]
    return f"{text} with {' and '.join(words)}" if words else text


def in_short(shape: Shape) -> str:
    """ "4x2": hosts x ranks a host."""
    return f"{shape[0]}x{shape[1]}"


def ticks(table: pd.DataFrame) -> list[str]:
    """For each shape, what stands below it on an axis of scale."""
    return [f"{hosts * ranks}\n({in_short((hosts, ranks))})" for hosts, ranks in shapes(table)]


def times(value: comparison.Spread | str) -> str:
    """ "1.52 (1.42 to 1.80)", or the word."""
    return value if isinstance(value, str) else f"{value.median:.2f} ({value.low:.2f} to {value.high:.2f})"


def about(table: pd.DataFrame) -> str:
    """Where the numbers come from, and what time dilation is."""
    cores = sorted({json.loads(text)["cores"] for text in table["hardware"]})
    text = (
        f"Emulated: all ranks share the {' or '.join(map(str, cores))} cores of one machine, where each would have a "
        "GPU of its own, and hosts talk over links whose rate is shaped. No number here is a measurement of GPUs: read "
        "ratios, not times."
    )
    rates = table.dropna(subset=["link_bits_per_s"]).drop_duplicates("shape")
    each = [
        f"{row['link_bits_per_s'] / 1e6:.0f} Mbit/s at {in_short(row['shape'])} (dilation {row['dilation']:g})"
        for _, row in rates.iterrows()
    ]
    if not each:
        return f"{text} Links could not be shaped here."
    return (
        f"{text} A link carries, each way, {', '.join(each)} (hosts x ranks a host): where a rank has a smaller share "
        "of the cores than where the rate was found, links are slower by the same factor (time dilation), so that "
        "computing and sending keep their ratio; times at different shapes may therefore not be compared."
    )


def nothing(sentence: str) -> Figure:
    """Stands in for a figure whose contestants did not run, or failed: it says so."""
    style.use()
    figure = Figure(figsize=(style.COLUMN, 0.9))
    figure.text(0.02, 0.5, textwrap.fill(f"Emulated, nothing to draw: {sentence}", 56), fontsize=8, va="center")
    return figure


def draw_figure(name: str, doc: str, draw: Callable[[pd.DataFrame], Figure]) -> None:
    """The command line of a figure: `draw` takes the rows of an emulated cluster."""
    parser = argparse.ArgumentParser(prog=f"python -m paper_figures.{name}", description=doc.split("\n\n")[0])
    parser.add_argument("--records", type=Path, required=True, help="records.csv of a study")
    parser.add_argument("--out-dir", type=Path, required=True, help=f"folder for {name}.pdf and {name}.png")
    args = parser.parse_args()
    style.save(draw(read(args.records)), args.out_dir, name)
