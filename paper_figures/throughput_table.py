"""Every contestant of the emulated cluster by shape: speed, speedup, bytes, memory, and what came of failed ones.

Writes throughput.csv (columns with the unit in their name; those that begin with emulated_ are numbers of the emulated
cluster) and throughput.md (for reading).
"""

import argparse
from pathlib import Path

import pandas as pd

from paper_figures import comparison, emulated, records

COLLECTION = "-tower_collection"
READING = """\
Emulated. Samples/s of all ranks: median of the turns (lowest to highest). ms of an iteration: median and 90th
percentile. Speedup over the flat baseline of the family, turn by turn. MB across: what a host sends to others in an
iteration, by the formulas. Link/formula: bytes that a host's link carried, without its packets' headers / those of the
formulas, of the host where they differ most; a run where they differ by more than 3 %, and 64 kB of other talk, is
void. Predicted/measured: (ms of an iteration over open links + bytes of the host that sends most / the link's rate) /
ms measured: below 1 where sending costs more than its bytes, above 1 where it hides behind computing. Memory: the
largest of any rank, of all contestants of the job together. Dilation: by how much more of the machine's cores a rank
had where the links' rate was found. A contestant with bytes of another sends as much as that one, and computes what is
its own.
"""
HEADER = {
    "shape": "hosts x ranks",
    "contestant": "contestant",
    "samples": "samples/s",
    "ms": "ms (p90)",
    "speedup": "speedup over flat",
    "emulated_across_MB": "MB across",
    "emulated_link_over_formula": "link/formula",
    "emulated_predicted_over_measured": "predicted/measured",
    "emulated_memory_MiB": "memory (MiB)",
    "emulated_link_Mbit_per_s": "link (Mbit/s)",
    "emulated_dilation": "dilation",
    "status": "status",
}
DECIMALS = {
    "emulated_across_MB": 2,
    "emulated_link_over_formula": 3,
    "emulated_predicted_over_measured": 2,
    "emulated_memory_MiB": 0,
    "emulated_link_Mbit_per_s": 0,
    "emulated_dilation": 2,
}


def build(table: pd.DataFrame) -> pd.DataFrame:
    """A row a shape and contestant; a word where there is no number."""
    return pd.DataFrame([_row(table, row) for _, row in table.iterrows()])


def _row(table: pd.DataFrame, row: pd.Series) -> dict:
    ok = emulated.turns(row) is not None
    rates = comparison.spread(pd.Series(row["turn_samples_per_s"])) if ok else None
    ms = pd.Series(row["iteration_ms"]) if ok else None
    flat = emulated.family(row["model"])
    baseline = row["contestant"] == flat
    speedup = "baseline" if baseline else emulated.speedup(table, row["shape"], row["contestant"], flat)
    none = row["status"]
    made = {"hosts": row["shape"][0], "ranks_per_host": row["shape"][1], "contestant": row["contestant"]}
    made |= {f"emulated_samples_per_s_{k}": getattr(rates, k) if ok else none for k in ("median", "low", "high")}
    made |= {"emulated_ms_median": ms.median() if ok else none, "emulated_ms_p90": ms.quantile(0.9) if ok else none}
    made["speedup_over"] = "none" if baseline else flat
    for k in ("median", "low", "high"):
        made[f"emulated_speedup_{k}"] = speedup if isinstance(speedup, str) else getattr(speedup, k)
    made |= {
        "emulated_across_MB": row["predicted_across_bytes"] * row["ranks_per_host"] / 1e6 if ok else none,
        "emulated_link_over_formula": link_over_formula(row) if ok else none,
        "emulated_predicted_over_measured": predicted_over_measured(row) if ok else none,
        "emulated_memory_MiB": row["memory_max_MiB"] if ok else none,
        "emulated_link_Mbit_per_s": _or_word(row["link_bits_per_s"] / 1e6, "not shaped") if ok else none,
        "emulated_dilation": row["dilation"] if ok else none,
    }
    return made | {"status": row["status"], "reason": "none" if pd.isna(row["reason"]) else row["reason"]}


