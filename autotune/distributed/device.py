"""What one process does in a step: the part of one device of one pipeline rank.

Process numbers run over the devices of rank 0, in mesh order, then over those of rank 1, and so on.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from autotune.distributed.messenger import Messenger, ProcessGroup
from autotune.distributed.wire import ProcessWire
from distir.errors import ScheduleError
from distir.execute.counts import ActionMemory, Counts, StageMemory
from distir.execute.devices import VirtualMesh
from distir.execute.rank import FreeValues, Rank, canonical, shared_gradients
from distir.execute.stage import Message
from distir.execute.values import OptimizerStep, StepValues
from distir.ir.core import Array
from distir.ir.types import DType
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
    """When a device ran an action, after its message had come, by the clock of its machine."""

    action: Action
    start: float
    end: float


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


class DeviceProcess:
    """The device of a plan that is process `messenger.process`, loaded with its parameters."""

    def __init__(self, plan: Plan, given: StepValues, messenger: Messenger) -> None:
        self.plan, self.messenger = plan, messenger
        self.size = plan.devices_per_stage
        number, self.place = divmod(messenger.process, self.size)
        wire = ProcessWire(messenger, self.place, number * self.size)
        self.rank = Rank(plan, number, given, FreeValues(plan, given), wire)
        self.spans: list[MeasuredAction] = []
        self._mail: dict[Action, Message] = {}
        self._coming = self._messages()

    def _messages(self) -> dict[int, Iterator[Action]]:
        """The messages of every other rank for this one, in the order in which it sends them."""
        ranks = range(len(self.plan.schedule.schedule.ranks))
        own = self.rank.number
        return {other: self.rank.routes.messages(other, own) for other in ranks if other != own}

    def begin_step(self) -> None:
        """Makes the device ready for a further step."""
        self.rank.begin_step()
        self.spans.clear()
        self._coming = self._messages()

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
        start = time.perf_counter()
        sent = self.rank.act(action, received)
        self.spans.append(MeasuredAction(action, start, time.perf_counter()))
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
        dtypes = [_standard_dtype(program.types[slot].type.dtype) for slot in slots]
        return [np.asarray(s[0], dtype) for s, dtype in zip(sent.shards, dtypes, strict=True)]

    def _received(self, action: Action) -> Message:
        """The message that an action begins with.

        Messages of a rank are taken in the order in which it sends them, those that come early
        kept: so any schedule runs without tags, which not every library has, and nobody waits for
        more than the schedule says.
        """
        needed = self.rank.routes.needed(action)
        if needed is None:
            return Message()
        sender = self.rank.routes.rank_of(needed.stage, needed.microbatch)
        while needed not in self._mail:
            coming = next(self._coming[sender], None) if sender in self._coming else None
            if sender is None or coming is None:
                raise ScheduleError(f"{action} waits for {needed}, which nobody sends")
            self._mail[coming] = self._receive(coming, sender, f"{needed} for {action}")
        return self._mail.pop(needed)

    def _receive(self, coming: Action, sender: int, what: str) -> Message:
        target = self.rank.routes.target(coming)
        assert target is not None
        program = self.rank.stages[target].program
        slots = program.inputs if coming.kind == "F" else program.output_gradients
        types = [program.types[slot].type for slot in slots]
        templates = [(_standard_dtype(type.dtype), type.shape) for type in types]
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
                {m: [shards[0] for shards in made] for m, made in stage.results.items()},
                stage.counts,
                stage.state(),
            )
            for index, stage in self.rank.stages.items()
        }
        parameters = [
            ParameterOutcome(
                each.shards[0],
                each.owned[0],
                [moment[0] for moment in each.moments],
                None if each.gradient is None else each.gradient[0],
            )
            for each in self.rank.parameters.values()
        ]
        memory, sent = tuple(self.rank.memory), dict(self.messenger.sent)
        return DeviceOutcome(stages, parameters, memory, sent, seconds)


def run_step(
    plan: Plan, given: StepValues, optimizer: OptimizerStep | None, messenger: Messenger
) -> DeviceOutcome:
    """Runs one step of a plan as one of its processes, which have joined."""
    messenger.make_groups(groups_of(plan))
    device = DeviceProcess(plan, given, messenger)
    messenger.meet()
    start = time.perf_counter()
    device.step(optimizer)
    messenger.meet()
    return device.outcome(time.perf_counter() - start)


def _standard_dtype(dtype: DType) -> Any:
    """The NumPy type in which values of a type travel between ranks."""
    if dtype.is_float:
        return np.float64
    return np.bool_ if dtype is DType.BOOL else np.int64


__all__ = ["PIPELINE", "DeviceOutcome", "DeviceProcess", "MeasuredAction", "groups_of", "run_step"]
