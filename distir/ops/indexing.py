"""Ops that look elements up, put them somewhere, order them, or depend on where they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from distir.cost.work import OpClass, Work
from distir.errors import ShapeError
from distir.ir.core import Backward, Gradients, Op
from distir.ir.signature import Kind, Signature, SignatureBuilder
from distir.ir.types import DType, TensorType
from distir.ops.base import normalize_axis, register_op
from distir.ops.tensor import Slice, zeros

Array = Any


def _lookup_work(operands: Sequence[TensorType], results: Sequence[TensorType]) -> Work:
    """Of the table only what is picked is read."""
    size = sum(t.size_bytes for t in results)
    return Work(
        kind=OpClass.MEMORY,
        bytes_read=size + sum(t.size_bytes for t in operands[1:]),
        bytes_written=size,
    )


@register_op("Pad")
@dataclass(frozen=True, slots=True)
class Pad(Op):
    """`before[d]` elements of `value` before dim d and `after[d]` behind it."""

    before: tuple[int, ...]
    after: tuple[int, ...]
    value: float = 0.0

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        (x,) = operands
        if (
            not len(self.before) == len(self.after) == x.rank
            or min(*self.before, *self.after, 0) < 0
        ):
            raise ShapeError(f"Pad: {list(self.before)} before and {list(self.after)} behind {x}")
        sizes = zip(self.before, x.shape, self.after, strict=True)
        return (x.with_shape(tuple(map(sum, sizes))),)

    def signature(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Signature:
        builder = SignatureBuilder()
        source: list[tuple[int, ...]] = []
        target: list[tuple[int, ...]] = []
        for size, padded in zip(operands[0].shape, results[0].shape, strict=True):
            kind = Kind.PARALLEL if size == padded else Kind.WHOLE
            source.append(builder.loop(size, kind))
            target.append(source[-1] if size == padded else builder.loop(padded, kind))
        return builder.build((tuple(source),), (tuple(target),))

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        import numpy as np

        widths = list(zip(self.before, self.after, strict=True))
        return (np.pad(operands[0], widths, constant_values=self.value),)

    def linear_operands(self, operands: Sequence[TensorType]) -> tuple[int, ...]:
        return (0,) if self.value == 0 else ()

    def derivative(self, back: Backward) -> Gradients:
        stops = tuple(
            None if start == end == 0 else start + size
            for start, end, size in zip(
                self.before, self.after, back.operands[0].type.shape, strict=True
            )
        )
        return (back.add(Slice(self.before, stops, (1,) * len(stops)), back.gradient),)


@register_op("Trilu")
@dataclass(frozen=True, slots=True)
class Trilu(Op):
    """The last two dims above (`upper`) or below their `k`-th diagonal, zero elsewhere."""

    upper: bool = True
    k: int = 0

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        if operands[0].rank < 2:
            raise ShapeError(f"Trilu: {operands[0]}; expected at least two dims")
        return (operands[0],)

    def signature(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Signature:
        shape = operands[0].shape
        builder = SignatureBuilder()
        matrix = (builder.positional(shape[-2]), builder.positional(shape[-1]))
        dims = (*builder.dims(shape[:-2]), *matrix)
        return builder.build((dims,), (dims,))

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        return self.evaluate_shard({}, *operands)

    def evaluate_shard(self, indices: Mapping[int, Array], *operands: Array) -> tuple[Array, ...]:
        import numpy as np

        (x,) = operands
        rows = np.asarray(indices.get(0, np.arange(x.shape[-2])))
        columns = np.asarray(indices.get(1, np.arange(x.shape[-1])))
        distance = columns[None, :] - rows[:, None]
        kept = distance >= self.k if self.upper else distance <= self.k
        return (np.where(kept, x, np.zeros((), x.dtype)),)

    def linear_operands(self, operands: Sequence[TensorType]) -> tuple[int, ...]:
        return (0,)

    def derivative(self, back: Backward) -> Gradients:
        return (back.add(self, back.gradient),)


@register_op("CumSum")
@dataclass(frozen=True, slots=True)
class CumSum(Op):
    """Sums of the elements up to each one along `axis`, without itself if `exclusive`."""

    axis: int
    exclusive: bool = False
    reverse: bool = False

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        normalize_axis(self.name, self.axis, operands[0].rank)
        return (operands[0],)

    def signature(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Signature:
        builder = SignatureBuilder()
        axis = self.axis % operands[0].rank
        dims = tuple(
            builder.loop(size, Kind.WHOLE if dim == axis else Kind.PARALLEL)
            for dim, size in enumerate(operands[0].shape)
        )
        return builder.build((dims,), (dims,))

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        import numpy as np

        x = np.flip(operands[0], self.axis) if self.reverse else operands[0]
        total = np.cumsum(x, axis=self.axis)
        if self.exclusive:
            total = total - x
        return (np.flip(total, self.axis) if self.reverse else total,)

    def linear_operands(self, operands: Sequence[TensorType]) -> tuple[int, ...]:
        return (0,)

    def derivative(self, back: Backward) -> Gradients:
        op = replace(self, reverse=not self.reverse)
        return (back.add(op, back.gradient),)


@register_op("ArgMax")
@dataclass(frozen=True, slots=True)
class ArgMax(Op):
    """Where along `axis` the largest element is: the first such place, or the last."""

    axis: int
    keepdims: bool = True
    last: bool = False

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        (x,) = operands
        axis = normalize_axis(self.name, self.axis, x.rank)
        middle = (1,) if self.keepdims else ()
        return (TensorType((*x.shape[:axis], *middle, *x.shape[axis + 1 :]), DType.INT64),)

    def signature(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Signature:
        builder = SignatureBuilder()
        axis = self.axis % operands[0].rank
        dims = tuple(
            builder.loop(size, Kind.WHOLE if dim == axis else Kind.PARALLEL)
            for dim, size in enumerate(operands[0].shape)
        )
        middle = ((),) if self.keepdims else ()
        return builder.build((dims,), ((*dims[:axis], *middle, *dims[axis + 1 :]),))

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        import numpy as np

        (x,) = operands
        if self.last:
            found = x.shape[self.axis] - 1 - np.argmax(np.flip(x, self.axis), axis=self.axis)
        else:
            found = np.argmax(x, axis=self.axis)
        return (np.expand_dims(found, self.axis) if self.keepdims else found,)

    def derivative(self, back: Backward) -> Gradients:
        return (None,)


@register_op("TopK")
@dataclass(frozen=True, slots=True)
class TopK(Op):
    """The `k` largest (or smallest) elements along `axis`, in order, and where they are."""

    k: int
    axis: int = -1
    largest: bool = True

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        (x,) = operands
        axis = normalize_axis(self.name, self.axis, x.rank)
        if not 0 < self.k <= x.shape[axis]:
            raise ShapeError(f"TopK: {self.k} elements of dim {axis} of {x}")
        shape = (*x.shape[:axis], self.k, *x.shape[axis + 1 :])
        return (x.with_shape(shape), TensorType(shape, DType.INT64))

    def signature(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Signature:
        shape = operands[0].shape
        axis = self.axis % len(shape)
        builder = SignatureBuilder()
        before, after = builder.dims(shape[:axis]), builder.dims(shape[axis + 1 :])
        source = builder.loop(shape[axis], Kind.WHOLE)
        chosen = builder.loop(self.k, Kind.WHOLE)
        result = (*before, chosen, *after)
        return builder.build(((*before, source, *after),), (result, result))

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        import numpy as np

        (x,) = operands
        order = np.argsort(-x if self.largest else x, axis=self.axis, kind="stable")
        indices = np.take(order, np.arange(self.k), axis=self.axis)
        return (np.take_along_axis(x, indices, axis=self.axis), indices)

    def derivative(self, back: Backward) -> Gradients:
        (x,) = back.operands
        op = GatherElementsGradient(self.axis % x.type.rank, x.type.shape)
        return (back.add(op, back.results[1], back.gradient),)


# --- one element per index -----------------------------------------------------------------------


def _elements_signature(
    axis: int, table: Sequence[int], index: Sequence[int], of_table: Kind, of_index: Kind
) -> tuple[SignatureBuilder, tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]:
    """Dims of a table and of the indices into its dim `axis`. Loop 0 are the table's rows."""
    builder = SignatureBuilder()
    rows = builder.positional(table[axis], of_table)
    table_dims: list[tuple[int, ...]] = []
    index_dims: list[tuple[int, ...]] = []
    for dim, (size, count) in enumerate(zip(table, index, strict=True)):
        if dim == axis:
            table_dims.append(rows)
            index_dims.append(builder.loop(count, of_index))
        elif size == count:
            table_dims.append(builder.loop(size))
            index_dims.append(table_dims[-1])
        else:
            table_dims.append(builder.loop(size, Kind.WHOLE))
            index_dims.append(builder.loop(count, Kind.WHOLE))
    return builder, tuple(table_dims), tuple(index_dims)


