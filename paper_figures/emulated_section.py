"""The report's section on the emulated cluster: figures, table, and what they say in sentences with their numbers."""

import base64
import json
from pathlib import Path

import jinja2
import pandas as pd

from paper_figures import apart, auc_towers, comparison, emulated, paper_values, records, throughput_table

FIGURES = {  # file: (title, how to read it)
    "fig1_13": (
        "Figures 1 and 13: where an iteration's time goes",
        "Profiled in a turn of its own, which takes longer than one without a profiler. The wait for the slowest rank "
        "is no communication and stands apart; shares leave it out.",
    ),
    "fig5": (
        "Figure 5: collectives",
        "Left, in the formulas of nccl-tests; middle, what hosts send to each other of what their links carry in that "
        "time. Peers are the ranks at one place of each host.",
    ),
    "fig10": (
        "Figure 10: DMT over the strong flat baseline",
        "Bars are medians of turns, whiskers lowest to highest. Of several widths D the widest is drawn.",
    ),
    "fig11": ("Figure 11: SPTT alone, and tower modules over SPTT", "The paper prints tower modules over SPTT only."),
    "fig12": (
        "Figure 12: speedup by compression ratio",
        "Narrower towers send fewer bytes. The paper's table 5 has what that costs in AUC.",
    ),
    "apart": (
        "What DMT-DCN's speedup consists of",
        "A part switched alone: SPTT-DCN with DMT-DCN's operations, or with as many embedding bytes, or bytes of dense "
        "gradients. “Together” is what the three spare beyond the sum of each alone.",
    ),
}
SPTT = (
    "SPTT moves as many bytes across hosts as the flat exchange. Emulated links have no cost for each peer that it "
    "could save, as NICs and NVLink of a real cluster do, and its extra steps cost time on shared cores: SPTT alone is "
    "not expected to be faster here."
)


Said = tuple[str, str]  # what the records say, and what the paper prints ("": nothing)


def html(table: pd.DataFrame, figures: dict[str, bytes], link: dict) -> str:
    """The section as HTML.

    Args:
        table: rows of an emulated cluster (emulated.rows).
        figures: PNG by name, of FIGURES.
        link: what bench.calibrate wrote.
    """
    text = Path(__file__).with_name("emulated.html.j2").read_text()
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    rendered = environment.from_string(text).render(
        about=emulated.about(table),
        rate=rate(link, table),
        said=[*dmt(table), *sptt(table), *parts(table), *((text, "") for text in throughput_table.collections(table))],
        figures=[
            {"title": title, "reading": reading, "png": base64.b64encode(figures[name]).decode(), "name": name}
            for name, (title, reading) in FIGURES.items()
            if name in figures
        ],
        header=throughput_table.HEADER,
        rows=throughput_table.readable(throughput_table.build(table)).to_dict("records"),
        reading=throughput_table.READING,
        commands=list(table["command"].drop_duplicates()),
    )
    return rendered


def rate(link: dict, table: pd.DataFrame) -> str:
    """How the links' rate was chosen.

    Raises:
        InputError: the file is not of bench.calibrate.
    """
    try:
        bits, wanted, found, shape = (link[name] for name in ("bits_per_s", "wanted", "share", "topology"))
        name, tried = comparison.NAMES.get(link["contestant"], link["contestant"]), len(link["points"])
        hosts = shape["ranks"] // shape["ranks_per_host"]
        if bits is None:
            return "Links could not be emulated here: ranks of all hosts talk over loopback, unshaped."
    except (KeyError, TypeError) as error:
        raise records.InputError(f"link.json is not as bench.calibrate writes it: {error}") from None
    text = (
        f"The links' rate was chosen by a rule that no result of DMT enters (bench.calibrate): with {hosts} hosts of "
        f"{shape['ranks_per_host']} ranks, {name} is to spend {wanted:.1%} of its iteration in exposed embedding "
        f"communication, the wait for the slowest rank left out (paper, figure 1, DCN on 64 H100: "
        f"{_share_in_paper():g}%). After {tried} measurements the rate is {bits / 1e6:.1f} Mbit/s, where the share was "
        f"found to be {found:.1%}."
    )
    own = table[(table["shape"] == (hosts, shape["ranks_per_host"])) & table["link_bits_per_s"].notna()]
    other = sorted(set(own["link_bits_per_s"][abs(own["link_bits_per_s"] / bits - 1) > 0.001]))
    if other:
        rates = ", ".join(f"{one / 1e6:.1f}" for one in other)
        text += f" Records of that shape were made at another rate, {rates} Mbit/s."
    return text


