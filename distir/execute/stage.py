"""The devices of one stage, and the actions that they run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from distir.axes.rescale import resize
from distir.errors import ScheduleError, TransformError
from distir.execute.counts import StageMemory
from distir.execute.devices import Shards
from distir.execute.live import LiveArrays, Meter, array_bytes
from distir.execute.stage_ops import StageOps
from distir.execute.stage_parameters import Parameter, StageParameters
from distir.execute.stage_program import (
    FilledSlot,
    ResultSlot,
    SlotInstruction,
    StageProgram,
    flatten,
)
from distir.execute.values import StepValues
from distir.ir.core import Array, Value
from distir.ops.host import rests_on_host
from distir.schedules import Action


@dataclass(frozen=True, slots=True)
class Message:
    """The values that one stage sends to another: per value one array per device, and the bytes of
    all values on one device. `sender` is the stage it comes from if that is on another rank, and
    None if no message crosses a link."""

    shards: tuple[Shards, ...] = ()
    size_bytes: float = 0.0
    sender: int | None = None


@dataclass(slots=True)
class _Running:
    """A microbatch between the start of its forward pass and the end of its backward pass."""

    live: LiveArrays
    readers_left: Counter[int]
    """Per slot, the number of readers still to come."""
    awaited_gradients: dict[int, list[tuple[int, int]]] = field(
        default_factory=dict[int, list[tuple[int, int]]]
    )
    """Slots of parameter gradients still to be made, with the (block, place) of the parameters."""
    results: dict[int, Shards] = field(default_factory=dict[int, Shards])
    """Outputs of the model by slot."""
    awaits_weight_part: bool = False
    """Whether `B` of a split backward pass has run and `W` has not."""


@dataclass(slots=True)
class StageDevices:
    """The devices of one stage on one rank: what they do in an action.

    `loss_gradient` is the derivative of the batch's loss by that of a microbatch.
    """

    ops: StageOps
    program: StageProgram
    parameters: StageParameters
    meter: Meter
    host_meter: Meter
    loss_gradient: float
    results: dict[int, list[Shards]] = field(default_factory=dict[int, list[Shards]])
    """Per microbatch, the shards of the outputs that the program lists as its results."""
    _running: dict[int, _Running] = field(default_factory=dict[int, _Running])
    _free_shards: dict[tuple[int, int], Shards] = field(
        default_factory=dict[tuple[int, int], Shards]
    )
    """Free values by slot and microbatch."""
    _done: set[int] = field(default_factory=set[int])

    @classmethod
    def loaded(
        cls,
        ops: StageOps,
        given: StepValues,
        of_rank: dict[Value, Parameter],
        meters: tuple[Meter, Meter],
        loss_gradient: float,
    ) -> StageDevices:
        """The devices of a stage with its parameters and optimizer states. `meters` measure what
        devices and their hosts hold; `of_rank` are the rank's parameters, to which it adds."""
        workload = ops.plan.workload
        program = flatten(ops.stage.programs, ops.plan.schedule.splits_backward)
        parameters = StageParameters(ops, program, of_rank)
        parameters.load(given.parameters, given.moments if workload.training else {})
        return cls(ops, program, parameters, *meters, loss_gradient)

    def begin_step(self, *, new_inputs: bool = False) -> None:
        """Forgets what the step before left, but for parameters and optimizer state; and what it
        knows of inputs, if there are new ones."""
        if new_inputs:
            self._free_shards.clear()
        self.results.clear()
        self._done.clear()
        self.parameters.begin_step()

    # --- actions ---------------------------------------------------------------------------------

    def forward(
        self, action: Action, received: Message, free: Mapping[Value, Array], in_parts: bool
    ) -> Message:
        """Runs a forward action and returns the message for the next stage.

        `free` are the model's free values (see glossary) of this microbatch; `in_parts` says
        whether the microbatch's backward pass is split into `B` and `W`.
        """
        index = action.microbatch
        if index in self._running or index in self._done:
            raise ScheduleError(f"{action} runs twice")
        program = self.program
        readers = program.readers_of_parts if in_parts else program.readers
        running = _Running(LiveArrays(self.meter, self.host_meter), Counter(readers))
        self._running[index] = running
        self._provide_sources(index, running.live, free)
        self._receive(running, self.program.inputs, received)
        self._run(running, self.program.forward)
        self.results[index] = [running.results[each.slot] for each in self.program.results]
        sent = self._send(running, self.program.outputs)
        if not self.ops.plan.workload.training:
            self._finish(action)
        return sent

    def backward(self, action: Action, received: Message) -> Message:
        """Runs a whole backward pass and returns the message for the stage before."""
        sent = self._backward(action, received, self.program.backward)
        self._complete(action)
        return sent

    def input_part(self, action: Action, received: Message) -> Message:
        """Runs `B` of a split backward pass and returns the message for the stage before."""
        sent = self._backward(action, received, self.program.input_part)
        self._running[action.microbatch].awaits_weight_part = True
        return sent

    def weight_part(self, action: Action) -> None:
        """Runs `W` of a split backward pass."""
        running = self._running.get(action.microbatch)
        if running is None or not running.awaits_weight_part:
            before = action._replace(kind="B")
            raise ScheduleError(f"{action} needs what {before} makes; {before} has not run")
        self._run(running, self.program.weight_part)
        self._complete(action)

    def _backward(
        self, action: Action, received: Message, instructions: tuple[SlotInstruction, ...]
    ) -> Message:
        running = self._running.get(action.microbatch)
        if running is None or running.awaits_weight_part:
            before = action._replace(kind="F")
            raise ScheduleError(f"{action} needs what {before} keeps; {before} has not run")
        awaited = running.awaited_gradients
        for each in self.program.gradients:
            awaited.setdefault(each.slot, []).append((each.block, each.parameter))
        for slot in self.program.source_slots & awaited.keys():
            self._accumulate(running, slot)
        self._receive(running, self.program.output_gradients, received)
        self._run(running, instructions)
        return self._send(running, self.program.input_gradients)

    def _complete(self, action: Action) -> None:
        missing = self._running[action.microbatch].awaited_gradients
        if missing:
            names = ", ".join(str(self.program.types[slot]) for slot in missing)
            raise TransformError(f"{action} did not make the parameter gradients {names}")
        self._finish(action)

    def _finish(self, action: Action) -> None:
        running = self._running.pop(action.microbatch)
        if running.live.storage:
            left = [str(self.program.types[slot]) for slot in running.live.storage]
            raise TransformError(f"{action} leaves {', '.join(left)} in memory; expected nothing")
        self._done.add(action.microbatch)

    @property
    def in_flight(self) -> frozenset[int]:
        """Microbatches whose last action on this stage has not run."""
        return frozenset(self._running)

    def _provide_sources(self, index: int, live: LiveArrays, free: Mapping[Value, Array]) -> None:
        """Fills the slots of parameters, and of free values, which are the same in every step."""
        by_block: dict[int, Mapping[Value, Array]] = {}
        for source in self.program.sources:
            if source.parameter is not None:
                live.shards[source.slot] = self.parameters.laid_out[source.slot]
                continue
            key = (source.slot, index)
            if key not in self._free_shards:
                if source.block not in by_block:
                    by_block[source.block] = self._free_of_block(source.block, free)
                self._free_shards[key] = self._shards_of(source, by_block[source.block])
            live.shards[source.slot] = self._free_shards[key]

    def _shards_of(self, source: FilledSlot, known: Mapping[Value, Array]) -> Shards:
        array = known.get(source.local.value)
        if array is None:
            raise TransformError(f"the value of {source.local.value} is not known")
        shards = self.ops.scatter(source.block, source.local.value, array, source.local.layout)
        return self.ops.held(shards, self.program.types[source.slot].type.dtype)

    def _free_of_block(self, block: int, free: Mapping[Value, Array]) -> dict[Value, Array]:
        """The free values that a block reads, by the values of the block's program (which equal
        blocks share)."""
        program = self.ops.stage.programs[block]
        step, sizes = program.placed.step, program.sizes
        known = {
            own: free[actual]
            for own, actual in zip(step.block.free, self.ops.block(block).free, strict=True)
            if actual in free
        }
        for value, array in step.constants.items():
            dims = step.axes.dims[value]
            resized = None if array is None else resize(array, dims, sizes.axes)
            if resized is not None:
                known[value] = computed(resized, value)
        for value in step.block.results:
            if value in step.output_gradients:
                known[step.output_gradients[value]] = np.asarray(self.loss_gradient)
        for node in step.free_nodes:
            if not all(value in known for value in node.operands):
                continue
            operands, results = (
                [sizes.whole_type(value, step.axes.dims[value]) for value in values]
                for values in (node.operands, node.results)
            )
            made = node.op.rescaled(operands, results).evaluate(*(known[v] for v in node.operands))
            known.update(zip(node.results, made, strict=True))
        return known

    def _receive(self, running: _Running, slots: tuple[int, ...], message: Message) -> None:
        types = self.program.types
        for slot, shards in zip(slots, message.shards, strict=True):
            running.live.put(slot, shards, types[slot])
        if message.sender is not None:
            sizes = (array_bytes(message.shards[i], types[slot]) for i, slot in enumerate(slots))
            self.ops.counts.add_received(message.sender, sum(sizes))
        for slot in slots:
            self._deliver(running, slot)

    def _send(self, running: _Running, slots: tuple[int, ...]) -> Message:
        shards = tuple(running.live.shards[slot] for slot in slots)
        types = [self.program.types[slot] for slot in slots]
        for slot in slots:
            self._read(running, slot)
        return Message(shards, sum(map(array_bytes, shards, types)))

    def _run(self, running: _Running, instructions: tuple[SlotInstruction, ...]) -> None:
        live = running.live
        for each in instructions:
            operands = [live.shards[slot] for slot in each.operands]
            made = self.ops.step(each.block, each.node, operands)
            for slot, value, shards in zip(each.results, each.node.results, made, strict=True):
                on_host = rests_on_host(each.node.op)
                if on_host and not each.node.part.of_model:
                    live.show(slot, shards, None)  # it is added to a gradient that is at rest
                elif each.root is None:
                    live.put(slot, shards, value, on_host=on_host)
                else:
                    live.show(slot, shards, live.storage.get(each.root))
            for slot in dict.fromkeys(each.operands):
                self._read(running, slot)
            for slot in each.results:
                self._deliver(running, slot)

    def _read(self, running: _Running, slot: int) -> None:
        """Counts off one reader of a value and drops the value after the last."""
        if slot in running.readers_left:
            running.readers_left[slot] -= 1
            if not running.readers_left[slot]:
                running.live.drop(slot)

    def _deliver(self, running: _Running, slot: int) -> None:
        """Adds a new value to the gradient buffers and to the model's outputs, where it is one of
        them, and drops it if nobody else reads it."""
        if slot in running.awaited_gradients:
            self._accumulate(running, slot)
        for each in self.program.results:
            if each.slot == slot and slot not in running.results:
                running.results[slot] = running.live.shards[slot]
        if not running.readers_left[slot]:
            running.live.drop(slot)

    def _accumulate(self, running: _Running, slot: int) -> None:
        shards = running.live.shards[slot]
        for block, place in running.awaited_gradients.pop(slot):
            self.parameters.accumulate(block, place, shards)

    def whole_results(self, microbatch: int) -> list[tuple[Value, Array]]:
        """The outputs of the model that this stage made of a microbatch: the program's value, and
        its whole array."""
        made = zip(self.program.results, self.results[microbatch], strict=True)
        return [(self._actual_result(each), self._whole_result(each, own)) for each, own in made]

    def _whole_result(self, result: ResultSlot, shards: Shards) -> Array:
        return self.ops.gather(result.block, result.local.value, shards, result.local.layout)

    def _actual_result(self, result: ResultSlot) -> Value:
        own = self.ops.stage.programs[result.block].placed.step.block.results
        return self.ops.block(result.block).results[own.index(result.local.value)]

    # --- what is there ---------------------------------------------------------------------------

    def state(self) -> StageMemory:
        """Bytes that a device keeps over the whole step, in the workload's element types."""
        left = self._state_inputs
        inputs = sum(
            array_bytes(shards, self.program.types[slot])
            for (slot, _), shards in self._free_shards.items()
            if slot in left
        )
        return replace(self.parameters.state(), inputs=inputs)

    @property
    def _state_inputs(self) -> set[int]:
        """The slots of inputs that a step leaves for the next."""
        programs = self.ops.stage.programs
        return {
            source.slot
            for source in self.program.sources
            if programs[source.block].values[source.local] in programs[source.block].state_inputs
        }


def computed(array: Array, value: Value) -> Array:
    """The array in the type in which the executor computes: float64 for real numbers."""
    return np.asarray(array, np.float64) if value.type.dtype.is_float else np.asarray(array)


__all__ = ["Message", "StageDevices", "computed"]
