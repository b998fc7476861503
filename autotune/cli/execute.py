"""`autotune execute`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from autotune.cli import verify
from autotune.cli.options import add_where_option, seconds
from autotune.cli.output import Output
from autotune.cli.plans import add_plan_option, is_written, plan_read, write_plan
from autotune.cli.progress import each, progress
from autotune.statement import DEFAULT_STACK
from distir.errors import DistirError

if TYPE_CHECKING:
    from autotune.distributed.execution import RealVerification
    from distir.plan import Plan
    from distir.strategy import Strategy
    from distir.workload import Workload

SUMMARY = (
    "Execute a small version of the model with a process per device (needs PyTorch), and on one "
    "device, and compare the numbers."
)

DEADLINE_SECONDS = 120.0


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the subcommand's options."""
    verify.add_options(parser, model_required=False)
    add_plan_option(parser)
    parser.add_argument(
        "--deadline",
        type=seconds,
        default=DEADLINE_SECONDS,
        metavar="SECONDS",
        help="end a plan's processes after this long, and say which waits for which",
    )
    add_where_option(parser, "numpy", "always in float64")


def execute(arguments: argparse.Namespace) -> int:
    """Executes, reports, and returns the exit status: 1 if any number differs."""
    from autotune.distributed.backend import load_torch

    output = Output(arguments, *(("plan",) if is_written(arguments) else ()))
    with output.working():
        load_torch()  # whoever lacks it is to know at once
        if arguments.all and hasattr(arguments, "plan"):
            raise DistirError("--all executes many plans and --plan is one; leave one of them out")
        name, done = _executed(arguments)
    if arguments.all:
        plain: dict[str, Any] = {
            **verify.summary([one.verification for one in done]),
            "passed": all(one.passed for one in done),
            "processes": max(one.processes for one in done),
            "seconds": sum(one.seconds for one in done),
            "results": [one.to_dict() for one in done],
        }
    else:
        plain = {"model": getattr(arguments, "model", name), **done[0].to_dict()}
    output.write(plain, lambda: _report(name, done))
    return 0 if all(one.passed for one in done) else verify.EXIT_DIFFERENT


def _executed(arguments: argparse.Namespace) -> tuple[str, list[RealVerification]]:
    """The model's name, and what was found of the plan that was read, or of the strategies."""
    from autotune.distributed.execution import RealVerifier
    from distir.execute.verify import Verifier

    with progress("reading"):
        plan = plan_read(arguments)
    if plan is not None:
        real = RealVerifier(
            Verifier(plan.workload, seed=arguments.seed), arguments.deadline, arguments.on
        )
        return plan.workload.model.name, [real.verify(plan.strategy, plan.schedule)]
    with progress("reading"):
        verifier, strategies = verify.work_of(arguments)
    real = RealVerifier(verifier, arguments.deadline, arguments.on)
    done = [real.verify(strategy) for strategy in each("executing", strategies, forks=True)]
    if is_written(arguments):
        write_plan(arguments, _whole_plan(arguments, verifier.workload, strategies[0]))
    return verifier.workload.model.name, done


def _whole_plan(arguments: argparse.Namespace, workload: Workload, strategy: Strategy) -> Plan:
    """The plan for the model in its own size, on the hardware that the arguments name."""
    import distir
    from distir.cost import load_stack

    device = getattr(arguments, "device", None)
    cluster = distir.load_cluster(arguments.cluster, strategy.devices, device)
    stack = load_stack(getattr(arguments, "stack", DEFAULT_STACK))
    return distir.Simulator(workload, cluster, stack).plan(strategy)


def _report(model: str, done: list[RealVerification]) -> Any:
    from autotune.reports.verification import execution_report

    return execution_report(model, done)
