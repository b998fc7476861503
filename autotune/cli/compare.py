"""`autotune compare`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from autotune.cli.options import (
    add_jobs_options,
    add_model_options,
    add_objective_options,
    add_space_option,
    names_in,
    positive,
    problem_of,
)
from autotune.cli.output import Output, add_json_option
from autotune.cli.progress import progress
from distir.errors import DistirError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from autotune.chunks import Chunk
    from autotune.trial import Trial

SUMMARY = (
    "Compare samplers with exhaustive search over several seeds: regret, and trials to reach 1 %."
)
DEFAULT_SAMPLERS = "tpe,surrogate,reinforce,nsga2,qmc,random"


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
    add_json_option(parser)


def execute(arguments: argparse.Namespace) -> int:
    """Compares, reports, and returns the exit status."""
    output = Output(arguments)
    with output.quiet():
        plain, report = _compared(arguments)
    output.write(plain, lambda: report)
    return 0


def _compared(arguments: argparse.Namespace) -> tuple[dict[str, Any], RenderableType]:
    from autotune.cli.grid import exhausted
    from autotune.compare import Archive, contest, standing
    from autotune.reports.compare import compare_report

    names = names_in(arguments.samplers)
    problem = problem_of(arguments)
    problem.check_not_empty()
    archive = Archive(problem.space)

    def watch(chunk: Chunk, best: Trial | None) -> None:
        archive.add(chunk)
        advance(len(chunk), best, chunk.seconds)

    with progress("evaluating", problem.space.count(), arguments.jobs) as advance:
        objective, grid = exhausted(arguments, problem, watch)
    if grid.best is None:
        raise DistirError(
            f"there is nothing to compare: no strategy is feasible for {problem.title}"
        )
    contests = {
        name: [
            contest(problem.space, objective, archive.measure, grid, name, seed, arguments.trials)
            for seed in range(arguments.seeds)
        ]
        for name in names
    }
    standings = [standing(each) for each in contests.values()]
    plain = {
        "model": problem.model,
        "cluster": problem.cluster,
        "devices": problem.devices,
        "mode": problem.mode,
        "objective": objective.name,
        "space": problem.space_name,
        "space_size": grid.space_size,
        "trials": arguments.trials,
        "best": grid.best.outcome(problem.batch_size),
        "samplers": [each.to_dict() for each in standings],
    }
    return plain, compare_report(problem, grid, standings, arguments.trials)
