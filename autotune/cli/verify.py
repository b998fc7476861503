"""`autotune verify`."""

from __future__ import annotations

import argparse
import random
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from autotune.cli.options import (
    SUPPRESS,
    add_mesh_option,
    add_microbatch_options,
    add_model_options,
    add_space_option,
    given,
    positive,
    strategy_of,
)
from autotune.cli.output import Output, add_json_option
from autotune.cli.progress import each, progress
from autotune.statement import DEFAULT_STACK
from distir.errors import DistirError
from distir.factoring import divisors
from distir.strategy import Strategy

if TYPE_CHECKING:
    from distir.execute.verify import Verification, Verifier
    from distir.workload import Workload

SUMMARY = (
    "Execute a small version of the model as planned, and on one device, and compare the numbers."
)

ALL_DEVICES = 8
"""Devices whose strategies `--all` samples, unless `--devices` says otherwise."""

ALL_BATCH = 16

EXIT_DIFFERENT = 1


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the subcommand's options."""
    add_options(parser)


def add_options(parser: argparse.ArgumentParser, *, model_required: bool = True) -> None:
    """Options that say what is executed, on virtual devices or on processes."""
    devices = f"with --all, devices to distribute over (default: {ALL_DEVICES})"
    add_model_options(parser, devices, required=model_required)
    group = parser.add_argument_group("strategy")
    for field in fields(Strategy):
        option = f"--{field.name.replace('_', '-')}"
        if field.name == "microbatches":
            add_microbatch_options(group)
        elif field.name == "axes":
            group.add_argument(option, action="append", default=SUPPRESS, metavar="DEGREE=LIST")
            add_mesh_option(group, "own_mesh", "nothing is split")
        elif isinstance(field.default, bool):
            group.add_argument(option, action="store_true", default=SUPPRESS)
        elif isinstance(field.default, int):
            kind = positive if field.default else int
            group.add_argument(option, type=kind, default=SUPPRESS, metavar="N")
        else:
            group.add_argument(option, default=SUPPRESS, metavar="NAME")
    group.add_argument(
        "--all", action="store_true", help="verify strategies drawn from a whole space instead"
    )
    group.add_argument(
        "--samples",
        type=positive,
        default=20,
        metavar="N",
        help="with --all, how many strategies to draw at random; all of them if there are fewer",
    )
    add_space_option(parser, default="full", layers=False)
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of the random weights and samples"
    )
    add_json_option(parser)


def execute(arguments: argparse.Namespace) -> int:
    """Verifies, reports, and returns the exit status: 1 if any number differs."""
    output = Output(arguments)
    with output.working():
        with progress("reading"):
            verifier, strategies = work_of(arguments)
        done = [verifier.verify(strategy) for strategy in each("verifying", strategies)]
    if arguments.all:
        plain: dict[str, Any] = summary(done)
    else:
        plain = {"model": arguments.model, **done[0].to_dict()}
    output.write(plain, lambda: _report(verifier.workload.model.name, done))
    return 0 if all(one.passed for one in done) else EXIT_DIFFERENT


def work_of(arguments: argparse.Namespace) -> tuple[Verifier, list[Strategy]]:
    """What the arguments say is to be executed: the verifier of a workload, and strategies."""
    import distir
    from autotune.problem import model_as_run
    from distir.cost import load_stack
    from distir.execute.verify import Verifier

    # Hardware decides no number; a name unknown is still a mistake.
    distir.load_cluster(arguments.cluster, device=getattr(arguments, "device", None))
    stack = load_stack(getattr(arguments, "stack", DEFAULT_STACK))
    how = {name: getattr(arguments, name, None) for name in ("attention", "imbalance", "sizes")}
    options = given(arguments, distir.Workload)
    options["model"] = model_as_run(arguments.model, stack, **how)
    if not arguments.all:
        strategy = strategy_of(arguments)
        workload = _with_some_batch(options, getattr(arguments, "microbatch_size", 1), strategy)
        workload.check_model()
        return Verifier(workload, seed=arguments.seed), [strategy]
    devices = getattr(arguments, "devices", ALL_DEVICES)
    options.setdefault("batch_size", max(ALL_BATCH, 2 * devices))
    workload = distir.Workload(**options).at_its_length()
    return Verifier(workload, seed=arguments.seed), _sample(workload, devices, arguments)


def _with_some_batch(options: dict[str, Any], size: int, strategy: Strategy) -> Workload:
    """The workload, by default with the least batch that the strategy divides into microbatches of
    `size` samples, or of more where axis lists split samples: no result depends on the batch."""
    from distir.workload import Workload

    least = size * strategy.dp * strategy.microbatches
    if "batch_size" in options:
        return Workload(**options).at_its_length()
    workload = Workload(**options, batch_size=least).at_its_length()
    if not strategy.axes:
        return workload
    larger = (workload.resized(batch_size=n * least) for n in divisors(strategy.devices))
    return next((each for each in larger if not each.explain_lists(strategy)), workload)


def _sample(workload: Workload, devices: int, arguments: argparse.Namespace) -> list[Strategy]:
    from distir.plan import Planner
    from distir.plan.axis_lists import AxisLists
    from search_spaces import distribution_space

    lists = AxisLists(Planner(workload))
    space = distribution_space(workload, devices, arguments.space, lists)
    count = space.count()
    if not count:
        raise DistirError(
            f"no strategy uses exactly {devices} devices for {arguments.model}; "
            "try other --devices or --batch-size"
        )
    if count <= arguments.samples:
        return list(space.enumerate())
    return space.samples(random.Random(arguments.seed), arguments.samples)


def summary(done: list[Verification]) -> dict[str, Any]:
    """Several verifications as one JSON value."""
    return {
        "passed": all(one.passed for one in done),
        "strategies": len(done),
        "max_relative_error": max(one.max_relative_error for one in done),
        "compared": sum(one.compared for one in done),
        "results": [one.to_dict() for one in done],
    }


def _report(model: str, done: list[Verification]) -> Any:
    from autotune.reports.verification import verification_report

    return verification_report(model, done)
