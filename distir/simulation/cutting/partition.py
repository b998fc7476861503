"""Cuts the blocks of models into stages of balanced weight, for many plans at once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from distir.arrays import Indices, distinct

EQUAL_WEIGHTS = 1e-6
"""Relative difference of weights below which they count as equal."""

Weights = NDArray[np.float64]
"""Seconds of blocks, or other numbers in proportion, of shape (plans, blocks)."""

Cuts = NDArray[np.int64]
"""First blocks of stages, without the first stage: of shape (plans, stages - 1)."""

WEIGHT_STEPS = 100
"""The weight of the heaviest block, after rounding. Weights that round to equal numbers are cut
alike, so that their cuts are found once."""

MOST_KEPT = 1 << 16
"""The largest number of partitions that are kept."""

NO_LIMIT = np.iinfo(np.int64).max
"""A weight that no stage exceeds."""

Bounds = tuple[int, ...]
"""The first block of every stage, and the number of blocks."""

Shape = tuple[tuple[tuple[int, ...], ...], int]
"""On what cuts depend besides weights: the stages of every rank, and the number of chunks."""


def rounded_weights(weights: Weights) -> Indices:
    """Weights as whole numbers, of which the heaviest block of each plan has `WEIGHT_STEPS`."""
    heaviest = np.maximum(weights.max(axis=1, keepdims=True), 1e-300)
    # Rounded away from halves: ratios of sizes often are halves, and errors would decide.
    return np.floor(WEIGHT_STEPS * weights / heaviest + 0.4321).astype(np.int64)


class Partitions:
    """The bounds of stages by the weights of blocks. The last ones that were found are kept."""

    def __init__(self) -> None:
        self._shapes: dict[Shape, int] = {}
        self._known: dict[tuple[bytes, int], Bounds] = {}

    def __len__(self) -> int:
        return len(self._known)

    def bounds(
        self, rounded: Indices, shapes: Sequence[Shape], rows: Indices, which: Indices
    ) -> list[Bounds]:
        """The bounds of the stages of plans. Plan i has the weights `rounded[rows[i]]` (see
        `rounded_weights`) and the shape `shapes[which[i]]`."""
        names = [row.tobytes() for row in rounded.astype(np.uint8)]
        numbers = [self._shapes.setdefault(shape, len(self._shapes)) for shape in shapes]
        keys = [
            (names[int(row)], numbers[int(shape)]) for row, shape in zip(rows, which, strict=True)
        ]
        missing = {key: case for case, key in enumerate(keys) if key not in self._known}
        if missing:
            cases = np.array(list(missing.values()))
            found = _cut(rounded, shapes, rows[cases], which[cases])
            self._known |= zip(missing, found, strict=True)
        bounds = [self._known[key] for key in keys]
        for key in list(islice(self._known, max(0, len(self._known) - MOST_KEPT))):
            del self._known[key]
        return bounds


def _cut(rounded: Indices, shapes: Sequence[Shape], rows: Indices, which: Indices) -> list[Bounds]:
    """The bounds of plans; see `Partitions.bounds`."""
    stages = np.array([num_stages(ranks) for ranks, _ in shapes])
    # Stages are balanced first, which depends on their number and not on the ranks that hold them.
    first, same = distinct(rows * (1 + int(stages.max())) + stages[which])
    every = balanced_cuts(rounded[rows[first]], stages[which[first]])[same]
    found: list[Bounds] = [()] * len(rows)
    for shape in sorted(set(which.tolist())):
        (ranks, chunks), count = shapes[int(shape)], int(stages[shape])
        places = np.flatnonzero(which == shape)
        cuts = every[places, : count - 1]
        if chunks > 1 and count > 1:
            rank_of = {stage: rank for rank, own in enumerate(ranks) for stage in own}
            order = [rank_of[stage] for stage in range(count)]
            cuts = balance_ranks(rounded[rows[places]].astype(np.float64), cuts, order)
        for place, own in zip(places.tolist(), cuts.tolist(), strict=True):
            found[place] = (0, *own, rounded.shape[1])
    return found


def num_stages(ranks: Sequence[Sequence[int]]) -> int:
    """The number of stages, given those of every rank."""
    return 1 + max(stage for own in ranks for stage in own)


def balanced_cuts(weights: Indices, stages: Indices) -> Cuts:
    """Cuts that make the heaviest stage as light as possible, then the heaviest of the stages
    before the last, and so on. Every stage has at least one block.

    `weights` are whole numbers, of shape (plans, blocks), and `stages` has the number of stages of
    each plan, at most the number of blocks. The cuts of plans with fewer stages than others are
    filled up with zeros.
    """
    plans, blocks = weights.shape
    cuts = np.zeros((plans, int(stages.max(initial=1)) - 1), np.int64)
    sums = _WeightSums(weights)
    begin = np.arange(plans, dtype=np.int64) * sums.width
    end, left = begin + blocks, stages.copy()
    total = sums.between(begin, end)
    high = np.minimum(total, total // left + sums.heaviest[end])
    rows = np.flatnonzero(left > 1)
    while len(rows):
        rows = rows[np.argsort(-left[rows], kind="stable")]
        limit, reach = sums.limits(begin[rows], end[rows], left[rows], high[rows])
        # The last stage is filled up to the limit, then the one before it, and so on, until the
        # heaviest stage of the rest could be lighter.
        own = np.arange(len(rows), dtype=np.int64)
        while len(own):
            some = rows[own]
            left[some] -= 1
            before, first = left[some], begin[some]
            last = np.maximum(sums.filled_down(end[some], limit[own]), first + before)
            end[some] = last
            cuts[some, before - 1] = last - first
            as_heavy = (last > reach[before, own]) | (last == first + before)
            own = own[as_heavy & (before > 1)]
        high[rows] = limit - 1
        rows = rows[left[rows] > 1]
    return cuts


class _WeightSums:
    """Sums of the weights of blocks, from the first block of each plan.

    The sums of all plans are one ascending array, so that one search finds the ends of stages in
    all plans. A *place* is an index in it: those of plan `i` begin at `i · width`. The sums of a
    plan exceed those of the plan before by more than any stage weighs.
    """

    def __init__(self, weights: Indices) -> None:
        plans, blocks = weights.shape
        self.width = blocks + 2
        sums = np.zeros((plans, self.width), np.int64)
        np.cumsum(weights, axis=1, out=sums[:, 1:-1])
        apart = 2 * int(sums.max(initial=0)) + 2
        sums[:, -1] = apart - 1  # no stage reaches this
        self._sums = (sums + apart * np.arange(plans, dtype=np.int64)[:, None]).ravel()
        heaviest = np.zeros((plans, self.width), np.int64)
        np.maximum.accumulate(weights, axis=1, out=heaviest[:, 1:-1])
        self.heaviest = heaviest.ravel()
        """The weight of the heaviest block of the plan before each place."""

    def between(self, begin: Indices, end: Indices) -> Indices:
        """The weight of the blocks between two places."""
        return self._sums[end] - self._sums[begin]

    def filled_down(self, end: Indices, limit: Indices) -> Indices:
        """The first block of a stage that ends at `end` and is as heavy as `limit` allows; a place
        before the plan's first if all blocks fit."""
        return np.searchsorted(self._sums, self._sums[end] - limit)

    def limits(
        self, begin: Indices, end: Indices, stages: Indices, high: Indices
    ) -> tuple[Indices, Indices]:
        """The least weight of the heaviest of the plans' stages, which is at most `high`; and the
        places that 0, 1, 2, … lighter stages reach, of shape (stages + 1, plans). Plans are sorted
        by their number of stages, the largest first."""
        low = np.maximum(-(-self.between(begin, end) // stages), self.heaviest[end])
        reach = np.zeros((1 + int(stages[0]), len(begin)), np.int64)
        rows, limit = np.arange(len(begin)), low - 1
        while len(rows):
            found = self._reach(begin[rows], stages[rows], limit)
            ends = self._sums[np.minimum(found, end[rows])]
            heaviest = np.diff(ends, axis=0).max(axis=0)
            # A stage reaches further only with a limit that admits the block after it.
            further = self._sums[found[1:] + 1] - self._sums[found[:-1]]
            further = np.where(further > limit, further, NO_LIMIT).min(axis=0)
            fits = found[-1] >= end[rows]
            high[rows] = np.where(fits, heaviest, high[rows])
            low[rows] = np.where(fits, low[rows], further)
            reach[: len(found), rows[~fits]] = found[:, ~fits]
            rows = rows[low[rows] < high[rows]]
            limit = (low[rows] + high[rows]) // 2
        return low, reach

    def _reach(self, begin: Indices, stages: Indices, limit: Indices) -> Indices:
        """The places that 0, 1, 2, … stages up to the limit reach, for plans in the order of
        `limits`. After the last stage of a plan its place stays."""
        reach = np.empty((1 + int(stages[0]), len(begin)), np.int64)
        reach[0] = begin
        counts = len(stages) - np.searchsorted(stages[::-1], np.arange(1, len(reach)))
        for number, count in enumerate(counts.tolist()):
            most = self._sums[reach[number, :count]] + limit[:count]
            reach[number + 1, :count] = np.searchsorted(self._sums, most, "right") - 1
            reach[number + 1, count:] = reach[number, count:]
        return reach


def balance_ranks(weights: Weights, cuts: Cuts, rank_of_stage: Sequence[int]) -> Cuts:
    """Moves cuts by one block at a time, as long as that makes the heaviest rank lighter.

    If ranks hold several stages, stages of equal weight do not make ranks of equal weight: the rank
    with the model's head should have fewer of the other blocks.
    """
    plans, blocks = weights.shape
    if not cuts.shape[1]:
        return cuts
    ranks = np.array(rank_of_stage)
    prefix = np.zeros((plans, blocks + 1))
    np.cumsum(weights, axis=1, out=prefix[:, 1:])
    bounds = np.zeros((plans, cuts.shape[1] + 2), np.int64)
    bounds[:, 1:-1], bounds[:, -1] = cuts, blocks
    by_stage = np.diff(np.take_along_axis(prefix, bounds, 1), axis=1)
    loads = by_stage @ (ranks[:, None] == np.arange(ranks.max() + 1, dtype=np.int64))
    # A cut moves down (its block goes to the stage behind it) or up (to the stage before it).
    step = np.tile([-1, 1], len(ranks) - 1)
    cut = np.repeat(np.arange(1, len(ranks)), 2)
    giver = np.where(step < 0, ranks[cut - 1], ranks[cut])
    taker = np.where(step < 0, ranks[cut], ranks[cut - 1])
    rows = np.arange(plans, dtype=np.int64)
    light = 1 - EQUAL_WEIGHTS  # so that rounding does not decide between equal weights
    while len(rows):
        own, load = bounds[rows], loads[rows]
        moved = own[:, cut] + step
        allowed = (own[:, cut - 1] < moved) & (moved < own[:, cut + 1])
        block = np.where(step < 0, moved, moved - 1)
        weight = np.take_along_axis(weights[rows], np.clip(block, 0, blocks - 1), 1)
        heaviest = load.max(axis=1, keepdims=True)
        taken = load[:, taker] + weight
        allowed &= (load[:, giver] >= heaviest * light) & (taken < heaviest * light)
        taken = np.where(allowed, taken, np.inf)
        best = (taken * light <= taken.min(axis=1, keepdims=True)).argmax(axis=1)
        goes_on = np.isfinite(taken[np.arange(len(rows), dtype=np.int64), best])
        rows, best = rows[goes_on], best[goes_on]
        weight = weight[goes_on, best]
        bounds[rows, cut[best]] += step[best]
        loads[rows, giver[best]] -= weight
        loads[rows, taker[best]] += weight
    return bounds[:, 1:-1]
