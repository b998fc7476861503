"""Cuts chains of blocks into stages of balanced cost, those of many plans at once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

PRECISION = 1e-6
"""Relative difference of stages' weights below which they are as heavy."""

Column = NDArray[np.float64]
Places = NDArray[np.int64]

Weights = NDArray[np.float64]
"""Of shape (plans, blocks)."""

Cuts = NDArray[np.int64]
"""Where stages begin, without the first: of shape (plans, stages - 1)."""


PARTS = 100
"""Into so many parts of the heaviest block weights are rounded: cuts fall between blocks, and what
is that little apart is cut alike."""

Shape = tuple[tuple[tuple[int, ...], ...], int]
"""What cuts depend on besides weights: the stages of every rank, and chunks."""


def rounded_weights(weights: Weights) -> Places:
    """Weights in parts of the heaviest block of each plan."""
    heaviest = np.maximum(weights.max(axis=1, keepdims=True), 1e-300)
    # Not at halves, where ratios of sizes like to lie and rounding errors would decide.
    return np.floor(PARTS * weights / heaviest + 0.4321).astype(np.int64)


class Partitions:
    """Where stages begin and end, by the weights of blocks; what is found is kept."""

    def __init__(self) -> None:
        self._known: dict[tuple[bytes, Shape], tuple[int, ...]] = {}

    def bounds(
        self, rounded: Places, shapes: Sequence[Shape], which: Places
    ) -> list[tuple[int, ...]]:
        """The bounds of stages of plans with such `rounded_weights`, each of the shape that `which`
        says."""
        keys = [(row.tobytes(), shapes[n]) for row, n in zip(rounded, which.tolist(), strict=True)]
        missing = {key: place for place, key in enumerate(keys) if key not in self._known}
        if missing:
            self._find(list(missing), rounded[list(missing.values())].astype(np.float64))
        return [self._known[key] for key in keys]

    def _find(self, keys: Sequence[tuple[bytes, Shape]], weights: Weights) -> None:
        stages = np.array([_num_stages(ranks) for _, (ranks, _) in keys])
        every = balanced_cuts(weights, stages)
        alike: dict[Shape, list[int]] = {}
        for place, (_, shape) in enumerate(keys):
            alike.setdefault(shape, []).append(place)
        for (ranks, chunks), places in alike.items():
            count = _num_stages(ranks)
            cuts = every[places, : count - 1]
            if chunks > 1 and count > 1:
                rank_of = {stage: rank for rank, own in enumerate(ranks) for stage in own}
                order = [rank_of[stage] for stage in range(count)]
                cuts = balance_ranks(weights[places], cuts, order)
            for place, own in zip(places, cuts.tolist(), strict=True):
                self._known[keys[place]] = (0, *own, weights.shape[1])


def _num_stages(ranks: Sequence[Sequence[int]]) -> int:
    return 1 + max(stage for own in ranks for stage in own)


def balanced_cuts(weights: Weights, stages: Places) -> Cuts:
    """Where stages begin (without the first) so that the heaviest is as light as can be, and of
    the stages before the last the heaviest, and so on; every stage has at least one block.

    Every row is cut into its number of stages, which are no more than blocks; rows of few are
    filled up with zeros.
    """
    plans, blocks = weights.shape
    chains = _Chains(weights)
    every = np.arange(plans)
    cuts = np.zeros((plans, int(stages.max(initial=1)) - 1), np.int64)
    end = np.full(plans, blocks)
    limit = chains.total(every, end) / stages + chains.heaviest_block(every, end)
    for left in range(cuts.shape[1] + 1, 1, -1):
        # The limit is lowered to what the heaviest stage weighs, as long as all blocks fit in.
        own = every[stages >= left]
        last = end[own]
        least = np.zeros(plans)
        least[own] = np.maximum(chains.total(own, last) / left, chains.heaviest_block(own, last))
        rows = own
        while len(rows := rows[limit[rows] * (1 - 2 * PRECISION) >= least[rows]]):
            used, heaviest = chains.fill(rows, end[rows], limit[rows] * (1 - 2 * PRECISION))
            fits = used <= left
            rows = rows[fits]
            limit[rows] = heaviest[fits]
        end[own] = chains.begin(own, last, left, limit[own])
        cuts[own, left - 2] = end[own]
    return cuts


