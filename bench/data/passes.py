"""The two passes over the rows, count and encode, each in steps after which the state is saved."""

from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
from tqdm import tqdm

from bench.data import counting, shards, state, stream, vocabulary
from bench.data.rows import RowParser, Rows, transformed
from bench.data.schema import Schema
from bench.data.splits import NAMES, Split
from bench.data.stream import Cursor

WORKERS = 2
SAVE_ROWS = 1 << 25  # lines between two saved states of the counting pass: about a minute's work


class Passes:
    """Counts and encodes the rows of the files into folder out, from where the state says on."""

    def __init__(
        self, schema: Schema, files: list[Path], out: Path, now: state.State, split: Split, skip_bad: bool, pad: bool
    ):
        self.schema, self.files, self.out, self.now, self.split = schema, files, out, now, split
        self.parser = RowParser(schema, files, skip_bad, pad)
        self.work = state.work_folder(out)
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
        found = []
        for number, (column, runs) in enumerate(
            zip(tqdm(self.schema.sparse, desc="vocabulary", unit=" columns"), now.runs, strict=True)
        ):
            name = vocabulary.file_name(number, column)
            paths = [self.work / run for run in runs]
            distinct, kept = vocabulary.write(self.out / "vocabulary" / name, paths, threshold)
            found.append({"column": column, "file": f"vocabulary/{name}", "distinct": distinct, "kept": kept})
        now.vocabulary = found
        now.save(self.out)
        for runs in now.runs:
            for run in runs:
                (self.work / run).unlink(missing_ok=True)

    def encode(self, cap: int | None, shard_rows: int) -> None:
        """Write the shards of all rows; a step is shard_rows lines and writes a shard for each split that it meets."""
        if self.now.encoding.row == self.total:
            return
        vocabularies = vocabulary.open_all([self.out / part["file"] for part in self.now.vocabulary], cap)
        step = _Step(self.schema)
        with ThreadPoolExecutor(WORKERS) as pool, ThreadPoolExecutor(1) as writer:
            saved: Future | None = None
            for rows in self._rows(pool, "encode", self.now.encoding, self.total, shard_rows):
                step.add(rows, self.split.of(rows), vocabularies, pool)
                if rows.block.end.row % shard_rows == 0 or rows.block.end.row == self.total:
                    if saved is not None:
                        saved.result()  # one step is written while the next is encoded
                    saved = writer.submit(self._save_step, step, rows.block.end)
                    step = _Step(self.schema)
            if saved is not None:
                saved.result()

    def _save_step(self, step: "_Step", cursor: Cursor) -> None:
        now = self.now
        for name in NAMES:
            if step.parts[name]:
                label, dense, sparse = (np.concatenate(part) for part in zip(*step.parts[name], strict=True))
                file = f"{name}-{len(now.shards[name]):05d}.safetensors"
                now.shards[name].append(shards.write(self.out, file, label, dense, sparse))
            if step.unseen[name].any():
                before = now.unseen.get(name, [0] * len(self.schema.sparse))
                now.unseen[name] = [int(a + b) for a, b in zip(before, step.unseen[name], strict=True)]
        now.bad = dict(Counter(now.bad) + step.bad)
        now.padded += step.padded
        now.encoding = cursor
        now.save(self.out)

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

    def __init__(self, schema: Schema):
        self.parts: dict[str, list] = {name: [] for name in NAMES}  # of (label, dense, sparse)
        self.unseen = {name: np.zeros(len(schema.sparse), np.int64) for name in NAMES}
        self.bad: Counter = Counter()
        self.padded = 0

    def add(self, rows: Rows, split: np.ndarray, vocabularies: list, pool: ThreadPoolExecutor) -> None:
        self.bad += rows.bad
        self.padded += rows.padded
        for index, name in enumerate(NAMES):
            mine = split == index
            if not mine.any():
                continue
            keys, dense, label = rows.keys, rows.dense, rows.label
            if not mine.all():
                keys, dense, label = np.ascontiguousarray(keys[:, mine]), dense[mine], label[mine]
            sparse = np.empty((len(label), len(vocabularies)), np.int32)

            def encode(columns: range, keys=keys, sparse=sparse, name=name) -> None:
                for column in columns:
                    self.unseen[name][column] += vocabularies[column].encode(keys[column], sparse[:, column])

            transform = pool.submit(transformed, dense)
            list(pool.map(encode, [range(first, len(vocabularies), WORKERS) for first in range(WORKERS)]))
            self.parts[name].append((label, transform.result(), sparse))
