"""`autotune compare`."""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING

from autotune.cli.options import (
    add_jobs_options,
    add_model_options,
    add_objective_options,
    add_space_option,
    names_in,
    positive,
    problem_of,
)
from autotune.cli.output import INTERRUPTED, Output, add_json_option
from autotune.cli.progress import progress
from autotune.cli.report import add_report_option, write_report

if TYPE_CHECKING:
    from autotune.exhaustive.chunks import Chunk
    from autotune.page.contents import Page
    from autotune.page.reports import Told
    from autotune.questions.compare import Comparison
    from autotune.study.trial import Trial

SUMMARY = (
    "Compare samplers with exhaustive search over several seeds: regret, and trials needed to come "
    "within 1 % of the best."
)
DEFAULT_SAMPLERS = "bounds,tpe,reinforce,nsga2,qmc,random"


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the subcommand's options."""
    add_model_options(parser, "devices to use (default: 16)")
    add_objective_options(parser)
    add_space_option(parser)
    add_jobs_options(parser)
    group = parser.add_argument_group("comparison")
    group.add_argument(
        "--samplers", default=DEFAULT_SAMPLERS, metavar="A,B,…", help="samplers to compare"
    )
    group.add_argument(
        "--seeds", type=positive, default=5, metavar="N", help="searches per sampler"
    )
    group.add_argument(
        "--trials", type=positive, default=50, metavar="N", help="strategies per search"
    )
    add_report_option(parser)
    add_json_option(parser)


def execute(arguments: argparse.Namespace) -> int:
    """Compares, reports, and returns the exit status."""
    output = Output(arguments, "report")
    with output.working():
        comparison = _compared(arguments)
        with output.saving():
            write_report(arguments, partial(_page, comparison))
    output.write(comparison.to_dict(), lambda: comparison)
    return INTERRUPTED if comparison.interrupted else 0


def _page(comparison: Comparison, told: Told) -> Page:
    from autotune.page.reports import comparison_page

    return comparison_page(comparison, told)


def _compared(arguments: argparse.Namespace) -> Comparison:
    from autotune.cli.grid import exhausted
    from autotune.questions.compare import Archive, Comparison, standings
    from autotune.reports.compare import compare_report

    samplers = names_in(arguments.samplers)
    problem = problem_of(arguments)
    problem.check_not_empty()
    archive = Archive(problem.space)

    def watch(chunk: Chunk, best: Trial | None) -> None:
        archive.add(chunk)
        advance(len(chunk), best, chunk.seconds)

    with progress("evaluating", problem.space.count(), arguments.jobs) as advance:
        objective, grid = exhausted(arguments, problem, watch)
    if not grid.complete:
        raise KeyboardInterrupt  # there is nothing to compare with
    seeds, trials = arguments.seeds, arguments.trials
    found, interrupted = standings(problem, objective, grid, archive, samplers, seeds, trials)
    return Comparison(problem, objective, grid, trials, found, interrupted, report=compare_report)
