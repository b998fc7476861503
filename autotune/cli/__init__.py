"""The command line. One file per subcommand, each with `SUMMARY`, `configure(parser)` and
`execute(arguments)`.

Nothing heavy is imported before a subcommand runs: `--help` answers at once.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import pathlib
import shlex
import signal
import sys
import threading
from collections.abc import Generator, Sequence
from typing import TextIO

from autotune.cli import (
    calibrate,
    clusters,
    compare,
    completion,
    devices,
    execute,
    grid,
    launch,
    measure,
    models,
    objectives,
    profile,
    read,
    run,
    samplers,
    scale,
    schedules,
    simulate,
    stacks,
    targets,
    validate,
    verify,
    work,
)
from autotune.cli.completion import asks_for_completion, complete
from autotune.cli.options import typed
from autotune.cli.output import quiet
from autotune.cli.parser import Help, Parser
from distir import __version__
from distir.errors import DistirError
from distir.garbage import collected_seldom

__all__ = ["main"]

COMMANDS = {
    "run": run,
    "work": work,
    "simulate": simulate,
    "grid": grid,
    "scale": scale,
    "compare": compare,
    "launch": launch,
    "read": read,
    "verify": verify,
    "execute": execute,
    "measure": measure,
    "profile": profile,
    "validate": validate,
    "calibrate": calibrate,
    "models": models,
    "clusters": clusters,
    "devices": devices,
    "stacks": stacks,
    "samplers": samplers,
    "objectives": objectives,
    "schedules": schedules,
    "targets": targets,
    "completion": completion,
}

FIRST = """\
How should this model be distributed over this cluster?

  autotune run --model gpt2
      finds the best plan, and says how sure that is and why it is the best
  autotune simulate --model gpt2 --dp 2 --tp 2 --pp 4 --microbatches 8
      shows what one plan costs, where time and memory go, and whether it fits
  autotune read examples/launch.sh --cluster hgx-h100
      shows how good the plan of a launch script is, and what would be better

autotune --help lists all commands, autotune COMMAND --help the options of one.
"""
"""What is shown to those who type no command."""

EPILOG = """\
examples:
  python -m autotune run --model gpt2
  python -m autotune run --model llama3-8b --cluster hgx-h100 --devices 64 --sequence-length 4096
  python -m autotune run --model gpt2 --objective my_objective.py:cost --trial-timeout 600
  python -m autotune simulate --model gpt2 --dp 2 --tp 2 --pp 4 --microbatches 8 --trace trace.json
  python -m autotune grid --model model.onnx --devices 32 --json -
  python -m autotune verify --model gpt2 --dp 2 --tp 2 --pp 2 --microbatches 4
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command line; returns the exit status: 0 done, 1 broken off, 2 bad input, 130
    interrupted."""
    with _stderr_to_write_to():
        return _ended(argv)


@contextlib.contextmanager
def _stderr_to_write_to() -> Generator[None, None, None]:
    """While this lasts, what is said on stderr goes nowhere if that was closed."""
    if sys.stderr is not None:
        yield
        return
    nowhere = pathlib.Path(os.devnull)
    with nowhere.open("w", encoding="utf-8") as file, contextlib.redirect_stderr(file):
        yield


def _ended(argv: Sequence[str] | None) -> int:
    """The exit status of a command line; see `main`."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            # A sign that the terminal does not have is shown as a question mark.
            stream.reconfigure(errors="replace")
    try:
        try:
            with _terminated_like_interrupted(), collected_seldom():
                return _executed(sys.argv[1:] if argv is None else argv)
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()  # what cannot be written is to fail here, not at Python's end
    except DistirError as error:
        _say(f"error: {error}")
        return 2
    except KeyboardInterrupt:
        _say("interrupted")
        return 130
    except OSError as error:  # files have errors of their own: this is stdout, full or closed
        _give_up(sys.stdout)
        _say(f"error: stdout cannot be written: {error.strerror or 'it is closed'}")
        return 1


@contextlib.contextmanager
def _terminated_like_interrupted() -> Generator[None, None, None]:
    """While this lasts, SIGTERM, which schedulers send before SIGKILL, does what Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _executed(argv: Sequence[str]) -> int:
    if asks_for_completion():
        complete(make_parser())
    if not argv:
        print(FIRST, end="")
        return 0
    parser = make_parser()
    for argument in argv:
        option, _, value = argument.partition("=")
        if value == "--":  # which argparse takes for the end of the options, and so for no value
            parser.error(f"argument {option}: expected a value, found '--'")
    arguments = parser.parse_args(argv)
    arguments.command_line = shlex.join([parser.prog, *argv])
    arguments.line = shlex.join(["autotune", *argv])
    arguments.typed = typed(argv, vars(arguments))
    with quiet(hasattr(arguments, "quiet")):
        return arguments.execute(arguments)


def _say(text: str) -> None:
    """A line on stderr, if there is anyone to read it."""
    try:
        print(f"autotune: {text}", file=sys.stderr, flush=True)
    except OSError:
        _give_up(sys.stderr)


def _give_up(stream: TextIO | None) -> None:
    """Sends what is still to be written to a stream nowhere, so that Python can end in peace."""
    with contextlib.suppress(AttributeError, OSError, ValueError):  # closed, or no file
        descriptor = os.open(os.devnull, os.O_WRONLY)
        os.dup2(descriptor, stream.fileno())  # type: ignore[union-attr]
        os.close(descriptor)


def _usage(name: str) -> str:
    """One line, also where usage is wrong: the options are many, and `--help` lists them."""
    needed = " FILE.csv" if name in ("validate", "calibrate") else ""
    modelled = ("run", "simulate", "grid", "scale", "compare", "verify", "execute", "measure")
    if name in (*modelled, "launch"):
        needed = " --model M"
    if name == "launch":
        needed += " --target T"
    if name == "read":
        needed = " FILE"
    if name == "work":
        needed = " --storage URL --study NAME"
    return f"autotune {name}{needed} [OPTION …]   (autotune {name} --help lists the options)"


def make_parser() -> Parser:
    """The parser of all subcommands."""
    parser = Parser(
        prog="autotune",
        description="How should this model be distributed over this cluster? "
        "Simulates plans and searches for the best.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"distir {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        summary = command.SUMMARY
        sub = commands.add_parser(
            name,
            help=(summary[0].lower() + summary[1:].rstrip(".")).replace("%", "%%"),
            description=summary,
            formatter_class=Help,
            usage=_usage(name),
        )
        command.configure(sub)
        sub.set_defaults(execute=command.execute)
    parser.introduce_commands()
    return parser
