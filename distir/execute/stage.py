"""One stage's devices: what they store, and what they do in an action."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from distir.axes.rescale import resize
from distir.cost.work import Work
from distir.errors import ScheduleError, TransformError
from distir.execute.counts import BETWEEN_STAGES, ActionMemory, Counts, StageMemory
from distir.execute.devices import Shards, VirtualMesh
from distir.execute.live import Held, Meter, Storage, array_bytes
from distir.execute.stage_program import Instruction, Source, StageProgram, flatten
from distir.execute.values import OptimizerStep
from distir.ir.core import Node, Value
from distir.ops.collective import AllGather, AllReduce, AllToAll, Collective, ReduceScatter
from distir.plan import BlockProgram, Plan, Stage
from distir.schedules import Action
from distir.transforms.instantiate import Instantiation
from distir.transforms.place import Local, move

Array = Any

KINDS = {
    AllReduce: "all_reduce",
    AllGather: "all_gather",
    ReduceScatter: "reduce_scatter",
    AllToAll: "all_to_all",
}

Message = tuple[Shards, ...]
"""What crosses between stages: per value one array per device."""


@dataclass(slots=True)
class Parameter:
    """A parameter on a stage: where its uses are, its shards at rest, and the optimizer's."""

    value: Value
    uses: list[tuple[int, int]]
    shards: Shards
    moments: list[Shards]
    gradient: Shards | None = None


