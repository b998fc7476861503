"""Gaussian processes around lower bounds and what follows from them: for simulated objectives.

Much is known before anything is tried: what no strategy with the same program can beat, and what
one may be expected to take (`distir.simulation.bounds`). One process learns the residual of the
cost, the logarithm of (found / expected), another that of memory. What promises most is tried next,
by its expected improvement times its chance to fit. What cannot be better than the best found, or
cannot fit, is never tried: where nothing else is left the best is proved, and the search ends.
"""

from __future__ import annotations

import math

import numpy as np

from autotune.samplers.expectation import Expectation, Pool, Prospects
from autotune.samplers.features import Features, samples_of
from autotune.samplers.guided import guided
from autotune.samplers.random import RandomSampler
from autotune.samplers.residual import Estimate, Residual, improvement, log_below
from autotune.samplers.sampler import Outcome, Sampler
from distir.arrays import Floats, Indices
from distir.strategy import Strategy
from search_spaces import SearchSpace

LAYOUTS_FIRST = 5
"""Trials of different layouts before the processes are asked."""
CANDIDATES = 4096
"""Strategies that the processes predict: the best expected of those that are left."""
NOISE = 3e-3
"""Standard deviation of what no smooth function of the choices explains."""


class BoundedSampler:
    """Proposes what promises most of a pool that grows around the best; then `rest`."""

    def __init__(self, pool: Pool, batch_size: int, rest: Sampler | None = None) -> None:
        self._pool = pool
        self._batch_size = batch_size
        self._rest = rest
        self._log_costs: dict[Strategy, float] = {}
        self._log_fills: dict[Strategy, float] = {}
        self._best: Strategy | None = None
        self._grown_around: set[Strategy] = set()
        self._proposed: set[Strategy] = set()
        self._cost: Residual | None = None
        self._fill: Residual | None = None
        self._begun = False

    def ask(self) -> Strategy | None:
        """What promises most; nothing once the best is proved, or else the rest of the space."""
        if not self._begun:  # bounds take a while, in which an answer may be shown already
            self._begun = True
            self._take(self._pool.start())
        self._grow()
        candidates = self._candidates()
        if not len(candidates):
            return None if self._is_proved else self._next_of_rest()
        if len(self._log_costs) < LAYOUTS_FIRST:
            place = self._of_new_layout(candidates)
        else:
            place = self._most_promising(candidates)
        strategy = self._expected.table[place]
        self._close(strategy)
        return strategy

    @property
    def ended_because(self) -> str:
        """Why nothing more is proposed."""
        return "lower bounds rule out a better plan"

    def tell(self, strategy: Strategy, cost: float | None, violation: float = 0.0) -> None:
        """Learns that a strategy was tried; bounds say nothing of a cost alone."""
        self._close(strategy)

    def tell_outcome(self, outcome: Outcome) -> None:
        """Learns what a strategy takes and needs."""
        strategy = outcome.strategy
        self._close(strategy)
        value = outcome.metrics.get(self._pool.metric)
        if outcome.cost is None or value is None or value <= 0:
            return
        self._log_costs[strategy] = math.log(value)
        fill = self._pool.log_fill(outcome)
        if fill is not None:
            self._log_fills[strategy] = fill
        fits = outcome.violation <= 0
        if fits and self._log_costs[strategy] < self._least_found:
            self._best = strategy

    @property
    def _least_found(self) -> float:
        return math.inf if self._best is None else self._log_costs[self._best]

    @property
    def _is_proved(self) -> bool:
        """Whether bounds leave no strategy of the space that could be better than the best, where
        there are no candidates."""
        bounded = self._expected.log_least is not None
        return bounded and self._pool.is_whole and self._best is not None

    # --- the pool ---------------------------------------------------------------------------------

    def _take(self, expected: Expectation) -> None:
        """Chooses from other strategies from now on."""
        self._expected = expected
        table = expected.table
        features = Features(table.values)
        plain = features.rows(table, samples_of(table, self._batch_size))
        self._rows = np.column_stack([plain, expected.log_cost, expected.log_fill])
        self._groups = np.append(features.groups, [2, 2])
        self._layouts = expected.layouts()
        self._order = np.lexsort((expected.log_cost, expected.log_fill > 0))
        self._open = np.ones(len(expected), np.bool_)
        self._places: dict[Strategy, int | None] = {}
        for strategy in self._proposed:
            self._close(strategy)

    def _grow(self) -> None:
        """Adds strategies around the best that is known."""
        if self._pool.is_whole or self._best is None or self._best in self._grown_around:
            return
        self._grown_around.add(self._best)
        self._take(self._expected.joined(self._pool.around(self._best)))
        self._cost = self._fill = None

    def _close(self, strategy: Strategy) -> None:
        self._proposed.add(strategy)
        if not self._begun:
            return
        place = self._place(strategy)
        if place is not None:
            self._open[place] = False

    def _place(self, strategy: Strategy) -> int | None:
        """Where a strategy is in the pool, if it is there."""
        if strategy not in self._places:
            self._places[strategy] = self._expected.table.find(strategy)
        return self._places[strategy]

    def _candidates(self) -> Indices:
        """The best expected of those that were not tried, may fit, and may be better than the best
        that was found; the emptiest if nothing of the first layouts fits."""
        expected = self._expected
        usable = self._open & (expected.log_fill <= 0)
        if expected.log_least is not None:
            usable &= expected.log_least < self._least_found
        if self._best is None and len(self._log_costs) >= LAYOUTS_FIRST:
            places = np.flatnonzero(usable)
            return places[np.argsort(expected.log_fill[places], kind="stable")][:CANDIDATES]
        return self._order[usable[self._order]][:CANDIDATES]

    def _next_of_rest(self) -> Strategy | None:
        while self._rest is not None and (strategy := self._rest.ask()) is not None:
            if strategy not in self._proposed:
                self._proposed.add(strategy)
                return strategy
        return None

    # --- choosing ---------------------------------------------------------------------------------

    def _of_new_layout(self, candidates: Indices) -> int:
        places = [place for each in self._log_costs if (place := self._place(each)) is not None]
        new = candidates[~np.isin(self._layouts[candidates], self._layouts[places])]
        return int(new[0] if len(new) else candidates[0])

    def _most_promising(self, candidates: Indices) -> int:
        expected = self._expected
        self._cost, cost = self._learned(self._log_costs, expected.log_cost, self._cost, candidates)
        least = cost.mean if expected.log_least is None else expected.log_least[candidates]
        cost = Estimate(np.maximum(cost.mean, least), cost.deviation)
        log_chance = np.zeros(len(candidates))
        if self._log_fills:
            self._fill, fill = self._learned(
                self._log_fills, expected.log_fill, self._fill, candidates
            )
            full = np.maximum(fill.mean, expected.log_fill[candidates])
            log_chance = log_below(-full / np.maximum(fill.deviation, NOISE))
        if self._best is None:  # whatever fits is better than nothing
            return int(candidates[np.argmax(log_chance - 0.01 * cost.mean)])
        gain = (improvement(cost, self._least_found) + 1e-12) * np.exp(log_chance)
        return int(candidates[np.argmax(gain)])

    def _learned(
        self,
        found: dict[Strategy, float],
        expected: Floats,
        before: Residual | None,
        candidates: Indices,
    ) -> tuple[Residual | None, Estimate]:
        """What the trials whose values were found say of the candidates."""
        known = [
            (place, value) for s, value in found.items() if (place := self._place(s)) is not None
        ]
        prior = expected[candidates]
        if not known:
            return None, Estimate(prior, np.ones(len(candidates)))
        places = np.array([place for place, _ in known])
        values = np.array([value for _, value in known]) - expected[places]
        residual = Residual.fitted(self._rows[places], values, NOISE, self._groups, before)
        error = residual.at(self._rows[candidates])
        return residual, Estimate(prior + error.mean, error.deviation)


def bounded(space: SearchSpace, seed: int, prospects: Prospects | None = None) -> Sampler:
    """Starts from bounds; where there are none, from nothing, as a process that learns costs."""
    pool = None if prospects is None else prospects.bounded()
    if prospects is None or pool is None:
        return guided(space, seed)
    return BoundedSampler(pool, prospects.batch_size, RandomSampler(space, seed))


__all__ = ["BoundedSampler", "bounded"]
