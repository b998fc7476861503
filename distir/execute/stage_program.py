"""A stage as one flat program: its blocks one after the other, every value with a slot number.

Equal blocks share a program, and so its values. Here every value of every block has a slot of its
own; what one block hands to the next has the same slot in both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from distir.ir.core import Node, Value
from distir.ops.collective import Sharded
from distir.plan import BlockProgram
from distir.plan.passes import is_reversed, segments
from distir.schedules import BACKWARD, FORWARD, INPUT_PART, WEIGHT_PART
from distir.transforms.moves import Local


@dataclass(frozen=True, slots=True, eq=False)
class SlotInstruction:
    """A node with slots for operands and results. `root` is the slot whose memory a view shows;
    None if the op is not a view."""

    block: int
    node: Node
    operands: tuple[int, ...]
    results: tuple[int, ...]
    root: int | None


@dataclass(frozen=True, slots=True)
class FilledSlot:
    """A slot that is filled before the passes run: with a parameter (`parameter` is its place in
    the block's list), or with a free value (`parameter` is None)."""

    slot: int
    block: int
    local: Local
    parameter: int | None


@dataclass(frozen=True, slots=True)
class GradientSlot:
    """The slot of the gradient of a block's parameter (`parameter` is its place in the list)."""

    slot: int
    block: int
    parameter: int


@dataclass(frozen=True, slots=True)
class ResultSlot:
    """The slot of an output of the model, and its layout in the block that makes it."""

    slot: int
    block: int
    local: Local


@dataclass(frozen=True, slots=True, eq=False)
class StageProgram:
    """A stage's forward and backward pass, and the two parts of the backward pass if the schedule
    splits it.

    `readers[slot]` is the number of instructions that read a slot in the forward pass and the
    whole backward pass, plus one if the value leaves the stage; `readers_of_parts[slot]` counts the
    same for a backward pass in two parts. Sources are not counted: they are never dropped.
    """

    programs: tuple[BlockProgram, ...]
    forward: tuple[SlotInstruction, ...]
    backward: tuple[SlotInstruction, ...]
    input_part: tuple[SlotInstruction, ...]
    weight_part: tuple[SlotInstruction, ...]
    types: dict[int, Value]
    sources: tuple[FilledSlot, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    output_gradients: tuple[int, ...]
    input_gradients: tuple[int, ...]
    gradients: tuple[GradientSlot, ...]
    results: tuple[ResultSlot, ...]
    readers: Counter[int]
    readers_of_parts: Counter[int]

    @property
    def source_slots(self) -> frozenset[int]:
        """Slots that are filled before the passes run."""
        return frozenset(source.slot for source in self.sources)


def flatten(programs: Sequence[BlockProgram], splits_backward: bool = False) -> StageProgram:
    """The flat program of a stage with these blocks; with both parts of the backward pass only if
    the schedule `splits_backward`."""
    return _Flattening(tuple(programs)).run(splits_backward)


class _Flattening:
    def __init__(self, programs: tuple[BlockProgram, ...]) -> None:
        self.programs = programs
        self.slots: dict[tuple[int, Value], int] = {}
        self.types: dict[int, Value] = {}

    def slot(self, block: int, value: Value) -> int:
        key = (block, value)
        if key not in self.slots:
            number = len(self.types)
            self.slots[key] = number
            self.types[number] = value
        return self.slots[key]

    def run(self, splits: bool) -> StageProgram:
        programs, last = self.programs, len(self.programs) - 1
        forward, backward = self._pass(FORWARD), self._pass(BACKWARD)
        input_part = self._pass(INPUT_PART) if splits else ()
        weight_part = self._pass(WEIGHT_PART) if splits else ()
        outputs = self._all(last, programs[last].outputs)
        input_gradients = self._all(0, programs[0].input_gradients)
        sent = (*outputs, *input_gradients)
        sources = self._sources()
        return StageProgram(
            programs=programs,
            forward=forward,
            backward=backward,
            input_part=input_part,
            weight_part=weight_part,
            types=self.types,
            sources=sources,
            inputs=self._all(0, programs[0].inputs),
            outputs=outputs,
            output_gradients=self._all(last, programs[last].output_gradients),
            input_gradients=input_gradients,
            gradients=self._gradients(),
            results=tuple(
                ResultSlot(self.slot(block, program.values[local]), block, local)
                for block, program in enumerate(programs)
                for local in program.placed.results
            ),
            readers=_readers((*forward, *backward), sent, sources),
            readers_of_parts=_readers((*forward, *input_part, *weight_part), sent, sources),
        )

    def _pass(self, kind: int) -> tuple[SlotInstruction, ...]:
        own = segments(self.programs, kind)
        places = list(range(len(own)))[:: -1 if is_reversed(kind) else 1]
        for before, after, here, there in zip(own, own[1:], places, places[1:], strict=False):
            self._join(here, before.sent, there, after.received)
        found: list[SlotInstruction] = []
        for segment, past, here, there in zip(
            own, (-1, *places[:-1]), places, (*places[1:], -1), strict=True
        ):
            found += [self._instruction(here, node) for node in segment.own_gathers]
            found += [self._instruction(there, node) for node in segment.ahead]
            found += [self._instruction(here, node) for node in segment.body]
            found += [self._instruction(past, node) for node in segment.landing]
        return tuple(found)

    def _join(self, block: int, given: Sequence[Value], other: int, taken: Sequence[Value]) -> None:
        for mine, theirs in zip(given, taken, strict=True):
            self.slots[other, theirs] = self.slot(block, mine)

    def _all(self, block: int, values: Sequence[Value]) -> tuple[int, ...]:
        return tuple(self.slot(block, value) for value in values)

    def _instruction(self, block: int, node: Node) -> SlotInstruction:
        operands = self._all(block, node.operands)
        op = node.op.op if isinstance(node.op, Sharded) else node.op
        return SlotInstruction(
            block,
            node,
            operands,
            self._all(block, node.results),
            operands[0] if op.is_view else None,
        )

    def _sources(self) -> tuple[FilledSlot, ...]:
        found: list[FilledSlot] = []
        for block, program in enumerate(self.programs):
            places = {use.value: place for place, use in enumerate(program.parameters)}
            for local in program.given:
                slot = self.slot(block, program.values[local])
                found.append(FilledSlot(slot, block, local, places.get(local.value)))
        return tuple(found)

    def _gradients(self) -> tuple[GradientSlot, ...]:
        return tuple(
            GradientSlot(self.slot(block, program.values[use.gradient]), block, place)
            for block, program in enumerate(self.programs)
            for place, use in enumerate(program.parameters)
            if use.gradient is not None
        )


def _readers(
    instructions: Sequence[SlotInstruction], sent: Sequence[int], sources: Sequence[FilledSlot]
) -> Counter[int]:
    readers = Counter(sent)
    for each in instructions:
        readers.update(set(each.operands))
    for source in sources:
        del readers[source.slot]
    return readers
