"""The made-up truth behind generated rows: features in groups that vary together, and a click probability from them.

Each row has a latent number for each of 8 groups of features, standard normal; groups 2k and 2k + 1 share part of it.
A categorical column lays its ids side by side on the normal scale, each as wide as its share; a row's id is the one at
a noisy copy of its group's latent. So shares are exact, and ids of a group go together. An id's score is the mean of
its stretch of the scale; its place on the scale also gives it a direction in a plane. The logit is the sum of

    main    a linear function of the scores and of the dense columns' normal scores: what a logistic regression can see
    across  products of pairs of groups' summed scores
    inside  how far the directions of pairs of columns in one group agree, their inner products: so ids that go together
            have embeddings that are alike in a model that multiplies embeddings

Scores of rare ids are shrunk to 0: what is never seen often enough cannot be learned.
The world is the same for every seed, so that its numbers hold for all generated files; seeds only change rows.
"""

from dataclasses import dataclass, fields
from itertools import combinations

import numba
import numpy as np
from scipy.special import ndtri

from bench.data import look

GROUPS = (  # categorical and dense columns that vary together; neighbours in pairs do so more loosely
    ("C3", "C12", "C21", "I1", "I10"),
    ("C4", "C16", "C24", "I4", "I13"),
    ("C19", "C20", "C25", "C26", "I3"),
    ("C6", "C13", "C22", "I2", "I12"),
    ("C1", "C10", "C15", "I5"),
    ("C2", "C8", "C18", "I7", "I9", "I11"),
    ("C5", "C11", "C14", "I6"),
    ("C7", "C9", "C17", "C23", "I8"),
)
LABEL_RATE = 0.256
PAIR_SHARE = 0.35  # of the variance of a group's latent is common to two neighbouring groups
SPARSE_CORRELATION, DENSE_CORRELATION = 0.93, 0.6  # with the group's latent
MAIN, ACROSS, INSIDE = 1.1, 0.45, 0.72  # standard deviations of the logit's parts
SHRINK_COUNT = 60.0  # an id with this many rows in SHRINK_ROWS keeps half its score
SHRINK_ROWS = 500_000
_WORLD_SEED = 20240513
_CALIBRATION_ROWS = 1 << 17
_GRID, _RANGE = 4096, 6.0  # places for finding an id on the scale from -6 to 6


@dataclass(frozen=True)
class Sample:
    """Rows: label and probability (rows,), counts (rows, 13) int64, ids (rows, 26) uint32, missing masks of both."""

    label: np.ndarray
    probability: np.ndarray
    counts: np.ndarray
    counts_missing: np.ndarray
    ids: np.ndarray
    ids_missing: np.ndarray

    def cut(self, rows: int) -> "tuple[Sample, Sample]":
        """The first rows and the others."""
        parts = [getattr(self, field.name) for field in fields(self)]
        return Sample(*(part[:rows] for part in parts)), Sample(*(part[rows:] for part in parts))


