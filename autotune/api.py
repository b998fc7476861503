"""`tune`: from a model and a cluster to the best way to distribute it, in one call."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autotune.grid import QUICK_SECONDS, Grid, evaluate_grid, grid_of, grid_seconds
from autotune.objectives import OBJECTIVES, Evaluation, Objective
from autotune.objectives.objective import ObjectiveFunction
from autotune.problem import (
    DEFAULT_CLUSTER,
    DEFAULT_DEVICES,
    DEFAULT_SPACE,
    Problem,
    load_problem,
)
from autotune.result import TuneResult
from autotune.samplers import SamplerFactory, load_sampler
from autotune.study import Measure, Study
from autotune.trackers import NullTracker, StudyHeader, Tracker
from autotune.trial import Trial
from distir.errors import DistirError
from distir.strategy import Strategy

if TYPE_CHECKING:
    from distir.workload import Mode
    from search_spaces import SpaceSource

DEFAULT_TRIALS = 50
MORE_TRIALS = 200
"""For large spaces, where trials take milliseconds."""
LARGE_SPACE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """How to search: what for, by which sampler, for how long."""

    objective: str | ObjectiveFunction | Objective = "throughput"
    """A name, `module:attribute`, `file.py:attribute`, or a callable from a strategy to a
    number.
    """
    metric: str | None = None
    """Which of an objective's metrics counts, if not the one it names itself."""
    direction: str | None = None
    """`maximize` or `minimize`, if not what the objective says."""
    sampler: str | SamplerFactory = "tpe"
    trials: int | None = None
    """Strategies to try; by default 50 (200 of a large space where the objective is simulated), or
    all for the sampler `grid`.
    """
    seed: int = 0
    compare_grid: bool | None = None
    """Whether to compare with exhaustive search; by default where that takes seconds."""
    trial_timeout: float | None = None
    """Seconds after which a trial is given up."""

    def __post_init__(self) -> None:
        if self.trials is not None and self.trials < 1:
            raise DistirError(f"there are {self.trials} trials to run; expected at least 1")

    @property
    def sampler_name(self) -> str:
        """The sampler as it is shown."""
        named = self.sampler
        return named.lower() if isinstance(named, str) else getattr(named, "__name__", "custom")

    def budget(self, space_size: int) -> int:
        """Number of strategies to try in a space of `space_size`."""
        return min(self.trials or self._usual_budget(space_size), space_size)

    def _usual_budget(self, space_size: int) -> int:
        if self.sampler_name == "grid":
            return space_size
        simulated = isinstance(self.objective, str) and self.objective in OBJECTIVES
        return MORE_TRIALS if simulated and space_size > LARGE_SPACE else DEFAULT_TRIALS


def tune(
    model: Any,
    cluster: Any = DEFAULT_CLUSTER,
    *,
    devices: int = DEFAULT_DEVICES,
    mode: Mode = "training",
    batch_size: int | None = None,
    sequence_length: int | None = None,
    precision: str | None = None,
    optimizer: str | None = None,
    loss: str | None = None,
    output: str | None = None,
    space: SpaceSource = DEFAULT_SPACE,
    tracker: Tracker | None = None,
    **search: Any,
) -> TuneResult:
    """Finds the best strategy for `model` on `devices` devices of `cluster`.

    `model` is a zoo name, an ONNX file, a Hugging Face `config.json`, a function, or a loaded
    model; `cluster` a name, a TOML file or a loaded cluster; `space` is `small`, `standard`,
    `full`, a YAML file or what such a file says, as in `{"extends": "standard", "zero": [0, 3]}`.
    Further options are those of `Search`, such as `objective="latency"` or `trials=100`.
    """
    problem = load_problem(
        model,
        cluster,
        devices=devices,
        mode=mode,
        batch_size=batch_size,
        sequence_length=sequence_length,
        precision=precision,
        optimizer=optimizer,
        loss=loss,
        output=output,
        space=space,
    )
    return solve(problem, Search(**search), tracker=tracker)


def solve(
    problem: Problem,
    search: Search,
    *,
    tracker: Tracker | None = None,
    on_trial: Callable[[Trial], None] = lambda trial: None,
) -> TuneResult:
    """Searches the space of `problem`, compares with the grid, and has `tracker` record it all."""
    problem.check_not_empty()
    tracker = tracker or NullTracker()
    objective = problem.objective(
        search.objective, metric=search.metric, direction=search.direction
    )
    sampler = load_sampler(search.sampler, problem.space, search.seed)
    budget = search.budget(problem.space.count())
    with measuring(objective, search.trial_timeout) as measure:
        tracker.start(StudyHeader(problem, objective, search.sampler_name, search.seed, budget))
        study = Study(problem.space, objective, sampler, measure, search.seed)
        clock = time.perf_counter()

        def trial_ended(trial: Trial) -> None:
            tracker.log(trial)
            on_trial(trial)

        study.run(budget, trial_ended)
        seconds = time.perf_counter() - clock
        grid = None if study.interrupted or study.error else _grid(study, search)
    result = TuneResult(
        problem=problem,
        objective=objective,
        sampler=search.sampler_name,
        seed=search.seed,
        trials=study.trials,
        seconds=seconds,
        grid=grid,
        repeats=study.repeats,
        interrupted=study.interrupted,
        error=study.error,
    )
    result.tracking = tracker.finish(result)
    return result


@contextmanager
def measuring(objective: Objective, trial_timeout: float | None) -> Generator[Measure, None, None]:
    """The way to evaluate single strategies: here, or in a process of its own where there is a
    time limit.
    """
    if trial_timeout is None:
        yield objective.measure
        return
    from autotune.objectives.isolation import IsolatedObjective

    with IsolatedObjective(objective, trial_timeout) as isolated:
        yield isolated.measure


def _grid(study: Study, search: Search) -> Grid | None:
    if search.compare_grid is not False and len(study.trials) == study.space.count():
        return grid_of(study.trials, study.objective)
    cheap = study.objective.cheap and grid_seconds(study.space, study.trials) <= QUICK_SECONDS
    if not (cheap if search.compare_grid is None else search.compare_grid):
        return None
    if study.objective.many is not None and search.trial_timeout is None:
        return evaluate_grid(study.space, study.objective)
    known = {trial.strategy: trial.evaluation for trial in study.trials}

    def measure(strategy: Strategy) -> Evaluation:
        return known.get(strategy) or study.measure(strategy)

    return evaluate_grid(study.space, study.objective, measure)
