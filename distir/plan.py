"""A plan: a strategy applied to a workload. Stage programs plus a schedule.

`Planner` makes plans for one workload and remembers what they share: the step of every distinct
block, its placement per mesh, its program per size.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from distir.axes.model import Axis, AxisDims
from distir.errors import StrategyError, UnknownNameError
from distir.ir.core import Node, Value
from distir.ir.types import TensorType
from distir.schedules import CompiledSchedule, compile_schedule, find_schedule, forward_only
from distir.strategy import Strategy
from distir.transforms.fuse import fuse_elementwise
from distir.transforms.instantiate import Instantiation, Sizes
from distir.transforms.place import Entry, Layout, Local, Mesh, Pending, move
from distir.transforms.place_block import BlockPlacer, PlacedBlock
from distir.transforms.recompute import RECOMPUTE, recompute
from distir.transforms.step import BlockStep, build_step, lowered_ops
from distir.workload import Workload


@dataclass(frozen=True, slots=True, eq=False)
class ParameterUse:
    """A parameter of a block: how it is stored on a device and where its gradient comes from.

    `type` is one device's part at rest, in the compute precision. `gradient` is None where the
    parameter is not trained.
    """

    value: Value
    type: TensorType
    stored: Layout
    gradient: Local | None


@dataclass(frozen=True, eq=False)
class BlockProgram:
    """A block's SPMD program at given sizes: what every device of its stage runs.

    `settle` adds up the gradients over the mesh once per step; `parameters` are in the block's
    order.
    """

    placed: PlacedBlock
    sizes: Sizes
    values: Mapping[Local, Value]
    forward: tuple[Node, ...]
    backward: tuple[Node, ...]
    settle: tuple[Node, ...]
    settled: Mapping[Value, Local]
    parameters: tuple[ParameterUse, ...]

    def locals(self, which: Iterable[Local | None]) -> tuple[Value, ...]:
        """Values that stand for shards."""
        return tuple(self.values[local] for local in which if local is not None)

    @cached_property
    def settle_by_parameter(self) -> tuple[tuple[Node, ...], ...]:
        """`settle`, cut into what belongs to each parameter."""
        found: list[tuple[Node, ...]] = []
        rest = list(reversed(self.settle))
        for use in self.parameters:
            own: list[Node] = []
            value = None if use.gradient is None else self.values[use.gradient]
            while rest and rest[-1].operands[0] is value:
                own.append(rest.pop())
                value = own[-1].result
            found.append(tuple(own))
        return tuple(found)

    @cached_property
    def inputs(self) -> tuple[Value, ...]:
        """Activations that the forward pass is given."""
        return self.locals(self.placed.inputs)

    @cached_property
    def outputs(self) -> tuple[Value, ...]:
        """Activations that it hands on."""
        return self.locals(self.placed.outputs)

    @cached_property
    def output_gradients(self) -> tuple[Value, ...]:
        """What the backward pass is given."""
        return self.locals(self.placed.output_gradients)

    @cached_property
    def input_gradients(self) -> tuple[Value, ...]:
        """What it hands on."""
        return self.locals(self.placed.input_gradients)

    @cached_property
    def saved(self) -> frozenset[Value]:
        """What rests from the forward to the backward pass."""
        return frozenset(self.locals(self.placed.saved))


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """One pipeline stage: a run of blocks, by index in the workload's program."""

    index: int
    blocks: tuple[int, ...]
    programs: tuple[BlockProgram, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """Stage programs plus schedule. Device `(stage, place in mesh)` runs its stage's program."""

    workload: Workload
    strategy: Strategy
    mesh: Mesh
    sizes: Sizes
    stages: tuple[Stage, ...]
    schedule: CompiledSchedule

    @property
    def devices_per_stage(self) -> int:
        """Number of devices that share a stage."""
        count = 1
        for degree in self.sizes.degrees:
            count *= degree
        return count

    def stride(self, mesh_axis: str) -> int:
        """Distance between neighbours along a mesh axis, in device numbers."""
        stride = 1
        for name, degree in zip(
            reversed(self.mesh.names), reversed(self.sizes.degrees), strict=True
        ):
            if name == mesh_axis:
                return stride
            stride *= degree
        raise KeyError(mesh_axis)


Positions = tuple[object, ...]
"""A layout without axes: per mesh axis None, `Pending`, or (dim, place in the dim)."""


def positions_of(layout: Layout, dims: AxisDims) -> Positions:
    """What a layout says about any value whose dims have the same structure."""
    found: list[object] = []
    for spot in layout:
        if isinstance(spot, Axis):
            place = next((d, f.index(spot)) for d, f in enumerate(dims) if spot in f)
            found.append(place)
        else:
            found.append(spot)
    return tuple(found)


def layout_at(positions: Positions, dims: AxisDims) -> Layout:
    """The inverse of `positions_of`, for a value with these dims."""
    return tuple(
        dims[spot[0]][spot[1]] if isinstance(spot, tuple) else spot  # type: ignore[index,misc]
        for spot in positions
    )


class Planner:
    """Makes plans for one workload."""

    def __init__(self, workload: Workload, *, fuse: bool = False) -> None:
        """`fuse`: whether chains of elementwise ops run as one kernel."""
        self.workload = workload
        self.fuse = fuse
        self.program = workload.program
        self._steps: dict[object, BlockStep] = {}
        self._forward: dict[object, BlockPlacer] = {}
        self._placed: dict[object, PlacedBlock] = {}
        self._chains: dict[object, tuple[PlacedBlock, ...]] = {}
        self._programs: dict[object, BlockProgram] = {}
        self._schedules: dict[object, CompiledSchedule] = {}
        self._meshes: dict[object, Mesh] = {}
        self._sizes: dict[object, Sizes] = {}
        self._instantiated: dict[object, tuple[BlockProgram, ...]] = {}

    # --- what a strategy means ----------------------------------------------------------------------

    def explain(self, strategy: Strategy) -> str | None:
        """Why the strategy cannot be applied to this workload, or None."""
        return (
            self._explain_batch(strategy)
            or self._explain_tensor(strategy)
            or self._explain_sequence(strategy)
            or self._explain_stages(strategy)
            or self._explain_training(strategy)
        )

    def _explain_batch(self, strategy: Strategy) -> str | None:
        batch = self.workload.batch_size
        pieces = strategy.dp * strategy.microbatches
        if batch % pieces == 0:
            return None
        return (
            f"batch size {batch} does not divide by dp x microbatches = {strategy.dp} x "
            f"{strategy.microbatches} = {pieces}"
        )

    def _explain_tensor(self, strategy: Strategy) -> str | None:
        for label, size in self.workload.internal_axes:
            if size % strategy.tp:
                fitting = ", ".join(str(d) for d in range(1, min(size, 64) + 1) if size % d == 0)
                return f"{label} ({size}) does not divide by tp = {strategy.tp}; {fitting} do"
        return None

    def _explain_sequence(self, strategy: Strategy) -> str | None:
        if strategy.sequence_parallel and strategy.tp == 1:
            return "sequence_parallel needs tp > 1: it rests the sequence on the devices of tp"
        pieces = strategy.cp * (strategy.tp if strategy.sequence_parallel else 1)
        if pieces == 1:
            return None
        which = "cp x tp" if strategy.sequence_parallel and strategy.cp > 1 else (
            "cp" if strategy.cp > 1 else "tp"
        )
        length = self.workload.length
        if length is None or self.program.sequence is None:
            return f"{which} = {pieces} splits the sequence, but the model has no sequence axis"
        if length % pieces:
            return f"sequence length {length} does not divide by {which} = {pieces}"
        return None

    def _explain_stages(self, strategy: Strategy) -> str | None:
        if self.workload.training:
            family = find_schedule(strategy.schedule)
            reason = family.requires(strategy.pp, strategy.chunks, strategy.microbatches)
            if reason is not None:
                return reason
            if family.splits_backward or family.copies > 1:
                return f"the schedule {family.name} cannot be simulated yet"
        if strategy.stages <= self.workload.num_blocks:
            return None
        return (
            f"pp x chunks = {strategy.pp} x {strategy.chunks} = {strategy.stages} stages, but the "
            f"model has {self.workload.num_blocks} blocks; expected at most one stage per block"
        )

    def _explain_training(self, strategy: Strategy) -> str | None:
        if strategy.recompute not in RECOMPUTE:
            return str(UnknownNameError("recompute", strategy.recompute, RECOMPUTE.names()))
        if self.workload.training:
            return None
        if strategy.zero:
            return f"zero = {strategy.zero} shards what training keeps; inference has zero = 0"
        if strategy.recompute != "none":
            return "there is no backward pass to recompute for in inference; use recompute none"
        return None

    def mesh(self, strategy: Strategy) -> tuple[Mesh, tuple[int, ...]]:
        """The device grid of a stage, without mesh axes of degree 1, and its degrees."""
        degrees = {"dp": strategy.dp, "cp": strategy.cp, "tp": strategy.tp}
        lists = self._lists(strategy)
        key = tuple(lists.items())
        if key not in self._meshes:
            group = self.program.blocks.group
            self._meshes[key] = Mesh(tuple(lists), tuple(lists.values()), group)
        mesh = self._meshes[key]
        return mesh, tuple(degrees[name] for name in mesh.names)

    def _lists(self, strategy: Strategy) -> dict[str, tuple[Entry, ...]]:
        """Per mesh axis, outermost first, the axes that it may split."""
        program = self.program
        blocks = program.blocks
        lists: dict[str, tuple[Entry, ...]] = {}
        sequences = tuple(
            Entry(axis)
            for axis in dict.fromkeys(blocks.group.get(a, a) for a in program.extents.sequences)
        )
        if strategy.dp > 1:
            lists["dp"] = (Entry(blocks.group.get(program.batch, program.batch)),)
        if strategy.cp > 1:
            lists["cp"] = sequences
        if strategy.tp > 1:
            # An output axis that does not divide just stays whole.
            outputs = (axis for axis in blocks.output_axes if axis.size % strategy.tp == 0)
            own = tuple(Entry(axis) for axis in (*blocks.internal_axes, *outputs))
            lists["tp"] = (*own, *sequences) if strategy.sequence_parallel else own
        return lists

    def schedule(self, strategy: Strategy) -> CompiledSchedule:
        """The strategy's schedule for its ranks, chunks and microbatches; raises
        `ScheduleError`."""
        family = find_schedule(strategy.schedule) if self.workload.training else forward_only
        key = (family, strategy.pp, strategy.chunks, strategy.microbatches)
        if key not in self._schedules:
            self._schedules[key] = compile_schedule(family(*key[1:]))
        return self._schedules[key]

    # --- programs of blocks ---------------------------------------------------------------------------

    def block_programs(self, strategy: Strategy) -> tuple[BlockProgram, ...]:
        """One program per block of the model; equal blocks share theirs."""
        mesh, degrees = self.mesh(strategy)
        samples = self.workload.batch_size // strategy.microbatches
        # Shapes depend on the samples per replica, and on degrees where they are local.
        key = (mesh, degrees, samples, strategy.recompute)
        if key not in self._instantiated:
            sizes = Sizes(self.workload.sizes(samples), degrees, self.workload.types.compute)
            chain = self._chain(mesh, strategy.recompute)
            stored = self._stored_layouts(mesh, chain)
            self._instantiated[key] = tuple(
                self._block_program(placed, sizes, stored[index], key)
                for index, placed in enumerate(chain)
            )
        return self._instantiated[key]

    def _chain(self, mesh: Mesh, recomputed: str) -> tuple[PlacedBlock, ...]:
        """Every block placed: forward from first to last, then backward."""
        key = (mesh, recomputed)
        if key not in self._chains:
            self._chains[key] = self._place_chain(mesh, recomputed)
        return self._chains[key]

    def _place_chain(self, mesh: Mesh, recomputed: str) -> tuple[PlacedBlock, ...]:
        blocks = self.program.blocks
        placers: list[BlockPlacer] = []
        handed: list[Positions] = []
        for index in range(len(blocks.blocks)):
            first = blocks.representative[index]
            placer = self._place_forward(mesh, first, tuple(handed), recomputed)
            placers.append(placer)
            dims = placer.step.axes.dims
            handed = [
                positions_of(local.layout, dims[local.value]) for local in placer.outputs
            ]
        placed: list[PlacedBlock] = []
        handed = []
        for placer in reversed(placers):
            block = self._place_backward(placer, tuple(handed))
            placed.append(block)
            dims = block.step.axes.dims
            handed = [
                positions_of(local.layout, dims[local.value])
                for local in block.input_gradients
                if local is not None
            ]
        return tuple(reversed(placed))

    def _place_forward(
        self, mesh: Mesh, first: int, handed: tuple[Positions, ...], recomputed: str
    ) -> BlockPlacer:
        key = (mesh, first, handed, recomputed)
        if key not in self._forward:
            block = self.program.blocks.blocks[first]
            lowered = lowered_ops(self.program.blocks, block, mesh.lists)
            step = self._step(first, lowered, recomputed)
            layouts = tuple(
                layout_at(positions, step.axes.dims[value])
                for positions, value in zip(handed, block.inputs, strict=True)
            )
            self._forward[key] = BlockPlacer(step, mesh, layouts)
        return self._forward[key]

    def _step(self, first: int, lowered: frozenset[int], recomputed: str) -> BlockStep:
        key = (first, lowered, recomputed)
        if key not in self._steps:
            blocks = self.program.blocks
            step = build_step(blocks, blocks.blocks[first], lowered, self.workload.training)
            if self.workload.training and recomputed != "none":
                dropped = RECOMPUTE.get(recomputed)(blocks, step)
                step = recompute(step, dropped, eager=recomputed == "full")
            self._steps[key] = step
        return self._steps[key]

    def _place_backward(
        self, placer: BlockPlacer, handed: tuple[Positions, ...]
    ) -> PlacedBlock:
        key = (placer, handed)
        if key not in self._placed:
            step = placer.step
            given = [step.output_gradients[v] for v in step.block.outputs if v in step.output_gradients]
            layouts = tuple(
                layout_at(positions, step.axes.dims[value])
                for positions, value in zip(handed, given, strict=True)
            )
            self._placed[key] = placer.backward(layouts)
        return self._placed[key]

    def _stored_layouts(
        self, mesh: Mesh, chain: tuple[PlacedBlock, ...]
    ) -> list[dict[Value, Positions]]:
        """Per block and parameter where it rests: as its uses need it if they agree (over all
        blocks that use it), otherwise whole."""
        blocks = self.program.blocks
        demands: dict[Value, set[Positions]] = {}
        corresponding: list[dict[Value, Value]] = []
        for index, placed in enumerate(chain):
            first = blocks.blocks[blocks.representative[index]]
            own = dict(zip(first.parameters, blocks.blocks[index].parameters, strict=True))
            corresponding.append(own)
            for local in placed.demanded:
                if local.value in own:
                    dims = placed.step.axes.dims[local.value]
                    demands.setdefault(own[local.value], set()).add(
                        positions_of(local.layout, dims)
                    )
        whole: Positions = mesh.whole
        stored: list[dict[Value, Positions]] = []
        for own in corresponding:
            chosen: dict[Value, Positions] = {}
            for value, actual in own.items():
                wanted = demands.get(actual, {whole})
                chosen[value] = next(iter(wanted)) if len(wanted) == 1 else whole
            stored.append(chosen)
        return stored

    def _block_program(
        self, placed: PlacedBlock, sizes: Sizes, stored: Mapping[Value, Positions], size_key: object
    ) -> BlockProgram:
        key = (placed, size_key, tuple(stored.values()))
        if key not in self._programs:
            self._programs[key] = instantiate_block(placed, sizes, stored, self.fuse)
        return self._programs[key]

    # --- plans ------------------------------------------------------------------------------------------

    def plan(self, strategy: Strategy, cuts: Iterable[int]) -> Plan:
        """The plan with stages cut before the blocks in `cuts` (ascending, without 0)."""
        reason = self.explain(strategy)
        if reason is not None:
            raise StrategyError(reason)
        programs = self.block_programs(strategy)
        bounds = [0, *cuts, len(programs)]
        mesh, _ = self.mesh(strategy)
        stages = tuple(
            Stage(index, tuple(range(a, b)), programs[a:b])
            for index, (a, b) in enumerate(zip(bounds, bounds[1:], strict=False))
        )
        return Plan(
            self.workload, strategy, mesh, programs[0].sizes, stages, self.schedule(strategy)
        )


def instantiate_block(
    placed: PlacedBlock, sizes: Sizes, stored: Mapping[Value, Positions], fuse: bool = False
) -> BlockProgram:
    """Fills sizes into a placed block and adds what happens to its parameters."""
    step, mesh = placed.step, placed.mesh
    sizes = _with_tied_sizes(sizes, step)
    making = Instantiation(mesh, step.axes, sizes, {})
    forward = tuple(making.nodes(placed.forward))
    backward = tuple(making.nodes(placed.backward))
    settle: list[Node] = []
    settled: dict[Value, Local] = {}
    parameters: list[ParameterUse] = []
    for value in step.block.parameters:
        layout = layout_at(stored[value], step.axes.dims[value])
        type = sizes.local_type(value, step.axes.dims[value], layout)
        gradient = placed.parameter_gradients.get(value)
        if gradient is not None:
            gradient_layout = layout_at(stored[value], step.axes.dims[gradient.value])
            steps, settled[value] = move(gradient, gradient_layout)
            settle.extend(making.nodes(steps))
        parameters.append(ParameterUse(value, type, layout, gradient))
    every = (
        *placed.inputs, *placed.outputs, *placed.results, *placed.output_gradients,
        *placed.input_gradients, *placed.demanded, *placed.saved,
        *placed.parameter_gradients.values(), *settled.values(),
    )
    for local in every:
        if local is not None:
            making.value(local)
    if fuse:
        forward, backward = _fuse(placed, making, forward, backward)
    return BlockProgram(
        placed, sizes, making.values, forward, backward, tuple(settle), settled, tuple(parameters)
    )


def _fuse(
    placed: PlacedBlock,
    making: Instantiation,
    forward: tuple[Node, ...],
    backward: tuple[Node, ...],
) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
    """Both passes with elementwise chains as one kernel each."""
    made_forward = (*placed.outputs, *placed.results, *placed.saved)
    made_backward = (*placed.input_gradients, *placed.parameter_gradients.values())
    return (
        fuse_elementwise(forward, {making.value(local) for local in made_forward}),
        fuse_elementwise(backward, {making.value(x) for x in made_backward if x is not None}),
    )


def _with_tied_sizes(sizes: Sizes, step: BlockStep) -> Sizes:
    """Axes that the step added behind boundaries have the sizes of those they are tied to."""
    known = dict(sizes.axes)
    groups: dict[Axis, list[Axis]] = {}
    for axis, root in step.axes.ties.items():
        groups.setdefault(root, [root]).append(axis)
    for members in groups.values():
        size = next((known[axis] for axis in members if axis in known), None)
        if size is not None:
            known.update(dict.fromkeys(members, size))
    return Sizes(known, sizes.degrees, sizes.dtype)


__all__ = [
    "BlockProgram",
    "ParameterUse",
    "Pending",
    "Plan",
    "Planner",
    "Stage",
    "instantiate_block",
]
