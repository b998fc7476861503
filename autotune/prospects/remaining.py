"""What is left to gain, as the simulator sees it, whatever the sampler.

Measured costs follow simulated ones up to a factor, with some scatter. The factor and the scatter
are those of the trials so far; of what was not tried, the best is the best simulated one times the
factor, less two bands: the scatter of the trials, or that between plans which the simulator is
known to have, whichever is larger. It is two because the best of many is one that is lucky. Costs
to which something is added follow simulated ones along a line, those of both signs have no factor
at all: what is left may cost the less of what both say. Nothing is said where costs run against
simulated ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np

from autotune.objectives.objective import Objective
from autotune.objectives.simulator import simulated_many
from autotune.problem import Problem
from autotune.samplers.encoding import Scale, relative
from autotune.samplers.guided import NOISE
from autotune.samplers.sampler import Predicts, Remaining, Sampler
from autotune.samplers.slope import line, runs_against, slope_of
from autotune.study.study import Study, blaming_the_sampler
from distir.arrays import Floats
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
                f"in a space of {count:,} strategies, only a sampler can estimate what is left to "
                f"gain, and this one does not; the simulator can for at most {MOST_SIMULATED:,}"
            )

    def __call__(self, study: Study) -> Remaining | None:
        """Optimistic cost of the best strategy that was not tried; None while too few were."""
        left = [cost for strategy, cost in self._simulated.items() if not study.knows(strategy)]
        if not left:
            return Remaining(math.inf, "the whole space, which has been tried")
        if self.objective.trusted:
            return Remaining(min(left), "the simulator, which is the objective")
        found = {
            trial.strategy: trial.cost
            for trial in study.trials
            if trial.feasible and trial.cost is not None and trial.strategy in self._simulated
        }
        if len(found) < FEWEST_TRIALS:
            return None
        usual = Scale.of(list(self._simulated.values()))
        expected = usual.steadied([self._simulated[strategy] for strategy in found])
        costs = Scale.of(list(found.values()))
        values = costs.steadied(list(found.values()))
        if runs_against(expected, values):
            return None
        slope = self._slope(expected, values) if costs.sign else line(expected, values)[0]
        away = values - slope * expected
        known = abs(slope) * self._between_plans
        scatter, which = float(np.std(away)), "the scatter of these trials"
        if known > scatter:
            scatter, which = known, "by which the simulator's errors for two plans differ"
        least = float(np.min(slope * usual.steadied(left))) + float(np.median(away))
        size, follows = f"{scatter * costs.largest:.3g}", f"fitted to {len(found)} trials"
        if costs.sign:
            size = percent(relative(scatter))
            follows = f"times a factor fitted to {len(found)} trials"
        return Remaining(
            min(costs.cost(least - BANDS * scatter), self._along_a_line(found, min(left))),
            f"the simulator's costs of the untried strategies, {follows}, less {BANDS} bands of "
            f"{size}, {which}",
        )

    def _along_a_line(self, found: Mapping[Strategy, float], left: float) -> float:
        """The least that the best of those left may cost if costs follow simulated ones along a
        line: what is added to all costs has no factor."""
        expected = np.array([self._simulated[strategy] for strategy in found])
        costs = np.array(list(found.values()))
        slope, start = line(expected, costs)
        scatter = float(np.std(costs - start - slope * expected))
        known = abs(slope * left) * self._between_plans
        return start + slope * left - BANDS * max(scatter, known)

    @property
    def _between_plans(self) -> float:
        band = self.problem.band
        return 0.0 if band is None else math.log1p(band.between_plans)

    def _slope(self, expected: Floats, values: Floats) -> float:
        """How fast the logarithm of costs rises with that of simulated ones."""
        band = self.problem.band
        return 1.0 + slope_of(expected, values - expected, NOISE if band is None else band.repeat)

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
