"""`autotune work`."""

from __future__ import annotations

import argparse

from autotune.cli.launch import problem_for_framework
from autotune.cli.options import SUPPRESS, given
from autotune.cli.output import INTERRUPTED, Output, add_json_option, note
from autotune.cli.progress import progress
from autotune.cli.studies import add_study_options, as_begun, kept_of
from autotune.durable.stated import MOVABLE
from autotune.processes import end_with_parent

SUMMARY = "Work on a study that was started elsewhere, until it ends."


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the subcommand's options."""
    add_study_options(parser, required=True)
    group = parser.add_argument_group(
        "files of the study, if they are in another place on this machine"
    )
    for name in MOVABLE:
        group.add_argument(f"--{name}", default=SUPPRESS, metavar="FILE", help=f"its {name}")
    parser.add_argument("--parent", type=int, default=SUPPRESS, help=argparse.SUPPRESS)
    add_json_option(parser)


def execute(arguments: argparse.Namespace) -> int:
    """Works, and returns the exit status."""
    output = Output(arguments)
    parent: int | None = getattr(arguments, "parent", None)
    if parent is not None:
        end_with_parent(parent)
    with output.working():
        from autotune.search import Search
        from autotune.solving import solve
        from autotune.statement import ProblemStatement
        from autotune.trackers.followed import RunsOfTheDead
        from autotune.watch import Watch

        kept = kept_of(arguments, resume=True, helping=True)
        arguments = as_begun(arguments, kept)
        kept = kept_of(arguments, resume=True, helping=True)
        arguments.compare_grid = False
        search = Search(**given(arguments, Search))
        problem = problem_for_framework(arguments)
        statement = ProblemStatement(**given(arguments, ProblemStatement))
        watch = Watch(progress) if parent is None else Watch()
        tracker = RunsOfTheDead() if parent is None else None
        result = solve(
            problem, search, tracker=tracker, watch=watch, kept=kept, statement=statement
        )
    output.write(result.to_dict(), lambda: result if parent is None else None)
    if result.interrupted:
        return INTERRUPTED
    if result.error is not None:
        note(f"{result.error}; this worker ended")
        return 1
    return 0
