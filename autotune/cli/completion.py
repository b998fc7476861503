"""`autotune completion`, and what shells ask for when somebody presses TAB.

argcomplete does the work: a shell runs the command itself with a variable set, and the parser
answers. It is imported only then.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable
from typing import Any

from autotune.cli.output import Output, add_json_option
from autotune.cli.parser import Parser

SUMMARY = "Print a script that makes a shell complete commands, options and names."

SHELLS = ("bash", "zsh", "fish")


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the subcommand's options."""
    parser.add_argument(
        "shell",
        choices=SHELLS,
        metavar="SHELL",
        help='bash, zsh or fish; for bash: eval "$(autotune completion bash)"',
    )
    add_json_option(parser)


def execute(arguments: argparse.Namespace) -> int:
    """Prints the shell's code."""
    from argcomplete.shell_integration import shellcode
    from rich.text import Text

    code: str = shellcode(["autotune"], shell=arguments.shell)
    output = Output(arguments)
    output.write(
        {"shell": arguments.shell, "code": code},
        lambda: Text(code, no_wrap=True, overflow="ignore", end=""),
    )
    return 0


def asks_for_completion() -> bool:
    """Whether a shell has started the program to know what may come next."""
    return "_ARGCOMPLETE" in os.environ


def complete(parser: Parser) -> None:
    """Tells the shell what may come next, and ends the program."""
    import argcomplete

    parser.complete_by({name: _completer(names) for name, names in _NAMES.items()})
    argcomplete.autocomplete(parser)


def _models() -> Iterable[str]:
    from distir.models import ZOO

    return (entry.name for entry in ZOO)


def _clusters() -> Iterable[str]:
    from distir.cost import cluster_names

    return cluster_names()


def _devices() -> Iterable[str]:
    from distir.cost import device_names

    return device_names()


def _stacks() -> Iterable[str]:
    from distir.cost import stack_names

    return stack_names()


def _schedules() -> Iterable[str]:
    from distir.schedules import SCHEDULES

    return SCHEDULES.names()


def _samplers() -> Iterable[str]:
    from autotune.plugins import plugin_summaries
    from autotune.samplers import SAMPLER_GROUP, SAMPLERS

    return [*SAMPLERS.names(), *plugin_summaries(SAMPLER_GROUP)]


def _objectives() -> Iterable[str]:
    from autotune.objectives import OBJECTIVE_GROUP, simulated_objectives
    from autotune.plugins import plugin_summaries

    return [*simulated_objectives(), *plugin_summaries(OBJECTIVE_GROUP)]


def _targets() -> Iterable[str]:
    from autotune.launch import TARGETS

    return TARGETS.names()


_NAMES: dict[str, Callable[[], Iterable[str]]] = {
    "model": _models,
    "cluster": _clusters,
    "device": _devices,
    "stack": _stacks,
    "schedule": _schedules,
    "sampler": _samplers,
    "objective": _objectives,
    "target": _targets,
    "space": lambda: ("small", "standard", "full"),
}
"""Values of options that have names, by the attribute that an option sets."""


def _completer(names: Callable[[], Iterable[str]]) -> Any:
    """A completer of names; of files too, which most of these options take."""

    def completer(prefix: str, **_: Any) -> list[str]:
        from argcomplete.completers import FilesCompleter

        return [*(name for name in names() if name.startswith(prefix)), *FilesCompleter()(prefix)]

    return completer
