"""Ops that move elements without computing: shape, order, selection; and a scaling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from distir.cost.work import Work
from distir.errors import ShapeError
from distir.ir.core import Array, Backward, Gradients, NodeBuilder, Op, Value
from distir.ir.registered import register_op
from distir.ir.signature import Dims, Kind, Signature, SignatureBuilder, broadcast_signature
from distir.ir.types import TensorType
from distir.ops.base import broadcast_shapes, normalize_axis, sum_to_shape
from distir.ops.refinement import reshape_signature

FREE_OF_WORK = Work.nothing()
"""The work of a view: no kernel is launched, and no data is moved."""


@register_op("Scale")
@dataclass(frozen=True, slots=True)
class Scale(Op):
    """`factor · x` with a constant factor."""

    factor: float

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        return operands

    def signature(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Signature:
        return broadcast_signature([operands[0].shape], operands[0].shape)

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        return (self.factor * operands[0],)

    def linear_operands(self, operands: Sequence[TensorType]) -> tuple[int, ...]:
        return (0,)

    def derivative(self, back: Backward) -> Gradients:
        return (back.add(self, back.gradient),)


@register_op("Reshape")
@dataclass(frozen=True, slots=True)
class Reshape(Op):
    """The same elements in another shape. Flatten, Squeeze and Unsqueeze are Reshapes, too."""

    is_view: ClassVar[bool] = True

    shape: tuple[int, ...]

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        (x,) = operands
        if math.prod(self.shape) != x.num_elements:
            raise ShapeError(
                f"Reshape: {x} has {x.num_elements} elements, but {list(self.shape)} has "
                f"{math.prod(self.shape)}; expected as many"
            )
        return (x.with_shape(self.shape),)

    def signature(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Signature:
        return reshape_signature(operands[0].shape, results[0].shape)

    def work(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Work:
        return FREE_OF_WORK

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        return (operands[0].reshape(self.shape),)

    def linear_operands(self, operands: Sequence[TensorType]) -> tuple[int, ...]:
        return (0,)

    def derivative(self, back: Backward) -> Gradients:
        return (back.add(Reshape(back.operands[0].type.shape), back.gradient),)

    def localized(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Op:
        return Reshape(results[0].shape)


@register_op("Transpose")
@dataclass(frozen=True, slots=True)
class Transpose(Op):
    """Reorders dims: dim `i` of the result is dim `permutation[i]` of the operand."""

    is_view: ClassVar[bool] = True

    permutation: tuple[int, ...]

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        (x,) = operands
        if sorted(self.permutation) != list(range(x.rank)):
            permutation = list(self.permutation)
            raise ShapeError(f"Transpose: {permutation} is no permutation of the dims of {x}")
        return (x.with_shape(tuple(x.shape[dim] for dim in self.permutation)),)

    def signature(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Signature:
        builder = SignatureBuilder()
        dims = builder.dims(operands[0].shape)
        return builder.build((dims,), (tuple(dims[dim] for dim in self.permutation),))

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        return (operands[0].transpose(self.permutation),)

    def work(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Work:
        # Products and pointwise kernels read strided operands, so a transposition is a view.
        return FREE_OF_WORK

    def linear_operands(self, operands: Sequence[TensorType]) -> tuple[int, ...]:
        return (0,)

    def derivative(self, back: Backward) -> Gradients:
        inverse = tuple(self.permutation.index(dim) for dim in range(len(self.permutation)))
        return (back.add(Transpose(inverse), back.gradient),)


@register_op("Expand")
@dataclass(frozen=True, slots=True)
class Expand(Op):
    """Repeats dims of size 1 up to `shape`, and adds leading dims."""

    is_view: ClassVar[bool] = True

    shape: tuple[int, ...]

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        (x,) = operands
        if broadcast_shapes(self.name, x.shape, self.shape) != self.shape:
            raise ShapeError(f"Expand: {x} does not expand to {list(self.shape)}")
        return (x.with_shape(self.shape),)

    def signature(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Signature:
        return broadcast_signature([operands[0].shape], results[0].shape)

    def work(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Work:
        return FREE_OF_WORK

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        import numpy as np

        return (np.broadcast_to(operands[0], self.shape),)

    def linear_operands(self, operands: Sequence[TensorType]) -> tuple[int, ...]:
        return (0,)

    def derivative(self, back: Backward) -> Gradients:
        return (sum_to_shape(back.builder, back.gradient, back.operands[0].type.shape),)

    def localized(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Op:
        return Expand(results[0].shape)


@register_op("Concat")
@dataclass(frozen=True, slots=True)
class Concat(Op):
    """Joins operands along `axis`."""

    axis: int

    def handed_on(self, operands: Sequence[Value]) -> Sequence[Value]:
        return operands

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        axis = normalize_axis(self.name, self.axis, operands[0].rank)
        first = operands[0].shape
        for operand in operands:
            other = operand.shape
            if other[:axis] != first[:axis] or other[axis + 1 :] != first[axis + 1 :]:
                raise ShapeError(
                    f"Concat: {operand} beside {operands[0]} along axis {axis}; expected equal "
                    "other dims"
                )
        total = sum(operand.shape[axis] for operand in operands)
        return (operands[0].with_shape((*first[:axis], total, *first[axis + 1 :])),)

    def signature(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Signature:
        return _parts_signature(self.axis, results[0].shape, [t.shape for t in operands], join=True)

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        import numpy as np

        return (np.concatenate(operands, axis=self.axis),)

    def linear_operands(self, operands: Sequence[TensorType]) -> tuple[int, ...]:
        return tuple(range(len(operands)))

    def derivative(self, back: Backward) -> Gradients:
        axis = normalize_axis(self.name, self.axis, back.gradient.type.rank)
        sizes = tuple(operand.type.shape[axis] for operand in back.operands)
        return back.builder.apply(Split(axis, sizes), back.gradient)


def _parts_signature(
    axis: int, whole_shape: Sequence[int], part_shapes: Sequence[Sequence[int]], join: bool
) -> Signature:
    """The signature of a Split or Concat. The axis is a product `number of parts × part`, of which
    the part can be split; if parts are unequal, the axis cannot be split."""
    axis = axis % len(whole_shape)
    builder = SignatureBuilder()
    dims = [() if dim == axis else builder.loop(size) for dim, size in enumerate(whole_shape)]
    sizes = [shape[axis] for shape in part_shapes]
    if len(set(sizes)) == 1:
        count = builder.loop(len(sizes), Kind.WHOLE)
        part = builder.loop(sizes[0])
        whole_axis, part_axes = count + part, [part] * len(sizes)
    else:
        whole_axis = builder.loop(whole_shape[axis], Kind.WHOLE)
        part_axes = [builder.loop(size, Kind.WHOLE) for size in sizes]

    def with_axis(loops: tuple[int, ...]) -> Dims:
        return (*dims[:axis], loops, *dims[axis + 1 :])

    parts = [with_axis(loops) for loops in part_axes]
    whole = with_axis(whole_axis)
    return builder.build(parts, [whole]) if join else builder.build([whole], parts)


@register_op("Split")
@dataclass(frozen=True, slots=True)
class Split(Op):
    """Cuts `axis` into parts of the given sizes."""

    is_view: ClassVar[bool] = True

    axis: int
    sizes: tuple[int, ...]

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        (x,) = operands
        axis = normalize_axis(self.name, self.axis, x.rank)
        if sum(self.sizes) != x.shape[axis]:
            raise ShapeError(f"Split: sizes {list(self.sizes)} do not add up to dim {axis} of {x}")
        return tuple(
            x.with_shape((*x.shape[:axis], size, *x.shape[axis + 1 :])) for size in self.sizes
        )

    def signature(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Signature:
        return _parts_signature(
            self.axis, operands[0].shape, [t.shape for t in results], join=False
        )

    def work(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Work:
        return FREE_OF_WORK

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        import numpy as np

        bounds = np.cumsum(self.sizes)[:-1].tolist()
        return tuple(np.split(operands[0], bounds, axis=self.axis))

    def linear_operands(self, operands: Sequence[TensorType]) -> tuple[int, ...]:
        return (0,)

    def derivative(self, back: Backward) -> Gradients:
        parts = [
            gradient if gradient is not None else zeros(back.builder, result.type)
            for gradient, result in zip(back.gradients, back.results, strict=True)
        ]
        return (back.add(Concat(self.axis), *parts),)

    def localized(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Op:
        axis = self.axis % results[0].rank
        return replace(self, sizes=tuple(t.shape[axis] for t in results))


def zeros(builder: NodeBuilder, type: TensorType) -> Value:
    """Adds a value of this type that is zero everywhere."""
    return builder.add(Expand(type.shape), builder.scalar(0.0, type.dtype))


@register_op("Slice")
@dataclass(frozen=True, slots=True)
class Slice(Op):
    """Takes the elements `start, start + step, …` before `stop` of every dim, as Python slices do.
    A stop of None means up to the end in this direction."""

    is_view: ClassVar[bool] = True

    starts: tuple[int, ...]
    stops: tuple[int | None, ...]
    steps: tuple[int, ...]

    @property
    def slices(self) -> tuple[slice, ...]:
        """One Python slice per dim."""
        return tuple(map(slice, self.starts, self.stops, self.steps))

    def _is_full(self, dim: int, size: int) -> bool:
        return range(size)[self.slices[dim]] == range(size)

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        (x,) = operands
        if len(self.starts) != x.rank:
            raise ShapeError(f"Slice: {len(self.starts)} bounds for {x}; expected {x.rank}")
        shape = tuple(len(range(size)[cut]) for size, cut in zip(x.shape, self.slices, strict=True))
        return (x.with_shape(shape),)

    def signature(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Signature:
        (x,) = operands
        builder = SignatureBuilder()
        before: list[tuple[int, ...]] = []
        after: list[tuple[int, ...]] = []
        for dim, size in enumerate(x.shape):
            if self._is_full(dim, size):
                loop = builder.loop(size)
                before.append(loop)
                after.append(loop)
            else:
                before.append(builder.loop(size, Kind.WHOLE))
                after.append(builder.loop(results[0].shape[dim], Kind.WHOLE))
        return builder.build([tuple(before)], [tuple(after)])

    def work(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Work:
        return FREE_OF_WORK

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        return (operands[0][self.slices],)

    def linear_operands(self, operands: Sequence[TensorType]) -> tuple[int, ...]:
        return (0,)

    def derivative(self, back: Backward) -> Gradients:
        shape = back.operands[0].type.shape
        return (back.add(SliceGradient(shape, self.starts, self.stops, self.steps), back.gradient),)

    def localized(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Op:
        """Dims that are taken in full stay full at any size; others cannot be split, so that they
        keep their bounds."""
        (x,), (y,) = operands, results
        full = [
            start == 0 and step == 1 and size == cut
            for start, step, size, cut in zip(
                self.starts, self.steps, x.shape, y.shape, strict=True
            )
        ]
        return replace(
            self, stops=tuple(None if f else s for f, s in zip(full, self.stops, strict=True))
        )

    def rescaled(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Op:
        """The first elements of a dim are as many as the result has at these sizes: where that is
        a size of the workload, such as the batch, the file has it written out."""
        kept = self.localized(operands, results)
        assert isinstance(kept, Slice)
        return replace(kept, stops=_first(kept, results[0].shape))


def _first(op: Slice | SliceGradient, shape: Sequence[int]) -> tuple[int | None, ...]:
    """The stops of a slice of this shape: where it takes the first elements, their number."""
    bounds = zip(op.starts, op.stops, op.steps, shape, strict=True)
    return tuple(
        size if stop is not None and stop > 0 and start == 0 and step == 1 else stop
        for start, stop, step, size in bounds
    )


@register_op("SliceGradient")
@dataclass(frozen=True, slots=True)
class SliceGradient(Op):
    """Writes the operand to the places that `Slice` took elements from; zero elsewhere."""

    shape: tuple[int, ...]
    starts: tuple[int, ...]
    stops: tuple[int | None, ...]
    steps: tuple[int, ...]

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        return (operands[0].with_shape(self.shape),)

    def signature(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Signature:
        forward = Slice(self.starts, self.stops, self.steps)
        signature = forward.signature(results, operands)
        return Signature(signature.loops, signature.results, signature.operands)

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        import numpy as np

        (gradient,) = operands
        result = np.zeros(self.shape, gradient.dtype)
        result[Slice(self.starts, self.stops, self.steps).slices] = gradient
        return (result,)

    def linear_operands(self, operands: Sequence[TensorType]) -> tuple[int, ...]:
        return (0,)

    def derivative(self, back: Backward) -> Gradients:
        return (back.add(Slice(self.starts, self.stops, self.steps), back.gradient),)

    def localized(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Op:
        forward = Slice(self.starts, self.stops, self.steps).localized(results, operands)
        assert isinstance(forward, Slice)
        return replace(self, shape=results[0].shape, stops=forward.stops)

    def rescaled(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Op:
        """As the slice."""
        kept = self.localized(operands, results)
        assert isinstance(kept, SliceGradient)
        return replace(kept, stops=_first(kept, operands[0].shape))


@register_op("Boundary")
@dataclass(frozen=True, slots=True)
class Boundary(Op):
    """The identity, but the result has fresh axes: where the operand is split, it is gathered.

    `factors[dim]` are the factors of a dim, outermost first: `(size, fresh)`. A fresh factor is
    another axis in the result than in the operand, of the same size.
    """

    is_view: ClassVar[bool] = True

    factors: tuple[tuple[tuple[int, bool], ...], ...]

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        return operands

    def signature(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Signature:
        builder = SignatureBuilder()
        before: list[tuple[int, ...]] = []
        after: list[tuple[int, ...]] = []
        for factors in self.factors:
            source: tuple[int, ...] = ()
            target: tuple[int, ...] = ()
            for size, fresh in factors:
                loop = builder.loop(size, Kind.WHOLE if fresh else Kind.PARALLEL)
                source += loop
                target += builder.loop(size, Kind.WHOLE) if fresh else loop
            before.append(source)
            after.append(target)
        return builder.build([tuple(before)], [tuple(after)])

    def work(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Work:
        return FREE_OF_WORK

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        return operands

    def linear_operands(self, operands: Sequence[TensorType]) -> tuple[int, ...]:
        return (0,)

    def derivative(self, back: Backward) -> Gradients:
        return (back.add(self, back.gradient),)
