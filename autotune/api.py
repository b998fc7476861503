"""The front door: from a model and a cluster to the best way to distribute it, in one call.

`__all__` lists the public names of `autotune`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from autotune.durable.helpers import Helpers, helped
from autotune.durable.optuna_storage import PRUNERS
from autotune.durable.stated import Kept, plain, plain_search, plain_statement
from autotune.durable.workers import own_seed
from autotune.enqueued import Stated, enqueued
from autotune.exhaustive.certified import Certificate, can_be_certified, certify
from autotune.exhaustive.grid import (
    LONGEST_SECONDS,
    MOST_QUICK,
    Grid,
    Watcher,
    grid_of,
    grid_seconds,
)
from autotune.exhaustive.grid import TOP as GRID_TOP
from autotune.exhaustive.grid import evaluate_grid as evaluate_space
from autotune.exhaustive.outside import Outside, look_outside
from autotune.exhaustive.side_by_side import chunks_side_by_side
from autotune.objectives import Evaluation, Objective
from autotune.page.notebook import comparison_figures, grid_figures, study_figures
from autotune.problem import Problem, load_problem, problem_of
from autotune.prospects.prospects import ProblemProspects
from autotune.prospects.remaining import expectation
from autotune.questions.compare import SAMPLERS_COMPARED, Archive, Comparison, Standing, standings
from autotune.reports.compare import compare_report
from autotune.reports.ranking import TOP
from autotune.reports.study import study_report
from autotune.result import TuneResult
from autotune.samplers import FORMER, SAMPLERS, Sampler, SamplerFactory, load_sampler
from autotune.samplers.experience import Experience, experience_of
from autotune.several import objective_of_several
from autotune.statement import Goal, ProblemStatement, takes
from autotune.study.stopping import Timeout, Within
from autotune.study.study import Measure, Stop, Stopped, Study
from autotune.study.trial import Trial
from autotune.testing import ObjectiveContract, SamplerContract
from autotune.trackers import NullTracker, StudyHeader, Tracker, TrackingRecord
from autotune.trackers.mlflow import MlflowTracker
from autotune.watch import Watch, by_trial
from distir.arguments import checked
from distir.errors import DistirError
from distir.metrics import find_metric, peak_memory_bytes
from distir.strategy import Strategy
from search_spaces import SearchSpace

if TYPE_CHECKING:
    from autotune.durable.opening import OpenStudy
    from autotune.durable.optuna_storage import StoredStudy
    from autotune.exhaustive.chunks import Chunk

NOBODY = Watch()
"""Watches a search that nobody watches."""
DEFAULT_TRIALS = 50
MORE_TRIALS = 200
"""For large spaces, where trials take milliseconds."""
LARGE_SPACE = 500
EXPERIENCE = "experience"
"""The attribute of a study that says what it started from."""


@dataclass(frozen=True, kw_only=True)
class Search(Goal):
    """How to search: what for, by which sampler, for how long."""

    objectives: str | Sequence[str] | None = None
    """Several metrics to make large or small at once, such as `throughput,memory`: of the
    simulator, or what the objective gives, where that is a plug-in. The first ranks plans.
    `METRIC=maximize` or `METRIC=minimize` says the direction where the usual one is not meant.
    """
    sampler: str | SamplerFactory | None = None
    """By default `bounds` where the objective is simulated time or memory, `tpe` for other metrics
    of the simulator, and otherwise `guided`, which starts from what the simulator expects.
    """
    trials: int | None = None
    """Strategies to try; by default 50 (200 of a large space where the objective is simulated), or
    all for the sampler `grid`.
    """
    enqueue: Sequence[Stated] = ()
    """Plans to try first: strategies, or choices by name."""
    warm_start: Sequence[str] = ()
    """Studies on storages, as `STORAGE#NAME`, or the name of one on the same storage: how far the
    simulator was off there is where the sampler `guided` starts from here. They may be about other
    models or clusters."""
    timeout: float | None = None
    """Seconds after which no further trial is begun: the study's, whoever works on it."""
    stop_within: float | None = None
    """Ends the search when nothing left is expected to be better than the best by more than this
    fraction, as the sampler says, or, of samplers that do not, the simulator.
    """
    pruner: str | None = None
    """What ends trials that report on the way and do not promise enough: `median`, `hyperband`,
    or `none`; by default `median` where the objective reports to one end."""
    seed: int = 0
    compare_grid: bool | None = None
    """Whether to compare with exhaustive search; by default where that takes some seconds at most,
    and otherwise with what certified search can prove in twenty.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.trials is not None and self.trials < 1:
            raise DistirError(f"there are {self.trials} trials to run; expected at least 1")
        if self.timeout is not None and not self.timeout > 0:
            raise DistirError(f"the search may take {self.timeout} s; expected more than 0")
        if self.stop_within is not None and not self.stop_within >= 0:
            raise DistirError(
                f"stop_within is {self.stop_within}; expected a fraction such as 0.05"
            )
        pruners = (*PRUNERS, "none")
        if self.pruner not in (None, *pruners):
            raise DistirError(f"the pruner is {self.pruner!r}; expected {', '.join(pruners)}")
        own = self.sampler_name not in (*SAMPLERS.names(), *FORMER)
        if self.warm_start and not (own or self.sampler_name == "guided"):
            raise DistirError(
                "--warm-start is for the sampler guided, and for your own; "
                f"{self.sampler_name} starts from nothing that is measured"
            )
        if self.objectives:
            for option, asked in {
                "--pruner": self.pruner not in (None, "none"),
                "--stop-within": self.stop_within is not None,
                "--compare-grid": self.compare_grid is True,
            }.items():
                if asked:
                    raise DistirError(f"{option} is about one objective; --objectives has several")

    def over(self, problem: Problem) -> Objective:
        """The objective, or all of them, over the problem's simulator."""
        if not self.objectives:
            return super().over(problem)
        objective = objective_of_several(problem, self, self.objectives)
        self.check_isolates(objective)
        return objective

    def pruner_of(self, objective: Objective) -> str | None:
        """The pruner of trials of `objective`, if there is one. Raises `DistirError` if one is
        asked for and the objective does not report."""
        named = self.pruner or ("median" if objective.reporting and not self.objectives else "none")
        if named == "none":
            return None
        if objective.reporting is None:
            raise DistirError(
                f"--pruner {named} needs an objective that reports on the way: a function with a "
                "parameter named report"
            )
        return named

    @property
    def simulated(self) -> bool:
        """Whether the objective is a metric of the simulator."""
        return isinstance(self.objective, str) and find_metric(self.objective) is not None

    @property
    def chosen_sampler(self) -> str | SamplerFactory:
        """The sampler, stated or by default."""
        return self.sampler or self._usual_sampler

    @property
    def _usual_sampler(self) -> str:
        known = find_metric(self.objective) if isinstance(self.objective, str) else None
        if self.objectives:
            return "tpe"
        if known is None:
            return "guided"
        bounded = known.timed or known is peak_memory_bytes
        return "bounds" if bounded and self.metric is None and self.direction is None else "tpe"

    @property
    def sampler_name(self) -> str:
        """The sampler as it is shown."""
        named = self.chosen_sampler
        return named.lower() if isinstance(named, str) else getattr(named, "__name__", "custom")

    def budget(self, space_size: int) -> int:
        """Number of strategies to try in a space of `space_size`."""
        return min(self.trials or self._usual_budget(space_size), space_size)

    def _usual_budget(self, space_size: int) -> int:
        if self.sampler_name == "grid":
            return space_size
        return MORE_TRIALS if self.simulated and space_size > LARGE_SPACE else DEFAULT_TRIALS


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
def solve(
    problem: Problem,
    search: Search,
    *,
    tracker: Tracker | None = None,
    on_trial: Callable[[Trial], None] = lambda trial: None,
    watch: Watch = NOBODY,
    kept: Kept | None = None,
    statement: ProblemStatement | None = None,
) -> TuneResult:
    """Searches the space of `problem`, compares with the grid, and has `tracker` record it all. The
    study is in memory, or where `kept` says, with what the problem was stated as.

    Where everything that can be known of the space is known sooner than a sampler has tried it,
    that comes first: `watch` is told the answer, and then the sampler shows what it would have
    found.
    """
    problem.check_not_empty()
    tracker = tracker or NullTracker()
    objective = search.over(problem)
    pruner = search.pruner_of(objective)
    known_as = statement or problem.statement or ProblemStatement(problem)
    stated = plain_statement(known_as, search)
    stated |= {name: plain(value) for name, value in problem.framework.items()}
    helping = kept is not None and kept.helping
    seed = own_seed(search.seed) if helping else search.seed
    experience = _carried(search, kept)
    sampler = load_sampler(
        search.chosen_sampler,
        problem.space,
        seed,
        ProblemProspects(problem, objective, experience),
        len(objective.aims),
    )
    budget = search.budget(problem.space.count())
    first = [] if helping else enqueued(search.enqueue, problem.space)
    clock = time.perf_counter()
    known, stopped = _Known(), False
    with measuring(objective, search) as measure:
        opened = _opened(problem, search, objective, kept, stated)
        if opened is not None and kept is not None and experience and not kept.resume:
            opened.memory.remember(EXPERIENCE, [each.to_dict() for each in experience])
        try:
            known = _known_first(problem, objective, search, watch)
        except KeyboardInterrupt:
            stopped = True
        memory = None if opened is None else opened.memory
        tracker.start(
            StudyHeader(problem, objective, search.sampler_name, search.seed, budget, memory)
        )
        study = Study(problem.space, objective, sampler, known.measure or measure, seed)
        stored: StoredStudy | None = None
        if opened is not None:
            study.ledger = opened.ledger
            stored = opened.ledger.study
        elif pruner is not None:
            from autotune.durable.opening import ledger_that_prunes

            study.ledger = pruning = ledger_that_prunes(problem, objective, pruner)
            stored = pruning.study
        study.first = first
        study.stops = _stops(search, problem, objective, sampler, opened)

        def result(seconds: float) -> TuneResult:
            return TuneResult(
                report=study_report,
                figures=study_figures,
                problem=problem,
                objective=objective,
                sampler=search.sampler_name,
                seed=search.seed,
                trials=study.trials,
                seconds=seconds,
                grid=known.grid and _pictured(known.grid, problem, objective),
                proof=known.proof,
                repeats=study.repeats,
                interrupted=stopped or study.interrupted or known.interrupted,
                error=study.error,
                stopped=Stopped("interrupted", "it was interrupted") if stopped else study.stopped,
                kept=None if opened is None else opened.record,
                stored=stored,
            )

        stopped = stopped or known.interrupted
        if known.is_answer and not stopped:
            watch.answered(result(0.0))
        began = time.perf_counter()
        if not stopped:
            with helped(kept, stated) as helpers:
                _run(study, budget, tracker, on_trial, watch, helpers, replay=not helping)
        seconds = time.perf_counter() - began
        try:
            if not (stopped or study.interrupted or study.error or known.is_something):
                known = _compared_with(study, search, watch)
        except KeyboardInterrupt:
            stopped = True
    found = result(seconds)
    watch.searched(found)
    try:
        with watch.phase("looking outside the space"):
            outside = _outside(found, search, time.perf_counter() - clock)
        found = replace(found, outside=outside)
    except KeyboardInterrupt:
        found = replace(found, interrupted=True)  # what was found before is whole
    if found.outside is not None:
        watch.looked_outside(found)
    with watch.phase("recording"):
        return replace(found, tracking=tracker.finish(found))


