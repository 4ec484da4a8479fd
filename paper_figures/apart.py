"""What DMT-DCN's speedup consists of: SPTT, then operations, embedding bytes and dense gradients, one at a time.

Writes apart.pdf and apart.png. From the flat DCN to SPTT-DCN nothing but the exchange changes. From SPTT-DCN to DMT-DCN
three parts do, and contestants with the operations of one and the bytes of the other (bench.mixture) have one of them
alone. What the three spare together differs from the sum of what each spares alone: `remainder`, in the figure
"together". Where all six mixtures ran, the Shapley value of a part is the mean of what it spares over all orders in
which the three can be switched. Milliseconds of an iteration: global batch / samples a second, of the median turn.
"""

import itertools
import math
from dataclasses import dataclass

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes

from paper_figures import emulated, records, style

PARTS = {"operations": "operations", "embeddings": "embedding bytes", "dense": "dense gradients"}
TOGETHER = "together"
State = frozenset[str]  # the parts that are DMT-DCN's; the others are SPTT-DCN's
NOTHING, ALL = frozenset(), frozenset(PARTS)


@dataclass(frozen=True)
class Apart:
    """Milliseconds of an iteration of the flat DCN and of each state that ran."""

    shape: emulated.Shape
    flat: float
    states: dict[State, float]

    @property
    def whole(self) -> float:
        """Milliseconds from SPTT-DCN to DMT-DCN that are spared."""
        return self.states[NOTHING] - self.states[ALL]

    def alone(self, part: str) -> float | None:
        """Milliseconds that a part spares alone; None where its mixture did not run."""
        own = self.states.get(frozenset({part}))
        return None if own is None else self.states[NOTHING] - own

    @property
    def remainder(self) -> float | None:
        """What is spared by all three together beyond the sum of each alone; None where a mixture is missing."""
        effects = [self.alone(part) for part in PARTS]
        return None if None in effects else self.whole - sum(effects)

    def shapley(self) -> dict[str, float] | None:
        """Mean of what a part spares over all orders; None where a mixture is missing. They add up to `whole`."""
        if len(self.states) < 2 ** len(PARTS):
            return None
        spared = dict.fromkeys(PARTS, 0.0)
        for order in itertools.permutations(PARTS):
            state = NOTHING
            for part in order:
                spared[part] += self.states[state] - self.states[state | {part}]
                state = state | {part}
        return {part: ms / math.factorial(len(PARTS)) for part, ms in spared.items()}


def taken(table: pd.DataFrame) -> Apart | None:
    """At the mixtures' shape, the main one without; None where DCN, SPTT-DCN or DMT-DCN did not run well there."""
    mixed = table[table["parts_of"].notna() & (table["status"] == "ok")]
    shape = max(mixed["shape"], default=emulated.main_shape(table) or max(table["shape"]))
    states = {}
    for _, row in mixed[mixed["shape"] == shape].iterrows():
        if set(row["parts_of"].values()) <= {"sptt_dcn", "dmt_dcn"}:
            of_dmt = frozenset(part for part, whose in row["parts_of"].items() if whose == "dmt_dcn")
            states[of_dmt] = _ms(row)
    ends = [emulated.of(table, shape, name) for name in ("dcn", "sptt_dcn", "dmt_dcn")]
    if any(emulated.turns(row) is None for row in ends):
        return None
    flat, sptt, dmt = map(_ms, ends)
    return Apart(shape, flat, states | {NOTHING: sptt, ALL: dmt})


def _ms(row: pd.Series) -> float:
    return float(emulated.turns_ms(row).median())


