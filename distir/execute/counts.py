"""What the executor counts and measures while it runs: FLOPs, bytes sent, memory held."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from distir.schedules import Action

BETWEEN_RANKS = ("pp",)
"""In place of mesh axes: the all-reduce of gradients of a parameter that several ranks hold."""


@dataclass(slots=True)
class Counts:
    """What one device of a stage computed and sent in a step.

    `collective_bytes[kind of collective, mesh axes]` are bytes of the full tensors that took part,
    as the cost model counts them. `sent_bytes` and `received_bytes` are per neighbouring stage.
    """

    flops: float = 0.0
    collective_bytes: dict[tuple[str, tuple[str, ...]], float] = field(
        default_factory=dict[tuple[str, tuple[str, ...]], float]
    )
    sent_bytes: dict[int, float] = field(default_factory=dict[int, float])
    received_bytes: dict[int, float] = field(default_factory=dict[int, float])

    def add_collective(self, kind: str, mesh_axes: tuple[str, ...], size_bytes: float) -> None:
        """Counts one collective."""
        key = (kind, mesh_axes)
        self.collective_bytes[key] = self.collective_bytes.get(key, 0.0) + size_bytes

    def add_sent(self, stage: int, size_bytes: float) -> None:
        """Counts one message to a stage."""
        self.sent_bytes[stage] = self.sent_bytes.get(stage, 0.0) + size_bytes

    def add_received(self, stage: int, size_bytes: float) -> None:
        """Counts one message from a stage."""
        self.received_bytes[stage] = self.received_bytes.get(stage, 0.0) + size_bytes


@dataclass(frozen=True, slots=True)
class ActionMemory:
    """Bytes of activations on a device before, during (at most) and after an action of its rank;
    and during the action, at most, those on its host."""

    action: Action
    before: float
    peak: float
    after: float
    on_host: float = 0.0


@dataclass(frozen=True, slots=True)
class StageMemory:
    """Bytes that a device of a stage holds for the whole step: of parameters, gradients, optimizer
    state, and inputs that one step leaves for the next; and those that it has on its host."""

    parameters: float
    gradients: float
    optimizer: float
    inputs: float
    host: float = 0.0

    @property
    def total(self) -> float:
        """Bytes of all of these on the device."""
        return self.parameters + self.gradients + self.optimizer + self.inputs


RankStage = tuple[int, int]
"""(rank, stage): a rank may hold several stages, and several ranks may hold one stage."""


@dataclass(frozen=True, slots=True)
class StepMeasurements:
    """What was counted in a step, for one device of each stage on each rank. `memory[rank]` is the
    memory of activations, action by action."""

    counts: Mapping[RankStage, Counts]
    state: Mapping[RankStage, StageMemory]
    memory: tuple[tuple[ActionMemory, ...], ...]

    def state_of(self, rank: int) -> float:
        """Bytes that a device of a rank holds for the whole step, over all its stages."""
        return sum(state.total for (other, _), state in self.state.items() if other == rank)

    def host_of(self, rank: int) -> float:
        """Bytes that a device of a rank has in the memory of its host at most, over all its
        stages."""
        rests = sum(state.host for (other, _), state in self.state.items() if other == rank)
        return rests + max((each.on_host for each in self.memory[rank]), default=0.0)

    @property
    def peaks(self) -> tuple[float, ...]:
        """Per rank, the most bytes that one of its devices held at a time."""
        return tuple(
            self.state_of(rank) + max((each.peak for each in actions), default=0.0)
            for rank, actions in enumerate(self.memory)
        )
