"""A progress bar on stderr, for people who watch."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Generator

from autotune.trial import Trial, best_of


@contextlib.contextmanager
def progress(what: str, total: int) -> Generator[Callable[[Trial], None], None, None]:
    """A function to call after each trial; shows rate, time left and the best so far on a
    terminal.
    """
    if not sys.stderr.isatty():
        yield lambda trial: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        best: Trial | None = None

        def ended(trial: Trial) -> None:
            nonlocal best
            better = best_of([trial] if best is None else [best, trial])
            if better is not best and better is not None:
                best = better
                bar.update(task, description=f"{what}, best {best.label}")
            bar.advance(task)

        yield ended
