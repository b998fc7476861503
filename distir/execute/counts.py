"""What the executor counts while it runs, per device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from distir.schedules import Action

BETWEEN_RANKS = ("pp",)
"""Stands for the mesh axes where gradients of parameters that several ranks hold are added."""


@dataclass(slots=True)
class Counts:
    """What one device of a stage computed and sent in a step.

    `collective_bytes` is per kind and mesh axes, in the measure that costs are given in: the bytes
    of the full tensor that takes part. `sent_bytes`, `received_bytes` are per neighbouring stage.
    """

    flops: float = 0.0
    collective_bytes: dict[tuple[str, tuple[str, ...]], float] = field(
        default_factory=dict[tuple[str, tuple[str, ...]], float]
    )
    sent_bytes: dict[int, float] = field(default_factory=dict[int, float])
    received_bytes: dict[int, float] = field(default_factory=dict[int, float])

    def add_collective(self, kind: str, mesh_axes: tuple[str, ...], size_bytes: float) -> None:
        """One more collective."""
        key = (kind, mesh_axes)
        self.collective_bytes[key] = self.collective_bytes.get(key, 0.0) + size_bytes

    def add_sent(self, stage: int, size_bytes: float) -> None:
        """One more message to a stage."""
        self.sent_bytes[stage] = self.sent_bytes.get(stage, 0.0) + size_bytes

    def add_received(self, stage: int, size_bytes: float) -> None:
        """One more message from a stage."""
        self.received_bytes[stage] = self.received_bytes.get(stage, 0.0) + size_bytes


@dataclass(frozen=True, slots=True)
class ActionMemory:
    """Bytes of activations on a device around one action of its rank."""

    action: Action
    before: float
    peak: float
    after: float


@dataclass(frozen=True, slots=True)
class StageMemory:
    """Bytes that a device of a stage holds for the whole step."""

    parameters: float
    gradients: float
    optimizer: float

    @property
    def total(self) -> float:
        """All of it."""
        return self.parameters + self.gradients + self.optimizer


Place = tuple[int, int]
"""Rank and stage: a rank may hold several stages, and a stage live on several ranks."""


@dataclass(frozen=True, slots=True)
class Measured:
    """All that was counted, per place; memory of activations per rank, action by action."""

    counts: Mapping[Place, Counts]
    state: Mapping[Place, StageMemory]
    memory: tuple[tuple[ActionMemory, ...], ...]

    def state_of(self, rank: int) -> float:
        """Bytes that a device of a rank holds for the whole step."""
        return sum(state.total for (other, _), state in self.state.items() if other == rank)

    @property
    def peaks(self) -> tuple[float, ...]:
        """Per rank the most bytes that one of its devices held."""
        return tuple(
            self.state_of(rank) + max((each.peak for each in actions), default=0.0)
            for rank, actions in enumerate(self.memory)
        )
