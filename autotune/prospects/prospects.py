"""What is known of a problem's strategies before any is tried: what samplers start from."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from autotune.exhaustive.certified import can_be_certified, certify
from autotune.exhaustive.chunks import chunks_here
from autotune.objectives.objective import Objective
from autotune.objectives.simulator import needed_bytes
from autotune.problem import Problem
from autotune.prospects.bounded_pool import BoundedPool
from autotune.samplers.expectation import Expectation
from autotune.samplers.experience import Experience
from autotune.study.trial import LAYOUT, Trial
from distir.arrays import Floats, Indices
from distir.metrics import Metric, find_metric, iteration_seconds
from distir.strategies import Strategies
from distir.strategy import Strategy

MOST_SIMULATED = 200_000
"""Strategies of the largest space that is simulated in full; of larger ones certified search finds
the best."""
KEPT = 4096
"""Strategies that are kept, besides the best of every layout."""
NOISE = 0.035
"""Relative spread of repeated measurements, where the hardware says nothing of it."""
OVERFULL = math.log(1.3)
"""How much more memory a strategy may be expected to need that is kept all the same: expectations
of memory may be too high."""


@dataclass(frozen=True, slots=True)
class ProblemProspects:
    """What the simulator of a problem says of its space, for an objective of any kind."""

    problem: Problem
    objective: Objective
    experience: Experience = ()
    """What other studies have learned of their expectations."""

    @property
    def batch_size(self) -> int:
        """Samples per step."""
        return self.problem.batch_size

    @property
    def noise(self) -> float:
        """The spread of measurements, none where the objective is the simulator."""
        if self.objective.trusted and find_metric(self.objective.metric) is not None:
            return 0.0
        return self.problem.band.repeat if self.problem.band is not None else NOISE

    def simulated(self) -> Expectation:
        """The best strategies of the space and of every layout, as the simulator expects them.

        The time counts, or the metric of the objective if the simulator knows it by name.
        """
        problem = self.problem
        metric = find_metric(self.objective.metric) or find_metric(iteration_seconds.name)
        assert metric is not None
        simulated = problem.objective(metric.objective)
        if problem.space.count() <= MOST_SIMULATED or simulated.many is None:
            parts = [_part(*each, metric, problem) for each in _chunks(problem, simulated)]
        else:
            parts = [_proved(problem, simulated, metric)]
        return _joined(parts)

    def bounded(self) -> BoundedPool | None:
        """The problem's strategies with bounds, where the objective is time or memory as distir
        simulates them."""
        if not can_be_certified(self.problem, self.objective):
            return None
        metric = find_metric(self.objective.metric)
        return BoundedPool(self.problem, of_memory=metric is None or not metric.timed)


def _chunks(
    problem: Problem, simulated: Objective
) -> Iterator[tuple[Sequence[Strategy], dict[str, Floats]]]:
    for chunk in chunks_here(problem.space, simulated):
        known = np.flatnonzero(~chunk.evaluations.failed)
        metrics = {name: column[known] for name, column in chunk.evaluations.metrics.items()}
        yield Strategies.of(chunk.strategies).taken(known), metrics


def _proved(problem: Problem, simulated: Objective, metric: Metric) -> Expectation:
    found = certify(problem, simulated, top=KEPT)
    trials: dict[Strategy, Trial] = {
        trial.strategy: trial for trial in (*found.ranked, *found.layouts)
    }
    rows = [trial.evaluation.metrics for trial in trials.values()]
    names = rows[0] if rows else ()
    metrics = {name: np.array([row[name] for row in rows]) for name in names}
    return _part(Strategies.of(trials), metrics, metric, problem)


def _part(
    strategies: Sequence[Strategy], metrics: dict[str, Floats], metric: Metric, problem: Problem
) -> Expectation:
    values = metrics.get(metric.name, np.ones(len(strategies)))
    sign = -1.0 if metric.larger_is_better else 1.0
    with np.errstate(divide="ignore"):
        log_cost = sign * np.log(np.abs(values))
        log_fill = np.log(needed_bytes(metrics) / problem.memory_bytes) + np.zeros(len(strategies))
    part = Expectation(Strategies.of(strategies), log_cost, log_fill)
    return part.taken(_kept(part))


def _kept(part: Expectation) -> Indices:
    """The best expected among those that fit, some that nearly do, and the best of each layout."""
    order = np.lexsort((part.log_cost, part.log_fill > 0))
    fitting = int((part.log_fill <= 0).sum())
    nearly = order[fitting:][part.log_fill[order[fitting:]] <= OVERFULL]
    _, firsts = np.unique(part.table.taken(order).distinct(LAYOUT)[1], return_index=True)
    return np.unique(
        np.concatenate([order[:fitting][:KEPT], nearly[: KEPT // 4], order[np.sort(firsts)]])
    )


def _joined(parts: Sequence[Expectation]) -> Expectation:
    whole = Expectation(
        Strategies.of(strategy for part in parts for strategy in part.table),
        np.concatenate([part.log_cost for part in parts]),
        np.concatenate([part.log_fill for part in parts]),
    )
    return whole.taken(_kept(whole))


__all__ = ["ProblemProspects"]
