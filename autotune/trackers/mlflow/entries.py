"""Which trials get runs of their own, and what is recorded of trials and problems, as MLflow takes
it."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

from autotune.objectives.evaluation import finite
from autotune.objectives.objective import Objective
from autotune.study.trial import Trial, best_of_layouts, pareto_front
from autotune.trackers.study_pages import problem_key, readable
from autotune.trackers.tracker import StudyHeader
from distir.metrics import find_metric

FEW_TRIALS = 200
"""Most trials of a study that each get a run of their own."""


def noteworthy(trials: Sequence[Trial]) -> list[Trial]:
    """The trials that get runs of their own: the best, the Pareto front with memory, and the best
    of each layout, in the order tried."""
    chosen = {each.number: each for each in [*best_of_layouts(trials), *pareto_front(trials)]}
    return [chosen[number] for number in sorted(chosen)][:FEW_TRIALS]


def shown_metrics(trial: Trial, objective: Objective) -> list[tuple[str, float]]:
    """Metrics to record. Infeasible trials go without what would sort them on top: the
    objective and speeds.
    """
    shown = {
        name: value
        for name, value in trial.evaluation.metrics.items()
        if finite(value) and (trial.feasible or not (name == objective.metric or _is_timed(name)))
    }
    return list((shown | readable(shown)).items())


def _is_timed(metric: str) -> bool:
    known = find_metric(metric)
    return known is not None and known.timed


def improves(trial: Trial, best_cost: float | None) -> bool:
    """Whether a trial is better than what costs this much, the best so far."""
    usable = trial.feasible and trial.cost is not None
    return usable and (best_cost is None or (trial.cost or 0.0) < best_cost)


def metric_at(name: str, value: float, trial: Trial) -> Any:
    """A number at a trial: at its end, and its number is the step."""
    from mlflow.entities import Metric

    ended = int((trial.started + trial.seconds) * 1000)
    return Metric(name, value, ended, trial.number)


def problem_input(header: StudyHeader) -> Any:
    """The problem as the dataset of a study: the same for all studies of it."""
    from mlflow.entities import Dataset, DatasetInput

    problem = header.problem
    source = json.dumps({"model": problem.model, "cluster": problem.cluster})
    profile = {
        "devices": problem.devices,
        "batch_size": problem.batch_size,
        "mode": problem.mode,
        "space": problem.space_name,
        "strategies": problem.space.count(),
    }
    made = Dataset(
        name=problem.title[:500],
        digest=problem_key(header),
        source_type="code",
        source=source,
        profile=json.dumps(profile),
    )
    return DatasetInput(dataset=made)


def metric_at_begin(name: str, value: float) -> Any:
    """A number of a whole study, which charts show as a bar beside those of others."""
    from mlflow.entities import Metric

    return Metric(name, value, int(time.time() * 1000), 0)
