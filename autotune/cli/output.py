"""Where results go: a report on the terminal, JSON in a file or alone on stdout."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import sys
from collections.abc import Callable, Generator, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, cast

from autotune.study.verdict import all_failed
from distir.errors import DistirError
from distir.files import outputs, write_text

if TYPE_CHECKING:
    from rich.console import RenderableType


INTERRUPTED = 130
"""Exit status after Ctrl-C or SIGTERM, as shells have it: 128 + SIGINT."""


_QUIET: ContextVar[bool] = ContextVar("quiet", default=False)
"""Whether results and errors are all that is told."""


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """The options `--json` and `--quiet`."""
    parser.add_argument(
        "--json",
        default=argparse.SUPPRESS,
        metavar="FILE",
        help="also write the result as JSON; - writes only JSON, to stdout",
    )
    parser.add_argument(
        "--quiet",
        action="store_true",
        default=argparse.SUPPRESS,
        help="print only results and errors: no progress and no remarks",
    )


@contextlib.contextmanager
def quiet(is_wanted: bool) -> Generator[None, None, None]:
    """While this lasts, there are neither remarks nor progress, if that is wanted."""
    before = _QUIET.set(is_wanted)
    try:
        yield
    finally:
        _QUIET.reset(before)


def is_quiet() -> bool:
    """Whether results and errors are all that is told."""
    return _QUIET.get()


class Output:
    """Takes the result of a subcommand to where `--json` wants it. `files` are the subcommand's
    other options that name a file to write."""

    def __init__(self, arguments: argparse.Namespace, *files: str):
        self._file: str | None = getattr(arguments, "json", None)
        self._stdout = sys.stdout
        named = {f"--{name}": getattr(arguments, name, None) for name in files}
        named["--json"] = None if self._file == "-" else self._file
        self._files = {option: path for option, path in named.items() if path is not None}
        self._not_shown: OSError | None = None
        self._not_written: list[DistirError] = []

    @property
    def is_json_alone(self) -> bool:
        """Whether there is no report."""
        return self._file == "-"

    @contextlib.contextmanager
    def working(self) -> Generator[None, None, None]:
        """While working, no input is a file that will be written, and whatever prints goes to
        stderr if stdout is for JSON alone. Raises `DistirError` if a file cannot be written."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(outputs(self._files))
            if self._file == "-":
                stack.enter_context(contextlib.redirect_stdout(sys.stderr))
                stack.enter_context(self._descriptor_to_stderr())
            yield

    @contextlib.contextmanager
    def _descriptor_to_stderr(self) -> Generator[None, None, None]:
        """Sends what goes past `sys.stdout`, such as a child process's output, to stderr too."""
        try:
            descriptor, elsewhere = self._stdout.fileno(), sys.stderr.fileno()
        except (AttributeError, OSError, ValueError):  # no file, as in a notebook, or closed
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

    @contextlib.contextmanager
    def saving(self) -> Generator[None, None, None]:
        """While this lasts, a file that cannot be written is not the end: `write` raises that when
        the answer is out."""
        try:
            yield
        except DistirError as error:
            self._not_written.append(error)

    def show(self, part: Callable[[], RenderableType | None]) -> None:
        """Shows a part of the report at once, while the work goes on, unless stdout is for JSON
        alone. If stdout cannot be written, `write` raises that once the JSON is written."""
        if self.is_json_alone or self._not_shown is not None:
            return
        from autotune.rendering import console

        shown = part()
        if shown is None:
            return
        try:
            console().print(shown, crop=False)
            if sys.stdout is not None:
                sys.stdout.flush()
        except OSError as error:
            self._not_shown = error

    def write(
        self,
        plain: Any,
        report: Callable[[], RenderableType | None],
        save: Callable[[], None] | None = None,
    ) -> None:
        """Writes `plain` as JSON and shows the report, or what is left of it, unless stdout is for
        JSON alone; then it has `save` write files that take a while. None of these is lost because
        another one cannot be written: that is raised at the end."""
        if self._file == "-":
            self._print(as_json(plain))
        elif self._file is not None:
            with self.saving():
                write_text(self._file, as_json(plain) + "\n")
        self.show(report)
        if save is not None:
            with self.saving(), self.working():
                save()
        self._raise_what_was_not_written()

    def _print(self, text: str) -> None:
        """Prints on stdout, though that is not for reports."""
        if self._stdout is None:
            self._not_shown = BrokenPipeError()
            return
        try:
            print(text, file=self._stdout, flush=True)
        except OSError as error:
            self._not_shown = error

    def _raise_what_was_not_written(self) -> None:
        """Raises the error of the last that could not be written, if any; the others are told."""
        errors = [*self._not_written, *([] if self._not_shown is None else [self._not_shown])]
        for error in errors[:-1]:
            note(f"error: {error}", is_error=True)
        if errors:
            raise errors[-1]


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


def status_of(evaluated: int, failures: Mapping[str, int]) -> int:
    """The exit status of a search: 1, with a line on stderr, if every trial failed, else 0.
    `failures` are counts of failed trials by reason."""
    if not evaluated or sum(failures.values()) < evaluated:
        return 0
    note(all_failed(failures), is_error=True)
    return 1


def note(text: str, *, is_error: bool = False) -> None:
    """A remark for people, beside the result; what went wrong is told the quiet, too."""
    if is_quiet() and not is_error:
        return
    print(f"autotune: {text}", file=sys.stderr)
