"""`autotune read`."""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING, Any

from autotune.cli.options import SUPPRESS, add_hardware_options, given, positive
from autotune.cli.output import Output, add_json_option
from autotune.cli.report import add_report_option, write_report
from autotune.cli.simulate import communicated, plain
from autotune.statement import ProblemStatement
from distir.errors import DistirError, StrategyError

if TYPE_CHECKING:
    from autotune.launch.better import Better
    from autotune.launch.read import Reading
    from autotune.page.contents import Page
    from autotune.page.reports import Told
    from autotune.problem import Problem

SUMMARY = "Read a launch script or its options: how good the plan is, and what would be better."


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the subcommand's options."""
    parser.add_argument(
        "file",
        metavar="FILE",
        help="a launch script, a command line in a file, a file of options, or a folder with one; "
        "it is read and never executed",
    )
    stated = parser.add_argument_group("what the file leaves open")
    stated.add_argument(
        "--target",
        default=SUPPRESS,
        metavar="T",
        help="the framework (default: recognized from the file)",
    )
    stated.add_argument(
        "--devices", type=positive, default=SUPPRESS, metavar="N", help="devices in use"
    )
    stated.add_argument(
        "--batch-size",
        type=positive,
        default=SUPPRESS,
        metavar="B",
        help="samples per step over all devices",
    )
    stated.add_argument(
        "--sequence-length", type=positive, default=SUPPRESS, metavar="S", help="tokens per sample"
    )
    stated.add_argument(
        "--model",
        default=SUPPRESS,
        metavar="M",
        help="the model, for files that do not describe it (default: the config.json beside them)",
    )
    stated.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="the value of a variable, or of an option of the framework (repeatable)",
    )
    stated.add_argument(
        "--ignore",
        action="append",
        default=[],
        metavar="OPTION",
        help="an option of the file to leave out because it is not understood and does not matter "
        "(repeatable; write --ignore=--NAME)",
    )
    add_hardware_options(parser.add_argument_group("cluster and software"))
    search = parser.add_argument_group("search")
    search.add_argument(
        "--space",
        default="standard",
        metavar="SPACE",
        help="where to look for better strategies (as for `run`)",
    )
    search.add_argument(
        "--trials",
        type=int,
        default=SUPPRESS,
        metavar="N",
        help="strategies to try (default: as for `run`; 0: do not look for better ones)",
    )
    add_report_option(parser)
    add_json_option(parser)


def execute(arguments: argparse.Namespace) -> int:
    """Reads, simulates, searches and reports; returns the exit status."""
    output = Output(arguments, "report")
    with output.working():
        from autotune.launch.read import Stated, read_launch

        settings = dict(_setting(text) for text in arguments.set)
        stated = Stated(settings=settings, ignored=tuple(arguments.ignore), **_stated(arguments))
        reading = read_launch(arguments.file, stated)
        problem = _problem(arguments, reading)
        simulated, as_run, found = _answers(arguments, problem, reading)
        with output.saving():
            write_report(arguments, partial(_page, problem, reading, simulated, as_run, found))
    output.write(
        _plain(problem, reading, simulated, as_run, found),
        lambda: _report(problem, reading, simulated, as_run, found),
    )
    return 0


def _page(
    problem: Problem,
    reading: Reading,
    simulated: Any,
    as_run: Any,
    found: list[Better] | None,
    told: Told,
) -> Page:
    from autotune.launch.page import read_page

    return read_page(problem, reading, simulated, as_run, found, told)


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise DistirError(f"--set {text}: expected NAME=VALUE")
    return name.lstrip("-") if name.startswith("--") else name, value


def _stated(arguments: argparse.Namespace) -> dict[str, Any]:
    names = ("target", "devices", "batch_size", "sequence_length", "model")
    return {name: getattr(arguments, name) for name in names if hasattr(arguments, name)}


def _problem(arguments: argparse.Namespace, reading: Reading) -> Problem:
    from autotune.launch.better import space_around
    from autotune.problem import load_problem

    options = given(arguments, ProblemStatement)
    options |= reading.statement
    options["space"] = space_around(reading.target, arguments.space, reading.strategy)
    problem = load_problem(**options)
    reason = problem.space.impossible(reading.strategy)
    if reason is not None:
        raise StrategyError(f"{reading.path}: {reason}")
    return problem


def _answers(
    arguments: argparse.Namespace, problem: Problem, reading: Reading
) -> tuple[Any, Any, list[Better] | None]:
    """The results of what the file states, as simulated and as the framework runs it, and what is
    better, None where nobody looked."""
    from autotune.launch.better import better
    from autotune.launch.priced import as_run
    from autotune.search import Search

    target, strategy, facts = reading.target, reading.strategy, reading.facts
    simulator: Any = problem.simulator
    simulated = simulator.simulate(strategy)
    run = as_run(problem, target, strategy, facts, reading.cuts, reading.per_node)
    trials: int | None = getattr(arguments, "trials", None)
    if trials is not None and trials < 1:
        return simulated, run, None
    search = Search(objective="latency", trials=trials)
    found = better(problem, target, strategy, run[0], reading.options, facts, search)
    return simulated, run, found


def _plain(
    problem: Problem, reading: Reading, simulated: Any, as_run: Any, found: list[Better] | None
) -> dict[str, Any]:
    from autotune.launch.facts import WORKLOAD_FACTS
    from autotune.study.trial import choices

    result, settings = as_run
    simulator: Any = problem.simulator
    workload = simulator.workload
    stated = {name: getattr(workload, name) for name in WORKLOAD_FACTS}
    return {
        "target": reading.target.name,
        "version": reading.target.version,
        "model": reading.model,
        "workload": {**stated, "sequence_length": workload.length},
        "devices": problem.devices,
        "strategy": choices(reading.strategy, problem.batch_size),
        "simulated": plain(problem, simulated, communicated(problem, simulated)),
        "as_run": {**settings, "metrics": dict(result.metrics)},
        "not_modelled": [
            {"option": note.what, "value": note.value, "reason": note.reason}
            for note in reading.not_modelled
        ],
        "better": [each.to_dict(problem.batch_size) for each in found or ()],
    }


def _report(
    problem: Problem, reading: Reading, simulated: Any, as_run: Any, found: list[Better] | None
) -> Any:
    from autotune.launch.report import read_report

    return read_report(problem, reading, simulated, as_run, found)
