"""Table 4: AUC, operations and parameters by number of towers, measured here beside the paper's values.

Writes table4.csv (a value a column; column names begin with measured_ or paper_) and table4.md (for reading; without
the parameters at the paper's sizes, which are in the table of paper_figures.complexity).
"""

import argparse
from pathlib import Path

import pandas as pd

from paper_figures import comparison, paper_values, records

READING = """\
Measured: test AUC, median ± standard deviation over seeds; differences (Δ) to the flat model and to the flat model
with the same over arch are taken seed by seed (median, lowest to highest, 1 is 0.0001). MFLOP a sample: forward and
backward, counted by PyTorch's profiler; at the study's sizes, as the parameters, and at the paper's, where the paper's
own value stands beside it. Paper: Criteo 1TB, embeddings of 128, at least 9 runs: its AUC and a measured AUC belong to
different data and may not be compared. Most of DMT-DLRM's saving in operations comes from its smaller over arch:
compare it with the flat DLRM that has the same over arch.
"""
HEADER = {
    "model": "model",
    "towers": "towers",
    "measured_auc": "AUC, measured",
    "measured_seeds": "seeds",
    "measured_difference_to_flat": "Δ flat, measured",
    "measured_difference_to_same_over_arch": "Δ same over arch, measured",
    "measured_mflop_study": "MFLOP, measured",
    "measured_parameters_study": "parameters, measured",
    "measured_mflop_paper_sizes": "at paper's sizes, measured",
    "paper_mflop": "MFLOP, paper",
    "paper_auc": "AUC, paper",
}
DECIMALS = {
    "measured_mflop_study": 3,
    "measured_parameters_study": 0,
    "measured_mflop_paper_sizes": 2,
    "paper_mflop": 2,
}


def build(table: pd.DataFrame) -> pd.DataFrame:
    """One row for each model and number of towers of the study, with the paper's values where it has that row."""
    printed = paper_values.table("table4").rename(columns={"mflop_per_sample": "mflop"}).set_index(["model", "towers"])
    rows = [_row(table, printed, model, towers) for model, towers in comparison.grid(table)]
    best = records.ceiling(table)
    if best is not None:
        rows.append(dict.fromkeys(rows[0], "n/a") | {"model": "ceiling", "measured_auc_median": best})
    return pd.DataFrame(rows)


def paper_only(built: pd.DataFrame) -> str:
    """A sentence that names the rows of the paper's table 4 which the study has not; "" where it has them all."""
    own = set(zip(built["model"], built["towers"], strict=True))
    printed = paper_values.table("table4")
    others = comparison.arranged(set(zip(printed["model"], printed["towers"], strict=True)) - own)
    return f"In the paper's table 4, not in this study: {'; '.join(comparison.in_words(others))}." if others else ""


def _row(table: pd.DataFrame, printed: pd.DataFrame, model: str, towers: int) -> dict:
    auc = comparison.auc(table, model, towers)
    faults = comparison.faults(table, model, towers)
    row = {"model": model, "towers": towers, "measured_seeds": auc.n if auc else 0, "measured_faults": faults or "none"}
    row |= _numbers("measured_auc", auc, faults)
    for name, flats in (("flat", comparison.FLAT), ("same_over_arch", comparison.SAME_OVER_ARCH)):
        delta = comparison.difference(table, model, towers, flats[model]) if model in flats else None
        row |= _numbers(f"measured_difference_to_{name}", delta, "no shared seed" if model in flats else "n/a")
    runs = comparison.runs_of(table, model, towers).dropna(subset=["mflop_per_sample"])
    at_paper_sizes = _at_paper_sizes(table, model, towers)
    for name, found in (("study", runs), ("paper_sizes", at_paper_sizes)):
        for column, short in (("mflop_per_sample", "mflop"), ("parameters", "parameters")):
            row[f"measured_{short}_{name}"] = found.iloc[0][column] if len(found) else "not counted"
    known = (model, towers) in printed.index
    for column in ("auc", "auc_std", "mflop", "parameters_G"):
        row[f"paper_{column}"] = printed.loc[(model, towers), column] if known else "not in paper"
    return row


def _numbers(name: str, values: comparison.Spread | None, otherwise: str) -> dict:
    columns = ("median", "std", "low", "high")
    if values is None:
        return {f"{name}_{column}": otherwise for column in columns}
    row = {f"{name}_{column}": getattr(values, column) for column in columns}
    return row | ({f"{name}_std": "one seed"} if values.std is None else {})


def _at_paper_sizes(table: pd.DataFrame, model: str, towers: int) -> pd.DataFrame:
    counted = records.complexity(table)
    found = counted[(counted["model"] == model) & (counted["towers"] == towers) & (counted["status"] == "ok")]
    dim = paper_values.tower_dim(model, towers)
    return found if dim is None else found[found["tower_dim"] == dim]  # table 5 has other D for the same towers


def readable(table: pd.DataFrame) -> pd.DataFrame:
    """The built table as text, a row a model, the columns of HEADER."""
    rows = []
    for _, row in table.iterrows():
        towers = "flat" if row["towers"] == 1 else str(row["towers"])
        auc = _plus_minus(row["measured_auc_median"], row["measured_auc_std"])
        seeds = str(row["measured_seeds"] or "none")
        if row["measured_seeds"] and row["measured_faults"] not in ("none", "n/a"):
            seeds = f"{seeds}; {row['measured_faults']}"
        text = {"model": _name(row["model"]), "towers": towers, "measured_auc": auc, "measured_seeds": seeds}
        for name in ("measured_difference_to_flat", "measured_difference_to_same_over_arch"):
            text[name] = _range(row, name)
        text |= {name: _number(row[name], decimals) for name, decimals in DECIMALS.items()}
        rows.append(text | {"paper_auc": _plus_minus(row["paper_auc"], row["paper_auc_std"])})
    return pd.DataFrame(rows)


def _name(model: str) -> str:
    return "ceiling (true probability)" if model == "ceiling" else comparison.NAMES.get(model, model)


def _number(value, decimals: int) -> str:
    if isinstance(value, str):
        return value
    if value == 0:
        return "0"
    smallest = 10**-decimals
    return f"{value:,.{decimals}f}" if value >= smallest else f"< {smallest}"


def _plus_minus(median, std) -> str:
    if isinstance(median, str):
        return median
    if isinstance(std, str):
        return f"{median:.4f}" if std == "n/a" else f"{median:.4f} ({std})"
    return f"{median:.4f} ± {std:.4f}"


def _range(row: pd.Series, name: str) -> str:
    median, low, high = (row[f"{name}_{part}"] for part in ("median", "low", "high"))
    return median if isinstance(median, str) else f"{median:+.1f} ({low:+.1f} to {high:+.1f})"


def markdown(table: pd.DataFrame) -> str:
    study = readable(table).rename(columns=HEADER)
    others = paper_only(table)
    return f"{study.to_markdown(index=False, disable_numparse=True)}\n\n{READING}" + (f"\n{others}\n" if others else "")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m paper_figures.table4", description=__doc__.split("\n\n")[0])
    parser.add_argument("--records", type=Path, required=True, help="records.csv of a study")
    parser.add_argument("--out-dir", type=Path, required=True, help="folder for table4.csv and table4.md")
    args = parser.parse_args()
    table = build(records.read(args.records))
    records.write_text(args.out_dir / "table4.csv", table.to_csv(index=False))
    records.write_text(args.out_dir / "table4.md", markdown(table))


if __name__ == "__main__":
    records.cli(main)
