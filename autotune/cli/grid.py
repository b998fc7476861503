"""`autotune grid`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from autotune.cli.options import (
    add_model_options,
    add_objective_options,
    add_space_option,
    positive,
    problem_of,
)
from autotune.cli.output import Output, add_json_option, all_failed
from autotune.cli.progress import progress

if TYPE_CHECKING:
    from rich.console import RenderableType

    from autotune.grid import Grid
    from autotune.objectives import Objective
    from autotune.problem import Problem

SUMMARY = "Evaluate every valid strategy and rank them."


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the subcommand's options."""
    add_model_options(parser, "devices to use (default: 16)")
    add_objective_options(parser)
    add_space_option(parser)
    parser.add_argument(
        "--top",
        type=positive,
        default=argparse.SUPPRESS,
        metavar="K",
        help="show (and write) the K best (default: 20; JSON: all)",
    )
    add_json_option(parser)


def execute(arguments: argparse.Namespace) -> int:
    """Evaluates the space and returns the exit status."""
    output = Output(arguments)
    top: int | None = getattr(arguments, "top", None)
    with output.quiet():
        from autotune.api import measuring
        from autotune.grid import evaluate_grid
        from autotune.objectives import load_objective

        problem = problem_of(arguments)
        problem.check_not_empty()
        objective = load_objective(
            arguments.objective,
            problem.simulate,
            metric=getattr(arguments, "metric", None),
            direction=getattr(arguments, "direction", None),
        )
        with (
            measuring(objective, getattr(arguments, "trial_timeout", None)) as measure,
            progress("evaluating", problem.space.count()) as ended,
        ):
            found = evaluate_grid(problem.space, objective, measure, on_trial=ended)
    header = {
        "model": problem.model,
        "cluster": problem.cluster,
        "devices": problem.devices,
        "mode": problem.mode,
    }
    plain = {
        **header,
        "batch_size": problem.batch_size,
        "settings": problem.settings,
        "objective": objective.name,
        "space": problem.space_name,
        **found.to_dict(top),
    }
    output.write(plain, lambda: _report(problem, objective, found, top or 20))
    return all_failed(found.trials)


def _report(problem: Problem, objective: Objective, grid: Grid, top: int) -> RenderableType:
    from autotune.reports.grid import grid_report

    return grid_report(problem, objective, grid, top)
