"""A space evaluated chunk by chunk, in the order of the space."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from autotune.objectives.columns import Evaluations, MetricColumn
from autotune.objectives.objective import Objective
from autotune.study.study import Measure
from autotune.study.trial import Trial
from distir.arrays import Indices
from distir.strategy import Strategy
from search_spaces import SearchSpace
from search_spaces.columns import SpaceColumns

MOST = 4096
"""Strategies of the largest chunk where they are evaluated one by one."""
QUICK_SECONDS = 0.2
"""A chunk that took less is followed by a larger one."""
MOST_AT_ONCE = 1 << 18
"""Strategies of the largest chunk where many are evaluated at once: what memory allows."""
FIRST_AT_ONCE = 1 << 12
"""Strategies of the first chunk: few, so that a result is shown soon."""
LEAST_AT_ONCE = 1 << 14
"""Strategies that a later chunk may always have: fewer would share too little."""
FEWEST_HALVED = 1 << 8
"""Strategies of the smallest space of two chunks, which two processes may share."""
MOST_HALVED = FIRST_AT_ONCE + 2 * LEAST_AT_ONCE
"""Strategies of the largest such space: others are three chunks at least."""
GROWTH = 8
"""How much larger the next chunk may be: what strategies share is found out once per chunk."""
MOST_PROGRAMS = 32
"""Stretches of shared programs in a chunk: where nearly every strategy has a program of its own, as
among axis lists, few strategies take as long as very many do elsewhere."""
SHARES = 8
"""The number of chunks that a large space has at least: processes share them, and two processes
over a million strategies stay below 1 GiB."""
LAST_SHARES = 32
"""The last chunks are no smaller than this fraction (1 / n) of the space: with small last chunks
processes end together."""


def stretches(borders: Indices) -> Iterator[tuple[int, int]]:
    """The chunks `(first, size)` of a space of which many are evaluated at once: two halves of a
    small one, which two processes evaluate in half the time; otherwise growing to the largest, in
    the end halves of what is left. They end at `borders`, between which programs are shared, unless
    these are far. They depend on nothing but the space, so that results are the same to the last
    bit, wherever chunks are evaluated."""
    count = int(borders[-1]) if len(borders) else 0
    if FEWEST_HALVED <= count <= MOST_HALVED and 1 < len(borders) <= MOST_PROGRAMS:
        middle = int(borders[np.abs(borders[:-1] - count / 2).argmin()])
        yield from ((0, middle), (middle, count - middle))
        return
    most = max(LEAST_AT_ONCE, min(MOST_AT_ONCE, count // SHARES))
    least = max(LEAST_AT_ONCE, count // LAST_SHARES)
    first, size = 0, FIRST_AT_ONCE
    while first < count:
        wanted = min(size, max((count - first) // 2, least))
        last = int(np.searchsorted(borders, first, side="right")) + MOST_PROGRAMS - 1
        end = min(_end(borders, first, wanted), int(borders[min(last, len(borders) - 1)]))
        yield first, end - first
        first, size = end, min(GROWTH * size, most)


def _end(borders: Indices, first: int, wanted: int) -> int:
    """The last border in the second half of what is wanted, or where that ends."""
    end = min(first + wanted, int(borders[-1]))
    near = int(borders[max(0, int(np.searchsorted(borders, end, side="right")) - 1)])
    return near if first + wanted // 2 < near <= end else end


@dataclass(frozen=True, slots=True)
class Chunk:
    """Strategies of a space, with what an objective says of them."""

    numbers: NDArray[np.int64]
    """Places in the space, ascending."""
    strategies: Sequence[Strategy]
    evaluations: Evaluations
    costs: MetricColumn
    """Smaller is better; NaN for what failed."""
    started: float
    """Seconds since the epoch."""
    seconds: float
    """Seconds that the evaluation of the whole chunk took."""

    def __len__(self) -> int:
        return len(self.strategies)

    def trial(self, index: int) -> Trial:
        """One of the strategies as a trial."""
        cost = float(self.costs[index])
        each = self.seconds / len(self)
        return Trial(
            int(self.numbers[index]),
            self.strategies[index],
            self.evaluations[index],
            None if np.isnan(cost) else cost,
            self.started + index * each,
            each,
        )


def evaluated(
    objective: Objective, strategies: Sequence[Strategy], measure: Measure | None = None
) -> Evaluations:
    """The objective's evaluations of strategies: all at once if it can, or each by `measure`, if
    given."""
    if measure is None and objective.many is not None:
        return objective.checked_all(objective.many(strategies))
    measure = measure or objective.measure
    return Evaluations.of([objective.checked(measure(strategy)) for strategy in strategies])


def evaluated_chunk(
    objective: Objective,
    numbers: Iterable[int],
    strategies: Sequence[Strategy],
    measure: Measure | None = None,
) -> Chunk:
    """Evaluates strategies as one chunk and times it."""
    started, clock = time.time(), time.perf_counter()
    found = evaluated(objective, strategies, measure)
    seconds = time.perf_counter() - clock
    places = np.fromiter(numbers, np.int64)
    return Chunk(places, strategies, found, objective.costs(found), started, seconds)


def chunks_here(
    space: SearchSpace, objective: Objective, measure: Measure | None = None
) -> Generator[Chunk, None, None]:
    """All of `space`, evaluated in this process. The first chunks are small, and chunks stay small
    where strategies take long: what is done can be shown, and an interrupt loses little.
    """
    if measure is None and objective.many is not None:
        return _at_once(space, objective)
    return _one_by_one(space, objective, measure)


def _one_by_one(
    space: SearchSpace, objective: Objective, measure: Measure | None
) -> Generator[Chunk, None, None]:
    strategies = space.enumerate()
    first, size = 0, 1
    while chosen := list(islice(strategies, size)):
        chunk = evaluated_chunk(objective, range(first, first + len(chosen)), chosen, measure)
        yield chunk
        first += len(chosen)
        size = size_after(size, chunk.seconds)


def size_after(size: int, seconds: float) -> int:
    """Size of the next chunk where strategies are evaluated one by one, after a chunk of `size`
    that took `seconds`."""
    return min(2 * size, MOST) if seconds < QUICK_SECONDS else max(1, size // 2)


def _at_once(space: SearchSpace, objective: Objective) -> Generator[Chunk, None, None]:
    table = SpaceColumns(space)
    for stretch in stretches(table.borders):
        yield evaluated_chunk(objective, *table.taken(*stretch))


def chunk_of(trials: Sequence[Trial]) -> Chunk:
    """Trials that were made one by one."""
    costs = [np.nan if trial.cost is None else trial.cost for trial in trials]
    return Chunk(
        np.array([trial.number for trial in trials], np.int64),
        [trial.strategy for trial in trials],
        Evaluations.of([trial.evaluation for trial in trials]),
        np.array(costs, np.float64),
        trials[0].started if trials else 0.0,
        sum(trial.seconds for trial in trials),
    )
