"""What one process does in a step: the part of one device of one pipeline rank.

Process numbers run over the devices of rank 0, in mesh order, then over those of rank 1, and so on.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.distributed.messenger import Messenger, ProcessGroup
from autotune.distributed.tensors import numpy_of
from autotune.distributed.wire import ProcessWire
from distir.errors import ScheduleError
from distir.execute.computing import NUMPY, Computing
from distir.execute.counts import ActionMemory, Counts, StageMemory
from distir.execute.devices import VirtualMesh
from distir.execute.rank import FreeValues, Rank, Routes, canonical, shared_gradients
from distir.execute.stage import Message
from distir.execute.values import OptimizerStep, StepValues
from distir.ir.core import Array
from distir.ops.ring import Ring
from distir.plan import Plan
from distir.schedules import Action

PIPELINE = "pp"
"""Name under which messages between ranks are counted."""


@dataclass(frozen=True, slots=True)
class StageOutcome:
    """What a device made of a stage: `results[microbatch]` are its shards of the outputs."""

    results: Mapping[int, Sequence[Array]]
    counts: Counts
    state: StageMemory


@dataclass(frozen=True, slots=True)
class ParameterOutcome:
    """A device's shards of a parameter after the step."""

    shard: Array
    owned: Array
    moments: Sequence[Array]
    gradient: Array | None


@dataclass(frozen=True, slots=True)
class MeasuredAction:
    """When a device ran an action, after its message had come: moments of the messenger's clock."""

    action: Action
    start: Any
    end: Any


@dataclass(frozen=True, slots=True)
class DeviceOutcome:
    """What a process hands back. Parameters are in the order in which the rank loads them, because
    values are themselves and do not travel between processes."""

    stages: Mapping[int, StageOutcome]
    parameters: Sequence[ParameterOutcome]
    memory: tuple[ActionMemory, ...]
    sent: Mapping[str, int]
    seconds: float


def groups_of(plan: Plan) -> list[ProcessGroup]:
    """All groups of processes in which a plan may communicate, in an order that only depends on
    the plan."""
    mesh = VirtualMesh(plan.mesh, plan.sizes)
    along = [
        group
        for count in range(1, len(plan.mesh.names) + 1)
        for axes in itertools.combinations(plan.mesh.names, count)
        for group in mesh.groups(axes)
    ]
    size, ranks = len(mesh), range(len(plan.schedule.schedule.ranks))
    found = [tuple(rank * size + place for place in group) for rank in ranks for group in along]
    for holders in shared_gradients(plan).values():
        found += [tuple(rank * size + place for rank in holders) for place in range(size)]
    return list(dict.fromkeys(group for group in found if len(group) > 1))


def channels_of(plan: Plan) -> list[tuple[int, int]]:
    """All pairs of processes of which the first sends messages to the second, in an order that only
    depends on the plan: those of neighbouring stages, and of neighbours in rings."""
    size, routes = plan.devices_per_stage, Routes(plan.schedule.schedule)
    ranks = range(len(routes.schedule.ranks))
    found = [
        (sender * size + place, receiver * size + place)
        for sender, receiver in itertools.permutations(ranks, 2)
        if next(routes.messages(sender, receiver), None) is not None
        for place in range(size)
    ]
    mesh = VirtualMesh(plan.mesh, plan.sizes)
    for axes in _ring_axes(plan):
        for group, rank in itertools.product(mesh.groups(axes), ranks):
            circle = [rank * size + place for place in group]
            found += zip(circle, (*circle[1:], circle[0]), strict=True)
    return list(dict.fromkeys(found))


def _ring_axes(plan: Plan) -> list[tuple[str, ...]]:
    """The mesh axes along which blocks go round."""
    programs = dict.fromkeys(program for stage in plan.stages for program in stage.programs)
    nodes = (node for each in programs for node in (*each.forward, *each.computed_backward))
    return list(dict.fromkeys(n.op.mesh_axes for n in nodes if isinstance(n.op, Ring)))


class Inbox:
    """The order in which a rank receives the messages of others in a step.

    Messages of a rank are taken in the order in which it sends them, those that come early kept: so
    any schedule runs without tags, which not every library has, and nobody waits for more than the
    schedule says.
    """

    def __init__(self, routes: Routes, rank: int) -> None:
        self._routes = routes
        others = (other for other in range(len(routes.schedule.ranks)) if other != rank)
        self._coming = {other: routes.messages(other, rank) for other in others}

    def until(self, needed: Action) -> Iterator[tuple[int, Action]]:
        """The messages to be received up to one that is needed, each with its sender; they end
        early if nobody sends that one."""
        sender = self._routes.rank_of(needed.stage, needed.microbatch)
        if sender is None or sender not in self._coming:
            return
        for coming in self._coming[sender]:
            yield sender, coming
            if coming == needed:
                return


