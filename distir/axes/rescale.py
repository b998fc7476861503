"""A function at other sizes: every type and attribute follows from the sizes of axes.

program = build_program(function, training=False)
at_64 = rescale(program.function, program.axes, program.sizes(batch_size=64))
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from distir.axes.model import Axes, Axis, AxisDims
from distir.errors import DistirError, TransformError
from distir.ir.core import Function, Node, Op, Value
from distir.ops.tensor import Boundary

Array = Any


def rescale(function: Function, axes: Axes, sizes: Mapping[Axis, int]) -> Function:
    """`function` with the axes in `sizes` resized; the others keep their size.

    Sizes that are tied must be given alike, as `Program.sizes` does. Raises `TransformError` where
    the model fixes a size by other means than an axis, such as a Concat of unequal parts.
    """
    return rescale_values(function, axes, sizes)[0]


def rescale_values(
    function: Function, axes: Axes, sizes: Mapping[Axis, int]
) -> tuple[Function, Mapping[Value, Value]]:
    """Like `rescale`, with the new value of every old one."""
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


def _node_at(node: Node, axes: Axes, sizes: Mapping[Axis, int], value_of: Any) -> Node:
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
            f"{_place(node)} fixes a size: at the sizes asked for it gives {found}, and its "
            f"readers expect {expected}"
        )
    return replace(node, op=op, operands=operands, results=results)


def op_at(node: Node, axes: Axes, sizes: Mapping[Axis, int]) -> Op:
    """The node's op where axes have other sizes."""
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
    """The common cuts of both sides of one dim of a boundary, at other sizes."""
    pieces: list[tuple[int, bool]] = []
    i = j = 0
    while i < len(before):
        start_i, start_j = i, j
        a, b = before[i].size, after[j].size
        i, j = i + 1, j + 1
        while a != b:
            if a < b:
                a *= before[i].size
                i += 1
            else:
                b *= after[j].size
                j += 1
        ours, theirs = before[start_i:i], after[start_j:j]
        pieces.append((math.prod(sizes.get(axis, axis.size) for axis in ours), ours != theirs))
    return tuple(pieces)


def _place(node: Node) -> str:
    return f"{node.op.name} at {node.origin}" if node.origin else node.op.name


# --- arrays ---------------------------------------------------------------------------------------


def resize(array: Array, dims: AxisDims, sizes: Mapping[Axis, int]) -> Array | None:
    """The constant with its axes resized.

    Of a smaller axis the leading part stays: of positions, masks and rotary tables that is what a
    fresh export has. Along a larger one a constant that does not vary is repeated; one that does
    is not known, `None`.
    """
    import numpy as np

    flat = [axis for dim in dims for axis in dim]
    wanted = [sizes.get(axis, axis.size) for axis in flat]
    if wanted == [axis.size for axis in flat]:
        return array
    spread = array.reshape([axis.size for axis in flat])
    for position, (axis, size) in enumerate(zip(flat, wanted, strict=True)):
        if size <= axis.size:
            spread = np.take(spread, range(size), axis=position)
            continue
        first = np.take(spread, [0], axis=position)
        if not np.array_equal(np.broadcast_to(first, spread.shape), spread):
            return None
        spread = np.repeat(first, size, axis=position)
    return spread.reshape(shape_at(dims, sizes))


def shape_at(dims: AxisDims, sizes: Mapping[Axis, int]) -> tuple[int, ...]:
    """The shape of a value with these dims at other sizes."""
    return tuple(math.prod(sizes.get(axis, axis.size) for axis in dim) for dim in dims)


def part(
    array: Array, dims: AxisDims, sizes: Mapping[Axis, int], chosen: Mapping[Axis, slice]
) -> Array:
    """The part of an array, whose axes have these sizes, where the chosen axes run over slices."""
    if not any(axis in chosen for dim in dims for axis in dim):
        return array
    flat = [axis for dim in dims for axis in dim]
    spread = array.reshape([sizes.get(axis, axis.size) for axis in flat])
    picked = spread[tuple(chosen.get(axis, slice(None)) for axis in flat)]
    shape: list[int] = []
    position = 0
    for dim in dims:
        shape.append(math.prod(picked.shape[position : position + len(dim)]))
        position += len(dim)
    return picked.reshape(shape)
