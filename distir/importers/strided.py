"""Rewrites a Gather by indices that are evenly spaced in every dim as Reshape, Slice and Transpose.

Exporters write `as_strided`, slices and rolls as a Gather from a flattened tensor by a table of
positions computed for the sizes of the file. Axes are lost in a Gather, but not in these ops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from distir.ir.core import Array, Op
from distir.ops.tensor import Reshape, Slice, Transpose


@dataclass(frozen=True, slots=True)
class _Dim:
    """One dim of the indices: their number, their distance, and the position of the dim."""

    count: int
    stride: int
    position: int


def strided_view(shape: Sequence[int], axis: int, indices: Array) -> tuple[Op, ...] | None:
    """The ops that look up `indices` along dim `axis` of a tensor of this shape, as a Gather does.
    None if the indices are not evenly spaced, or if some occur twice."""
    dims = _dims(indices)
    if dims is None:
        return None
    size, offset = shape[axis], int(indices.reshape(-1)[0])
    if len(dims) == 1:
        ops = _slice(shape, axis, offset, dims[0])
    else:
        found = _digits(size, offset, dims)
        if found is None:
            return None
        ops = _cut(shape, axis, found, dims)
    return (*ops, Reshape((*shape[:axis], *indices.shape, *shape[axis + 1 :])))


def _dims(indices: Array) -> tuple[_Dim, ...] | None:
    """The dims with more than one index, the largest stride first; None if they are not evenly
    spaced."""
    import numpy as np

    if indices.ndim == 0 or indices.size < 2:
        return None
    first = int(indices.reshape(-1)[0])
    expected: Array = np.full((1,) * indices.ndim, first, dtype=np.int64)
    dims: list[_Dim] = []
    for position, count in enumerate(indices.shape):
        if count == 1:
            continue
        second = tuple(int(other == position) for other in range(indices.ndim))
        stride = int(indices[second]) - first
        steps = np.arange(count, dtype=np.int64) * stride
        along = [1] * indices.ndim
        along[position] = count
        expected = expected + steps.reshape(along)
        dims.append(_Dim(count, stride, position))
    if min(dim.stride for dim in dims) < 1 or not np.array_equal(expected, indices):
        return None
    return tuple(sorted(dims, key=lambda dim: -dim.stride))


def _digits(size: int, offset: int, dims: Sequence[_Dim]) -> list[tuple[int, int, int]] | None:
    """Writes positions in a dim as numbers with one digit per dim of the indices, and a last digit
    for the positions between them. Returns per digit its base, its first value, and the number of
    values taken; None if the indices cannot be written so."""
    whole = size
    digits: list[tuple[int, int, int]] = []
    for stride, count in [(dim.stride, dim.count) for dim in dims] + [(1, 1)]:
        if whole % stride:
            return None
        base, start = whole // stride, offset // stride
        offset -= start * stride
        if start + count > base:
            return None
        digits.append((base, start, count))
        whole = stride
    return digits


def _cut(
    shape: Sequence[int], axis: int, digits: Sequence[tuple[int, int, int]], dims: Sequence[_Dim]
) -> tuple[Op, ...]:
    """The ops that give each digit a dim, cut out the values taken, and order the dims as the
    indices have them."""
    before, after = shape[:axis], shape[axis + 1 :]
    by_digit = (*before, *(base for base, _, _ in digits), *after)
    rank = len(by_digit)
    starts, stops = [0] * rank, list[int | None]([None] * rank)
    for place, (base, start, count) in enumerate(digits, start=axis):
        starts[place] = start
        stops[place] = None if start + count == base else start + count
    order = sorted(range(len(dims)), key=lambda place: dims[place].position)
    behind = len(before) + len(dims)
    ops: list[Op] = [Reshape(by_digit)]
    if any(starts) or any(stop is not None for stop in stops):
        ops.append(Slice(tuple(starts), tuple(stops), (1,) * rank))
    if order != list(range(len(dims))):
        moved = (axis + place for place in order)
        ops.append(Transpose((*range(axis), *moved, *range(behind, rank))))
    return tuple(ops)


def _slice(shape: Sequence[int], axis: int, start: int, dim: _Dim) -> tuple[Op, ...]:
    """The Slice of one dim; none if it takes all elements."""
    if dim.count == shape[axis]:
        return ()
    starts, steps = [0] * len(shape), [1] * len(shape)
    stops = list[int | None]([None] * len(shape))
    starts[axis], steps[axis] = start, dim.stride
    if len(range(start, shape[axis], dim.stride)) != dim.count:
        stops[axis] = start + (dim.count - 1) * dim.stride + 1
    return (Slice(tuple(starts), tuple(stops), tuple(steps)),)
