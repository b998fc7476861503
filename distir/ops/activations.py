"""Elementwise activation functions of networks, and dropout."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from distir.errors import ShapeError
from distir.ir.core import Array, Backward, Gradients
from distir.ir.registered import register_op
from distir.ir.signature import Signature, SignatureBuilder
from distir.ir.types import DType, TensorType
from distir.ops.arithmetic import erf
from distir.ops.elementwise import Elementwise, Unary

# --- smooth ones ---------------------------------------------------------------------------------


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


# --- piecewise ones ------------------------------------------------------------------------------


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


@register_op("LeakyRelu")
@dataclass(frozen=True, slots=True)
class LeakyRelu(Unary):
    """`x` where it is positive, else `alpha · x`."""

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
    """`x` where it is positive, else `alpha · (exp(x) - 1)`."""

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
    """`alpha · x + beta`, clipped to [0, 1]."""

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
    """`x` clipped to [`low`, `high`]; a bound that is None does not apply."""

    low: float | None = None
    high: float | None = None

    def apply(self, x: Array) -> Array:
        import numpy as np

        if self.low is not None:
            x = np.maximum(x, np.asarray(self.low, x.dtype))
        return x if self.high is None else np.minimum(x, np.asarray(self.high, x.dtype))

    def slope(self, x_or_y: Array) -> Array:
        return (self.apply(x_or_y) == x_or_y) * 1.0


# --- dropout -------------------------------------------------------------------------------------


@register_op("Dropout")
@dataclass(frozen=True, slots=True)
class Dropout(Elementwise):
    """Zeroes a fraction `ratio` of the elements and scales the others by `1 / (1 - ratio)`. The
    second result is the mask of the elements that are kept, a byte each; the backward pass reads
    it.

    Whether an element is dropped follows from `seed` and its position in the whole tensor, so that
    all devices together drop the elements that one device would.
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

    def derivative(self, back: Backward) -> Gradients:
        return (back.add(DropoutGradient(self.ratio), back.gradient, back.results[1]),)


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
    """The mask of the elements that dropout keeps in a shard of this shape. `indices[dim]` are the
    positions of the shard's elements in the whole tensor; a dim without them is not split."""
    import numpy as np

    state = np.full((1,) * len(shape), seed % (1 << 32), np.uint64)
    for dim, size in enumerate(shape):
        held = np.asarray(indices.get(dim, np.arange(size))).astype(np.uint64)
        state = _mixed(state + held.reshape((-1,) + (1,) * (len(shape) - dim - 1)))
    return np.broadcast_to(state, tuple(shape)) / float(1 << 32) >= ratio


def _mixed(state: Array) -> Array:
    """A hash of 32-bit integers: rounds of multiply and shift."""
    import numpy as np

    mask = np.uint64((1 << 32) - 1)
    for factor in (0x7FEB352D, 0x846CA68B, 0x9E3779B1):
        state = (state ^ (state >> np.uint64(16))) & mask
        state = (state * np.uint64(factor)) & mask
    return state ^ (state >> np.uint64(15))
