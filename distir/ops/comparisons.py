"""Elementwise comparisons and logic, and ops that choose between elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from distir.errors import ShapeError
from distir.ir.core import Array, Backward, Gradients, Op, Value
from distir.ir.registered import register_op
from distir.ir.types import DType, TensorType
from distir.ops.base import broadcast_shapes, sum_to_shape
from distir.ops.elementwise import Binary, Elementwise, Unary


class BinaryComparison(Binary):
    """Base of ops whose results are booleans; they have no derivative."""

    __slots__ = ()

    def result_dtype(self, *operands: TensorType) -> DType:
        return DType.BOOL

    def derivative(self, back: Backward) -> Gradients:
        return (None, None)


@register_op("Equal")
@dataclass(frozen=True, slots=True)
class Equal(BinaryComparison):
    """`a == b`."""

    def apply(self, a: Array, b: Array) -> Array:
        return a == b


@register_op("Greater")
@dataclass(frozen=True, slots=True)
class Greater(BinaryComparison):
    """`a > b`."""

    def apply(self, a: Array, b: Array) -> Array:
        return a > b


@register_op("GreaterOrEqual")
@dataclass(frozen=True, slots=True)
class GreaterOrEqual(BinaryComparison):
    """`a >= b`."""

    def apply(self, a: Array, b: Array) -> Array:
        return a >= b


@register_op("Less")
@dataclass(frozen=True, slots=True)
class Less(BinaryComparison):
    """`a < b`."""

    def apply(self, a: Array, b: Array) -> Array:
        return a < b


@register_op("LessOrEqual")
@dataclass(frozen=True, slots=True)
class LessOrEqual(BinaryComparison):
    """`a <= b`."""

    def apply(self, a: Array, b: Array) -> Array:
        return a <= b


# --- logic ---------------------------------------------------------------------------------------


@register_op("And")
@dataclass(frozen=True, slots=True)
class And(BinaryComparison):
    """Logical and."""

    def apply(self, a: Array, b: Array) -> Array:
        import numpy as np

        return np.logical_and(a, b)


@register_op("Or")
@dataclass(frozen=True, slots=True)
class Or(BinaryComparison):
    """Logical or."""

    def apply(self, a: Array, b: Array) -> Array:
        import numpy as np

        return np.logical_or(a, b)


@register_op("Xor")
@dataclass(frozen=True, slots=True)
class Xor(BinaryComparison):
    """Logical exclusive or."""

    def apply(self, a: Array, b: Array) -> Array:
        import numpy as np

        return np.logical_xor(a, b)


@register_op("Not")
@dataclass(frozen=True, slots=True)
class Not(Unary):
    """Logical not."""

    def apply(self, x: Array) -> Array:
        import numpy as np

        return np.logical_not(x)


@register_op("IsNaN")
@dataclass(frozen=True, slots=True)
class IsNaN(Unary):
    """True where the element is not a number."""

    def result_dtype(self, *operands: TensorType) -> DType:
        return DType.BOOL

    def apply(self, x: Array) -> Array:
        import numpy as np

        return np.isnan(x)


@register_op("IsInf")
@dataclass(frozen=True, slots=True)
class IsInf(Unary):
    """True where the element is infinite with a sign that is asked for."""

    detect_negative: bool = True
    detect_positive: bool = True

    def result_dtype(self, *operands: TensorType) -> DType:
        return DType.BOOL

    def apply(self, x: Array) -> Array:
        import numpy as np

        positive, negative = np.isposinf(x), np.isneginf(x)
        return (positive & self.detect_positive) | (negative & self.detect_negative)


# --- choices -------------------------------------------------------------------------------------


@register_op("Where")
@dataclass(frozen=True, slots=True)
class Where(Elementwise):
    """`a` where the condition holds, else `b`."""

    def handed_on(self, operands: Sequence[Value]) -> Sequence[Value]:
        return operands[1:]

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        if operands[0].dtype is not DType.BOOL:
            raise ShapeError(f"Where: the condition is {operands[0]}; expected booleans")
        shape = broadcast_shapes(self.name, *(t.shape for t in operands))
        return (TensorType(shape, operands[1].dtype),)

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        import numpy as np

        return (np.where(*operands),)

    def derivative(self, back: Backward) -> Gradients:
        condition, a, b = back.operands
        zero = back.builder.scalar(0.0, back.gradient.type.dtype)
        of_a = of_b = None
        if back.wanted[1]:
            chosen = back.add(Where(), condition, back.gradient, zero)
            of_a = sum_to_shape(back.builder, chosen, a.type.shape)
        if back.wanted[2]:
            chosen = back.add(Where(), condition, zero, back.gradient)
            of_b = sum_to_shape(back.builder, chosen, b.type.shape)
        return (None, of_a, of_b)


def _chosen(back: Backward, comparison: Op) -> tuple[Callable[[], Value], Callable[[], Value]]:
    """Functions that add the gradients of both operands: the gradient where an operand was chosen,
    zero elsewhere. `comparison` says where the first was."""
    gradient = back.gradient
    zero = back.builder.scalar(0.0, gradient.type.dtype)

    def of(first: bool) -> Value:
        is_first = back.add(comparison, *back.operands)
        branches = (gradient, zero) if first else (zero, gradient)
        return back.add(Where(), is_first, *branches)

    return (lambda: of(True), lambda: of(False))


@register_op("Max")
@dataclass(frozen=True, slots=True)
class Max(Binary):
    """The larger of `a` and `b`; if they are equal, the gradient goes to `a`."""

    def apply(self, a: Array, b: Array) -> Array:
        import numpy as np

        return np.maximum(a, b)

    def partial_gradients(self, back: Backward) -> Sequence[Any]:
        return _chosen(back, GreaterOrEqual())


@register_op("Min")
@dataclass(frozen=True, slots=True)
class Min(Binary):
    """The smaller of `a` and `b`; if they are equal, the gradient goes to `a`."""

    def apply(self, a: Array, b: Array) -> Array:
        import numpy as np

        return np.minimum(a, b)

    def partial_gradients(self, back: Backward) -> Sequence[Any]:
        return _chosen(back, LessOrEqual())
