"""Ops that compute every element from the elements at the same place, with broadcasting."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from distir.errors import ShapeError
from distir.ir.core import Node, Op, Value
from distir.ir.signature import Signature, broadcast_signature
from distir.ir.types import DType, TensorType
from distir.ops.base import broadcast_shapes, register_op, sum_to_shape

if TYPE_CHECKING:
    from distir.ir.builder import Builder

Array = Any


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


# --- unary ---------------------------------------------------------------------------------------


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

    def derivative(
        self,
        builder: Builder,
        node: Node,
        gradients: Sequence[Value | None],
        wanted: Sequence[bool],
    ) -> Sequence[Value | None]:
        (gradient,) = gradients
        if gradient is None or type(self).slope is Unary.slope:
            return (None,)
        kept = node.result if self.slope_from_result else node.operands[0]
        return (builder.add(UnaryGradient(self), kept, gradient),)


@register_op("UnaryGradient")
@dataclass(frozen=True, slots=True)
class UnaryGradient(Elementwise):
    """`dx = dy · f'`, where `op` is f and the first operand is its operand or result."""

    op: Unary

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        kept, gradient = operands
        return (gradient * self.op.slope(kept),)


@register_op("Identity")
@dataclass(frozen=True, slots=True)
class Identity(Unary):
    """`y = x`."""

    def apply(self, x: Array) -> Array:
        return x

    def linear_operands(self, operands: Sequence[TensorType]) -> tuple[int, ...]:
        return (0,)

    def derivative(
        self,
        builder: Builder,
        node: Node,
        gradients: Sequence[Value | None],
        wanted: Sequence[bool],
    ) -> Sequence[Value | None]:
        return gradients


@register_op("StopGradient")
@dataclass(frozen=True, slots=True)
class StopGradient(Unary):
    """`y = x`, a constant to the derivative."""

    def apply(self, x: Array) -> Array:
        return x


@register_op("Neg")
@dataclass(frozen=True, slots=True)
class Neg(Unary):
    """`y = -x`."""

    def apply(self, x: Array) -> Array:
        return -x

    def linear_operands(self, operands: Sequence[TensorType]) -> tuple[int, ...]:
        return (0,)

    def derivative(
        self,
        builder: Builder,
        node: Node,
        gradients: Sequence[Value | None],
        wanted: Sequence[bool],
    ) -> Sequence[Value | None]:
        (gradient,) = gradients
        return (None if gradient is None else builder.add(Neg(), gradient),)


@register_op("Relu")
@dataclass(frozen=True, slots=True)
class Relu(Unary):
    """`y = max(x, 0)`."""

    slope_from_result: ClassVar[bool] = True

    def apply(self, x: Array) -> Array:
        import numpy as np

        return np.maximum(x, 0)

    def slope(self, x_or_y: Array) -> Array:
        return (x_or_y > 0).astype(x_or_y.dtype)


@register_op("Sigmoid")
@dataclass(frozen=True, slots=True)
class Sigmoid(Unary):
    """`y = 1 / (1 + exp(-x))`."""

    slope_from_result: ClassVar[bool] = True

    def apply(self, x: Array) -> Array:
        import numpy as np

        return 0.5 * (np.tanh(0.5 * x) + 1)

    def slope(self, x_or_y: Array) -> Array:
        return x_or_y * (1 - x_or_y)


@register_op("Tanh")
@dataclass(frozen=True, slots=True)
class Tanh(Unary):
    """`y = tanh(x)`."""

    slope_from_result: ClassVar[bool] = True

    def apply(self, x: Array) -> Array:
        import numpy as np

        return np.tanh(x)

    def slope(self, x_or_y: Array) -> Array:
        return 1 - x_or_y**2


@register_op("Exp")
@dataclass(frozen=True, slots=True)
class Exp(Unary):
    """`y = exp(x)`."""

    slope_from_result: ClassVar[bool] = True

    def apply(self, x: Array) -> Array:
        import numpy as np

        return np.exp(x)

    def slope(self, x_or_y: Array) -> Array:
        return x_or_y


@register_op("Log")
@dataclass(frozen=True, slots=True)
class Log(Unary):
    """`y = ln(x)`."""

    def apply(self, x: Array) -> Array:
        import numpy as np

        return np.log(x)

    def slope(self, x_or_y: Array) -> Array:
        return 1 / x_or_y


@register_op("Sqrt")
@dataclass(frozen=True, slots=True)
class Sqrt(Unary):
    """`y = √x`."""

    slope_from_result: ClassVar[bool] = True

    def apply(self, x: Array) -> Array:
        import numpy as np

        return np.sqrt(x)

    def slope(self, x_or_y: Array) -> Array:
        return 0.5 / x_or_y


@register_op("Reciprocal")
@dataclass(frozen=True, slots=True)
class Reciprocal(Unary):
    """`y = 1 / x`."""

    slope_from_result: ClassVar[bool] = True

    def apply(self, x: Array) -> Array:
        return 1 / x

    def slope(self, x_or_y: Array) -> Array:
        return -(x_or_y**2)


def erf(x: Array) -> Array:
    """The error function, to double precision: NumPy has none."""
    import numpy as np

    values = np.asarray(x, dtype=np.float64)
    result = np.fromiter((math.erf(v) for v in values.ravel()), np.float64, values.size)
    return result.reshape(values.shape).astype(np.result_type(x, np.float32))


@register_op("Erf")
@dataclass(frozen=True, slots=True)
class Erf(Unary):
    """`y = erf(x)`."""

    def apply(self, x: Array) -> Array:
        return erf(x)

    def slope(self, x_or_y: Array) -> Array:
        import numpy as np

        return 2 / math.sqrt(math.pi) * np.exp(-(x_or_y**2))


@register_op("Gelu")
@dataclass(frozen=True, slots=True)
class Gelu(Unary):
    """`y = x · Φ(x)`, exactly (`approximate="none"`) or by tanh (Hendrycks and Gimpel 2016)."""

    approximate: str = "none"

    def apply(self, x: Array) -> Array:
        import numpy as np

        if self.approximate == "tanh":
            return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
        return 0.5 * x * (1 + erf(x / math.sqrt(2)))

    def slope(self, x_or_y: Array) -> Array:
        import numpy as np

        x = x_or_y
        if self.approximate == "tanh":
            root = math.sqrt(2 / math.pi)
            t = np.tanh(root * (x + 0.044715 * x**3))
            return 0.5 * (1 + t) + 0.5 * x * (1 - t**2) * root * (1 + 3 * 0.044715 * x**2)
        density = np.exp(-0.5 * x**2) / math.sqrt(2 * math.pi)
        return 0.5 * (1 + erf(x / math.sqrt(2))) + x * density


@register_op("Silu")
@dataclass(frozen=True, slots=True)
class Silu(Unary):
    """`y = x · sigmoid(x)`, also called swish."""

    def apply(self, x: Array) -> Array:
        return x * Sigmoid().apply(x)

    def slope(self, x_or_y: Array) -> Array:
        s = Sigmoid().apply(x_or_y)
        return s * (1 + x_or_y * (1 - s))


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

    def derivative(
        self,
        builder: Builder,
        node: Node,
        gradients: Sequence[Value | None],
        wanted: Sequence[bool],
    ) -> Sequence[Value | None]:
        (gradient,) = gradients
        source = node.operands[0].type.dtype
        if gradient is None or not source.is_float:
            return (None,)
        return (builder.add(Cast(source), gradient),)


# --- binary and n-ary ----------------------------------------------------------------------------


class Binary(Elementwise):
    """Base of ops with two operands."""

    __slots__ = ()

    @abstractmethod
    def apply(self, a: Array, b: Array) -> Array:
        """The result in NumPy."""

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        return (self.apply(*operands),)

    def derivative(
        self,
        builder: Builder,
        node: Node,
        gradients: Sequence[Value | None],
        wanted: Sequence[bool],
    ) -> Sequence[Value | None]:
        (gradient,) = gradients
        if gradient is None:
            return (None, None)
        return [
            sum_to_shape(builder, part(), operand.type.shape) if want else None
            for part, operand, want in zip(
                self.partial_gradients(builder, node, gradient), node.operands, wanted, strict=True
            )
        ]

    def partial_gradients(self, builder: Builder, node: Node, gradient: Value) -> Sequence[Any]:
        """Per operand a function that builds its gradient, called only where it is wanted."""
        from distir.errors import TransformError

        raise TransformError(f"op {self.name} has no derivative")


def _is_scalar(type: TensorType) -> bool:
    return type.num_elements == 1


@register_op("Add")
@dataclass(frozen=True, slots=True)
class Add(Binary):
    """`a + b`."""

    def apply(self, a: Array, b: Array) -> Array:
        return a + b

    def linear_operands(self, operands: Sequence[TensorType]) -> tuple[int, ...]:
        return (0, 1)

    def partial_gradients(self, builder: Builder, node: Node, gradient: Value) -> Sequence[Any]:
        return (lambda: gradient, lambda: gradient)


@register_op("Sub")
@dataclass(frozen=True, slots=True)
class Sub(Binary):
    """`a - b`."""

    def apply(self, a: Array, b: Array) -> Array:
        return a - b

    def linear_operands(self, operands: Sequence[TensorType]) -> tuple[int, ...]:
        return (0, 1)

    def partial_gradients(self, builder: Builder, node: Node, gradient: Value) -> Sequence[Any]:
        return (lambda: gradient, lambda: builder.add(Neg(), gradient))


@register_op("Mul")
@dataclass(frozen=True, slots=True)
class Mul(Binary):
    """`a · b`."""

    def apply(self, a: Array, b: Array) -> Array:
        return a * b

    def linear_operands(self, operands: Sequence[TensorType]) -> tuple[int, ...]:
        a, b = operands
        return (0,) if _is_scalar(b) else (1,) if _is_scalar(a) else ()

    def partial_gradients(self, builder: Builder, node: Node, gradient: Value) -> Sequence[Any]:
        a, b = node.operands
        return (lambda: builder.add(Mul(), gradient, b), lambda: builder.add(Mul(), gradient, a))


@register_op("Div")
@dataclass(frozen=True, slots=True)
class Div(Binary):
    """`a / b`; integers are divided towards zero."""

    def apply(self, a: Array, b: Array) -> Array:
        import numpy as np

        if np.issubdtype(np.result_type(a, b), np.integer):
            return np.trunc(a / b).astype(np.result_type(a, b))
        return a / b

    def linear_operands(self, operands: Sequence[TensorType]) -> tuple[int, ...]:
        return (0,) if _is_scalar(operands[1]) else ()

    def partial_gradients(self, builder: Builder, node: Node, gradient: Value) -> Sequence[Any]:
        b = node.operands[1]

        def of_divisor() -> Value:
            ratio = builder.add(Div(), builder.add(Mul(), gradient, node.result), b)
            return builder.add(Neg(), ratio)

        return (lambda: builder.add(Div(), gradient, b), of_divisor)


@register_op("Pow")
@dataclass(frozen=True, slots=True)
class Pow(Binary):
    """`a ** b`."""

    def apply(self, a: Array, b: Array) -> Array:
        return a**b

    def partial_gradients(self, builder: Builder, node: Node, gradient: Value) -> Sequence[Any]:
        a, b = node.operands

        def of_base() -> Value:
            one = builder.scalar(1.0, b.type.dtype)
            power = builder.add(Pow(), a, builder.add(Sub(), b, one))
            return builder.add(Mul(), gradient, builder.add(Mul(), b, power))

        def of_exponent() -> Value:
            log = builder.add(Mul(), node.result, builder.add(Log(), a))
            return builder.add(Mul(), gradient, log)

        return (of_base, of_exponent)


class Comparison(Binary):
    """Base of ops that give booleans; they have no derivative."""

    __slots__ = ()

    def result_dtype(self, *operands: TensorType) -> DType:
        return DType.BOOL

    def derivative(
        self,
        builder: Builder,
        node: Node,
        gradients: Sequence[Value | None],
        wanted: Sequence[bool],
    ) -> Sequence[Value | None]:
        return (None, None)


@register_op("Equal")
@dataclass(frozen=True, slots=True)
class Equal(Comparison):
    """`a == b`."""

    def apply(self, a: Array, b: Array) -> Array:
        return a == b


@register_op("Greater")
@dataclass(frozen=True, slots=True)
class Greater(Comparison):
    """`a > b`."""

    def apply(self, a: Array, b: Array) -> Array:
        return a > b


@register_op("GreaterOrEqual")
@dataclass(frozen=True, slots=True)
class GreaterOrEqual(Comparison):
    """`a >= b`."""

    def apply(self, a: Array, b: Array) -> Array:
        return a >= b


@register_op("Less")
@dataclass(frozen=True, slots=True)
class Less(Comparison):
    """`a < b`."""

    def apply(self, a: Array, b: Array) -> Array:
        return a < b


@register_op("LessOrEqual")
@dataclass(frozen=True, slots=True)
class LessOrEqual(Comparison):
    """`a <= b`."""

    def apply(self, a: Array, b: Array) -> Array:
        return a <= b


@register_op("And")
@dataclass(frozen=True, slots=True)
class And(Comparison):
    """Logical and."""

    def apply(self, a: Array, b: Array) -> Array:
        import numpy as np

        return np.logical_and(a, b)


@register_op("Or")
@dataclass(frozen=True, slots=True)
class Or(Comparison):
    """Logical or."""

    def apply(self, a: Array, b: Array) -> Array:
        import numpy as np

        return np.logical_or(a, b)


@register_op("Where")
@dataclass(frozen=True, slots=True)
class Where(Elementwise):
    """`a` where the condition holds, else `b`."""

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        if operands[0].dtype is not DType.BOOL:
            raise ShapeError(f"Where: the condition is {operands[0]}; expected booleans")
        shape = broadcast_shapes(self.name, *(t.shape for t in operands))
        return (TensorType(shape, operands[1].dtype),)

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        import numpy as np

        return (np.where(*operands),)

    def derivative(
        self,
        builder: Builder,
        node: Node,
        gradients: Sequence[Value | None],
        wanted: Sequence[bool],
    ) -> Sequence[Value | None]:
        (gradient,) = gradients
        if gradient is None:
            return (None, None, None)
        condition, a, b = node.operands
        zero = builder.scalar(0.0, gradient.type.dtype)
        of_a = of_b = None
        if wanted[1]:
            chosen = builder.add(Where(), condition, gradient, zero)
            of_a = sum_to_shape(builder, chosen, a.type.shape)
        if wanted[2]:
            chosen = builder.add(Where(), condition, zero, gradient)
            of_b = sum_to_shape(builder, chosen, b.type.shape)
        return (None, of_a, of_b)


@register_op("Sum")
@dataclass(frozen=True, slots=True)
class Sum(Elementwise):
    """The sum of any number of operands."""

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        total = operands[0]
        for operand in operands[1:]:
            total = total + operand
        return (total,)

    def linear_operands(self, operands: Sequence[TensorType]) -> tuple[int, ...]:
        return tuple(range(len(operands)))

    def derivative(
        self,
        builder: Builder,
        node: Node,
        gradients: Sequence[Value | None],
        wanted: Sequence[bool],
    ) -> Sequence[Value | None]:
        (gradient,) = gradients
        if gradient is None:
            return (None,) * len(node.operands)
        return [
            sum_to_shape(builder, gradient, operand.type.shape) if want else None
            for operand, want in zip(node.operands, wanted, strict=True)
        ]
