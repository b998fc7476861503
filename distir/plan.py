"""A plan: a strategy applied to a workload. Stage programs plus a schedule.

`Planner` makes plans for one workload and remembers what they share: the step of every distinct
block, its placement per mesh, its program per size.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from distir.axes.model import Axis, AxisDims
from distir.errors import StrategyError, UnknownNameError
from distir.ir.core import Node, Part, Value
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
    """A parameter of a block: how a device stores it and where its gradient comes from.

    `type` is one device's stored part, in the compute precision; `owned_type` the part that it
    updates and keeps the optimizer's state of, which sharded states make smaller. `gradient` is
    what the backward pass adds up over microbatches, None where the parameter is not trained.
    """

    value: Value
    type: TensorType
    stored: Layout
    owned_type: TensorType
    owned: Layout
    gradient: Local | None


@dataclass(frozen=True, eq=False)
class BlockProgram:
    """A block's SPMD program at given sizes: what every device of its stage runs.

    Per parameter, `settle_by_parameter` adds up its gradient over the mesh once per step, into
    the part that a device owns, and `refresh_by_parameter` makes the stored parameter from the
    owned parts after the optimizer's step.
    `given` are the parameters and free values that the passes start from; `parameters` are in the
    block's order.
    """

    placed: PlacedBlock
    sizes: Sizes
    values: Mapping[Local, Value]
    forward: tuple[Node, ...]
    backward: tuple[Node, ...]
    settle_by_parameter: tuple[tuple[Node, ...], ...]
    settled: Mapping[Value, Local]
    refresh_by_parameter: tuple[tuple[Node, ...], ...]
    given: tuple[Local, ...]
    parameters: tuple[ParameterUse, ...]

    @property
    def settle(self) -> tuple[Node, ...]:
        """The settlement of all gradients."""
        return tuple(node for nodes in self.settle_by_parameter for node in nodes)

    def locals(self, which: Iterable[Local | None]) -> tuple[Value, ...]:
        """Values that stand for shards."""
        return tuple(self.values[local] for local in which if local is not None)

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
        zero = strategy.zero if strategy.dp > 1 else 0
        key = (mesh, degrees, samples, strategy.recompute, zero)
        if key not in self._instantiated:
            sizes = Sizes(self.workload.sizes(samples), degrees, self.workload.types.compute)
            chain = self._chain(mesh, strategy.recompute)
            stored = self._stored_layouts(mesh, chain)
            self._instantiated[key] = tuple(
                self._block_program(placed, sizes, stored[index], zero, key)
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
        self,
        placed: PlacedBlock,
        sizes: Sizes,
        stored: Mapping[Value, Positions],
        zero: int,
        size_key: object,
    ) -> BlockProgram:
        key = (placed, size_key, tuple(stored.values()))
        if key not in self._programs:
            self._programs[key] = instantiate_block(
                placed, sizes, stored, self.fuse, zero
            )
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
    placed: PlacedBlock,
    sizes: Sizes,
    stored: Mapping[Value, Positions],
    fuse: bool = False,
    zero: int = 0,
) -> BlockProgram:
    """Fills sizes into a placed block and adds what happens to its parameters.

    `stored` says where parameters rest if they are not sharded. The stages of `zero` shard over
    data parallelism what a device owns (1), the gradients it adds up (2), and what it stores (3).
    """
    step, mesh = placed.step, placed.mesh
    sizes = _with_tied_sizes(sizes, step)
    dims = step.axes.dims
    unsharded = {v: layout_at(stored[v], dims[v]) for v in step.block.parameters}
    owned = {
        v: _owned_layout(unsharded[v], dims[v], mesh, sizes) if zero else unsharded[v]
        for v in step.block.parameters
    }
    kept = owned if zero == 3 else unsharded
    making = Instantiation(mesh, step.axes, sizes, {})
    given, gathers = _gathers(placed, kept)
    forward = [*_gathered(making, gathers), *making.nodes(placed.forward)]
    # A gathered parameter is dropped after the forward pass and gathered again.
    backward = [*_gathered(making, gathers), *making.nodes(placed.backward)]
    settle: list[tuple[Node, ...]] = []
    settled: dict[Value, Local] = {}
    refresh: list[tuple[Node, ...]] = []
    parameters: list[ParameterUse] = []
    for value in step.block.parameters:
        gradient = placed.parameter_gradients.get(value)
        settling: list[Node] = []
        refreshing: list[Node] = []
        if gradient is not None:
            place = positions_of(owned[value], dims[value])
            steps, settled[value] = move(gradient, layout_at(place, dims[gradient.value]))
            settling = making.nodes(steps, Part.STATE)
            if zero >= 2:
                # Every microbatch's gradient is settled at once: only its owned part is kept.
                backward += settling
                settling, gradient = [], settled[value]
            steps, _ = move(Local(value, owned[value]), kept[value])
            refreshing = making.nodes(steps, Part.STATE)
        settle.append(tuple(settling))
        refresh.append(tuple(refreshing))
        parameters.append(
            ParameterUse(
                value,
                sizes.local_type(value, dims[value], kept[value]),
                kept[value],
                sizes.local_type(value, dims[value], owned[value]),
                owned[value],
                gradient,
            )
        )
    every = (
        *placed.inputs, *placed.outputs, *placed.results, *placed.output_gradients,
        *placed.input_gradients, *given, *placed.saved,
        *placed.parameter_gradients.values(), *settled.values(),
    )
    for local in every:
        if local is not None:
            making.value(local)
    if fuse:
        gradients = [use.gradient for use in parameters]
        forward, backward = _fuse(placed, making, gradients, forward, backward)
    return BlockProgram(
        placed=placed,
        sizes=sizes,
        values=making.values,
        forward=tuple(forward),
        backward=tuple(backward),
        settle_by_parameter=tuple(settle),
        settled=settled,
        refresh_by_parameter=tuple(refresh),
        given=given,
        parameters=tuple(parameters),
    )


def _owned_layout(layout: Layout, dims: AxisDims, mesh: Mesh, sizes: Sizes) -> Layout:
    """The layout split over data parallelism as well, on the first axis that divides; one that is
    not split yet, if there is one."""
    if "dp" not in mesh.names:
        return layout
    index = mesh.names.index("dp")
    splits = sizes.split_of(layout)
    axes = [axis for dim in dims for axis in dim]
    for axis in sorted(axes, key=lambda axis: axis in splits):
        pieces = splits.get(axis, 1) * sizes.degrees[index]
        if layout[index] is None and sizes.of(axis) % pieces == 0:
            return (*layout[:index], axis, *layout[index + 1 :])
    return layout


def _gathers(
    placed: PlacedBlock, kept: Mapping[Value, Layout]
) -> tuple[tuple[Local, ...], list[tuple[Local, Local]]]:
    """What the passes are given, and the pairs `(given, demanded)` that a collective stands
    between: parameters that are stored in smaller parts than they are read in."""
    given: list[Local] = []
    gathers: list[tuple[Local, Local]] = []
    stored: dict[Value, Local] = {}
    for local in placed.demanded:
        layout = kept.get(local.value)
        if layout is None or all(s is None or s is d for s, d in zip(layout, local.layout)):
            given.append(local)
            continue
        if local.value not in stored:
            stored[local.value] = Local(local.value, layout)
            given.append(stored[local.value])
        gathers.append((stored[local.value], local))
    return tuple(given), gathers


def _gathered(making: Instantiation, gathers: Sequence[tuple[Local, Local]]) -> list[Node]:
    """Nodes that gather parameters, in rounds of like steps, into fresh values."""
    rounds: list[list[Node]] = []
    for source, demanded in gathers:
        steps, reached = move(source, demanded.layout)
        for number, node in enumerate(making.nodes(steps, Part.STATE)):
            if number == len(rounds):
                rounds.append([])
            rounds[number].append(node)
        making.values[demanded] = making.value(reached)
    return [node for nodes in rounds for node in nodes]


def _fuse(
    placed: PlacedBlock,
    making: Instantiation,
    gradients: Sequence[Local | None],
    forward: Sequence[Node],
    backward: Sequence[Node],
) -> tuple[Sequence[Node], Sequence[Node]]:
    """Both passes with elementwise chains as one kernel each."""
    made_forward = (*placed.outputs, *placed.results, *placed.saved)
    made_backward = (*placed.input_gradients, *gradients)
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
