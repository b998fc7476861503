"""`autotune grid`."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Any

from autotune.cli.options import (
    SUPPRESS,
    add_jobs_options,
    add_model_options,
    add_objective_options,
    add_space_option,
    goal_of,
    positive,
    problem_of,
)
from autotune.cli.output import INTERRUPTED, Output, add_json_option, note, status_of
from autotune.cli.progress import progress
from autotune.cli.report import add_report_option, write_report
from distir.errors import DistirError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from autotune.exhaustive.certified import Certificate
    from autotune.exhaustive.chunks import Chunk
    from autotune.exhaustive.grid import Grid, Watcher
    from autotune.objectives import Objective
    from autotune.page.contents import Page
    from autotune.page.reports import Told
    from autotune.problem import Problem
    from autotune.study.trial import Trial

SUMMARY = "Evaluate every valid strategy and rank them."
SHOWN = 20
"""Strategies in the report unless asked for more."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the subcommand's options."""
    add_model_options(parser, "devices to use (default: 16)")
    add_objective_options(parser)
    add_space_option(parser)
    add_jobs_options(parser)
    parser.add_argument(
        "--top",
        type=positive,
        default=SUPPRESS,
        metavar="K",
        help=f"show (and write) the K best (default: {SHOWN}; JSON: 1000)",
    )
    parser.add_argument(
        "--certified",
        action="store_true",
        help="find the best (or the --top K best) by branch and bound: the same result as from "
        "evaluating everything, proved from a small part",
    )
    parser.add_argument(
        "--table",
        default=SUPPRESS,
        metavar="FILE",
        help="write every strategy with its metrics: .csv or .parquet",
    )
    add_report_option(parser)
    add_json_option(parser)


def execute(arguments: argparse.Namespace) -> int:
    """Evaluates the space and returns the exit status."""
    output = Output(arguments, "table", "report")
    file: str | None = getattr(arguments, "table", None)
    if file is not None:
        from autotune.tables.files import check_table_file

        check_table_file(file)
    if arguments.certified:
        _check_certified(arguments, file)
    with output.working():
        problem = problem_of(arguments)
        problem.check_not_empty()
        if arguments.certified:
            objective, certificate = _certified(arguments, problem)
            plain = {**_header(problem, objective), **certificate.to_dict(problem.batch_size)}
            report = partial(_certificate_report, problem, objective, certificate)
            page = partial(_certificate_page, problem, objective, certificate)
            found = None
        else:
            objective, found = _evaluated(arguments, problem, output, file)
            plain = {**_header(problem, objective), **found.to_dict(problem.batch_size)}
            shown: int = getattr(arguments, "top", SHOWN)
            report = partial(_report, problem, objective, found, shown)
            page = partial(_page, problem, objective, found)
    output.write(plain, report, lambda: write_report(arguments, page))
    if found is not None and file is not None:
        count = found.evaluated
        note(f"wrote {count:,} strategies to {file}" if count else f"nothing to write to {file}")
    if plain["interrupted"]:
        return INTERRUPTED
    return 0 if found is None else status_of(found.evaluated, found.failures)


def _page(problem: Problem, objective: Objective, grid: Grid, told: Told) -> Page:
    from autotune.page.reports import grid_page

    return grid_page(problem, objective, grid, told)


def _certificate_page(
    problem: Problem, objective: Objective, certificate: Certificate, told: Told
) -> Page:
    from autotune.page.reports import certificate_page

    return certificate_page(problem, objective, certificate, told)


def _header(problem: Problem, objective: Objective) -> dict[str, Any]:
    return {
        "model": problem.model,
        "cluster": problem.cluster,
        "devices": problem.devices,
        "mode": problem.mode,
        "batch_size": problem.batch_size,
        "settings": problem.settings,
        "objective": objective.name,
        "space": problem.space_name,
    }


def _check_certified(arguments: argparse.Namespace, file: str | None) -> None:
    """Raises if something is asked for that needs every strategy."""
    if file is not None:
        raise DistirError(
            "--certified does not evaluate everything, so it cannot write a complete --table"
        )
    if arguments.jobs > 1 or arguments.backend != "loky":
        raise DistirError("--certified searches in one process; leave out --jobs and --backend")
    if hasattr(arguments, "trial_timeout"):
        raise DistirError(
            "--certified only simulates, so there are no trials to time out; leave out "
            "--trial-timeout"
        )


def _certified(arguments: argparse.Namespace, problem: Problem) -> tuple[Objective, Certificate]:
    """The best, proved, with a progress bar over the space."""
    from autotune.exhaustive.certified import certify

    objective = goal_of(arguments).over(problem)
    with progress("ruling out", problem.space.count()) as advance:
        return objective, certify(
            problem, objective, top=getattr(arguments, "top", 1), advance=advance
        )


def _evaluated(
    arguments: argparse.Namespace, problem: Problem, output: Output, file: str | None
) -> tuple[Objective, Grid]:
    """The grid, with a progress bar, and every chunk to the file that was asked for."""
    shown = progress("evaluating", problem.space.count(), arguments.jobs)
    with shown as advance, _table(output, file, problem.batch_size) as append:

        def watch(chunk: Chunk, best: Trial | None) -> None:
            append(chunk)
            advance(len(chunk), best, chunk.seconds)

        return exhausted(arguments, problem, watch)


@contextlib.contextmanager
def _table(
    output: Output, file: str | None, batch_size: int
) -> Generator[Callable[[Chunk], None], None, None]:
    """A function that appends a chunk to the file that was asked for, if one was; that this cannot
    be written is not the end of what is evaluated."""
    if file is None:
        yield lambda chunk: None
        return
    from autotune.tables.files import table_file

    with contextlib.ExitStack() as stack:
        yield stack.enter_context(table_file(file, batch_size))
        with output.saving():
            stack.close()


def exhausted(
    arguments: argparse.Namespace, problem: Problem, watch: Watcher
) -> tuple[Objective, Grid]:
    """Every strategy of the problem evaluated, by as many processes as were asked for."""
    from autotune.exhaustive.grid import TOP, evaluate_grid
    from autotune.solving import measuring

    goal = goal_of(arguments)
    objective = goal.over(problem)
    top: int = getattr(arguments, "top", TOP)
    if arguments.jobs > 1 or arguments.backend != "loky":
        from autotune.jobs import chunks_in_processes

        chunks = chunks_in_processes(problem, objective, goal, arguments.jobs, arguments.backend)
        return objective, evaluate_grid(
            problem.space, objective, chunks=chunks, top=top, watch=watch
        )
    with measuring(objective, goal) as measure:
        each = measure if goal.apart(objective) else None
        return objective, evaluate_grid(problem.space, objective, each, top=top, watch=watch)


def _certificate_report(
    problem: Problem, objective: Objective, certificate: Certificate
) -> RenderableType:
    from autotune.reports.grid import certificate_report

    return certificate_report(problem, objective, certificate)


def _report(problem: Problem, objective: Objective, grid: Grid, top: int) -> RenderableType:
    from autotune.reports.grid import grid_report

    return grid_report(problem, objective, grid, top)
