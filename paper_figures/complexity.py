"""Operations and parameters at the paper's sizes, counted here, beside what tables 3, 4 and 5 print.

Writes complexity.csv and complexity.md. MFLOP a sample: forward and backward, PyTorch profiler.
"""

import argparse
from pathlib import Path

import pandas as pd

from paper_figures import comparison, paper_values, records


def build(table: pd.DataFrame) -> pd.DataFrame:
    """A row for each row of the paper's tables 3, 4, 5: MFLOP and parameters (10^9) measured, paper, difference."""
    counted = records.complexity(table)
    rows = []
    for item in paper_values.TABLES:
        for printed in paper_values.table(item).itertuples():
            dim = None if pd.isna(printed.tower_dim) else int(printed.tower_dim)
            found = counted[(counted["model"] == printed.model) & (counted["status"] == "ok")]
            if printed.model.startswith("dmt_"):  # towers of SPTT and of flat models do not change the count
                found = found[found["towers"] == printed.towers]
            if dim is not None:
                found = found[found["tower_dim"] == dim]
            row = {"table": int(item[-1]), "model": printed.model, "towers": printed.towers, "tower_dim": dim or "n/a"}
            for name, column, scale in (("mflop", "mflop_per_sample", 1), ("parameters_G", "parameters", 1e-9)):
                paper = printed.mflop_per_sample if name == "mflop" else printed.parameters_G
                measured = float(found.iloc[0][column]) * scale if len(found) else None
                row[f"measured_{name}"] = "not counted" if measured is None else round(measured, 3)
                row[f"paper_{name}"] = paper
                row[f"difference_{name}"] = "not counted" if measured is None else round(measured - paper, 3)
            rows.append(row)
    return pd.DataFrame(rows)


def readable(table: pd.DataFrame) -> pd.DataFrame:
    text = table.copy().astype(object)
    text["model"] = [comparison.NAMES.get(name, name) for name in text["model"]]
    names_towers = zip(table["model"], table["towers"], strict=True)  # the paper gives SPTT no number of towers
    text["towers"] = ["any" if "sptt" in m else "flat" if t == 1 else str(t) for m, t in names_towers]
    for name in ("measured", "paper", "difference"):
        for what, digits in (("mflop", 3 if name != "paper" else 2), ("parameters_G", 3 if name != "paper" else 2)):
            sign = "+" if name == "difference" else ""
            column = f"{name}_{what}"
            text[column] = [v if isinstance(v, str) else f"{v:{sign}.{digits}f}" for v in text[column]]
    units = {"mflop": "MFLOP", "parameters_G": "10^9 parameters"}
    names = {
        f"{name}_{what}": f"{units[what]}, {kind}"
        for name, kind in (("measured", "measured"), ("paper", "paper"), ("difference", "measured minus paper"))
        for what in units
    }
    return text.rename(columns=names | {"table": "paper's table", "tower_dim": "D"})


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m paper_figures.complexity", description=__doc__.split("\n\n")[0])
    parser.add_argument("--records", type=Path, required=True, help="records.csv of a study")
    parser.add_argument("--out-dir", type=Path, required=True, help="folder for complexity.csv and complexity.md")
    args = parser.parse_args()
    table = build(records.read(args.records))
    records.write_text(args.out_dir / "complexity.csv", table.to_csv(index=False))
    text = readable(table).to_markdown(index=False, disable_numparse=True)
    records.write_text(args.out_dir / "complexity.md", f"{text}\n")


if __name__ == "__main__":
    records.cli(main)
