"""Helpers that several families of ops share: broadcasting and its derivative, axis numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from distir.cost.amounts import is_many, larger
from distir.errors import ShapeError
from distir.ir.core import Array, NodeBuilder, Value


def broadcast_shapes(op_name: str, *shapes: Sequence[int]) -> tuple[int, ...]:
    """The shape that NumPy broadcasting gives; raises `ShapeError` if shapes do not broadcast."""
    rank = max(len(shape) for shape in shapes)
    result = [1] * rank
    for shape in shapes:
        for dim, size in enumerate(shape, start=rank - len(shape)):
            if is_many(size) or is_many(result[dim]):
                result[dim] = cast("int", larger(size, result[dim]))
                continue
            if size == result[dim] or size == 1:
                continue
            if result[dim] != 1:
                found = " and ".join(str(list(s)) for s in shapes)
                raise ShapeError(
                    f"{op_name}: shapes {found} do not broadcast; dims must be equal or 1"
                )
            result[dim] = size
    return tuple(result)


def normalize_axis(op_name: str, axis: int, rank: int) -> int:
    """An axis counted from the start; raises `ShapeError` if it is out of range."""
    if not -rank <= axis < rank:
        raise ShapeError(
            f"{op_name}: axis {axis} of a tensor of rank {rank}; expected at least {-rank} and "
            f"less than {rank}"
        )
    return axis % rank


def normalize_axes(op_name: str, axes: Sequence[int], rank: int) -> tuple[int, ...]:
    """Distinct axes counted from the start, in ascending order; raises `ShapeError` if one is out
    of range or occurs twice."""
    normal = sorted(normalize_axis(op_name, axis, rank) for axis in axes)
    if len(set(normal)) != len(normal):
        raise ShapeError(f"{op_name}: axes {list(axes)} name a dim twice")
    return tuple(normal)


def from_start(places: Array, end: int) -> Array:
    """Places along a dim of `end` positions, of which those below zero count from its end; in the
    result, all count from its start."""
    import numpy as np

    return np.where(places < 0, places + end, places)


def sum_to_shape(builder: NodeBuilder, value: Value, shape: Sequence[int]) -> Value:
    """Adds ops that sum a value over the dims that broadcasting from `shape` added or repeated: the
    derivative of broadcasting."""
    from distir.ops.reduce import ReduceSum
    from distir.ops.tensor import Reshape

    target = tuple(shape)
    source = value.type.shape
    if source == target:
        return value
    added = len(source) - len(target)
    axes = tuple(
        dim
        for dim, size in enumerate(source)
        if dim < added or (target[dim - added] == 1 and size != 1)
    )
    if axes:
        value = builder.add(ReduceSum(axes, keepdims=True), value)
    return value if value.type.shape == target else builder.add(Reshape(target), value)
