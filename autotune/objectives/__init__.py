"""Objectives: what a search makes large or small.

Every metric of the simulator (`distir.metrics`) is one by its name, or by another name that it
states: `throughput`, `latency` and `memory`. `measured` is what real processes take. A plug-in is
any callable `objective(strategy) -> float | dict | Evaluation`, named as `module:attribute`, as
`file.py:attribute`, or by an entry point in the group `autotune.objectives`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from autotune.objectives.evaluation import Evaluation
from autotune.objectives.measured import MEASURED, SUMMARY, measured_objective
from autotune.objectives.objective import Objective, ObjectiveFunction, as_objective
from autotune.objectives.simulator import simulated, simulated_objectives, simulator_objective
from autotune.plugins import load_plugin
from distir.metrics import find_metric
from distir.strategy import Strategy

if TYPE_CHECKING:
    from autotune.objectives.columns import Evaluations
    from distir.plan import Plan

__all__ = [
    "OBJECTIVE_GROUP",
    "Evaluation",
    "Objective",
    "ObjectiveFunction",
    "as_objective",
    "load_objective",
    "simulated",
    "simulated_objectives",
]

OBJECTIVE_GROUP = "autotune.objectives"
"""Entry-point group of plug-in objectives."""


def load_objective(
    spec: str | Objective | ObjectiveFunction,
    simulate: Callable[[Strategy], Evaluation],
    *,
    metric: str | None = None,
    direction: str | None = None,
    simulate_many: Callable[[Sequence[Strategy]], Evaluations] | None = None,
    plan_of: Callable[[Strategy], Plan] | None = None,
) -> Objective:
    """A simulated metric by name, a plug-in by its address, or a callable as it is; `measured` if
    `plan_of` makes plans that can be run."""
    if not isinstance(spec, str):
        name = getattr(spec, "name", None) or getattr(spec, "__name__", type(spec).__name__)
        return as_objective(spec, str(name), simulate=simulate, metric=metric, direction=direction)
    known = find_metric(spec)
    if known is not None:
        # Another metric has its own direction; one that distir does not know is left to be found.
        other = known if metric is None else find_metric(metric)
        objective = simulator_objective(other or known, simulate, simulate_many)
        if other is None and metric is not None:
            objective.metric = metric
        objective.direction = direction or objective.direction
        return objective
    if spec == MEASURED and plan_of is not None:
        objective = measured_objective(plan_of)
        objective.metric = metric or objective.metric
        objective.direction = direction or objective.direction
        return objective
    names = {**simulated_objectives(), MEASURED: SUMMARY}
    plugin = load_plugin(spec, kind="objective", group=OBJECTIVE_GROUP, known=names)
    return as_objective(plugin, spec, simulate=simulate, metric=metric, direction=direction)