def draw(table: pd.DataFrame) -> plt.Figure:
    found = taken(table)
    if found is None:
        return emulated.nothing("of DCN, SPTT-DCN and DMT-DCN one was not run, or failed.")
    style.use()
    figure, axes = plt.subplots(figsize=(style.COLUMN, 3.3), layout="constrained")
    end, spare = {"facecolor": "#8c8c8c"}, {"facecolor": "#029e73", "hatch": "////"}
    cost = {"facecolor": "#de8f05", "hatch": "...."}
    names, level = [], found.flat
    steps = [("SPTT", found.flat - found.states[NOTHING])]
    steps += [(label, found.alone(part)) for part, label in PARTS.items()] + [(TOGETHER, found.remainder)]
    axes.bar(0, found.flat, 0.7, edgecolor="#222222", lw=0.5, **end)
    _above(axes, 0, found.flat, f"{found.flat:.0f}")
    for place, (label, spared) in enumerate(steps, 1):
        names.append(label)
        if spared is None:
            word = "unknown" if label == TOGETHER else "not run"
            axes.text(place, level, word, rotation=90, fontsize=6.5, ha="center", va="top")
            continue
        look = spare if spared > 0 else cost
        axes.bar(place, -spared, 0.7, level, edgecolor="#222222", lw=0.5, **look)
        text = f"{-spared:+.0f}\n({_percent(spared, found.whole)})" if place > 1 else f"{-spared:+.0f}"
        _above(axes, place, max(level, level - spared), text)
        axes.plot([place - 0.65, place + 0.35], [level, level], color="#222222", lw=0.6)
        level -= spared
    last = len(steps) + 1
    axes.bar(last, found.states[ALL], 0.7, edgecolor="#222222", lw=0.5, **end)
    _above(axes, last, found.states[ALL], f"{found.states[ALL]:.0f}")
    ticks = ["DCN (flat)", *names, "DMT-DCN"]
    axes.set_xticks(range(last + 1), ticks, rotation=40, ha="right", rotation_mode="anchor")
    axes.set_ylim(0, axes.get_ylim()[1] * 1.13)
    axes.set_ylabel("ms an iteration")
    axes.set_axisbelow(True)
    hosts, ranks = found.shape
    axes.set_title(
        f"Emulated: {hosts * ranks} ranks on {hosts} hosts\n% of the way from SPTT-DCN to DMT-DCN", loc="left", x=-0.16
    )
    if values := found.shapley():
        each = ", ".join(f"{PARTS[part]} {_percent(ms, found.whole)}" for part, ms in values.items())
        figure.supxlabel(f"Mean over all orders (Shapley): {each}", fontsize=6, x=0.02, ha="left", wrap=True)
    return figure


def _above(axes: Axes, x: float, y: float, text: str) -> None:
    at = {"xytext": (0, 2), "textcoords": "offset points", "ha": "center", "va": "bottom"}
    axes.annotate(text, (x, y), fontsize=6.5, linespacing=0.95, **at)


def words(found: Apart) -> str:
    """The figure in sentences."""
    sptt = found.flat - found.states[NOTHING]
    text = (
        f"An iteration of the flat DCN takes {found.flat:.0f} ms, of SPTT-DCN {found.states[NOTHING]:.0f} ms "
        f"({-sptt:+.0f}), of DMT-DCN {found.states[ALL]:.0f} ms. Of the {found.whole:.0f} ms between the last two, "
    )
    effects = {label: found.alone(part) for part, label in PARTS.items()}
    text += ", ".join(
        f"{label} alone: not run" if ms is None else f"{label} alone spare {ms:.0f} ({_percent(ms, found.whole)})"
        for label, ms in effects.items()
    )
    if found.remainder is not None:
        total = found.whole - found.remainder
        text += f"; the sum of the three is {total:.0f} ms, {_percent(total, found.whole)} of the whole"
    if values := found.shapley():
        each = ", ".join(f"{PARTS[part]} {ms:.0f} ms ({_percent(ms, found.whole)})" for part, ms in values.items())
        text += f". As means over all orders (Shapley values): {each}"
    return f"{text}."


def _percent(ms: float, whole: float) -> str:
    return f"{100 * ms / whole:.0f} %" if whole > 0 else "nothing is spared"


if __name__ == "__main__":
    records.cli(lambda: emulated.draw_figure("apart", __doc__, draw))
