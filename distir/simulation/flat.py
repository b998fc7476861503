"""A stage's program laid out flat: every op of every block, every value and storage numbered.

For the reference engine and for traces; the fast engine never does this.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from distir.ir.core import Node, Part, Value
from distir.ops.collective import Sharded
from distir.plan import BlockProgram, Plan
from distir.plan.passes import segments
from distir.simulation.instructions import Instruction, Pricing
from distir.simulation.state import (
    StateBytes,
    optimizer_state_bytes,
)
from distir.simulation.tied import repeated_uses


@dataclass(frozen=True, slots=True)
class Step:
    """One instruction of a stage. `reads` and `writes` are numbers of values; `block` is the
    index in the model of the block it belongs to."""

    instruction: Instruction
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    block: int


@dataclass(slots=True)
class FlatPass:
    """All steps of one direction, with the values that come from another stage and go to one.

    `dying[i]` are the storages that step `i` is the last to need, `dying[-1]` those that nothing
    needs; `leaving` are freed at the end.
    """

    steps: list[Step] = field(default_factory=list)
    received: tuple[int, ...] = ()
    sent: tuple[int, ...] = ()
    sent_bytes: int = 0
    dying: dict[int, list[int]] = field(default_factory=dict)
    leaving: list[int] = field(default_factory=list)


@dataclass(slots=True)
class FlatStage:
    """A stage, flat. `storage_bytes` has every storage that is a stage's own: no parameters, no
    inputs of the model; those in `buffers` belong to the loss or to moving state.

    `settling` are the collectives on gradients that may start once so many backward steps are
    computed; `optimizer_seconds` has one entry per block; `refreshing` are the collectives that
    make stored parameters from updated parts."""

    forward: FlatPass = field(default_factory=FlatPass)
    backward: FlatPass = field(default_factory=FlatPass)
    storage: dict[int, int] = field(default_factory=dict)
    storage_bytes: dict[int, int] = field(default_factory=dict)
    buffers: set[int] = field(default_factory=set)
    settling: list[tuple[int, Instruction]] = field(default_factory=list)
    optimizer_seconds: list[float] = field(default_factory=list)
    refreshing: list[Instruction] = field(default_factory=list)
    state: StateBytes = field(default_factory=StateBytes)

    def settled_after(self, done: int) -> Iterable[Instruction]:
        """The collectives on gradients that are complete after `done` backward steps."""
        return (bucket for at, bucket in self.settling if at == done)


class _Numbering:
    """Gives numbers to values, block by block, and finds their storages."""

    def __init__(self, flat: FlatStage, pricing: Pricing) -> None:
        self.flat = flat
        self.pricing = pricing
        self.next = 0
        self.priced: dict[Node, Instruction] = {}

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

    def add(self, nodes: Sequence[Node], known: dict[Value, int], to: FlatPass, block: int) -> None:
        """Adds the steps of a block."""
        for node in nodes:
            if node not in self.priced:
                self.priced[node] = self.pricing.instruction(node)
            reads = self.numbers(node.operands, known)
            view = (node.op.op if isinstance(node.op, Sharded) else node.op).is_view
            writes = tuple(self.fresh(value, known, own=not view) for value in node.results)
            if node.part is not Part.MODEL and not view:
                self.flat.buffers.update(writes)
            if view:
                for number in writes:
                    self.flat.storage[number] = self.flat.storage[reads[0]]
            to.steps.append(Step(self.priced[node], reads, writes, block))


def flat_stage(plan: Plan, index: int, pricing: Pricing) -> FlatStage:
    """Lays out one stage of a plan."""
    stage = plan.stages[index]
    programs = stage.programs
    flat = FlatStage()
    numbering = _Numbering(flat, pricing)
    known: list[dict[Value, int]] = [{} for _ in programs]

    repeated = repeated_uses(plan, index)
    for to, backward in ((flat.forward, False), (flat.backward, True)):
        places = list(range(len(programs)))[:: -1 if backward else 1]
        own = segments(programs, backward=backward)
        handed = to.received = numbering.receive(own[0].received, known[places[0]])
        for segment, place, after in zip(own, places, (*places[1:], -1), strict=True):
            known[place].update(zip(segment.received, handed, strict=True))
            block = stage.blocks[place]
            numbering.add(segment.own_gathers, known[place], to, block)
            numbering.add(segment.ahead, known[after], to, stage.blocks[after])
            numbering.add(segment.body, known[place], to, block)
            handed = numbering.numbers(segment.sent, known[place])
            flat.buffers.difference_update(flat.storage[number] for number in handed)
            if backward:
                for bucket in pricing.buckets(segment.program, without=repeated[place]):
                    flat.settling.append((len(to.steps), bucket))
        to.sent = handed
        to.sent_bytes = sum(value.type.size_bytes for value in own[-1].sent)

    for program, elsewhere in zip(programs, repeated, strict=True):
        _add_state(plan, flat, program, elsewhere, pricing)
    _find_deaths(flat)
    return flat


def _add_state(
    plan: Plan, flat: FlatStage, program: BlockProgram, elsewhere: Sequence[int], pricing: Pricing
) -> None:
    """What a block's parameters hold for good, and what their optimizer step takes."""
    workload = plan.workload
    trained = 0
    for position, use in enumerate(program.parameters):
        if position in elsewhere:
            continue
        flat.state = flat.state.plus(StateBytes(parameters=float(use.type.size_bytes)))
        if not workload.training or use.gradient is None:
            continue
        gradient = program.values[use.gradient].type.num_elements
        elements = use.owned_type.num_elements
        trained += elements
        flat.state = flat.state.plus(
            StateBytes(
                gradients=float(gradient * workload.types.gradient.itemsize),
                optimizer=float(elements * optimizer_state_bytes(workload)),
            )
        )
    if workload.training:
        seconds = pricing.optimizer(workload, trained)
        flat.optimizer_seconds.append(seconds)
        flat.refreshing.extend(pricing.refresh(program, without=elsewhere))


def _find_deaths(flat: FlatStage) -> None:
    """When every storage is freed: after its last use, in the backward pass if it has one there;
    what another stage is sent, not before the end of the pass."""
    storage, sizes = flat.storage, flat.storage_bytes
    last_use: list[dict[int, int]] = []
    for each in (flat.forward, flat.backward):
        touched = {storage[number]: -1 for number in each.received}
        for position, step in enumerate(each.steps):
            for number in (*step.reads, *step.writes):
                touched[storage[number]] = position
        last_use.append({root: at for root, at in touched.items() if root in sizes})
    forward, backward = last_use
    for each, uses in ((flat.forward, forward), (flat.backward, backward)):
        sent = {storage[number] for number in each.sent}
        for root, position in uses.items():
            if each is flat.forward and root in backward:
                continue
            if root in sent:
                each.leaving.append(root)
            else:
                each.dying.setdefault(position, []).append(root)


__all__ = ["FlatPass", "FlatStage", "Step", "flat_stage"]
