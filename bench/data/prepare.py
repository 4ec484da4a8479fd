"""Prepare a table of click rows for training: shards of ids and transformed dense values, vocabularies, a manifest.

    python -m bench.data.prepare --input rows.tsv --out DIR
    python -m bench.data.prepare --input day_0.gz day_1.gz day_2.gz --split day --cap 40000000 --out DIR
    python -m bench.data.prepare --input diabetic_data.csv --schema diabetes130 --out DIR

Lines are counted first, then keys in the training rows (vocabularies), then all rows are encoded. Memory does not grow
with the input. A killed preparation goes on where it was when the same command is given again. A data set that is in
DIR already is replaced once the command is found sound; files there that are not a data set's stay.
"""

import argparse
import errno
import shutil
import sys
from pathlib import Path

from tqdm import tqdm

from bench.data import ceiling, checks, folder, manifest, schema, splits, state, stream, vocabulary
from bench.data.passes import Passes
from bench.data.rows import RowParser
from bench.data.stream import Cursor
from bench.errors import UserError, cli

SHARD_ROWS = 1 << 16


def prepare(
    files: list[Path],
    out: Path,
    schema_name: str = "criteo",
    threshold: int = 3,
    cap: int | None = None,
    split: str = "0.8,0.1,0.1",
    skip_bad: bool = False,
    pad: bool = False,
    shard_rows: int = SHARD_ROWS,
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
        UserError: bad input or options, a bad row, no room on the disk, files that change meanwhile, a folder that
            holds something else or that another preparation works in.
    """
    table = schema.load(schema_name)
    checks.options(threshold, cap, shard_rows)
    checks.sources(files)
    splits.fractions(split, len(files), table.group is not None)
    parser = RowParser(table, files, skip_bad, pad)
    rows, row_bytes = checks.first_rows(parser)
    options = {
        "schema": table.name,
        "threshold": threshold,
        "cap": cap,
        "split": split,
        "bad_rows": "skip" if skip_bad else "fail",
        "pad_short_rows": pad,
        "shard_rows": shard_rows,
    }
    with folder.locked(out):
        key = state.key(table, options, files)
        now = state.unfinished(out, key)
        if now is None:
            checks.disk(out, rows, row_bytes)
            folder.clear(out)
            now = state.State(key, runs=[[] for _ in table.sparse])
        _count_lines(files, table.header, out, now)
        plan = splits.plan(split, now.lines, table.group is not None)
        checks.disk(out, sum(now.lines) - now.encoding.row, checks.shard_row(table))
        passes = Passes(parser, out, now, plan)
        passes.count()
        checks.training(now, files)
        passes.write_vocabulary(threshold)
        passes.encode(cap, shard_rows)
        fault = checks.encoded(now, files, state.key(table, options, files))
        if fault is not None:
            folder.state_file(out).unlink(missing_ok=True)
            raise UserError(fault)
        checks.no_split_is_empty(now, files)
        result = _manifest(table, files, out, now, plan, options)
        manifest.write(out, result)
        shutil.rmtree(folder.work(out))
    return result


def _count_lines(files: list[Path], header: bool, out: Path, now: state.State) -> None:
    """Count the lines of each file into the state; the bar's total is an estimate from the bytes read so far."""
    sizes = [file.stat().st_size for file in files]
    lines, first = 0, len(now.lines)
    if first == len(files):
        return
    with tqdm(desc="lines", unit=" rows", unit_scale=True) as bar:
        for block in stream.blocks(files, header, Cursor(file=first)):
            at = block.end.file
            if at > len(now.lines):
                now.lines.append(lines)
                now.save(out)
                lines = 0
            lines += block.lines
            if block.end.offset <= sizes[at] or at > first:  # in a first compressed file, how much is left is unknown
                read = sum(sizes[first:at]) + min(block.end.offset, sizes[at])
                bar.total = round(block.end.row * sum(sizes[first:]) / read)
            bar.update(block.lines)
    now.lines.append(lines)
    now.save(out)
    if len(now.lines) != len(files):
        raise UserError(f"{files[len(now.lines)]} lost its rows during the preparation: give the same command again")


def _manifest(table, files: list[Path], out: Path, now: state.State, plan: splits.Split, options: dict) -> dict:
    parts = {}
    for name in splits.NAMES:
        shards = now.shards[name]
        rows = sum(shard["rows"] for shard in shards)
        parts[name] = {"rows": rows, "positives": sum(shard["positives"] for shard in shards), "shards": shards}
        if name != "train":
            for share, counts in (("rare_or_unseen_share", now.rare_rows), ("unseen_share", now.unseen_rows)):
                shares = [round(count / rows, 6) for count in counts[name]]
                parts[name][share] = dict(zip(table.sparse, shares, strict=True))
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
    add("--shard-rows", type=int, default=SHARD_ROWS, help="lines of a shard (default %(default)s)")
    args = parser.parse_args()
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
