"""Base classes of elementwise ops, which compute every element from the elements at the same place,
with broadcasting; and the elementwise ops that change no number."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from distir.cost.work import Work
from distir.errors import ShapeError
from distir.ir.core import Array, Backward, Gradients, Op, Value
from distir.ir.registered import register_op
from distir.ir.signature import Signature, broadcast_signature
from distir.ir.types import DType, TensorType
from distir.ops.base import broadcast_shapes, sum_to_shape
from distir.units import counted


class Elementwise(Op):
    """Base of elementwise ops: one parallel loop per dim of the result."""

    __slots__ = ()
    takes: ClassVar[int] = 0
    """The number of operands; 0: any."""

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        if self.takes and len(operands) != self.takes:
            given = f"{counted(len(operands), 'operand')} ({', '.join(map(str, operands))})"
            raise ShapeError(f"{self.name}: {given}; expected {self.takes}")
        shape = broadcast_shapes(self.name, *(t.shape for t in operands))
        return (TensorType(shape, self.result_dtype(*operands)),)

    def result_dtype(self, *operands: TensorType) -> DType:
        """The element type of the result: that of the first operand unless a subclass overrides
        it."""
        return operands[0].dtype

    def signature(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Signature:
        return broadcast_signature([t.shape for t in operands], results[0].shape, len(results))


class Unary(Elementwise):
    """Base of `y = f(x)`. `slope` computes f' from x, or from y if `slope_from_result`, so that
    only the result need be kept for the backward pass."""

    __slots__ = ()
    takes = 1
    slope_from_result: ClassVar[bool] = False

    @abstractmethod
    def apply(self, x: Array) -> Array:
        """f(x) in NumPy."""

    def slope(self, x_or_y: Array) -> Array:
        """f' in NumPy; zero if a subclass does not override it."""
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
    """`dx = dy · f'`, where `op` is f. The first operand is f's operand or its result."""

    op: Unary

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        kept, gradient = operands
        return (gradient * self.op.slope(kept),)


class Binary(Elementwise):
    """Base of ops with two operands."""

    __slots__ = ()
    takes = 2

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
        """Per operand, a function that adds the ops of its gradient; called only if the gradient
        is wanted."""
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
    """`y = x`; the derivative takes it for a constant."""

    is_view: ClassVar[bool] = True

    def work(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Work:
        return Work.nothing()

    def apply(self, x: Array) -> Array:
        return x


@register_op("Cast")
@dataclass(frozen=True, slots=True)
class Cast(Unary):
    """Converts the element type. The executor keeps its own precision for real numbers."""

    to: DType

    def handed_on(self, operands: Sequence[Value]) -> Sequence[Value]:
        return operands

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
