"""The paper's printed values (values.csv beside this file: one value a row, with its unit), by model and towers."""

import re
from functools import cache
from pathlib import Path

import pandas as pd

TABLES = ("table3", "table4", "table5")
METRICS = {"auc": "auc", "auc_std": "auc_std", "mflops_per_sample": "mflop_per_sample", "parameters": "parameters_G"}


@cache
def values() -> pd.DataFrame:
    """All values: item, panel, hardware, gpus, series, metric, unit, value, note."""
    return pd.read_csv(Path(__file__).with_name("values.csv"))


def table(item: str) -> pd.DataFrame:
    """Rows of table 3, 4 or 5 in the paper's order: model, towers, tower_dim (None: flat or pass-through), auc,
    auc_std, mflop_per_sample (MFLOP), parameters_G (10^9 parameters)."""
    rows = values()[values()["item"] == item]
    wide = rows[rows["metric"].isin(METRICS)].pivot(index="series", columns="metric", values="value")
    wide = wide.loc[rows["series"].drop_duplicates()].rename(columns=METRICS)
    names = [model(series) for series in wide.index]
    wide.insert(0, "model", [name for name, _ in names])
    wide.insert(1, "towers", [towers for _, towers in names])
    dims = rows[rows["metric"] == "tower_output_dim"].set_index("series")["value"]
    wide.insert(2, "tower_dim", [int(dims[s]) if s in dims else tower_dim(*model(s)) for s in wide.index])
    return wide.reset_index(drop=True)


def model(series: str) -> tuple[str, int]:
    """Our name and the towers of a series: "dmt_8t_dlrm_cr4" -> ("dmt_dlrm", 8), "dlrm_strong" -> ("dlrm", 1)."""
    match = re.fullmatch(r"dmt_(\d+)t_(dlrm|dcn)(_cr\d+)?", series)
    if match:
        return f"dmt_{match[2]}", int(match[1])
    return series.removesuffix("_strong"), 1


def tower_dim(name: str, towers: int) -> int | None:
    """D of table 4 (paper section 5.1): DLRM 128 with 16 towers and 64 else; DCN 128, 26 towers pass through."""
    if name == "dmt_dlrm":
        return 128 if towers == 16 else 64
    return 128 if name == "dmt_dcn" and towers < 26 else None
