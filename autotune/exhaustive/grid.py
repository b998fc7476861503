"""Exhaustive search, and how a study compares with it."""

from __future__ import annotations

import time
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from autotune.objectives.costs import EQUAL, regret
from autotune.objectives.objective import Objective
from autotune.study.study import Measure
from autotune.study.trial import Trial
from autotune.study.verdict import INTERRUPTED, without_best
from distir.errors import DistirError
from search_spaces import SearchSpace

if TYPE_CHECKING:
    from autotune.exhaustive.chunks import Chunk
    from autotune.exhaustive.collect import Collector
    from autotune.exhaustive.landscape import Landscape
    from autotune.problem import Problem
    from autotune.rendering import Pictured

MOST_QUICK = 2500
"""Strategies of the largest space that is evaluated as a whole without being asked, where certified
search can take its place: not seconds, so that the answer is found in one way everywhere."""
LONGEST_SECONDS = 20.0
"""Longest comparison, exhaustive or certified, that is made without being asked."""
TOP = 1000
"""Number of best trials kept."""
SHOWN = 5
"""Number of best trials that a notebook shows."""

Watcher = Callable[["Chunk", "Trial | None"], None]
"""Told of every chunk and of the best so far."""


@dataclass(frozen=True)
class Grid:
    """What is worth keeping of a space in which every strategy was evaluated."""

    space_size: int
    evaluated: int
    feasible: int
    ranked: tuple[Trial, ...] = field(repr=False)
    """The best, best first."""
    front: tuple[Trial, ...] = field(repr=False)
    """The Pareto front of the objective and memory (of memory and time, where memory is the
    objective), best first."""
    layouts: tuple[Trial, ...] = field(repr=False)
    """The best of each layout, best first."""
    improvements: tuple[Trial, ...] = field(repr=False)
    """Trials that were better than all before them, in the order of the space."""
    closest: Trial | None
    """The infeasible trial that misses by least."""
    failures: Mapping[str, int]
    """Failed trials by reason."""
    seconds: float
    """Wall time of the evaluation."""
    costs: Sequence[float] = field(repr=False)
    """Costs of all feasible strategies, ascending."""
    landscape: Landscape = field(repr=False, compare=False)
    """What the space looks like."""
    figures: Callable[[Grid], Pictured] | None = field(default=None, repr=False, compare=False)
    """What notebooks show. It is handed in: grids know no reports."""

    @property
    def complete(self) -> bool:
        """False if it was interrupted."""
        return self.evaluated == self.space_size

    @property
    def failed(self) -> int:
        """Number of failed trials."""
        return sum(self.failures.values())

    @property
    def all_failed(self) -> bool:
        """Whether trials were made, and all of them failed."""
        return self.evaluated > 0 and self.failed == self.evaluated

    @property
    def infeasible(self) -> int:
        """Number of evaluated strategies that do not fit."""
        return self.evaluated - self.feasible - self.failed

    @property
    def said_without_best(self) -> str:
        """The answer where there is no best."""
        if not self.complete:
            return INTERRUPTED
        return without_best(self.infeasible, self.evaluated, self.space_size)

    @property
    def best(self) -> Trial | None:
        """The best feasible trial."""
        return self.ranked[0] if self.ranked else None

    @property
    def plot(self) -> Pictured:
        """The figures of the report, for notebooks: `plot.space()`, `plot.time()`, …

        Raises `DistirError` if it is not known of which problem the grid is.
        """
        if self.figures is None:
            raise DistirError(
                "figures need a problem, and this grid was made from a space alone; try "
                "autotune.evaluate_grid(problem, objective)"
            )
        return self.figures(self)

    def _repr_html_(self) -> str:
        if self.figures is not None:
            return self.plot.in_short()
        from autotune.templates import rendered
        from distir.metrics import METRICS

        best = self.best
        known = [each.value for each in METRICS if best and each.name in best.evaluation.metrics]
        return rendered(
            "compact.html.jinja",
            title=f"{self.evaluated:,} of {self.space_size:,} strategies evaluated",
            answer=self.said_without_best if best is None else f"Best: {best.label}",
            facts=[],
            lines=[f"{self.feasible:,} are feasible; {self.seconds:.2f} s."],
            bars={"parts": [], "rows": []},
            head=["strategy", *(each.heading for each in known)],
            rows=[
                [trial.label, *(each.unit(trial.evaluation.metrics[each.name]) for each in known)]
                for trial in self.ranked[:SHOWN]
            ],
        )

    def regret(self, trial: Trial | None) -> float | None:
        """The fraction that `trial` loses against the best of the grid; 0 where it is better, which
        it may be as long as the grid is not complete."""
        if trial is None or trial.cost is None or self.best is None or self.best.cost is None:
            return None
        return regret(max(trial.cost, self.best.cost), self.best.cost)

    def rank(self, trial: Trial | None) -> int | None:
        """Place of `trial` in the grid: 1 if nothing is better. Equal costs share a place."""
        if trial is None or trial.cost is None:
            return None
        return 1 + bisect_left(self.costs, trial.cost - EQUAL * abs(trial.cost))

    def summary(self, found: Trial | None, problem: Problem) -> dict[str, Any]:
        """The comparison with a study that found `found`, as plain JSON values."""
        best = self.best
        return {
            "method": "exhaustive",
            "complete": self.complete,
            "evaluated": self.evaluated,
            "feasible": self.feasible,
            "seconds": self.seconds,
            "best": problem.outcome(best) if best else None,
            "regret": self.regret(found),
            "rank": self.rank(found),
        }

    def to_dict(self, batch_size: int) -> dict[str, Any]:
        """The grid as plain JSON values."""
        return {
            "space_size": self.space_size,
            "evaluated": self.evaluated,
            "feasible": self.feasible,
            "failed": self.failed,
            "seconds": self.seconds,
            "interrupted": not self.complete,
            "ranked": [trial.to_dict(batch_size) for trial in self.ranked],
            "front": [trial.to_dict(batch_size) for trial in self.front],
        }


