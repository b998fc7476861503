"""A closed-form stand-in for a workload and its simulator: quick, and independent of any model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import numpy as np

from autotune.objectives.columns import Flags, MetricColumn
from autotune.problem import Problem
from distir.errors import DistirError, StrategyError
from distir.strategy import CP_EXCHANGES, Strategy
from search_spaces import SearchSpace, SpaceSource, distribution_space, searched


@dataclass(frozen=True)
class ToyWorkload:
    """The facts that a search space needs."""

    batch_size: int = 256
    num_blocks: int = 12
    internal_axes: tuple[tuple[str, int], ...] = (("heads", 12), ("ffn", 3072))
    mode: str = "training"
    sequence_lengths: tuple[int, ...] = (1024,)
    expert_axes: tuple[tuple[str, int], ...] = ()

    @property
    def num_layers(self) -> int:
        """Blocks that repeat: all."""
        return self.num_blocks

    @property
    def inner_axes(self) -> dict[str, int]:
        """No axis has another inside."""
        return {}

    @property
    def cp_exchanges(self) -> tuple[str, ...]:
        """Every one."""
        return CP_EXCHANGES

    def explain_lists(self, strategy: Strategy) -> str | None:
        """Any list will do."""
        return None


@dataclass(frozen=True)
class ToyStage:
    """One stage's time by kind and memory by holder."""

    seconds: dict[str, float]
    memory: dict[str, float]


@dataclass(frozen=True)
class ToyResult:
    """A simulation's answer."""

    strategy: Strategy
    metrics: dict[str, float]
    feasible: bool = True
    reason: str | None = None
    stages: tuple[ToyStage, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As the simulator's own result prints itself."""
        return {**asdict(self), "strategy": self.strategy.to_dict()}


@dataclass(frozen=True)
class ToyTable:
    """The answers to many."""

    metrics: dict[str, MetricColumn]
    feasible: Flags
    invalid: dict[int, str] = field(default_factory=dict[int, str])


@dataclass
class ToySimulator:
    """Compute, collectives, bubble and memory of an invented transformer in a few lines."""

    workload: ToyWorkload = field(default_factory=ToyWorkload)
    devices: int = 16
    memory_bytes: float = 40e9
    parameters: float = 3e9
    flops_per_sample: float = 2e13
    calls: int = 0

    def simulate(self, strategy: Strategy) -> ToyResult:
        self.calls += 1
        s = strategy
        if s.devices != self.devices:
            raise StrategyError(f"{s.label} uses {s.devices} devices of {self.devices}")
        sample = self.flops_per_sample * self.workload.batch_size / 1e14 / self.devices
        micro = self.workload.batch_size / s.dp / s.microbatches
        compute = sample * (1 + 0.15 / micro + 0.02 * (s.tp - 1))
        bubble = compute * (s.pp - 1) / s.microbatches
        tp_link = 2e11 if s.tp <= 8 else 2e10
        tp = (
            0.0
            if s.tp == 1
            else 6e7 * self.workload.batch_size / s.dp * (s.tp - 1) / s.tp / tp_link
        )
        dp = 2 * self.parameters * 2 / s.tp / s.pp * (s.dp - 1) / s.dp / 1e11
        seconds = compute + bubble + tp + dp + 1e-3 * s.microbatches
        in_flight = s.microbatches if s.schedule == "gpipe" else min(s.microbatches, s.pp)
        states = 18 * self.parameters / s.tp / s.pp
        activations = 2e9 * micro * in_flight / s.tp / s.pp
        memory = states + activations
        fits = memory <= self.memory_bytes
        reason = f"stage 0 needs {memory / 2**30:.1f} of {self.memory_bytes / 2**30:.1f} GiB"
        metrics = {
            "iteration_seconds": seconds,
            "throughput_samples_per_second": self.workload.batch_size / seconds,
            "peak_memory_bytes": memory,
            "bubble_fraction": bubble / seconds,
            "communication_fraction": (tp + dp) / seconds,
        }
        stage = ToyStage(
            {
                "compute": compute,
                "tp_communication": tp,
                "dp_communication": dp,
                "bubble": bubble,
                "overhead": 1e-3 * s.microbatches,
            },
            {"optimizer_bytes": states, "activations_bytes": activations},
        )
        return ToyResult(s, metrics, fits, None if fits else reason, (stage,) * s.pp)

    def simulate_many(self, strategies: Sequence[Strategy]) -> ToyTable:
        """One by one."""
        results = [self.simulate(strategy) for strategy in strategies]
        names = results[0].metrics if results else ()
        return ToyTable(
            {name: np.array([each.metrics[name] for each in results]) for name in names},
            np.array([each.feasible for each in results], np.bool_),
        )

    def trace(self, strategy: Strategy) -> dict[str, Any]:
        """A trace with one event."""
        return {"traceEvents": [{"name": strategy.label, "ph": "X", "ts": 0, "dur": 1}]}


def toy_problem(simulator: ToySimulator | None = None, *, space: SpaceSource = "small") -> Problem:
    """The problem that a toy simulator answers."""
    simulator = simulator or ToySimulator()
    workload = simulator.workload

    def changed(**changes: Any) -> Problem:
        other = changes.pop("space", space)
        unknown = changes.keys() - {each.name for each in fields(simulator)}
        if unknown:
            raise DistirError(f"toys have no {', '.join(sorted(unknown))}")
        return toy_problem(replace(simulator, **changes), space=other)

    return Problem(
        model="toy",
        cluster="toy-cluster",
        devices=simulator.devices,
        mode=workload.mode,
        batch_size=workload.batch_size,
        workload=workload,
        space=distribution_space(workload, simulator.devices, space),
        space_name=searched(space).name,
        searched=searched(space),
        simulator=simulator,
        memory_bytes=simulator.memory_bytes,
        changed=changed,
    )


def toy_space(devices: int = 8, workload: ToyWorkload | None = None) -> SearchSpace:
    """A space of some dozens of strategies."""
    small = ToyWorkload(batch_size=64, num_blocks=6)
    return distribution_space(workload or small, devices)


def toy_cost(strategy: Strategy) -> float:
    """A smooth invented cost with its least value inside the space."""
    bubble = (strategy.pp - 1) / strategy.microbatches
    work = 0.1 * abs(strategy.tp - 2) + 0.02 * strategy.dp + 0.01 * strategy.microbatches
    return 1.0 + bubble + work
