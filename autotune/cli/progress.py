"""How far the work is, on stderr: a bar on a terminal, now and then a line elsewhere."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Generator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from autotune.cli.output import is_quiet, note

if TYPE_CHECKING:
    from autotune.cli.pace import Pace
    from autotune.study.trial import Trial
    from autotune.watch import Advance

T = TypeVar("T")

FIRST_LINE_SECONDS = 3.0
"""A phase that takes no longer is not worth a line."""
MOST_SECONDS_BETWEEN_LINES = 60.0


@contextlib.contextmanager
def progress(
    what: str, total: int | None = None, processes: int = 1, /
) -> Generator[Advance, None, None]:
    """Shows how much of a phase is done, at which rate, how long the rest takes, and the best so
    far: at once on a terminal, and elsewhere by a line after three seconds and ever fewer later on.
    """
    from autotune.watch import not_shown

    if is_quiet():
        shown = not_shown(what, total, processes)
    elif sys.stderr.isatty():
        shown = _bar(what, total, processes)
    else:
        shown = _lines(what, total, processes)
    with shown as advance:
        yield advance


def each(what: str, items: Sequence[T], *, forks: bool = False) -> Generator[T, None, None]:
    """The items, one after the other, while it is shown how many of them are done. `forks`: work
    on them forks this process, which must have no other thread, as a bar has."""
    if not forks:
        shown = progress(what, len(items) if len(items) > 1 else None)
    elif is_quiet():
        shown = contextlib.nullcontext(_ignored)
    else:
        shown = _lines(what, len(items), 1)
    with shown as advance:
        for item in items:
            began = time.monotonic()
            yield item
            advance(1, None, time.monotonic() - began)


@contextlib.contextmanager
def _bar(what: str, total: int | None, processes: int) -> Generator[Advance, None, None]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
    from rich.text import Text

    from autotune.cli.pace import Pace

    pace = Pace(total or 0, processes)

    class Far(ProgressColumn):
        """How far the phase is, and how long the rest takes; without a total, how long it took."""

        max_refresh = 0.2

        def render(self, task: Task) -> Text:
            if total is None:
                return Text(f"{task.elapsed or 0.0:.0f} s")
            return Text(_far(pace, total))

    columns = (TextColumn("{task.description}"), BarColumn(20), Far())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        shown: Trial | None = None

        def advance(done: int, best: Trial | None, seconds: float = 0.0, /) -> None:
            nonlocal shown
            pace.add(done, seconds)
            if best is not None and best is not shown:
                shown = best
                bar.update(task, description=_and_best(what, best))
            bar.advance(task, done)

        yield advance


@contextlib.contextmanager
def _lines(what: str, total: int | None, processes: int) -> Generator[Advance, None, None]:
    """Lines of phases with a total are written as parts are done, by no thread: searches fork."""
    if total is None:
        with _elapsed(what):
            yield _ignored
        return
    from autotune.cli.pace import Pace

    pace = Pace(total, processes)
    due = _Due()

    def advance(done: int, best: Trial | None, seconds: float = 0.0, /) -> None:
        pace.add(done, seconds)
        if pace.done < total and due.is_now():
            note(f"{_and_best(what, best)}: {_far(pace, total)}")

    yield advance


def _ignored(done: int, best: Trial | None, seconds: float = 0.0, /) -> None:
    pass


class _Due:
    """When lines are due: after three seconds, then each time twice as long later, but once a
    minute."""

    def __init__(self) -> None:
        self._pause = FIRST_LINE_SECONDS
        self._next = time.monotonic() + self._pause

    @property
    def seconds(self) -> float:
        """Seconds until the next."""
        return max(0.0, self._next - time.monotonic())

    def is_now(self) -> bool:
        """Whether a line is due; then the next one is later."""
        if self.seconds > 0:
            return False
        self._pause = min(2 * self._pause, MOST_SECONDS_BETWEEN_LINES)
        self._next = time.monotonic() + self._pause
        return True


@contextlib.contextmanager
def _elapsed(what: str) -> Generator[None, None, None]:
    """Lines that say for how long this goes on."""
    began, over, due = time.monotonic(), threading.Event(), _Due()

    def tell() -> None:
        while not over.wait(due.seconds):
            if due.is_now():
                note(f"{what}: {time.monotonic() - began:.0f} s so far")

    thread = threading.Thread(target=tell, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _and_best(what: str, best: Trial | None) -> str:
    return what if best is None else f"{what}, best {best.label}"


def _far(pace: Pace, total: int) -> str:
    """`1,024 of 19,008, 420/s, 0:00:43 left`."""
    rate, left = pace.rate, pace.left()
    parts = [f"{pace.done:,} of {total:,}"]
    if rate is not None:
        parts.append(f"{rate:,.0f}/s" if rate >= 1 else f"{1 / rate:,.0f} s each")
    if left is not None:
        parts.append(f"{timedelta(seconds=int(left))} left")
    return ", ".join(parts)
