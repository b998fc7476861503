"""The option `--fit`: how much fits, instead of how fast it is."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from autotune.cli.options import SUPPRESS
from autotune.cli.output import INTERRUPTED, Output
from autotune.cli.progress import progress
from distir.errors import DistirError

if TYPE_CHECKING:
    from autotune.problem import Problem
    from autotune.questions.fit import Fit
    from distir.strategy import Strategy


UNUSED = (
    *("plan", "trace", "compare", "report", "launch", "search_all", "overwrite"),
    *("storage", "study", "resume", "retries", "heartbeat", "workers", "enqueue", "warm_start"),
    *("tracking_uri", "experiment", "objectives", "metric", "direction", "trial_timeout"),
    *("isolate", "sampler", "trials", "timeout", "stop_within", "pruner", "seed", "compare_grid"),
)
"""Options about plans and searches, to which sizes have nothing to say."""


def add_fit_option(parser: argparse.ArgumentParser, of_what: str) -> None:
    """The option `--fit`; `of_what` says which strategies it is about."""
    parser.add_argument(
        "--fit",
        choices=("batch", "sequence", "layers", "devices"),
        default=SUPPRESS,
        metavar="WHAT",
        help="report the largest batch, the longest sequence, the largest number of layers or the "
        f"fewest devices that fit in memory, {of_what}",
    )


def write_fit(
    arguments: argparse.Namespace, output: Output, problem: Problem, strategy: Strategy | None
) -> int:
    """Finds how much fits, reports it, and returns the exit status: 1 if nothing does."""
    from autotune.questions.fit import fit

    ignored = [f"--{name.replace('_', '-')}" for name in UNUSED if name in arguments.typed]
    if ignored:
        raise DistirError(
            f"--fit searches for a size, not for a plan, so it has no use for {ignored[0]}; "
            "leave one of them out"
        )
    with output.working(), progress(f"fitting {arguments.fit}"):
        found = fit(problem, arguments.fit, strategy)
    output.write(_plain(problem, found), lambda: _report(problem, found))
    if found.interrupted:
        return INTERRUPTED
    return 0 if found.size is not None else 1


def _plain(problem: Problem, found: Fit) -> dict[str, Any]:
    names = ("model", "cluster", "devices", "mode", "batch_size", "settings")
    return {**{name: getattr(problem, name) for name in names}, "fit": found.to_dict()}


def _report(problem: Problem, found: Fit) -> Any:
    from rich.console import Group
    from rich.text import Text

    return Group(Text(problem.title, style="bold"), Text(found.sentence))
