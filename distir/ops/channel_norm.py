"""Normalizations of convolutional networks: per channel, or over neighbouring channels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from distir.cost.work import OpClass, Work
from distir.errors import ShapeError
from distir.ir.core import Array, Backward, Gradients, NodeBuilder, Op, Value
from distir.ir.registered import register_op
from distir.ir.signature import Signature, SignatureBuilder, broadcast_signature
from distir.ir.types import TensorType
from distir.ops.window import KernelWindow


@register_op("BatchNormalization")
@dataclass(frozen=True, slots=True)
class BatchNormalization(Op):
    """`(x − mean) / √(variance + epsilon) · scale + bias` per channel, with given statistics.
    Operands are `x`, `scale`, `bias`, `mean`, `variance`."""

    epsilon: float = 1e-5

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        x = operands[0]
        if x.rank < 2 or any(operand.shape != x.shape[1:2] for operand in operands[1:]):
            found = ", ".join(map(str, operands[1:]))
            raise ShapeError(
                f"BatchNormalization: {found} beside {x}; expected one number per channel in each"
            )
        return (x,)

    def signature(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Signature:
        builder = SignatureBuilder()
        dims = builder.dims(operands[0].shape)
        return builder.build((dims, *((dims[1],),) * 4), (dims,))

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        import numpy as np

        x = operands[0]
        column = (-1,) + (1,) * (x.ndim - 2)
        scale, bias, mean, variance = (operand.reshape(column) for operand in operands[1:])
        return ((x - mean) * (scale / np.sqrt(variance + self.epsilon)) + bias,)

    def derivative(self, back: Backward) -> Gradients:
        from distir.errors import TransformError
        from distir.ops.arithmetic import Mul, Sub
        from distir.ops.reduce import ReduceSum

        if back.wanted[3] or back.wanted[4]:
            raise TransformError(
                "BatchNormalization: the gradient of its statistics was asked for; they are "
                "constants"
            )
        x, scale, _, mean, variance = back.operands
        inverse = self._inverse_deviation(back.builder, variance)
        of_x = of_scale = of_bias = None
        if back.wanted[0]:
            factor = back.add(Mul(), scale, inverse)
            of_x = back.add(Mul(), back.gradient, self._column(back.builder, factor, x))
        rest = tuple(dim for dim in range(x.type.rank) if dim != 1)
        if back.wanted[1]:
            centered = back.add(Sub(), x, self._column(back.builder, mean, x))
            normal = back.add(Mul(), centered, self._column(back.builder, inverse, x))
            product = back.add(Mul(), back.gradient, normal)
            of_scale = back.add(ReduceSum(rest, keepdims=False), product)
        if back.wanted[2]:
            of_bias = back.add(ReduceSum(rest, keepdims=False), back.gradient)
        return (of_x, of_scale, of_bias, None, None)

    def _inverse_deviation(self, builder: NodeBuilder, variance: Value) -> Value:
        from distir.ops.arithmetic import Add, Reciprocal, Sqrt

        epsilon = builder.scalar(self.epsilon, variance.type.dtype)
        shifted = builder.add(Add(), variance, epsilon)
        return builder.add(Reciprocal(), builder.add(Sqrt(), shifted))

    def _column(self, builder: NodeBuilder, vector: Value, x: Value) -> Value:
        from distir.ops.tensor import Reshape

        shape = (vector.type.shape[0],) + (1,) * (x.type.rank - 2)
        return builder.add(Reshape(shape), vector)


@register_op("LRN")
@dataclass(frozen=True, slots=True)
class LRN(Op):
    """`x / (bias + alpha / size · Σ x²)^beta`, the sum over `size` neighbouring channels
    (Krizhevsky et al. 2012, section 3.3)."""

    size: int
    alpha: float = 1e-4
    beta: float = 0.75
    bias: float = 1.0

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        if operands[0].rank < 2 or self.size < 1:
            raise ShapeError(
                f"LRN: {operands[0]}, size {self.size}; expected 2 dims or more, and a size of at "
                "least 1"
            )
        return (operands[0],)

    def signature(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Signature:
        shapes = [t.shape for t in operands]
        return broadcast_signature(shapes, shapes[0], whole_dims=frozenset((1,)))

    def work(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Work:
        return Work(
            kind=OpClass.MEMORY,
            flops=results[0].num_elements * (2 * self.size + 4),
            bytes_read=sum(t.size_bytes for t in operands),
            bytes_written=results[0].size_bytes,
        )

    def neighbours(self, x: Array, backwards: bool) -> Array:
        """Per channel, the sum of `x` over its neighbours, or, `backwards`, over the channels that
        it is a neighbour of."""
        before, after = (self.size - 1) // 2, self.size // 2
        if backwards:
            before, after = after, before
        window = KernelWindow((1,), (before, after), (1,))
        moved = x.swapaxes(1, -1)
        return window.windows(window.padded(moved, 0.0), (self.size,)).sum(-1).swapaxes(1, -1)

    def divisor(self, x: Array) -> Array:
        """The base of the power `beta` by which `x` is divided."""
        return self.bias + self.alpha / self.size * self.neighbours(x * x, backwards=False)

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        return (operands[0] * self.divisor(operands[0]) ** -self.beta,)

    def derivative(self, back: Backward) -> Gradients:
        return (back.add(LRNGradient(self), back.operands[0], back.gradient),)


@register_op("LRNGradient")
@dataclass(frozen=True, slots=True)
class LRNGradient(Op):
    """The gradient of LRN's operand, from the operand and the result's gradient."""

    lrn: LRN

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        return (operands[0],)

    def signature(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Signature:
        return self.lrn.signature(operands, results)

    def work(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Work:
        return self.lrn.work(operands, results) + Work(
            flops=results[0].num_elements * (self.lrn.size + 4), launches=0.0
        )

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        x, gradient = operands
        op = self.lrn
        divisor = op.divisor(x)
        pull = op.neighbours(gradient * x * divisor ** (-op.beta - 1), backwards=True)
        factor = 2 * op.alpha * op.beta / op.size
        return (gradient * divisor**-op.beta - factor * x * pull,)
