"""`autotune simulate`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from autotune.cli.fit import add_fit_option, write_fit
from autotune.cli.options import (
    SUPPRESS,
    add_mesh_option,
    add_microbatch_options,
    add_model_options,
    add_offload_option,
    add_recomputed_layers_option,
    given,
    positive,
    strategy_of,
)
from autotune.cli.output import Output, add_json_option, note
from autotune.cli.plans import add_plan_option, is_written, plan_read, stated_by, write_plan
from autotune.cli.progress import progress
from autotune.cli.report import add_report_option, write_report
from autotune.statement import ProblemStatement
from autotune.study.trial import choices
from distir.errors import DistirError, StrategyError
from distir.files import write_text
from distir.strategy import OUTER_OPTIMIZERS, PLACEMENT, Strategy

if TYPE_CHECKING:
    from autotune.page.contents import Page
    from autotune.page.reports import Told
    from autotune.problem import Problem
    from distir.plan import Plan
    from distir.simulation import Simulator
    from distir.simulation.communication import CollectiveUse

SUMMARY = "Simulate one strategy: its time, communication, bubble and memory, stage by stage."


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the subcommand's options."""
    devices = "devices in use (default: the product of the degrees)"
    add_model_options(parser, devices, required=False)
    add_strategy_options(parser)
    add_plan_option(parser)
    parser.add_argument(
        "--trace",
        default=SUPPRESS,
        metavar="FILE",
        help="write a Chrome trace, which ui.perfetto.dev opens",
    )
    parser.add_argument(
        "--compare",
        default=SUPPRESS,
        metavar="STRATEGY",
        help="with --trace or --report, show another plan beside this one; state what differs, "
        "such as tp=4,dp=1",
    )
    add_report_option(parser)
    add_fit_option(parser, "with this strategy")
    add_json_option(parser)


def add_strategy_options(parser: argparse.ArgumentParser) -> None:
    """One option per choice of a strategy."""
    group = parser.add_argument_group("strategy")
    degrees = {
        "--dp": "data-parallel replicas",
        "--tp": "devices that share each layer",
        "--pp": "pipeline ranks",
        "--cp": "devices that share each sequence",
        "--ep": "devices that share the experts of a mixture: those of dp, or, where these are not "
        "enough, also of cp and tp",
    }
    for name, text in degrees.items():
        group.add_argument(name, type=positive, default=1, metavar="N", help=text)
    add_microbatch_options(group)
    group.add_argument(
        "--schedule",
        default="1f1b",
        metavar="NAME",
        help="pipeline schedule (see `schedules`), or a file with one",
    )
    group.add_argument(
        "--chunks",
        type=positive,
        default=SUPPRESS,
        metavar="N",
        help="stages per pipeline rank (default: what the schedule needs)",
    )
    group.add_argument(
        "--zero",
        type=int,
        choices=range(4),
        default=0,
        help="shard over data parallelism: 1 the optimizer's state, 2 gradients too, 3 parameters "
        "too",
    )
    group.add_argument(
        "--recompute",
        type=str.lower,
        default="none",
        metavar="WHAT",
        help="what to compute again in the backward pass instead of keeping it: none, selective, "
        "full, or auto, which takes for each layer what fits and is fastest",
    )
    group.add_argument(
        "--recompute-every",
        type=positive,
        default=1,
        metavar="N",
        help="recompute every N-th block; the others keep everything (default: 1)",
    )
    add_recomputed_layers_option(group, 0, "all layers")
    add_offload_option(group, "none")
    group.add_argument(
        "--sync-every",
        type=positive,
        default=1,
        metavar="K",
        help="replicas update parameters of their own, and average them every K steps (local SGD), "
        "which changes the numbers (default: 1, synchronise in every step)",
    )
    group.add_argument(
        "--outer-optimizer",
        type=str.lower,
        choices=OUTER_OPTIMIZERS,
        default=OUTER_OPTIMIZERS[0],
        help="how replicas combine their parameters every K steps: mean, or nesterov, a step of "
        "SGD with Nesterov momentum along the mean difference from a copy of the last ones "
        "(DiLoCo)",
    )
    group.add_argument(
        "--keep-gathered",
        type=str.lower,
        default="none",
        metavar="WHAT",
        help="what to keep for the backward pass instead of gathering it again: none, parameters "
        "(of ZeRO 3), activations (of sequence parallelism) or all",
    )
    group.add_argument(
        "--sequence-parallel",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="split the sequence over the tensor-parallel devices between their products",
    )
    group.add_argument(
        "--zero-degree",
        type=positive,
        default=0,
        metavar="N",
        help="shard over N neighbouring replicas only, with copies on the others (default: all)",
    )
    group.add_argument(
        "--cp-exchange",
        type=str.lower,
        default="gather",
        metavar="HOW",
        help="with --cp: gather keys and values (default), ring, in which they travel during "
        "attention, or all-to-all, which splits heads in attention",
    )
    group.add_argument(
        "--expert-order",
        type=str.lower,
        default="replicas",
        metavar="ORDER",
        help="with --ep, which devices share experts first: replicas (default), or nearest, those "
        "of cp before replicas, as in Megatron-LM",
    )
    group.add_argument(
        "--etp",
        type=positive,
        default=0,
        metavar="N",
        help="with --ep and --tp, devices of tp that split each expert; the others share experts "
        "(default: all of tp, or 1 where ep fits only that way)",
    )
    group.add_argument(
        "--axes",
        action="append",
        default=SUPPRESS,
        metavar="DEGREE=LIST",
        help="logical axes that a degree splits, in order: tp=heads,ffn,vocabulary,sequence "
        "(repeatable; an axis* counts only where every value has it)",
    )
    add_mesh_option(group, "own_mesh", "nothing is split")
    group.add_argument(
        "--placement",
        default=SUPPRESS,
        metavar="ORDER",
        help="order in which degrees are laid out on the devices, innermost first "
        f"(default: {PLACEMENT})",
    )


