"""A progress bar on stderr, for people who watch."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Generator
from typing import Protocol

from autotune.trial import Trial, best_of


class Advance(Protocol):
    """Told how many more strategies are done, the best so far, and how many seconds these took the
    process that did them."""

    def __call__(self, done: int, best: Trial | None, seconds: float = 0.0, /) -> None: ...


def _hidden(done: int, best: Trial | None, seconds: float = 0.0) -> None:
    pass


@contextlib.contextmanager
def progress(what: str, total: int, processes: int = 1) -> Generator[Advance, None, None]:
    """Shows on a terminal how much is done, at which rate, how long the rest takes, and the best
    so far.
    """
    if not sys.stderr.isatty():
        yield _hidden
        return
    from datetime import timedelta

    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        Task,
        TextColumn,
    )
    from rich.text import Text

    from autotune.pace import Pace

    pace = Pace(total, processes)

    class Rate(ProgressColumn):
        """Strategies per second, or seconds per strategy."""

        def render(self, task: Task) -> Text:
            rate = pace.rate
            if rate is None:
                return Text("")
            return Text(f"{rate:,.0f}/s" if rate >= 1 else f"{1 / rate:,.0f} s each")

    class Left(ProgressColumn):
        """How long the rest takes."""

        def render(self, task: Task) -> Text:
            left = pace.left()
            told = "-:--:--" if left is None else str(timedelta(seconds=int(left)))
            return Text(told, style="progress.remaining")

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        Rate(),
        Left(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        shown: Trial | None = None

        def advance(done: int, best: Trial | None, seconds: float = 0.0) -> None:
            nonlocal shown
            pace.add(done, seconds)
            if best is not None and best is not shown:
                shown = best
                bar.update(task, description=f"{what}, best {best.label}")
            bar.advance(task, done)

        yield advance


def by_trial(advance: Advance) -> Callable[[Trial], None]:
    """Tells `advance` of trial after trial."""
    best: Trial | None = None

    def ended(trial: Trial) -> None:
        nonlocal best
        best = best_of([trial] if best is None else [best, trial])
        advance(1, best)

    return ended
