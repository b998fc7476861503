"""What a tracker is: it is told what happens in a study, and never stops it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from autotune.trial import Trial

if TYPE_CHECKING:
    from autotune.objectives.objective import Objective
    from autotune.problem import Problem
    from autotune.result import TuneResult


@dataclass(frozen=True, slots=True)
class StudyHeader:
    """What is known of a study before it starts."""

    problem: Problem
    objective: Objective
    sampler: str
    seed: int
    budget: int


@dataclass(frozen=True, slots=True)
class TrackingRecord:
    """Where a study was recorded."""

    tracking_uri: str
    experiment: str
    run_id: str | None = None
    experiment_id: str | None = None
    links: dict[str, str] = field(default_factory=dict[str, str])
    """Pages worth opening, by what they show."""
    command: str | None = None
    """The command that serves the pages."""
    error: str | None = None
    """What went wrong, if recording failed somewhere."""

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        record = {
            "tracking_uri": self.tracking_uri,
            "experiment": self.experiment,
            "run_id": self.run_id,
        }
        return record | ({"error": self.error} if self.error else {})


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
