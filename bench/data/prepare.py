"""Prepare a table of click rows for training: shards of ids and transformed dense values, vocabularies, a manifest.

    python -m bench.data.prepare --input rows.tsv --out DIR
    python -m bench.data.prepare --input day_0.gz day_1.gz day_2.gz --split day --cap 40000000 --out DIR
    python -m bench.data.prepare --input diabetic_data.csv --schema diabetes130 --out DIR

Lines are counted first, then keys in the training rows (vocabularies), then all rows are encoded. Memory does not grow
with the input. A killed preparation goes on where it was when the same command is given again.
"""

import argparse
import errno
import shutil
import sys
from pathlib import Path

from tqdm import tqdm

from bench.data import ceiling, manifest, schema, splits, state, stream, vocabulary
from bench.data.passes import Passes
from bench.errors import UserError, cli


def prepare(
    files: list[Path],
    out: Path,
    schema_name: str = "criteo",
    threshold: int = 3,
    cap: int | None = None,
    split: str = "0.8,0.1,0.1",
    skip_bad: bool = False,
    pad: bool = False,
    shard_rows: int = 1 << 18,
) -> dict:
    """Prepare the files into folder out; returns the manifest, which is also written.

    Args:
        files: plain, gzip or zstandard; in the order of time.
        threshold: least occurrences in training rows of a value with an id of its own.
        cap: most rows of a table.
        split: fractions of train, validation and test, or "day".
        skip_bad: leave out bad rows and count them, instead of failing.
        pad: fill up rows with too few fields.
        shard_rows: a shard holds the rows of so many consecutive lines at most.

    Raises:
        UserError: bad input or options, a bad row, no room on the disk.
    """
    table = schema.load(schema_name)
    for file in files:
        if not file.is_file():
            raise UserError(f"no file {file}")
    options = {
        "schema": table.name,
        "threshold": threshold,
        "cap": cap,
        "split": split,
        "bad_rows": "skip" if skip_bad else "fail",
        "pad_short_rows": pad,
        "shard_rows": shard_rows,
    }
    out.mkdir(parents=True, exist_ok=True)
    now = state.begin(out, table, options, files)
    if now.lines is None:
        now.lines = _count_lines(files, table.header)
        now.save(out)
    plan = splits.plan(split, now.lines, table.group is not None)
    _check_disk(out, now, len(table.dense), len(table.sparse))
    passes = Passes(table, files, out, now, plan, skip_bad, pad)
    passes.count()
    _check_training(now, files)
    passes.write_vocabulary(threshold)
    passes.encode(cap, shard_rows)
    result = _manifest(table, files, out, now, plan, options)
    manifest.write(out, result)
    shutil.rmtree(state.work_folder(out))
    return result


def _count_lines(files: list[Path], header: bool) -> list[int]:
    """Lines of each file; the bar's total is an estimate from the bytes read so far."""
    lines, sizes = [0] * len(files), [file.stat().st_size for file in files]
    with tqdm(desc="lines", unit=" rows", unit_scale=True) as bar:
        for block in stream.blocks(files, header):
            at = block.end.file
            lines[at] += block.lines
            if block.end.offset <= sizes[at] or at:  # inside a first compressed file, how much is left is unknown
                read = sum(sizes[:at]) + min(block.end.offset, sizes[at])
                bar.total = round(block.end.row * sum(sizes) / read)
            bar.update(block.lines)
    for file, count in zip(files, lines, strict=True):
        if not count:
            raise UserError(f"{file} holds no rows")
    return lines


def _check_disk(out: Path, now: state.State, dense: int, sparse: int) -> None:
    """Shards have a known size; counts spilled on the way are checked when they are written."""
    row = 4 * dense + 4 * sparse + 1
    need = row * (sum(now.lines) - now.encoding.row) + (64 << 20)
    free = shutil.disk_usage(out).free
    if free < need:
        raise UserError(
            f"{out} needs {need / 1e9:.1f} GB for {sum(now.lines)} rows, {free / 1e9:.1f} GB are free: free some"
        )


