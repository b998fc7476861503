"""What a tracker is: it is told what happens in a study, and never stops it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from autotune.objectives.objective import Objective
from autotune.problem import Problem
from autotune.result import TrackingRecord, TuneResult
from autotune.trial import Trial


@dataclass(frozen=True, slots=True)
class StudyHeader:
    """Facts about a study before it starts."""

    problem: Problem
    objective: Objective
    sampler: str
    seed: int
    budget: int


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
