"""A progress bar on stderr, for people who watch."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING

from autotune.trial import Trial, best_of

if TYPE_CHECKING:
    from autotune.grid import Watcher

Advance = Callable[[int, "Trial | None"], None]
"""Told how many more strategies are done, and the best so far."""


@contextlib.contextmanager
def progress(what: str, total: int) -> Generator[Advance, None, None]:
    """Shows on a terminal how much is done, at which rate, how long the rest takes, and the best
    so far.
    """
    if not sys.stderr.isatty():
        yield lambda done, best: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        Task,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class Rate(ProgressColumn):
        """Strategies per second."""

        def render(self, task: Task) -> Text:
            return Text(f"{task.speed:,.0f}/s" if task.speed else "")

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        Rate(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        shown: Trial | None = None

        def advance(done: int, best: Trial | None) -> None:
            nonlocal shown
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


def by_chunk(advance: Advance) -> Watcher:
    """Tells `advance` of chunk after chunk."""
    return lambda chunk, best: advance(len(chunk), best)