class _Chains:
    """Blocks of every plan, and the runs of equal ones: `(first, end)` of each."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        plans, blocks = weights.shape
        prefix = np.zeros((plans, blocks + 1))
        np.cumsum(weights, axis=1, out=prefix[:, 1:])
        self.width = blocks + 1
        self.prefix = prefix.ravel()
        self.heaviest = np.maximum.accumulate(weights, axis=1).ravel()
        changes = np.flatnonzero((weights[:, 1:] != weights[:, :-1]).any(axis=0)) + 1
        self.runs = list(pairwise([0, *map(int, changes), blocks]))

    def total(self, rows: Places, end: Places) -> Column:
        """What the blocks before `end` weigh."""
        return self.prefix[rows * self.width + end]

    def heaviest_block(self, rows: Places, end: Places) -> Column:
        """What the heaviest block before `end` weighs."""
        return self.heaviest[rows * (self.width - 1) + end - 1]

    def begin(self, rows: Places, end: Places, stages: int, limit: Column) -> Places:
        """The first block of the last of so many stages, filled up to the limit from `end`; the
        stages before it need a block each."""
        first = rows * self.width
        least = self.prefix[first + end] - limit * (1 + PRECISION)
        low, high = np.zeros_like(end), end
        for _ in range(self.width.bit_length()):  # by bisection: before `low`, all is below `least`
            middle = (low + high) >> 1
            below = self.prefix[first + middle] < least
            low, high = np.where(below, middle + 1, low), np.where(below, high, middle)
        return np.maximum(low, stages - 1)

    def fill(self, rows: Places, end: Places, limit: Column) -> tuple[Column, Column]:
        """Fills stages up to the limit, from the last block to the first, run by run: how many
        that takes (infinitely many if a block is too heavy), and what the heaviest weighs."""
        limit = limit * (1 + PRECISION)
        used, heaviest = np.ones(len(rows)), np.zeros(len(rows))
        open_stage = np.zeros(len(rows))
        for first, last in reversed(self.runs):
            count = np.clip(end, first, last) - first
            weight = np.maximum(self.weights[rows, first], 1e-300)
            added = np.minimum(count, np.floor((limit - open_stage) / weight))
            open_stage = open_stage + added * weight
            heaviest = np.maximum(heaviest, open_stage)
            rest = count - added
            per_stage = np.floor(limit / weight)
            with np.errstate(divide="ignore", invalid="ignore"):
                opened = np.where(rest > 0, np.ceil(rest / per_stage), 0.0)
            fresh = opened > 0
            used = used + opened
            heaviest = np.where(opened > 1, np.maximum(heaviest, per_stage * weight), heaviest)
            last_stage = np.where(fresh, rest - (opened - 1) * per_stage, 0.0) * weight
            open_stage = np.where(fresh, last_stage, open_stage)
            heaviest = np.maximum(heaviest, open_stage)
        return used, heaviest


def balance_ranks(weights: Weights, cuts: Cuts, rank_of_stage: Sequence[int]) -> Cuts:
    """Cuts moved block by block, as long as that makes the heaviest rank lighter, row by row.

    Where a rank holds several stages, stages of equal weight are not ranks of equal weight: the
    rank with the model's head should have less of the rest.
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
    loads = by_stage @ (ranks[:, None] == np.arange(ranks.max() + 1))
    # A cut moves down (its block goes to the stage behind it) or up (to the stage before it).
    step = np.tile([-1, 1], len(ranks) - 1)
    cut = np.repeat(np.arange(1, len(ranks)), 2)
    giver = np.where(step < 0, ranks[cut - 1], ranks[cut])
    taker = np.where(step < 0, ranks[cut], ranks[cut - 1])
    rows = np.arange(plans)
    light = 1 - PRECISION  # rounding must not decide between equals
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
        goes_on = np.isfinite(taken[np.arange(len(rows)), best])
        rows, best = rows[goes_on], best[goes_on]
        weight = weight[goes_on, best]
        bounds[rows, cut[best]] += step[best]
        loads[rows, giver[best]] -= weight
        loads[rows, taker[best]] += weight
    return bounds[:, 1:-1]
