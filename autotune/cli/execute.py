"""`autotune execute`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from autotune.cli import verify
from autotune.cli.options import seconds
from autotune.cli.output import Output

if TYPE_CHECKING:
    from autotune.distributed.execution import RealVerification

SUMMARY = (
    "Execute a small version of the model with a process per device (needs PyTorch), and on one "
    "device, and compare the numbers."
)

DEADLINE_SECONDS = 120.0


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the subcommand's options."""
    verify.configure(parser)
    parser.add_argument(
        "--deadline",
        type=seconds,
        default=DEADLINE_SECONDS,
        metavar="SECONDS",
        help="end a plan's processes after so long, and say which waits for which",
    )


def execute(arguments: argparse.Namespace) -> int:
    """Executes, reports, and returns the exit status: 1 if any number differs."""
    from autotune.distributed.backend import load_torch

    output = Output(arguments)
    with output.working():
        load_torch()  # whoever lacks it is to know at once
        from autotune.distributed.execution import RealVerifier

        verifier, strategies = verify.work_of(arguments)
        real = RealVerifier(verifier, arguments.deadline)
        done = [real.verify(strategy) for strategy in strategies]
    if arguments.all:
        plain: dict[str, Any] = {
            **verify.summary([each.verification for each in done]),
            "passed": all(each.passed for each in done),
            "processes": max(each.processes for each in done),
            "seconds": sum(each.seconds for each in done),
            "results": [each.to_dict() for each in done],
        }
    else:
        plain = {"model": arguments.model, **done[0].to_dict()}
    output.write(plain, lambda: _report(verifier.workload.model.name, done))
    return 0 if all(each.passed for each in done) else verify.EXIT_DIFFERENT


def _report(model: str, done: list[RealVerification]) -> Any:
    from autotune.reports.verification import execution_report

    return execution_report(model, done)