def execute(arguments: argparse.Namespace) -> int:
    """Simulates, reports, and returns the exit status."""
    files = ("trace", "plan") if is_written(arguments) else ("trace",)
    output = Output(arguments, *files, "report")
    trace: str | None = getattr(arguments, "trace", None)
    if hasattr(arguments, "fit"):
        if not hasattr(arguments, "model"):
            raise DistirError(
                "--fit varies what --model and its options state, and --plan fixes all of it; "
                "leave one of them out"
            )
        with output.working():
            wanted = strategy_of(arguments)
            problem = problem_with(arguments, wanted)
        return write_fit(arguments, output, problem, wanted)
    with output.working():
        with progress("reading"):
            plan = plan_read(arguments)
            strategy = strategy_of(arguments) if plan is None else plan.strategy
            problem = (
                problem_with(arguments, strategy)
                if plan is None
                else problem_of_plan(arguments, plan)
            )
        simulator: Any = problem.simulator
        with progress("simulating"):
            result: Any = (
                simulator.simulate(strategy) if plan is None else simulator.simulate_plan(plan)
            )
        other = _other(arguments, problem, strategy)
        if trace is not None:
            with output.saving():
                with progress("tracing"):
                    write_text(trace, json.dumps(_traced(simulator, strategy, plan, other)) + "\n")
                note(f"wrote {trace}; open it at https://ui.perfetto.dev")
        if is_written(arguments):
            with output.saving():
                write_plan(arguments, simulator.plan(strategy))
        with progress("reporting"):
            with output.saving():
                write_report(arguments, partial(_page, problem, result, plan, other))
            collectives = communicated(problem, result, plan)
    told = plain(problem, result, collectives)
    output.write(told, lambda: _report(problem, result, collectives))
    return 0


