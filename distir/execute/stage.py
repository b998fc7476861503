"""The devices of one stage: the parameters they store, and the actions they run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import numpy as np

from distir.axes.rescale import resize
from distir.errors import ScheduleError, TransformError
from distir.execute.computing import NUMPY, Computing
from distir.execute.counts import Counts, StageMemory
from distir.execute.devices import Shards, VirtualMesh, Wire
from distir.execute.live import LiveArrays, Meter, array_bytes
from distir.execute.stage_program import (
    FilledSlot,
    ResultSlot,
    SlotInstruction,
    StageProgram,
    flatten,
)
from distir.execute.values import OptimizerStep
from distir.ir.core import Array, Node, Op, Value
from distir.ir.types import DType, TensorType
from distir.ops.collective import Collective
from distir.ops.host import rests_on_host
from distir.ops.ring import Ring
from distir.plan import BlockProgram, ParameterUse, Plan, Stage
from distir.plan.positions import positions_of
from distir.schedules import Action
from distir.transforms.instantiate import Instantiation
from distir.transforms.moves import Layout, Local, move
from distir.workload import MOMENT_BYTES, OUTER_OPTIMIZERS


@dataclass(frozen=True, slots=True)
class Message:
    """The values that one stage sends to another: per value one array per device, and the bytes of
    all values on one device. `sender` is the stage it comes from if that is on another rank, and
    None if no message crosses a link."""

    shards: tuple[Shards, ...] = ()
    size_bytes: float = 0.0
    sender: int | None = None


@dataclass(slots=True)
class Parameter:
    """A parameter on a rank: the `shards` that devices store, and the shards that they own (see
    glossary) of the parameter, of the optimizer's moments and of the settled gradient."""

    value: Value
    shards: Shards
    owned: Shards
    moments: list[Shards]
    gradient: Shards | None = None
    outer: list[Shards] = field(default_factory=list[Shards])
    """What an outer optimizer keeps: a copy of the parameter, and its moments."""


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
    """The devices of one stage on one rank.

    `loss_gradient` is the derivative of the batch's loss by that of a microbatch. `parameters` are
    those of the rank, shared by its stages; a stage updates those that it `holds`, which are those
    that no earlier stage of the rank loaded. `uses` lists where blocks read a parameter, as
    (block of the stage, place in the block's list of parameters). With a `wire`, one device of the
    stage is here, and the others are in processes of their own. `computing` holds the arrays.
    """

    plan: Plan
    stage: Stage
    meter: Meter
    host_meter: Meter
    parameters: dict[Value, Parameter]
    loss_gradient: float
    wire: Wire | None = None
    computing: Computing = NUMPY
    counts: Counts = field(default_factory=Counts)
    program: StageProgram = field(init=False)
    holds: set[Value] = field(default_factory=set[Value])
    uses: dict[Value, list[tuple[int, int]]] = field(
        default_factory=dict[Value, list[tuple[int, int]]]
    )
    results: dict[int, list[Shards]] = field(default_factory=dict[int, list[Shards]])
    """Per microbatch, the shards of the outputs that the program lists as its results."""
    _meshes: tuple[VirtualMesh, ...] = field(init=False)
    _running: dict[int, _Running] = field(default_factory=dict[int, _Running])
    _accumulated: dict[tuple[int, int], Shards] = field(
        default_factory=dict[tuple[int, int], Shards]
    )
    _stored: dict[int, Shards] = field(default_factory=dict[int, Shards])
    _free_shards: dict[tuple[int, int], Shards] = field(
        default_factory=dict[tuple[int, int], Shards]
    )
    """Free values by slot and microbatch."""
    _moving: dict[int, Sequence[Node]] = field(default_factory=dict[int, Sequence[Node]])
    """By slot, what lays a parameter out for the programs."""
    _counted: dict[Node, _NodeCount] = field(default_factory=dict[Node, "_NodeCount"])
    _optimizer_counted: dict[Value, float] = field(default_factory=dict[Value, float])
    _done: set[int] = field(default_factory=set[int])

    def __post_init__(self) -> None:
        self.program = flatten(self.stage.programs, self.plan.schedule.splits_backward)
        self._meshes = tuple(
            VirtualMesh(self.plan.mesh, program.sizes, self.wire, self.computing)
            for program in self.stage.programs
        )

    # --- parameters at rest ----------------------------------------------------------------------

    def load(
        self, parameters: Mapping[Value, Array], moments: Mapping[Value, tuple[Array, ...]]
    ) -> None:
        """Stores every parameter of the stage and its optimizer state, sharded as planned."""
        for block, program in enumerate(self.stage.programs):
            actual = self._block(block).parameters
            for place, value in enumerate(actual):
                self.uses.setdefault(value, []).append((block, place))
                if value in self.parameters:
                    continue
                self.holds.add(value)
                use, array = program.parameters[place], parameters[value]
                stored = self._scattered(block, use, array, use.stored)
                owned = self._scattered(block, use, array, use.owned)
                own_moments = [
                    self._scattered(block, use, moment, use.owned)
                    for moment in moments.get(value, ())
                ]
                owned = self._held(owned, self._updated_dtype(value))
                self.parameters[value] = Parameter(
                    value,
                    self._held(stored, self._dtype(value)),
                    owned,
                    [self._held(moment, DType.FLOAT32) for moment in own_moments],
                    outer=self._outer_state(owned, program),
                )
        self._lay_out_parameters()

    def begin_step(self, *, new_inputs: bool = False) -> None:
        """Forgets what the step before left, but for parameters and optimizer state; and what it
        knows of inputs, if there are new ones."""
        if new_inputs:
            self._free_shards.clear()
        self.results.clear()
        self._done.clear()
        self._accumulated.clear()
        for value in self.holds:
            self.parameters[value].gradient = None
        self._lay_out_parameters()

    def _outer_state(self, owned: Shards, program: BlockProgram) -> list[Shards]:
        """What an outer optimizer starts from: the parameter, and moments of zero."""
        outer = OUTER_OPTIMIZERS.get(program.outer_optimizer)
        if outer is None:
            return []
        nothing = [self._held([0.0 * shard for shard in owned], DType.FLOAT32)]
        return [list(owned), *(nothing * outer.num_moments)]

    def _scattered(self, block: int, use: ParameterUse, array: Array, layout: Layout) -> Shards:
        dims = self.stage.programs[block].placed.step.axes.dims[use.value]
        return self._meshes[block].scatter(array, dims, layout)

    def _held(self, shards: Shards, dtype: DType) -> Shards:
        return [self.computing.held(shard, dtype) for shard in shards]

    def _dtype(self, value: Value) -> DType:
        """The type in which ops read a parameter."""
        own = value.type.dtype
        return self.plan.workload.types.compute if own.is_float else own

    def _updated_dtype(self, value: Value) -> DType:
        """The type in which the optimizer updates a parameter."""
        return self.plan.workload.types.master or self._dtype(value)

    def _moves(self, source: FilledSlot, use: ParameterUse) -> Sequence[Node]:
        """What brings a parameter from the layout at rest to that in which a program reads it."""
        if source.slot not in self._moving:
            program = self.stage.programs[source.block]
            steps, _ = move(Local(use.value, use.stored), source.local.layout)
            making = Instantiation(self.plan.mesh, program.placed.step.axes, program.sizes, {})
            self._moving[source.slot] = making.nodes(steps)
        return self._moving[source.slot]

    def _lay_out_parameters(self) -> None:
        """Makes the shards of parameters in the layouts that the blocks' programs start from."""
        for source in self.program.sources:
            if source.parameter is None:
                continue
            use = self.stage.programs[source.block].parameters[source.parameter]
            actual = self._block(source.block).parameters[source.parameter]
            shards = self.parameters[actual].shards
            for node in self._moves(source, use):
                (shards,) = self._step(source.block, node, [shards])
            self._stored[source.slot] = shards

    def _block(self, block: int) -> Any:
        return self.plan.workload.program.blocks.blocks[self.stage.blocks[block]]

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
        if not self.plan.workload.training:
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
                live.shards[source.slot] = self._stored[source.slot]
                continue
            key = (source.slot, index)
            if key not in self._free_shards:
                if source.block not in by_block:
                    by_block[source.block] = self._free_of_block(source.block, free)
                self._free_shards[key] = self._shards_of(source, by_block[source.block])
            live.shards[source.slot] = self._free_shards[key]

    def _shards_of(self, source: FilledSlot, known: Mapping[Value, Array]) -> Shards:
        program = self.stage.programs[source.block]
        dims = program.placed.step.axes.dims[source.local.value]
        array = known.get(source.local.value)
        if array is None:
            raise TransformError(f"the value of {source.local.value} is not known")
        shards = self._meshes[source.block].scatter(array, dims, source.local.layout)
        return self._held(shards, self.program.types[source.slot].type.dtype)

    def _free_of_block(self, block: int, free: Mapping[Value, Array]) -> dict[Value, Array]:
        """The free values that a block reads, by the values of the block's program (which equal
        blocks share)."""
        program = self.stage.programs[block]
        step, sizes = program.placed.step, program.sizes
        known = {
            own: free[actual]
            for own, actual in zip(step.block.free, self._block(block).free, strict=True)
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
            self.counts.add_received(message.sender, sum(sizes))
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
            made = self._step(each.block, each.node, operands)
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

    def whole_results(self, microbatch: int) -> list[tuple[Value, Array]]:
        """The outputs of the model that this stage made of a microbatch: the program's value, and
        its whole array."""
        made = zip(self.program.results, self.results[microbatch], strict=True)
        return [(self._actual_result(each), self._whole_result(each, own)) for each, own in made]

    def _whole_result(self, result: ResultSlot, shards: Shards) -> Array:
        dims = self.stage.programs[result.block].placed.step.axes.dims[result.local.value]
        return self._meshes[result.block].gather(shards, dims, result.local.layout)

    def _actual_result(self, result: ResultSlot) -> Value:
        own = self.stage.programs[result.block].placed.step.block.results
        return self._block(result.block).results[own.index(result.local.value)]

    def _accumulate(self, running: _Running, slot: int) -> None:
        shards = running.live.shards[slot]
        for use in running.awaited_gradients.pop(slot):
            buffer = self._buffer(*use)
            before = self._accumulated.get(buffer)
            total = shards if before is None else _added(before, shards)
            self._accumulated[buffer] = self._held(total, self.plan.workload.types.gradient)

    # --- ops -------------------------------------------------------------------------------------

    def _step(self, block: int, node: Node, operands: list[Shards]) -> list[Shards]:
        """Runs one op on all devices of the stage, and counts it."""
        made = self._meshes[block].step(node, operands)
        self._count(node, operands, made)
        return made

    def _count(self, node: Node, operands: list[Shards], made: list[Shards]) -> None:
        count = self._counted.get(node)
        if count is None:
            count = self._counted[node] = _count(node, operands, made)
        if count.collective is not None:
            self.counts.add_collective(*count.collective, count.size_bytes)
        self.counts.flops += count.flops

    def _in_buckets(
        self, block: int, held: Mapping[int, Shards], nodes_of: Sequence[Sequence[Node]]
    ) -> dict[int, Shards]:
        """Runs, for each place in a block's list of parameters, its nodes on what is held there.
        Equal collectives of the block go as one message, as they are priced."""
        done = dict(held)
        for turn in range(max((len(nodes_of[place]) for place in held), default=0)):
            buckets: dict[object, list[int]] = {}
            for place in held:
                for node in nodes_of[place][turn : turn + 1]:
                    op = node.op
                    equal = (op.kind, op.mesh_axes, op.name) if _is_single(op) else place
                    buckets.setdefault(equal, []).append(place)
            for places in buckets.values():
                nodes = [nodes_of[place][turn] for place in places]
                before = [done[place] for place in places]
                done.update(zip(places, self._together(block, nodes, before), strict=True))
        return done

    def _together(self, block: int, nodes: list[Node], operands: list[Shards]) -> list[Shards]:
        if not _is_single(nodes[0].op):
            return self._step(block, nodes[0], operands)
        made = self._meshes[block].bucket(nodes, operands)
        for node, before, after in zip(nodes, operands, made, strict=True):
            self._count(node, [before], [after])
        return made

    # --- the end of the step ---------------------------------------------------------------------

    def settle(self) -> None:
        """Adds up every parameter's gradient over the mesh, and over its uses on this stage."""
        settled = [self._settled(block) for block in range(len(self.stage.programs))]
        for value, uses in self.uses.items():
            parameter = self.parameters[value]
            for block, place in uses:
                gradient = settled[block].get(place)
                if gradient is not None:
                    before = parameter.gradient
                    parameter.gradient = gradient if before is None else _added(before, gradient)

    def _settled(self, block: int) -> dict[int, Shards]:
        """By place, the settled gradients of a block's parameters."""
        program = self.stage.programs[block]
        own = {place: shards for (at, place), shards in self._accumulated.items() if at == block}
        return self._in_buckets(block, own, program.settle_by_parameter)

    def _buffer(self, block: int, place: int) -> tuple[int, int]:
        """The (block, place) whose buffer accumulates a gradient: uses of one parameter share the
        buffer of the first use that has its gradient in the same layout."""
        uses = self.uses[self._block(block).parameters[place]]
        wanted = self._gradient_positions(block, place)
        return next(use for use in uses if self._gradient_positions(*use) == wanted)

    def _gradient_positions(self, block: int, place: int) -> object:
        program = self.stage.programs[block]
        gradient = program.parameters[place].gradient
        if gradient is None:
            return None
        return positions_of(gradient.layout, program.placed.step.axes.dims[gradient.value])

    def update(self, optimizer: OptimizerStep) -> None:
        """Runs the optimizer's step on the owned part of every parameter, and makes the stored
        shards from the result."""
        updated: dict[int, dict[int, Shards]] = {}
        for value in self.parameters:
            if value not in self.holds:
                continue
            parameter = self.parameters[value]
            if parameter.gradient is None:
                continue
            block, place = self.uses[value][0]
            operands = [parameter.owned, parameter.gradient, *parameter.moments]
            dtypes = [self._updated_dtype(value), *(DType.FLOAT32 for _ in parameter.moments)]
            made = [
                self.computing.evaluate(optimizer, {}, arrays, dtypes)
                for arrays in zip(*operands, strict=True)
            ]
            owned, *parameter.moments = [list(shards) for shards in zip(*made, strict=True)]
            parameter.owned = owned
            self.counts.flops += self._optimizer_flops(value, optimizer, operands)
            updated.setdefault(block, {})[place] = self._held(owned, self._dtype(value))
        self._store(updated)

    def average(self) -> None:
        """Takes the mean over replicas of every parameter that has been updated, or with an outer
        optimizer of its difference from the copy, along which that makes its step. Moments of the
        optimizer stay each replica's own."""
        replicas, made = self.plan.strategy.dp, dict[int, dict[int, Shards]]()
        for block, changed in self._changed().items():
            program = self.stage.programs[block]
            added = self._in_buckets(block, changed, program.averaging_by_parameter)
            for place, shards in added.items():
                mean = [shard / replicas for shard in shards]
                value = self._block(block).parameters[place]
                parameter = self.parameters[value]
                parameter.owned = self._outer_step(value, parameter, mean)
                made.setdefault(block, {})[place] = self._held(parameter.owned, self._dtype(value))
        self._store(made)

    def _changed(self) -> dict[int, dict[int, Shards]]:
        """By block and place, what replicas average of the parameters that they have updated."""
        found: dict[int, dict[int, Shards]] = {}
        for value in self.holds:
            parameter = self.parameters[value]
            if parameter.gradient is not None:
                shards = parameter.owned
                if parameter.outer:
                    shards = [x - y for x, y in zip(parameter.outer[0], shards, strict=True)]
                block, place = self.uses[value][0]
                found.setdefault(block, {})[place] = shards
        return found

    def _outer_step(self, value: Value, parameter: Parameter, mean: Shards) -> Shards:
        """The parameter that replicas go on from, given the mean of what they have averaged."""
        if not parameter.outer:
            return mean
        copy, *moments = parameter.outer
        operands = [copy, mean, *moments]
        step = OUTER_OPTIMIZERS[self.plan.strategy.outer_optimizer]
        dtypes = [self._updated_dtype(value), *(DType.FLOAT32 for _ in moments)]
        made = [
            self.computing.evaluate(step, {}, arrays, dtypes)
            for arrays in zip(*operands, strict=True)
        ]
        parameter.outer = [list(shards) for shards in zip(*made, strict=True)]
        types = [value.type.with_shape(np.shape(shards[0])) for shards in operands]
        self.counts.flops += types[0].num_elements
        self.counts.flops += float(step.work(types, [types[0], *types[2:]]).flops)
        return parameter.outer[0]

    def _store(self, updated: Mapping[int, Mapping[int, Shards]]) -> None:
        """Makes stored parameters from their owned parts, by block and place."""
        for block, owned in updated.items():
            refresh = self.stage.programs[block].refresh_by_parameter
            for place, shards in self._in_buckets(block, owned, refresh).items():
                value = self._block(block).parameters[place]
                self.parameters[value].shards = shards

    def _optimizer_flops(
        self, value: Value, optimizer: OptimizerStep, operands: Sequence[Shards]
    ) -> float:
        if value not in self._optimizer_counted:
            types = [value.type.with_shape(np.shape(shards[0])) for shards in operands]
            flops = float(optimizer.work(types, [types[0], *types[2:]]).flops)
            self._optimizer_counted[value] = flops
        return self._optimizer_counted[value]

    def whole(self, value: Value, shards: Shards, *, owned: bool = True) -> Array:
        """The whole array from a parameter's shards, which are laid out as they are owned, or else
        as they are stored."""
        block, place = self.uses[value][0]
        program = self.stage.programs[block]
        use = program.parameters[place]
        dims = program.placed.step.axes.dims[use.value]
        return self._meshes[block].gather(shards, dims, use.owned if owned else use.stored)

    def state(self) -> StageMemory:
        """Bytes that a device keeps over the whole step, in the workload's element types."""
        types, workload = self.plan.workload.types, self.plan.workload
        master = types.master.itemsize if types.master is not None else 0
        parameters = gradients = optimizer = host = 0.0
        for parameter in (self.parameters[value] for value in self.holds):
            block, _ = self.uses[parameter.value][0]
            program = self.stage.programs[block]
            stored = float(np.size(parameter.shards[0])) * types.compute.itemsize
            parameters += 0.0 if program.rests_on_host else stored
            host += stored if program.rests_on_host else 0.0
            if parameter.gradient is None:
                continue
            elements = float(np.size(parameter.gradient[0]))
            updated = elements * master
            kept = [*parameter.moments, *parameter.outer[1:]]
            updated += sum(np.size(each[0]) for each in kept) * MOMENT_BYTES
            copies = sum(np.size(each[0]) for each in parameter.outer[:1])
            updated += copies * (master or types.compute.itemsize)
            if program.updates_on_host:
                host += updated + elements * types.gradient_bytes
            else:
                optimizer += updated
        for (block, place), shards in self._accumulated.items():
            if not self.stage.programs[block].parameters[place].gradient_on_host:
                gradients += float(np.size(shards[0])) * types.gradient_bytes
        state_inputs = self._state_inputs
        inputs = sum(
            array_bytes(shards, self.program.types[slot])
            for (slot, _), shards in self._free_shards.items()
            if slot in state_inputs
        )
        gradients = gradients if workload.training else 0.0
        return StageMemory(parameters, gradients, optimizer, inputs, host)

    @property
    def _state_inputs(self) -> set[int]:
        """The slots of inputs that this step leaves for the next."""
        programs = self.stage.programs
        return {
            source.slot
            for source in self.program.sources
            if programs[source.block].values[source.local] in programs[source.block].state_inputs
        }


def _is_single(op: Op) -> TypeGuard[Collective]:
    """Whether an op is a collective of one tensor."""
    return isinstance(op, Collective) and op.tensors == (op,)


def _added(a: Shards, b: Shards) -> Shards:
    return [x + y for x, y in zip(a, b, strict=True)]


@dataclass(frozen=True, slots=True)
class _NodeCount:
    """What an op of a program adds to the counts, every time that it runs."""

    flops: float
    collective: tuple[str, tuple[str, ...]] | None
    size_bytes: float


def _count(node: Node, operands: list[Shards], results: list[Shards]) -> _NodeCount:
    op, types = node.op, types_of(node, operands, results)
    flops = 0.0 if isinstance(op, Collective) else float(op.work(*types).flops)
    if isinstance(op, (Collective, Ring)):
        return _NodeCount(flops, (op.kind, op.mesh_axes), float(op.total_bytes(*types)))
    return _NodeCount(flops, None, 0.0)


def types_of(
    node: Node, operands: list[Shards], results: list[Shards]
) -> tuple[list[TensorType], list[TensorType]]:
    """Types of the shards that an op read and made on the first device."""
    operand_types, result_types = (
        [
            value.type.with_shape(np.shape(shards[0]))
            for value, shards in zip(values, arrays, strict=True)
        ]
        for values, arrays in ((node.operands, operands), (node.results, results))
    )
    return operand_types, result_types


def computed(array: Array, value: Value) -> Array:
    """The array in the type in which the executor computes: float64 for real numbers."""
    return np.asarray(array, np.float64) if value.type.dtype.is_float else np.asarray(array)
