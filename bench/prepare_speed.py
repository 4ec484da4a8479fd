"""How fast rows are prepared, and in how much memory: generates a file, prepares it in a process of its own, reads it.

    python -m bench.prepare_speed --rows 2000000

Prints rows per second of all passes together (lines, count, vocabulary, encode, start-up included) and peak memory.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.data import generate
from bench.data.reader import open_dataset
from bench.errors import UserError, cli


def measure(rows: int, folder: Path) -> dict:
    """Times of generating, preparing and reading `rows` rows in the folder.

    Raises:
        UserError: the preparation failed.
    """
    file, data = folder / "rows.tsv", folder / "data"
    started = time.perf_counter()
    generate.generate(rows, 1, file)
    generate_s = time.perf_counter() - started
    started = time.perf_counter()
    command = [sys.executable, "-m", "bench.data.prepare", "--input", str(file), "--out", str(data)]
    if subprocess.run(command).returncode:
        raise UserError("the preparation failed, see above")
    prepare_s = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss  # KiB on Linux
    dataset = open_dataset(data)
    started = time.perf_counter()
    read = sum(len(batch.label) for batch in dataset.batches("train", 4096, seed=0))
    read_s = time.perf_counter() - started
    return {
        "rows": rows,
        "file_MB": round(file.stat().st_size / 1e6),
        "generate_rows_per_s": round(rows / generate_s),
        "prepare_s": round(prepare_s, 2),
        "prepare_rows_per_s": round(rows / prepare_s),
        "prepare_peak_MiB": round(peak / 1024),
        "read_rows_per_s": round(read / read_s),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.prepare_speed", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=2_000_000, help="rows to generate (default %(default)s, 0.5 GB)")
    parser.add_argument("--folder", type=Path, help="where the rows and the data set go (default: a temporary folder)")
    args = parser.parse_args()
    if args.rows < 1000:
        raise UserError(f"--rows {args.rows}: must be at least 1000")
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        print(json.dumps(measure(args.rows, Path(folder)), indent=1))
    return 0


if __name__ == "__main__":
    cli(main)
