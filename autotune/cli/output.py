"""Where results go: a report on the terminal, JSON in a file or alone on stdout."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import sys
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from distir.errors import DistirError

if TYPE_CHECKING:
    from rich.console import RenderableType


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """The option `--json`."""
    parser.add_argument(
        "--json",
        default=argparse.SUPPRESS,
        metavar="FILE",
        help="also write the result as JSON; - writes it to stdout and nothing else",
    )


class Output:
    """Takes the result of a subcommand to where `--json` wants it."""

    def __init__(self, arguments: argparse.Namespace):
        self._file: str | None = getattr(arguments, "json", None)
        self._stdout = sys.stdout
        if self._file not in (None, "-"):
            check_writable(self._file)

    @contextlib.contextmanager
    def quiet(self) -> Generator[None, None, None]:
        """While working, whatever prints goes to stderr if stdout is for JSON alone."""
        if self._file != "-":
            yield
            return
        with contextlib.redirect_stdout(sys.stderr), self._descriptor_to_stderr():
            yield

    @contextlib.contextmanager
    def _descriptor_to_stderr(self) -> Generator[None, None, None]:
        """Sends what goes past `sys.stdout`, such as a child process's output, to stderr too."""
        try:
            descriptor, elsewhere = self._stdout.fileno(), sys.stderr.fileno()
        except (OSError, ValueError):  # either is no file, as in a notebook or under a test
            yield
            return
        self._stdout.flush()
        kept = os.dup(descriptor)
        os.dup2(elsewhere, descriptor)
        try:
            yield
        finally:
            os.dup2(kept, descriptor)
            os.close(kept)

    def write(self, plain: Any, report: Callable[[], RenderableType]) -> None:
        """Writes `plain` as JSON and shows the report, unless stdout is for JSON alone."""
        if self._file == "-":
            print(as_json(plain), file=self._stdout)
            return
        from autotune.rendering import console

        console().print(report(), crop=False)
        if self._file is not None:
            write_text(self._file, as_json(plain))


def as_json(plain: Any) -> str:
    """Strict JSON: numbers that it cannot say become null."""
    return json.dumps(_sayable(plain), indent=2, allow_nan=False, default=_plain)


def _plain(value: Any) -> Any:
    """NumPy's numbers as Python's."""
    if hasattr(value, "item"):
        return _sayable(value.item())
    raise TypeError(f"{type(value).__name__} is not JSON")


def _sayable(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _sayable(item) for key, item in cast(dict[Any, Any], value).items()}
    if isinstance(value, (list, tuple)):
        return [_sayable(item) for item in cast(list[Any], value)]
    return value


def check_writable(path: str) -> None:
    """Raises before the work is done, not after, if `path` cannot be written."""
    file = Path(path)
    if file.is_dir():
        raise DistirError(f"{path} is a folder; expected a file to write")
    if file.exists() and not os.access(file, os.W_OK):
        raise DistirError(f"{path} cannot be written: no permission")
    if not file.absolute().parent.is_dir():
        raise DistirError(f"{path} cannot be written: there is no folder {file.absolute().parent}")


def write_text(path: str, text: str) -> None:
    """Writes a file, or says why that does not work."""
    try:
        Path(path).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise DistirError(f"{path} cannot be written: {error.strerror}") from error


def status_of(evaluated: int, failures: Mapping[str, int]) -> int:
    """The exit status of a search: 1, with a line on stderr, if every trial failed, else 0.
    `failures` are counts of failed trials by reason."""
    if not evaluated or sum(failures.values()) < evaluated:
        return 0
    count = f"all {evaluated} trials" if evaluated > 1 else "the only trial"
    note(f"{count} failed; the most frequent reason: {next(iter(failures))}")
    return 1


def note(text: str) -> None:
    """A remark for people, beside the result."""
    print(f"autotune: {text}", file=sys.stderr)