def _check_elements(name: str, axis: int, table: TensorType, index: TensorType) -> None:
    normal = normalize_axis(name, axis, table.rank)
    fits = table.rank == index.rank and all(
        count <= size
        for dim, (size, count) in enumerate(zip(table.shape, index.shape, strict=False))
        if dim != normal
    )
    if not fits or index.dtype.is_float:
        raise ShapeError(f"{name}: indices {index} into {table} along dim {normal}")


def _grid(index: Array, axis: int) -> tuple[Array, ...]:
    """Index arrays for every dim: `index` along `axis`, the own place along the others."""
    import numpy as np

    places = list(np.indices(index.shape, sparse=True))
    places[axis] = index
    return tuple(places)


@register_op("GatherElements")
@dataclass(frozen=True, slots=True)
class GatherElements(Op):
    """`table` at `indices` along `axis`, at the own place along the other dims. Rows of a split
    table that are not held count as zero."""

    axis: int = 0

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        table, index = operands
        _check_elements(self.name, self.axis, table, index)
        return (table.with_shape(index.shape),)

    def signature(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Signature:
        table, index = (t.shape for t in operands)
        builder, table_dims, index_dims = _elements_signature(
            self.axis % len(table), table, index, Kind.PICK, Kind.PARALLEL
        )
        return builder.build((table_dims, index_dims), (index_dims,))

    def work(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Work:
        return _lookup_work(operands, results)

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        import numpy as np

        table, index = operands
        wrapped = np.where(index < 0, index + table.shape[self.axis], index).astype(np.int64)
        return (table[_grid(wrapped, self.axis)],)

    def evaluate_shard(self, indices: Mapping[int, Array], *operands: Array) -> tuple[Array, ...]:
        import numpy as np

        if 0 not in indices:
            return self.evaluate(*operands)
        table, index = operands
        held = np.asarray(indices[0])
        place = np.minimum(np.searchsorted(held, index), len(held) - 1)
        return (table[_grid(place, self.axis)] * (held[place] == index),)

    def derivative(self, back: Backward) -> Gradients:
        if not back.wanted[0]:
            return (None, None)
        table, index = back.operands
        op = GatherElementsGradient(self.axis % table.type.rank, table.type.shape)
        return (back.add(op, index, back.gradient), None)


@register_op("GatherElementsGradient")
@dataclass(frozen=True, slots=True)
class GatherElementsGradient(Op):
    """Adds a gradient into zeros at the places that GatherElements or TopK took from."""

    axis: int
    shape: tuple[int, ...]

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        return (operands[1].with_shape(self.shape),)

    def signature(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Signature:
        builder, table_dims, index_dims = _elements_signature(
            self.axis, self.shape, operands[0].shape, Kind.PARALLEL, Kind.SUM
        )
        return builder.build((index_dims, index_dims), (table_dims,))

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        return self.evaluate_shard({}, *operands)

    def evaluate_shard(self, indices: Mapping[int, Array], *operands: Array) -> tuple[Array, ...]:
        import numpy as np

        index, gradient = operands
        held = np.asarray(indices.get(0, np.arange(self.shape[self.axis])))
        total = int(held[-1]) + 1 if len(held) else 0
        wrapped = index if 0 in indices else np.where(index < 0, index + total, index)
        place = np.minimum(np.searchsorted(held, wrapped), len(held) - 1)
        result = np.zeros(self.shape, gradient.dtype)
        np.add.at(result, _grid(place, self.axis), gradient * (held[place] == wrapped))
        return (result,)

    def linear_operands(self, operands: Sequence[TensorType]) -> tuple[int, ...]:
        return (1,)

    def localized(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Op:
        return replace(self, shape=results[0].shape)


@register_op("ScatterElements")
@dataclass(frozen=True, slots=True)
class ScatterElements(Op):
    """`data` with `updates` put at `indices` along `axis`, or added there."""

    axis: int = 0
    adds: bool = False

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        data, index, updates = operands
        _check_elements(self.name, self.axis, data, index)
        if index.shape != updates.shape:
            raise ShapeError(f"ScatterElements: updates {updates} beside indices {index}")
        return (data,)

    def signature(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Signature:
        data, index = (t.shape for t in operands[:2])
        builder, data_dims, index_dims = _elements_signature(
            self.axis % len(data), data, index, Kind.WHOLE, Kind.WHOLE
        )
        return builder.build((data_dims, index_dims, index_dims), (data_dims,))

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        import numpy as np

        data, index, updates = operands
        result = data.copy()
        where = _grid(np.where(index < 0, index + data.shape[self.axis], index), self.axis)
        if self.adds:
            np.add.at(result, where, updates)
        else:
            result[where] = updates
        return (result,)

    def derivative(self, back: Backward) -> Gradients:
        _, index, updates = back.operands
        of_data = of_updates = None
        if back.wanted[0]:
            blank = replace(self, adds=False)
            of_data = (
                back.gradient
                if self.adds
                else back.add(blank, back.gradient, index, zeros(back.builder, updates.type))
            )
        if back.wanted[2]:
            of_updates = back.add(GatherElements(self.axis), back.gradient, index)
        return (of_data, None, of_updates)


# --- one slice per tuple of indices --------------------------------------------------------------


def _tuples_signature(
    batch_dims: int, data: Sequence[int], index: Sequence[int], of_index: Kind
) -> tuple[SignatureBuilder, Any, Any, Any]:
    """Dims of `data[b…, i…, rest…]`, of `index[b…, q…, len(i)]`, and of `[b…, q…, rest…]`."""
    builder = SignatureBuilder()
    last = batch_dims + index[-1]
    batch = builder.dims(data[:batch_dims])
    indexed = builder.dims(data[batch_dims:last], Kind.WHOLE)
    rest = builder.dims(data[last:])
    queries = builder.dims(index[batch_dims:-1], of_index)
    depth = builder.loop(index[-1], Kind.WHOLE)
    return (
        builder,
        (*batch, *indexed, *rest),
        (*batch, *queries, depth),
        (*batch, *queries, *rest),
    )


def _tuples(index: Array, batch_dims: int, shape: Sequence[int]) -> tuple[Array, ...]:
    """Index arrays for the leading dims of the data."""
    import numpy as np

    queries = index.ndim - 1
    grid: list[Array] = []
    for dim in range(batch_dims):
        grid.append(np.arange(shape[dim]).reshape((-1,) + (1,) * (queries - dim - 1)))
    for position in range(index.shape[-1]):
        own = index[..., position].astype(np.int64)
        grid.append(np.where(own < 0, own + shape[batch_dims + position], own))
    return tuple(grid)


@register_op("GatherND")
@dataclass(frozen=True, slots=True)
class GatherND(Op):
    """Slices of `data` at tuples of indices; the first `batch_dims` dims go side by side."""

    batch_dims: int = 0

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        data, index = operands
        fits = (
            self.batch_dims < index.rank
            and data.shape[: self.batch_dims] == index.shape[: self.batch_dims]
            and 0 < index.shape[-1] <= data.rank - self.batch_dims
            and not index.dtype.is_float
        )
        if not fits:
            raise ShapeError(f"GatherND: indices {index} into {data}, {self.batch_dims} batch dims")
        rest = data.shape[self.batch_dims + index.shape[-1] :]
        return (data.with_shape(index.shape[:-1] + rest),)

    def signature(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Signature:
        builder, data, index, result = _tuples_signature(
            self.batch_dims, operands[0].shape, operands[1].shape, Kind.PARALLEL
        )
        return builder.build((data, index), (result,))

    def work(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Work:
        return _lookup_work(operands, results)

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        data, index = operands
        return (data[_tuples(index, self.batch_dims, data.shape)],)

    def derivative(self, back: Backward) -> Gradients:
        if not back.wanted[0]:
            return (None, None)
        data, index = back.operands
        op = GatherNDGradient(self.batch_dims, data.type.shape)
        return (back.add(op, index, back.gradient), None)


@register_op("GatherNDGradient")
@dataclass(frozen=True, slots=True)
class GatherNDGradient(Op):
    """Adds a gradient into zeros at the places that GatherND took from."""

    batch_dims: int
    shape: tuple[int, ...]

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        return (operands[1].with_shape(self.shape),)

    def signature(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Signature:
        builder, data, index, gradient = _tuples_signature(
            self.batch_dims, self.shape, operands[0].shape, Kind.SUM
        )
        return builder.build((index, gradient), (data,))

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        import numpy as np

        index, gradient = operands
        result = np.zeros(self.shape, gradient.dtype)
        np.add.at(result, _tuples(index, self.batch_dims, self.shape), gradient)
        return (result,)

    def linear_operands(self, operands: Sequence[TensorType]) -> tuple[int, ...]:
        return (1,)

    def localized(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Op:
        return replace(self, shape=results[0].shape)


@register_op("ScatterND")
@dataclass(frozen=True, slots=True)
class ScatterND(Op):
    """`data` with slices `updates` put at tuples of indices, or added there."""

    adds: bool = False

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        data, index, updates = operands
        (picked,) = GatherND().infer(data, index)
        if picked.shape != updates.shape:
            raise ShapeError(f"ScatterND: updates {updates}; the indices ask for {picked}")
        return (data,)

    def signature(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Signature:
        builder, data, index, updates = _tuples_signature(
            0, operands[0].shape, operands[1].shape, Kind.WHOLE
        )
        return builder.build((data, index, updates), (data,))

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        import numpy as np

        data, index, updates = operands
        result = data.copy()
        where = _tuples(index, 0, data.shape)
        if self.adds:
            np.add.at(result, where, updates)
        else:
            result[where] = updates
        return (result,)

    def derivative(self, back: Backward) -> Gradients:
        _, index, updates = back.operands
        of_data = of_updates = None
        if back.wanted[0]:
            blank = ScatterND()
            of_data = (
                back.gradient
                if self.adds
                else back.add(blank, back.gradient, index, zeros(back.builder, updates.type))
            )
        if back.wanted[2]:
            of_updates = back.add(GatherND(), back.gradient, index)
        return (of_data, None, of_updates)
