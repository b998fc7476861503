"""The sampler `bounds` with something taken away from it: what makes the difference.

    python -m experiments.samplers --samplers bounds,experiments.samplers.ablations:cold

Each of these is a plug-in sampler.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from autotune.samplers.bounded import BoundedSampler
from autotune.samplers.expectation import Expectation, Pool, Prospects
from autotune.samplers.random import RandomSampler
from autotune.samplers.sampler import Outcome, Sampler
from distir.errors import DistirError
from distir.strategy import Strategy
from search_spaces import SearchSpace

Change = Callable[[Expectation], Expectation]


@dataclass(frozen=True)
class ChangedPool:
    """A pool that tells something else of its strategies."""

    pool: Pool
    change: Change

    @property
    def metric(self) -> str:
        """The metric of the pool."""
        return self.pool.metric

    @property
    def is_whole(self) -> bool:
        """Whether the pool begins with the whole space."""
        return self.pool.is_whole

    def start(self) -> Expectation:
        """The strategies that the pool begins with."""
        return self.change(self.pool.start())

    def around(self, strategy: Strategy) -> Expectation:
        """Strategies that are like one."""
        return self.change(self.pool.around(strategy))

    def log_fill(self, outcome: Outcome) -> float | None:
        """What a strategy was found to fill of the memory."""
        return self.pool.log_fill(outcome)


class WithoutFailures(BoundedSampler):
    """Learns nothing of strategies that do not fit but that they do not, as from real jobs."""

    def tell_outcome(self, outcome: Outcome) -> None:
        """Forgets what the simulator says of a strategy that does not fit."""
        fits = outcome.violation <= 0
        super().tell_outcome(outcome if fits else replace(outcome, cost=None, metrics={}))


class InOrder:
    """The pool's strategies in the order of what is expected, and then `rest`: nothing is learned,
    and what cannot fit or be better than the best is left out."""

    def __init__(self, pool: Pool, rest: Sampler) -> None:
        self._rest = rest
        self._metric = pool.metric
        self._expected = pool.start()
        self._order = iter(np.argsort(self._expected.log_cost, kind="stable"))
        self._least_found = math.inf

    def ask(self) -> Strategy | None:
        """The next that is not ruled out."""
        expected = self._expected
        for place in self._order:
            least = expected.log_cost if expected.log_least is None else expected.log_least
            if expected.log_fill[place] <= 0 and least[place] < self._least_found:
                return expected.table[int(place)]
        return self._rest.ask()

    def tell_outcome(self, outcome: Outcome) -> None:
        """Remembers the best."""
        value = outcome.metrics.get(self._metric)
        if outcome.cost is not None and outcome.violation <= 0 and value:
            self._least_found = min(self._least_found, math.log(value))

    def tell(self, strategy: Strategy, cost: float | None, violation: float = 0.0) -> None:
        """A cost alone says nothing."""


def without_bounds(space: SearchSpace, seed: int, prospects: Prospects) -> Sampler:
    """Nothing is ruled out, of time or of memory."""
    return _changed(space, seed, prospects, _unbounded)


def without_expectation(space: SearchSpace, seed: int, prospects: Prospects) -> Sampler:
    """All times are expected alike; bounds rule strategies out."""
    return _changed(space, seed, prospects, _unexpected)


def cold(space: SearchSpace, seed: int, prospects: Prospects) -> Sampler:
    """Gaussian processes over features alone."""
    return _changed(space, seed, prospects, lambda each: _unbounded(_ignorant(each)))


def without_learning(space: SearchSpace, seed: int, prospects: Prospects) -> Sampler:
    """The order of expectations alone."""
    return InOrder(_pool(prospects), RandomSampler(space, seed))


def without_failures(space: SearchSpace, seed: int, prospects: Prospects) -> Sampler:
    """No times and no memory of what does not fit, which a real job that runs out of memory does
    not tell."""
    rest = RandomSampler(space, seed)
    return WithoutFailures(_pool(prospects), prospects.batch_size, rest)


def _changed(space: SearchSpace, seed: int, prospects: Prospects, change: Change) -> Sampler:
    pool = ChangedPool(_pool(prospects), change)
    return BoundedSampler(pool, prospects.batch_size, RandomSampler(space, seed))


def _pool(prospects: Prospects) -> Pool:
    pool = prospects.bounded()
    if pool is None:
        raise DistirError("nothing bounds this objective; expected time or memory as simulated")
    return pool


def _unbounded(expected: Expectation) -> Expectation:
    fill = np.minimum(expected.log_fill, 0.0)
    return replace(expected, log_fill=fill, log_least=None)


def _unexpected(expected: Expectation) -> Expectation:
    return replace(expected, log_cost=np.zeros(len(expected)))


def _ignorant(expected: Expectation) -> Expectation:
    return replace(_unexpected(expected), log_fill=np.zeros(len(expected)))
