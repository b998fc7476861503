"""The reference engine: every device, every op, one after the other. Slow and easy to believe.

Every device is a process that walks through its rank's actions op by op, with clocks for its
streams and a set of storages. It stops where it needs others: at a collective until all members of
its group have come, at an action until the message has been sent. It shares with the fast engine
the plan and the prices of instructions, not how they are put together.
"""

from __future__ import annotations

from collections.abc import Generator, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from distir.cost import CostModel
from distir.errors import DeadlockError
from distir.ops.host import HOST
from distir.plan import Plan
from distir.schedules import (
    COMPLETING,
    Action,
    cost_kind,
    dependencies,
)
from distir.shares import memory_shares
from distir.simulation.pricing.instructions import COMPUTE, GRADIENTS, Instruction, Pricing
from distir.simulation.pricing.tied import tied_gradients
from distir.simulation.pricing.turns import turns
from distir.simulation.ranks.one import RankSeconds
from distir.simulation.reference.flat import FlatBlock, FlatPass, FlatStage, flat_stage
from distir.simulation.report import make_result
from distir.simulation.result import SimulationResult


@dataclass(frozen=True, slots=True)
class Span:
    """Something that a device did. `action` is None for what comes after all actions."""

    device: int
    rank: int
    stream: str
    label: str
    start: float
    end: float
    action: Action | None = None


@dataclass(frozen=True, slots=True)
class ActionSpan:
    """One action, or an overlapped pair, on one device."""

    device: int
    rank: int
    action: Action
    start: float
    end: float
    beside: Action | None = None
    """The backward pass of a pair, whose forward pass is `action`."""


@dataclass(frozen=True, slots=True)
class ReferenceRun:
    """What the reference engine found out. `live_bytes` has the most that every device held of
    activations, by device."""

    result: SimulationResult
    actions: tuple[ActionSpan, ...]
    spans: tuple[Span, ...]
    live_bytes: tuple[int, ...]
    buffer_bytes: tuple[tuple[int, ...], ...]
    """Of these, by device, what buffers hold: one number per instant at which that many bytes are
    live, without repetitions, the first instant first."""


def simulate_reference(plan: Plan, cost: CostModel) -> ReferenceRun:
    """Runs a plan on a cluster, device by device."""
    return World(plan, cost).run()


# --- how devices wait for each other -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Meeting:
    """A device has come to a collective at `at` and goes on when all `members` have; it is told
    when the last of them came."""

    key: Hashable
    members: int
    at: float


@dataclass(frozen=True, slots=True)
class _Message:
    """A device waits for a message; it is told when the sender was done and when it arrives."""

    key: Hashable


_Process = Generator[_Meeting | _Message, tuple[float, float], None]


@dataclass(frozen=True, slots=True)
class _Running:
    """An action that a device runs; `last`: the gradients of its stage are complete with it."""

    action: Action
    last: bool
    stage: FlatStage
    flat: FlatPass


def _turns_of(passes: Sequence[_Running]) -> Iterator[tuple[list[tuple[int, int]], int]]:
    """The steps of an action, or of an overlapped pair with the blocks of both side by side, each
    with the pass that it belongs to and its position; and how many steps of the last pass are then
    done, -1 if no more than before."""
    if len(passes) == 1:
        yield from (([(0, at)], at + 1) for at in range(len(passes[0].flat.steps)))
        return
    both = (each.flat.blocks for each in passes)
    for blocks in zip_longest(*both, fillvalue=FlatBlock()):
        listed = [
            each.flat.steps[block.steps.start : block.steps.stop]
            for each, block in zip(passes, blocks, strict=True)
        ]
        steps = [(which, blocks[which].steps[at]) for which, part in turns(*listed) for at in part]
        yield steps, blocks[-1].steps.stop if blocks[-1].steps else -1


def _on_links(passes: Sequence[_Running]) -> list[Instruction]:
    """The collectives of an action, or of an overlapped pair block by block, that gather parameters
    and share out gradients."""
    both = zip_longest(*(each.flat.blocks for each in passes), fillvalue=FlatBlock())
    return [
        each
        for blocks in both
        for kind in ([block.gathers for block in blocks], [block.scatters for block in blocks])
        for of_pass in kind
        for each in of_pass
        if each.stream is not None
    ]


