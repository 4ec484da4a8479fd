"""Generate Criteo-like rows, the suite's own data: the look of Criteo's file, groups of features, a bound on the AUC.

    python -m bench.data.generate --rows 500000 --seed 7 --out rows.tsv
    python -m bench.data.generate --rows 3000000 --seed 7 --days 3 --out day.tsv   # day_0.tsv, day_1.tsv, day_2.tsv

Beside FILE.tsv: FILE.tsv.generator.json, and FILE.tsv.probability.npy, (rows,) float32, the true click probabilities.
Same seed, same rows, whatever the number of rows or days: a shorter file is the beginning of a longer one.
"""

import argparse
import json
import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from tqdm import tqdm

from bench.data import ceiling, text
from bench.data.world import GROUPS, Sample, World
from bench.errors import UserError, cli
from bench.files import replacing, write_text

DRAWN_ROWS = 1 << 15  # rows of one random stream; part of what a seed means
WORKERS = 2


def generate(rows: int, seed: int, out: Path, days: int = 1) -> list[Path]:
    """Write the rows, split evenly into files in order, and their side files. Returns the files of rows.

    Raises:
        UserError: fewer rows than files, or no room on the disk.
    """
    if days > rows:
        raise UserError(f"{rows} rows cannot be split into {days} files: give more rows")
    files = [out] if days == 1 else [out.with_name(f"{out.stem}_{day}{out.suffix}") for day in range(days)]
    out.parent.mkdir(parents=True, exist_ok=True)
    free = os.statvfs(out.parent)
    if free.f_bavail * free.f_frsize < rows * 250:
        raise UserError(f"{out.parent} has no room for {rows} rows of 240 bytes: free some disk or give fewer rows")
    samples = _samples(rows, seed)
    waiting: deque[Sample] = deque()
    with tqdm(total=rows, desc="generate", unit=" rows", unit_scale=True) as bar:
        for day, file in enumerate(files):
            size = rows * (day + 1) // days - rows * day // days
            _write_file(file, size, seed, samples, waiting, bar)
    return files


def _samples(rows: int, seed: int) -> Iterator[Sample]:
    """Samples of DRAWN_ROWS rows that hold the first `rows` rows, drawn ahead in threads."""
    world = World()

    def draw(number: int) -> Sample:
        return world.draw(np.random.Generator(np.random.Philox(key=[seed, number])), DRAWN_ROWS)

    with ThreadPoolExecutor(WORKERS) as pool:
        ahead: deque = deque()
        for number in range(-(-rows // DRAWN_ROWS)):
            ahead.append(pool.submit(draw, number))
            if len(ahead) > WORKERS:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()


def _write_file(file: Path, rows: int, seed: int, samples: Iterator[Sample], waiting: deque, bar: tqdm) -> None:
    """Write the next rows of the stream; rows of a sample that belong to the next file stay in waiting."""
    side = file.with_name(f"{file.name}.probability.npy")
    counts, positives, done = ceiling.histogram(), 0, 0
    file.with_name(f"{file.name}.generator.json").unlink(missing_ok=True)
    with replacing(file) as out, replacing(side) as out_side:
        np.lib.format.write_array_header_1_0(out_side, {"descr": "<f4", "fortran_order": False, "shape": (rows,)})
        while done < rows:
            sample = waiting.popleft() if waiting else next(samples)
            if len(sample.label) > rows - done:
                sample, rest = sample.cut(rows - done)
                waiting.appendleft(rest)
            out.write(text.lines(sample))
            out_side.write(sample.probability.astype("<f4").tobytes())
            ceiling.add(counts, sample.probability, sample.label)
            positives += int(sample.label.sum())
            done += len(sample.label)
            bar.update(len(sample.label))
    about = {
        "format": 1,
        "seed": seed,
        "rows": rows,
        "label_rate": round(positives / rows, 6),
        "auc_ceiling": ceiling.auc(counts),
        "groups": [list(group) for group in GROUPS],
        "bytes": file.stat().st_size,
        "head_sha256": ceiling.head_hash(file),
    }
    write_text(file.with_name(f"{file.name}.generator.json"), json.dumps(about, indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.data.generate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", required=True, type=int)
    parser.add_argument("--seed", required=True, type=int, help="0 or more")
    parser.add_argument("--out", required=True, type=Path, metavar="FILE.tsv")
    parser.add_argument("--days", type=int, default=1, help="number of files, FILE_0.tsv on (default 1: FILE.tsv)")
    args = parser.parse_args()
    for name, least in (("rows", 1), ("seed", 0), ("days", 1)):
        if getattr(args, name) < least:
            raise UserError(f"--{name} {getattr(args, name)}: must be at least {least}")
    try:
        generate(args.rows, args.seed, args.out, args.days)
    except OSError as error:
        raise UserError(f"cannot write {error.filename or args.out}: {error.strerror}") from None
    return 0


if __name__ == "__main__":
    cli(main)
