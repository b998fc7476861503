"""The default objective: what the simulator predicts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from autotune.objectives.evaluation import Evaluation
from autotune.objectives.objective import Objective
from distir.metrics import METRICS, Metric, peak_memory_bytes, reserved_memory_bytes
from distir.strategy import Strategy

if TYPE_CHECKING:
    from autotune.objectives.columns import Evaluations, Flags, MetricColumn


class Simulation(Protocol):
    """The part of `distir.SimulationResult` that an evaluation is made of."""

    @property
    def feasible(self) -> bool: ...
    @property
    def reason(self) -> str | None: ...
    @property
    def metrics(self) -> Mapping[str, float]: ...


class Simulations(Protocol):
    """The part of `distir.SimulationTable` that evaluations are made of."""

    @property
    def metrics(self) -> Mapping[str, MetricColumn]: ...
    @property
    def feasible(self) -> Flags: ...
    @property
    def invalid(self) -> Mapping[int, str]: ...


class Simulates(Protocol):
    """The methods of `distir.Simulator` that an objective uses."""

    def simulate(self, strategy: Strategy) -> Simulation: ...
    def simulate_many(self, strategies: Sequence[Strategy]) -> Simulations: ...


def needed_bytes(metrics: Mapping[str, Any]) -> Any:
    """Memory that the fullest device must have, with what the software reserves: a number, or a
    column of them."""
    return metrics.get(peak_memory_bytes.name, 0.0) + metrics.get(reserved_memory_bytes.name, 0.0)


def simulated(simulator: Simulates, memory_bytes: float) -> Callable[[Strategy], Evaluation]:
    """Evaluates strategies by `simulator` on devices with `memory_bytes` of memory each."""

    def simulate(strategy: Strategy) -> Evaluation:
        result = simulator.simulate(strategy)
        if result.feasible:
            return Evaluation(result.metrics)
        excess = needed_bytes(result.metrics) / memory_bytes - 1
        return Evaluation(
            result.metrics,
            feasible=False,
            reason=result.reason,
            violation=excess if excess > 0 else 1.0,
        )

    return simulate


def simulated_many(
    simulator: Simulates, memory_bytes: float
) -> Callable[[Sequence[Strategy]], Evaluations]:
    """Array version of `simulated`: evaluates many strategies at once, without the reasons why
    plans do not fit."""
    import numpy as np

    from autotune.objectives.columns import Evaluations

    def simulate_many(strategies: Sequence[Strategy]) -> Evaluations:
        table = simulator.simulate_many(strategies)
        failed = np.zeros(len(strategies), np.bool_)
        failed[list(table.invalid)] = True
        excess = needed_bytes(table.metrics) / memory_bytes - 1
        violation = np.where(excess > 0, excess, 1.0)
        violation[table.feasible] = 0.0
        return Evaluations(table.metrics, table.feasible, failed, violation, table.invalid)

    return simulate_many


def simulator_objective(
    metric: Metric,
    simulate: Callable[[Strategy], Evaluation],
    many: Callable[[Sequence[Strategy]], Evaluations] | None = None,
) -> Objective:
    """A metric as the objective over the simulator."""
    return Objective(metric.objective, simulate, metric.name, cheap=True, many=many, trusted=True)


def simulated_objectives() -> dict[str, str]:
    """Every metric as an objective: its name, and what is made large or small."""
    return {
        each.value.objective: f"{each.summary.rstrip('.')} ({each.value.direction}d)"
        for each in METRICS
    }
