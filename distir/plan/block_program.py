"""From a placed block to the program that devices run: shapes, parameters, gradients, kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from distir.axes.model import Axis
from distir.ir.core import Node, Part, Value
from distir.ir.types import DType
from distir.ops.collective import Release
from distir.ops.elementwise import Cast
from distir.ops.host import ToDevice, ToHost
from distir.plan.model import BlockProgram, ParameterUse, elements_of
from distir.plan.positions import Positions, layout_at, positions_of
from distir.transforms.bucket import bucketed
from distir.transforms.fuse import fuse_elementwise
from distir.transforms.instantiate import Instantiation, Sizes
from distir.transforms.loss_copies import with_loss_copies
from distir.transforms.moves import FLAT, Layout, Local, Move, Pending, move
from distir.transforms.place import Mesh, Placed
from distir.transforms.place_block import PlacedBlock, operands_of
from distir.transforms.precision import in_type, read_by_products
from distir.transforms.routed import routed_rows
from distir.transforms.step import BlockStep
from distir.transforms.token_passes import NO_PASSES, TokenPasses, with_token_passes
from distir.workload import Precision

REPLICAS = "dp"
"""The degree along which replicas have parameters of their own between synchronisations."""


def instantiate_block(
    placed: PlacedBlock,
    sizes: Sizes,
    types: Precision,
    stored: Mapping[Value, Positions],
    fuse: bool = False,
    zero: int = 0,
    keep_parameters: bool = False,
    narrow: bool = False,
    token_passes: TokenPasses = NO_PASSES,
    loss_copies: int = 0,
    offloads: frozenset[str] = frozenset(),
    sync_every: int = 1,
    outer_optimizer: str = "mean",
) -> BlockProgram:
    """Fills sizes into a placed block and adds what happens to its parameters.

    `stored` says where parameters rest if they are not sharded. The stages of `zero` shard over
    data and context parallelism what a device owns (1), the gradients it adds up (2), and what it
    stores (3).
    `keep_parameters`: what is gathered for the forward pass stays for the backward pass. `narrow`:
    what nothing but products read is made in the type that products run in. `token_passes`: what
    happens to tokens on their way to experts and back. `loss_copies`: how many copies of the logits
    in fp32 the loss holds while its gradient is computed. `offloads`: what rests on the host.
    `sync_every`: every how many steps replicas synchronise, by which `outer_optimizer`.
    """
    step, mesh = placed.step, placed.mesh
    if step not in sizes.of_steps:
        sizes.of_steps[step] = _of_step(sizes, step, types.cast if narrow else None)
    sizes = sizes.of_steps[step]
    dims = step.axes.dims
    unsharded = {v: layout_at(stored[v], dims[v]) for v in step.block.parameters}
    owned = {
        v: _owned_layout(unsharded[v], mesh) if zero else unsharded[v]
        for v in step.block.parameters
    }
    kept = owned if zero == 3 else unsharded
    making = Instantiation(mesh, step.axes, sizes, {}, routed_rows(step))
    rests_on_host = "parameters" in offloads
    given, gathers = _gathers(placed, kept, everything=rests_on_host)
    forward_gathers, gathered = _gathered(making, gathers, placed.forward, from_host=rests_on_host)
    product = DType.parse(types.cast) if narrow and types.cast is not None else None
    forward, backward_gathers = making.nodes(placed.forward), ()
    saved = [making.value(local) for local in placed.saved]
    forward = with_token_passes(forward, saved, token_passes, product)
    stay = keep_parameters and _reads_gathered(placed.backward, gathers)
    kept_gathered = gathered if stay else ()
    if not kept_gathered:
        forward += _released(gathered)
        backward_gathers, gathered = _gathered(
            making, gathers, placed.backward, from_host=rests_on_host
        )
    computed = with_token_passes(making.nodes(placed.backward), (), token_passes, product)
    backward = [*with_loss_copies(computed, loss_copies), *_released(gathered)]
    programs = _ParameterPrograms(making, placed, types, zero, offloads, sync_every)
    by_parameter = [
        programs.of(value, kept[value], owned[value]) for value in step.block.parameters
    ]
    settled = {each.use.value: each.settled for each in by_parameter if each.settled is not None}
    every = (
        *placed.inputs,
        *placed.outputs,
        *placed.results,
        *placed.output_gradients,
        *placed.input_gradients,
        *given,
        *placed.saved,
        *placed.parameter_gradients.values(),
        *settled.values(),
    )
    for local in every:
        if local is not None:
            making.value(local)
    elements = elements_of(making.values, step.axes) if fuse else None
    if elements is not None:
        made = (*placed.outputs, *placed.results, *placed.saved)
        leaving = {making.value(local) for local in made}
        forward = fuse_elementwise(forward, leaving, elements)
    return BlockProgram(
        placed=placed,
        sizes=sizes,
        values=making.values,
        forward=tuple(forward),
        computed_backward=tuple(backward),
        scatter_by_parameter=tuple(each.scatter for each in by_parameter),
        elements=elements,
        forward_gathers=forward_gathers,
        backward_gathers=backward_gathers,
        kept_gathered=kept_gathered,
        settle_by_parameter=tuple(each.settle for each in by_parameter),
        settled=settled,
        refresh_by_parameter=tuple(each.refresh for each in by_parameter),
        averaging_by_parameter=tuple(each.averaging for each in by_parameter),
        sync_every=sync_every,
        outer_optimizer=outer_optimizer,
        given=given,
        parameters=tuple(each.use for each in by_parameter),
        updates_on_host="optimizer" in offloads,
        rests_on_host=rests_on_host,
    )


@dataclass(frozen=True, slots=True)
class _ParameterProgram:
    """What happens to a parameter beside the passes: `scatter` shares out its gradient in every
    backward pass, `settle` adds it up once per step, `refresh` makes the stored parameter from its
    updated part, and `averaging` adds that up over replicas. A parameter without a gradient has
    nothing of it."""

    use: ParameterUse
    settled: Local | None = None
    scatter: tuple[Node, ...] = ()
    settle: tuple[Node, ...] = ()
    refresh: tuple[Node, ...] = ()
    averaging: tuple[Node, ...] = ()


@dataclass(frozen=True, slots=True)
class _ParameterPrograms:
    """Makes these of the parameters of a block; see `instantiate_block`."""

    making: Instantiation
    placed: PlacedBlock
    types: Precision
    zero: int
    offloads: frozenset[str]
    sync_every: int

    def of(self, value: Value, kept: Layout, owned: Layout) -> _ParameterProgram:
        """What happens to a parameter that rests as `kept` and is updated as `owned`."""
        gradient = self.placed.parameter_gradients.get(value)
        if gradient is None:
            return _ParameterProgram(self._use(value, kept, owned, None))
        making, on_host = self.making, "optimizer" in self.offloads
        layout = self._settled_layout(value, gradient, owned)
        scatter: list[Node] = []
        if self.zero >= 2:
            # Only the owned part of every microbatch's gradient is kept.
            shared = _shared_at_once(gradient.layout, layout)
            scatter, gradient = _settled(making, gradient, shared, self.types, in_pass=True)
        settle, settled = _settled(making, gradient, layout, self.types)
        gradient_on_host = on_host and not settle
        if on_host:
            settled = _on_host(making, settled, settle or scatter)
            gradient = settled if gradient_on_host else gradient
        refresh = _refreshed(making, Local(value, owned), kept, self.offloads)
        return _ParameterProgram(
            self._use(value, kept, owned, gradient, gradient_on_host),
            settled,
            tuple(scatter),
            tuple(settle),
            tuple(refresh),
            self._averaging(value, owned),
        )

    def _use(
        self,
        value: Value,
        kept: Layout,
        owned: Layout,
        gradient: Local | None,
        gradient_on_host: bool = False,
    ) -> ParameterUse:
        dims, sizes = self.placed.step.axes.dims[value], self.making.sizes
        stored_type, owned_type = (sizes.local_type(value, dims, each) for each in (kept, owned))
        return ParameterUse(value, stored_type, kept, owned_type, owned, gradient, gradient_on_host)

    def _settled_layout(self, value: Value, gradient: Local, owned: Layout) -> Layout:
        dims = self.placed.step.axes.dims
        layout = layout_at(positions_of(owned, dims[value]), dims[gradient.value])
        if self.sync_every > 1:
            layout = _of_replica(gradient.layout, layout, self.placed.mesh)
        return layout

    def _averaging(self, value: Value, owned: Layout) -> tuple[Node, ...]:
        if self.sync_every == 1:
            return ()
        added = _added_over_replicas(self.making, value, owned, self.types)
        return _by_way_of_device(added) if "optimizer" in self.offloads else added


def _refreshed(
    making: Instantiation, updated: Local, layout: Layout, offloads: frozenset[str]
) -> list[Node]:
    """Nodes that make a stored parameter from its updated part, each of them where it rests."""
    steps, reached = move(updated, layout)
    rests, is_updated = "parameters" in offloads, "optimizer" in offloads
    if not rests or (is_updated and not steps):
        return making.nodes(steps, Part.STATE)
    chain: list[Node] = []
    if is_updated:
        there = making.value(updated)
        making.values[updated] = Value(there.type, there.name)
        chain.append(_to_device(there, making.values[updated]))
    chain += making.nodes(steps, Part.STATE)
    _on_host(making, reached, chain)
    return chain


def _to_device(there: Value, here: Value) -> Node:
    return Node(ToDevice(), (there,), (here,), part=Part.STATE)


def _on_host(making: Instantiation, local: Local, chain: list[Node]) -> Local:
    """The shard in the memory of the host; what copies it is added to the nodes that make it."""
    copied, there = making.value(local), Local(local.value, local.layout)
    making.values[there] = Value(copied.type, copied.name)
    chain.append(Node(ToHost(), (copied,), (making.values[there],), part=Part.STATE))
    return there


def _owned_layout(layout: Layout, mesh: Mesh) -> Layout:
    """The layout with states sharded as well: flat, over all mesh axes for it along which devices
    hold the same."""
    return tuple(
        FLAT if name in mesh.sharding and spot is None else spot
        for name, spot in zip(mesh.names, layout, strict=True)
    )


def _settled(
    making: Instantiation,
    gradient: Local,
    layout: Layout,
    types: Precision,
    *,
    in_pass: bool = False,
) -> tuple[list[Node], Local]:
    """Nodes that bring a gradient into a layout, in the type that gradients are added up in: what
    comes out of the ops of a pass (`in_pass`) is cast to it first."""
    steps, reached = move(gradient, layout)
    nodes = making.nodes(steps, Part.STATE)
    if nodes and types.gradient is not types.compute:
        local = making.value(gradient)
        nodes = in_type(nodes, types.gradient)
        making.values[reached] = nodes[-1].result
        if in_pass:
            wider = Cast(types.gradient)
            nodes[:0] = [Node(wider, (local,), nodes[0].operands, part=Part.STATE)]
    return nodes, reached


def _of_replica(gradient: Layout, owned: Layout, mesh: Mesh) -> Layout:
    """The layout of the gradient of a replica's own samples: with sums still pending over
    replicas."""
    return tuple(
        here if user == REPLICAS and isinstance(here, Pending) else wanted
        for user, here, wanted in zip(mesh.users, gradient, owned, strict=True)
    )


def _added_over_replicas(
    making: Instantiation, value: Value, owned: Layout, types: Precision
) -> tuple[Node, ...]:
    """Nodes that add up the owned parts of a parameter over replicas, in the type in which they are
    updated."""
    apart = tuple(
        Pending.SUM if user == REPLICAS else spot
        for user, spot in zip(making.mesh.users, owned, strict=True)
    )
    steps, _ = move(Local(value, apart), owned)
    return tuple(in_type(making.nodes(steps, Part.STATE), types.master or types.compute))


def _by_way_of_device(added: Sequence[Node]) -> tuple[Node, ...]:
    """Nodes that add something up, of what rests in the memory of the host: it is copied to the
    device before, and back to the host after that."""
    (given,), (made,) = added[0].operands, added[-1].results
    there, back = Value(given.type, given.name), Value(made.type, made.name)
    copied = Node(ToHost(), (made,), (back,), part=Part.STATE)
    return (_to_device(there, given), *added, copied)


def _shared_at_once(gradient: Layout, owned: Layout) -> Layout:
    """The layout in which gradients are added up that are settled in every microbatch: the owned
    part, with sums still pending over those who own the same part."""
    return tuple(
        here if isinstance(here, Pending) and wanted is None else wanted
        for here, wanted in zip(gradient, owned, strict=True)
    )


def _gathers(
    placed: PlacedBlock, kept: Mapping[Value, Layout], *, everything: bool = False
) -> tuple[tuple[Local, ...], list[tuple[Local, Local]]]:
    """What the passes are given, and the pairs `(given, demanded)` that a collective stands
    between: parameters that are stored in smaller parts than they are read in; or `everything` that
    is stored."""
    given: list[Local] = []
    gathers: list[tuple[Local, Local]] = []
    stored: dict[Value, Local] = {}
    for local in placed.demanded:
        layout = kept.get(local.value)
        if layout is None or (not everything and _is_view_of(local.value, layout, local.layout)):
            given.append(local)
            continue
        if local.value not in stored:
            stored[local.value] = Local(local.value, layout)
            given.append(stored[local.value])
        gathers.append((stored[local.value], local))
    return tuple(given), gathers


def _is_view_of(value: Value, stored: Layout, demanded: Layout) -> bool:
    """Whether what is demanded can be sliced from what is stored."""
    steps, _ = move(Local(value, stored), demanded)
    return all(step.move is Move.SLICE for step in steps)


def _gathered(
    making: Instantiation,
    gathers: Sequence[tuple[Local, Local]],
    steps: Sequence[Placed],
    *,
    from_host: bool = False,
) -> tuple[tuple[Node, ...], tuple[Value, ...]]:
    """Nodes that gather parameters for a pass, into values of this pass alone, and these values;
    `from_host`: from the memory of the host.

    A block's parameters are gathered together if the pass reads any.
    """
    if not _reads_gathered(steps, gathers):
        return (), ()
    chains: list[list[Node]] = []
    for stored, demanded in gathers:
        source, copies = stored, list[Node]()
        if from_host:
            source, there = Local(stored.value, stored.layout), making.value(stored)
            making.values[source] = Value(there.type, there.name)
            copies.append(_to_device(there, making.values[source]))
        moves, reached = move(source, demanded.layout)
        chains.append([*copies, *making.nodes(moves, Part.STATE)])
        making.values[demanded] = making.value(reached)
    return tuple(bucketed(chains)), tuple(making.values[demanded] for _, demanded in gathers)


def _reads_gathered(steps: Sequence[Placed], gathers: Sequence[tuple[Local, Local]]) -> bool:
    read = {local for step in steps for local in operands_of(step)}
    return any(demanded in read for _, demanded in gathers)


def _released(gathered: tuple[Value, ...]) -> list[Node]:
    """The end of what is gathered: all of it is dropped together."""
    return [Node(Release(), gathered, (), part=Part.STATE)] if gathered else []


def _of_step(sizes: Sizes, step: BlockStep, product: str | None) -> Sizes:
    """Axes that the step added behind boundaries have the sizes of those they are tied to; what
    nothing but products read is made in the type `product`, if there is one."""
    known = dict(sizes.axes)
    groups: dict[Axis, list[Axis]] = {}
    for axis, root in step.axes.ties.items():
        groups.setdefault(root, [root]).append(axis)
    for members in groups.values():
        size = next((known[axis] for axis in members if axis in known), None)
        if size is not None:
            known.update(dict.fromkeys(members, size))
    narrow: dict[Value, DType] = {}
    if product is not None:
        narrow = dict.fromkeys(read_by_products(step), DType.parse(product))
    return replace(sizes, axes=known, narrow=narrow)