def _check_training(now: state.State, files: list[Path]) -> None:
    names = ", ".join(file.name for file in files[:3]) + (", ..." if len(files) > 3 else "")
    if not now.train_rows:
        raise UserError(f"the training split of {names} holds no good rows: give more rows or a larger first fraction")
    if now.train_positives in (0, now.train_rows):
        only = "negative" if now.train_positives == 0 else "positive"
        raise UserError(f"all {now.train_rows} training rows of {names} are {only}, nothing to learn: give more rows")


def _manifest(table, files: list[Path], out: Path, now: state.State, plan: splits.Split, options: dict) -> dict:
    parts = {}
    for name in splits.NAMES:
        shards = now.shards[name]
        rows = sum(shard["rows"] for shard in shards)
        parts[name] = {"rows": rows, "positives": sum(shard["positives"] for shard in shards), "shards": shards}
        if name != "train":
            unseen = now.unseen.get(name, [0] * len(table.sparse))
            unseen_share = [round(count / rows, 6) if rows else 0.0 for count in unseen]
            parts[name]["unseen_share"] = dict(zip(table.sparse, unseen_share, strict=True))
    generator = None if now.bad else ceiling.describe(files, parts, plan, out)
    return {
        "format": 1,
        "name": f"{table.name}-generated" if generator else table.name,
        "columns": {"label": table.label, "dense": list(table.dense), "sparse": list(table.sparse)},
        "cardinalities": [vocabulary.table_rows(part["kept"], options["cap"]) for part in now.vocabulary],
        "vocabulary": [{**part, "threshold": options["threshold"], "cap": options["cap"]} for part in now.vocabulary],
        "options": options,
        "sources": [{"file": file.name, "bytes": file.stat().st_size} for file in files],
        "splits": parts,
        "split_hash": manifest.split_hash(parts),
        "bad_rows": dict(sorted(now.bad.items())),
        "padded_rows": now.padded,
        "generator": generator,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.data.prepare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add(
        "--input",
        required=True,
        nargs="+",
        type=Path,
        metavar="FILE",
        help="rows: plain, .gz or .zst, in order of time",
    )
    add("--out", required=True, type=Path, metavar="DIR", help="folder of the data set")
    add("--schema", default="criteo", help="name or path of a YAML that names the columns (default %(default)s)")
    add("--threshold", type=int, default=3, help="occurrences in training for an id of its own (default %(default)s)")
    add("--cap", type=int, help="most rows of a table; ids beyond are folded by modulo (default: no cap)")
    add(
        "--split",
        default="0.8,0.1,0.1",
        help="fractions of the lines in order, train,validation,test (default %(default)s); or day: the last file is "
        "halved into validation and test, all files before are train",
    )
    add("--bad-rows", choices=["fail", "skip"], default="fail", help="skip: leave them out and count them")
    add("--pad-short-rows", action="store_true", help="fill up rows whose empty last fields were stripped")
    add("--shard-rows", type=int, default=1 << 18, help="lines of a shard (default %(default)s)")
    args = parser.parse_args()
    for name, least in (("threshold", 1), ("cap", 3), ("shard_rows", 1)):
        value = getattr(args, name)
        if value is not None and value < least:
            raise UserError(f"--{name.replace('_', '-')} {value}: must be at least {least}")
    try:
        result = prepare(
            args.input,
            args.out,
            args.schema,
            args.threshold,
            args.cap,
            args.split,
            args.bad_rows == "skip",
            args.pad_short_rows,
            args.shard_rows,
        )
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise UserError(f"the disk of {args.out} is full: free some and give the same command again") from None
        raise UserError(f"cannot use {error.filename or args.out}: {error.strerror}") from None
    rows = ", ".join(f"{part['rows']} {name}" for name, part in result["splits"].items())
    print(f"{args.out}: {rows} rows", file=sys.stderr)
    for fault, count in result["bad_rows"].items():
        print(f"left out: {count} rows, {fault}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    cli(main)
