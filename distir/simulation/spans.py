"""What the streams of one device do, op by op.

The fast engine composes blocks and never lists their ops; a trace shows them. The rules are those
of `pricing/timeline.py`: an instruction starts when its stream is free and its operands are ready.
tests/simulation/test_trace.py holds these spans to those of the reference engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from distir.cost import CostModel
from distir.ir.core import Value
from distir.ops.host import HOST
from distir.plan import Plan
from distir.plan.passes import apart, composed, is_reversed, segments
from distir.schedules import BACKWARD, COMPLETING, FORWARD, WEIGHT_PART
from distir.simulation.pricing.instructions import COMPUTE, GRADIENTS, Instruction, Pricing
from distir.simulation.pricing.tied import charged_elsewhere, tied_gradients
from distir.simulation.pricing.turns import turns


@dataclass(frozen=True, slots=True)
class StreamSpan:
    """Something that a stream of a device does, from `start` to `end` in seconds."""

    stream: str
    label: str
    start: float
    end: float
    block: int | None = None
    """The block to which it belongs; None for what belongs to none, or to many."""
    mesh_axes: tuple[str, ...] = ()
    """Of a collective: its members are the devices that differ along these mesh axes only."""
    size_bytes: float = 0.0
    """Bytes that a collective moves: the whole tensor per device."""
    beside: bool = False
    """Whether waiting for it counts as time of what runs beside it."""


def action_spans(
    plan: Plan, stage: int, kind: int, cost: CostModel, *, last: bool
) -> list[StreamSpan]:
    """The spans of an action of this kind, which begins at 0 with all streams idle. `last`: the
    gradients of its stage are complete with it, so that it settles them."""
    pricing, blocks = Pricing.of(cost, plan), plan.stages[stage].programs
    streams = _Streams()
    shared_out: list[tuple[float, Instruction, int]] = []
    at_end: list[tuple[Instruction, int]] = []
    order = -1 if is_reversed(kind) else 1
    away, numbers = charged_elsewhere(plan, stage)[::order], plan.stages[stage].blocks[::order]
    handed: list[_Ready | None] = []
    for segment, shared, number in zip(
        segments(blocks, kind, steady=True), away, numbers, strict=True
    ):
        own, scatters = composed(segment), segment.scatters
        streams.block = number
        streams.ready = {
            value: ready for value, ready in zip(own.handed, handed, strict=False) if ready
        }
        beside = pricing.products_beside([node for node in own.nodes if node not in scatters])
        for node in own.nodes:
            for instruction in pricing.of_node(node, beside.get(node, ())):
                if node in scatters:
                    streams.launch(instruction)
                else:
                    streams.run(instruction)
        handed = [streams.ready.get(value) for value in own.handing]
        computed = float(cost.host_bound_seconds(streams.free[COMPUTE], streams.launched))
        shared_out += ((computed, each, number) for each in pricing.instructions(scatters))
        if last and kind in COMPLETING:
            elsewhere_added = shared.added_late if kind == WEIGHT_PART else shared.added
            settled = pricing.buckets(segment.program, elsewhere_added)
            if cost.stack.overlaps_gradients:
                shared_out += ((computed, bucket, number) for bucket in settled)
            else:
                at_end += ((bucket, number) for bucket in settled)
    done = float(cost.host_bound_seconds(max(streams.free.values()), streams.launched))
    end = max(done, streams.on_links)
    for computed, bucket, number in (*shared_out, *((end, *late) for late in at_end)):
        streams.settle(bucket, computed, number)
    return streams.spans


def pair_spans(
    plan: Plan, pair: tuple[int, int], cost: CostModel, *, last: bool
) -> list[StreamSpan]:
    """The spans of an overlapped pair: a forward pass of one stage and a backward pass of another.
    `last`: the gradients of the second stage are complete with it, and settled when it ends."""
    pricing, streams = Pricing.of(cost, plan), _Streams()
    ahead, back = (plan.stages[stage].programs for stage in pair)
    sides = zip_longest(
        segments(ahead, FORWARD, steady=True), segments(back, BACKWARD, steady=True)
    )
    numbers = zip_longest(plan.stages[pair[0]].blocks, plan.stages[pair[1]].blocks[::-1])
    scattered: list[tuple[float, Instruction, int | None]] = []
    handed: list[tuple[_Ready | None, ...]] = [(), ()]
    for (segment, other), of_block in zip(sides, numbers, strict=True):
        forward = None if segment is None else composed(segment)
        both = (forward, None if other is None else apart(composed(other)))
        streams.ready = {
            value: ready
            for ops, of_pass in zip(both, handed, strict=True)
            for value, ready in zip(ops.handed if ops else (), of_pass, strict=False)
            if ready
        }
        listed = [
            pricing.instructions([n for n in ops.nodes if n not in ops.scatters] if ops else ())
            for ops in both
        ]
        for whose, part in turns(*listed):
            streams.block = of_block[whose]
            for at in part:
                streams.run(listed[whose][at])
        handed = [tuple(map(streams.ready.get, ops.handing if ops else ())) for ops in both]
        scatters = pricing.instructions(both[1].scatters if both[1] else ())
        for each in scatters:
            streams.launch(each)
        computed = float(cost.host_bound_seconds(streams.free[COMPUTE], streams.launched))
        scattered += ((computed, each, of_block[1]) for each in scatters)
    done = float(cost.host_bound_seconds(max(streams.free.values()), streams.launched))
    end = max(done, streams.on_links)
    if not last:
        for computed, each, block in scattered:
            streams.settle(each, computed, block)
        return streams.spans
    buckets: list[tuple[Instruction, int | None]] = []
    away, blocks = charged_elsewhere(plan, pair[1]), plan.stages[pair[1]].blocks
    for program, shared, block in zip(back[::-1], away[::-1], blocks[::-1], strict=True):
        buckets += ((each, block) for each in pricing.buckets(program, shared.added))
    for each, block in (*((each, block) for _, each, block in scattered), *buckets):
        streams.settle(each, end, block)
    return streams.spans


@dataclass(frozen=True, slots=True)
class _Ready:
    """When a value is ready."""

    at: float


class _Streams:
    """The streams of one device from time 0 on, and what they have done."""

    def __init__(self) -> None:
        self.free = {COMPUTE: 0.0}
        self.gradients_free = 0.0
        self.launched = 0.0
        """Seconds of the host for all launches so far."""
        self.on_links = 0.0
        """Seconds of all collectives so far that gather parameters or share out gradients."""
        self.ready: dict[Value, _Ready] = {}
        """Values of the block at hand that are not there from the start."""
        self.spans: list[StreamSpan] = []
        self.block: int | None = None
        """The block at hand."""

    def run(self, each: Instruction) -> None:
        """Runs an instruction after what it needs."""
        self.launch(each)
        at = max((self.ready[value].at for value in each.reads if value in self.ready), default=0.0)
        if each.after_compute:
            at = max(at, self.free[COMPUTE])
        if each.stream is not None:
            start = max(at, self.free.get(each.stream, 0.0))
            at = self.free[each.stream] = start + each.seconds
            self.spans.append(_span(each.stream, each, start, at, self.block))
        self.ready.update((value, _Ready(at)) for value in each.writes)

    def launch(self, each: Instruction) -> None:
        """Counts an instruction that the host launches."""
        self.launched += each.launch_seconds
        if each.after_compute:
            self.on_links += each.seconds

    def settle(self, bucket: Instruction, computed: float, block: int | None = None) -> None:
        """Runs a collective on gradients that have been computed by then."""
        start = max(self.gradients_free, computed)
        self.gradients_free = start + bucket.seconds
        self.spans.append(_span(GRADIENTS, bucket, start, self.gradients_free, block))


def _span(
    stream: str, each: Instruction, start: float, end: float, block: int | None
) -> StreamSpan:
    return StreamSpan(stream, each.label, start, end, block, each.mesh_axes, each.size_bytes)


def step_end_spans(
    plan: Plan, cost: CostModel, ends: Sequence[float], gradients_free: Sequence[float]
) -> list[tuple[int, StreamSpan]]:
    """Per rank what follows its last action: gradients that several ranks add up, the optimizer,
    parameters gathered again, and those that the next step reads first. `ends` and
    `gradients_free` say when ranks and their gradient streams are done with actions.
    """
    pricing = Pricing.of(cost, plan)
    clocks = [max(pair) for pair in zip(ends, gradients_free, strict=True)]
    found: list[tuple[int, StreamSpan]] = []

    def add(
        rank: int, stream: str, label: str, seconds: float, moved: Instruction | None = None
    ) -> None:
        start = clocks[rank]
        clocks[rank] = start + seconds
        axes, size = (moved.mesh_axes, moved.size_bytes) if moved is not None else ((), 0.0)
        span = StreamSpan(stream, label, start, clocks[rank], None, axes, size)
        found.append((rank, span))

    for tied in tied_gradients(plan, cost) if plan.workload.training else ():
        together = max(clocks[rank] for rank in tied.ranks)
        for rank in tied.ranks:
            clocks[rank] = together
            add(rank, "pp", "AllReduce tied gradients", tied.seconds)
    for rank, stages in enumerate(plan.schedule.stages_of_ranks):
        blocks = [
            (program, away.held)
            for stage in stages
            for program, away in zip(
                plan.stages[stage].programs, charged_elsewhere(plan, stage), strict=True
            )
        ]
        for program, held in blocks if plan.workload.training else ():
            elements = program.trained_elements(without=held)
            for copied in pricing.copied_back(plan.workload, elements, program):
                begin, end = clocks[rank], clocks[rank] + copied.seconds
                span = StreamSpan(HOST, copied.label, begin, end, None, (), copied.size_bytes, True)
                found.append((rank, span))
            add(
                rank,
                COMPUTE,
                "optimizer",
                pricing.optimizer(plan.workload, elements, program),
            )
            outer = pricing.outer_step(plan.workload, elements, program)
            if outer:
                add(rank, COMPUTE, "outer optimizer", outer)
        for program, held in blocks:
            for bucket in pricing.refresh(program, without=held):
                add(rank, GRADIENTS, bucket.label, bucket.seconds, bucket)
        first = plan.stages[stages[plan.schedule.first_stages[rank]]].programs[0]
        for each in pricing.instructions(first.in_action(FORWARD).gathers):
            add(rank, GRADIENTS, each.label, each.seconds, each)
    return found


__all__ = ["StreamSpan", "action_spans", "pair_spans", "step_end_spans"]