def _carried(search: Search, kept: Kept | None) -> Experience:
    """What the studies that are named have learned; where this one is gone on with, what they had
    when it began."""
    if not search.warm_start:
        return ()
    if kept is not None and kept.resume:
        from autotune.durable.opening import found_study

        known = found_study(kept).attributes().get(EXPERIENCE)
        if known is not None:
            return experience_of(known)
    from autotune.prospects.carried import carried_from

    storage = None if kept is None else kept.storage
    return tuple(each for name in search.warm_start for each in carried_from(name, storage))


def _opened(
    problem: Problem,
    search: Search,
    objective: Objective,
    kept: Kept | None,
    stated: Mapping[str, Any],
) -> OpenStudy | None:
    """The study on a storage, if it is to be there."""
    if kept is None or kept.storage is None:
        return None
    from autotune.durable.opening import open_study

    plain, pruner = plain_search(search, Search), search.pruner_of(objective)
    return open_study(kept, problem, objective, stated, plain, pruner)


def _stops(
    search: Search,
    problem: Problem,
    objective: Objective,
    sampler: Sampler,
    opened: OpenStudy | None,
) -> list[Stop]:
    """Reasons to end before all trials are made."""
    stops: list[Stop] = []
    if search.timeout is not None:
        spent = 0.0 if opened is None else opened.ledger.busy_seconds()
        stops.append(Timeout(search.timeout, spent, time.monotonic()))
    if search.stop_within is not None:
        stops.append(Within(search.stop_within, expectation(problem, objective, sampler)))
    return stops


