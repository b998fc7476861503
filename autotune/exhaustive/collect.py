"""What is worth keeping of a space that streams by: the best, the front, the best of each layout.

Memory does not grow with the space, but for one number per feasible strategy and, up to a bound, a
sample of it (`landscape.py`). What is kept does not
depend on where chunks begin.
"""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from autotune.exhaustive.chunks import Chunk
from autotune.exhaustive.landscape import Landscape
from autotune.objectives.columns import Flags, MetricColumn
from autotune.objectives.objective import Objective
from autotune.study.trial import LAYOUT, Trial, layout, rank
from distir.metrics import iteration_seconds, peak_memory_bytes
from distir.strategies import Strategies

MEMORY = peak_memory_bytes.name
TIME = iteration_seconds.name


def second_metric(metric: str) -> str:
    """What a plan is weighed against besides the metric that counts: its memory, or its time where
    memory counts.
    """
    return TIME if metric == MEMORY else MEMORY


@dataclass(slots=True)
class Sorted:
    """Trials in the order of their cost, then a second metric, then their number."""

    cost: MetricColumn = field(default_factory=lambda: np.empty(0))
    second: MetricColumn = field(default_factory=lambda: np.empty(0))
    number: MetricColumn = field(default_factory=lambda: np.empty(0))
    trials: NDArray[np.object_] = field(default_factory=lambda: np.empty(0, np.object_))

    def merged(self, chunk: Chunk, chosen: NDArray[np.intp], second: MetricColumn) -> Sorted:
        """Both sets of trials in one order."""
        new = np.empty(len(chosen), np.object_)
        new[:] = [chunk.trial(int(index)) for index in chosen]
        both = Sorted(
            np.concatenate([self.cost, chunk.costs[chosen]]),
            np.concatenate([self.second, second[chosen]]),
            np.concatenate([self.number, np.asarray(chunk.numbers, np.float64)[chosen]]),
            np.concatenate([self.trials, new]),
        )
        return both.taken(np.lexsort((both.number, both.second, both.cost)))

    def taken(self, which: NDArray[np.intp] | slice) -> Sorted:
        """The rows at these places."""
        return Sorted(self.cost[which], self.second[which], self.number[which], self.trials[which])


