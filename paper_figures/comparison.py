"""What a study says of each model and number of towers: how its runs ended, AUC over seeds, and the paired difference.

AUC is the exact AUC over the whole test split. Seeds are shared by all models, so differences are taken seed by seed.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import pandas as pd

from paper_figures import records

NAMES = {
    "dlrm": "DLRM (flat)",
    "dlrm_small_over": "DLRM (flat) with DMT's over arch",
    "dmt_dlrm": "DMT-DLRM",
    "sptt_dlrm": "SPTT-DLRM",
    "dcn": "DCN (flat)",
    "dmt_dcn": "DMT-DCN",
    "sptt_dcn": "SPTT-DCN",
    "logistic": "logistic (control)",
    "prior": "constant (control)",
}
FLAT = {"dlrm_small_over": "dlrm", "dmt_dlrm": "dlrm", "sptt_dlrm": "dlrm", "dmt_dcn": "dcn", "sptt_dcn": "dcn"}
SAME_OVER_ARCH = {"dmt_dlrm": "dlrm_small_over"}  # most of the saved operations come from it
CONTROLS = ("logistic", "prior")


@dataclass(frozen=True)
class Spread:
    """Median, sample standard deviation (None for one value), range and number of values."""

    median: float
    std: float | None
    low: float
    high: float
    n: int


def spread(values: pd.Series) -> Spread | None:
    values = values.dropna().astype(float)
    if values.empty:
        return None
    std = float(values.std()) if len(values) > 1 else None
    return Spread(float(values.median()), std, float(values.min()), float(values.max()), len(values))


def grid(table: pd.DataFrame) -> list[tuple[str, int]]:
    """(model, towers) of the study's runs, arranged."""
    pairs = records.accuracy(table)[["model", "towers"]].drop_duplicates().itertuples(index=False)
    return arranged((model, int(towers)) for model, towers in pairs)


def arranged(pairs: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """In the order of NAMES, towers rising; models without a name here stand before the controls."""
    names = list(NAMES)
    unknown = names.index("logistic") - 0.5
    return sorted(set(pairs), key=lambda p: (names.index(p[0]) if p[0] in names else unknown, *p))


def group(model: str) -> str:
    """What a model is read together with: its flat model (FLAT), the controls, or itself alone."""
    return "controls" if model in CONTROLS else FLAT.get(model, model)


def in_words(pairs: Iterable[tuple[str, int]]) -> list[str]:
    """(model, towers) as a reader says it: "DLRM (flat)", "DMT-DLRM with 2 and 8 towers"."""
    towers: dict[str, list[int]] = {}
    for model, count in pairs:
        towers.setdefault(NAMES.get(model, model), []).append(count)
    return [name if counts == [1] else f"{name} with {with_towers(counts)}" for name, counts in towers.items()]


def with_towers(counts: Iterable[int]) -> str:
    """ "2, 4 and 8 towers"."""
    *first, last = map(str, counts)
    return f"{', '.join(first)} and {last} towers" if first else f"{last} towers"


def runs_of(table: pd.DataFrame, model: str, towers: int) -> pd.DataFrame:
    runs = records.accuracy(table)
    return runs[(runs["model"] == model) & (runs["towers"] == towers)].sort_values("seed")


def auc(table: pd.DataFrame, model: str, towers: int) -> Spread | None:
    """Test AUC over the seeds that ended well."""
    return spread(runs_of(table, model, towers)["test_auc"])


def difference(table: pd.DataFrame, model: str, towers: int, flat: str) -> Spread | None:
    """Test AUC minus that of the flat model with the same seed, in 1e-4; None where no seed has both."""
    own = runs_of(table, model, towers).set_index("seed")["test_auc"]
    other = runs_of(table, flat, 1).set_index("seed")["test_auc"]
    return spread((own - other) * 1e4)


def faults(table: pd.DataFrame, model: str, towers: int) -> str:
    """How runs ended that gave no AUC: "diverged (1 of 3)", "not run (1 of 3)"; "" when each seed has its AUC.

    For a model and towers of the study (`grid`): records do not tell a run that was never planned from a missing one.
    """
    expected = sorted(records.accuracy(table)["seed"].unique())
    runs = runs_of(table, model, towers)
    counts = runs[runs["status"] != "ok"]["status"].value_counts().to_dict()
    undefined = int(((runs["status"] == "ok") & runs["test_auc"].isna()).sum())
    if undefined:
        counts["AUC undefined"] = undefined
    missing = len(expected) - len(runs)
    if missing:
        counts["not run"] = missing
    return ", ".join(f"{what} ({n} of {len(expected)})" for what, n in counts.items())
