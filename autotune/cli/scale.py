"""`autotune scale`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from autotune.cli.options import (
    SUPPRESS,
    add_model_options,
    add_objective_options,
    add_space_option,
    given,
    goal_of,
)
from autotune.cli.output import INTERRUPTED, Output, add_json_option, note
from autotune.cli.progress import progress
from autotune.statement import ProblemStatement

if TYPE_CHECKING:
    from autotune.questions.scale import Scaling

SUMMARY = (
    "Find out how many devices to use: the best plan for each number, its efficiency and its cost."
)
DEFAULT_COUNTS = "8:1024"


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the subcommand's options."""
    add_model_options(
        parser,
        "numbers of devices: 8:1024 for the powers of two from 8 to 1024, or 8,24,64 "
        f"(default: {DEFAULT_COUNTS})",
        several_devices=True,
    )
    add_objective_options(parser, trials=False)
    add_space_option(parser)
    parser.add_argument(
        "--plot",
        default=SUPPRESS,
        metavar="FILE",
        help="draw throughput, efficiency and cost to a file: .png, .svg, .pdf or .html",
    )
    add_json_option(parser)


def execute(arguments: argparse.Namespace) -> int:
    """Looks at every number of devices, reports, and returns the exit status."""
    output = Output(arguments, "plot")
    plot: str | None = getattr(arguments, "plot", None)
    if plot is not None:
        from autotune.reports.drawing import check_format

        check_format(plot)
    with output.working():
        scaling = _scaled(arguments)
    output.write(scaling.to_dict(), lambda: scaling, lambda: _draw(scaling, plot))
    return INTERRUPTED if scaling.left else 0


def _draw(scaling: Scaling, plot: str | None) -> None:
    """Draws to a file, if one is named."""
    if plot is None:
        return
    from autotune.reports.scaling import draw_scaling

    draw_scaling(scaling, plot)
    note(f"wrote {plot}")


def _scaled(arguments: argparse.Namespace) -> Scaling:
    from autotune.questions.scale import Scaling, device_counts, scale
    from autotune.reports.scaling import scaling_report

    counts = device_counts(getattr(arguments, "devices", DEFAULT_COUNTS))
    stated: dict[str, Any] = given(arguments, ProblemStatement) | {"devices": max(counts)}
    goal = goal_of(arguments)
    statement = goal.suited(ProblemStatement(**stated))
    problem, objective, steps = scale(statement, goal, counts, phase=progress)
    return Scaling(
        problem=problem,
        objective=objective,
        steps=steps,
        left=tuple(counts[len(steps) :]),
        report=scaling_report,
    )