def _run(
    study: Study,
    budget: int,
    tracker: Tracker,
    on_trial: Callable[[Trial], None],
    watch: Watch,
    helpers: Helpers,
    *,
    replay: bool,
) -> None:
    """Runs the study and tells of every trial."""
    with watch.phase("searching", budget) as advance:
        shown = by_trial(advance)

        def ended(trial: Trial) -> None:
            tracker.log(trial)
            on_trial(trial)
            shown(trial)

        study.run(budget, ended, replay=replay)
        study.wait_for(helpers.wait, ended)


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known of all strategies of a space."""

    grid: Grid | None = None
    proof: Certificate | None = None
    measure: Measure | None = None
    """Evaluates strategies by looking them up in the grid."""

    @property
    def is_something(self) -> bool:
        """Whether there is a grid or a proof."""
        return self.grid is not None or self.proof is not None

    @property
    def is_answer(self) -> bool:
        """Whether something fits, or it is known that nothing does, and what misses by least: where
        bounds alone rule out everything, trials are still to say that."""
        proof = self.proof
        return self.grid is not None or (
            proof is not None
            and (proof.best is not None or (proof.complete and proof.closest is not None))
        )

    @property
    def interrupted(self) -> bool:
        """Whether somebody wanted an end before all was known that was to be."""
        ended = self.grid is not None and not self.grid.complete
        return ended or (self.proof is not None and self.proof.interrupted)


def _known_first(problem: Problem, objective: Objective, search: Search, watch: Watch) -> _Known:
    """What the simulator finds out about the whole space before a sampler tries anything: the grid,
    where that is quick or was asked for, otherwise what certified search can prove in a while."""
    if objective.many is None or search.apart(objective) or search.compare_grid is False:
        return _Known()
    if objective.others:
        return _Known()  # grids and proofs are of one objective
    if search.compare_grid is None and problem.space.count() > MOST_QUICK:
        if not can_be_certified(problem, objective):
            return _Known()
        with watch.phase("proving", problem.space.count()) as advance:
            proof = certify(problem, objective, top=TOP, seconds=LONGEST_SECONDS, advance=advance)
        return _Known(proof=proof)
    archive = Archive(problem.space)
    with watch.phase("evaluating", problem.space.count()) as advance:

        def seen(chunk: Chunk, best: Trial | None) -> None:
            archive.add(chunk)
            advance(len(chunk), best, chunk.seconds)

        chunks = chunks_side_by_side(problem.space, objective)
        grid = evaluate_space(problem.space, objective, chunks=chunks, watch=seen)

    def measure(strategy: Strategy) -> Evaluation:
        found = archive.measure(strategy)
        # Of many strategies at once, reasons are not put into words.
        return found if found.feasible else objective.measure(strategy)

    return _Known(grid, measure=measure if grid.complete else None)


def _compared_with(study: Study, search: Search, watch: Watch) -> _Known:
    """What a search is compared with afterwards: everything, where it has tried that, or where that
    takes a while at most or was asked for."""
    objective, asked = study.objective, search.compare_grid
    if asked is False or objective.others:
        return _Known()
    if len(study.trials) == study.space.count():
        return _Known(grid_of(study.trials, objective))
    if asked is None:
        seconds = grid_seconds(study.space, objective, study.trials)
        if not objective.cheap or seconds > LONGEST_SECONDS:
            return _Known()
    with watch.phase("grid", study.space.count()) as advance:

        def seen(chunk: Chunk, best: Trial | None) -> None:
            advance(len(chunk), best, chunk.seconds)

        return _Known(_grid(study, search, seen))


def _grid(study: Study, search: Search, seen: Watcher) -> Grid:
    if study.objective.many is not None and not search.apart(study.objective):
        return evaluate_space(study.space, study.objective, watch=seen)
    tried = {each.strategy: each.evaluation for each in study.trials if each.state != "pruned"}

    def measure(strategy: Strategy) -> Evaluation:
        return tried.get(strategy) or study.measure(strategy)

    return evaluate_space(study.space, study.objective, measure, watch=seen)


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
    return found if problem is None else _pictured(found, problem, objective)


def _pictured(grid: Grid, problem: Problem, objective: Objective) -> Grid:
    """The grid with figures of its problem."""
    return replace(grid, figures=partial(grid_figures, problem, objective))


def _outside(result: TuneResult, search: Search, seconds: float) -> Outside | None:
    """What is known of plans outside the space; neighbours are tried as long as the search took."""
    if search.compare_grid is False or (result.grid is None and result.proof is None):
        return None
    if result.grid is not None and not result.grid.complete:
        return None
    if result.interrupted:
        return None
    return look_outside(result.problem, result.objective, result.layouts, seconds)


@contextmanager
def measuring(objective: Objective, goal: Goal) -> Generator[Measure, None, None]:
    """The way to evaluate single strategies: here, or in a process of its own if the objective is
    a plug-in or there is a time limit.
    """
    if not goal.apart(objective):
        yield objective.measure
        return
    from autotune.objectives.isolation import IsolatedObjective

    with IsolatedObjective(objective, goal.trial_timeout) as isolated:
        yield isolated.measure


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
    found = standings(problem, objective, grid, archive, asked.samplers, asked.seeds, asked.trials)
    return Comparison(
        problem,
        objective,
        grid,
        asked.trials,
        found,
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
