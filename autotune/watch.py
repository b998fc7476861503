"""Who watches a search: told of its phases, of how far they are, and of what is known so far.

A search that nobody watches tells it all to `Watch()`, which does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from autotune.study.trial import Trial, best_of

if TYPE_CHECKING:
    from autotune.result import TuneResult

__all__ = ["Advance", "Phase", "Watch", "by_trial", "not_shown"]


class Advance(Protocol):
    """Told how many more strategies are done, the best so far, and how many seconds these took the
    process that did them."""

    def __call__(self, done: int, best: Trial | None, seconds: float = 0.0, /) -> None: ...


class Phase(Protocol):
    """Begins a phase of the work, of `total` strategies if it goes through some, and ends it."""

    def __call__(
        self, what: str, total: int | None = None, processes: int = 1, /
    ) -> AbstractContextManager[Advance]: ...


def _not_told(done: int, best: Trial | None, seconds: float = 0.0, /) -> None:
    pass


@contextmanager
def not_shown(
    _what: str, _total: int | None = None, _processes: int = 1, /
) -> Generator[Advance, None, None]:
    """A phase that nobody sees."""
    yield _not_told


def _not_heard(result: TuneResult, /) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Watch:
    """What a search tells while it goes on."""

    phase: Phase = not_shown
    answered: Callable[[TuneResult], None] = _not_heard
    """Told the answer before the sampler has tried anything, where all strategies, or proofs about
    them, take little time."""
    searched: Callable[[TuneResult], None] = _not_heard
    """Told what was found in the space, before anything is looked for elsewhere or recorded."""
    looked_outside: Callable[[TuneResult], None] = _not_heard
    """Told of a better plan outside the space, if there is one."""


def by_trial(advance: Advance) -> Callable[[Trial], None]:
    """Tells `advance` of trial after trial."""
    best: Trial | None = None

    def ended(trial: Trial) -> None:
        nonlocal best
        best = best_of([trial] if best is None else [best, trial])
        advance(1, best, trial.seconds)

    return ended
