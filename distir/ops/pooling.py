"""Pooling: the maximum or the mean in a moving window, for every channel on its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from distir.cost.work import OpClass, Work
from distir.errors import ShapeError
from distir.ir.core import Array, Backward, Gradients, Op
from distir.ir.registered import register_op
from distir.ir.signature import Dims, Signature, SignatureBuilder
from distir.ir.types import TensorType
from distir.ops.window import KernelWindow, space_dims


class _Pool(Op):
    """Base of poolings; gradients override what differs for them."""

    __slots__ = ()
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]

    @property
    def window(self) -> KernelWindow:
        """How the kernel moves over space."""
        return KernelWindow(self.strides, self.pads, self.dilations)

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        x = operands[0]
        if x.rank < 2:
            raise ShapeError(f"{self.name}: {x}; expected batch, channels and space")
        return (x.with_shape((*x.shape[:2], *self.window.result_sizes(x.shape[2:], self.kernel))),)

    def signature(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Signature:
        builder, x, pooled = self.dims(operands[0], results[0])
        return builder.build((x,), (pooled,))

    def work(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Work:
        return self.pool_work(results[0], operands, results)

    def dims(self, x: TensorType, pooled: TensorType) -> tuple[SignatureBuilder, Dims, Dims]:
        """A signature builder, and the dims of the operand and of the pooled tensor."""
        builder = SignatureBuilder()
        leading = builder.dims(x.shape[:2])
        before, after = space_dims(builder, x.shape[2:], pooled.shape[2:], self.strides)
        return builder, (*leading, *before), (*leading, *after)

    def pool_work(
        self, pooled: TensorType, operands: Sequence[TensorType], results: Sequence[TensorType]
    ) -> Work:
        """Memory-bound work, with one operation per pooled element and place in the kernel."""
        return Work(
            kind=OpClass.MEMORY,
            flops=pooled.num_elements * math.prod(self.kernel),
            bytes_read=sum(t.size_bytes for t in operands),
            bytes_written=sum(t.size_bytes for t in results),
        )


@register_op("MaxPool")
@dataclass(frozen=True, slots=True)
class MaxPool(_Pool):
    """The maximum in every window."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        import numpy as np

        padded = self.window.padded(operands[0], -np.inf)
        rank = len(self.kernel)
        return (self.window.windows(padded, self.kernel).max(axis=tuple(range(-rank, 0))),)

    def derivative(self, back: Backward) -> Gradients:
        op = MaxPoolGradient(self.kernel, self.strides, self.pads, self.dilations)
        return (back.add(op, back.operands[0], back.result, back.gradient),)


@register_op("MaxPoolGradient")
@dataclass(frozen=True, slots=True)
class MaxPoolGradient(_Pool):
    """Adds the gradient of each window to its first maximum. Operands are MaxPool's operand, its
    result and the result's gradient."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        return (operands[0],)

    def signature(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Signature:
        builder, x, pooled = self.dims(operands[0], operands[1])
        return builder.build((x, pooled, pooled), (x,))

    def work(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Work:
        return self.pool_work(operands[1], operands, results)

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        import numpy as np

        x, pooled, gradient = operands
        padded = self.window.padded(x, -np.inf)
        result = np.zeros(padded.shape, gradient.dtype)
        is_open = np.ones(pooled.shape, np.bool_)
        for _, cut in self.window.places(pooled.shape[2:], self.kernel):
            is_here = is_open & (padded[cut] == pooled)
            result[cut] += np.where(is_here, gradient, 0)
            is_open &= ~is_here
        return (self.window.cropped(result, x.shape[2:]),)


@register_op("AveragePool")
@dataclass(frozen=True, slots=True)
class AveragePool(_Pool):
    """The mean in every window. Padding counts if `count_include_pad`, except the `overhang` at the
    end that was added because sizes are rounded up."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]
    overhang: tuple[int, ...]
    count_include_pad: bool = False

    def counts(self, space: Sequence[int]) -> Array:
        """The number by which the sum of each window is divided."""
        import numpy as np

        ones = self.window.padded(np.ones(tuple(space)), 1.0 if self.count_include_pad else 0.0)
        for dim, extra in enumerate(self.overhang):
            ones[(slice(None),) * dim + (slice(ones.shape[dim] - extra, None),)] = 0
        seen = self.window.windows(ones, self.kernel)
        return np.maximum(seen.sum(axis=tuple(range(-len(self.kernel), 0))), 1)

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        (x,) = operands
        seen = self.window.windows(self.window.padded(x, 0.0), self.kernel)
        total = seen.sum(axis=tuple(range(-len(self.kernel), 0)))
        return ((total / self.counts(x.shape[2:])).astype(x.dtype),)

    def linear_operands(self, operands: Sequence[TensorType]) -> tuple[int, ...]:
        return (0,)

    def derivative(self, back: Backward) -> Gradients:
        op = AveragePoolGradient(self, back.operands[0].type.shape[2:])
        return (back.add(op, back.gradient),)


@register_op("AveragePoolGradient")
@dataclass(frozen=True, slots=True)
class AveragePoolGradient(Op):
    """Shares the gradient of each window among its elements."""

    pool: AveragePool
    space: tuple[int, ...]

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        return (operands[0].with_shape((*operands[0].shape[:2], *self.space)),)

    def signature(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Signature:
        builder, x, pooled = self.pool.dims(results[0], operands[0])
        return builder.build((pooled,), (x,))

    def work(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Work:
        return self.pool.pool_work(operands[0], operands, results)

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        (gradient,) = operands
        window = self.pool.window
        share = gradient / self.pool.counts(self.space)
        result = window.blank(gradient.shape[:2], self.space, gradient.dtype)
        for _, cut in window.places(gradient.shape[2:], self.pool.kernel):
            result[cut] += share
        return (window.cropped(result, self.space),)

    def linear_operands(self, operands: Sequence[TensorType]) -> tuple[int, ...]:
        return (0,)

    def localized(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Op:
        return replace(self, space=results[0].shape[2:])