@dataclass(slots=True)
class _Device:
    """One device: its clocks, its memory, and where its time went."""

    number: int
    rank: int
    lane: int
    """Its place within the rank."""
    clock: float = 0.0
    begin: float = 0.0
    """When the step begins here."""
    gradients_free: float = 0.0
    """When the gradient stream has done what has been given to it, waits in actions that complete
    no stage's gradients apart."""
    scatters_free: float = 0.0
    """When the gradient stream has shared out the gradients of actions that complete no stage's
    gradients."""
    settled_along: str = "dp"
    """The stream of the last collective on gradients."""
    compute: float = 0.0
    exposed: dict[str, float] = field(default_factory=dict[str, float])
    transfer: float = 0.0
    bubble: float = 0.0
    optimizer: float = 0.0
    live: dict[tuple[int, int, int], int] = field(default_factory=dict[tuple[int, int, int], int])
    """Bytes by stage, microbatch and storage."""
    live_bytes: int = 0
    buffer_bytes: int = 0
    peak_bytes: int = 0
    buffer_bytes_at_peak: dict[int, None] = field(default_factory=dict[int, None])
    """What buffers hold whenever most memory is held."""
    hosted_bytes: float = 0.0
    """What the microbatches of the device have in the memory of its host, and at most."""
    most_hosted_bytes: float = 0.0

    def expose(self, stream: str, seconds: float) -> None:
        """Books time that compute waited for a stream."""
        self.exposed[stream] = self.exposed.get(stream, 0.0) + seconds

    def allocate(self, key: tuple[int, int, int], size: int, buffer: bool) -> None:
        """Takes memory for a storage."""
        assert key not in self.live, "a storage is allocated twice"
        self.live[key] = size
        self.live_bytes += size
        self.buffer_bytes += size if buffer else 0

    def note_peak(self) -> None:
        """Remembers an instant at which most memory is held."""
        if self.live_bytes > self.peak_bytes:
            self.peak_bytes = self.live_bytes
            self.buffer_bytes_at_peak.clear()
        if self.live_bytes == self.peak_bytes:
            self.buffer_bytes_at_peak[self.buffer_bytes] = None

    def free(self, key: tuple[int, int, int], buffer: bool) -> None:
        """Gives it back."""
        size = self.live.pop(key)
        self.live_bytes -= size
        self.buffer_bytes -= size if buffer else 0


