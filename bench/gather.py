"""All records of a study as one tidy table: a row a record, one column a value, for tables and figures to read.

Values inside the records keep their units and names (docs of the columns: bench/record.schema.json). Nested fields are
joined with "_": accuracy.test.auc becomes test_auc. `auc_ceiling` is the test AUC of the generator's true probability.
What bench.collectives measured is a table of its own beside it: a row a collective, shape and size.
"""

import argparse
import json
from pathlib import Path

import pandas as pd

from bench import record as records
from bench.errors import UserError, cli
from bench.files import write_text


def row(record: dict) -> dict:
    """One record (bench/record.schema.json) as a flat dict; absent parts are None, dicts and lists are JSON text."""
    plain = ("study", "kind", "provenance", "run", "model", "towers", "tower_dim", "compression_ratio", "seed")
    out = {name: record[name] for name in plain}
    out["partition"] = record["partition"]["name"]
    out |= record["topology"]
    for name in ("name", "split_hash", "train_rows", "validation_rows", "test_rows", "auc_ceiling"):
        column = f"data_{name}" if name in ("name",) else name
        out[column] = (record["data"] or {}).get(name)
    out |= {name: record[name] for name in ("status", "reason")}
    accuracy = record["accuracy"] or {}
    for part in ("validation", "test"):
        for name in ("auc", "logloss", "ne", "evaluated", "positives", "auc_reason"):
            out[f"{part}_{name}"] = accuracy.get(part, {}).get(name)
    for name in ("train_samples", "train_steps", "samples_per_s", "progressive_logloss"):
        out[name] = accuracy.get(name)
    for name in ("sizes", "mflop_per_sample", "parameters", "dense_parameters"):
        out[name] = (record["complexity"] or {}).get(name)
    out |= _throughput(record)
    out |= {name: record[name] for name in ("started", "wall_s", "source_hash", "command")}
    return out | {name: json.dumps(record[name], sort_keys=True) for name in ("options", "versions", "hardware")}


def _throughput(record: dict) -> dict:
    """Columns of a record of bench.throughput: turn_samples_per_s, iteration_ms and open_ms are lists."""
    shown, sent, parts = (record.get(name) or {} for name in ("throughput", "bytes", "breakdown"))
    plain = ("sharding", "wire", "local_batch", "warmup", "iterations", "repeats", "link_bits_per_s", "dilation")
    out = {name: shown.get(name) for name in plain}
    lists = {"turn_samples_per_s": shown.get("samples_per_s")}
    lists |= {name: shown.get(name) for name in ("iteration_ms", "open_ms", "parts_of")}
    lists |= {f"link_{name}": (sent.get("links") or {}).get(name) for name in ("sent", "predicted")}
    out |= {name: None if value is None else json.dumps(value) for name, value in lists.items()}
    out |= {f"memory_{name}_MiB": shown.get("memory_MiB", {}).get(name) for name in ("max", "mean")}
    for name in ("counted", "predicted"):
        out |= {f"{name}_{where}_bytes": sent.get(name, {}).get(where) for where in ("inside", "across")}
    names = ("iteration_ms", "compute", "embedding", "dense", "others", "straggler_wait")
    return out | {f"breakdown_{name.removesuffix('_ms')}_ms": parts.get(name) for name in names}


def gather(runs: list[Path], complexity: Path, throughput: list[Path], manifest: Path) -> pd.DataFrame:
    """Read and validate records: of runs (files, or folders of them), and of files that hold lists of them.

    Raises:
        UserError: no records; a record that does not fit its schema; the same run twice; a record under another run's
            name; a run on other data than the manifest's; records of several studies.
    """
    files = [file for path in runs for file in (sorted(path.glob("*.json")) if path.is_dir() else [path])]
    if not files:
        raise UserError(f"no records in {', '.join(map(str, runs))}: run the training steps first")
    split_hash = _json(manifest).get("split_hash")
    rows = []
    for file in files:
        record = records.read(file)
        if record["data"] is not None and record["data"]["split_hash"] != split_hash:
            raise UserError(f"{file} was made on other data than {manifest}: delete it and train again")
        rows.append(row(record))
    for file in (complexity, *throughput):
        for record in _json(file):
            records.check(record, file)
            rows.append(row(record))
    table = pd.DataFrame(rows)
    twice = table[table.duplicated(["kind", "run"])]
    if len(twice):
        raise UserError(f"two records for the {twice.iloc[0]['kind']} run {twice.iloc[0]['run']}: keep one of them")
    for file, run in zip(files, table["run"], strict=False):  # runs stand before the others
        if run != file.stem:
            raise UserError(f"{file} holds the record of the run {run}: delete it and train again")
    studies = sorted(set(table["study"]))
    if len(studies) > 1:
        raise UserError(f"records of the studies {' and '.join(studies)}: give those of one study")
    integers = [name for name in table if name.endswith(("rows", "evaluated", "positives", "samples", "steps"))]
    integers += ["towers", "tower_dim", "seed", "parameters", "dense_parameters"]
    integers += ["local_batch", "warmup", "iterations", "repeats", "link_bits_per_s"]
    return table.astype({name: "Int64" for name in integers}).sort_values(["kind", "model", "towers", "seed", "run"])


def collectives(files: list[Path]) -> pd.DataFrame:
    """What bench.collectives wrote, a row a collective, shape and size."""
    rows = []
    for file in files:
        made = _json(file)
        same = {name: made["topology"][name] for name in ("ranks", "ranks_per_host")}
        same["hosts"] = same["ranks"] // same["ranks_per_host"]
        same |= {name: made[name] for name in ("link_bits_per_s", "backend", "warmup", "iterations", "command")}
        for one in made["collectives"]:
            ms = {f"{name}_ms": value for name, value in one["ms"].items()}
            plain = {name: value for name, value in one.items() if name not in ("ms", "ranks", "link_bytes")}
            rows.append(
                same | {"group_ranks": one["ranks"]} | plain | ms | {"link_bytes": json.dumps(one["link_bytes"])}
            )
    return pd.DataFrame(rows)


def _json(path: Path):
    try:
        return json.loads(path.read_text())
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise UserError(f"{path} is not JSON ({error}): delete it and run its step again") from None


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.gather", description=__doc__.split("\n\n")[0])
    parser.add_argument("--runs", type=Path, nargs="+", required=True, help="record files, or folders of *.json")
    parser.add_argument("--complexity", type=Path, required=True, help="records that bench.complexity wrote")
    parser.add_argument("--throughput", type=Path, nargs="*", default=[], help="records that bench.throughput wrote")
    parser.add_argument("--collectives", type=Path, nargs="*", default=[], help="what bench.collectives wrote")
    parser.add_argument("--manifest", type=Path, required=True, help="manifest.json of the data that the runs read")
    parser.add_argument("--out", type=Path, required=True, help="CSV file to write")
    args = parser.parse_args()
    table = gather(args.runs, args.complexity, args.throughput, args.manifest)
    if args.collectives:
        write_text(args.out.with_name("collectives.csv"), collectives(args.collectives).to_csv(index=False))
    write_text(args.out, table.to_csv(index=False))
    made = table[table["kind"] == "accuracy"]
    without = made["run"][made["test_auc"].isna()]
    which = f" ({', '.join(without)})" if len(without) else ""
    print(f"{args.out}: {len(made)} runs, {len(without)} of them without AUC{which}")


if __name__ == "__main__":
    cli(main)
