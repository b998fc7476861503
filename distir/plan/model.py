"""What a plan is: stage programs plus a schedule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from distir.axes.model import Axes, Axis
from distir.cost.amounts import smaller
from distir.ir.core import Node, Value
from distir.ir.types import TensorType
from distir.ops.collective import Collective, Release
from distir.ops.elementwise import Cast
from distir.plan.grid import DeviceGrid
from distir.program import Program
from distir.schedules import BACKWARD, FORWARD, INPUT_PART, CompiledSchedule
from distir.strategy import Strategy
from distir.transforms.bucket import bucketed
from distir.transforms.fuse import fuse_elementwise
from distir.transforms.instantiate import Sizes
from distir.transforms.moves import Layout, Local
from distir.transforms.place import Mesh
from distir.transforms.place_block import PlacedBlock
from distir.transforms.split_backward import split_backward
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
    gradient_on_host: bool = False
    """Whether that is added up in the memory of the host."""


@dataclass(frozen=True, slots=True, eq=False)
class BlockPass:
    """What a block does in one kind of action: `gathers` bring the parameters together that it
    reads, `received` comes from the block before it in the pass, `sent` is for the one after."""

    gathers: tuple[Node, ...]
    nodes: tuple[Node, ...]
    received: tuple[Value, ...] = ()
    sent: tuple[Value, ...] = ()


def elements_of(values: Mapping[Local, Value], axes: Axes) -> Callable[[Value], object]:
    """Which elements a value has: those of its axes, as they are split. Axes say it for every size
    alike; that two sizes happen to be equal means nothing."""
    locals_ = {value: local for local, value in values.items()}
    known: dict[Value, object] = {}

    def elements(value: Value) -> object:
        found = known.get(value)
        if found is None:
            local = locals_.get(value)
            found = known[value] = value if local is None else _elements(local, axes)
        return found

    return elements


def _elements(local: Local, axes: Axes) -> object:
    split = [(place, spot) for place, spot in enumerate(local.layout) if isinstance(spot, Axis)]
    tied = frozenset([(place, axes.ties.get(spot, spot)) for place, spot in split])
    return axes.tied_of(local.value), tied


@dataclass(frozen=True, slots=True, eq=False)
class HostedValues:
    """What a block's forward pass leaves in the memory of the host: `saved` of its values, as the
    `copies` that the forward pass makes. `landing` is the end of these copies, and `returns` bring
    what the backward pass reads back to the device."""

    saved: frozenset[Value]
    copies: tuple[Value, ...]
    landing: Node
    returns: tuple[Node, ...]
    without: BlockProgram
    """The program that leaves nothing there."""

    @property
    def size_bytes(self) -> float:
        """Bytes of a microbatch on the host."""
        return sum(1.0 * copy.type.size_bytes for copy in self.copies)


@dataclass(frozen=True, eq=False, repr=False)
class BlockProgram:
    """A block's SPMD program at given sizes: what every device of its stage runs.

    `forward_gathers` and `backward_gathers` bring the parameters of a pass together that rest in
    smaller parts than it reads; `kept_gathered` stay for the backward pass. Where gathers stand in
    a stage's program is the matter of `passes`.
    Per parameter, `settle_by_parameter` adds up its gradient over the mesh once per step, into
    the part that a device owns, and `refresh_by_parameter` makes the stored parameter from the
    owned parts after the optimizer's step. `scatter_by_parameter` shares out its gradient in every
    backward pass, but for the positions in `adds_up`. `backward_ops` are `computed_backward` and
    these scatters. `elements` says which elements a value has, if elementwise ops are fused within
    an action; None if they are not.
    `given` are the parameters and free values that the passes start from; `parameters` are in the
    block's order.
    """

    placed: PlacedBlock
    sizes: Sizes
    values: Mapping[Local, Value]
    forward: tuple[Node, ...]
    computed_backward: tuple[Node, ...]
    scatter_by_parameter: tuple[tuple[Node, ...], ...]
    elements: Callable[[Value], object] | None
    forward_gathers: tuple[Node, ...]
    backward_gathers: tuple[Node, ...]
    kept_gathered: tuple[Value, ...]
    settle_by_parameter: tuple[tuple[Node, ...], ...]
    settled: Mapping[Value, Local]
    refresh_by_parameter: tuple[tuple[Node, ...], ...]
    given: tuple[Local, ...]
    parameters: tuple[ParameterUse, ...]
    adds_up: tuple[int, ...] = ()
    updates_on_host: bool = False
    """Whether the optimizer's state is in the memory of the host, and its step is run there."""
    rests_on_host: bool = False
    """Whether parameters are in the memory of the host, from where passes gather them."""
    averaging_by_parameter: tuple[tuple[Node, ...], ...] = ()
    """Per parameter what adds up its owned part over replicas, where these do not synchronise in
    every step but `sync_every` few."""
    sync_every: int = 1
    outer_optimizer: str = "mean"
    """What replicas that synchronise every few steps make of their parameters."""
    hosted: HostedValues | None = None
    """What the forward pass leaves on the host for the backward pass."""

    def __repr__(self) -> str:
        forward, backward = len(self.forward), len(self.computed_backward)
        return f"<BlockProgram: {forward} ops forward, {backward} backward>"

    def adding_up(self, positions: Iterable[int]) -> BlockProgram:
        """The program that adds up over microbatches the gradients of the parameters at these
        positions, and shares them out once per step instead of in every backward pass."""
        added = tuple([at for at in positions if at in self._shared_out])
        if not added:
            return self
        if added not in self._adding_up:
            settle, scatter = list(self.settle_by_parameter), list(self.scatter_by_parameter)
            uses = list(self.parameters)
            for at in added:
                # What is added up has the type in which gradients are shared out.
                shared_out = (node for node in scatter[at] if not isinstance(node.op, Cast))
                settle[at], scatter[at] = (*shared_out, *settle[at]), ()
                whole = self.placed.parameter_gradients[uses[at].value]
                uses[at] = replace(uses[at], gradient=whole, gradient_on_host=False)
            self._adding_up[added] = replace(
                self,
                settle_by_parameter=tuple(settle),
                scatter_by_parameter=tuple(scatter),
                parameters=tuple(uses),
                adds_up=tuple(sorted({*self.adds_up, *added})),
            )
        return self._adding_up[added]

    @cached_property
    def _shared_out(self) -> frozenset[int]:
        """The positions of parameters whose gradients backward passes share out."""
        every = enumerate(self.scatter_by_parameter)
        return frozenset([at for at, nodes in every if any(map(_communicates, nodes))])

    @cached_property
    def _adding_up(self) -> dict[tuple[int, ...], BlockProgram]:
        return {}

    @cached_property
    def state_inputs(self) -> tuple[Value, ...]:
        """The shards of inputs that outputs of the block carry on (see glossary, *state input*)."""
        carried = self.placed.step.carried_on
        held: dict[Value, Value] = {}
        for local in self.given:
            if local.value in carried:
                shard = self.values[local]
                other = held.get(local.value)
                if other is None or bool(other.type.size_bytes < shard.type.size_bytes):
                    held[local.value] = shard
        return tuple(held.values())

    @cached_property
    def backward_ops(self) -> tuple[Node, ...]:
        """The ops of the backward pass, which no action has fused yet."""
        return (*self.computed_backward, *bucketed(self.scatter_by_parameter))

    def trained_elements(self, without: Collection[int] = ()) -> int:
        """Elements of parameters that one device updates, but for those at the positions
        `without`."""
        return sum(
            use.owned_type.num_elements
            for position, use in enumerate(self.parameters)
            if use.gradient is not None and position not in without
        )

    def in_action(self, kind: int) -> BlockPass:
        """What the block does in a kind of action, by the numbers of `distir.schedules`."""
        if kind == FORWARD:
            return self.forward_pass
        return self.backward_pass if kind == BACKWARD else self.backward_parts[kind - INPUT_PART]

    def gathered_ahead(self, kind: int) -> tuple[tuple[Node, ...], tuple[Value, ...]]:
        """What is gathered for the block while the one before it runs, and what that ends with. Its
        values are not those of the block, so that the block can follow itself."""
        if kind not in self._gathered_ahead:
            gathers = self.in_action(kind).gathers
            values = fresh_values(
                value for node in gathers for value in (*node.operands, *node.results)
            )
            ends = tuple(values[value] for value in ends_of(gathers))
            self._gathered_ahead[kind] = with_values(gathers, values), ends
        return self._gathered_ahead[kind]

    @cached_property
    def read_again_bytes(self) -> float:
        """Bytes of parameters that passes read as they are on all devices which share states, if
        the backward pass reads any parameter again; else 0. So much stays from a forward pass to
        its backward pass where states rest in parts, and what is gathered is kept."""
        parameters, mesh = {use.value for use in self.parameters}, self.placed.mesh
        shards = [(each, self.values[each]) for each in self.given if each.value in parameters]
        read = {value for node in self.computed_backward for value in node.operands}
        if read.isdisjoint(shard for _, shard in shards):
            return 0.0
        found: dict[Value, Any] = {}
        for local, shard in shards:
            spots = zip(mesh.names, local.layout, strict=True)
            if all(spot is None for name, spot in spots if name in mesh.sharding):
                size = shard.type.size_bytes
                found[local.value] = smaller(found.get(local.value, size), size)
        return sum(found.values())

    @cached_property
    def _gathered_ahead(self) -> dict[int, tuple[tuple[Node, ...], tuple[Value, ...]]]:
        return {}

    @cached_property
    def landing_behind(self) -> tuple[Node, ...]:
        """The end of the block's copies to the host, which is that of the block after it, in values
        that are not those of the block."""
        if self.hosted is None:
            return ()
        values = fresh_values(self.hosted.landing.operands)
        return with_values((self.hosted.landing,), values)

    @cached_property
    def forward_pass(self) -> BlockPass:
        """The forward pass."""
        return BlockPass(self.forward_gathers, self.forward, self.inputs, self.outputs)

    @cached_property
    def backward_pass(self) -> BlockPass:
        """The backward pass as one action."""
        gathers = (*self.backward_gathers, *self._returns)
        return BlockPass(gathers, self.backward, self.output_gradients, self.input_gradients)

    @property
    def _returns(self) -> tuple[Node, ...]:
        return self.hosted.returns if self.hosted is not None else ()

    @cached_property
    def backward(self) -> tuple[Node, ...]:
        """The ops of the backward pass as one action."""
        return self._fused(self.backward_ops, ())

    @cached_property
    def backward_parts(self) -> tuple[BlockPass, BlockPass]:
        """The backward pass as two actions: what the gradients handed on need, and the rest.

        A part that reads gathered parameters gathers them itself and drops them at its end. What
        comes back from the host does so once, for the first part.
        """
        releases = [node for node in self.backward_ops if isinstance(node.op, Release)]
        first, second = split_backward(self.backward_ops, self.input_gradients)
        gathered = {value for node in releases for value in node.operands}
        held, late = (
            not gathered.isdisjoint(
                value for node in part if node not in releases for value in node.operands
            )
            for part in (first, second)
        )
        first += releases if held else []
        gathers = self.backward_gathers
        if held and late:
            gathers, second = _with_own_values(gathers, second)
        elif not late:
            second = [node for node in second if node not in releases]
        read = [value for node in second for value in node.operands]
        return (
            BlockPass(
                (*(self.backward_gathers if held else ()), *self._returns),
                self._fused(first, read),
                self.output_gradients,
                self.input_gradients,
            ),
            BlockPass(gathers if late else (), self._fused(second, ())),
        )

    def _fused(self, nodes: Sequence[Node], read: Iterable[Value]) -> tuple[Node, ...]:
        """A pass with elementwise chains as one kernel each; `read` is read by another one."""
        if self.elements is None:
            return tuple(nodes)
        gradients = self.locals(use.gradient for use in self.parameters)
        leaving = {*self.input_gradients, *gradients, *read}
        return fuse_elementwise(nodes, leaving, self.elements)

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
    def outputs_repeated_along(self) -> tuple[str, ...]:
        """Mesh axes whose devices all hold the same outputs."""
        return self._repeated_along(self.placed.outputs)

    @cached_property
    def input_gradients_repeated_along(self) -> tuple[str, ...]:
        """Mesh axes whose devices all hold the same gradients of the inputs."""
        return self._repeated_along(self.placed.input_gradients)

    def _repeated_along(self, which: Iterable[Local | None]) -> tuple[str, ...]:
        layouts = [local.layout for local in which if local is not None]
        return tuple(
            name
            for index, name in enumerate(self.placed.mesh.names)
            if all(layout[index] is None for layout in layouts)
        )

    @cached_property
    def saved(self) -> frozenset[Value]:
        """What rests from the forward to the backward pass."""
        kept = {*self.locals(self.placed.saved), *self.kept_gathered}
        if self.hosted is not None:
            kept = (kept - self.hosted.saved).union(self.hosted.copies)
        return frozenset(kept)


