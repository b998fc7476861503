"""Ops that compute every element from the elements at the same place, with broadcasting."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from distir.cost.work import Work
from distir.errors import ShapeError
from distir.ir.core import Node, Op, Value
from distir.ir.signature import Signature, SignatureBuilder, broadcast_signature
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

    is_view: ClassVar[bool] = True

    def work(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Work:
        return Work.nothing()

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

    is_view: ClassVar[bool] = True

    def work(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Work:
        return Work.nothing()

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


# --- rarer functions -----------------------------------------------------------------------------


@register_op("Abs")
@dataclass(frozen=True, slots=True)
class Abs(Unary):
    """`|x|`."""

    def apply(self, x: Array) -> Array:
        return abs(x)

    def slope(self, x_or_y: Array) -> Array:
        import numpy as np

        return np.sign(x_or_y)


@register_op("Sign")
@dataclass(frozen=True, slots=True)
class Sign(Unary):
    """-1, 0 or 1."""

    def apply(self, x: Array) -> Array:
        import numpy as np

        return np.sign(x)


@register_op("Floor")
@dataclass(frozen=True, slots=True)
class Floor(Unary):
    """The next integer downwards."""

    def apply(self, x: Array) -> Array:
        import numpy as np

        return np.floor(x)


@register_op("Ceil")
@dataclass(frozen=True, slots=True)
class Ceil(Unary):
    """The next integer upwards."""

    def apply(self, x: Array) -> Array:
        import numpy as np

        return np.ceil(x)


@register_op("Round")
@dataclass(frozen=True, slots=True)
class Round(Unary):
    """The nearest integer, halves to even ones."""

    def apply(self, x: Array) -> Array:
        import numpy as np

        return np.rint(x)


@register_op("Sin")
@dataclass(frozen=True, slots=True)
class Sin(Unary):
    """`sin(x)`."""

    def apply(self, x: Array) -> Array:
        import numpy as np

        return np.sin(x)

    def slope(self, x_or_y: Array) -> Array:
        import numpy as np

        return np.cos(x_or_y)


@register_op("Cos")
@dataclass(frozen=True, slots=True)
class Cos(Unary):
    """`cos(x)`."""

    def apply(self, x: Array) -> Array:
        import numpy as np

        return np.cos(x)

    def slope(self, x_or_y: Array) -> Array:
        import numpy as np

        return -np.sin(x_or_y)


@register_op("Softplus")
@dataclass(frozen=True, slots=True)
class Softplus(Unary):
    """`ln(1 + exp(x))`."""

    def apply(self, x: Array) -> Array:
        import numpy as np

        return np.logaddexp(x, 0)

    def slope(self, x_or_y: Array) -> Array:
        return Sigmoid().apply(x_or_y)


@register_op("Mish")
@dataclass(frozen=True, slots=True)
class Mish(Unary):
    """`x · tanh(softplus(x))` (Misra 2019)."""

    def apply(self, x: Array) -> Array:
        import numpy as np

        return x * np.tanh(np.logaddexp(x, 0))

    def slope(self, x_or_y: Array) -> Array:
        import numpy as np

        t = np.tanh(np.logaddexp(x_or_y, 0))
        return t + x_or_y * (1 - t**2) * Sigmoid().apply(x_or_y)


@register_op("LeakyRelu")
@dataclass(frozen=True, slots=True)
class LeakyRelu(Unary):
    """`x` where positive, else `alpha · x`."""

    alpha: float = 0.01

    def apply(self, x: Array) -> Array:
        import numpy as np

        return np.where(x >= 0, x, self.alpha * x)

    def slope(self, x_or_y: Array) -> Array:
        import numpy as np

        return np.where(x_or_y >= 0, 1.0, self.alpha)


@register_op("Elu")
@dataclass(frozen=True, slots=True)
class Elu(Unary):
    """`x` where positive, else `alpha · (exp(x) - 1)`."""

    alpha: float = 1.0

    def apply(self, x: Array) -> Array:
        import numpy as np

        return np.where(x > 0, x, self.alpha * np.expm1(np.minimum(x, 0)))

    def slope(self, x_or_y: Array) -> Array:
        import numpy as np

        return np.where(x_or_y > 0, 1.0, self.alpha * np.exp(np.minimum(x_or_y, 0)))


@register_op("HardSigmoid")
@dataclass(frozen=True, slots=True)
class HardSigmoid(Unary):
    """`alpha · x + beta`, kept between 0 and 1."""

    alpha: float = 0.2
    beta: float = 0.5

    def apply(self, x: Array) -> Array:
        import numpy as np

        return np.clip(self.alpha * x + self.beta, 0, 1)

    def slope(self, x_or_y: Array) -> Array:
        line = self.alpha * x_or_y + self.beta
        return self.alpha * ((line > 0) & (line < 1))


@register_op("Clip")
@dataclass(frozen=True, slots=True)
class Clip(Unary):
    """`x` kept between `low` and `high`, where they are not `None`."""

    low: float | None = None
    high: float | None = None

    def apply(self, x: Array) -> Array:
        import numpy as np

        if self.low is not None:
            x = np.maximum(x, np.asarray(self.low, x.dtype))
        return x if self.high is None else np.minimum(x, np.asarray(self.high, x.dtype))

    def slope(self, x_or_y: Array) -> Array:
        return (self.apply(x_or_y) == x_or_y) * 1.0


@register_op("IsInf")
@dataclass(frozen=True, slots=True)
class IsInf(Unary):
    """True where the element is infinite, in the directions asked for."""

    detect_negative: bool = True
    detect_positive: bool = True

    def result_dtype(self, *operands: TensorType) -> DType:
        return DType.BOOL

    def apply(self, x: Array) -> Array:
        import numpy as np

        positive, negative = np.isposinf(x), np.isneginf(x)
        return (positive & self.detect_positive) | (negative & self.detect_negative)


@register_op("Xor")
@dataclass(frozen=True, slots=True)
class Xor(Comparison):
    """Logical exclusive or."""

    def apply(self, a: Array, b: Array) -> Array:
        import numpy as np

        return np.logical_xor(a, b)


@register_op("Mod")
@dataclass(frozen=True, slots=True)
class Mod(Binary):
    """The remainder of `a / b`, with the sign of `b`, or of `a` if `fmod`."""

    fmod: bool = False

    def apply(self, a: Array, b: Array) -> Array:
        import numpy as np

        return np.fmod(a, b) if self.fmod else np.mod(a, b)

    def partial_gradients(self, builder: Builder, node: Node, gradient: Value) -> Sequence[Any]:
        a, b = node.operands

        def of_divisor() -> Value:
            whole = builder.add(Sub(), node.result, a)  # minus the divisor times an integer
            return builder.add(Mul(), gradient, builder.add(Div(), whole, b))

        return (lambda: gradient, of_divisor)


def _chosen(
    builder: Builder, node: Node, gradient: Value, comparison: Op
) -> tuple[Callable[[], Value], Callable[[], Value]]:
    """The gradient where the first operand was chosen, and where the second was."""
    zero = builder.scalar(0.0, gradient.type.dtype)

    def of(first: bool) -> Value:
        is_first = builder.add(comparison, *node.operands)
        branches = (gradient, zero) if first else (zero, gradient)
        return builder.add(Where(), is_first, *branches)

    return (lambda: of(True), lambda: of(False))


@register_op("Max")
@dataclass(frozen=True, slots=True)
class Max(Binary):
    """The larger of `a` and `b`; of equal ones `a`."""

    def apply(self, a: Array, b: Array) -> Array:
        import numpy as np

        return np.maximum(a, b)

    def partial_gradients(self, builder: Builder, node: Node, gradient: Value) -> Sequence[Any]:
        return _chosen(builder, node, gradient, GreaterOrEqual())


@register_op("Min")
@dataclass(frozen=True, slots=True)
class Min(Binary):
    """The smaller of `a` and `b`; of equal ones `a`."""

    def apply(self, a: Array, b: Array) -> Array:
        import numpy as np

        return np.minimum(a, b)

    def partial_gradients(self, builder: Builder, node: Node, gradient: Value) -> Sequence[Any]:
        return _chosen(builder, node, gradient, LessOrEqual())


@register_op("Dropout")
@dataclass(frozen=True, slots=True)
class Dropout(Elementwise):
    """Zeroes a fraction `ratio` of the elements and scales the others by `1 / (1 - ratio)`. The
    second result is the mask of those that stay, a byte each, which the backward pass needs.

    Which ones follows from `seed` and an element's position in the whole tensor, so that shards
    drop what the whole does.
    """

    ratio: float = 0.0
    seed: int = 0

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        if not 0 <= self.ratio < 1:
            raise ShapeError(f"Dropout: ratio {self.ratio}; expected at least 0 and below 1")
        return (operands[0], TensorType(operands[0].shape, DType.BOOL))

    def signature(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Signature:
        builder = SignatureBuilder()
        dims = tuple(builder.positional(size) for size in operands[0].shape)
        return builder.build((dims,), (dims, dims))

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        return self.evaluate_shard({}, *operands)

    def evaluate_shard(self, indices: Mapping[int, Array], *operands: Array) -> tuple[Array, ...]:
        import numpy as np

        (x,) = operands
        if self.ratio == 0:
            return (x, np.ones(x.shape, np.bool_))
        mask = kept_elements(self.ratio, self.seed, x.shape, indices)
        return (np.where(mask, x / (1 - self.ratio), 0), mask)

    def derivative(
        self,
        builder: Builder,
        node: Node,
        gradients: Sequence[Value | None],
        wanted: Sequence[bool],
    ) -> Sequence[Value | None]:
        gradient = gradients[0]
        if gradient is None:
            return (None,)
        return (builder.add(DropoutGradient(self.ratio), gradient, node.results[1]),)


@register_op("DropoutGradient")
@dataclass(frozen=True, slots=True)
class DropoutGradient(Elementwise):
    """`dy · mask / (1 - ratio)`."""

    ratio: float

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        gradient, mask = operands
        return (gradient * mask / (1 - self.ratio),)

    def linear_operands(self, operands: Sequence[TensorType]) -> tuple[int, ...]:
        return (0,)


def kept_elements(
    ratio: float, seed: int, shape: Sequence[int], indices: Mapping[int, Array]
) -> Array:
    """The mask of the elements that dropout leaves in a shard of this shape. `indices[dim]` are the
    positions in the whole tensor; a dim that is not there is whole."""
    import numpy as np

    state = np.full((1,) * len(shape), seed % (1 << 32), np.uint64)
    for dim, size in enumerate(shape):
        held = np.asarray(indices.get(dim, np.arange(size))).astype(np.uint64)
        state = _mixed(state + held.reshape((-1,) + (1,) * (len(shape) - dim - 1)))
    return np.broadcast_to(state, tuple(shape)) / float(1 << 32) >= ratio


def _mixed(state: Array) -> Array:
    """32 bits that look random, from 32 bits: rounds of multiply and shift."""
    import numpy as np

    mask = np.uint64((1 << 32) - 1)
    for factor in (0x7FEB352D, 0x846CA68B, 0x9E3779B1):
        state = (state ^ (state >> np.uint64(16))) & mask
        state = (state * np.uint64(factor)) & mask
    return state ^ (state >> np.uint64(15))