def _or_word(value: float, word: str) -> float | str:
    return word if pd.isna(value) else value


def link_over_formula(row: pd.Series) -> float | str:
    """Of the host where the bytes that its link sent differ most from the formulas; one host has no link."""
    pairs = zip(row["link_sent"] or [], row["link_predicted"] or [], strict=True)
    ratios = [sent / predicted for sent, predicted in pairs if predicted]
    return max(ratios, key=lambda ratio: abs(ratio - 1)) if ratios else "no link"


def predicted_over_measured(row: pd.Series) -> float | str:
    """(median ms over open links + bytes of the host that sends most / the link's rate) / median ms."""
    if not row["open_ms"] or not row["link_predicted"]:
        return "not timed"
    sending = 8e3 * max(row["link_predicted"]) / row["link_bits_per_s"]
    return (pd.Series(row["open_ms"]).median() + sending) / pd.Series(row["iteration_ms"]).median()


def collections(table: pd.DataFrame) -> list[str]:
    """A sentence for each tower contestant that also ran on TorchRec's EmbeddingTowerCollection."""
    sentences = []
    for _, row in table[table["contestant"].str.endswith(COLLECTION)].iterrows():
        own = row["contestant"].removesuffix(COLLECTION)
        ratio = emulated.speedup(table, row["shape"], own, row["contestant"])
        at = emulated.in_short(row["shape"])
        over = f"{emulated.name(own)} at {at}, over TorchRec's EmbeddingTowerCollection with the same modules"
        sentences.append(f"{over}: {emulated.times(ratio)} times the samples/s, turn by turn (emulated).")
    return sentences


def readable(built: pd.DataFrame) -> pd.DataFrame:
    """The built table as text, a row a contestant, the columns of HEADER."""
    rows = []
    for _, row in built.iterrows():
        text = {"shape": emulated.in_short((row["hosts"], row["ranks_per_host"]))}
        text["contestant"] = emulated.name(row["contestant"])
        text["samples"] = _range(row, "emulated_samples_per_s", 0)
        ms, p90 = row["emulated_ms_median"], row["emulated_ms_p90"]
        text["ms"] = ms if isinstance(ms, str) else f"{ms:.0f} ({p90:.0f})"
        text["speedup"] = _range(row, "emulated_speedup", 2)
        for name, decimals in DECIMALS.items():
            text[name] = row[name] if isinstance(row[name], str) else f"{row[name]:,.{decimals}f}"
        text["status"] = row["status"] if row["status"] == "ok" else f"{row['status']}: {row['reason']}"
        rows.append(text)
    return pd.DataFrame(rows)


def _range(row: pd.Series, name: str, decimals: int) -> str:
    median, low, high = (row[f"{name}_{part}"] for part in ("median", "low", "high"))
    if isinstance(median, str):
        return median
    return f"{median:,.{decimals}f} ({low:,.{decimals}f} to {high:,.{decimals}f})"


def markdown(table: pd.DataFrame) -> str:
    text = readable(build(table)).rename(columns=HEADER).to_markdown(index=False, disable_numparse=True)
    lines = "".join(f"- {sentence}\n" for sentence in collections(table))
    return f"{text}\n\n{READING}\n{emulated.about(table)}\n" + (f"\n{lines}" if lines else "")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m paper_figures.throughput_table", description=__doc__.split("\n\n")[0]
    )
    parser.add_argument("--records", type=Path, required=True, help="records.csv of a study")
    parser.add_argument("--out-dir", type=Path, required=True, help="folder for throughput.csv and throughput.md")
    args = parser.parse_args()
    table = emulated.read(args.records)
    records.write_text(args.out_dir / "throughput.csv", build(table).to_csv(index=False))
    records.write_text(args.out_dir / "throughput.md", markdown(table))


if __name__ == "__main__":
    records.cli(main)
