"""The front door: from a model and a cluster to the best way to distribute it, in one call.

`__all__` lists the public names of `autotune`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.durable.stated import Kept
from autotune.exhaustive.certified import Certificate, certify
from autotune.exhaustive.grid import TOP as GRID_TOP
from autotune.exhaustive.grid import Grid, Watcher
from autotune.exhaustive.grid import evaluate_grid as evaluate_space
from autotune.objectives import Evaluation, Objective
from autotune.page.notebook import comparison_figures
from autotune.problem import Problem, load_problem, problem_of
from autotune.questions.compare import SAMPLERS_COMPARED, Archive, Comparison, Standing, standings
from autotune.reports.compare import compare_report
from autotune.result import TuneResult
from autotune.samplers import Sampler
from autotune.search import DEFAULT_TRIALS, Search
from autotune.solving import measuring, pictured, solve
from autotune.statement import Goal, ProblemStatement, takes
from autotune.study.study import Measure
from autotune.study.trial import Trial
from autotune.testing import ObjectiveContract, SamplerContract
from autotune.trackers import StudyHeader, Tracker, TrackingRecord
from autotune.trackers.mlflow import MlflowTracker
from distir.arguments import checked
from search_spaces import SearchSpace

if TYPE_CHECKING:
    from autotune.exhaustive.chunks import Chunk


@dataclass(frozen=True, kw_only=True)
class Tuning(Search, Kept, ProblemStatement):
    """The arguments of `tune`: a problem, how to search, where the study is kept, and where that is
    recorded."""

    tracker: Tracker | None = None
    """Told of the search as it goes; nothing is recorded by default."""


@takes(Tuning)
def tune(asked: Tuning) -> TuneResult:
    """Finds the best strategy for a model on a cluster.

    The arguments are those of `ProblemStatement`, or a `Problem` alone, and those of `Search`:
    `tune("gpt2", "dgx-a100", devices=16, objective="latency", trials=100)`.
    """
    problem = problem_of(asked.suited(asked))
    statement = None if asked.is_made else asked
    return solve(problem, asked, tracker=asked.tracker, kept=asked, statement=statement)


@checked
def evaluate_grid(
    space: SearchSpace | Problem,
    objective: Objective,
    measure: Measure | None = None,
    *,
    chunks: Iterable[Chunk] | None = None,
    top: int = GRID_TOP,
    watch: Watcher = lambda chunk, best: None,
) -> Grid:
    """Evaluates every strategy of a space and keeps the `top` best; an interrupt keeps what was
    evaluated. The grid of a problem has figures: `plot.space()`. `chunks`: the space as it is
    evaluated elsewhere.
    """
    problem = space if isinstance(space, Problem) else None
    strategies = space.space if isinstance(space, Problem) else space
    found = evaluate_space(strategies, objective, measure, chunks=chunks, top=top, watch=watch)
    return found if problem is None else pictured(found, problem, objective)


@dataclass(frozen=True, kw_only=True)
class Comparing(Goal, ProblemStatement):
    """The arguments of `compare_samplers`: a problem, what for, and the searches to run."""

    samplers: Sequence[str] = SAMPLERS_COMPARED
    seeds: int = 5
    """Searches per sampler."""
    trials: int = DEFAULT_TRIALS
    """Strategies per search."""


@takes(Comparing)
def compare_samplers(asked: Comparing) -> Comparison:
    """Compares samplers with exhaustive search over several seeds: what they lose, and how soon
    they come close.

    The arguments are those of `ProblemStatement`, or a `Problem` alone, those of `Goal`, and
    `samplers`, `seeds` and `trials`. Raises `DistirError` if no strategy is feasible.
    """
    problem = problem_of(asked.suited(asked))
    problem.check_not_empty()
    objective = asked.over(problem)
    archive = Archive(problem.space)
    with measuring(objective, asked) as measure:
        each = measure if asked.apart(objective) else None
        grid = evaluate_grid(problem, objective, each, watch=lambda chunk, best: archive.add(chunk))
    if not grid.complete:
        raise KeyboardInterrupt  # there is nothing to compare with
    found, interrupted = standings(
        problem, objective, grid, archive, asked.samplers, asked.seeds, asked.trials
    )
    return Comparison(
        problem,
        objective,
        grid,
        asked.trials,
        found,
        interrupted,
        report=compare_report,
        figures=comparison_figures,
    )


__all__ = [
    "Certificate",
    "Comparison",
    "Evaluation",
    "Goal",
    "Grid",
    "MlflowTracker",
    "Objective",
    "ObjectiveContract",
    "Problem",
    "ProblemStatement",
    "Sampler",
    "SamplerContract",
    "Search",
    "SearchSpace",
    "Standing",
    "StudyHeader",
    "Tracker",
    "TrackingRecord",
    "Trial",
    "TuneResult",
    "certify",
    "compare_samplers",
    "evaluate_grid",
    "load_problem",
    "solve",
    "tune",
]