def _communicates(node: Node) -> bool:
    return isinstance(node.op, Collective)


def in_one_stage(
    program: Program, blocks: Sequence[int], programs: Sequence[BlockProgram]
) -> tuple[BlockProgram, ...]:
    """The programs of the blocks of a stage. Gradients of parameters that several of the blocks use
    are added up over the uses and over microbatches, and shared out once per step."""
    shared = program.shared_uses
    counts = Counter([value for block in blocks for value in shared[block]])
    if not counts or max(counts.values()) < 2:
        return tuple(programs)
    return tuple(
        [
            own.adding_up([at for value, at in shared[block].items() if counts[value] > 1])
            for block, own in zip(blocks, programs, strict=True)
        ]
    )


def _with_own_values(
    gathers: Sequence[Node], nodes: Sequence[Node]
) -> tuple[tuple[Node, ...], list[Node]]:
    """Clones of nodes that gather, and the nodes that read from them."""
    own = fresh_values(value for node in gathers for value in node.results)
    return with_values(gathers, own), list(with_values(nodes, own))


def fresh_values(values: Iterable[Value]) -> dict[Value, Value]:
    """Another value of the same type in place of each."""
    return {value: Value(value.type, value.name) for value in dict.fromkeys(values)}


def with_values(nodes: Iterable[Node], values: Mapping[Value, Value]) -> tuple[Node, ...]:
    """The same nodes with other values in place of those that are listed."""
    return tuple(
        replace(
            node,
            operands=tuple(values.get(value, value) for value in node.operands),
            results=tuple(values.get(value, value) for value in node.results),
        )
        for node in nodes
    )


