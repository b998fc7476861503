"""What is left to gain, as the simulator sees it, whatever the sampler.

Measured costs follow simulated ones up to a factor, with some scatter. The factor and the scatter
are those of the trials so far; of what was not tried, the best is the best simulated one times the
factor, less two bands: the scatter of the trials, or that between plans which the simulator is
known to have, whichever is larger. It is two because the best of many is one that is lucky.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from statistics import median, pstdev
from typing import TYPE_CHECKING, Protocol

from autotune.objectives.objective import Objective
from autotune.objectives.simulator import simulated_many
from autotune.problem import Problem
from autotune.samplers.sampler import Predicts, Remaining, Sampler
from autotune.study.study import Study, blaming_the_sampler
from distir.errors import DistirError
from distir.metrics import iteration_seconds, throughput_samples_per_second
from distir.strategy import Strategy
from distir.units import percent

if TYPE_CHECKING:
    from autotune.objectives.columns import Evaluations

FEWEST_TRIALS = 5
"""Trials that a factor and its scatter are taken from."""
BANDS = 2
MOST_SIMULATED = 100_000
"""Largest space that is simulated for this."""


class Expects(Protocol):
    """Says what is left to gain in a study."""

    def __call__(self, study: Study, /) -> Remaining | None: ...


def expectation(problem: Problem, objective: Objective, sampler: Sampler) -> Expects:
    """What is left to gain as the sampler says, if it does, else as the simulator does.

    Raises `DistirError` if neither can say.
    """
    if not isinstance(sampler, Predicts):
        return BySimulator(problem, objective)

    def expected(_study: Study) -> Remaining | None:
        with blaming_the_sampler("best_remaining"):
            return sampler.best_remaining()

    return expected


@dataclass
class BySimulator:
    """What is left to gain, from simulated costs of the whole space."""

    problem: Problem
    objective: Objective

    def __post_init__(self) -> None:
        if (count := self.problem.space.count()) > MOST_SIMULATED:
            raise DistirError(
                f"what is left to gain in a space of {count:,} strategies can only be said by a "
                "sampler, and this one does not; the simulator does for at most "
                f"{MOST_SIMULATED:,}"
            )

    def __call__(self, study: Study) -> Remaining | None:
        """Optimistic cost of the best strategy that was not tried; None while too few were."""
        ratios = list(self._log_ratios(study))
        left = min(
            (cost for strategy, cost in self._simulated.items() if not study.knows(strategy)),
            default=None,
        )
        if left is None:
            return Remaining(math.inf, "the whole space, which is tried")
        if self.objective.trusted:
            return Remaining(left, "the simulator, which is the objective")
        if len(ratios) < FEWEST_TRIALS:
            return None
        band = self.problem.band
        found, known = pstdev(ratios), 0.0 if band is None else math.log1p(band.between_plans)
        scatter = max(found, known)
        which = "the scatter of these trials"
        if known > found:
            which = "by which the simulator's errors of two plans differ"
        better = -BANDS * scatter if left > 0 else BANDS * scatter
        factor = math.exp(median(ratios) + better)
        return Remaining(
            left * factor,
            f"the simulator's costs of the strategies not tried, times a factor from "
            f"{len(ratios)} trials, less {BANDS} bands of {percent(math.expm1(scatter))}, {which}",
        )

    def _log_ratios(self, study: Study) -> Iterator[float]:
        """Logarithms of measured over simulated costs."""
        for trial in study.trials:
            simulated = self._simulated.get(trial.strategy)
            if trial.feasible and trial.cost and simulated and trial.cost / simulated > 0:
                yield math.log(trial.cost / simulated)

    @cached_property
    def _simulated(self) -> dict[Strategy, float]:
        """Simulated costs of all strategies that fit."""
        strategies = list(self.problem.space.enumerate())
        found = simulated_many(self.problem.simulator, self.problem.memory_bytes)(strategies)
        costs = self._costs(found)
        return {
            strategy: float(cost)
            for strategy, cost, fits in zip(strategies, costs, found.feasible, strict=True)
            if fits and math.isfinite(cost)
        }

    def _costs(self, found: Evaluations) -> list[float]:
        """The objective's own metric where the simulator has it, else the rate or the time that
        has the objective's direction."""
        rate, seconds = throughput_samples_per_second.name, iteration_seconds.name
        usual = rate if self.objective.maximize else seconds
        name = self.objective.metric if self.objective.metric in found.metrics else usual
        sign = -1.0 if self.objective.maximize else 1.0
        return [sign * float(value) for value in found.metrics[name]]
