"""Where the time and the memory of a simulated plan go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from autotune.problem import Problem
from distir.metrics import reserved_memory_bytes
from distir.strategy import Strategy


class StageShares(Protocol):
    """The part of a stage's report that is shown."""

    @property
    def seconds(self) -> Mapping[str, float]: ...
    @property
    def memory(self) -> Mapping[str, float]: ...


@dataclass(frozen=True, slots=True)
class Breakdown:
    """A plan's time by kind, averaged over stages, and the memory of its fullest stage by what
    holds it.
    """

    strategy: Strategy
    feasible: bool
    seconds: Mapping[str, float]
    memory: Mapping[str, float]
    fullest_stage: int
    reserved_bytes: float
    """Memory that the software reserves beside tensors."""

    @property
    def total_seconds(self) -> float:
        """The iteration."""
        return sum(self.seconds.values())

    @property
    def total_bytes(self) -> float:
        """The peak of the fullest stage."""
        return sum(self.memory.values())

    @property
    def needed_bytes(self) -> float:
        """Memory that a device must have."""
        return self.total_bytes + self.reserved_bytes


def breakdown(problem: Problem, strategy: Strategy) -> Breakdown:
    """Simulates `strategy` and sums up its stages."""
    result = problem.simulator.simulate(strategy)
    stages = cast(Sequence[StageShares], cast(Any, result).stages)
    fullest = max(range(len(stages)), key=lambda index: sum(stages[index].memory.values()))
    return Breakdown(
        strategy=strategy,
        feasible=result.feasible,
        seconds=_averaged([stage.seconds for stage in stages]),
        memory=dict(stages[fullest].memory),
        fullest_stage=fullest,
        reserved_bytes=result.metrics.get(reserved_memory_bytes.name, 0.0),
    )


def _averaged(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: sum(part.get(name, 0.0) for part in parts) / len(parts) for name in names}
