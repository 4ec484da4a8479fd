"""One HTML file that tells a study to a reader who was not there; it opens offline, images inside.

Reads records.csv, the data set's manifest.json and the drawn figures; the tables are built anew from the records.
"""

import argparse
import base64
import json
import re
from pathlib import Path

import jinja2
import pandas as pd

from paper_figures import comparison, complexity, emulated, emulated_section, findings, records, table4

FAULT = re.compile(r"(diverged|oom|failed|timeout|not run|undefined|AUC undefined)( \(\d+ of \d+\))?")
ABSENT = ("n/a", "not in paper", "not counted", "no shared seed", "none")
SPLITS = ("train", "validation", "test")


def render(table: pd.DataFrame, manifest: dict, figure_png: bytes, section: str = "") -> str:
    """The report as HTML text.

    Args:
        section: on an emulated cluster (emulated_section.html); "" for a study without.

    Raises:
        InputError: the manifest belongs to other data than the records.
    """
    runs = records.accuracy(table)
    if set(runs["split_hash"]) != {manifest.get("split_hash")}:
        raise records.InputError(
            "the manifest and the records have different split hashes: give the manifest of their data"
        )
    template = Path(__file__).with_name("report.html.j2").read_text()
    built = table4.build(table)
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["mark"] = _mark
    return environment.from_string(template).render(
        study=runs["study"].iloc[0],
        summary=_summary(runs),
        findings=findings.findings(table),
        data=_data(manifest),
        table4=table4.readable(built).to_dict("records"),
        group_starts=_group_starts(built["model"]),
        paper_only=table4.paper_only(built),
        figure=base64.b64encode(figure_png).decode(),
        section=section,
        complexity=complexity.readable(complexity.build(table)),
        runs=[_run(row) for row in runs.to_dict("records")],
        hardware=_distinct(runs, "hardware"),
        versions=_distinct(runs, "versions"),
        commands=[*runs["command"], *records.complexity(table)["command"].drop_duplicates()],
    )


def _summary(runs: pd.DataFrame) -> dict:
    status = runs["status"].value_counts().to_dict()
    seconds = runs["wall_s"].sum()
    return {
        "models": comparison.in_words(comparison.grid(runs)),
        "seeds": ", ".join(str(int(seed)) for seed in sorted(runs["seed"].unique())),
        "runs": len(runs),
        "status": ", ".join(f"{n} {name}" for name, n in status.items()),
        "first": runs["started"].min()[:16].replace("T", " "),
        "last": runs["started"].max()[:16].replace("T", " "),
        "run_time": f"{seconds / 60:.1f} minutes" if seconds < 7200 else f"{seconds / 3600:.1f} hours",
        "study_ceiling": records.ceiling(runs),
    }


def _mark(text: str) -> str:
    """The look of a cell: "bad" where a run is told to have gone wrong, "none" where there is no number, else ""."""
    if any(FAULT.fullmatch(part) for part in re.split("[;,] ", text)):
        return "bad"
    return "none" if text in ABSENT else ""


def _group_starts(models: pd.Series) -> list[bool]:
    """For each row of table 4, whether it opens another group of models than the row above."""
    groups = models.map(comparison.group)
    return [False, *(groups != groups.shift())[1:]]


def _largest(shares: dict[str, float] | None) -> str:
    """The largest share of all columns and its column; the training split has none."""
    column = max(shares, key=shares.get) if shares else None
    return f"{shares[column]:.2%} ({column})" if column else "n/a"


def _data(manifest: dict) -> dict:
    splits = []
    for name in SPLITS:
        split = manifest["splits"][name]
        splits.append(
            {
                "name": name,
                "rows": f"{split['rows']:,}",
                "positives": f"{split['positives']:,}",
                "rate": f"{split['positives'] / split['rows']:.4f}" if split["rows"] else "no rows",
                "rare": _largest(split.get("rare_or_unseen_share")),
                "unseen": _largest(split.get("unseen_share")),
            }
        )
    bad = {fault: count for fault, count in manifest["bad_rows"].items() if count}
    generator = manifest["generator"]
    return {
        "name": manifest["name"],
        "splits": splits,
        "dense": len(manifest["columns"]["dense"]),
        "sparse": len(manifest["columns"]["sparse"]),
        "ids": f"{sum(manifest['cardinalities']):,}",
        "largest": f"{max(manifest['cardinalities'], default=0):,}",
        "sources": ", ".join(f"{source['file']} ({source['bytes'] / 1e6:.1f} MB)" for source in manifest["sources"]),
        "split_hash": manifest["split_hash"],
        "bad_rows": ", ".join(f"{count} {fault}" for fault, count in bad.items()) or "none",
        "padded_rows": manifest["padded_rows"],
        "options": json.dumps(manifest["options"]),
        "generator": generator
        and f"seed {generator['seed']}, AUC of its true probability on test rows: "
        f"{generator['auc_ceiling']['test']:.4f} (no model can be expected to rank better)",
    }


def _run(row: dict) -> dict:
    def show(name: str, form: str) -> str:
        if pd.notna(row[name]):
            return form.format(row[name])
        return "undefined" if row["status"] == "ok" else row["status"]

    reasons = [row[name] for name in ("reason", "test_auc_reason") if pd.notna(row[name])]
    return {
        "run": row["run"],
        "status": row["status"],
        "validation AUC": show("validation_auc", "{:.5f}"),
        "test AUC": show("test_auc", "{:.5f}"),
        "test logloss (nats)": show("test_logloss", "{:.5f}"),
        "test NE": show("test_ne", "{:.5f}"),
        "test rows evaluated": show("test_evaluated", "{:,.0f}"),
        "training rows/s": show("samples_per_s", "{:,.0f}"),
        "wall (s)": f"{row['wall_s']:.1f}",
        "reason": "; ".join(reasons) or "none",
    }


def _distinct(runs: pd.DataFrame, column: str) -> list[str]:
    """Each different value once, as "key: value, ..."."""
    return [
        ", ".join(f"{k}: {v or 'none'}" for k, v in json.loads(text).items()) for text in runs[column].drop_duplicates()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m paper_figures.report", description=__doc__.split("\n\n")[0])
    parser.add_argument("--records", type=Path, required=True, help="records.csv of a study")
    parser.add_argument("--manifest", type=Path, required=True, help="manifest.json of the data that the runs read")
    parser.add_argument("--figure", type=Path, required=True, help="auc_towers.png")
    parser.add_argument("--link", type=Path, help="what bench.calibrate wrote, where a cluster was emulated")
    parser.add_argument(
        "--emulated",
        type=Path,
        nargs="+",
        default=[],
        metavar="PNG",
        help="figures of the emulated cluster, with --link",
    )
    parser.add_argument("--out", type=Path, required=True, help="HTML file to write")
    args = parser.parse_args()
    table = records.read(args.records)
    try:
        manifest, figure = json.loads(args.manifest.read_text()), args.figure.read_bytes()
        drawn = {path.stem: path.read_bytes() for path in args.emulated}
    except (OSError, ValueError) as error:
        raise records.InputError(f"cannot read an input of the report: {error}") from None
    section = ""
    if args.link is not None:
        rows = emulated.rows(table)
        if rows.empty:
            raise records.InputError(f"{args.records} has no throughput of an emulated cluster: leave out --link")
        section = emulated_section.html(rows, drawn, emulated_section.read_link(args.link))
    records.write_text(args.out, render(table, manifest, figure, section))


if __name__ == "__main__":
    records.cli(main)
