"""Optuna's samplers, driven by ask and tell over an encoding in which every dimension is a small
integer.

A suggestion that is no valid strategy is moved to the nearest one and Optuna is told what came of
that, so the whole box of its suggestions means something. (Calling such suggestions infeasible, or
recording the strategy moved to in their place, found the optimum of invented cost surfaces in 16 of
24 studies; this way finds 21.) Infeasible strategies are told with their violation as a constraint.
So are suggestions that bounds rule out, because they cannot fit, or cannot be better than the best
that was found: they are not tried, and Optuna is asked again.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections import defaultdict
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from autotune.samplers.encoding import Encoding
from autotune.samplers.expectation import Pool, Prospects
from autotune.samplers.sampler import Outcome
from distir.errors import DistirError
from distir.strategy import Strategy
from search_spaces import SearchSpace

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.trial import Trial

CONSTRAINT = "feasible"
SCREENED = 8
"""Suggestions in a row that bounds may rule out before one is tried all the same."""


class OptunaSampler:
    """Adapts any of Optuna's samplers to a space of strategies."""

    def __init__(
        self,
        space: SearchSpace,
        sampler: BaseSampler,
        pool: Pool | None = None,
        objectives: int = 1,
    ):
        """`pool`: what bounds say of strategies, for samplers that make use of that."""
        self._screen = None if pool is None else _Screen(pool)
        self._optuna = import_optuna()
        self._study = self._optuna.create_study(
            sampler=sampler, directions=["minimize"] * objectives
        )
        self._encoding = Encoding(space)
        self._distributions = {
            name: self._distribution(values) for name, values in self._encoding.values.items()
        }
        self._asked: defaultdict[Strategy, list[Trial]] = defaultdict(list)
        self._worst = -sys.float_info.max

    def _distribution(self, values: tuple[object, ...]) -> BaseDistribution:
        distributions = self._optuna.distributions
        if isinstance(values[0], str):
            return distributions.CategoricalDistribution(tuple(range(len(values))))
        return distributions.IntDistribution(0, len(values) - 1)

    def ask(self) -> Strategy | None:
        """The valid strategy nearest to Optuna's next suggestion; None once bounds prove that
        nothing better is left."""
        if self._screen is not None and self._screen.is_proved:
            return None
        for left in reversed(range(SCREENED)):
            trial = self._study.ask(self._distributions)
            strategy = self._encoding.nearest(trial.params)
            excess = 0.0 if self._screen is None else self._screen.excess(strategy)
            if excess <= 0 or not left:
                self._asked[strategy].append(trial)
                return strategy
            trial.set_constraint(CONSTRAINT, excess)
            self._study.tell(trial, self._worst)
        return None

    def tell_outcome(self, outcome: Outcome) -> None:
        """Passes on what came of a strategy, and looks how good bounds must be from now on."""
        if self._screen is not None:
            self._screen.learn(outcome)
        several = len(self._study.directions) > 1
        costs = outcome.costs if several else _alone(outcome.cost)
        self._tell(outcome.strategy, costs, outcome.violation)

    def tell(self, strategy: Strategy, cost: float | None, violation: float = 0.0) -> None:
        """Passes on what came of a strategy, suggested by Optuna or not."""
        self._tell(strategy, _alone(cost), violation)

    def _tell(self, strategy: Strategy, costs: tuple[float, ...] | None, violation: float) -> None:
        if costs is not None:
            self._worst = max(self._worst, costs[0])
        asked = self._asked.get(strategy)
        if not asked:
            self._add(strategy, costs, violation)
            return
        trial = asked.pop(0)
        if costs is None:
            self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
        else:
            trial.set_constraint(CONSTRAINT, violation)
            self._study.tell(trial, costs)

    def _add(self, strategy: Strategy, costs: tuple[float, ...] | None, violation: float) -> None:
        if costs is None:
            return
        self._study.add_trial(
            self._optuna.trial.create_trial(
                values=costs,
                params=self._encoding.encode(strategy),
                distributions=self._distributions,
                constraints={CONSTRAINT: violation},
            )
        )


def _alone(cost: float | None) -> tuple[float, ...] | None:
    return None if cost is None else (cost,)


class _Screen:
    """What bounds say against suggestions."""

    def __init__(self, pool: Pool):
        self._metric = pool.metric
        self._expected = pool.start()
        self._least = math.inf
        self._whole = pool.is_whole
        self._open = np.ones(len(self._expected), np.bool_)

    @property
    def is_proved(self) -> bool:
        """Whether no strategy that is left can be better than the best."""
        least, fill = self._expected.log_least, self._expected.log_fill
        if least is None or not self._whole or self._least == math.inf:
            return False
        return not (self._open & (fill <= 0) & (least < self._least)).any()

    def excess(self, strategy: Strategy) -> float:
        """How far a strategy is from fitting, or from being better than the best, as a fraction; 0
        where that is not known."""
        place = self._expected.table.find(strategy)
        if place is None or self._expected.log_least is None:
            return 0.0
        overfull = float(self._expected.log_fill[place])
        slower = float(self._expected.log_least[place]) - self._least
        return math.expm1(min(max(overfull, slower, 0.0), 50.0))

    def learn(self, outcome: Outcome) -> None:
        """Looks whether a strategy is the best that was found."""
        place = self._expected.table.find(outcome.strategy)
        if place is not None:
            self._open[place] = False
        value = outcome.metrics.get(self._metric)
        if outcome.cost is not None and outcome.violation <= 0 and value:
            self._least = min(self._least, math.log(value))


def tpe(
    space: SearchSpace, seed: int, prospects: Prospects | None = None, objectives: int = 1
) -> OptunaSampler:
    """Tree-structured Parzen estimator, with bounds as constraints where there are some for a
    single objective."""
    pool = None if prospects is None or objectives > 1 else prospects.bounded()
    made = import_optuna().samplers.TPESampler(seed=seed)
    return OptunaSampler(space, made, pool, objectives)


def nsga2(space: SearchSpace, seed: int, objectives: int = 1) -> OptunaSampler:
    """A genetic algorithm with small generations, since budgets are small."""
    made = import_optuna().samplers.NSGAIISampler(population_size=12, seed=seed)
    return OptunaSampler(space, made, objectives=objectives)


def qmc(space: SearchSpace, seed: int, objectives: int = 1) -> OptunaSampler:
    """A scrambled Sobol sequence."""
    optuna = import_optuna()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sequence = optuna.samplers.QMCSampler(
            scramble=True, seed=seed, warn_asynchronous_seeding=False
        )
    return OptunaSampler(space, sequence, objectives=objectives)


def import_optuna() -> ModuleType:
    """Optuna, imported late and quiet."""
    try:
        import optuna
    except ImportError as error:
        raise DistirError("this sampler needs optuna; try: pip install optuna") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
