"""What a tracker is: it is told what happens in a study, and never stops it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from autotune.objectives.objective import Objective
from autotune.problem import Problem
from autotune.result import TrackingRecord, TuneResult
from autotune.study.trial import Trial


class StudyMemory(Protocol):
    """What a study on a storage remembers from one process that works on it to the next. All raise
    `LedgerError` if the storage fails."""

    @property
    def key(self) -> str:
        """Tells the study from all others."""
        ...

    @property
    def me(self) -> dict[str, Any]:
        """This process, as plain JSON values."""
        ...

    def recall(self, name: str) -> Any:
        """What was remembered; None if nothing was."""
        ...

    def remember(self, name: str, value: Any) -> None:
        """Keeps a plain JSON value."""
        ...

    def lives(self, worker: dict[str, Any]) -> bool:
        """Whether a process that was `me` is still there."""
        ...


@dataclass(frozen=True, slots=True)
class StudyHeader:
    """Facts about a study before it starts."""

    problem: Problem
    objective: Objective
    sampler: str
    seed: int
    budget: int
    memory: StudyMemory | None = None
    """None of a study that ends with its process."""


class Tracker(Protocol):
    """Records a study. None of its methods raises: a failure is told by the record that
    `finish` returns.
    """

    def start(self, header: StudyHeader) -> None:
        """A study begins."""
        ...

    def log(self, trial: Trial) -> None:
        """A trial has ended."""
        ...

    def finish(self, result: TuneResult) -> TrackingRecord | None:
        """The study has ended; returns when everything is recorded."""
        ...


class NullTracker:
    """Records nothing."""

    def start(self, header: StudyHeader) -> None:
        """Does nothing."""

    def log(self, trial: Trial) -> None:
        """Does nothing."""

    def finish(self, result: TuneResult) -> TrackingRecord | None:
        """Does nothing."""
        return None