def evaluate_grid(
    space: SearchSpace,
    objective: Objective,
    measure: Measure | None = None,
    *,
    chunks: Iterable[Chunk] | None = None,
    top: int = TOP,
    watch: Watcher = lambda chunk, best: None,
) -> Grid:
    """Evaluates every strategy of `space` and keeps the `top` best; an interrupt keeps what was
    evaluated. `chunks`: the space as it is evaluated elsewhere.
    """
    from autotune.exhaustive.chunks import chunks_here
    from autotune.exhaustive.collect import Collector

    clock = time.perf_counter()
    source = chunks_here(space, objective, measure) if chunks is None else iter(chunks)
    found = Collector(objective, top)
    try:
        for chunk in source:
            found.add(chunk)
            watch(chunk, found.best)
    except KeyboardInterrupt:
        pass  # what is there is worth showing; `complete` tells
    return _grid(space.count(), found, time.perf_counter() - clock)


def grid_of(trials: Sequence[Trial], objective: Objective, top: int = TOP) -> Grid:
    """The grid of a space whose strategies a study has all tried."""
    from autotune.exhaustive.chunks import chunk_of
    from autotune.exhaustive.collect import Collector

    found = Collector(objective, top)
    found.add(chunk_of(trials))
    return _grid(len(trials), found, sum(trial.seconds for trial in trials))


def _grid(space_size: int, found: Collector, seconds: float) -> Grid:
    import numpy as np

    return Grid(
        space_size=space_size,
        evaluated=found.evaluated,
        feasible=found.feasible,
        ranked=found.ranked,
        front=found.front,
        layouts=found.layouts,
        improvements=tuple(found.improvements),
        closest=found.closest_told,
        failures=dict(found.failures.most_common()),
        seconds=seconds,
        costs=array("d", np.sort(found.costs).tobytes()),  # a list takes four times as much
        landscape=found.landscape,
    )


PILOT = 512
"""Strategies that are evaluated to find out how long a grid takes."""


def grid_seconds(space: SearchSpace, objective: Objective, tried: Sequence[Trial] = ()) -> float:
    """About how long the grid takes: from the pace of the first strategies where many are evaluated
    at once, otherwise from that of `tried`, of which the first ones were slow."""
    from autotune.exhaustive.chunks import evaluated_chunk
    from search_spaces.columns import SpaceColumns

    count = space.count()
    if objective.many is None:
        return count * median(trial.seconds for trial in tried) if tried else 0.0
    few = min(PILOT, count)
    return evaluated_chunk(objective, *SpaceColumns(space).taken(0, few)).seconds * count / few
