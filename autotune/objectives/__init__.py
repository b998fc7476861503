"""Objectives: what a search makes large or small.

Built in are `throughput`, `latency` and `memory` over the simulator. A plug-in is any callable
`objective(strategy) -> float | dict | Evaluation`, named as `module:attribute`, as
`file.py:attribute`, or by an entry point in the group `autotune.objectives`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from autotune.objectives.evaluation import Evaluation
from autotune.objectives.objective import Objective, ObjectiveFunction, as_objective
from autotune.objectives.simulator import simulated, simulator_objective
from autotune.plugins import load_plugin
from distir.registry import Registry
from distir.strategy import Strategy

if TYPE_CHECKING:
    from autotune.objectives.columns import Evaluations

__all__ = [
    "OBJECTIVES",
    "OBJECTIVE_GROUP",
    "Evaluation",
    "Objective",
    "ObjectiveFunction",
    "as_objective",
    "load_objective",
    "simulated",
]

OBJECTIVE_GROUP = "autotune.objectives"
"""Entry-point group of plug-in objectives."""

OBJECTIVES: Registry[str] = Registry("objective")
"""The built-in objectives, each the name of a simulated one."""

OBJECTIVES.add("throughput", "throughput", "most samples per second (maximised)")
OBJECTIVES.add("latency", "latency", "shortest iteration, in seconds (minimised)")
OBJECTIVES.add("memory", "memory", "lowest peak memory of the fullest device (minimised)")


def load_objective(
    spec: str | Objective | ObjectiveFunction,
    simulate: Callable[[Strategy], Evaluation],
    *,
    metric: str | None = None,
    direction: str | None = None,
    simulate_many: Callable[[Sequence[Strategy]], Evaluations] | None = None,
) -> Objective:
    """A built-in objective by name, a plug-in by its address, or a callable as it is."""
    if not isinstance(spec, str):
        name = getattr(spec, "name", None) or getattr(spec, "__name__", type(spec).__name__)
        return as_objective(spec, str(name), simulate=simulate, metric=metric, direction=direction)
    if spec in OBJECTIVES:
        objective = simulator_objective(OBJECTIVES.get(spec), simulate, simulate_many)
        objective.metric = metric or objective.metric
        objective.direction = direction or objective.direction
        return objective
    plugin = load_plugin(spec, kind="objective", group=OBJECTIVE_GROUP, known=OBJECTIVES.names())
    return as_objective(plugin, spec, simulate=simulate, metric=metric, direction=direction)
