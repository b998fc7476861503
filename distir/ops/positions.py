"""Ops that depend on the positions of elements: padding, triangles, running sums, sorting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from distir.errors import ShapeError
from distir.ir.core import Array, Backward, Gradients, Op
from distir.ir.registered import register_op
from distir.ir.signature import Kind, Signature, SignatureBuilder, broadcast_signature
from distir.ir.types import DType, TensorType
from distir.ops.arithmetic import Div, Mul
from distir.ops.base import normalize_axis
from distir.ops.lookup import GatherElementsGradient
from distir.ops.tensor import Slice


@register_op("Pad")
@dataclass(frozen=True, slots=True)
class Pad(Op):
    """Adds `before[d]` elements of `value` in front of dim d and `after[d]` behind it."""

    before: tuple[int, ...]
    after: tuple[int, ...]
    value: float = 0.0

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        (x,) = operands
        if (
            not len(self.before) == len(self.after) == x.rank
            or min(*self.before, *self.after, 0) < 0
        ):
            raise ShapeError(
                f"Pad: {list(self.before)} before and {list(self.after)} behind {x}; expected a "
                "number of at least 0 per dim"
            )
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
    """The elements of the last two dims on and above (`upper`), or on and below, their `k`-th
    diagonal; zero elsewhere."""

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
        rows = np.asarray(indices.get(0, np.arange(x.shape[-2], dtype=np.int64)))
        columns = np.asarray(indices.get(1, np.arange(x.shape[-1], dtype=np.int64)))
        distance = columns[None, :] - rows[:, None]
        kept = distance >= self.k if self.upper else distance <= self.k
        return (np.where(kept, x, np.zeros((), x.dtype)),)

    def linear_operands(self, operands: Sequence[TensorType]) -> tuple[int, ...]:
        return (0,)

    def derivative(self, back: Backward) -> Gradients:
        return (back.add(self, back.gradient),)


class Running(Op):
    """Base of sums and products along `axis`: up to each element, without the element itself if
    `exclusive`, and from the end if `reverse`."""

    __slots__ = ()
    axis: int
    exclusive: bool
    reverse: bool

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        normalize_axis(self.name, self.axis, operands[0].rank)
        return (operands[0],)

    def signature(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Signature:
        shape = operands[0].shape
        whole = frozenset((self.axis % len(shape),))
        return broadcast_signature([shape], shape, whole_dims=whole)


@register_op("CumSum")
@dataclass(frozen=True, slots=True)
class CumSum(Running):
    """Running sums along `axis`: up to each element, without the element itself if `exclusive`, and
    from the end if `reverse`."""

    axis: int
    exclusive: bool = False
    reverse: bool = False

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


@register_op("CumProd")
@dataclass(frozen=True, slots=True)
class CumProd(Running):
    """Running products along `axis`, as `CumSum` has sums. The derivative is right only if no
    factor is zero."""

    axis: int
    exclusive: bool = False
    reverse: bool = False

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        import numpy as np

        x = np.flip(operands[0], self.axis) if self.reverse else operands[0]
        if self.exclusive:
            x = np.roll(x, 1, self.axis)
            x[(slice(None),) * (self.axis % x.ndim) + (0,)] = 1
        total = np.cumprod(x, axis=self.axis)
        return (np.flip(total, self.axis) if self.reverse else total,)

    def derivative(self, back: Backward) -> Gradients:
        product = back.add(Mul(), back.gradient, back.result)
        total = back.add(CumSum(self.axis, self.exclusive, not self.reverse), product)
        return (back.add(Div(), total, back.operands[0]),)


@register_op("ArgMax")
@dataclass(frozen=True, slots=True)
class ArgMax(Op):
    """The position of the largest element along `axis`: the first such, or the last."""

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
    """The `k` largest (or smallest) elements along `axis`, sorted, and their positions."""

    k: int
    axis: int = -1
    largest: bool = True

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        (x,) = operands
        axis = normalize_axis(self.name, self.axis, x.rank)
        if not 0 < self.k <= x.shape[axis]:
            raise ShapeError(
                f"TopK: {self.k} elements of dim {axis} of {x}; expected at least 1 and at most "
                f"{x.shape[axis]}"
            )
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
