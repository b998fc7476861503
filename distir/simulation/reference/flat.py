"""A stage's program laid out flat: every op of every block, every value and storage numbered.

For the reference engine and for traces; the fast engine never does this.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from distir.ir.core import Node, Value
from distir.ops.collective import Sharded
from distir.ops.host import rests_on_host
from distir.plan import BlockProgram, Plan
from distir.plan.passes import is_reversed, segments
from distir.schedules import (
    BACKWARD,
    COMPLETING,
    COST_KINDS,
    FORWARD,
    INPUT_PART,
    WEIGHT_PART,
)
from distir.simulation.pricing.instructions import Instruction, Pricing
from distir.simulation.pricing.state import (
    StateBytes,
    optimizer_state_bytes,
    outer_state_bytes,
    state_input_bytes,
    updated_bytes,
)
from distir.simulation.pricing.tied import ChargedElsewhere, charged_elsewhere


@dataclass(frozen=True, slots=True)
class FlatInstruction:
    """One instruction of a stage. `reads` and `writes` are numbers of values; `block` is the
    index in the model of the block it belongs to."""

    instruction: Instruction
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    block: int

    @property
    def stream(self) -> str | None:
        """The stream of the instruction."""
        return self.instruction.stream


@dataclass(frozen=True, slots=True)
class FlatBlock:
    """What a block adds to a pass: the positions of its steps, and the collectives that gather its
    parameters and share out their gradients."""

    steps: range = range(0)
    gathers: Sequence[Instruction] = ()
    scatters: Sequence[Instruction] = ()


@dataclass(slots=True)
class FlatPass:
    """All steps of one kind of action, with the values that come from another stage and go to one.

    `dying[i]` are the storages that step `i` is the last to need, `dying[-1]` those that nothing
    needs; `leaving` are freed at the end. `scattering` are the collectives on gradients of every
    action, and `settling` those of the last action of the stage, each with the number of steps
    after which it may start.
    """

    steps: list[FlatInstruction] = field(default_factory=list[FlatInstruction])
    received: tuple[int, ...] = ()
    sent: tuple[int, ...] = ()
    sent_bytes: int = 0
    dying: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    leaving: list[int] = field(default_factory=list[int])
    scattering: list[tuple[int, Instruction]] = field(default_factory=list[tuple[int, Instruction]])
    settling: list[tuple[int, Instruction]] = field(default_factory=list[tuple[int, Instruction]])
    blocks: list[FlatBlock] = field(default_factory=list[FlatBlock])

    def scattered_after(self, done: int) -> Iterable[Instruction]:
        """The collectives of every action that may start after `done` steps."""
        return (scatter for at, scatter in self.scattering if at == done)

    def settled_after(self, done: int) -> Iterable[Instruction]:
        """The collectives of the last action that may start after `done` steps."""
        return (bucket for at, bucket in self.settling if at == done)


@dataclass(slots=True)
class FlatStage:
    """A stage, flat, its passes by kind of action. `storage_bytes` has every storage that is a
    stage's own: no parameters, no inputs of the model; those in `buffers` belong to the loss or to
    moving state.

    `optimizer_seconds` has one entry per block; `refreshing` are the collectives that make stored
    parameters from updated parts; `first_gathers` gather what the first block of a forward pass
    reads."""

    passes: tuple[FlatPass, ...] = field(
        default_factory=lambda: tuple(FlatPass() for _ in range(COST_KINDS))
    )
    storage: dict[int, int] = field(default_factory=dict[int, int])
    storage_bytes: dict[int, int] = field(default_factory=dict[int, int])
    buffers: set[int] = field(default_factory=set[int])
    optimizer_seconds: list[float] = field(default_factory=list[float])
    copied_back: list[tuple[Instruction, ...]] = field(
        default_factory=list[tuple[Instruction, ...]]
    )
    """Per entry of `optimizer_seconds` what is copied from the host beside it."""
    refreshing: list[Instruction] = field(default_factory=list[Instruction])
    first_gathers: list[Instruction] = field(default_factory=list[Instruction])
    state: StateBytes = field(default_factory=StateBytes)


class _Numbering:
    """Gives numbers to values, block by block, and finds their storages."""

    def __init__(self, flat: FlatStage, pricing: Pricing) -> None:
        self.flat = flat
        self.pricing = pricing
        self.next = 0
        self.priced: dict[object, tuple[Instruction, ...]] = {}

    def fresh(self, value: Value, known: dict[Value, int], *, own: bool) -> int:
        """A number for a value. `own`: it takes memory of its own."""
        number = known[value] = self.next
        self.next += 1
        self.flat.storage[number] = number
        if own:
            self.flat.storage_bytes[number] = value.type.size_bytes
        return number

    def numbers(self, values: Sequence[Value], known: dict[Value, int]) -> tuple[int, ...]:
        """Numbers of values; those that no op has made are there without memory of their own."""
        return tuple(
            known[value] if value in known else self.fresh(value, known, own=False)
            for value in values
        )

    def receive(self, values: Sequence[Value], known: dict[Value, int]) -> tuple[int, ...]:
        """Numbers for what another stage sends."""
        return tuple(self.fresh(value, known, own=True) for value in values)

    def instructions(self, nodes: Collection[Node]) -> list[Instruction]:
        """The instructions of nodes."""
        return [each for node in nodes for each in self.priced_node(node)]

    def priced_node(self, node: Node, beside: tuple[Node, ...] = ()) -> tuple[Instruction, ...]:
        """The instructions of a node that is pipelined with the products `beside`."""
        key = (node, beside)
        if key not in self.priced:
            self.priced[key] = self.pricing.of_node(node, beside)
        return self.priced[key]

    def add(
        self,
        nodes: Sequence[Node],
        known: dict[Value, int],
        to: FlatPass,
        block: int,
        *,
        runs_elsewhere: Collection[Node] = (),
        launched_elsewhere: Collection[Node] = (),
        own: bool = True,
    ) -> None:
        """Adds the steps of a block. Steps of nodes that run elsewhere, or are launched elsewhere,
        too, only say when memory is held. `own`: values that are made take memory of their own."""
        beside = self.pricing.products_beside(nodes)
        for node in nodes:
            for each in self.priced_node(node, beside.get(node, ())):
                step = each
                if node in runs_elsewhere or node in launched_elsewhere:
                    step = each._replace(stream=None, seconds=0.0, after_compute=False)
                if node in launched_elsewhere:
                    step = step._replace(launch_seconds=0.0)
                self._add_step(node, step, known, to, block, own)

    def _add_step(
        self,
        node: Node,
        instruction: Instruction,
        known: dict[Value, int],
        to: FlatPass,
        block: int,
        own: bool,
    ) -> None:
        reads = self.numbers(instruction.reads, known)
        view = (node.op.op if isinstance(node.op, Sharded) else node.op).is_view
        # What instructions of one node hand to each other takes no memory; what one writes in
        # place has its number.
        writes = tuple(
            known[value]
            if value in instruction.reads
            else self.fresh(value, known, own=own and not view and value in node.results)
            for value in instruction.writes
        )
        if rests_on_host(node.op):
            self.flat.storage_bytes.update(dict.fromkeys(writes, 0))
        if not node.part.of_model and not view:
            self.flat.buffers.update(writes)
        if view:
            for number in writes:
                self.flat.storage[number] = self.flat.storage[reads[0]]
        to.steps.append(FlatInstruction(instruction, reads, writes, block))


def flat_stage(plan: Plan, index: int, pricing: Pricing) -> FlatStage:
    """Lays out one stage of a plan: the backward pass as a whole, and its parts if the schedule has
    them."""
    flat = FlatStage()
    numbering = _Numbering(flat, pricing)
    programs = plan.stages[index].programs
    known: list[dict[Value, int]] = [{} for _ in programs]
    _lay_out(plan, index, FORWARD, numbering, known)
    saved = [dict(each) for each in known]
    _lay_out(plan, index, BACKWARD, numbering, known)
    forward, whole, input_part, weight_part = flat.passes
    _find_deaths(flat, [forward, whole])
    if plan.schedule.splits_backward:
        _lay_out(plan, index, INPUT_PART, numbering, saved)
        _lay_out(plan, index, WEIGHT_PART, numbering, saved)
        forward.dying.clear()
        forward.leaving.clear()
        _find_deaths(flat, [forward, input_part, weight_part])
    for program, away in zip(programs, charged_elsewhere(plan, index), strict=True):
        _add_state(plan, flat, program, away, pricing)
    return flat


def _lay_out(
    plan: Plan, index: int, kind: int, numbering: _Numbering, known: Sequence[dict[Value, int]]
) -> None:
    """Adds the steps of one kind of action, block by block. `known` are the numbers of the values
    of the blocks."""
    flat, stage = numbering.flat, plan.stages[index]
    to = flat.passes[kind]
    uses = charged_elsewhere(plan, index)
    places = list(range(len(stage.programs)))[:: -1 if is_reversed(kind) else 1]
    own = segments(stage.programs, kind)
    handed = to.received = numbering.receive(own[0].received, known[places[0]])
    first = own[0].own_gathers
    if kind == FORWARD:
        flat.first_gathers = numbering.instructions(first)
    for segment, before, place, after in zip(
        own, (-1, *places[:-1]), places, (*places[1:], -1), strict=True
    ):
        known[place].update(zip(segment.received, handed, strict=True))
        block, begin = stage.blocks[place], len(to.steps)
        numbering.add(segment.own_gathers, known[place], to, block, launched_elsewhere=first)
        numbering.add(segment.ahead, known[after], to, stage.blocks[after])
        if after < 0:
            # Takes the time of what the next action gathers first, and no memory.
            numbering.add(first, {}, to, stage.blocks[places[0]], own=False)
        scatters = segment.scatters
        numbering.add(segment.body, known[place], to, block, runs_elsewhere=scatters)
        numbering.add(segment.landing, known[before], to, block)
        shared_out = numbering.instructions(scatters)
        to.scattering += ((len(to.steps), each) for each in shared_out)
        gathers = numbering.instructions(segment.own.gathers)
        to.blocks.append(FlatBlock(range(begin, len(to.steps)), gathers, shared_out))
        handed = numbering.numbers(segment.sent, known[place])
        flat.buffers.difference_update(flat.storage[number] for number in handed)
        if kind in COMPLETING:
            away = uses[place].added_late if kind == WEIGHT_PART else uses[place].added
            for bucket in numbering.pricing.buckets(segment.program, without=away):
                to.settling.append((len(to.steps), bucket))
    to.sent = handed
    to.sent_bytes = sum(value.type.size_bytes for value in own[-1].sent)


def _add_state(
    plan: Plan, flat: FlatStage, program: BlockProgram, away: ChargedElsewhere, pricing: Pricing
) -> None:
    """What a block's parameters hold for good, and what their optimizer step takes."""
    workload = plan.workload
    flat.state = flat.state.plus(StateBytes(inputs=state_input_bytes(workload, program)))
    if program.hosted is not None:
        copies = (copy.type.size_bytes for copy in program.hosted.copies)
        flat.state = flat.state.plus(StateBytes(hosted=float(sum(copies))))
    trained = 0
    for position, use in enumerate(program.parameters):
        if position not in away.held:
            size = float(use.type.size_bytes)
            rests = (0.0, size) if program.rests_on_host else (size, 0.0)
            flat.state = flat.state.plus(StateBytes(parameters=rests[0], host=rests[1]))
        if not workload.training or use.gradient is None:
            continue
        if position not in away.added and not use.gradient_on_host:
            gradient = program.values[use.gradient].type.num_elements
            size = float(gradient * workload.types.gradient_bytes)
            flat.state = flat.state.plus(StateBytes(gradients=size))
        if position not in away.held:
            elements = use.owned_type.num_elements
            trained += elements
            if program.updates_on_host:
                kept = updated_bytes(workload) + outer_state_bytes(workload, program)
                size = float(elements * kept)
                flat.state = flat.state.plus(StateBytes(host=size))
            else:
                kept = optimizer_state_bytes(workload) + outer_state_bytes(workload, program)
                size = float(elements * kept)
                flat.state = flat.state.plus(StateBytes(optimizer=size))
    if workload.training:
        seconds = pricing.optimizer(workload, trained, program)
        flat.optimizer_seconds.append(seconds + pricing.outer_step(workload, trained, program))
        flat.copied_back.append(pricing.copied_back(workload, trained, program))
        flat.refreshing.extend(pricing.refresh(program, without=away.held))


def _find_deaths(flat: FlatStage, passes: Sequence[FlatPass]) -> None:
    """When every storage is freed in passes that follow each other: after its last use, in the last
    pass that has one; what another stage is sent, not before the end of that pass."""
    storage, sizes = flat.storage, flat.storage_bytes
    later: set[int] = set()
    for each in reversed(passes):
        touched = {storage[number]: -1 for number in each.received}
        for position, step in enumerate(each.steps):
            for number in (*step.reads, *step.writes):
                touched[storage[number]] = position
        sent = {storage[number] for number in each.sent}
        for root, position in touched.items():
            if root not in sizes or root in later:
                continue
            if root in sent:
                each.leaving.append(root)
            else:
                each.dying.setdefault(position, []).append(root)
        later.update(touched)


__all__ = ["FlatBlock", "FlatInstruction", "FlatPass", "FlatStage", "flat_stage"]
