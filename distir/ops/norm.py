"""Softmax and normalizations, as the fused kernels that frameworks run.

Each is a composite op: `lower` gives simpler ops, whose reduced dims can be split.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from distir.errors import ShapeError
from distir.ir.core import Array, Backward, Gradients, Node, NodeBuilder, Op, Value
from distir.ir.registered import register_op
from distir.ir.signature import Kind, Signature, SignatureBuilder, broadcast_signature
from distir.ir.types import TensorType
from distir.ops.arithmetic import Add, Div, Exp, Log, Mul, Reciprocal, Sqrt, Sub
from distir.ops.base import normalize_axis
from distir.ops.elementwise import StopGradient
from distir.ops.reduce import ReduceMax, ReduceMean, ReduceSum


class _AlongAxis(Op):
    """Base of ops whose result has the operands' shape and that need `axis` whole."""

    __slots__ = ()
    axis: int

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        normalize_axis(self.name, self.axis, operands[0].rank)
        return (operands[0],)

    def signature(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Signature:
        shape = results[0].shape
        whole = frozenset((self.axis % len(shape),))
        return broadcast_signature([t.shape for t in operands], shape, whole_dims=whole)


def softmax(x: Array, axis: int) -> Array:
    """`exp(x) / Σ exp(x)` along `axis`, without overflow."""
    import numpy as np

    shifted = np.exp(x - x.max(axis=axis, keepdims=True))
    return shifted / shifted.sum(axis=axis, keepdims=True)


@register_op("Softmax")
@dataclass(frozen=True, slots=True)
class Softmax(_AlongAxis):
    """`exp(x) / Σ exp(x)` along `axis`."""

    axis: int = -1

    def masked_dims(self, operands: Sequence[TensorType]) -> tuple[int, ...]:
        return (self.axis % operands[0].rank,)

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        return (softmax(operands[0], self.axis),)

    def derivative(self, back: Backward) -> Gradients:
        return (back.add(SoftmaxGradient(self.axis), back.result, back.gradient),)

    def lower(self, builder: NodeBuilder, node: Node) -> tuple[Value, ...] | None:
        shifted = _shifted(builder, node.operands[0], self.axis)
        exponential = builder.add(Exp(), shifted)
        total = builder.add(ReduceSum(_axes(node, self.axis)), exponential)
        return (builder.add(Div(), exponential, total),)


@register_op("LogSoftmax")
@dataclass(frozen=True, slots=True)
class LogSoftmax(_AlongAxis):
    """The logarithm of Softmax."""

    axis: int = -1

    def masked_dims(self, operands: Sequence[TensorType]) -> tuple[int, ...]:
        return (self.axis % operands[0].rank,)

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        import numpy as np

        shifted = operands[0] - operands[0].max(axis=self.axis, keepdims=True)
        return (shifted - np.log(np.exp(shifted).sum(axis=self.axis, keepdims=True)),)

    def derivative(self, back: Backward) -> Gradients:
        total = back.add(ReduceSum(_axes(back.node, self.axis)), back.gradient)
        probability = back.add(Exp(), back.result)
        return (back.add(Sub(), back.gradient, back.add(Mul(), probability, total)),)

    def lower(self, builder: NodeBuilder, node: Node) -> tuple[Value, ...] | None:
        shifted = _shifted(builder, node.operands[0], self.axis)
        total = builder.add(ReduceSum(_axes(node, self.axis)), builder.add(Exp(), shifted))
        return (builder.add(Sub(), shifted, builder.add(Log(), total)),)


def _axes(node: Node, axis: int) -> tuple[int, ...]:
    return (axis % node.operands[0].type.rank,)


def _shifted(builder: NodeBuilder, x: Value, axis: int) -> Value:
    """`x` minus its maximum, without a gradient through the maximum: a softmax does not depend on
    the number that is subtracted."""
    maximum = builder.add(ReduceMax((axis % x.type.rank,)), x)
    return builder.add(Sub(), x, builder.add(StopGradient(), maximum))


@register_op("SoftmaxGradient")
@dataclass(frozen=True, slots=True)
class SoftmaxGradient(_AlongAxis):
    """`dx = y · (dy − Σ y·dy)` from Softmax's result and the gradient."""

    axis: int = -1

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        y, gradient = operands
        return (y * (gradient - (y * gradient).sum(axis=self.axis, keepdims=True)),)

    def lower(self, builder: NodeBuilder, node: Node) -> tuple[Value, ...] | None:
        y, gradient = node.operands
        product = builder.add(Mul(), y, gradient)
        total = builder.add(ReduceSum(_axes(node, self.axis)), product)
        return (builder.add(Mul(), y, builder.add(Sub(), gradient, total)),)


class _Normalization(Op):
    """Base of ops that normalize the dims from `axis` on; `scale` and `bias` have the shape of
    those dims."""

    __slots__ = ()
    axis: int
    epsilon: float

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        x = operands[0]
        axis = normalize_axis(self.name, self.axis, x.rank)
        for operand in operands[1:]:
            if operand.shape != x.shape[axis:]:
                raise ShapeError(
                    f"{self.name}: {operand} beside {x}; expected shape {list(x.shape[axis:])}"
                )
        return (x,)

    def signature(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Signature:
        shape = operands[0].shape
        whole = frozenset(range(self.axis % len(shape), len(shape)))
        return broadcast_signature([t.shape for t in operands], shape, whole_dims=whole)

    def reduced(self, rank: int) -> tuple[int, ...]:
        """The dims that are normalized."""
        return tuple(range(self.axis % rank, rank))


@register_op("LayerNormalization")
@dataclass(frozen=True, slots=True)
class LayerNormalization(_Normalization):
    """`(x − mean) / √(variance + epsilon) · scale + bias` (Ba et al. 2016)."""

    axis: int = -1
    epsilon: float = 1e-5

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        x, scale = operands[:2]
        normal, _ = _standardize(x, self.reduced(x.ndim), self.epsilon, centered=True)
        result = normal * scale
        return (result + operands[2] if len(operands) > 2 else result,)

    def derivative(self, back: Backward) -> Gradients:
        return _normalization_derivative(self, back, centered=True)

    def lower(self, builder: NodeBuilder, node: Node) -> tuple[Value, ...] | None:
        x, scale = node.operands[:2]
        axes = self.reduced(x.type.rank)
        centered = builder.add(Sub(), x, builder.add(ReduceMean(axes), x))
        result = _lower_scaled(builder, centered, scale, axes, self.epsilon)
        if len(node.operands) > 2:
            result = builder.add(Add(), result, node.operands[2])
        return (result,)


@register_op("RMSNormalization")
@dataclass(frozen=True, slots=True)
class RMSNormalization(_Normalization):
    """`x / √(mean(x²) + epsilon) · scale` (Zhang and Sennrich 2019)."""

    axis: int = -1
    epsilon: float = 1e-6

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        x, scale = operands
        normal, _ = _standardize(x, self.reduced(x.ndim), self.epsilon, centered=False)
        return (normal * scale,)

    def derivative(self, back: Backward) -> Gradients:
        return _normalization_derivative(self, back, centered=False)

    def lower(self, builder: NodeBuilder, node: Node) -> tuple[Value, ...] | None:
        x, scale = node.operands
        return (_lower_scaled(builder, x, scale, self.reduced(x.type.rank), self.epsilon),)


def _standardize(
    x: Array, axes: tuple[int, ...], epsilon: float, centered: bool
) -> tuple[Array, Array]:
    """`x` with mean 0 (if `centered`) and mean square 1 along `axes`, and the factor applied for
    the latter."""
    import numpy as np

    if centered:
        x = x - x.mean(axis=axes, keepdims=True)
    inverse = 1 / np.sqrt((x * x).mean(axis=axes, keepdims=True) + epsilon)
    return x * inverse, inverse


def _lower_scaled(
    builder: NodeBuilder, x: Value, scale: Value, axes: tuple[int, ...], epsilon: float
) -> Value:
    mean_square = builder.add(ReduceMean(axes), builder.add(Mul(), x, x))
    shifted = builder.add(Add(), mean_square, builder.scalar(epsilon, x.type.dtype))
    inverse = builder.add(Reciprocal(), builder.add(Sqrt(), shifted))
    return builder.add(Mul(), builder.add(Mul(), x, inverse), scale)


def _normalization_derivative(op: _Normalization, back: Backward, centered: bool) -> Gradients:
    gradient, (x, scale) = back.gradient, back.operands[:2]
    of_x = of_scale = of_bias = None
    axis = op.axis % x.type.rank
    if back.wanted[0]:
        of_x = back.add(NormalizationGradient(axis, op.epsilon, centered), x, scale, gradient)
    if back.wanted[1]:
        of_scale = back.add(NormalizationScaleGradient(axis, op.epsilon, centered), x, gradient)
    if len(back.operands) > 2 and back.wanted[2]:
        of_bias = back.add(ReduceSum(tuple(range(axis)), keepdims=False), gradient)
    return (of_x, of_scale, of_bias)[: len(back.operands)]


@register_op("NormalizationGradient")
@dataclass(frozen=True, slots=True)
class NormalizationGradient(Op):
    """The gradient of a normalization's operand, from `x`, `scale` and the result's gradient.

    With n = standardized x and g = dy·scale: `dx = (g − n·mean(g·n) − [centered] mean(g)) / σ`.
    """

    axis: int
    epsilon: float
    centered: bool

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        return (operands[0],)

    def signature(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Signature:
        shape = operands[0].shape
        whole = frozenset(range(self.axis, len(shape)))
        return broadcast_signature([t.shape for t in operands], shape, whole_dims=whole)

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        x, scale, gradient = operands
        axes = tuple(range(self.axis, x.ndim))
        normal, inverse = _standardize(x, axes, self.epsilon, self.centered)
        g = gradient * scale
        result = g - normal * (g * normal).mean(axis=axes, keepdims=True)
        if self.centered:
            result = result - g.mean(axis=axes, keepdims=True)
        return (result * inverse,)


@register_op("NormalizationScaleGradient")
@dataclass(frozen=True, slots=True)
class NormalizationScaleGradient(Op):
    """`Σ standardized(x) · dy` over the dims before `axis`: the gradient of a norm's scale."""

    axis: int
    epsilon: float
    centered: bool

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        return (operands[0].with_shape(operands[0].shape[self.axis :]),)

    def signature(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Signature:
        shape = operands[0].shape
        builder = SignatureBuilder()
        dims = (
            *builder.dims(shape[: self.axis], Kind.SUM),
            *builder.dims(shape[self.axis :], Kind.WHOLE),
        )
        return builder.build((dims, dims), (dims[self.axis :],))

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        x, gradient = operands
        axes = tuple(range(self.axis, x.ndim))
        normal, _ = _standardize(x, axes, self.epsilon, self.centered)
        return ((normal * gradient).sum(axis=tuple(range(self.axis))),)