@dataclass(slots=True)
class Collector:
    """Takes chunks of a space, numbers ascending in each."""

    objective: Objective
    top: int
    """Trials kept of the best."""
    evaluated: int = 0
    feasible: int = 0
    failures: Counter[str] = field(default_factory=Counter[str])
    """Failed trials by reason."""
    closest: Trial | None = None
    """The infeasible trial that misses by least, the first of equals."""
    improvements: list[Trial] = field(default_factory=list[Trial])
    """Trials that were better than all before them."""
    costs: array[float] = field(default_factory=lambda: array("d"))
    """Costs of all feasible trials."""
    landscape: Landscape = field(default_factory=Landscape)
    _best: Sorted = field(default_factory=Sorted)
    _front: Sorted = field(default_factory=Sorted)
    _layouts: dict[tuple[int, ...], Trial] = field(default_factory=dict[tuple[int, ...], Trial])

    def add(self, chunk: Chunk) -> None:
        """Takes the next chunk."""
        evaluations = chunk.evaluations
        self.evaluated += len(chunk)
        if evaluations.failed.any():
            failed = np.flatnonzero(evaluations.failed)
            self.failures.update(evaluations.reasons.get(int(i)) or "" for i in failed)
        usable = evaluations.feasible & ~np.isnan(chunk.costs)
        self.feasible += int(usable.sum())
        self.costs.frombytes(chunk.costs[usable].tobytes())
        memory = _metric(chunk, MEMORY)
        self._add_best(chunk, usable, memory)
        self._add_layouts(chunk, usable, memory)
        self._add_front(chunk, usable, _metric(chunk, second_metric(self.objective.metric)))
        self._add_improvements(chunk, usable)
        self._add_closest(chunk)
        self.landscape.add(chunk)

    def _add_best(self, chunk: Chunk, usable: Flags, memory: MetricColumn) -> None:
        if len(self._best.cost) >= self.top:
            usable = usable & (chunk.costs <= self._best.cost[-1])
        chosen = np.flatnonzero(usable)
        if len(chosen) > self.top:
            order = np.lexsort((memory[chosen], chunk.costs[chosen]))  # stable: numbers ascend
            chosen = np.sort(chosen[order[: self.top]])
        if len(chosen):
            self._best = self._best.merged(chunk, chosen, memory).taken(slice(self.top))

    def _add_front(self, chunk: Chunk, usable: Flags, second: MetricColumn) -> None:
        """Updates the front: in the order of costs, trials whose second metric is below that of all
        before them."""
        chosen = np.flatnonzero(usable & np.isfinite(second))
        order = np.lexsort((second[chosen], chunk.costs[chosen]))
        chosen = chosen[order]
        chosen = chosen[_records(second[chosen])]
        front = self._front
        if len(front.cost):
            cheaper = np.searchsorted(front.cost, chunk.costs[chosen], side="right")
            least = np.concatenate([[np.inf], front.second])[cheaper]
            chosen = chosen[second[chosen] <= least]
        if len(chosen):
            merged = front.merged(chunk, chosen, second)
            self._front = merged.taken(np.flatnonzero(_records(merged.second)))

    def _add_layouts(self, chunk: Chunk, usable: Flags, memory: MetricColumn) -> None:
        chosen = np.flatnonzero(usable)
        if not len(chosen):
            return
        _, which = Strategies.of(chunk.strategies).distinct(LAYOUT)
        order = np.lexsort((memory[chosen], chunk.costs[chosen], which[chosen]))
        _, first = np.unique(which[chosen][order], return_index=True)
        for index in chosen[order[first]].tolist():
            trial = chunk.trial(index)
            known = self._layouts.get(layout(trial.strategy))
            if known is None or rank(trial) < rank(known):
                self._layouts[layout(trial.strategy)] = trial

    def _add_improvements(self, chunk: Chunk, usable: Flags) -> None:
        before = self.improvements[-1].cost if self.improvements else None
        costs = np.where(usable, chunk.costs, np.inf)
        better = _records(costs) & (costs < (np.inf if before is None else before))
        self.improvements += [chunk.trial(int(index)) for index in np.flatnonzero(better)]

    def _add_closest(self, chunk: Chunk) -> None:
        evaluations = chunk.evaluations
        missed = np.flatnonzero(~evaluations.feasible & ~evaluations.failed)
        if not len(missed):
            return
        index = int(missed[evaluations.violation[missed].argmin()])
        trial, known = chunk.trial(index), self.closest
        if known is None or _missed_by(trial) < _missed_by(known):
            self.closest = trial

    @property
    def closest_told(self) -> Trial | None:
        """`closest`, with the reason in words: of many strategies at once, none is told."""
        closest = self.closest
        if closest is None or closest.evaluation.reason is not None or not self.objective.trusted:
            return closest
        return replace(closest, evaluation=self.objective.measure(closest.strategy))

    @property
    def best(self) -> Trial | None:
        """The best so far."""
        return self._best.trials[0] if len(self._best.trials) else None

    @property
    def worst(self) -> Trial | None:
        """The last of the `top` best, once `top` trials are kept."""
        return self._best.trials[-1] if len(self._best.trials) >= self.top else None

    @property
    def ranked(self) -> tuple[Trial, ...]:
        """The `top` best, best first; of equals, first the one that needs less memory."""
        return tuple(self._best.trials)

    @property
    def front(self) -> tuple[Trial, ...]:
        """The Pareto front of the objective and the second metric, best first."""
        return tuple(self._front.trials)

    @property
    def layouts(self) -> tuple[Trial, ...]:
        """The best of each layout, best first."""
        return tuple(sorted(self._layouts.values(), key=rank))


def _missed_by(trial: Trial) -> tuple[float, int]:
    return (trial.evaluation.violation, trial.number)


def _metric(chunk: Chunk, name: str) -> MetricColumn:
    """A metric that is to be small, infinite where it is not known."""
    values = chunk.evaluations.metrics.get(name, np.full(len(chunk), np.nan))
    return np.where(np.isnan(values), np.inf, values)


def _records(values: MetricColumn) -> Flags:
    """Whether each value is below all values before it."""
    before = np.minimum.accumulate(np.concatenate([[np.inf], values]))
    return values < before[:-1]