class World:
    """Draws rows."""

    def __init__(self):
        rng = np.random.default_rng(_WORLD_SEED)
        columns, self.group = look.CATEGORICALS, np.zeros(len(look.CATEGORICALS), np.int64)
        width = look.HEAD_IDS + look.TAIL_BUCKETS
        self.edges = np.full((len(columns), width), np.inf)  # upper end of each cell on the normal scale
        self.rank = np.zeros((len(columns), width), np.int64)  # of the cell's id; tail buckets: -1 - bucket
        self.score = np.zeros((len(columns), width))
        self.direction = np.zeros((len(columns), width, 2))
        self.grid = np.zeros((len(columns), _GRID), np.int64)
        self.tail = np.zeros((len(columns), 3))  # flatness, and the ends of the tail's inverse distribution
        names = [column.name for column in columns]
        for i, column in enumerate(columns):
            self.group[i] = next(g for g, group in enumerate(GROUPS) if column.name in group)
            self._lay_out(i, column, rng)
        self.dense_group = np.array([next(g for g, group in enumerate(GROUPS) if c.name in group) for c in look.COUNTS])
        # weights of the main part: the columns of a group pull the same way, with some of their own
        group_pull = rng.normal(size=len(GROUPS))
        self.main = 0.7 * group_pull[self.group] + 0.5 * rng.normal(size=len(columns))
        self.dense_main = 0.7 * group_pull[self.dense_group] + 0.5 * rng.normal(size=len(look.COUNTS))
        self.across = np.triu(rng.choice([-1.0, 1.0], (8, 8)) * rng.uniform(0.5, 1.0, (8, 8)), 1)
        members = [[names.index(name) for name in group if name in names] for group in GROUPS]
        self.pairs = np.array([pair for group in members for pair in combinations(group, 2)])
        self.inside = rng.uniform(0.5, 1.0, len(self.pairs))
        self._calibrate(rng)

    def draw(self, rng: np.random.Generator, rows: int) -> Sample:
        """Rows as a function of the generator's state alone."""
        ids, ids_missing, normal, counts_missing, parts = self._features(rng, rows)
        logit = self.intercept + sum(scale * part for scale, part in zip(self.scales, parts, strict=True))
        probability = (1 / (1 + np.exp(-logit))).astype(np.float32)
        label = (rng.random(rows) < probability).astype(np.uint8)
        counts = np.stack([look.integers(c, normal[:, j]) for j, c in enumerate(look.COUNTS)], 1)
        return Sample(label, probability, counts, counts_missing, ids, ids_missing)

    def _lay_out(self, i: int, column: look.Categorical, rng: np.random.Generator) -> None:
        """Put the column's ids side by side on the scale, in random order: edges, scores and directions."""
        own, tail = look.shares(column)
        share, rank = own, np.arange(len(own))
        if tail:
            share = np.concatenate((own, np.full(look.TAIL_BUCKETS, tail / look.TAIL_BUCKETS)))
            rank = np.concatenate((rank, -1 - np.arange(look.TAIL_BUCKETS)))
        order = rng.permutation(len(share))
        if own[0] > 0.3:  # a dominant id at the scale's end, where it tells most
            order = np.concatenate(([0], order[order != 0]))
        share, rank = share[order], rank[order]
        cells = len(share)
        upper = np.cumsum(share)
        edges = ndtri(np.clip(upper / upper[-1], 0, 1))
        density = np.exp(-0.5 * np.concatenate(([-np.inf], edges)) ** 2) / np.sqrt(2 * np.pi)
        count = share * SHRINK_ROWS
        keep = np.where(rank >= 0, count / (count + SHRINK_COUNT), 0.0)
        self.edges[i, :cells], self.rank[i, :cells] = edges, rank
        self.edges[i, cells - 1] = np.inf
        self.score[i, :cells] = keep * (density[:-1] - density[1:]) / share
        turn = 2 * np.pi * np.concatenate(([0.0], upper / upper[-1]))  # a mean direction: short where the id is wide
        self.direction[i, :cells, 0] = keep * np.diff(np.sin(turn)) / np.diff(turn)
        self.direction[i, :cells, 1] = -keep * np.diff(np.cos(turn)) / np.diff(turn)
        starts = -_RANGE + 2 * _RANGE * np.arange(_GRID) / _GRID
        self.grid[i] = np.searchsorted(self.edges[i, :cells], starts, side="left")
        if tail:
            flatness = 0.0 if column.head else look.FLAT
            ends = (len(own) + 1 + flatness, column.universe + flatness)
            self.tail[i] = flatness, ends[0] ** (1 - look.SLOPE), ends[1] ** (1 - look.SLOPE)

    def _features(self, rng: np.random.Generator, rows: int) -> tuple:
        """(ids, their missing mask, normal scores of the counts, their missing mask, the three parts of the logit)"""
        columns, counts = look.CATEGORICALS, look.COUNTS
        common = rng.standard_normal((rows, len(GROUPS) // 2), np.float32)
        latent = rng.standard_normal((rows, len(GROUPS)), np.float32)
        latent *= np.float32(np.sqrt(1 - PAIR_SHARE))
        latent += np.float32(np.sqrt(PAIR_SHARE)) * np.repeat(common, 2, axis=1)
        noise = rng.standard_normal((rows, len(columns)), np.float32)
        spread = rng.random((rows, len(columns)))  # place inside the tail
        normal = rng.standard_normal((rows, len(counts)), np.float32)
        normal *= np.float32(np.sqrt(1 - DENSE_CORRELATION**2))
        normal += np.float32(DENSE_CORRELATION) * latent[:, self.dense_group]
        absent = {word: rng.random(rows, np.float32) < share for word, share in look.MISSING_SHARE.items()}
        never = np.zeros(rows, bool)
        ids_missing = np.stack([absent.get(column.missing, never) for column in columns], 1)
        counts_missing = np.stack([absent.get(column.missing, never) for column in counts], 1)
        ids = np.empty((rows, len(columns)), np.uint32)
        group_scores = np.zeros((rows, len(GROUPS)))
        main, inside = np.zeros((2, rows))
        _draw(
            latent, noise, spread, ids_missing, self.group, self.edges, self.grid, self.rank, self.score,
            self.direction, self.tail, look.TAIL_BUCKETS, 1 / (1 - look.SLOPE), self.main, self.pairs, self.inside,
            ids, group_scores, main, inside,
        )  # fmt: skip
        main += np.where(counts_missing, 0, normal) @ self.dense_main
        across = ((group_scores @ self.across) * group_scores).sum(1)
        return ids, ids_missing, normal, counts_missing, (main, across, inside)

    def _calibrate(self, rng: np.random.Generator) -> None:
        """Scale the parts of the logit, and choose the intercept that gives the label rate."""
        *_, parts = self._features(rng, _CALIBRATION_ROWS)
        self.scales = [size / part.std() for size, part in zip((MAIN, ACROSS, INSIDE), parts, strict=True)]
        logit = sum(scale * part for scale, part in zip(self.scales, parts, strict=True))
        low, high = -10.0, 10.0
        for _ in range(40):
            self.intercept = (low + high) / 2
            rate = (1 / (1 + np.exp(-logit - self.intercept))).mean()
            low, high = (low, self.intercept) if rate > LABEL_RATE else (self.intercept, high)


@numba.njit(nogil=True, cache=True)
def _draw(
    latent, noise, spread, missing, group, edges, grid, rank, score, direction, tail, buckets, exponent,
    weight, pairs, pair_weight, ids, group_scores, main, inside,
):  # fmt: skip
    """Fill ids, the groups' summed scores, and the main and inside parts of the logit."""
    rows, columns = ids.shape
    own = np.sqrt(1 - SPARSE_CORRELATION**2)
    turned = np.empty((columns, 2))
    for row in range(rows):
        for i in range(columns):
            place = SPARSE_CORRELATION * latent[row, group[i]] + own * noise[row, i]
            at = np.int64((min(max(place, -_RANGE), _RANGE - 1e-3) + _RANGE) * (_GRID / (2 * _RANGE)))
            cell = grid[i, at]
            while edges[i, cell] < place:
                cell += 1
            number = rank[i, cell]
            if number < 0:  # a rare id of this bucket: its ranks lie `buckets` apart
                power = tail[i, 1] + spread[row, i] * (tail[i, 2] - tail[i, 1])
                drawn = np.int64(power**exponent - tail[i, 0])
                number = drawn // buckets * buckets - number - 1
            ids[row, i] = _hex_value(i, number)
            turned[i] = 0.0
            if not missing[row, i]:
                group_scores[row, group[i]] += score[i, cell]
                main[row] += weight[i] * score[i, cell]
                turned[i] = direction[i, cell]
        for k in range(len(pairs)):
            a, b = turned[pairs[k, 0]], turned[pairs[k, 1]]
            inside[row] += pair_weight[k] * (a[0] * b[0] + a[1] * b[1])


@numba.njit(nogil=True, cache=True)
def _hex_value(column, rank):
    """32 bits that stand for an id in the file (splitmix64's finish)."""
    value = (np.uint64(column + 1) << np.uint64(40)) + np.uint64(rank)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.uint32((value ^ (value >> np.uint64(31))) >> np.uint64(32))