def _traced(
    simulator: Simulator, strategy: Strategy, plan: Plan | None, other: Strategy | None
) -> Mapping[str, Any]:
    """The trace of a strategy, or of `plan`, perhaps with another one beside it."""
    events = simulator.trace(strategy) if plan is None else simulator.trace_plan(plan)
    if other is None:
        return events
    from distir.simulation.trace import side_by_side

    return side_by_side({strategy.label: events, other.label: simulator.trace(other)})


def _other(arguments: argparse.Namespace, problem: Problem, plan: Strategy) -> Strategy | None:
    """The strategy of `--compare`. Raises `DistirError` if it cannot be read, cannot be applied, or
    would not be shown."""
    text: str | None = getattr(arguments, "compare", None)
    if text is None:
        return None
    if not hasattr(arguments, "trace") and not hasattr(arguments, "report"):
        raise DistirError(
            "--compare shows another plan in a --trace or a --report; add one of them"
        )
    other = plan.with_changes(text)
    if other == plan:
        raise StrategyError(f"--compare {text}: this is the same plan; expected one that differs")
    impossible = problem.space.impossible(other)
    if impossible is not None:
        raise StrategyError(f"--compare {text}: {impossible}")
    return other


def problem_of_plan(arguments: argparse.Namespace, plan: Plan) -> Problem:
    """The problem that a plan states, on the hardware that the arguments name."""
    from autotune.problem import load_problem

    hardware = {"cluster", "device", "stack"} & vars(arguments).keys()
    return load_problem(**stated_by(plan), **{name: getattr(arguments, name) for name in hardware})


def plain(problem: Problem, result: Any, collectives: Sequence[CollectiveUse]) -> dict[str, Any]:
    """A simulation, and what it communicates, as plain JSON values."""
    said = {"strategy": choices(result.strategy, problem.batch_size)}
    sent = {"collectives": [each.to_dict() for each in collectives]}
    known = {"known_lists": problem.known_lists(result.strategy)}
    return {**_header(problem), **result.to_dict(), **said, **sent, **known}


def communicated(
    problem: Problem, result: Any, plan: Plan | None = None
) -> tuple[CollectiveUse, ...]:
    """What a device of the plan communicates in a step."""
    from distir.simulation.communication import collectives_of

    simulator: Any = problem.simulator
    if not hasattr(simulator, "step"):
        return ()  # it says how long a step takes, not how it goes
    step = simulator.step(result.strategy) if plan is None else simulator.step_plan(plan)
    return collectives_of(step, result)


def problem_with(arguments: argparse.Namespace, strategy: Strategy) -> Problem:
    """The problem that the arguments state, with a batch that the strategy can cut if they state
    none. Raises `StrategyError` if the strategy cannot be applied to it."""
    from autotune.problem import default_batch_size, load_problem

    options: dict[str, Any] = {"devices": strategy.devices, **given(arguments, ProblemStatement)}
    if "batch_size" not in options:
        # The default batch, made to divide by what the strategy divides it by.
        pieces = strategy.dp * strategy.microbatches
        size: int | None = getattr(arguments, "microbatch_size", None)
        if size is None:
            enough = default_batch_size(options["devices"], options["mode"])
            size = -(-enough // pieces)
        options["batch_size"] = size * pieces
    problem = load_problem(**options)
    impossible = problem.space.impossible(strategy)
    if impossible is not None:
        raise StrategyError(impossible)
    return problem


def _header(problem: Problem) -> dict[str, Any]:
    names = ("model", "cluster", "devices", "mode", "batch_size", "settings")
    return {name: getattr(problem, name) for name in names}


def _page(
    problem: Problem, result: Any, plan: Plan | None, other: Strategy | None, told: Told
) -> Page:
    from autotune.page.reports import plan_page

    return plan_page(problem, result, told, plan, other)


def _report(problem: Problem, result: Any, collectives: Sequence[CollectiveUse]) -> Any:
    from autotune.reports.simulation import simulation_report

    return simulation_report(problem, result, collectives)