def ends_of(gathers: Sequence[Node]) -> tuple[Value, ...]:
    """What gathering ends with: the results that it does not read itself."""
    read = {value for node in gathers for value in node.operands}
    return tuple(value for node in gathers for value in node.results if value not in read)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Stage:
    """One pipeline stage: a run of blocks, by index in the workload's program."""

    index: int
    blocks: tuple[int, ...]
    programs: tuple[BlockProgram, ...]

    def __repr__(self) -> str:
        return f"<Stage {self.index}: blocks {self.blocks[0]} to {self.blocks[-1]}>"


@dataclass(frozen=True, eq=False, repr=False)
class Plan:
    """Stage programs plus schedule. Device `(stage, place in mesh)` runs its stage's program."""

    workload: Workload
    strategy: Strategy
    mesh: Mesh
    sizes: Sizes
    stages: tuple[Stage, ...]
    schedule: CompiledSchedule
    recomputed: tuple[str, ...] = ()
    """Per block of the model what it recomputes, where the plan chooses that per layer."""

    def __repr__(self) -> str:
        stages = len(self.stages)
        return f"<Plan {self.strategy.label}: {stages} {'stage' if stages == 1 else 'stages'}>"

    @property
    def devices_per_stage(self) -> int:
        """Number of devices that share a stage."""
        count = 1
        for degree in self.sizes.degrees:
            count *= degree
        return count

    @cached_property
    def grid(self) -> DeviceGrid:
        """Where the devices lie."""
        ranks = len(self.schedule.stages_of_ranks)
        return DeviceGrid.of(self.mesh, self.sizes.degrees, ranks, self.strategy.placement)

    @property
    def padding(self) -> dict[str, tuple[int, int]]:
        """By label the axes that are padded so that they divide: their size, and the padded one."""
        sizes, label = self.sizes, self.workload.program.label
        return {label(axis): (sizes.unpadded[axis], size) for axis, size in sizes.padded.items()}