class World:
    """All devices, and what has been sent."""

    def __init__(self, plan: Plan, cost: CostModel) -> None:
        self.plan = plan
        self.cost = cost
        self.pricing = Pricing.of(cost, plan)
        self.schedule = plan.schedule.schedule
        self.stages = [flat_stage(plan, index, self.pricing) for index in range(len(plan.stages))]
        self.home = {
            (action.stage, action.microbatch): rank
            for rank, actions in enumerate(self.schedule.ranks)
            for action in actions
        }
        self.goes_on = cost.stack.goes_on(max(map(len, self.schedule.stages_of_ranks)))
        per_rank = plan.devices_per_stage
        self.devices = [
            _Device(rank * per_rank + lane, rank, lane)
            for rank in range(len(self.schedule.ranks))
            for lane in range(per_rank)
        ]
        self.link_free: dict[Hashable, float] = {}
        self.arrived: dict[Hashable, tuple[float, float]] = {}
        self.actions: list[ActionSpan] = []
        self.spans: list[Span] = []

    def run(self) -> ReferenceRun:
        """Runs the whole step on every device."""
        self._interleave({each.number: self._process(each) for each in self.devices})
        return self._report()

    def _interleave(self, waiting: dict[int, _Process]) -> None:
        """Lets every process go as far as it can until all are done."""
        answers: dict[int, tuple[float, float] | None] = dict.fromkeys(waiting)
        wants: dict[int, _Meeting | _Message] = {}
        while waiting:
            for number, answer in answers.items():
                try:
                    process = waiting[number]
                    wants[number] = next(process) if answer is None else process.send(answer)
                except StopIteration:
                    del waiting[number]
                    wants.pop(number, None)
            answers = self._answers(wants)
            if waiting and not answers:
                raise DeadlockError(f"devices wait for each other for ever: {wants}")

    def _answers(
        self, wants: dict[int, _Meeting | _Message]
    ) -> dict[int, tuple[float, float] | None]:
        """Devices that can go on, with what they are told."""
        present: dict[Hashable, list[int]] = {}
        for number, want in wants.items():
            if isinstance(want, _Meeting):
                present.setdefault(want.key, []).append(number)
        found: dict[int, tuple[float, float] | None] = {}
        for number, want in wants.items():
            if isinstance(want, _Message):
                if want.key in self.arrived:
                    found[number] = self.arrived[want.key]
                continue
            others = [wants[other] for other in present[want.key]]
            if len(others) == want.members:
                last = max(other.at for other in others if isinstance(other, _Meeting))
                found[number] = (last, last)
        return found

    # --- what a device does ----------------------------------------------------------------------

    def _process(self, device: _Device) -> _Process:
        actions = self.schedule.ranks[device.rank]
        begins = (
            {*self.schedule.overlapped[device.rank]} if self.schedule.overlapped else set[int]()
        )
        for position in range(len(actions)):
            if position - 1 in begins:
                continue  # it runs beside the action before it
            length = 2 if position in begins else 1
            together = list(actions[position : position + length])
            for action in reversed(together):
                yield from self._wait_for_inputs(device, action)
            if not position and self.plan.workload.training:
                device.begin, device.transfer, device.bubble = device.clock, 0.0, 0.0
            begin = device.clock
            later = actions[position + len(together) :]
            passes = [self._running(action, later) for action in together]
            for each in passes:
                self._hold(device, each)
            yield from self._run(device, passes)
            beside = together[1] if len(together) > 1 else None
            self.actions.append(
                ActionSpan(device.number, device.rank, together[0], begin, device.clock, beside)
            )
            for each in passes:
                self._send(device, each.action, each.flat)
        assert not device.live, "an activation was never freed"
        if self.plan.workload.training:
            yield from self._finish_step(device)
        yield from self._gather_first(device)

    def _running(self, action: Action, later: Sequence[Action]) -> _Running:
        stage = self.stages[action.stage]
        kind = cost_kind(action, self.plan.schedule.splits_backward)
        last = kind in COMPLETING and not any(
            other.stage == action.stage and other.is_backward for other in later
        )
        return _Running(action, last, stage, stage.passes[kind])

    def _wait_for_inputs(self, device: _Device, action: Action) -> _Process:
        for needed in dependencies(action, self.schedule.stages):
            if self.home[needed.stage, needed.microbatch] == device.rank:
                continue
            left, arrived = yield _Message((needed, device.lane))
            if arrived > device.clock:
                moving = arrived - max(left, device.clock)
                device.transfer += moving
                device.bubble += arrived - device.clock - moving
                device.clock = arrived

    def _hold(self, device: _Device, each: _Running) -> None:
        """Takes and gives back the memory of an action, step by step. The two of an overlapped pair
        hold memory one after the other."""
        action, stage, flat = each.action, each.stage, each.flat

        def key(storage: int) -> tuple[int, int, int]:
            return (action.stage, action.microbatch, storage)

        if action.kind == "F":
            device.hosted_bytes += stage.state.hosted
            device.most_hosted_bytes = max(device.most_hosted_bytes, device.hosted_bytes)
        elif action.kind != "W":
            device.hosted_bytes -= stage.state.hosted

        def free_storages(storages: Iterable[int]) -> None:
            for storage in storages:
                device.free(key(storage), storage in stage.buffers)

        for number in flat.received:
            device.allocate(key(number), stage.storage_bytes[number], number in stage.buffers)
        device.note_peak()
        free_storages(flat.dying.get(-1, ()))
        for position, step in enumerate(flat.steps):
            for number in step.writes:
                if number in stage.storage_bytes and number not in step.reads:
                    size = stage.storage_bytes[number]
                    device.allocate(key(number), size, number in stage.buffers)
            device.note_peak()
            free_storages(flat.dying.get(position, ()))
        free_storages(flat.leaving)

    def _run(self, device: _Device, passes: Sequence[_Running]) -> _Process:
        """Runs an action, or both of an overlapped pair. Every stream but the gradient stream is
        idle when it begins, and when it ends."""
        begin = device.clock
        launched = 0.0
        running, is_pair = passes[-1], len(passes) > 1
        free: dict[str, float] = {COMPUTE: begin}
        ready: dict[tuple[int, int], tuple[float, str]] = {}
        if not is_pair:
            yield from self._settle_so_far(device, running.flat, 0, begin, running)
        for steps, done_steps in _turns_of(passes):
            for which, position in steps:
                action, step = passes[which].action, passes[which].flat.steps[position]
                instruction = step.instruction
                launched += instruction.launch_seconds
                at, cause = begin, ""
                for number in step.reads:
                    if (which, number) in ready and ready[which, number][0] > at:
                        at, cause = ready[which, number]
                stream = instruction.stream
                if instruction.after_compute:
                    at = max(at, free[COMPUTE])
                if stream is None:
                    end, maker = at, cause
                else:
                    start = max(at, free.get(stream, begin))
                    if stream == COMPUTE:
                        device.compute += instruction.seconds
                        if start > free[COMPUTE]:
                            device.expose(cause, start - free[COMPUTE])
                    else:
                        start = yield from self._meet(
                            device, instruction.mesh_axes, start, (action, "step", position)
                        )
                    end, maker = start + instruction.seconds, stream
                    free[stream] = end
                    self._note(device, stream, instruction, start, end, action)
                for number in step.writes:
                    ready[which, number] = (end, maker)
            if running.last or running.flat.scattering:
                # Gradients that are complete with a pair are complete when it ends.
                if not (is_pair and running.last):
                    computed = self._no_sooner_than_launched(begin, free[COMPUTE], launched)
                    yield from self._settle_so_far(
                        device, running.flat, done_steps, computed, running
                    )
        done = max(free.values())
        if done > free[COMPUTE]:
            slowest = max((name for name in free if name != COMPUTE), key=lambda name: free[name])
            device.expose(slowest, done - free[COMPUTE])
        device.clock = self._no_sooner_than_launched(begin, done, launched)
        device.compute += device.clock - done
        # There is room for the gradients of one action: scatters must not fall behind.
        on_links = _on_links(passes)
        late = begin + sum(collective.seconds for collective in on_links) - device.clock
        if late > 0:
            device.expose(on_links[-1].stream or "", late)
            device.clock += late
        all_steps = range(1 + len(running.flat.steps) if running.last else 0)
        for done_steps in all_steps if is_pair else ():
            yield from self._settle_so_far(device, running.flat, done_steps, device.clock, running)
        for done_steps in () if self.cost.stack.overlaps_gradients else all_steps:
            yield from self._settle(device, running.flat, done_steps, device.clock, running)

    def _no_sooner_than_launched(self, begin: float, done: float, launched: float) -> float:
        """When what streams have done by `done` can have been, given the launches since `begin`."""
        return begin + float(self.cost.host_bound_seconds(done - begin, launched))

    def _settle_so_far(
        self, device: _Device, each: FlatPass, done: int, computed: float, running: _Running
    ) -> _Process:
        """Starts the collectives on gradients that are complete after `done` steps, which are
        computed."""
        for index, scatter in enumerate(each.scattered_after(done)):
            yield from self._scatter(device, scatter, computed, running, (done, index))
        if running.last and self.cost.stack.overlaps_gradients:
            yield from self._settle(device, each, done, computed, running)

    def _scatter(
        self,
        device: _Device,
        scatter: Instruction,
        computed: float,
        running: _Running,
        which: Hashable,
    ) -> _Process:
        """Starts a collective that shares out gradients, in the last action of its stage or in
        another one. What the last actions settle queues behind others by the work of these
        alone."""
        what = (running.action, "scatter", which)
        if running.last:
            yield from self._on_gradient_stream(device, scatter, computed, running.action, what)
            return
        came = max(device.scatters_free, computed)
        start = yield from self._meet(device, scatter.mesh_axes, came, what)
        device.scatters_free = start + scatter.seconds
        device.gradients_free += scatter.seconds
        self._note(device, GRADIENTS, scatter, start, device.scatters_free, running.action)

    def _settle(
        self, device: _Device, each: FlatPass, done: int, computed: float, running: _Running
    ) -> _Process:
        """Starts the collectives that a stage's last action settles gradients with, as far as they
        may start after `done` steps."""
        for index, bucket in enumerate(each.settled_after(done)):
            what = (running.action, "settle", done, index)
            yield from self._on_gradient_stream(device, bucket, computed, running.action, what)

    def _on_gradient_stream(
        self,
        device: _Device,
        collective: Instruction,
        computed: float,
        action: Action,
        what: Hashable,
    ) -> _Process:
        assert collective.stream is not None
        came = max(device.gradients_free, computed)
        start = yield from self._meet(device, collective.mesh_axes, came, what)
        device.gradients_free = start + collective.seconds
        device.settled_along = collective.stream
        self._note(device, GRADIENTS, collective, start, device.gradients_free, action)

    def _meet(
        self, device: _Device, mesh_axes: tuple[str, ...], at: float, what: Hashable
    ) -> Generator[_Meeting, tuple[float, float], float]:
        """Waits for the devices that differ along some mesh axes only; returns when all have
        come."""
        group, members = self.group(device, mesh_axes)
        start, _ = yield _Meeting((what, mesh_axes, group), members, at)
        return start

    def group(self, device: _Device, mesh_axes: tuple[str, ...]) -> tuple[Hashable, int]:
        """What the devices that differ along these mesh axes only have in common, and their
        number."""
        members, lane = 1, device.lane
        common: list[int] = [device.rank]
        places = zip(self.plan.mesh.names, self.plan.sizes.degrees, strict=True)
        for name, degree in reversed(list(places)):
            lane, place = divmod(lane, degree)
            if name in mesh_axes:
                members *= degree
            else:
                common.append(place)
        return tuple(common), members

    def _send(self, device: _Device, action: Action, each: FlatPass) -> None:
        """Puts what an action made on the link to the rank that needs it."""
        if action.kind == "W":
            return
        next_stage = action.stage + (1 if action.kind == "F" else -1)
        here = device.rank
        there = self.home.get((next_stage, action.microbatch), here)
        if there == here:
            return
        programs = self.plan.stages[action.stage].programs
        if action.kind == "F":
            along = programs[-1].outputs_repeated_along
        else:
            along = programs[0].input_gradients_repeated_along
        # Where a stage is on several ranks, its messages take as long as the slowest of them.
        routes = self.plan.schedule.routes[action.stage, next_stage - action.stage]
        seconds = max(self.pricing.message(each.sent_bytes, along, *pair) for pair in routes)
        link = (device.number, there, action.kind == "F")
        leaves = max(device.clock, self.link_free.get(link, 0.0))
        self.link_free[link] = leaves + seconds
        sent = action._replace(kind="B") if action.kind == "BW" else action
        self.arrived[sent, device.lane] = (device.clock, leaves + seconds)
        if not self.goes_on:
            device.transfer += leaves + seconds - device.clock
            device.clock = leaves + seconds

    def _finish_step(self, device: _Device) -> _Process:
        """What comes after all actions: gradients still to be settled, gradients of parameters
        that several stages hold, the optimizer."""
        tail = max(0.0, device.gradients_free - device.clock)
        device.expose(device.settled_along, tail)
        device.clock += tail
        own = self.schedule.stages_of_ranks[device.rank]
        for index, tied in enumerate(tied_gradients(self.plan, self.cost)):
            if device.rank not in tied.ranks:
                continue
            start, _ = yield _Meeting(("tied", index, device.lane), len(tied.ranks), device.clock)
            device.bubble += start - device.clock
            device.transfer += tied.seconds
            device.clock = start + tied.seconds
            self.spans.append(
                Span(
                    device.number,
                    device.rank,
                    "pp",
                    "AllReduce tied gradients",
                    start,
                    device.clock,
                )
            )
        flat = [self.stages[stage] for stage in own]
        updates = [
            each
            for stage in flat
            for each in zip(stage.optimizer_seconds, stage.copied_back, strict=True)
        ]
        for seconds, beside in updates:
            for copied in beside:
                span = (device.clock, device.clock + copied.seconds)
                self.spans.append(Span(device.number, device.rank, HOST, copied.label, *span))
            span = (device.clock, device.clock + seconds)
            self.spans.append(Span(device.number, device.rank, COMPUTE, "optimizer", *span))
            device.clock += seconds
            device.optimizer += seconds
        refreshing = [each for stage in flat for each in stage.refreshing]
        for index, bucket in enumerate(refreshing):
            assert bucket.stream is not None
            start = yield from self._meet(
                device, bucket.mesh_axes, device.clock, ("refresh", index)
            )
            end = start + bucket.seconds
            self.spans.append(Span(device.number, device.rank, GRADIENTS, bucket.label, start, end))
            device.expose(_charged(bucket), end - device.clock)
            device.clock = end

    def _gather_first(self, device: _Device) -> _Process:
        """Gathers what the first action of the next step reads first. What other actions read first
        is gathered in the action before."""
        first = self.schedule.ranks[device.rank][0]
        for index, gather in enumerate(self.stages[first.stage].first_gathers):
            start = yield from self._meet(device, gather.mesh_axes, device.clock, ("first", index))
            end = start + gather.seconds
            self.spans.append(Span(device.number, device.rank, GRADIENTS, gather.label, start, end))
            device.expose(_charged(gather), end - device.clock)
            device.clock = end

    def _note(
        self,
        device: _Device,
        stream: str,
        instruction: Instruction,
        start: float,
        end: float,
        action: Action,
    ) -> None:
        self.spans.append(
            Span(device.number, device.rank, stream, instruction.label, start, end, action)
        )

    # --- the report ------------------------------------------------------------------------------

    def _report(self) -> ReferenceRun:
        reports: list[RankSeconds] = []
        for rank, own in enumerate(self.schedule.stages_of_ranks):
            members = [device for device in self.devices if device.rank == rank]
            slowest = max(members, key=lambda device: device.clock)
            copies = self.plan.schedule.copies
            states = [self.stages[stage].state.shared(copies) for stage in own]
            fullest = max(members, key=lambda device: device.peak_bytes)
            buffer_bytes = next(iter(fullest.buffer_bytes_at_peak), 0)
            reports.append(
                RankSeconds(
                    stages=own,
                    compute=slowest.compute,
                    exposed=slowest.exposed,
                    transfer=slowest.transfer,
                    bubble=slowest.bubble,
                    optimizer=slowest.optimizer,
                    begin=slowest.begin,
                    end=slowest.clock,
                    host_bytes=sum(state.host for state in states) + fullest.most_hosted_bytes,
                    memory=memory_shares(
                        parameters=sum(state.parameters for state in states),
                        gradients=sum(state.gradients for state in states),
                        optimizer=sum(state.optimizer for state in states),
                        state_inputs=sum(state.inputs for state in states),
                        activations=float(fullest.peak_bytes - buffer_bytes),
                        buffers=float(buffer_bytes),
                    ),
                )
            )
        return ReferenceRun(
            make_result(self.plan, self.cost, reports),
            tuple(self.actions),
            tuple(self.spans),
            tuple(device.peak_bytes for device in self.devices),
            tuple(tuple(device.buffer_bytes_at_peak) for device in self.devices),
        )


def _charged(moved: Instruction) -> str:
    """The choice for which waiting counts at the end of a step: the host's copies for the host, and
    all that moves parameters between devices for `dp`."""
    return HOST if moved.stream == HOST else "dp"


__all__ = ["ActionSpan", "ReferenceRun", "Span", "simulate_reference"]
