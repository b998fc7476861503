"""`autotune run`."""

from __future__ import annotations

import argparse
import os
from collections import Counter
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from autotune.cli.fit import add_fit_option, write_fit
from autotune.cli.launch import (
    LaunchAsked,
    add_launch_options,
    launch_asked,
    plain_launch,
    problem_for_framework,
)
from autotune.cli.options import (
    SUPPRESS,
    add_model_options,
    add_objective_options,
    add_space_option,
    given,
    positive,
    problem_of,
    seconds,
    share,
)
from autotune.cli.output import INTERRUPTED, Output, add_json_option, note, status_of
from autotune.cli.plans import add_plan_option, is_written, write_plan
from autotune.cli.progress import progress
from autotune.cli.report import add_report_option, write_report
from autotune.cli.studies import add_run_options, as_begun, kept_of, read_enqueued
from autotune.statement import ProblemStatement
from distir.errors import DistirError
from distir.files import check_no_output
from distir.units import counted

if TYPE_CHECKING:
    from rich.console import RenderableType

    from autotune.page.contents import Page
    from autotune.page.reports import Told
    from autotune.problem import Problem
    from autotune.result import TuneResult
    from autotune.study.trial import Trial
    from autotune.trackers import Tracker
    from autotune.watch import Watch

SUMMARY = "Find the best way to distribute a model over a cluster."


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the subcommand's options."""
    add_model_options(parser, "devices to use (default: 16)", required=False)
    add_objective_options(parser)
    add_space_option(parser)
    search = parser.add_argument_group("search")
    search.add_argument(
        "--objectives",
        default=SUPPRESS,
        metavar="A,B",
        help="several objectives at once, such as throughput,memory: metrics of the simulator, or "
        "of --objective; METRIC=maximize or METRIC=minimize states the direction",
    )
    search.add_argument(
        "--sampler",
        default=SUPPRESS,
        metavar="NAME",
        help="how strategies are proposed (see `samplers`; default: bounds if the objective is "
        "simulated time or memory, tpe if it is another simulated metric, otherwise guided)",
    )
    search.add_argument(
        "--trials",
        type=positive,
        default=SUPPRESS,
        metavar="N",
        help="strategies to try (default: 50, or 200 in a large space; all with the sampler grid)",
    )
    search.add_argument(
        "--enqueue",
        default=SUPPRESS,
        metavar="FILE",
        help="plans to try first: a YAML list such as [{dp: 2, tp: 8}], a table of `grid`, or a "
        "launch file that `read` reads",
    )
    search.add_argument(
        "--warm-start",
        action="append",
        default=SUPPRESS,
        metavar="STUDY",
        help="an earlier study, as STORAGE#NAME or a name on the same storage, perhaps of another "
        "model or cluster: the sampler guided starts from the errors of the simulator found there "
        "(repeatable)",
    )
    search.add_argument(
        "--timeout",
        type=seconds,
        default=SUPPRESS,
        metavar="TIME",
        help="start no new trial after this long: 90s, 30m, 6h, or a number of seconds; for a "
        "study on a storage, this counts all its workers and resumptions",
    )
    search.add_argument(
        "--stop-within",
        type=share,
        default=SUPPRESS,
        metavar="PERCENT",
        help="end when no remaining strategy is expected to be better than the best by more than "
        "this, such as 5%%; the sampler decides, or, if it cannot, the simulator",
    )
    search.add_argument(
        "--pruner",
        default=SUPPRESS,
        metavar="NAME",
        help="what ends unpromising trials that report values on the way: median, hyperband or "
        "none (default: median if the objective reports)",
    )
    search.add_argument("--seed", type=int, default=0, metavar="N", help="same seed, same trials")
    search.add_argument(
        "--compare-grid",
        action=argparse.BooleanOptionalAction,
        default=SUPPRESS,
        help="compare with exhaustive search (default: if the simulator can do that in seconds)",
    )
    add_run_options(parser)
    add_launch_options(parser)
    tracking = parser.add_argument_group("tracking")
    tracking.add_argument(
        "--tracking-uri",
        default=SUPPRESS,
        metavar="URI",
        help="where MLflow records the study (default: $MLFLOW_TRACKING_URI, else "
        "sqlite:///mlflow.db)",
    )
    tracking.add_argument(
        "--experiment",
        default=SUPPRESS,
        metavar="NAME",
        help="MLflow experiment (default: named after model and cluster)",
    )
    tracking.add_argument(
        "--no-tracking", action="store_true", default=SUPPRESS, help="record nothing"
    )
    add_plan_option(parser, reads=False)
    add_report_option(parser)
    add_fit_option(parser, "with any strategy of the space")
    add_json_option(parser)


