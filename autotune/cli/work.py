"""`autotune work`."""

from __future__ import annotations

import argparse

from autotune.cli.options import SUPPRESS, add_objective_options, given, problem_of
from autotune.cli.output import INTERRUPTED, Output, add_json_option, note
from autotune.cli.progress import progress
from autotune.cli.studies import add_study_options, as_begun, kept_of

SUMMARY = "Work on a study that somebody else has begun, until it is at its end."


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the subcommand's options."""
    add_study_options(parser, required=True)
    parser.add_argument(
        "--model", default=SUPPRESS, metavar="M", help="where the study's model is on this machine"
    )
    add_objective_options(parser)
    add_json_option(parser)


def execute(arguments: argparse.Namespace) -> int:
    """Works, and returns the exit status."""
    output = Output(arguments)
    with output.working():
        from autotune.api import Search, solve
        from autotune.statement import ProblemStatement
        from autotune.watch import Watch

        kept = kept_of(arguments, resume=True, helping=True)
        arguments = as_begun(arguments, kept)
        arguments.compare_grid = False
        search = Search(**given(arguments, Search))
        problem = problem_of(arguments)
        statement = ProblemStatement(**given(arguments, ProblemStatement))
        result = solve(problem, search, watch=Watch(progress), kept=kept, statement=statement)
    output.write(result.to_dict(), lambda: result)
    if result.interrupted:
        return INTERRUPTED
    if result.error is not None:
        note(f"{result.error}; this worker ended")
        return 1
    return 0
