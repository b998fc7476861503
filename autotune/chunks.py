"""A space evaluated chunk by chunk, in the order of the space."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from autotune.objectives.columns import Column, Evaluations
from autotune.objectives.objective import Objective
from autotune.study import Measure
from autotune.trial import Trial
from distir.strategy import Strategy
from search_spaces import SearchSpace

MOST = 4096
"""Strategies of the largest chunk."""
QUICK_SECONDS = 0.2
"""A chunk that took less may be followed by a larger one."""
MANY_SECONDS = 2.0
"""The same where many strategies are evaluated at once, which pays off in large chunks."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Strategies of a space, with what an objective says of them."""

    numbers: Sequence[int]
    """Places in the space."""
    strategies: Sequence[Strategy]
    evaluations: Evaluations
    costs: Column
    """Smaller is better; NaN for what failed."""
    started: float
    """Seconds since the epoch."""
    seconds: float
    """How long the evaluation of them all took."""

    def __len__(self) -> int:
        return len(self.strategies)

    def trial(self, index: int) -> Trial:
        """One of the strategies as a trial."""
        cost = float(self.costs[index])
        each = self.seconds / len(self)
        return Trial(
            self.numbers[index],
            self.strategies[index],
            self.evaluations[index],
            None if np.isnan(cost) else cost,
            self.started + index * each,
            each,
        )


def evaluated(
    objective: Objective, strategies: Sequence[Strategy], measure: Measure | None = None
) -> Evaluations:
    """What `objective` says of strategies: all at once if it can, unless there is a way to
    `measure` each.
    """
    if measure is None and objective.many is not None:
        return objective.checked_all(objective.many(strategies))
    measure = measure or objective.measure
    return Evaluations.of([objective.checked(measure(strategy)) for strategy in strategies])


def evaluated_chunk(
    objective: Objective,
    numbers: Sequence[int],
    strategies: Sequence[Strategy],
    measure: Measure | None = None,
) -> Chunk:
    """Strategies evaluated, and timed."""
    started, clock = time.time(), time.perf_counter()
    found = evaluated(objective, strategies, measure)
    seconds = time.perf_counter() - clock
    return Chunk(numbers, strategies, found, objective.costs(found), started, seconds)


def chunks_here(
    space: SearchSpace, objective: Objective, measure: Measure | None = None
) -> Generator[Chunk, None, None]:
    """All of `space`, evaluated in this process. The first chunks are small, and chunks stay small
    where strategies take long: what is done can be shown, and an interrupt loses little.
    """
    strategies = space.enumerate()
    at_once = measure is None and objective.many is not None
    first, size = 0, 1
    while chosen := list(islice(strategies, size)):
        chunk = evaluated_chunk(objective, range(first, first + len(chosen)), chosen, measure)
        yield chunk
        first += len(chosen)
        if chunk.seconds < (MANY_SECONDS if at_once else QUICK_SECONDS):
            size = min(2 * size, MOST)


def chunk_of(trials: Sequence[Trial]) -> Chunk:
    """Trials that were made one by one."""
    costs = [np.nan if trial.cost is None else trial.cost for trial in trials]
    return Chunk(
        [trial.number for trial in trials],
        [trial.strategy for trial in trials],
        Evaluations.of([trial.evaluation for trial in trials]),
        np.array(costs, np.float64),
        trials[0].started if trials else 0.0,
        sum(trial.seconds for trial in trials),
    )
