"""Ops that look up or write elements by index: rows of a table, one element per index, one slice
per tuple of indices."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from distir.cost.work import OpClass, Work
from distir.errors import ShapeError
from distir.ir.core import Array, Backward, Gradients, Op, Value
from distir.ir.registered import register_op
from distir.ir.signature import Kind, Signature, SignatureBuilder
from distir.ir.types import TensorType
from distir.ops.base import from_start, normalize_axis
from distir.ops.tensor import zeros


def lookup_work(operands: Sequence[TensorType], results: Sequence[TensorType]) -> Work:
    """The work of a lookup, which reads only the looked-up elements of the table."""
    size = sum(t.size_bytes for t in results)
    return Work(
        kind=OpClass.MEMORY,
        bytes_read=size + sum(t.size_bytes for t in operands[1:]),
        bytes_written=size,
    )


class _Scatter(Op):
    """Base of ops that write `updates` into `data` at indices, or, if `adds`, add them there.
    Operands are data, index, updates."""

    __slots__ = ()
    adds: bool

    @property
    @abstractmethod
    def reader(self) -> Op:
        """The op that looks up the elements that this one writes."""

    @abstractmethod
    def places(self, index: Array, shape: Sequence[int]) -> tuple[Array, ...]:
        """NumPy index arrays for the dims of data of this shape."""

    def handed_on(self, operands: Sequence[Value]) -> Sequence[Value]:
        return operands[:1]

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        data, index, updates = operands
        (found,) = self.reader.infer(data, index)
        if found.shape != updates.shape:
            raise ShapeError(f"{self.name}: updates {updates}; expected {found} for these indices")
        return (data,)

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        import numpy as np

        data, index, updates = operands
        result = data.copy()
        where = self.places(index, data.shape)
        if self.adds:
            np.add.at(result, where, updates)
        else:
            result[where] = updates
        return (result,)

    def derivative(self, back: Backward) -> Gradients:
        _, index, updates = back.operands
        of_data = back.gradient if back.wanted[0] else None
        if of_data is not None and not self.adds:  # no gradient reaches overwritten elements
            of_data = back.add(self, of_data, index, zeros(back.builder, updates.type))
        of_updates = back.add(self.reader, back.gradient, index) if back.wanted[2] else None
        return (of_data, None, of_updates)


# --- rows of a table -----------------------------------------------------------------------------


@register_op("Gather")
@dataclass(frozen=True, slots=True)
class Gather(Op):
    """Rows of a table: `table` with its dim `axis` replaced by the dims of `indices`, of which -1
    is the last row.

    A device that holds only some rows of the table gives zeros for the others, so that the results
    of all devices add up.
    """

    picks_by: ClassVar[int | None] = 1

    axis: int = 0

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        table, indices = operands
        axis = normalize_axis(self.name, self.axis, table.rank)
        return (table.with_shape((*table.shape[:axis], *indices.shape, *table.shape[axis + 1 :])),)

    def signature(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Signature:
        table, indices = operands
        axis = self.axis % table.rank
        builder = SignatureBuilder()
        rows = builder.positional(table.shape[axis], Kind.PICK)
        before = builder.dims(table.shape[:axis])
        index = builder.dims(indices.shape)
        after = builder.dims(table.shape[axis + 1 :])
        return builder.build([(*before, rows, *after), index], [(*before, *index, *after)])

    def work(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Work:
        return lookup_work(operands, results)

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        import numpy as np

        table, indices = operands
        return (np.take(table, indices.astype(np.int64), axis=self.axis),)

    def evaluate_shard(self, indices: Mapping[int, Array], *operands: Array) -> tuple[Array, ...]:
        import numpy as np

        if 0 not in indices:
            return self.evaluate(*operands)
        table, wanted = operands
        held = indices[0]
        place = np.searchsorted(held, wanted)
        place = np.minimum(place, len(held) - 1)
        found = held[place] == wanted
        rows = np.take(table, place, axis=self.axis)
        axis = self.axis % table.ndim
        mask = found.reshape((1,) * axis + found.shape + (1,) * (table.ndim - axis - 1))
        return (rows * mask,)

    def derivative(self, back: Backward) -> Gradients:
        if not back.wanted[0]:
            return (None, None)
        table, indices = back.operands
        op = GatherGradient(self.axis % table.type.rank, table.type.shape)
        return (back.add(op, indices, back.gradient), None)


@register_op("GatherGradient")
@dataclass(frozen=True, slots=True)
class GatherGradient(Op):
    """The gradient of Gather's table: adds rows of the gradient into a table of zeros."""

    picks_by: ClassVar[int | None] = 0

    axis: int
    shape: tuple[int, ...]

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        return (operands[1].with_shape(self.shape),)

    def signature(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Signature:
        indices, _ = operands
        builder = SignatureBuilder()
        rows = builder.positional(self.shape[self.axis])
        before = builder.dims(self.shape[: self.axis])
        index = builder.dims(indices.shape, Kind.SUM)
        after = builder.dims(self.shape[self.axis + 1 :])
        return builder.build([index, (*before, *index, *after)], [(*before, rows, *after)])

    def work(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Work:
        size = operands[1].size_bytes
        return Work(
            kind=OpClass.MEMORY,
            flops=operands[1].num_elements,
            bytes_read=2 * size + operands[0].size_bytes,
            bytes_written=size + results[0].size_bytes,
        )

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        return self.evaluate_shard({}, *operands)

    def evaluate_shard(self, indices: Mapping[int, Array], *operands: Array) -> tuple[Array, ...]:
        import numpy as np

        picked, gradient = operands
        held = indices.get(0)
        if held is None:
            held = np.arange(self.shape[self.axis])
            picked = from_start(picked, len(held))
        flat = picked.reshape(-1).astype(np.int64)
        place = np.minimum(np.searchsorted(held, flat), len(held) - 1)
        found = held[place] == flat
        rank = picked.ndim
        moved = np.moveaxis(gradient, range(self.axis, self.axis + rank), range(rank)).reshape(
            flat.size, *self.shape[: self.axis], *self.shape[self.axis + 1 :]
        )
        result = np.zeros((len(held), *moved.shape[1:]), gradient.dtype)
        np.add.at(result, place[found], moved[found])
        return (np.moveaxis(result, 0, self.axis),)

    def linear_operands(self, operands: Sequence[TensorType]) -> tuple[int, ...]:
        return (1,)

    def localized(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Op:
        return replace(self, shape=results[0].shape)


# --- one element per index -----------------------------------------------------------------------


def _elements_signature(
    axis: int, table: Sequence[int], index: Sequence[int], of_table: Kind, of_index: Kind
) -> tuple[SignatureBuilder, tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]:
    """A signature builder, and the dims of a table and of the indices into its dim `axis`. Loop 0
    goes over the table's rows."""
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
        raise ShapeError(
            f"{name}: indices {index} into {table} along dim {normal}; expected integers, and no "
            "other dim larger than the table's"
        )


def _grid(index: Array, axis: int) -> tuple[Array, ...]:
    """Index arrays for every dim: `index` along `axis`, each element's own place along others."""
    import numpy as np

    places: list[Array] = list(np.indices(index.shape, sparse=True))
    places[axis] = index
    return tuple(places)


@register_op("GatherElements")
@dataclass(frozen=True, slots=True)
class GatherElements(Op):
    """`table` at `indices` along `axis`, and at the index's own place along the other dims. Rows
    of a split table that a device does not hold count as zero."""

    picks_by: ClassVar[int | None] = 1

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
        return lookup_work(operands, results)

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        import numpy as np

        table, index = operands
        wrapped = from_start(index, table.shape[self.axis]).astype(np.int64)
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
    """Adds a gradient to zeros at the places that GatherElements or TopK read."""

    picks_by: ClassVar[int | None] = 0

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
        wrapped = index if 0 in indices else from_start(index, len(held))
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
class ScatterElements(_Scatter):
    """`data` with `updates` written at `indices` along `axis`, or added there."""

    axis: int = 0
    adds: bool = False

    @property
    def reader(self) -> GatherElements:
        return GatherElements(self.axis)

    def signature(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Signature:
        data, index = (t.shape for t in operands[:2])
        builder, data_dims, index_dims = _elements_signature(
            self.axis % len(data), data, index, Kind.WHOLE, Kind.WHOLE
        )
        return builder.build((data_dims, index_dims, index_dims), (data_dims,))

    def places(self, index: Array, shape: Sequence[int]) -> tuple[Array, ...]:
        return _grid(from_start(index, shape[self.axis]), self.axis)


# --- one slice per tuple of indices --------------------------------------------------------------


def _tuples_signature(
    batch_dims: int, data: Sequence[int], index: Sequence[int], of_index: Kind
) -> tuple[SignatureBuilder, Any, Any, Any]:
    """A signature builder, and the dims of `data[b…, i…, rest…]`, of `index[b…, q…, len(i)]` and of
    the result `[b…, q…, rest…]`."""
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
        grid.append(from_start(own, shape[batch_dims + position]))
    return tuple(grid)


@register_op("GatherND")
@dataclass(frozen=True, slots=True)
class GatherND(Op):
    """Slices of `data` at tuples of indices. The first `batch_dims` dims of data and indices are
    the same batch."""

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
            raise ShapeError(
                f"GatherND: indices {index} into {data} with {self.batch_dims} batch dims;"
                " expected integers, equal batch dims, and tuples no longer than its other dims"
            )
        rest = data.shape[self.batch_dims + index.shape[-1] :]
        return (data.with_shape(index.shape[:-1] + rest),)

    def signature(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Signature:
        builder, data, index, result = _tuples_signature(
            self.batch_dims, operands[0].shape, operands[1].shape, Kind.PARALLEL
        )
        return builder.build((data, index), (result,))

    def work(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Work:
        return lookup_work(operands, results)

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
    """Adds a gradient to zeros at the places that GatherND read."""

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
class ScatterND(_Scatter):
    """`data` with slices `updates` written at tuples of indices, or added there."""

    adds: bool = False

    @property
    def reader(self) -> GatherND:
        return GatherND()

    def signature(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Signature:
        builder, data, index, updates = _tuples_signature(
            0, operands[0].shape, operands[1].shape, Kind.WHOLE
        )
        return builder.build((data, index, updates), (data,))

    def places(self, index: Array, shape: Sequence[int]) -> tuple[Array, ...]:
        return _tuples(index, 0, shape)
