"""What a search found, for people, notebooks and scripts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from autotune.grid import Grid
from autotune.objectives.objective import Objective
from autotune.problem import Problem
from autotune.rendering import Shown
from autotune.trial import Trial, best_of, best_of_layouts, closest_of, ranked
from distir.metrics import find_metric


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
    interrupted: bool = False
    """Whether recording was interrupted."""

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        record = {
            "tracking_uri": self.tracking_uri,
            "experiment": self.experiment,
            "run_id": self.run_id,
        }
        return record | ({"error": self.error} if self.error else {})


@dataclass(frozen=True)
class TuneResult(Shown):
    """The trials of a study, the best of them, and the comparison with the grid.

    In a notebook it shows itself as a table; `trials`, `best` and `grid` are there for more.
    """

    problem: Problem
    objective: Objective
    sampler: str
    seed: int
    trials: list[Trial]
    seconds: float
    """Wall time of the search, without the grid."""
    grid: Grid | None = None
    repeats: int = 0
    """Suggestions of the sampler that were answered from memory."""
    interrupted: bool = False
    """Whether the search, or the comparison with the grid, was interrupted."""
    error: str | None = None
    """What ended the search early, if the sampler failed."""
    tracking: TrackingRecord | None = None

    @cached_property
    def best(self) -> Trial | None:
        """The best feasible trial; `None` if there was none."""
        return best_of(self.trials)

    @cached_property
    def closest(self) -> Trial | None:
        """The infeasible trial that misses by least, of the grid where there is one."""
        return self.grid.closest if self.grid else closest_of(self.trials)

    @cached_property
    def ranked(self) -> list[Trial]:
        """Feasible trials, best first."""
        return ranked(self.trials)

    @property
    def as_good(self) -> int | None:
        """How many other feasible trials differ from the best by less than two like runs do; None
        where the metric is no time or rate that a simulator predicts."""
        band, best = self.problem.band, self.best
        metric = self.objective.metric
        simulated = find_metric(metric) if self.objective.cheap else None
        if band is None or best is None or simulated is None or not simulated.timed:
            return None
        first = best.metric(metric)
        values = [trial.metric(metric) for trial in self.ranked[1:]]
        return sum(bool(first and v and not band.separates(first, v)) for v in values)

    @property
    def layouts(self) -> Sequence[Trial]:
        """The best of each layout, best first, of the grid where there is one."""
        return self.grid.layouts if self.grid else best_of_layouts(self.trials)

    @property
    def regret(self) -> float | None:
        """The fraction lost against the grid's best, 0 when it was found; `None` without a grid."""
        return self.grid.regret(self.best) if self.grid else None

    def to_dict(self) -> dict[str, Any]:
        """The result as plain JSON values."""
        batch = self.problem.batch_size
        return {
            "model": self.problem.model,
            "cluster": self.problem.cluster,
            "devices": self.problem.devices,
            "mode": self.problem.mode,
            "batch_size": batch,
            "settings": self.problem.settings,
            "objective": self.objective.name,
            "metric": self.objective.metric,
            "direction": "maximize" if self.objective.maximize else "minimize",
            "sampler": self.sampler,
            "seed": self.seed,
            "space": self.problem.space_name,
            "space_size": self.problem.space.count(),
            "seconds": self.seconds,
            "interrupted": self.interrupted,
            "trials": [trial.to_dict(batch) for trial in self.trials],
            "best": self.best.outcome(batch) if self.best else None,
            "as_good": self.as_good,
            "grid": self.grid.summary(self.best, batch) if self.grid else None,
            **({"error": self.error} if self.error else {}),
            "mlflow": self.tracking.to_dict() if self.tracking else None,
        }

    def to_frame(self) -> Any:
        """The trials as a pandas DataFrame, one row each."""
        import pandas as pd  # pyright: ignore[reportMissingTypeStubs]

        return pd.DataFrame([flat_row(trial, self.problem.batch_size) for trial in self.trials])


def flat_row(trial: Trial, batch_size: int) -> dict[str, Any]:
    """A trial as one flat row of a table."""
    plain = trial.to_dict(batch_size)
    return {
        "number": trial.number,
        **plain["strategy"],
        "state": trial.state,
        "reason": trial.evaluation.reason,
        **plain["metrics"],
        "seconds": trial.seconds,
    }
