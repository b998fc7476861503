"""Exhaustive search, and how a study compares with it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median
from typing import Any

from autotune.objectives.objective import Objective
from autotune.study import Measure, evaluate
from autotune.trial import Trial, ranked, regret
from distir.strategy import Strategy
from search_spaces import SearchSpace

QUICK_SECONDS = 20.0
"""Longest exhaustive comparison that is made without being asked, where the objective is cheap."""


@dataclass(frozen=True)
class Grid:
    """Every strategy of a space, evaluated."""

    space_size: int
    trials: tuple[Trial, ...]
    """In the order of the space."""
    seconds: float
    """Wall time of the evaluation."""
    complete: bool = True
    """False if it was interrupted."""

    @cached_property
    def ranked(self) -> list[Trial]:
        """Feasible trials, best first."""
        return ranked(self.trials)

    @property
    def best(self) -> Trial | None:
        """The best feasible trial."""
        return self.ranked[0] if self.ranked else None

    def regret(self, trial: Trial | None) -> float | None:
        """The fraction that `trial` loses against the best of the grid."""
        if trial is None or trial.cost is None or self.best is None or self.best.cost is None:
            return None
        return regret(trial.cost, self.best.cost)

    def rank(self, trial: Trial | None) -> int | None:
        """Place of `trial` in the grid: 1 if nothing is better."""
        if trial is None or trial.cost is None:
            return None
        return 1 + sum(other.cost < trial.cost for other in self.ranked if other.cost is not None)

    def summary(self, found: Trial | None) -> dict[str, Any]:
        """The comparison with a study that found `found`, as plain JSON values."""
        best = self.best
        return {
            "evaluated": len(self.trials),
            "feasible": len(self.ranked),
            "seconds": self.seconds,
            "best": best.outcome() if best else None,
            "regret": self.regret(found),
            "rank": self.rank(found),
        }

    def to_dict(self, top: int | None = None) -> dict[str, Any]:
        """The grid as plain JSON values, with the `top` best (by default all feasible)."""
        return {
            "space_size": self.space_size,
            "evaluated": len(self.trials),
            "feasible": len(self.ranked),
            "seconds": self.seconds,
            "ranked": [trial.to_dict() for trial in self.ranked[:top]],
        }


def evaluate_grid(
    space: SearchSpace,
    objective: Objective,
    measure: Measure | None = None,
    *,
    known: Mapping[Strategy, Trial] | None = None,
    on_trial: Callable[[Trial], None] = lambda trial: None,
) -> Grid:
    """Evaluates every strategy of `space` that is not `known`; an interrupt keeps what was
    evaluated.
    """
    size = space.count()
    known = known or {}
    trials: list[Trial] = []
    clock = time.perf_counter()
    try:
        for number, strategy in enumerate(space.enumerate()):
            trial = known.get(strategy)
            trial = (
                replace(trial, number=number)
                if trial
                else evaluate(objective, measure or objective.measure, strategy, number)
            )
            trials.append(trial)
            on_trial(trial)
    except KeyboardInterrupt:
        pass  # what is there is worth showing; `complete` tells
    return Grid(size, tuple(trials), time.perf_counter() - clock, len(trials) == size)


def grid_seconds(space: SearchSpace, tried: Sequence[Trial]) -> float:
    """About how long the grid takes, from trials of which the first ones were slow."""
    return space.count() * median(trial.seconds for trial in tried) if tried else 0.0