@dataclass(slots=True)
class StageDevices:
    """The devices of one stage. `free` gives, per microbatch, the values of the model that depend
    on inputs and constants alone; `loss_gradient` is the gradient of a microbatch's loss."""

    plan: Plan
    stage: Stage
    meter: Meter
    loss_gradient: float
    counts: Counts = field(default_factory=Counts)
    program: StageProgram = field(init=False)
    parameters: dict[Value, Parameter] = field(default_factory=dict[Value, Parameter])
    results: dict[int, list[tuple[Value, Array]]] = field(
        default_factory=dict[int, list[tuple[Value, Array]]]
    )
    _meshes: tuple[VirtualMesh, ...] = field(init=False)
    _held: dict[int, Held] = field(default_factory=dict[int, Held])
    _left: dict[int, Counter[int]] = field(default_factory=dict[int, Counter[int]])
    _accumulated: dict[tuple[int, int], Shards] = field(
        default_factory=dict[tuple[int, int], Shards]
    )
    _stored: dict[int, Shards] = field(default_factory=dict[int, Shards])
    _done: set[int] = field(default_factory=set[int])

    def __post_init__(self) -> None:
        self.program = flatten(self.stage.programs)
        self._meshes = tuple(
            VirtualMesh(self.plan.mesh, program.sizes) for program in self.stage.programs
        )

    # --- parameters at rest -------------------------------------------------------------------------

    def load(
        self, parameters: Mapping[Value, Array], moments: Mapping[Value, tuple[Array, ...]]
    ) -> None:
        """Stores every parameter of the stage, and the optimizer's state, as the plan says."""
        for block, program in enumerate(self.stage.programs):
            actual = self._block(block).parameters
            for place, value in enumerate(actual):
                if value in self.parameters:
                    self.parameters[value].uses.append((block, place))
                    continue
                self.parameters[value] = Parameter(
                    value,
                    [(block, place)],
                    self._at_rest(block, place, parameters[value]),
                    [self._at_rest(block, place, each) for each in moments.get(value, ())],
                )
        self._demand_parameters()

    def _at_rest(self, block: int, place: int, array: Array) -> Shards:
        program = self.stage.programs[block]
        use = program.parameters[place]
        dims = program.placed.step.axes.dims[use.value]
        return self._meshes[block].scatter(array, dims, use.stored)

    def _demand_parameters(self) -> None:
        """Parameters in the layouts that the blocks read them in."""
        for source in self.program.sources:
            if source.parameter is None:
                continue
            program = self.stage.programs[source.block]
            use = program.parameters[source.parameter]
            stored = Local(use.value, use.stored)
            steps, reached = move(stored, source.local.layout)
            making = Instantiation(self.plan.mesh, program.placed.step.axes, program.sizes, {})
            nodes = making.nodes(steps)
            actual = self._block(source.block).parameters[source.parameter]
            held = {making.value(stored): self.parameters[actual].shards}
            for node in nodes:
                self._run_node(source.block, node, held)
            self._stored[source.slot] = held[making.value(reached)]

    def _block(self, block: int) -> Any:
        return self.plan.workload.program.blocks.blocks[self.stage.blocks[block]]

    # --- actions --------------------------------------------------------------------------------------

    def forward(self, action: Action, received: Message, free: Mapping[Value, Array]) -> Message:
        """Runs a forward action; returns what leaves for the next stage."""
        index = action.microbatch
        if index in self._held or index in self._done:
            raise ScheduleError(f"{action} runs twice")
        held = self._held[index] = Held(self.meter)
        self._left[index] = Counter(self.program.readers)
        self._provide_sources(held, free)
        self._receive(index, self.program.inputs, received)
        self._run(index, self.program.forward)
        self.results[index] = [self._result(held, each) for each in self.program.results]
        sent = self._send(index, self.program.outputs, action.stage + 1)
        if not self.plan.workload.training:
            self._finish(action)
        return sent

    def backward(self, action: Action, received: Message) -> Message:
        """Runs a backward action; returns what leaves for the stage before."""
        index = action.microbatch
        if index not in self._held:
            before = action._replace(kind="F")
            raise ScheduleError(f"{action} needs what {before} keeps, which has not run")
        self._receive(index, self.program.output_gradients, received)
        waiting = {each.slot: [] for each in self.program.gradients}
        for each in self.program.gradients:
            waiting[each.slot].append((each.block, each.parameter))
        held = self._held[index]
        for slot in [slot for slot in waiting if slot in held.shards]:
            self._accumulate(held.shards[slot], waiting.pop(slot))
        self._run(index, self.program.backward, waiting)
        if waiting:
            raise TransformError(f"{action} did not make the gradients of all parameters")
        sent = self._send(index, self.program.input_gradients, action.stage - 1)
        self._finish(action)
        return sent

    def _provide_sources(self, held: Held, free: Mapping[Value, Array]) -> None:
        by_block: dict[int, Mapping[Value, Array]] = {}
        for source in self.program.sources:
            if source.parameter is not None:
                held.shards[source.slot] = self._stored[source.slot]
                continue
            if source.block not in by_block:
                by_block[source.block] = self._free_of_block(source.block, free)
            held.shards[source.slot] = self._shards_of(source, by_block[source.block])

    def _shards_of(self, source: Source, known: Mapping[Value, Array]) -> Shards:
        program = self.stage.programs[source.block]
        dims = program.placed.step.axes.dims[source.local.value]
        array = known.get(source.local.value)
        if array is None:
            raise TransformError(f"the value of {source.local.value} is not known")
        return self._meshes[source.block].scatter(array, dims, source.local.layout)

    def _free_of_block(self, block: int, free: Mapping[Value, Array]) -> dict[Value, Array]:
        """What a block reads that depends on inputs and constants alone, by the values of the
        block that stands for it."""
        program = self.stage.programs[block]
        step = program.placed.step
        known = {
            own: free[actual]
            for own, actual in zip(step.block.free, self._block(block).free, strict=True)
            if actual in free
        }
        for value, array in step.constants.items():
            resized = None if array is None else resize(
                array, step.axes.dims[value], program.sizes.axes
            )
            if resized is not None:
                known[value] = _computed(resized, value)
        for value in step.block.results:
            if value in step.output_gradients:
                known[step.output_gradients[value]] = np.asarray(self.loss_gradient)
        for node in step.free_nodes:
            if all(value in known for value in node.operands):
                types = [
                    [program.sizes.whole_type(v, step.axes.dims[v]) for v in values]
                    for values in (node.operands, node.results)
                ]
                op = node.op.rescaled(*types)
                made = op.evaluate(*(known[value] for value in node.operands))
                known.update(zip(node.results, made, strict=True))
        return known

    def _receive(self, index: int, slots: tuple[int, ...], message: Message) -> None:
        held = self._held[index]
        for slot, shards in zip(slots, message, strict=True):
            held.put(slot, shards, self.program.types[slot])
        for slot in slots:
            if not self._left[index][slot]:
                held.drop(slot)

    def _send(self, index: int, slots: tuple[int, ...], stage: int) -> Message:
        held = self._held[index]
        message = tuple(held.shards[slot] for slot in slots)
        for slot, shards in zip(slots, message, strict=True):
            self.counts.add_sent(stage, array_bytes(shards, self.program.types[slot]))
            self._read(index, slot)
        return message

    def _run(
        self,
        index: int,
        instructions: tuple[Instruction, ...],
        waiting: dict[int, list[tuple[int, int]]] | None = None,
    ) -> None:
        held, left = self._held[index], self._left[index]
        for each in instructions:
            operands = [held.shards[slot] for slot in each.operands]
            made = self._step(each.node, operands)
            for slot, value, shards in zip(each.results, each.node.results, made, strict=True):
                if each.root is None:
                    held.put(slot, shards, value)
                else:
                    held.show(slot, shards, held.storage.get(each.root))
                if waiting is not None and slot in waiting:
                    self._accumulate(shards, waiting.pop(slot))
            for slot in dict.fromkeys(each.operands):
                self._read(index, slot)
            for slot in each.results:
                if not left[slot] and not self._is_result(index, slot):
                    held.drop(slot)

    def _is_result(self, index: int, slot: int) -> bool:
        """Results of the model are handed out when they are made."""
        for each in self.program.results:
            if each.slot == slot and index not in self.results:
                return True
        return False

    def _read(self, index: int, slot: int) -> None:
        if slot in self._stored or slot not in self._held[index].storage:
            if slot not in self._left[index]:
                return
        left = self._left[index]
        left[slot] -= 1
        if not left[slot]:
            self._held[index].drop(slot)
