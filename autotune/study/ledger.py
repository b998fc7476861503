"""What a study keeps of its trials, and shares with other workers where there are any.

The search loop claims a strategy, evaluates it and enters what came of that. A ledger in memory has
one worker; one on a storage (`autotune.durable`) has any number, each of which sees what the others
claimed and entered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from autotune.objectives.evaluation import Evaluation
from distir.errors import DistirError
from distir.strategy import Strategy


class LedgerError(DistirError):
    """What a study keeps can be neither read nor written, and waiting did not help."""


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One strategy of a study, and what is known of it."""

    number: int
    """Of the trial; while nothing is known, of the last attempt."""
    strategy: Strategy
    evaluation: Evaluation | None = None
    """None while nothing is known."""
    started: float = 0.0
    """Seconds since the epoch."""
    seconds: float = 0.0
    """How long the evaluation took."""
    open: bool = False
    """Whether the worker that tried it has died, and somebody is to try again."""
    asked: bool = True
    """Whether a sampler proposed it, and not the user."""

    @property
    def pending(self) -> bool:
        """Whether somebody is at it."""
        return self.evaluation is None and not self.open


class Ledger(Protocol):
    """The entries of a study. Methods raise `LedgerError` if these cannot be reached."""

    @property
    def shared(self) -> bool:
        """Whether others may write, too."""
        ...

    def entries(self) -> Sequence[LedgerEntry]:
        """One entry for every strategy that was claimed, in the order of the first claims."""
        ...

    def claim(self, strategy: Strategy, budget: int, *, asked: bool = True) -> int | None:
        """The number of a new trial, of which no other worker makes one. None if another was first,
        or if `budget` strategies are claimed."""
        ...

    def report(self, number: int, step: int, value: float) -> bool:
        """Keeps a value that the trial of a claim has on its way. Whether it is to end."""
        ...

    def enter(self, number: int, evaluation: Evaluation, started: float, seconds: float) -> bool:
        """Keeps what came of a claim. False if it was taken for dead, and somebody else tries."""
        ...

    def release(self, number: int) -> None:
        """Gives a claim back, as if it had not been made."""
        ...

    def wait(self) -> None:
        """Returns after a moment in which others may have got on."""
        ...


class MemoryLedger:
    """Entries of one worker, gone with its process."""

    shared = False

    def __init__(self) -> None:
        self._entries: list[LedgerEntry] = []

    def entries(self) -> Sequence[LedgerEntry]:
        """All entries."""
        return self._entries

    def claim(self, strategy: Strategy, budget: int, *, asked: bool = True) -> int | None:
        """The next number."""
        self._entries.append(LedgerEntry(len(self._entries), strategy, asked=asked))
        return self._entries[-1].number

    def report(self, number: int, step: int, value: float) -> bool:
        """Nobody prunes here."""
        return False

    def enter(self, number: int, evaluation: Evaluation, started: float, seconds: float) -> bool:
        """Keeps the evaluation."""
        known = {"evaluation": evaluation, "started": started, "seconds": seconds}
        self._entries[number] = replace(self._entries[number], **known)
        return True

    def release(self, number: int) -> None:
        """Forgets the last claim."""
        self._entries.pop()

    def wait(self) -> None:
        """There is nobody to wait for."""
