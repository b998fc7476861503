"""Samplers against the grid: how much they lose, and how soon they come close."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import mean, median
from typing import TYPE_CHECKING, Any

from autotune.exhaustive.grid import Grid
from autotune.objectives.evaluation import Evaluation
from autotune.objectives.objective import Objective
from autotune.problem import Problem
from autotune.prospects.prospects import ProblemProspects
from autotune.rendering import Shown
from autotune.samplers import load_sampler
from autotune.study.study import Measure, Study
from autotune.study.trial import Curve, Trial, best_of, regret_curve
from autotune.study.verdict import all_failed
from distir.errors import DistirError
from distir.strategy import Strategy
from search_spaces import SearchSpace

if TYPE_CHECKING:
    from autotune.exhaustive.chunks import Chunk

SAMPLERS_COMPARED = ("bounds", "tpe", "reinforce", "nsga2", "qmc", "random")
"""Compared unless others are named."""

CLOSE = 0.01
"""Regret that counts as having found a plan as good as the best."""


class Archive:
    """Remembers every evaluation of a space, column by column."""

    def __init__(self, space: SearchSpace):
        self._space = space
        self._chunks: list[Chunk] = []

    def add(self, chunk: Chunk) -> None:
        """Takes the next chunk."""
        self._chunks.append(chunk)

    def measure(self, strategy: Strategy) -> Evaluation:
        """What was found of a strategy."""
        number = self._space.index(strategy)
        for chunk in self._chunks:
            place = int(chunk.numbers.searchsorted(number))
            if place < len(chunk) and chunk.numbers[place] == number:
                return chunk.evaluations[place]
        raise KeyError(f"{strategy.label} was not evaluated")


@dataclass(frozen=True, slots=True)
class Contest:
    """One sampler with one seed."""

    sampler: str
    seed: int
    trials: int
    regret: float | None
    """`None` if nothing feasible was found."""
    trials_to_close: int | None
    """Trials until the best was within 1 % of the grid's; `None` if that never was."""
    seconds: float
    """Time of the sampler alone; evaluations come from the grid."""
    curve: Curve = ()


@dataclass(frozen=True, slots=True)
class Standing:
    """One sampler over all seeds."""

    sampler: str
    seeds: int
    found: int
    """Seeds that found the best."""
    close: int
    """Seeds that came within 1 %."""
    mean_regret: float | None
    worst_regret: float | None
    median_trials_to_close: float | None
    """Over the seeds that came close."""
    seconds: float
    """Mean time of a search, without evaluations."""
    curves: tuple[Curve, ...] = field(default=(), repr=False)
    """One per seed."""

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        plain = asdict(self)
        del plain["curves"]  # which are drawn, and long
        return plain


@dataclass(frozen=True, repr=False)
class Comparison(Shown):
    """Samplers against exhaustive search. In a notebook it shows itself as a table."""

    problem: Problem
    objective: Objective
    grid: Grid
    trials: int
    """Strategies per search."""
    standings: tuple[Standing, ...]
    """One per sampler, in the order in which they were named."""
    interrupted: bool = False
    """Whether an interrupt left samplers or seeds out."""

    def __repr__(self) -> str:
        samplers = ", ".join(each.sampler for each in self.standings)
        return f"<Comparison of {samplers} on {self.problem.title}>"

    def to_dict(self) -> dict[str, Any]:
        """The comparison as plain JSON values."""
        problem, best = self.problem, self.grid.best
        return {
            "model": problem.model,
            "cluster": problem.cluster,
            "devices": problem.devices,
            "mode": problem.mode,
            "objective": self.objective.name,
            "space": problem.space_name,
            "space_size": self.grid.space_size,
            "trials": self.trials,
            "interrupted": self.interrupted,
            "best": best.outcome(problem.batch_size) if best else None,
            "samplers": [each.to_dict() for each in self.standings],
        }


def standings(
    problem: Problem,
    objective: Objective,
    grid: Grid,
    archive: Archive,
    samplers: Sequence[str],
    seeds: int,
    trials: int,
) -> tuple[tuple[Standing, ...], bool]:
    """Runs every sampler with the seeds 0 to `seeds` - 1 over the evaluations of `archive`, which
    has all of `grid`. An interrupt ends that, and loses the search at hand; it is told whether
    there was one. Raises `DistirError` if no strategy is feasible.
    """
    if grid.all_failed:
        raise DistirError(all_failed(grid.failures))
    if grid.best is None:
        raise DistirError(
            f"there is nothing to compare: no strategy is feasible for {problem.title}"
        )
    found: dict[str, list[Contest]] = {}
    interrupted = False
    try:
        for name in samplers:
            for seed in range(seeds):
                made = contest(problem, objective, archive.measure, grid, name, seed, trials)
                found.setdefault(name, []).append(made)
    except KeyboardInterrupt:
        if not found:
            raise
        interrupted = True
    return tuple(map(standing, found.values())), interrupted


def contest(
    problem: Problem,
    objective: Objective,
    measure: Measure,
    grid: Grid,
    sampler: str,
    seed: int,
    trials: int,
) -> Contest:
    """Runs `sampler` over evaluations that the grid has made, which `measure` knows."""
    made = load_sampler(sampler, problem.space, seed, ProblemProspects(problem, objective))
    study = Study(problem.space, objective, made, measure, seed)
    clock = time.perf_counter()
    study.run(trials)
    seconds = time.perf_counter() - clock
    if study.interrupted:
        raise KeyboardInterrupt
    if study.error:
        raise DistirError(f"{sampler}, seed {seed}: {study.error}")
    regret, close = grid.regret(study.best), _trials_to_close(study.trials, grid)
    best = grid.best.cost if grid.best is not None else None
    curve = regret_curve(study.trials, best) if best is not None else ()
    return Contest(sampler, seed, len(study.trials), regret, close, seconds, curve)


def standing(contests: Sequence[Contest]) -> Standing:
    """Sums up the contests of one sampler."""
    regrets = [each.regret for each in contests if each.regret is not None]
    close = [each.trials_to_close for each in contests if each.trials_to_close is not None]
    return Standing(
        sampler=contests[0].sampler,
        seeds=len(contests),
        found=sum(regret == 0 for regret in regrets),
        close=len(close),
        mean_regret=mean(regrets) if regrets else None,
        worst_regret=max(regrets) if regrets else None,
        median_trials_to_close=median(close) if close else None,
        seconds=mean(each.seconds for each in contests),
        curves=tuple(each.curve for each in contests),
    )


def _trials_to_close(trials: Sequence[Trial], grid: Grid) -> int | None:
    best: Trial | None = None
    for tried, trial in enumerate(trials, 1):
        best = best_of([trial] if best is None else [best, trial])
        regret = grid.regret(best)
        if regret is not None and regret <= CLOSE:
            return tried
    return None
