"""The cost of a stage: seconds of its actions and bytes that they hold, and what is priced for it.

`stage_table.py` has the costs of many stages as arrays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from distir.arrays import Indices
from distir.plan import BlockProgram
from distir.schedules import COST_KINDS, FORWARD
from distir.simulation.pricing.chains import BlockChain, PassCost, PassPattern
from distir.simulation.pricing.memory import MemoryEffect, Turns
from distir.simulation.pricing.repeats import Count, copies_in
from distir.simulation.pricing.state import StateBytes
from distir.simulation.pricing.tied import ChargedElsewhere

ChargedBlock: TypeAlias = tuple[BlockProgram, ChargedElsewhere]
"""A block's program, and the parameters for which other blocks are charged."""


@dataclass(frozen=True, slots=True, eq=False)
class StepEnd:
    """What follows the last backward pass of a block, and the state bytes of the block. Compared by
    identity."""

    settling_seconds: Mapping[int, float]
    """By cost kind of the last backward pass: seconds on the gradient stream that settle the
    block's gradients."""
    settled_along: Mapping[int, str | None]
    """By cost kind of the last backward pass: the communication stream (`dp`, …) of the last
    collective that settles gradients; None if there is none."""
    optimizer_seconds: float
    refresh_seconds: float
    """Seconds in which stored parameters are made again from their updated parts."""
    refresh_host_seconds: float
    """Of these, seconds of copies between a device and its host."""
    state: StateBytes


@dataclass(frozen=True, slots=True)
class BlockPass:
    """What a pass of a block takes by itself, in seconds. What that of a stage takes is nearly
    bounded by sums of the last three over its blocks."""

    seconds: float
    stream_seconds: float
    """Until all streams are free if launches take no time."""
    launch_seconds: float
    """In which the host launches."""
    link_seconds: float
    """In which parameters are gathered and gradients are shared out."""


@dataclass(frozen=True, slots=True, eq=False)
class ActionPattern:
    """A pattern of blocks as actions of one cost kind visit them. Compared by identity."""

    passes: PassPattern
    ends: tuple[StepEnd, ...]
    """What follows the last backward passes of these blocks, in actions that may be the last."""


@dataclass(frozen=True, slots=True)
class UnpricedStage:
    """A stage, or several stages with the same patterns, before it is priced."""

    actions: Mapping[int, Sequence[tuple[ActionPattern, Count]]]
    """By cost kind, the stage's blocks as repeated patterns in the order in which actions visit
    them."""
    ends: Sequence[tuple[StepEnd, Count]]
    """What follows the last backward passes of the blocks, each as often as it does."""
    memory: Mapping[int, Turns]
    """By cost kind, what actions hold in turn; empty if nothing is said of memory."""
    first: BlockProgram
    """The program of the first block, which sends to the stage before."""
    last: BlockProgram
    """The program of the last block, which sends to the stage behind."""
    size_numbers: Indices | None
    """See `BlockChain.size_numbers`."""
    acting: Mapping[int, Indices] = field(default_factory=dict[int, "Indices"])
    """By cost kind, which of several stages have such actions, if these are not all of them."""

    def chain(self, cost_kind: int) -> BlockChain:
        """The passes of actions of a cost kind, in the stages that have such actions."""
        which = self.acting.get(cost_kind)
        patterns = [
            (pattern.passes, copies_in(count, which)) for pattern, count in self.actions[cost_kind]
        ]
        sizes = self.size_numbers
        return BlockChain(patterns, sizes if sizes is None or which is None else sizes[which])

    def turns(self, cost_kind: int) -> Turns:
        """What is held in turn in actions of a cost kind, in the stages that have such actions."""
        effects, counts = self.memory[cost_kind]
        which = self.acting.get(cost_kind)
        return Turns(effects, [copies_in(count, which) for count in counts])

    @property
    def state(self) -> StateBytes:
        """The bytes of the stage's state, at all program sizes."""
        state = StateBytes()
        for end, count in self.ends:
            state = state.plus(end.state, count)
        return state


@dataclass(frozen=True, slots=True)
class OverlappedStages:
    """The blocks of two stages, of which one has a forward pass beside a backward pass of the
    other."""

    forward: tuple[BlockProgram, ...]
    backward: tuple[BlockProgram, ...]
    size_numbers: Indices | None = None
    """See `BlockChain.size_numbers`."""


@dataclass(frozen=True, slots=True)
class Settling:
    """How gradients that are complete with the last action of a stage are settled."""

    done: float
    """Seconds from the start of the action until they are settled, if the gradient stream is idle
    when the action starts."""
    seconds: float
    """Seconds that settling takes on the gradient stream, `scattering` included."""
    along: str | None
    """The communication stream of the last collective; None if there is none."""
    scattering: float = 0.0
    """Seconds of the gradient stream in which any action of the stage, the last or not, shares out
    gradients."""


@dataclass(frozen=True, slots=True)
class StageCost:
    """Seconds of a stage's actions, and the bytes that they hold.

    Passes and memory are by cost kind, of which there are those of a schedule's actions.
    """

    passes: Mapping[int, PassCost]
    memory: Mapping[int, MemoryEffect]
    settling: Mapping[int, Settling]
    """By cost kind of the last action."""
    optimizer: float
    """Seconds of the optimizer's step."""
    refresh: float
    """Seconds in which stored parameters are made again from their updated parts."""
    refresh_host: float
    """Of these, seconds of copies between a device and its host."""
    first_gather: float
    """Seconds in which the first block's parameters are gathered for a forward pass. An action
    gathers them for the next one; the first action of a step is charged for them."""
    first_gather_host: float
    """Of these, seconds of copies from the host."""
    state: StateBytes
    sent_forward_bytes: float
    sent_backward_bytes: float


def action_seconds(stages: Sequence[StageCost], pairs: Sequence[PassCost] = ()) -> list[float]:
    """Seconds of actions, by cost number `stage · COST_KINDS + cost kind`; those of overlapped
    pairs are behind those of stages (`schedules/compiled/costs.py`)."""
    seconds = [0.0] * ((len(stages) + len(pairs)) * COST_KINDS)
    for stage, cost in enumerate(stages):
        for cost_kind, each in cost.passes.items():
            seconds[stage * COST_KINDS + cost_kind] = each.seconds
    for number, pair in enumerate(pairs, start=len(stages)):
        seconds[number * COST_KINDS + FORWARD] = pair.seconds
    return seconds


__all__ = [
    "ActionPattern",
    "BlockPass",
    "ChargedBlock",
    "OverlappedStages",
    "Settling",
    "StageCost",
    "StepEnd",
    "UnpricedStage",
    "action_seconds",
]
