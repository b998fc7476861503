"""A block's share of a training or inference step: its forward ops and its backward ops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from distir.axes.infer import extend_axes
from distir.axes.model import Axes, Axis, AxisDims
from distir.ir.builder import Builder
from distir.ir.core import Array, Node, Value
from distir.ir.signature import Kind
from distir.ops.padding import MaskPadding
from distir.ops.tensor import zeros
from distir.transforms.blocks import Block, Blocks
from distir.transforms.differentiate import differentiate
from distir.transforms.lower import lower_nodes
from distir.transforms.place import AxisListEntry
from distir.transforms.wide import with_wide_products


@dataclass(frozen=True, eq=False)
class BlockStep:
    """A block's forward and backward ops, with their axes.

    `free_nodes` compute free values (see glossary); `sources` are free values and parameters. The
    backward pass starts from `output_gradients` and makes `input_gradients` and
    `parameter_gradients`. `repeated_outputs` are the block's outputs as recomputation makes them
    again, if it runs the whole block. `carried_on` are, in inference, the free values whose
    elements results hold: what the step before has left for this one.
    """

    block: Block
    forward: tuple[Node, ...]
    backward: tuple[Node, ...]
    free_nodes: tuple[Node, ...]
    constants: Mapping[Value, Array | None]
    axes: Axes
    sources: frozenset[Value]
    output_gradients: Mapping[Value, Value]
    input_gradients: Mapping[Value, Value]
    parameter_gradients: Mapping[Value, Value]
    repeated_outputs: tuple[Value, ...] = ()
    carried_on: frozenset[Value] = frozenset()

    @cached_property
    def use_counts(self) -> Counter[Value]:
        """How often every value is read; leaving the block counts as a use."""
        counts: Counter[Value] = Counter()
        for node in (*self.forward, *self.backward):
            counts.update(node.operands)
        counts.update(self.block.outputs)
        counts.update(self.block.results)
        counts.update(self.input_gradients.values())
        counts.update(self.parameter_gradients.values())
        counts.update(self.repeated_outputs)
        return counts

    @cached_property
    def named(self) -> dict[Node, Mapping[Axis, Axis]]:
        """What placements find out about the ops of the step, whatever the lists (`Placement`)."""
        return {}


def lowered_ops(
    blocks: Blocks, block: Block, lists: Sequence[Sequence[AxisListEntry]]
) -> frozenset[int]:
    """Indices of the block's composite ops that must be spelled out as simpler ones, because the
    first listed axis of their iteration space is one that they need whole."""
    found: set[int] = set()
    for index, node in enumerate(block.nodes):
        kinds = {blocks.group.get(a, a): kind for a, kind in blocks.axes.kinds[node].items()}
        for entries in lists:
            # An entry that counts only where all values carry the axis gives way instead.
            plain = (entry.axis for entry in entries if not entry.everywhere)
            first = next((axis for axis in plain if axis in kinds), None)
            if first is not None and kinds[first] is Kind.WHOLE:
                found.add(index)
    return frozenset(found)


def build_step(
    blocks: Blocks,
    block: Block,
    lowered: Collection[int],
    training: bool,
    padded: Collection[Axis] = (),
    *,
    narrow: bool = False,
    trained_elsewhere: Collection[int] = (),
) -> BlockStep:
    """The step of a block, with the composite ops at the indices `lowered` spelled out.

    The axes in `padded` (representatives) may get longer; ops that reduce them read masked values.
    `narrow`: some products run in a narrower type than values have, and the others are marked.
    Parameters at the positions `trained_elsewhere` have gradients of zeros: this block makes none,
    and others do, so that they are updated wherever they are stored.
    """
    function, roles = blocks.function, blocks.roles
    builder = Builder(function.name)
    every, own = _with_masks(builder, blocks, block.nodes, padded)
    chosen = {own[index] for index in lowered}
    nodes = lower_nodes(builder, every, lambda node: node in chosen)
    if narrow:
        nodes = with_wide_products(nodes, roles.activations)
    builder.nodes.clear()

    seeds: dict[Value, AxisDims] = {value: blocks.axes.dims[value] for value in block.values}
    output_gradients: dict[Value, Value] = {}
    gradients: dict[Value, Value] = {}
    trained = [p for p in block.parameters if p.type.dtype.is_float]
    if training:
        for value in (*block.outputs, *block.results):
            if value.type.dtype.is_float:
                gradient = Value(value.type, f"d {value.name}")
                output_gradients[value] = gradient
                seeds[gradient] = blocks.axes.dims[value]
        wanted = [*trained, *(v for v in block.inputs if v.type.dtype.is_float)]
        made = differentiate(builder, nodes, output_gradients, wanted)
        for value in (block.parameters[at] for at in trained_elsewhere):
            made[value] = zeros(builder, value.type)
        gradients = {value: made[value] for value in wanted if value in made}
        for value, gradient in made.items():
            if value in blocks.axes.dims:
                seeds.setdefault(gradient, blocks.axes.dims[value])
    # The gradient of the loss is a number that every device knows.
    given = [output_gradients[v] for v in block.results if v in output_gradients]
    free = {v for v in (*block.free, *builder.constants, *given) if v not in roles.activations}
    free_nodes, others = _separate([*nodes, *builder.nodes], free)
    others = _needed(others, gradients, {v for node in nodes for v in node.results})
    made_backward = {value for node in builder.nodes for value in node.results}
    forward = [node for node in others if node.results[0] not in made_backward]
    sources = {*block.inputs, *block.free, *block.parameters, *builder.constants}
    sources |= set(output_gradients.values())
    ordered, axes = extend_axes([*free_nodes, *others], sources, seeds)
    free_end = _end(ordered, free_nodes, 0)
    forward_end = _end(ordered, forward, free_end)
    return BlockStep(
        block=block,
        forward=ordered[free_end:forward_end],
        backward=ordered[forward_end:],
        free_nodes=ordered[:free_end],
        constants=dict(builder.constants),
        axes=axes,
        sources=frozenset((*free, *block.parameters)),
        output_gradients=output_gradients,
        input_gradients={v: gradients[v] for v in block.inputs if v in gradients},
        parameter_gradients={v: gradients[v] for v in trained if v in gradients},
        carried_on=frozenset() if training else _carried_on(block, ordered, free, roles.samples),
    )


def _carried_on(
    block: Block, nodes: Sequence[Node], free: Collection[Value], samples: Collection[Value]
) -> frozenset[Value]:
    """The free values, different from sample to sample, whose elements results of a block hold."""
    makers = {value: node for node in nodes for value in node.results}
    differ = set(samples)
    for node in nodes:
        if node.results[0] in free and not differ.isdisjoint(node.operands):
            differ.update(node.results)
    found: set[Value] = set()
    waiting = list(block.results)
    while waiting:
        value = waiting.pop()
        if value not in free and value in makers:
            waiting += makers[value].op.handed_on(makers[value].operands)
        elif value in differ and value.type.dtype.is_float:
            found.add(value)
    return frozenset(found)


def _with_masks(
    builder: Builder, blocks: Blocks, nodes: Sequence[Node], padded: Collection[Axis]
) -> tuple[list[Node], list[Node]]:
    """The nodes of a block with masks in front of ops that reduce a padded axis; and, in order,
    those of them that stand for the nodes given."""
    every: list[Node] = []
    own: list[Node] = []
    for node in nodes:
        for dim in node.op.masked_dims(node.operand_types) if padded else ():
            axes = blocks.axes.dims[node.operands[0]][dim]
            if any(blocks.group.get(axis, axis) in padded for axis in axes):
                builder.origin, builder.part = node.origin, node.part
                size = node.operands[0].type.shape[dim]
                masked = builder.add(MaskPadding(dim, size), node.operands[0])
                node = replace(node, operands=(masked, *node.operands[1:]))
        every += [*builder.nodes, node]
        own.append(node)
        builder.nodes.clear()
    return every, own


def _needed(
    nodes: Sequence[Node], gradients: Mapping[Value, Value], forward: Collection[Value]
) -> list[Node]:
    """The nodes without backward ops that no gradient depends on."""
    needed = set(gradients.values())
    kept: list[Node] = []
    for node in reversed(nodes):
        if node.results[0] in forward or any(value in needed for value in node.results):
            needed.update(node.operands)
            kept.append(node)
    return kept[::-1]


def _separate(nodes: Sequence[Node], free: set[Value]) -> tuple[list[Node], list[Node]]:
    """The ops that compute free values, and the others. Adds the new free values to `free`."""
    on_free: list[Node] = []
    others: list[Node] = []
    for node in nodes:
        if all(value in free for value in node.operands):
            on_free.append(node)
            free.update(node.results)
        else:
            others.append(node)
    return on_free, others


def _end(ordered: Sequence[Node], part: Sequence[Node], default: int) -> int:
    """The index in `ordered` behind the last op of `part`; boundaries may stand between its ops."""
    if not part:
        return default
    last = part[-1].results
    return 1 + next(i for i, node in enumerate(ordered) if node.results == last)
