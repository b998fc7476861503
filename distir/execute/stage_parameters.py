"""The parameters that the devices of a stage store: their gradients, and how they are updated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from distir.execute.counts import StageMemory
from distir.execute.devices import Shards
from distir.execute.stage_ops import StageOps
from distir.execute.stage_program import FilledSlot, StageProgram
from distir.execute.values import OptimizerStep
from distir.ir.core import Array, Node, Value
from distir.ir.types import DType
from distir.plan import BlockProgram, ParameterUse
from distir.plan.positions import positions_of
from distir.transforms.instantiate import Instantiation
from distir.transforms.moves import Local, move
from distir.workload import OUTER_OPTIMIZERS


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
class StageParameters:
    """The parameters of a stage, `of_rank` those of its whole rank, which the rank's stages share;
    a stage updates those that it `holds`, which are those that no earlier stage of the rank loaded.
    `uses` lists where blocks read a parameter, as (block of the stage, place in the block's list of
    parameters).
    """

    ops: StageOps
    program: StageProgram
    of_rank: dict[Value, Parameter]
    holds: set[Value] = field(default_factory=set[Value])
    uses: dict[Value, list[tuple[int, int]]] = field(
        default_factory=dict[Value, list[tuple[int, int]]]
    )
    laid_out: dict[int, Shards] = field(default_factory=dict[int, Shards])
    """By slot, the shards of parameters as the blocks' programs start from them."""
    _accumulated: dict[tuple[int, int], Shards] = field(
        default_factory=dict[tuple[int, int], Shards]
    )
    _moving: dict[int, Sequence[Node]] = field(default_factory=dict[int, Sequence[Node]])
    """By slot, what lays a parameter out for the programs."""
    _optimizer_counted: dict[Value, float] = field(default_factory=dict[Value, float])

    # --- at rest ---------------------------------------------------------------------------------

    def load(
        self, parameters: Mapping[Value, Array], moments: Mapping[Value, tuple[Array, ...]]
    ) -> None:
        """Stores every parameter of the stage and its optimizer state, sharded as planned."""
        for block, program in enumerate(self.ops.stage.programs):
            actual = self.ops.block(block).parameters
            for place, value in enumerate(actual):
                self.uses.setdefault(value, []).append((block, place))
                if value in self.of_rank:
                    continue
                self.holds.add(value)
                use, array = program.parameters[place], parameters[value]
                stored = self.ops.scatter(block, use.value, array, use.stored)
                owned = self.ops.scatter(block, use.value, array, use.owned)
                own_moments = [
                    self.ops.scatter(block, use.value, moment, use.owned)
                    for moment in moments.get(value, ())
                ]
                owned = self.ops.held(owned, self._updated_dtype(value))
                types = self.ops.plan.workload.types
                self.of_rank[value] = Parameter(
                    value,
                    self.ops.held(stored, self._dtype(value)),
                    owned,
                    [self.ops.held(moment, types.moment) for moment in own_moments],
                    outer=self._outer_state(owned, program),
                )
        self._lay_out()

    def begin_step(self) -> None:
        """Forgets the gradients of the step before."""
        self._accumulated.clear()
        for value in self.holds:
            self.of_rank[value].gradient = None
        self._lay_out()

    def _outer_state(self, owned: Shards, program: BlockProgram) -> list[Shards]:
        """What an outer optimizer starts from: the parameter, and moments of zero."""
        outer = OUTER_OPTIMIZERS.get(program.outer_optimizer)
        if outer is None:
            return []
        types = self.ops.plan.workload.types
        nothing = [self.ops.held([0.0 * shard for shard in owned], types.moment)]
        return [list(owned), *(nothing * outer.num_moments)]

    def _dtype(self, value: Value) -> DType:
        """The type in which ops read a parameter."""
        own = value.type.dtype
        return self.ops.plan.workload.types.compute if own.is_float else own

    def _updated_dtype(self, value: Value) -> DType:
        """The type in which the optimizer updates a parameter."""
        return self.ops.plan.workload.types.master or self._dtype(value)

    def _moves(self, source: FilledSlot, use: ParameterUse) -> Sequence[Node]:
        """What brings a parameter from the layout at rest to that in which a program reads it."""
        if source.slot not in self._moving:
            program = self.ops.stage.programs[source.block]
            steps, _ = move(Local(use.value, use.stored), source.local.layout)
            making = Instantiation(self.ops.plan.mesh, program.placed.step.axes, program.sizes, {})
            self._moving[source.slot] = making.nodes(steps)
        return self._moving[source.slot]

    def _lay_out(self) -> None:
        """Makes the shards of parameters in the layouts that the blocks' programs start from."""
        for source in self.program.sources:
            if source.parameter is None:
                continue
            use = self.ops.stage.programs[source.block].parameters[source.parameter]
            actual = self.ops.block(source.block).parameters[source.parameter]
            shards = self.of_rank[actual].shards
            for node in self._moves(source, use):
                (shards,) = self.ops.step(source.block, node, [shards])
            self.laid_out[source.slot] = shards

    # --- gradients -------------------------------------------------------------------------------

    def accumulate(self, block: int, place: int, shards: Shards) -> None:
        """Adds a gradient of a microbatch to the buffer of its parameter, which is known by its
        place in a block's list of parameters."""
        buffer = self._buffer(block, place)
        before = self._accumulated.get(buffer)
        total = shards if before is None else _added(before, shards)
        self._accumulated[buffer] = self.ops.held(total, self.ops.plan.workload.types.gradient)

    def _buffer(self, block: int, place: int) -> tuple[int, int]:
        """The (block, place) whose buffer accumulates a gradient: uses of one parameter share the
        buffer of the first use that has its gradient in the same layout."""
        uses = self.uses[self.ops.block(block).parameters[place]]
        wanted = self._gradient_positions(block, place)
        return next(use for use in uses if self._gradient_positions(*use) == wanted)

    def _gradient_positions(self, block: int, place: int) -> object:
        program = self.ops.stage.programs[block]
        gradient = program.parameters[place].gradient
        if gradient is None:
            return None
        return positions_of(gradient.layout, program.placed.step.axes.dims[gradient.value])

    def settle(self) -> None:
        """Adds up every parameter's gradient over the mesh, and over its uses on this stage."""
        settled = [self._settled(block) for block in range(len(self.ops.stage.programs))]
        for value, uses in self.uses.items():
            parameter = self.of_rank[value]
            for block, place in uses:
                gradient = settled[block].get(place)
                if gradient is not None:
                    before = parameter.gradient
                    parameter.gradient = gradient if before is None else _added(before, gradient)

    def _settled(self, block: int) -> dict[int, Shards]:
        """By place, the settled gradients of a block's parameters."""
        program = self.ops.stage.programs[block]
        own = {place: shards for (at, place), shards in self._accumulated.items() if at == block}
        return self.ops.in_buckets(block, own, program.settle_by_parameter)

    # --- updates ---------------------------------------------------------------------------------

    def update(self, optimizer: OptimizerStep) -> None:
        """Runs the optimizer's step on the owned part of every parameter, and makes the stored
        shards from the result."""
        updated: dict[int, dict[int, Shards]] = {}
        types = self.ops.plan.workload.types
        for value in self.of_rank:
            if value not in self.holds:
                continue
            parameter = self.of_rank[value]
            if parameter.gradient is None:
                continue
            block, place = self.uses[value][0]
            operands = [parameter.owned, parameter.gradient, *parameter.moments]
            dtypes = [self._updated_dtype(value), *(types.moment for _ in parameter.moments)]
            made = [
                self.ops.computing.evaluate(optimizer, {}, arrays, dtypes)
                for arrays in zip(*operands, strict=True)
            ]
            owned, *parameter.moments = [list(shards) for shards in zip(*made, strict=True)]
            parameter.owned = owned
            self.ops.counts.flops += self._optimizer_flops(value, optimizer, operands)
            updated.setdefault(block, {})[place] = self.ops.held(owned, self._dtype(value))
        self._store(updated)

    def average(self) -> None:
        """Takes the mean over replicas of every parameter that has been updated, or with an outer
        optimizer of its difference from the copy, along which that makes its step. Moments of the
        optimizer stay each replica's own."""
        replicas, made = self.ops.plan.strategy.dp, dict[int, dict[int, Shards]]()
        for block, changed in self._changed().items():
            program = self.ops.stage.programs[block]
            added = self.ops.in_buckets(block, changed, program.averaging_by_parameter)
            for place, shards in added.items():
                mean = [shard / replicas for shard in shards]
                value = self.ops.block(block).parameters[place]
                parameter = self.of_rank[value]
                parameter.owned = self._outer_step(value, parameter, mean)
                made.setdefault(block, {})[place] = self.ops.held(
                    parameter.owned, self._dtype(value)
                )
        self._store(made)

    def _changed(self) -> dict[int, dict[int, Shards]]:
        """By block and place, what replicas average of the parameters that they have updated."""
        found: dict[int, dict[int, Shards]] = {}
        for value in self.holds:
            parameter = self.of_rank[value]
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
        step = OUTER_OPTIMIZERS[self.ops.plan.strategy.outer_optimizer]
        types = self.ops.plan.workload.types
        dtypes = [self._updated_dtype(value), *(types.moment for _ in moments)]
        made = [
            self.ops.computing.evaluate(step, {}, arrays, dtypes)
            for arrays in zip(*operands, strict=True)
        ]
        parameter.outer = [list(shards) for shards in zip(*made, strict=True)]
        types = [value.type.with_shape(np.shape(shards[0])) for shards in operands]
        self.ops.counts.flops += types[0].num_elements
        self.ops.counts.flops += float(step.work(types, [types[0], *types[2:]]).flops)
        return parameter.outer[0]

    def _store(self, updated: Mapping[int, Mapping[int, Shards]]) -> None:
        """Makes stored parameters from their owned parts, by block and place."""
        for block, owned in updated.items():
            refresh = self.ops.stage.programs[block].refresh_by_parameter
            for place, shards in self.ops.in_buckets(block, owned, refresh).items():
                value = self.ops.block(block).parameters[place]
                self.of_rank[value].shards = shards

    def _optimizer_flops(
        self, value: Value, optimizer: OptimizerStep, operands: Sequence[Shards]
    ) -> float:
        if value not in self._optimizer_counted:
            types = [value.type.with_shape(np.shape(shards[0])) for shards in operands]
            flops = float(optimizer.work(types, [types[0], *types[2:]]).flops)
            self._optimizer_counted[value] = flops
        return self._optimizer_counted[value]

    # --- what is there ---------------------------------------------------------------------------

    def whole(self, value: Value, shards: Shards, *, owned: bool = True) -> Array:
        """The whole array from a parameter's shards, which are laid out as they are owned, or else
        as they are stored."""
        block, place = self.uses[value][0]
        use = self.ops.stage.programs[block].parameters[place]
        return self.ops.gather(block, use.value, shards, use.owned if owned else use.stored)

    def state(self) -> StageMemory:
        """Bytes that parameters, gradients and optimizer states take on a device over the whole
        step, in the workload's element types."""
        types, workload = self.ops.plan.workload.types, self.ops.plan.workload
        parameters = gradients = optimizer = host = 0.0
        for parameter in (self.of_rank[value] for value in self.holds):
            block, _ = self.uses[parameter.value][0]
            program = self.ops.stage.programs[block]
            stored = float(np.size(parameter.shards[0])) * types.compute.itemsize
            parameters += 0.0 if program.rests_on_host else stored
            host += stored if program.rests_on_host else 0.0
            if parameter.gradient is None:
                continue
            updated = self._updated_bytes(parameter)
            if program.updates_on_host:
                host += updated + np.size(parameter.gradient[0]) * types.gradient_bytes
            else:
                optimizer += updated
        for (block, place), shards in self._accumulated.items():
            if not self.ops.stage.programs[block].parameters[place].gradient_on_host:
                gradients += float(np.size(shards[0])) * types.gradient_bytes
        gradients = gradients if workload.training else 0.0
        return StageMemory(parameters, gradients, optimizer, 0.0, host)

    def _updated_bytes(self, parameter: Parameter) -> float:
        """Bytes of what the optimizers keep of a parameter whose gradient is known."""
        types = self.ops.plan.workload.types
        master = types.master.itemsize if types.master is not None else 0
        moments = [*parameter.moments, *parameter.outer[1:]]
        size = float(np.size(parameter.owned[0])) * master
        size += sum(np.size(each[0]) for each in moments) * types.moment.itemsize
        copies = sum(np.size(each[0]) for each in parameter.outer[:1])
        return size + copies * (master or types.compute.itemsize)


def _added(a: Shards, b: Shards) -> Shards:
    return [x + y for x, y in zip(a, b, strict=True)]


__all__ = ["Parameter", "StageParameters"]
