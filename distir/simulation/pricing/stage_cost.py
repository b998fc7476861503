"""A stage: its blocks before they are priced, and what its actions take and hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from distir.arrays import Indices
from distir.plan import BlockProgram
from distir.plan.passes import BlockPasses, is_reversed
from distir.schedules import COST_KINDS
from distir.simulation.pricing.chains import PassCost
from distir.simulation.pricing.memory import MemoryEffect
from distir.simulation.pricing.repeats import Run
from distir.simulation.pricing.state import StateBytes
from distir.simulation.pricing.tied import Elsewhere

Charged = tuple[BlockProgram, Elsewhere]
"""A block, and what of it is charged elsewhere."""


@dataclass(frozen=True, slots=True)
class StepEnd:
    """What follows a block's last backward pass. `services` are seconds on the gradient stream by
    the kind of that pass, and `along` the mesh axis of the last collective there, if there is
    one."""

    services: Mapping[int, float]
    along: Mapping[int, str | None]
    optimizer_seconds: float
    refresh_seconds: float
    state: StateBytes


@dataclass(frozen=True, slots=True)
class UnpricedStage:
    """A chain of blocks as runs, each block with its passes and with what follows the last of them;
    effects of its actions on memory, and what it sends. `places`: see `BlockChain`."""

    runs: Sequence[Run[tuple[BlockPasses, StepEnd]]]
    memory: tuple[MemoryEffect, ...]
    sent_forward_bytes: float
    sent_backward_bytes: float
    places: Indices | None

    def ordered(self, kind: int) -> Sequence[Run[tuple[BlockPasses, StepEnd]]]:
        """Its blocks in the order in which a kind of action visits them."""
        if not is_reversed(kind):
            return self.runs
        return [(word[::-1], count) for word, count in reversed(self.runs)]


@dataclass(frozen=True, slots=True)
class Settling:
    """Gradients that become complete during the last action of a stage: `done` is when they are
    settled, from the start of the action, if the gradient stream is idle till then; `seconds` that
    takes of this stream; and the last of it is along `along`."""

    done: float
    seconds: float
    along: str | None


@dataclass(frozen=True, slots=True)
class StageCost:
    """What a stage's actions take and hold, by kind of action: the two parts of the backward pass
    only where the schedule has them. `settling` is by the kind of the last action."""

    passes: tuple[PassCost, ...]
    memory: tuple[MemoryEffect, ...]
    settling: Mapping[int, Settling]
    optimizer: float
    refresh: float
    state: StateBytes
    sent_forward_bytes: float
    sent_backward_bytes: float


def action_seconds(stages: Sequence[StageCost]) -> list[float]:
    """What actions take, by `stage · COST_KINDS + kind`."""
    found = [0.0] * (len(stages) * COST_KINDS)
    for stage, cost in enumerate(stages):
        for kind, each in enumerate(cost.passes):
            found[stage * COST_KINDS + kind] = each.seconds
    return found


__all__ = ["Charged", "Settling", "StageCost", "StepEnd", "UnpricedStage", "action_seconds"]