def execute(arguments: argparse.Namespace) -> int:
    """Searches, reports, and returns the exit status."""
    output = Output(arguments, *(("plan",) if is_written(arguments) else ()), "report")
    if hasattr(arguments, "fit"):
        with output.working():
            stated = problem_of(arguments)
        return write_fit(arguments, output, stated, None)
    with output.working():
        with progress("reading"):
            from autotune.search import Search
            from autotune.solving import solve

            kept = kept_of(arguments)
            launch = launch_asked(arguments)
            arguments = arguments if launch is None else launch.framed(arguments)
            arguments = as_begun(arguments, kept)
            kept = kept_of(arguments)
            problem = problem_for_framework(arguments)
            read_enqueued(arguments, problem)
            search = Search(**given(arguments, Search))
        result = solve(
            problem,
            search,
            tracker=_tracker(arguments, launch),
            watch=_shown_on(output),
            kept=kept,
            statement=ProblemStatement(**given(arguments, ProblemStatement)),
        )
        done, failed = None, None
        try:
            done = None if launch is None else launch.launched(result)
        except DistirError as error:  # what was found is not lost for it
            failed = error
        if is_written(arguments):
            with output.saving():
                _write_best(arguments, problem, result)
    plain = result.to_dict() if done is None else {**result.to_dict(), "launch": plain_launch(done)}
    try:
        output.write(plain, lambda: _recorded(result))
    finally:  # a page takes a while, and is written even if nobody reads stdout
        with output.working():
            launch_command = None if done is None else done.emission.files.command
            write_report(arguments, partial(_page, result), launch_command)
    if failed is not None:
        raise failed
    tracking = result.tracking
    if tracking is not None and tracking.error and output.is_json_alone:  # reports say so
        note(f"tracking failed: {tracking.error}; the search is complete", is_error=True)
    if result.interrupted or (tracking is not None and tracking.interrupted):
        return INTERRUPTED
    if result.error is not None:
        made = counted(len(result.trials), "trial")
        note(f"{result.error}; the search ended after {made}", is_error=True)
        return 1
    reasons = Counter(trial.evaluation.reason or "" for trial in result.trials if trial.failed)
    return status_of(len(result.trials), dict(reasons.most_common()))


def _page(result: TuneResult, told: Told) -> Page:
    from autotune.page.reports import study_page

    return study_page(result, told)


def _shown_on(output: Output) -> Watch:
    """Shows what is known as soon as it is known: the answer, then what the search adds."""
    from autotune.reports.study import answer_report, outside_report, search_report
    from autotune.watch import Watch

    shown: list[Trial | None] = []

    def answered(result: TuneResult) -> None:
        shown.append(result.best)
        output.show(lambda: answer_report(result))

    def searched(result: TuneResult) -> None:
        if not shown or _is_better(result.best, shown[-1]):
            answered(result)
        output.show(lambda: search_report(result))

    def looked_outside(result: TuneResult) -> None:
        output.show(lambda: outside_report(result))

    return Watch(progress, answered, searched, looked_outside)


def _is_better(best: Trial | None, known: Trial | None) -> bool:
    """Whether there is more to show than the best that was known: of equals, one is enough."""
    from autotune.objectives.costs import equal
    from autotune.study.trial import worth

    if best is None or known is None:
        return best is not known
    return not all(map(equal, worth(best), worth(known)))


def _recorded(result: TuneResult) -> RenderableType | None:
    from autotune.reports.study import tracking_report

    return None if result.tracking is None else tracking_report(result.tracking)


def _write_best(arguments: argparse.Namespace, problem: Problem, result: TuneResult) -> None:
    """Writes the plan of the best strategy, if there is one."""
    best = result.best
    if best is None:
        note(f"no strategy is feasible, so {arguments.plan} is not written")
        return
    simulator: Any = problem.simulator
    write_plan(arguments, simulator.plan(best.strategy))


def _tracker(arguments: argparse.Namespace, launch: LaunchAsked | None) -> Tracker | None:
    if hasattr(arguments, "no_tracking"):
        for option in ("tracking_uri", "experiment"):
            if hasattr(arguments, option):
                raise DistirError(
                    f"--no-tracking records nothing, but --{option.replace('_', '-')} says where "
                    "to record; leave one of them out"
                )
        return None
    from autotune.durable.optuna_storage import shown_url
    from autotune.trackers.followed import absolute
    from autotune.trackers.mlflow import DEFAULT_URI, MlflowTracker
    from autotune.trackers.study_files import Written

    def written(result: TuneResult) -> Written:
        with suppress(DistirError):  # a launch that cannot be is told when it is to be written
            done = None if launch is None else launch.of(result)
            if done is not None:
                files = done.emission.files
                return Written(result, arguments.line, files.files, files.command)
        return Written(result, arguments.line)

    uri: str | None = getattr(arguments, "tracking_uri", None)
    used = uri or os.environ.get("MLFLOW_TRACKING_URI") or DEFAULT_URI
    storage: str | None = getattr(arguments, "storage", None)
    if storage is not None and absolute(storage) == absolute(used):
        raise DistirError(
            f"--storage and MLflow's store are the same database, {shown_url(used)}, which each of "
            "them sets up in its own way; expected two databases"
        )
    if used.startswith("sqlite:///"):
        check_no_output(used.removeprefix("sqlite:///"), DistirError)
    return MlflowTracker(uri, getattr(arguments, "experiment", None), written)
