"""The two passes over the rows, count and encode, each in steps after which the state is saved."""

from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
from tqdm import tqdm

from bench.data import counting, folder, shards, state, stream, vocabulary
from bench.data.rows import RowParser, Rows, transformed
from bench.data.splits import NAMES, Split
from bench.data.stream import Cursor

WORKERS = 2
SAVE_ROWS = 1 << 22  # lines between two saved states: some seconds' work


class Passes:
    """Counts and encodes the rows of the parser's files into folder out, from where the state says on."""

    def __init__(self, parser: RowParser, out: Path, now: state.State, split: Split):
        self.parser, self.out, self.now, self.split = parser, out, now, split
        self.schema, self.files = parser.schema, parser.files
        self.work = folder.work(out)
        self.total = sum(now.lines)

    def count(self) -> None:
        """Count the keys of each sparse column in the training rows, into runs."""
        now, end = self.now, self.split.train_end
        if now.counted:
            return
        share = counting.BUDGET_BYTES // len(self.schema.sparse)
        counters = [counting.KeyCounter(self.work, f"{i:02d}", share, runs) for i, runs in enumerate(now.runs)]
        halves = [range(first, len(counters), WORKERS) for first in range(WORKERS)]

        def add(columns: range, keys: np.ndarray) -> None:
            for column in columns:
                counters[column].add(keys[column])

        def save(cursor: Cursor) -> None:
            for counter in counters:
                counter.spill()
            now.runs, now.counting = [counter.runs for counter in counters], cursor
            now.save(self.out)

        with ThreadPoolExecutor(WORKERS) as pool:
            for rows in self._rows(pool, "count", now.counting, end if end is not None else self.total, SAVE_ROWS):
                train = self.split.of(rows) == 0
                keys = rows.keys if train.all() else np.ascontiguousarray(rows.keys[:, train])
                list(pool.map(add, halves, [keys] * WORKERS))
                now.train_rows += int(train.sum())
                now.train_positives += int(rows.label[train].sum())
                if rows.block.end.row % SAVE_ROWS == 0:
                    save(rows.block.end)
        now.counted = True
        save(now.counting)

    def write_vocabulary(self, threshold: int) -> None:
        """Merge the runs of each column into its vocabulary file."""
        now = self.now
        if now.vocabulary is not None:
            return
        found, rare = [], []
        for number, (column, runs) in enumerate(
            zip(tqdm(self.schema.sparse, desc="vocabulary", unit=" columns"), now.runs, strict=True)
        ):
            name = vocabulary.file_name(number, column)
            paths = [self.work / run for run in runs]
            rare.append(f"rare-{number:02d}.npy")
            distinct, kept = vocabulary.write(self.out / "vocabulary" / name, self.work / rare[-1], paths, threshold)
            found.append({"column": column, "file": f"vocabulary/{name}", "distinct": distinct, "kept": kept})
        now.vocabulary, now.rare = found, rare
        now.save(self.out)
        for runs in now.runs:
            for run in runs:
                (self.work / run).unlink(missing_ok=True)

    def encode(self, cap: int | None, shard_rows: int) -> None:
        """Write the shards of all rows; a step is shard_rows lines and writes a shard for each split that it meets."""
        if self.now.encoding.row == self.total:
            return
        paths = [self.out / part["file"] for part in self.now.vocabulary] + [self.work / name for name in self.now.rare]
        opened = vocabulary.open_all(paths, cap)
        columns = len(self.schema.sparse)
        step = _Step(opened[:columns], opened[columns:])
        self.saved_row = self.now.encoding.row
        with ThreadPoolExecutor(WORKERS) as pool, ThreadPoolExecutor(1) as writer:
            saved: Future | None = None
            for rows in self._rows(pool, "encode", self.now.encoding, self.total, shard_rows):
                step.add(rows, self.split.of(rows), pool)
                if rows.block.end.row % shard_rows == 0 or rows.block.end.row == self.total:
                    if saved is not None:
                        saved.result()  # one step is written while the next is encoded
                    saved = writer.submit(self._save_step, step, rows.block.end)
                    step = _Step(opened[:columns], opened[columns:])
            if saved is not None:
                saved.result()

    def _save_step(self, step: "_Step", cursor: Cursor) -> None:
        now = self.now
        for name in NAMES:
            if step.parts[name]:
                label, dense, sparse = (np.concatenate(part) for part in zip(*step.parts[name], strict=True))
                file = f"{name}-{len(now.shards[name]):05d}.safetensors"
                now.shards[name].append(shards.write(self.out, file, label, dense, sparse))
        for counts, more in ((now.rare_rows, step.rare_rows), (now.unseen_rows, step.unseen_rows)):
            for name, rows in more.items():
                before = counts.get(name, [0] * len(rows))
                counts[name] = [int(a + b) for a, b in zip(before, rows, strict=True)]
        now.bad = dict(Counter(now.bad) + step.bad)
        now.padded += step.padded
        now.encoding = cursor
        if cursor.row == self.total or cursor.row - self.saved_row >= SAVE_ROWS:
            now.save(self.out)  # not after each shard: the state names all shards, so it grows with the input
            self.saved_row = cursor.row

    def _rows(self, pool: ThreadPoolExecutor, title: str, start: Cursor, end: int, cut_rows: int) -> Iterator[Rows]:
        """Parsed rows in order, parsed ahead in the pool, with a progress bar over lines."""
        blocks = stream.blocks(self.files, self.schema.header, start, stop_row=end, cut_rows=cut_rows)
        waiting: deque[Future] = deque()
        with tqdm(total=end, initial=start.row, desc=title, unit=" rows", unit_scale=True) as bar:

            def next_rows() -> Rows:
                rows = waiting.popleft().result()
                bar.update(rows.block.lines)
                return rows

            for block in blocks:
                waiting.append(pool.submit(self.parser, block))
                if len(waiting) > WORKERS:
                    yield next_rows()
            while waiting:
                yield next_rows()