def _share_in_paper() -> float:
    rows = paper_values.values()
    return rows[(rows["item"] == "fig1") & (rows["series"] == "exposed_embedding_communication")]["value"].item()


def dmt(table: pd.DataFrame) -> list[Said]:
    """DMT over the flat baseline, and beside DMT-DLRM the flat DLRM with the same over arch."""
    sentences = []
    for family, name in auc_towers.FAMILIES.items():
        speed = _by_shape(table, f"dmt_{family}", family)
        if not speed:
            continue
        text = f"DMT-{name} over the flat {name}, emulated, lowest to highest of the turns in brackets: {speed}."
        if family == "dlrm" and (alone := _by_shape(table, "dlrm_small_over", family)):
            text += (
                f" The flat DLRM with DMT's smaller over arch over the flat DLRM: {alone}; so much of DMT-DLRM's "
                "speedup that over arch gives alone, without towers."
            )
        sentences.append((text, _paper("fig10", family)))
    return sentences


def sptt(table: pd.DataFrame) -> list[Said]:
    """SPTT alone over the flat baseline, why it is no faster here, and tower modules over SPTT."""
    alone = [
        f"SPTT-{name} over the flat {name}: {speed}"
        for family, name in auc_towers.FAMILIES.items()
        if (speed := _by_shape(table, f"sptt_{family}", family))
    ]
    modules = [
        f"DMT-{name} over SPTT-{name}: {speed}"
        for family, name in auc_towers.FAMILIES.items()
        if (speed := _by_shape(table, f"dmt_{family}", f"sptt_{family}"))
    ]
    sentences = [(f"SPTT alone, emulated: {'; '.join(alone)}. {SPTT}", "")] if alone else []
    if modules:
        sentences.append((f"Tower modules, emulated: {'; '.join(modules)}.", _paper("fig11", "dlrm")))
    return sentences


def parts(table: pd.DataFrame) -> list[Said]:
    """What DMT-DCN's speedup consists of, where its mixtures ran."""
    found = apart.taken(table)
    return [(f"Emulated, at {emulated.in_short(found.shape)}. {apart.words(found)}", "")] if found else []


def _by_shape(table: pd.DataFrame, model: str, over: str) -> str:
    """ "1.57 (1.47 to 1.66) at 2x2, failed at 4x2"; "" where no shape has the model."""
    there = [shape for shape in emulated.shapes(table) if model in set(table["model"][table["shape"] == shape])]
    values = [(shape, emulated.speedup_of_model(table, shape, model, over)) for shape in there]
    return ", ".join(f"{emulated.times(value)} at {emulated.in_short(shape)}" for shape, value in values)


def _paper(item: str, panel: str) -> str:
    rows = paper_values.values()
    rows = rows[(rows["item"] == item) & (rows["panel"] == panel)]
    low, high, gpus = rows["value"].min(), rows["value"].max(), rows["gpus"].astype(int)
    return f"Paper, figure {item[3:]}, {panel.upper()}: {low:g} to {high:g} on {gpus.min()} to {gpus.max()} GPUs."


def read_link(path: Path) -> dict:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise records.InputError(f"cannot read {path}: {error}; `python -m bench.calibrate` writes it") from None
