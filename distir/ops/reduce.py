"""Reductions over dims: sum, mean, maximum, product."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from distir.ir.core import Array, Backward, Gradients, Op, Value
from distir.ir.registered import register_op
from distir.ir.signature import Kind, Signature, SignatureBuilder, broadcast_signature
from distir.ir.types import TensorType
from distir.ops.base import normalize_axes


class Reduction(Op):
    """Base of reductions: dims in `axes` are reduced, and kept with size 1 if `keepdims`. `kind` is
    the kind of the reduced loops."""

    __slots__ = ()
    axes: tuple[int, ...]
    keepdims: bool
    kind: ClassVar[Kind]

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        (x,) = operands
        axes = normalize_axes(self.name, self.axes, x.rank)
        shape = tuple(
            1 if dim in axes else size
            for dim, size in enumerate(x.shape)
            if self.keepdims or dim not in axes
        )
        return (x.with_shape(shape),)

    def signature(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Signature:
        (x,) = operands
        axes = normalize_axes(self.name, self.axes, x.rank)
        builder = SignatureBuilder()
        dims = tuple(
            builder.loop(size, self.kind if dim in axes else Kind.PARALLEL)
            for dim, size in enumerate(x.shape)
        )
        kept = tuple(
            () if dim in axes else loops
            for dim, loops in enumerate(dims)
            if self.keepdims or dim not in axes
        )
        return builder.build((dims,), (kept,))

    def with_reduced_dims(self, back: Backward, value: Value) -> Value:
        """A value of the result's shape (such as its gradient) with the reduced dims as size 1."""
        from distir.ops.tensor import Reshape

        (x,) = back.operands
        axes = normalize_axes(self.name, self.axes, x.type.rank)
        kept = tuple(1 if dim in axes else size for dim, size in enumerate(x.type.shape))
        return value if value.type.shape == kept else back.add(Reshape(kept), value)

    def expanded(self, back: Backward, value: Value) -> Value:
        """A value of the result's shape (such as its gradient) repeated along the reduced dims."""
        from distir.ops.tensor import Expand

        (x,) = back.operands
        return back.add(Expand(x.type.shape), self.with_reduced_dims(back, value))


@register_op("ReduceSum")
@dataclass(frozen=True, slots=True)
class ReduceSum(Reduction):
    """The sum over `axes`."""

    axes: tuple[int, ...]
    keepdims: bool = True
    kind: ClassVar[Kind] = Kind.SUM

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        return (operands[0].sum(axis=self.axes, keepdims=self.keepdims),)

    def linear_operands(self, operands: Sequence[TensorType]) -> tuple[int, ...]:
        return (0,)

    def derivative(self, back: Backward) -> Gradients:
        return (self.expanded(back, back.gradient),)


@register_op("ReduceMean")
@dataclass(frozen=True, slots=True)
class ReduceMean(Reduction):
    """The mean over `axes`: the sum divided by `count`, the number of elements of the whole tensor
    that are averaged, even if a device holds only some of them."""

    axes: tuple[int, ...]
    keepdims: bool = True
    count: int = 0
    """0: the number of elements that the operand has along `axes`."""
    kind: ClassVar[Kind] = Kind.SUM

    def divisor(self, shape: Sequence[int]) -> int:
        """The number by which the sum is divided, for an operand of this shape."""
        return self.count or math.prod(shape[axis] for axis in self.axes)

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        (x,) = operands
        return (x.sum(axis=self.axes, keepdims=self.keepdims) / self.divisor(x.shape),)

    def linear_operands(self, operands: Sequence[TensorType]) -> tuple[int, ...]:
        return (0,)

    def derivative(self, back: Backward) -> Gradients:
        x = back.operands[0].type
        axes = normalize_axes(self.name, self.axes, x.rank)
        gradient = self.with_reduced_dims(back, back.gradient)
        return (back.add(ReduceMeanGradient(axes, x.shape, self.count), gradient),)

    def rescaled(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Op:
        return replace(self, count=math.prod(operands[0].shape[axis] for axis in self.axes))


@register_op("ReduceMeanGradient")
@dataclass(frozen=True, slots=True)
class ReduceMeanGradient(Op):
    """Repeats the gradient of a mean along `axes`, divided by the number of averaged elements."""

    axes: tuple[int, ...]
    shape: tuple[int, ...]
    count: int = 0
    """0: the number of elements that the result has along `axes`."""

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        return (operands[0].with_shape(self.shape),)

    def signature(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Signature:
        return broadcast_signature([operands[0].shape], results[0].shape)

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        import numpy as np

        count = self.count or math.prod(self.shape[axis] for axis in self.axes)
        return (np.broadcast_to(operands[0] / count, self.shape),)

    def linear_operands(self, operands: Sequence[TensorType]) -> tuple[int, ...]:
        return (0,)

    def localized(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Op:
        return replace(self, shape=results[0].shape)

    def rescaled(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Op:
        shape = results[0].shape
        return replace(self, shape=shape, count=math.prod(shape[axis] for axis in self.axes))


@register_op("ReduceMax")
@dataclass(frozen=True, slots=True)
class ReduceMax(Reduction):
    """The maximum over `axes`."""

    axes: tuple[int, ...]
    keepdims: bool = True
    kind: ClassVar[Kind] = Kind.MAX

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        return (operands[0].max(axis=self.axes, keepdims=self.keepdims),)

    def derivative(self, back: Backward) -> Gradients:
        """Equal maxima share the gradient."""
        from distir.ops.arithmetic import Div, Mul
        from distir.ops.comparisons import Equal
        from distir.ops.elementwise import Cast

        (x,) = back.operands
        maximum = self.expanded(back, back.result)
        is_maximum = back.add(Cast(x.type.dtype), back.add(Equal(), x, maximum))
        count = back.add(ReduceSum(self.axes), is_maximum)
        share = back.add(Div(), is_maximum, count)
        return (back.add(Mul(), share, self.expanded(back, back.gradient)),)


@register_op("ReduceProd")
@dataclass(frozen=True, slots=True)
class ReduceProd(Reduction):
    """The product over `axes`. The derivative is right only if no factor is zero."""

    axes: tuple[int, ...]
    keepdims: bool = True
    kind: ClassVar[Kind] = Kind.WHOLE

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        return (operands[0].prod(axis=self.axes, keepdims=self.keepdims),)

    def derivative(self, back: Backward) -> Gradients:
        from distir.ops.arithmetic import Div, Mul

        product = back.add(Mul(), back.gradient, back.result)
        return (back.add(Div(), self.expanded(back, product), back.operands[0]),)