class _Step:
    """Encoded rows that wait to be written together."""

    def __init__(self, vocabularies: list, rare: list):
        """Vocabularies of the columns, and of keys that occur in training but below the threshold."""
        self.vocabularies, self.rare = vocabularies, rare
        self.parts: dict[str, list] = {name: [] for name in NAMES}  # of (label, dense, sparse)
        # rows with a rare id in each column, and those among them whose value does not occur in training
        self.rare_rows, self.unseen_rows = (
            {name: np.zeros(len(vocabularies), np.int64) for name in NAMES if name != "train"} for _ in range(2)
        )
        self.bad: Counter = Counter()
        self.padded = 0

    def add(self, rows: Rows, split: np.ndarray, pool: ThreadPoolExecutor) -> None:
        self.bad += rows.bad
        self.padded += rows.padded
        for index, name in enumerate(NAMES):
            mine = split == index
            if not mine.any():
                continue
            keys, dense, label = rows.keys, rows.dense, rows.label
            if not mine.all():
                keys, dense, label = np.ascontiguousarray(keys[:, mine]), dense[mine], label[mine]
            sparse = np.empty((len(label), len(self.vocabularies)), np.int32)

            def encode(columns: range, keys=keys, sparse=sparse, name=name) -> None:
                for column in columns:
                    rare = self.vocabularies[column].encode(keys[column], sparse[:, column])
                    if rare and name != "train":
                        asked = keys[column][sparse[:, column] == vocabulary.RARE_ID]
                        self.rare_rows[name][column] += rare
                        self.unseen_rows[name][column] += self.rare[column].encode(asked, np.empty(rare, np.int32))

            transform = pool.submit(transformed, dense)
            list(pool.map(encode, [range(first, sparse.shape[1], WORKERS) for first in range(WORKERS)]))
            self.parts[name].append((label, transform.result(), sparse))
