"""The default objective: what the simulator predicts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from autotune.objectives.evaluation import Evaluation
from autotune.objectives.objective import Objective
from distir.strategy import Strategy


class Simulation(Protocol):
    """The part of `distir.SimulationResult` that an evaluation is made of."""

    @property
    def feasible(self) -> bool: ...
    @property
    def reason(self) -> str | None: ...
    @property
    def metrics(self) -> Mapping[str, float]: ...


class Simulates(Protocol):
    """What is asked of `distir.Simulator`."""

    def simulate(self, strategy: Strategy) -> Simulation: ...


METRICS = {
    "throughput": "throughput_samples_per_second",
    "latency": "iteration_seconds",
    "memory": "peak_memory_bytes",
}
"""Simulated metric by name of objective."""


def simulated(simulator: Simulates, memory_bytes: float) -> Callable[[Strategy], Evaluation]:
    """Evaluates strategies by `simulator` on devices with `memory_bytes` of memory each."""

    def simulate(strategy: Strategy) -> Evaluation:
        result = simulator.simulate(strategy)
        if result.feasible:
            return Evaluation(result.metrics)
        excess = result.metrics.get("peak_memory_bytes", 0.0) / memory_bytes - 1
        return Evaluation(
            result.metrics,
            feasible=False,
            reason=result.reason,
            violation=excess if excess > 0 else 1.0,
        )

    return simulate


def simulator_objective(name: str, simulate: Callable[[Strategy], Evaluation]) -> Objective:
    """The objective `throughput`, `latency` or `memory` over the simulator."""
    return Objective(name=name, function=simulate, metric=METRICS[name], cheap=True)
