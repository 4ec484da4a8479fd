"""What a study answers, in words: does a tower model rank worse than the flat model that it replaces?

Differences are test AUC with the same seed, median over seeds. One counts as higher or lower only where every seed lies
on the same side of zero and the median is larger than the distance between the flat model's own seeds.
"""

from dataclasses import dataclass

import pandas as pd

from paper_figures import comparison, paper_values


@dataclass(frozen=True)
class Finding:
    """A tower model beside a flat model: the answer, the numbers behind it, and what the paper prints ("": nothing)."""

    answer: str
    numbers: str
    paper: str


def findings(table: pd.DataFrame) -> list[Finding]:
    """One for each tower model and flat model of the study: first with the same over arch, then as the paper has it."""
    grid = comparison.grid(table)
    found = []
    for model in dict.fromkeys(model for model, towers in grid if towers > 1):
        for flats in (comparison.SAME_OVER_ARCH, comparison.FLAT):
            if (flats.get(model), 1) in grid:
                found.append(_finding(table, model, flats[model]))
    return found


def _finding(table: pd.DataFrame, model: str, flat: str) -> Finding:
    own = comparison.auc(table, flat, 1)
    apart = (own.high - own.low) * 1e4 if own and own.n > 1 else None
    towers = [towers for name, towers in comparison.grid(table) if name == model]
    deltas = {t: comparison.difference(table, model, t, flat) for t in towers}
    sides: dict[str, list[int]] = {}
    for t, delta in deltas.items():
        sides.setdefault(_side(delta, apart), []).append(t)
    ours, theirs = f"{comparison.NAMES.get(model, model)}'s test AUC", f"that of {comparison.NAMES[flat]}"
    verdicts = {
        "below": f"{ours} lies {{}} below {theirs}",
        "above": f"{ours} lies {{}} above {theirs}",
        "equal": f"{ours} cannot be told from {theirs}",
        "one seed": f"{ours} cannot be judged against {theirs}: one seed shows no spread",
        "none": f"{ours} cannot be compared with {theirs}: no seed has both",
    }
    sentences = []
    for side, text in verdicts.items():
        if at := sides.get(side):
            sizes = [abs(deltas[t].median) / 1e4 for t in at] if side in ("below", "above") else [0.0]
            sentences.append(f"With {comparison.with_towers(at)} {text.format(_range(sizes))}.")
    numbers = [f"{t} towers {delta.median:+.1f}" for t, delta in deltas.items() if delta]
    if numbers and apart is not None:
        numbers.append(f"the flat model's own seeds lie {apart:.1f} apart")
    paper = _paper(model) if comparison.FLAT.get(model) == flat else ""
    return Finding(" ".join(sentences), "; ".join(numbers), paper)


def _side(delta: comparison.Spread | None, apart: float | None) -> str:
    if delta is None:
        return "none"
    if apart is None or delta.n == 1:
        return "one seed"
    if abs(delta.median) <= apart or delta.low <= 0 <= delta.high:
        return "equal"
    return "above" if delta.median > 0 else "below"


def _range(values: list[float]) -> str:
    low, high = f"{min(values):.4f}", f"{max(values):.4f}"
    return low if low == high else f"{low} to {high}"


def _paper(model: str) -> str:
    printed = paper_values.table("table4").set_index("model")
    if model not in printed.index:
        return ""
    own, flat = printed.loc[model], printed.loc[comparison.FLAT[model]]
    low, high = (round(end, 4) + 0.0 for end in ((own["auc"] - flat["auc"]).min(), (own["auc"] - flat["auc"]).max()))
    return (
        f"Paper, table 4, Criteo 1TB: {low:+.4f} to {high:+.4f} from its flat model's with "
        f"{comparison.with_towers(own['towers'])}, where the flat model's runs have a standard deviation of "
        f"{flat['auc_std']:.4f}."
    )
