"""What would have to change for another plan to win, found by simulation.

Candidates are given: the best of each layout, as a rule. With other hardware another variant of a
layout may be better than the one that is given; so a break-even point is where one of these plans
overtakes the best of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from autotune.objectives.costs import EQUAL
from autotune.study.trial import layout
from distir.errors import DistirError
from distir.metrics import iteration_seconds
from distir.strategy import MOST_MICROBATCHES, Strategy

if TYPE_CHECKING:
    from autotune.problem import Problem
    from distir.cost import Cluster
    from distir.simulation import Simulator

FACTORS = (2.0, 4.0, 16.0)
"""Times more, and less, of something that are tried in search of another winner."""
HALVINGS = 4
"""How often the stretch with the break-even point is halved, which finds it to some percent."""
BATCHES = (0.25, 0.5, 2.0, 4.0)
"""Times the batch that are tried."""

Times = Callable[[float], Mapping[Strategy, float]]
"""Seconds of an iteration of the candidates that fit, by a factor on what is changed."""


@dataclass(frozen=True, slots=True)
class BreakEven:
    """By how much something has to change for another candidate to be the fastest."""

    what: str
    now: float
    factor: float | None
    """The least change with another winner; None where there is none within the range."""
    winner: Strategy | None
    larger: bool
    """Whether more of it was looked at, or less."""


def fastest(times: Mapping[Strategy, float]) -> Strategy | None:
    """The candidate that takes least time; of equals, the first."""
    return min(times, key=times.__getitem__, default=None)


def break_even(times: Times, best: Strategy, larger: bool) -> tuple[float, Strategy] | None:
    """The smallest factor above 1 (or the largest below) at which another candidate is faster than
    `best`, and that candidate; None within `FACTORS`."""

    def winner(times_more: float) -> Strategy | None:
        found = times(times_more if larger else 1 / times_more)
        first = fastest(found)
        beaten = first is not None and found[first] < found.get(best, math.inf) * (1 - EQUAL)
        return first if beaten else None

    low = 1.0
    for high in FACTORS:
        other = winner(high)
        if other is None:
            low = high
            continue
        for _ in range(HALVINGS):
            middle = math.sqrt(low * high)
            there = winner(middle)
            if there is None:
                low = middle
            else:
                high, other = middle, there
        return (high if larger else 1 / high), other
    return None


def bandwidth_break_evens(
    simulator: Simulator, candidates: Sequence[Strategy], best: Strategy
) -> list[BreakEven]:
    """Break-even points of the bandwidth of every level of the cluster, more and less of it."""
    cluster = simulator.cluster
    found: list[BreakEven] = []
    for level, each in enumerate(cluster.levels):
        if each.size == 1:
            continue
        times = _times(simulator, candidates, level)
        for larger in (True, False):
            at = break_even(times, best, larger)
            factor, winner = at if at is not None else (None, None)
            now = each.bandwidth_bytes_per_second
            found.append(BreakEven(f"bandwidth of {each.name}", now, factor, winner, larger))
    return found


def memory_break_even(
    needed: Mapping[Strategy, float], best: Strategy, memory_bytes: float
) -> BreakEven:
    """With how little memory `best` no longer fits, and the first of the candidates that still
    does; `needed` says what each needs. With more memory, only what does not fit now could win."""
    least = needed[best]
    winner = next((each for each, need in needed.items() if need < least), None)
    factor = least / memory_bytes if winner is not None else None
    return BreakEven("memory of a device", memory_bytes, factor, winner, larger=False)


def _with_bandwidth(cluster: Cluster, at: int, factor: float) -> Cluster:
    level = cluster.levels[at]
    faster = replace(
        level,
        bandwidth_bytes_per_second=level.bandwidth_bytes_per_second * factor,
        pair_bandwidth_bytes_per_second=level.pair_bandwidth_bytes_per_second * factor,
    )
    return replace(cluster, levels=(*cluster.levels[:at], faster, *cluster.levels[at + 1 :]))


def _times(simulator: Simulator, candidates: Sequence[Strategy], level: int) -> Times:
    def times(factor: float) -> Mapping[Strategy, float]:
        faster = _with_bandwidth(simulator.cluster, level, factor)
        there = simulator.repriced(simulator.cost.stack, faster)
        results = {strategy: there.simulate(strategy) for strategy in candidates}
        return {
            strategy: result.metrics[iteration_seconds.name]
            for strategy, result in results.items()
            if result.feasible
        }

    return times


@dataclass(frozen=True, slots=True)
class OtherBatch:
    """The fastest of some plans with another batch."""

    batch_size: int
    winner: Strategy | None
    """Its number of microbatches is that of a candidate, or in proportion to the batch; None where
    no candidate can be applied, or fits."""
    samples_per_second: float
    changed: bool
    """Whether the layout is another one than that of the best with the batch as it is."""


def other_batches(
    problem: Problem, candidates: Sequence[Strategy], best: Strategy
) -> list[OtherBatch]:
    """The fastest candidates with smaller and larger batches."""
    found: list[OtherBatch] = []
    for factor in BATCHES:
        size = round(problem.batch_size * factor)
        if problem.changed is None or size < 1 or size != problem.batch_size * factor:
            continue
        try:
            there = problem.changed(batch_size=size)
        except DistirError:
            continue  # this model has no use for such a batch
        tried = {
            replace(each, microbatches=pieces)
            for each in candidates
            for pieces in (each.microbatches, max(1, round(each.microbatches * factor)))
            if pieces <= MOST_MICROBATCHES
        }
        times: dict[Strategy, float] = {}
        for strategy in sorted(tried, key=lambda each: each.label):
            if there.space.impossible(strategy) is None:
                evaluation = there.simulate(strategy)
                if evaluation.feasible:
                    times[strategy] = evaluation.metrics[iteration_seconds.name]
        winner = fastest(times)
        rate = size / times[winner] if winner is not None else 0.0
        changed = winner is not None and layout(winner) != layout(best)
        found.append(OtherBatch(size, winner, rate, changed))
    return found
