"""`autotune measure`."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from autotune.cli.options import (
    SUPPRESS,
    add_model_options,
    add_where_option,
    positive,
    seconds,
    strategy_of,
)
from autotune.cli.output import Output, add_json_option, note
from autotune.cli.plans import add_plan_option, is_written, plan_read, write_plan
from autotune.cli.simulate import add_strategy_options, problem_of_plan, problem_with
from autotune.study.trial import choices
from distir.errors import DistirError
from distir.files import write_text

if TYPE_CHECKING:
    from autotune.distributed.measuring import Measurement
    from autotune.problem import Problem
    from distir.models import TransformerConfig
    from distir.plan import Plan

SUMMARY = (
    "Measure steps of a plan at its own sizes, with a process per device of this machine (needs "
    "PyTorch)."
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the subcommand's options."""
    devices = "devices in use (default: the product of the degrees)"
    add_model_options(parser, devices, required=False)
    add_strategy_options(parser)
    add_plan_option(parser)
    parser.add_argument("--steps", type=positive, default=10, metavar="N", help="steps to measure")
    parser.add_argument(
        "--warmup",
        type=positive,
        default=2,
        metavar="N",
        help="steps to run before, without measuring them",
    )
    parser.add_argument(
        "--deadline",
        type=seconds,
        default=600.0,
        metavar="SECONDS",
        help="end the processes after this long, and say which waits for which",
    )
    add_where_option(parser, "cpu", "PyTorch in the plan's precision, or numpy in float64")
    parser.add_argument(
        "--trace",
        default=SUPPRESS,
        metavar="FILE",
        help="write the last step as a Chrome trace, with the simulated one beside it",
    )
    parser.add_argument(
        "--csv",
        default=SUPPRESS,
        metavar="FILE",
        help="add the run to a table of measured runs, which validate and calibrate read (needs "
        "--cluster with a profile's cluster.toml)",
    )
    add_json_option(parser)


def execute(arguments: argparse.Namespace) -> int:
    """Measures, reports, and returns the exit status."""
    from autotune.distributed.backend import load_torch

    output = Output(arguments, "trace", *(("plan",) if is_written(arguments) else ()))
    trace: str | None = getattr(arguments, "trace", None)
    with output.working():
        load_torch()  # whoever lacks it is to know at once
        from autotune.distributed.measuring import measure_locally, trace_beside

        problem, plan = _planned(arguments)
        config = _config_to_state(arguments, problem) if hasattr(arguments, "csv") else None
        simulator: Any = problem.simulator
        result: Any = simulator.simulate_plan(plan)
        measured = measure_locally(
            plan, arguments.steps, arguments.warmup, arguments.deadline, arguments.on
        )
        if trace is not None:
            events = trace_beside(simulator.trace_plan(plan), plan, measured)
            with output.saving():
                write_text(trace, json.dumps(events) + "\n")
                note(f"wrote {trace}; open it at https://ui.perfetto.dev")
        if config is not None:
            with output.saving():
                _add_row(arguments, plan, config, measured)
        if is_written(arguments):
            with output.saving():
                write_plan(arguments, plan)
    output.write(_plain(problem, result, measured), lambda: _report(problem, result, measured))
    return 0


def _planned(arguments: argparse.Namespace) -> tuple[Problem, Plan]:
    plan = plan_read(arguments)
    if plan is not None:
        return problem_of_plan(arguments, plan), plan
    strategy = strategy_of(arguments)
    problem = problem_with(arguments, strategy)
    simulator: Any = problem.simulator
    return problem, simulator.plan(strategy)


def _config_to_state(arguments: argparse.Namespace, problem: Problem) -> TransformerConfig:
    """The sizes that a row states of the model. Raises `DistirError` if it has none, or if the row
    could not say where it was measured."""
    from autotune.validation.written import check_table
    from distir.importers.config import read_config
    from distir.models import TransformerConfig
    from distir.models.zoo import find_model

    check_table(arguments.csv)
    if not str(arguments.cluster).endswith(".toml"):
        raise DistirError(
            f"--csv: the cluster {arguments.cluster} is not the machine on which this is measured; "
            "expected "
            "--cluster with the cluster.toml that autotune profile writes"
        )
    spec = str(getattr(arguments, "model", problem.model))
    try:
        config = read_config(spec) if spec.endswith(".json") else find_model(spec)
    except DistirError:
        config = None
    if not isinstance(config, TransformerConfig):
        raise DistirError(
            f"--csv: a row states the sizes of a transformer, and {spec} has none; expected the "
            "name of one, or a config.json: leave out --csv"
        )
    return config


def _add_row(
    arguments: argparse.Namespace, plan: Plan, config: TransformerConfig, measured: Measurement
) -> None:
    import platform

    from autotune.validation.written import add_row, row_of

    seconds = measured.to_dict()["iteration_seconds"]
    source = f"autotune measure on {platform.node()}"
    row = row_of(config, plan.workload, plan.strategy, str(arguments.cluster), seconds, source)
    add_row(arguments.csv, row)
    note(f"added a row to {arguments.csv}")


def _plain(problem: Problem, result: Any, measured: Measurement) -> dict[str, Any]:
    names = ("iteration_seconds", "peak_memory_bytes")
    return {
        "model": problem.model,
        "cluster": problem.cluster,
        "batch_size": problem.batch_size,
        "strategy": choices(result.strategy, problem.batch_size),
        "simulated": {name: result.metrics[name] for name in names},
        "measured": measured.to_dict(),
        "environment": measured.environment(),
    }


def _report(problem: Problem, result: Any, measured: Measurement) -> Any:
    from autotune.reports.measurement import measurement_report

    return measurement_report(problem, result, measured)
