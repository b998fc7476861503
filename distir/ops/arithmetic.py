"""Elementwise arithmetic and mathematical functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from distir.ir.core import Array, Backward, Gradients, Value
from distir.ir.registered import register_op
from distir.ir.types import TensorType
from distir.ops.base import sum_to_shape
from distir.ops.elementwise import Binary, Elementwise, Unary

# --- sums, products and powers -------------------------------------------------------------------


@register_op("Neg")
@dataclass(frozen=True, slots=True)
class Neg(Unary):
    """`y = -x`."""

    def apply(self, x: Array) -> Array:
        return -x

    def linear_operands(self, operands: Sequence[TensorType]) -> tuple[int, ...]:
        return (0,)

    def derivative(self, back: Backward) -> Gradients:
        return (back.add(Neg(), back.gradient),)


@register_op("Add")
@dataclass(frozen=True, slots=True)
class Add(Binary):
    """`a + b`."""

    def apply(self, a: Array, b: Array) -> Array:
        return a + b

    def linear_operands(self, operands: Sequence[TensorType]) -> tuple[int, ...]:
        return (0, 1)

    def partial_gradients(self, back: Backward) -> Sequence[Any]:
        return (lambda: back.gradient, lambda: back.gradient)


@register_op("Sub")
@dataclass(frozen=True, slots=True)
class Sub(Binary):
    """`a - b`."""

    def apply(self, a: Array, b: Array) -> Array:
        return a - b

    def linear_operands(self, operands: Sequence[TensorType]) -> tuple[int, ...]:
        return (0, 1)

    def partial_gradients(self, back: Backward) -> Sequence[Any]:
        return (lambda: back.gradient, lambda: back.add(Neg(), back.gradient))


def _is_scalar(type: TensorType) -> bool:
    return type.num_elements == 1


@register_op("Mul")
@dataclass(frozen=True, slots=True)
class Mul(Binary):
    """`a · b`."""

    def apply(self, a: Array, b: Array) -> Array:
        return a * b

    def linear_operands(self, operands: Sequence[TensorType]) -> tuple[int, ...]:
        a, b = operands
        return (0,) if _is_scalar(b) else (1,) if _is_scalar(a) else ()

    def partial_gradients(self, back: Backward) -> Sequence[Any]:
        gradient, (a, b) = back.gradient, back.operands
        return (lambda: back.add(Mul(), gradient, b), lambda: back.add(Mul(), gradient, a))


@register_op("Div")
@dataclass(frozen=True, slots=True)
class Div(Binary):
    """`a / b`; quotients of integers are rounded towards zero."""

    def apply(self, a: Array, b: Array) -> Array:
        import numpy as np

        if np.issubdtype(np.result_type(a, b), np.integer):
            return np.trunc(a / b).astype(np.result_type(a, b))
        return a / b

    def linear_operands(self, operands: Sequence[TensorType]) -> tuple[int, ...]:
        return (0,) if _is_scalar(operands[1]) else ()

    def partial_gradients(self, back: Backward) -> Sequence[Any]:
        b = back.operands[1]

        def of_divisor() -> Value:
            ratio = back.add(Div(), back.add(Mul(), back.gradient, back.result), b)
            return back.add(Neg(), ratio)

        return (lambda: back.add(Div(), back.gradient, b), of_divisor)


@register_op("Mod")
@dataclass(frozen=True, slots=True)
class Mod(Binary):
    """The remainder of `a / b`, with the sign of `b`, or of `a` if `fmod`."""

    fmod: bool = False

    def apply(self, a: Array, b: Array) -> Array:
        import numpy as np

        return np.fmod(a, b) if self.fmod else np.mod(a, b)

    def partial_gradients(self, back: Backward) -> Sequence[Any]:
        a, b = back.operands

        def of_divisor() -> Value:
            whole = back.add(Sub(), back.result, a)  # an integer times minus the divisor
            return back.add(Mul(), back.gradient, back.add(Div(), whole, b))

        return (lambda: back.gradient, of_divisor)


@register_op("Pow")
@dataclass(frozen=True, slots=True)
class Pow(Binary):
    """`a ** b`."""

    def apply(self, a: Array, b: Array) -> Array:
        return a**b

    def partial_gradients(self, back: Backward) -> Sequence[Any]:
        a, b = back.operands

        def of_base() -> Value:
            one = back.builder.scalar(1.0, b.type.dtype)
            power = back.add(Pow(), a, back.add(Sub(), b, one))
            return back.add(Mul(), back.gradient, back.add(Mul(), b, power))

        def of_exponent() -> Value:
            log = back.add(Mul(), back.result, back.add(Log(), a))
            return back.add(Mul(), back.gradient, log)

        return (of_base, of_exponent)


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

    def derivative(self, back: Backward) -> Gradients:
        return [
            sum_to_shape(back.builder, back.gradient, operand.type.shape) if want else None
            for operand, want in zip(back.operands, back.wanted, strict=True)
        ]


# --- functions of one operand --------------------------------------------------------------------


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


@register_op("Atan")
@dataclass(frozen=True, slots=True)
class Atan(Unary):
    """`atan(x)`."""

    def apply(self, x: Array) -> Array:
        import numpy as np

        return np.arctan(x)

    def slope(self, x_or_y: Array) -> Array:
        return 1 / (1 + x_or_y * x_or_y)


def erf(x: Array) -> Array:
    """The error function in double precision, which NumPy does not have."""
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
    """The sign of `x`: -1, 0 or 1."""

    def apply(self, x: Array) -> Array:
        import numpy as np

        return np.sign(x)


@register_op("Floor")
@dataclass(frozen=True, slots=True)
class Floor(Unary):
    """The largest integer that is at most `x`."""

    def apply(self, x: Array) -> Array:
        import numpy as np

        return np.floor(x)


@register_op("Ceil")
@dataclass(frozen=True, slots=True)
class Ceil(Unary):
    """The smallest integer that is at least `x`."""

    def apply(self, x: Array) -> Array:
        import numpy as np

        return np.ceil(x)


@register_op("Round")
@dataclass(frozen=True, slots=True)
class Round(Unary):
    """The nearest integer; halves are rounded to even integers."""

    def apply(self, x: Array) -> Array:
        import numpy as np

        return np.rint(x)
