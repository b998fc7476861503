"""Functions and arrays at other sizes: every type and attribute follows from the sizes of axes.

program = build_program(function, training=False)
at_64 = rescale(program.function, program.axes, program.sizes(batch_size=64))
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from distir.axes.boundaries import common_runs
from distir.axes.model import Axes, Axis, AxisDims
from distir.errors import DistirError, TransformError
from distir.ir.core import Array, Node, Op, Value
from distir.ir.function import Function
from distir.ops.tensor import Boundary


def rescale(function: Function, axes: Axes, sizes: Mapping[Axis, int]) -> Function:
    """The function with the axes in `sizes` resized; the others keep their size.

    Tied axes must be given the same size, as `Program.sizes` does. Raises `TransformError` where
    the model fixes a size otherwise than by an axis, such as in a Concat of unequal parts.
    """
    return rescale_values(function, axes, sizes)[0]


def rescale_values(
    function: Function, axes: Axes, sizes: Mapping[Axis, int]
) -> tuple[Function, Mapping[Value, Value]]:
    """Like `rescale`; also returns the new value of every old one."""
    new: dict[Value, Value] = {}

    def value_of(value: Value) -> Value:
        found = new.get(value)
        if found is None:
            found = new[value] = Value(axes.type_at(value, sizes), value.name)
        return found

    constants = {
        value_of(value): None if array is None else resize(array, axes.dims[value], sizes)
        for value, array in function.constants.items()
    }
    inputs = tuple(map(value_of, function.inputs))
    parameters = tuple(map(value_of, function.parameters))
    nodes = tuple(_node_at(node, axes, sizes, value_of) for node in function.nodes)
    outputs = tuple(map(value_of, function.outputs))
    rescaled = replace(
        function,
        inputs=inputs,
        parameters=parameters,
        constants=constants,
        nodes=nodes,
        outputs=outputs,
    )
    return rescaled, new


def _node_at(
    node: Node, axes: Axes, sizes: Mapping[Axis, int], value_of: Callable[[Value], Value]
) -> Node:
    operands = tuple(map(value_of, node.operands))
    results = tuple(map(value_of, node.results))
    types = [value.type for value in results]
    try:
        op = op_at(node, axes, sizes)
        inferred = op.infer(*(value.type for value in operands))
    except DistirError as error:
        raise TransformError(f"{_place(node)} cannot have other sizes: {error}") from error
    if list(inferred) != types:
        found = ", ".join(map(str, inferred))
        expected = ", ".join(map(str, types))
        raise TransformError(
            f"{_place(node)} fixes a size: at the requested sizes it gives {found}, but the ops "
            f"that read it expect {expected}"
        )
    return replace(node, op=op, operands=operands, results=results)


def op_at(node: Node, axes: Axes, sizes: Mapping[Axis, int]) -> Op:
    """The node's op at these sizes of axes."""
    if isinstance(node.op, Boundary):
        sides = zip(axes.dims[node.operands[0]], axes.dims[node.result], strict=True)
        return Boundary(tuple(_boundary_factors(*dims, sizes) for dims in sides))
    return node.op.rescaled(
        [axes.type_at(value, sizes) for value in node.operands],
        [axes.type_at(value, sizes) for value in node.results],
    )


def _boundary_factors(
    before: Sequence[Axis], after: Sequence[Axis], sizes: Mapping[Axis, int]
) -> tuple[tuple[int, bool], ...]:
    """The factors of one dim of a boundary, `(size, fresh)`, at other sizes."""
    runs = common_runs([axis.size for axis in before], [axis.size for axis in after])
    return tuple(
        (
            math.prod(sizes.get(axis, axis.size) for axis in before[ours]),
            before[ours] != after[theirs],
        )
        for ours, theirs in runs
    )


def _place(node: Node) -> str:
    """The node for a message: its op, and where it stands in the user's model if that is known."""
    return f"{node.op.name} at {node.origin}" if node.origin else node.op.name


# --- arrays ---------------------------------------------------------------------------------------


def resize(array: Array, dims: AxisDims, sizes: Mapping[Axis, int]) -> Array | None:
    """A constant with its axes resized, or None if its values at these sizes are unknown.

    Along an axis that shrinks, the leading part is kept: for positions, masks and rotary tables
    that is what an export at the smaller size would have. Along an axis that grows, a constant that
    does not vary is repeated; values of one that varies are unknown.
    """
    import numpy as np

    flat = [axis for dim in dims for axis in dim]
    wanted = [sizes.get(axis, axis.size) for axis in flat]
    if wanted == [axis.size for axis in flat]:
        return array
    by_axis = array.reshape([axis.size for axis in flat])
    for position, (axis, size) in enumerate(zip(flat, wanted, strict=True)):
        if size <= axis.size:
            by_axis = np.take(by_axis, range(size), axis=position)
            continue
        first = np.take(by_axis, [0], axis=position)
        if not np.array_equal(np.broadcast_to(first, by_axis.shape), by_axis):
            return None
        by_axis = np.repeat(first, size, axis=position)
    return by_axis.reshape(shape_at(dims, sizes))


def shape_at(dims: AxisDims, sizes: Mapping[Axis, int]) -> tuple[int, ...]:
    """The shape of a value with these dims at other sizes."""
    return tuple(math.prod(sizes.get(axis, axis.size) for axis in dim) for dim in dims)


def part(
    array: Array, dims: AxisDims, sizes: Mapping[Axis, int], chosen: Mapping[Axis, slice]
) -> Array:
    """The part of an array (whose axes have these sizes) in which the chosen axes run over the
    given slices."""
    if not any(axis in chosen for dim in dims for axis in dim):
        return array
    flat = [axis for dim in dims for axis in dim]
    by_axis = array.reshape([sizes.get(axis, axis.size) for axis in flat])
    picked = by_axis[tuple(chosen.get(axis, slice(None)) for axis in flat)]
    shape: list[int] = []
    position = 0
    for dim in dims:
        shape.append(math.prod(picked.shape[position : position + len(dim)]))
        position += len(dim)
    return picked.reshape(shape)
