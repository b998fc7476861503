"""Cuts a chain of blocks into stages of balanced cost."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

PRECISION = 1e-6
"""Relative width at which the bisection for the lightest heaviest stage stops."""


def balanced_cuts(weights: Sequence[float], stages: int) -> tuple[int, ...]:
    """Where stages begin (without the first) so that the heaviest is as light as can be, and of
    the stages before the last the heaviest, and so on. Every stage has at least one block.
    """
    if stages >= len(weights):
        return tuple(range(1, len(weights)))
    prefix = [0.0, *accumulate(weights)]
    cuts: list[int] = []
    end = len(weights)
    heaviest = max(weights)
    for left in range(stages, 1, -1):
        limit = _lightest_limit(prefix, end, left, heaviest)
        end = _begin_of_last(prefix, end, left, limit)
        cuts.append(end)
    return tuple(reversed(cuts))


def _lightest_limit(prefix: Sequence[float], end: int, stages: int, heaviest: float) -> float:
    """The least limit under which blocks `0 … end` fit in so many stages, by bisection between
    the mean and the mean plus the heaviest block."""
    low = prefix[end] / stages
    high = low + heaviest
    while high - low > PRECISION * high:
        middle = 0.5 * (low + high)
        if _fits(prefix, end, stages, middle):
            high = middle
        else:
            low = middle
    return high


def _fits(prefix: Sequence[float], end: int, stages: int, limit: float) -> bool:
    for left in range(stages, 0, -1):
        begin = _begin_of_last(prefix, end, left, limit)
        if begin >= end:
            return False
        end = begin
        if end == 0:
            return True
    return False


def _begin_of_last(prefix: Sequence[float], end: int, stages: int, limit: float) -> int:
    """The first block of the last of so many stages, filled up to the limit; the stages before it
    need a block each."""
    begin = bisect_left(prefix, prefix[end] - limit * (1 + PRECISION), 0, end + 1)
    return max(begin, stages - 1)


def balance_ranks(
    weights: Sequence[float], cuts: Sequence[int], rank_of_stage: Sequence[int]
) -> tuple[int, ...]:
    """Cuts moved block by block, as long as that makes the heaviest rank lighter.

    Where a rank holds several stages, stages of equal weight are not ranks of equal weight: the
    rank with the model's head should have less of the rest.
    """
    bounds = [0, *cuts, len(weights)]
    loads = [0.0] * (1 + max(rank_of_stage))
    for stage, rank in enumerate(rank_of_stage):
        loads[rank] += sum(weights[bounds[stage] : bounds[stage + 1]])
    while True:
        heaviest = max(loads)
        best: tuple[float, int, int] | None = None
        for cut in range(1, len(bounds) - 1):
            for step in (-1, 1):
                moved = bounds[cut] + step
                if not bounds[cut - 1] < moved < bounds[cut + 1]:
                    continue
                # The block goes to the stage behind the cut, or to the one before it.
                weight = weights[moved] if step < 0 else weights[moved - 1]
                giver, taker = rank_of_stage[cut - 1], rank_of_stage[cut]
                if step > 0:
                    giver, taker = taker, giver
                if loads[giver] < heaviest or loads[taker] + weight >= heaviest:
                    continue
                if best is None or loads[taker] + weight < best[0]:
                    best = (loads[taker] + weight, cut, step)
        if best is None:
            return tuple(bounds[1:-1])
        _, cut, step = best
        weight = weights[bounds[cut] - 1] if step < 0 else weights[bounds[cut]]
        giver, taker = rank_of_stage[cut - 1], rank_of_stage[cut]
        if step > 0:
            giver, taker = taker, giver
        bounds[cut] += step
        loads[giver] -= weight
        loads[taker] += weight
