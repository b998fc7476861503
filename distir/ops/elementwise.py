"""Ops that compute every element from the elements at the same place, with broadcasting: their base
classes, and those that change no number."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from distir.cost.work import Work
from distir.ir.core import Array, Backward, Gradients, Op
from distir.ir.registered import register_op
from distir.ir.signature import Signature, broadcast_signature
from distir.ir.types import DType, TensorType
from distir.ops.base import broadcast_shapes, sum_to_shape


class Elementwise(Op):
    """Base: one loop per dim of the result, all parallel."""

    __slots__ = ()

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        shape = broadcast_shapes(self.name, *(t.shape for t in operands))
        return (TensorType(shape, self.result_dtype(*operands)),)

    def result_dtype(self, *operands: TensorType) -> DType:
        """Element type of the result: the first operand's unless a subclass says otherwise."""
        return operands[0].dtype

    def signature(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Signature:
        return broadcast_signature([t.shape for t in operands], results[0].shape, len(results))


class Unary(Elementwise):
    """Base of `y = f(x)`. `slope` is f' from x, or from y where that is known without x, so that
    only the result has to be kept for the backward pass."""

    __slots__ = ()
    slope_from_result: ClassVar[bool] = False

    @abstractmethod
    def apply(self, x: Array) -> Array:
        """f(x) in NumPy."""

    def slope(self, x_or_y: Array) -> Array:
        """f'(x) in NumPy; zero where the function is flat."""
        import numpy as np

        return np.zeros_like(x_or_y)

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        return (self.apply(operands[0]),)

    def derivative(self, back: Backward) -> Gradients:
        if type(self).slope is Unary.slope:
            return (None,)
        kept = back.result if self.slope_from_result else back.operands[0]
        return (back.add(UnaryGradient(self), kept, back.gradient),)


@register_op("UnaryGradient")
@dataclass(frozen=True, slots=True)
class UnaryGradient(Elementwise):
    """`dx = dy · f'`, where `op` is f and the first operand is its operand or result."""

    op: Unary

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        kept, gradient = operands
        return (gradient * self.op.slope(kept),)


class Binary(Elementwise):
    """Base of ops with two operands."""

    __slots__ = ()

    @abstractmethod
    def apply(self, a: Array, b: Array) -> Array:
        """The result in NumPy."""

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        return (self.apply(*operands),)

    def derivative(self, back: Backward) -> Gradients:
        return [
            sum_to_shape(back.builder, part(), operand.type.shape) if want else None
            for part, operand, want in zip(
                self.partial_gradients(back), back.operands, back.wanted, strict=True
            )
        ]

    def partial_gradients(self, back: Backward) -> Sequence[Any]:
        """Per operand a function that builds its gradient, called only where it is wanted."""
        from distir.errors import TransformError

        raise TransformError(f"op {self.name} has no derivative")


# --- ops that change no number -------------------------------------------------------------------


@register_op("Identity")
@dataclass(frozen=True, slots=True)
class Identity(Unary):
    """`y = x`."""

    is_view: ClassVar[bool] = True

    def work(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Work:
        return Work.nothing()

    def apply(self, x: Array) -> Array:
        return x

    def linear_operands(self, operands: Sequence[TensorType]) -> tuple[int, ...]:
        return (0,)

    def derivative(self, back: Backward) -> Gradients:
        return back.gradients


@register_op("StopGradient")
@dataclass(frozen=True, slots=True)
class StopGradient(Unary):
    """`y = x`, a constant to the derivative."""

    is_view: ClassVar[bool] = True

    def work(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Work:
        return Work.nothing()

    def apply(self, x: Array) -> Array:
        return x


@register_op("Cast")
@dataclass(frozen=True, slots=True)
class Cast(Unary):
    """Converts the element type. Between floats the executor keeps its own precision."""

    to: DType

    def result_dtype(self, *operands: TensorType) -> DType:
        return self.to

    def apply(self, x: Array) -> Array:
        import numpy as np

        if self.to.is_float:
            return x if np.issubdtype(x.dtype, np.floating) else x.astype(np.float64)
        return x.astype(np.bool_ if self.to is DType.BOOL else np.int64)

    def linear_operands(self, operands: Sequence[TensorType]) -> tuple[int, ...]:
        return (0,) if self.to.is_float and operands[0].dtype.is_float else ()

    def derivative(self, back: Backward) -> Gradients:
        source = back.operands[0].type.dtype
        if not source.is_float:
            return (None,)
        return (back.add(Cast(source), back.gradient),)
