"""How a search goes: what is known of the whole space first, the study, what that is compared with,
and what lies outside the space."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from autotune.durable.helpers import Helpers, helped
from autotune.durable.stated import Kept, plain, plain_search, plain_statement
from autotune.durable.workers import own_seed
from autotune.enqueued import enqueued
from autotune.exhaustive.certified import Certificate, can_be_certified, certify
from autotune.exhaustive.grid import (
    LONGEST_SECONDS,
    MOST_QUICK,
    Grid,
    Watcher,
    evaluate_grid,
    grid_of,
    grid_seconds,
)
from autotune.exhaustive.outside import Outside, look_outside
from autotune.exhaustive.side_by_side import chunks_side_by_side
from autotune.objectives import Evaluation, Objective
from autotune.page.notebook import grid_figures, study_figures
from autotune.problem import Problem
from autotune.prospects.prospects import ProblemProspects
from autotune.prospects.remaining import expectation
from autotune.questions.compare import Archive
from autotune.reports.ranking import TOP
from autotune.reports.study import study_report
from autotune.result import TuneResult
from autotune.samplers import Sampler, load_sampler
from autotune.samplers.experience import Experience, experience_of
from autotune.search import Search
from autotune.statement import Goal, ProblemStatement
from autotune.study.stopping import Timeout, Within, failing
from autotune.study.study import Measure, Stop, Stopped, Study
from autotune.study.trial import Trial
from autotune.trackers import NullTracker, StudyHeader, Tracker
from autotune.watch import Watch, by_trial
from distir.arguments import checked
from distir.strategy import Strategy

if TYPE_CHECKING:
    from autotune.durable.opening import OpenStudy
    from autotune.durable.optuna_storage import StoredStudy
    from autotune.exhaustive.chunks import Chunk

NOBODY = Watch()
"""Watches a search that nobody watches."""
EXPERIENCE = "experience"
"""The attribute of a study that says what it started from."""


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
    stated = _stated(problem, search, statement)
    helping = kept is not None and kept.helping
    seed = own_seed(search.seed) if helping else search.seed
    experience = _carried(search, kept)
    prospects = ProblemProspects(problem, objective, experience)
    sampler = load_sampler(
        search.chosen_sampler, problem.space, seed, prospects, len(objective.aims)
    )
    budget = search.budget(problem.space.count())
    first = [] if helping else enqueued(search.enqueue, problem.space)
    clock = time.perf_counter()
    known, stopped = _Known(), False
    with measuring(objective, search) as measure:
        opened = _opened(problem, search, objective, kept, stated, experience)
        try:
            known = _known_first(problem, objective, search, watch)
        except KeyboardInterrupt:
            stopped = True
        memory = None if opened is None else opened.memory
        tracker.start(
            StudyHeader(problem, objective, search.sampler_name, search.seed, budget, memory)
        )
        study = Study(problem.space, objective, sampler, known.measure or measure, seed)
        study.first = first
        study.stops = _stops(search, problem, objective, sampler, opened)
        stored = _stored(study, problem, search, opened)
        running = _Running(problem, search, study, opened, stored)
        stopped = stopped or known.interrupted
        if known.is_answer and not stopped:
            watch.answered(running.result(known, 0.0))
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
    found = running.result(known, seconds, stopped=stopped)
    watch.searched(found)
    found = _with_outside(found, search, watch, clock)
    with watch.phase("recording"):
        return replace(found, tracking=tracker.finish(found))


@dataclass(frozen=True, slots=True)
class _Running:
    """A search that runs, and where its study is kept."""

    problem: Problem
    search: Search
    study: Study
    opened: OpenStudy | None
    stored: StoredStudy | None

    def result(self, known: _Known, seconds: float, *, stopped: bool = False) -> TuneResult:
        """What has been found by now, in so many seconds; `stopped`: it was interrupted beside the
        study."""
        study, objective = self.study, self.study.objective
        ended = Stopped("interrupted", "it was interrupted") if stopped else study.stopped
        return TuneResult(
            report=study_report,
            figures=study_figures,
            problem=self.problem,
            objective=objective,
            sampler=self.search.sampler_name,
            seed=self.search.seed,
            trials=study.trials,
            seconds=seconds,
            grid=known.grid and pictured(known.grid, self.problem, objective),
            proof=known.proof,
            repeats=study.repeats,
            interrupted=stopped or study.interrupted or known.interrupted,
            error=study.error,
            stopped=ended,
            kept=None if self.opened is None else self.opened.record,
            stored=self.stored,
        )


def _stated(problem: Problem, search: Search, statement: ProblemStatement | None) -> dict[str, Any]:
    """What the study is told that the problem was stated as."""
    stated = plain_statement(statement or problem.statement or ProblemStatement(problem), search)
    return {**stated, **{name: plain(value) for name, value in problem.framework.items()}}


def _stored(
    study: Study, problem: Problem, search: Search, opened: OpenStudy | None
) -> StoredStudy | None:
    """Gives the study the ledger of the one that is opened, or one that prunes its trials, and
    returns the study of Optuna behind that."""
    if opened is not None:
        study.ledger = opened.ledger
        return opened.ledger.study
    pruner = search.pruner_of(study.objective)
    if pruner is None:
        return None
    from autotune.durable.opening import ledger_that_prunes

    study.ledger = pruning = ledger_that_prunes(problem, study.objective, pruner)
    return pruning.study


def _with_outside(found: TuneResult, search: Search, watch: Watch, clock: float) -> TuneResult:
    """The result with what is known of plans outside the space; it was begun at `clock`."""
    try:
        with watch.phase("looking outside the space"):
            outside = _outside(found, search, time.perf_counter() - clock)
    except KeyboardInterrupt:
        return replace(found, interrupted=True)  # what was found before is whole
    found = replace(found, outside=outside)
    if outside is not None:
        watch.looked_outside(found)
    return found


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
    experience: Experience,
) -> OpenStudy | None:
    """The study on a storage, if it is to be there; a new one keeps what it starts from."""
    if kept is None or kept.storage is None:
        return None
    from autotune.durable.opening import open_study

    plain, pruner = plain_search(search, Search), search.pruner_of(objective)
    opened = open_study(kept, problem, objective, stated, plain, pruner)
    if experience and not kept.resume:
        opened.memory.remember(EXPERIENCE, [each.to_dict() for each in experience])
    return opened


def _stops(
    search: Search,
    problem: Problem,
    objective: Objective,
    sampler: Sampler,
    opened: OpenStudy | None,
) -> list[Stop]:
    """Reasons to end before all trials are made."""
    stops: list[Stop] = [failing]
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
        grid = evaluate_grid(problem.space, objective, chunks=chunks, watch=seen)

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
        return evaluate_grid(study.space, study.objective, watch=seen)
    tried = {each.strategy: each.evaluation for each in study.trials if each.state != "pruned"}

    def measure(strategy: Strategy) -> Evaluation:
        return tried.get(strategy) or study.measure(strategy)

    return evaluate_grid(study.space, study.objective, measure, watch=seen)


def pictured(grid: Grid, problem: Problem, objective: Objective) -> Grid:
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


__all__ = ["measuring", "pictured", "solve"]