class DeviceProcess:
    """The device of a plan that is process `messenger.process`, loaded with its parameters."""

    def __init__(
        self,
        plan: Plan,
        given: StepValues,
        messenger: Messenger,
        computing: Computing = NUMPY,
    ) -> None:
        self.plan, self.messenger, self.computing = plan, messenger, computing
        self.size = plan.devices_per_stage
        number, self.place = divmod(messenger.process, self.size)
        wire = ProcessWire(messenger, self.place, number * self.size)
        self.rank = Rank(plan, number, given, FreeValues(plan, given), wire, computing)
        self.spans: list[MeasuredAction] = []
        self._mail: dict[Action, Message] = {}
        self._inbox = Inbox(self.rank.routes, number)

    def begin_step(self) -> None:
        """Makes the device ready for a further step."""
        self.rank.begin_step()
        self.spans.clear()
        self._inbox = Inbox(self.rank.routes, self.rank.number)

    def step(self, optimizer: OptimizerStep | None) -> None:
        """Runs one step: all actions in the order of the schedule, the settling of gradients, and
        the optimizer's update."""
        for action in self.rank.actions:
            self._act(action)
        if self.plan.workload.training:
            self.rank.settle()
            self._add_between_ranks()
            if optimizer is not None:
                self.rank.update(optimizer)
        self.messenger.flush()

    def _act(self, action: Action) -> None:
        routes = self.rank.routes
        received = self._received(action)
        start = self.messenger.clock.now()
        sent = self.rank.act(action, received)
        self.spans.append(MeasuredAction(action, start, self.messenger.clock.now()))
        target = routes.target(action)
        if target is None:
            return
        home = routes.rank_of(target, action.microbatch)
        if home == self.rank.number or home is None:
            self._mail[canonical(action)] = sent
        else:
            arrays = self._standard(action, sent)
            process = home * self.size + self.place
            self.messenger.send(arrays, process, PIPELINE, sent.size_bytes)

    def _standard(self, action: Action, sent: Message) -> list[Array]:
        program = self.rank.stages[action.stage].program
        slots = program.outputs if action.kind == "F" else program.input_gradients
        types = [program.types[slot].type for slot in slots]
        made = zip(sent.shards, types, strict=True)
        return [self.computing.sent(shards[0], type.dtype) for shards, type in made]

    def _received(self, action: Action) -> Message:
        """The message that an action begins with."""
        needed = self.rank.routes.needed(action)
        if needed is None:
            return Message()
        if needed not in self._mail:
            for sender, coming in self._inbox.until(needed):
                self._mail[coming] = self._receive(coming, sender, f"{needed} for {action}")
        if needed not in self._mail:
            raise ScheduleError(f"{action} waits for {needed}, which nobody sends")
        return self._mail.pop(needed)

    def _receive(self, coming: Action, sender: int, what: str) -> Message:
        target = self.rank.routes.target(coming)
        assert target is not None
        program = self.rank.stages[target].program
        slots = program.inputs if coming.kind == "F" else program.output_gradients
        types = [program.types[slot].type for slot in slots]
        templates = [self.computing.empty(type.dtype, type.shape) for type in types]
        arrays = self.messenger.receive(templates, sender * self.size + self.place, what)
        return Message(tuple([array] for array in arrays), 0.0, coming.stage)

    def _add_between_ranks(self) -> None:
        for value, holders in shared_gradients(self.plan).items():
            gradient = None
            if self.rank.number in holders:
                gradient = self.rank.parameters[value].gradient
            if gradient is None:
                continue
            group = tuple(rank * self.size + self.place for rank in holders)
            itemsize = self.plan.workload.types.gradient.itemsize
            total = self.messenger.all_reduce(gradient[0], group, "sum", PIPELINE, itemsize)
            self.rank.replace_gradient(value, [total])

    def outcome(self, seconds: float) -> DeviceOutcome:
        """What the process hands back after a step that took so long."""
        stages = {
            index: StageOutcome(
                {m: [numpy_of(s[0]) for s in made] for m, made in stage.results.items()},
                stage.ops.counts,
                stage.state(),
            )
            for index, stage in self.rank.stages.items()
        }
        parameters = [
            ParameterOutcome(
                numpy_of(each.shards[0]),
                numpy_of(each.owned[0]),
                [numpy_of(moment[0]) for moment in each.moments],
                None if each.gradient is None else numpy_of(each.gradient[0]),
            )
            for each in self.rank.parameters.values()
        ]
        memory, sent = tuple(self.rank.memory), dict(self.messenger.sent)
        return DeviceOutcome(stages, parameters, memory, sent, seconds)


def run_step(
    plan: Plan,
    given: StepValues,
    optimizer: OptimizerStep | None,
    messenger: Messenger,
    computing: Computing = NUMPY,
) -> DeviceOutcome:
    """Runs one step of a plan as one of its processes, which have joined."""
    messenger.make_groups(groups_of(plan), channels_of(plan))
    device = DeviceProcess(plan, given, messenger, computing)
    messenger.meet()
    start = time.perf_counter()
    device.step(optimizer)
    messenger.meet()
    return device.outcome(time.perf_counter() - start)


__all__ = [
    "PIPELINE",
    "DeviceOutcome",
    "DeviceProcess",
    "Inbox",
    "MeasuredAction",
    "channels_of",
    "groups_of",
    "run_step",
]
