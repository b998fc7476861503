"""What is known of a problem's strategies before any is tried: what samplers start from."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from autotune.exhaustive.certified import can_be_bounded, can_be_certified, certify
from autotune.exhaustive.chunks import Chunk, chunk_of, chunks_here, evaluated_chunk
from autotune.exhaustive.first_look import promising
from autotune.objectives.objective import Objective
from autotune.objectives.simulator import needed_bytes
from autotune.problem import Problem
from autotune.prospects.bounded_pool import BoundedPool
from autotune.samplers.expectation import Expectation
from autotune.samplers.experience import Experience
from autotune.samplers.guided import BETWEEN_LAYOUTS, NOISE
from autotune.study.trial import LAYOUT
from distir.arrays import Indices
from distir.errors import DistirError
from distir.metrics import Metric, find_metric, iteration_seconds
from distir.simulation.bounds import Bounds
from distir.simulation.simulator import Simulator
from distir.strategies import Strategies

MOST_SIMULATED, MOST_PLANNED = 200_000, 100
"""Strategies of the largest space that is simulated in full, and of the largest in which plans are
found one by one, which takes up to half a second each. Of larger ones there are usual strategies,
and what certified search finds."""
SEARCH_SECONDS = 30.0
"""Longest that certified search takes; what it has found until then are the best."""
KEPT = 4096
"""Strategies that are kept, besides the best of every layout."""
LEAST = 1e-9
"""Least value of a metric whose logarithm is taken: what is idle of an iteration may be nothing."""
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
        if self._is_simulated:
            return 0.0
        return self.problem.band.repeat if self.problem.band is not None else NOISE

    @property
    def between_layouts(self) -> float:
        """The spread of errors of layouts, none where the objective is the simulator."""
        if self._is_simulated:
            return 0.0
        return self.problem.band.layout if self.problem.band is not None else BETWEEN_LAYOUTS

    @property
    def _is_simulated(self) -> bool:
        return self.objective.trusted and find_metric(self.objective.metric) is not None

    def simulated(self) -> Expectation:
        """The best strategies of the space and of every layout, as the simulator expects them.

        The time counts, or the metric of the objective if the simulator knows it by name.
        """
        problem = self.problem
        metric = foretold(problem, self.objective.metric)
        simulated = problem.objective(metric.objective)
        most = MOST_PLANNED if simulated.many is None else MOST_SIMULATED
        chunks: Iterable[Chunk]
        if isinstance(problem.simulator, Simulator) and problem.space.count() > most:
            usual = promising(problem, Bounds(problem.simulator.stages))
            chunks = _of_large(problem, simulated, usual)
        else:
            chunks = chunks_here(problem.space, simulated)
        return _joined([_part(chunk, metric, problem) for chunk in chunks])

    def bounded(self) -> BoundedPool | None:
        """The problem's strategies with bounds, where the objective is time or memory as distir
        simulates them."""
        if not can_be_bounded(self.problem, self.objective):
            return None
        metric = find_metric(self.objective.metric)
        return BoundedPool(self.problem, of_memory=metric is None or not metric.timed)


def foretold(problem: Problem, name: str) -> Metric:
    """The simulator's metric that an objective's is expected to go with: the one of its name, if
    all that it needs is stated, else the time. A plug-in may call its own metric `cost`."""
    known = find_metric(name)
    if known is None:
        return iteration_seconds
    try:
        problem.objective(known.objective)
    except DistirError:
        return iteration_seconds
    return known


def _of_large(problem: Problem, simulated: Objective, usual: Strategies) -> Iterator[Chunk]:
    """Strategies of a large space: the first of the usual ones and those of all layouts, and those
    that certified search finds in a while, which says nothing where plans are found one by one."""
    most = MOST_PLANNED if simulated.many is None else KEPT
    firsts, _ = usual.distinct(LAYOUT)
    chosen = np.unique(np.concatenate([firsts, np.arange(min(len(usual), most))]))
    usual = usual.taken(chosen)
    if len(usual):
        yield evaluated_chunk(simulated, range(len(usual)), usual)
    if not can_be_certified(problem, simulated):
        return
    found = certify(problem, simulated, top=KEPT, seconds=SEARCH_SECONDS)
    if found.interrupted:
        raise KeyboardInterrupt
    seen = {*usual}
    others = {each.strategy: each for each in (*found.ranked, *found.layouts)}
    if others := [trial for strategy, trial in others.items() if strategy not in seen]:
        yield chunk_of(others)


def _part(chunk: Chunk, metric: Metric, problem: Problem) -> Expectation:
    known = np.flatnonzero(~chunk.evaluations.failed)
    metrics = {name: column[known] for name, column in chunk.evaluations.metrics.items()}
    strategies = Strategies.of(chunk.strategies).taken(known)
    values = metrics.get(metric.name, np.ones(len(strategies)))
    sign = -1.0 if metric.larger_is_better else 1.0
    log_cost = sign * np.log(np.maximum(np.abs(values), LEAST))
    with np.errstate(divide="ignore"):
        log_fill = np.log(needed_bytes(metrics) / problem.memory_bytes) + np.zeros(len(strategies))
    part = Expectation(strategies, log_cost, log_fill)
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
    if not parts:
        return Expectation(Strategies.of(()), np.zeros(0), np.zeros(0))
    whole = Expectation(
        Strategies.of(strategy for part in parts for strategy in part.table),
        np.concatenate([part.log_cost for part in parts]),
        np.concatenate([part.log_fill for part in parts]),
    )
    return whole.taken(_kept(whole))


__all__ = ["ProblemProspects"]
