"""Batches from a prepared data set, checked against its manifest.

data = open_dataset("results/laptop/data")
for batch in data.batches("train", 4096, seed=0):  # one pass in shuffled order
    batch.dense, batch.sparse, batch.label  # (B, n_dense) float32, (B, n_sparse) int32, (B,) float32
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors.torch
import torch

from bench.data import manifest
from bench.errors import UserError

GROUP_SHARDS = 8  # whose rows are shuffled together; with shards of 65,536 rows of Criteo's columns 82 MB in memory


@dataclass
class Batch:
    """B rows."""

    dense: torch.Tensor  # (B, n_dense) float32
    sparse: torch.Tensor  # (B, n_sparse) int32, ids below the column's cardinality
    label: torch.Tensor  # (B,) float32, 0 or 1


def part_of(rows: int, rank: int, ranks: int) -> tuple[int, int]:
    """First row of this rank's part of `rows`, and the one after its last; parts differ by at most one row."""
    return rows * rank // ranks, rows * (rank + 1) // ranks


def open_dataset(path: str | Path) -> "DataSet":
    """Open the data set in a folder.

    Raises:
        UserError: no complete data set there, or its manifest does not fit; says how.
    """
    return DataSet(Path(path))


class DataSet:
    """A prepared data set. See open_dataset."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.manifest = manifest.read(folder)
        self.cardinalities: list[int] = self.manifest["cardinalities"]
        self.dense_names: list[str] = self.manifest["columns"]["dense"]
        self.sparse_names: list[str] = self.manifest["columns"]["sparse"]
        self._limits = torch.tensor(self.cardinalities, dtype=torch.int32)
        self._whole: set[str] = set()  # shards whose bytes were compared with the manifest
        for split in self.manifest["splits"].values():
            for shard in split["shards"]:
                if not (folder / shard["file"]).is_file():
                    raise UserError(f"{folder} lacks shard {shard['file']} of its manifest: prepare the data set again")

    def rows(self, split: str) -> int:
        """Rows of "train", "validation" or "test"."""
        return self.manifest["splits"][split]["rows"]

    def batches(
        self,
        split: str,
        batch_size: int,
        seed: int | None = None,
        start_step: int = 0,
        part: tuple[int, int] = (0, 1),
    ) -> Iterator[Batch]:
        """One pass over a split: every row once, the last batch short.

        Args:
            seed: order of the rows, as a function of it alone: shards in random order are read in groups, and rows
                of a group come in random order; None: the file's order.
            start_step: leave out so many batches, without reading groups that hold nothing else.
            part: (rank, ranks): of every batch only this rank's rows (see part_of), which may be none.

        Raises:
            UserError: a shard that is missing or does not fit the manifest, or training rows fewer than one batch.
        """
        if batch_size < 1:
            raise UserError(f"batch size {batch_size}: must be at least 1")
        if seed is not None and self.rows(split) < batch_size:
            raise UserError(
                f"the {split} split of {self.folder} has {self.rows(split)} rows, fewer than one batch of "
                f"{batch_size}: give more rows or a smaller batch"
            )
        return self._batches(split, batch_size, seed, start_step, part)

    def _batches(
        self, split: str, batch_size: int, seed: int | None, start_step: int, part: tuple[int, int]
    ) -> Iterator[Batch]:
        shards = self.manifest["splits"][split]["shards"]
        order, size = np.arange(len(shards)), 1
        if seed is not None:
            order, size = np.random.default_rng([seed, 0]).permutation(len(shards)), GROUP_SHARDS
        skip = start_step * batch_size
        ahead = self.rows(split) - skip  # rows of this batch and of those after it
        rest: list[Batch] = []  # of rows that do not fill a batch yet, the part's
        waiting = 0  # rows that do not fill a batch yet
        for number, begin in enumerate(range(0, len(order), size)):
            entries = [shards[shard] for shard in order[begin : begin + size]]
            rows = sum(entry["rows"] for entry in entries)
            if skip >= rows:
                skip -= rows
                continue
            group = self._group(entries)
            shuffled = None
            if seed is not None:
                shuffled = torch.from_numpy(np.random.default_rng([seed, 1, number]).permutation(rows))
            at, skip = skip, 0
            while at < rows:
                batch = min(batch_size, ahead)
                end = min(at + batch - waiting, rows)
                low, high = (min(max(at + row - waiting, at), end) for row in part_of(batch, *part))
                rest.append(_cut(group, low, high) if shuffled is None else _take(group, shuffled[low:high]))
                waiting += end - at
                at = end
                if waiting == batch:
                    yield _joined(rest)
                    rest, waiting, ahead = [], 0, ahead - batch

    def _group(self, entries: list[dict]) -> Batch:
        """Rows of the shards one after the other."""
        if len(entries) == 1:
            return self._load(entries[0])
        rows, at = sum(entry["rows"] for entry in entries), 0
        group = Batch(
            torch.empty(rows, len(self.dense_names)),
            torch.empty(rows, len(self.sparse_names), dtype=torch.int32),
            torch.empty(rows),
        )
        for entry in entries:  # into their place: no more than one shard is held twice
            shard, end = self._load(entry), at + entry["rows"]
            group.dense[at:end], group.sparse[at:end], group.label[at:end] = shard.dense, shard.sparse, shard.label
            at = end
        return group

    def _load(self, entry: dict) -> Batch:
        """Read a shard and check bytes, rows, types and ranges of ids."""
        path = self.folder / entry["file"]
        again = "prepare the data set again"
        try:
            data = path.read_bytes()
        except OSError as error:
            raise UserError(f"cannot read shard {path}: {error.strerror}; {again}") from None
        if entry["file"] not in self._whole and hashlib.sha256(data).hexdigest() != entry["sha256"]:
            raise UserError(f"shard {path} is not the one that the manifest describes (sha256 differs): {again}")
        self._whole.add(entry["file"])
        tensors = safetensors.torch.load(data)
        rows = entry["rows"]
        expected = {
            "dense": ((rows, len(self.dense_names)), torch.float32),
            "sparse": ((rows, len(self.sparse_names)), torch.int32),
            "label": ((rows,), torch.uint8),
        }
        for name, (shape, dtype) in expected.items():
            found = tensors.get(name)
            if found is None or tuple(found.shape) != shape or found.dtype != dtype:
                have = "is missing" if found is None else f"is {tuple(found.shape)} {found.dtype}"
                raise UserError(f"shard {path}: {name} {have} instead of {shape} {dtype}; {again}")
        low, high = torch.aminmax(tensors["sparse"], dim=0)
        wrong = torch.nonzero((low < 0) | (high >= self._limits)).flatten()
        if len(wrong):
            column = int(wrong[0])
            value = int(low[column]) if low[column] < 0 else int(high[column])
            raise UserError(
                f"shard {path}: id {value} in column {self.sparse_names[column]} is outside its table of "
                f"{self.cardinalities[column]} rows; {again}"
            )
        positives = int(tensors["label"].sum())
        if positives != entry["positives"]:
            raise UserError(f"shard {path}: {positives} positives instead of {entry['positives']}; {again}")
        return Batch(tensors["dense"], tensors["sparse"], tensors["label"].float())


def _take(rows: Batch, index: torch.Tensor) -> Batch:
    return Batch(*(part.index_select(0, index) for part in (rows.dense, rows.sparse, rows.label)))


def _cut(rows: Batch, begin: int, end: int) -> Batch:
    return Batch(rows.dense[begin:end], rows.sparse[begin:end], rows.label[begin:end])


def _joined(parts: list[Batch]) -> Batch:
    if len(parts) == 1:
        return parts[0]
    return Batch(*(torch.cat(tensors) for tensors in zip(*((p.dense, p.sparse, p.label) for p in parts), strict=True)))
