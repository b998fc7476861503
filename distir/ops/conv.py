"""Convolution, pooling and the normalisations of convnets. Spatial dims are whole: splitting them
would need halos.

Layout is ONNX's: `x[batch, channels, *space]`, `weight[out channels, channels / group, *kernel]`.
`pads` are the ones before every spatial dim, then the ones behind.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from distir.cost.work import OpClass, Work
from distir.errors import ShapeError
from distir.ir.core import Backward, Gradients, Op, Value
from distir.ir.signature import Dims, Kind, Signature, SignatureBuilder, broadcast_signature
from distir.ir.types import TensorType
from distir.ops.base import register_op
from distir.ops.linalg import product_work

if TYPE_CHECKING:
    from distir.ir.builder import Builder

Array = Any


@dataclass(frozen=True, slots=True)
class Window:
    """How a kernel moves over space."""

    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]

    @property
    def rank(self) -> int:
        """Number of spatial dims."""
        return len(self.strides)

    def result_sizes(self, space: Sequence[int], kernel: Sequence[int]) -> tuple[int, ...]:
        """Spatial sizes of the result; raises `ShapeError`."""
        rank = self.rank
        fits = (
            len(space) == len(kernel) == rank == len(self.dilations) and len(self.pads) == 2 * rank
        )
        positive = all(n > 0 for n in (*self.strides, *self.dilations, *kernel))
        if not fits or not positive or min(self.pads, default=0) < 0:
            raise ShapeError(f"window {self} with kernel {list(kernel)} over {list(space)}")
        sizes = tuple(
            (
                space[d]
                + self.pads[d]
                + self.pads[rank + d]
                - self.dilations[d] * (kernel[d] - 1)
                - 1
            )
            // self.strides[d]
            + 1
            for d in range(rank)
        )
        if min(sizes, default=1) < 1:
            raise ShapeError(f"kernel {list(kernel)} is larger than {list(space)} with its padding")
        return sizes

    def padded(self, x: Array, value: float) -> Array:
        """x with its padding."""
        import numpy as np

        widths = [(0, 0)] * (x.ndim - self.rank)
        widths += list(zip(self.pads[: self.rank], self.pads[self.rank :], strict=True))
        return np.pad(x, widths, constant_values=value)

    def windows(self, padded: Array, kernel: Sequence[int]) -> Array:
        """`[..., *result, *kernel]`: what the kernel sees at every place."""
        from numpy.lib.stride_tricks import sliding_window_view

        spans = [d * (k - 1) + 1 for d, k in zip(self.dilations, kernel, strict=True)]
        axes = tuple(range(padded.ndim - self.rank, padded.ndim))
        view = sliding_window_view(padded, spans, axis=axes)
        moves = (..., *(slice(None, None, s) for s in self.strides))
        inner = tuple(slice(None, None, d) for d in self.dilations)
        return view[(*moves, *(slice(None) for _ in inner))][(..., *inner)]

    def places(
        self, result: Sequence[int], kernel: Sequence[int]
    ) -> Iterator[tuple[tuple[int, ...], tuple[Any, ...]]]:
        """Per place in the kernel, what of the padded space it touches, one element per result."""
        for place in itertools.product(*(range(size) for size in kernel)):
            cuts = tuple(
                slice(k * d, k * d + s * (n - 1) + 1, s)
                for k, d, s, n in zip(place, self.dilations, self.strides, result, strict=True)
            )
            yield place, (..., *cuts)

    def cropped(self, padded: Array, space: Sequence[int]) -> Array:
        """Without the padding."""
        cuts = tuple(slice(b, b + n) for b, n in zip(self.pads, space, strict=False))
        return padded[(..., *cuts)]

    def blank(self, leading: Sequence[int], space: Sequence[int], dtype: Any) -> Array:
        """Zeros of a padded shape."""
        import numpy as np

        rank = self.rank
        sizes = [space[d] + self.pads[d] + self.pads[rank + d] for d in range(rank)]
        return np.zeros((*leading, *sizes), dtype)


def _space_dims(
    builder: SignatureBuilder, space: Sequence[int], result: Sequence[int], strides: Sequence[int]
) -> tuple[Dims, Dims]:
    """Spatial dims of operand and result. Where sizes match, the operand's is `result × stride`, so
    that convolutions that keep the size keep the axis."""
    before: list[tuple[int, ...]] = []
    after: list[tuple[int, ...]] = []
    for size, out, stride in zip(space, result, strides, strict=True):
        loop = builder.loop(out, Kind.WHOLE)
        if size == out * stride:
            before.append(loop + builder.loop(stride, Kind.WHOLE))
        else:
            before.append(builder.loop(size, Kind.WHOLE))
        after.append(loop)
    return tuple(before), tuple(after)


class _ConvBase(Op):
    """Base of Conv, its transpose and its weight gradient: `large[n, g·c, *space]` and
    `small[n, g·m, *result]` related by `weight[g·m, c, *kernel]`."""

    __slots__ = ()
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]
    group: int

    @property
    def window(self) -> Window:
        """How the kernel moves."""
        return Window(self.strides, self.pads, self.dilations)

    def loops(
        self,
        large: TensorType,
        weight: TensorType,
        small: TensorType,
        kinds: tuple[Kind, Kind, Kind],
    ) -> tuple[SignatureBuilder, Dims, Dims, Dims]:
        """Dims of large, weight and small; `kinds` of batch, channels of large, channels of
        small."""
        builder = SignatureBuilder()
        batch = builder.loop(large.shape[0], kinds[0])
        group = builder.loop(self.group)
        channels = builder.loop(weight.shape[1], kinds[1])
        out = builder.loop(weight.shape[0] // self.group, kinds[2])
        space, result = _space_dims(builder, large.shape[2:], small.shape[2:], self.strides)
        kernel = builder.dims(weight.shape[2:], Kind.WHOLE)
        return (
            builder,
            (batch, group + channels, *space),
            (group + out, channels, *kernel),
            (batch, group + out, *result),
        )

    def check(
        self, large: TensorType, weight: TensorType, small: TensorType | None
    ) -> tuple[int, ...]:
        """Shape of small; raises `ShapeError`."""
        fits = (
            large.rank == weight.rank >= 2
            and self.group > 0
            and weight.shape[0] % self.group == 0
            and large.shape[1] == weight.shape[1] * self.group
        )
        if not fits:
            raise ShapeError(f"{self.name}: {large} and weight {weight} in {self.group} groups")
        shape = (
            large.shape[0],
            weight.shape[0],
            *self.window.result_sizes(large.shape[2:], weight.shape[2:]),
        )
        if small is not None and small.shape != shape:
            raise ShapeError(f"{self.name}: {small}; expected shape {list(shape)}")
        return shape

    def flops(self, weight: TensorType, small: TensorType) -> float:
        """Two per term: one term per element of small, channel of large and place in the kernel."""
        return 2.0 * small.num_elements * math.prod(weight.shape[1:])

    def local_group(self, large: TensorType, weight: TensorType) -> int:
        """Groups of a shard."""
        return max(1, large.shape[1] // weight.shape[1])


@register_op("Conv")
@dataclass(frozen=True, slots=True)
class Conv(_ConvBase):
    """Convolution of `x` with `weight`. A bias is an Add behind it."""

    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]
    group: int = 1

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        x, weight = operands
        return (x.with_shape(self.check(x, weight, None)),)

    def signature(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Signature:
        kinds = (Kind.PARALLEL, Kind.SUM, Kind.PARALLEL)
        builder, x, weight, result = self.loops(operands[0], operands[1], results[0], kinds)
        return builder.build((x, weight), (result,))

    def work(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Work:
        return product_work(self.flops(operands[1], results[0]), operands, results)

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        import numpy as np

        x, weight = operands
        kernel = weight.shape[2:]
        seen = self.window.windows(self.window.padded(x, 0.0), kernel)
        group, rank = self.group, len(kernel)
        channels = weight.shape[1]
        seen = seen.reshape(x.shape[0], group, channels, *seen.shape[2:])
        filters = weight.reshape(group, -1, channels, *kernel)
        parts = [
            np.tensordot(
                seen[:, g],
                filters[g],
                axes=((1, *range(2 + rank, 2 + 2 * rank)), range(1, 2 + rank)),
            )
            for g in range(group)
        ]
        return (np.moveaxis(np.concatenate(parts, axis=-1), -1, 1),)

    def derivative(self, back: Backward) -> Gradients:
        x, weight = back.operands
        move = (self.strides, self.pads, self.dilations, self.group)
        of_x = of_weight = None
        if back.wanted[0]:
            of_x = back.add(ConvTranspose(x.type.shape[2:], *move), back.gradient, weight)
        if back.wanted[1]:
            op = ConvWeightGradient(weight.type.shape[2:], *move)
            of_weight = back.add(op, x, back.gradient)
        return (of_x, of_weight)

    def localized(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Op:
        return replace(self, group=self.local_group(operands[0], operands[1]))


@register_op("ConvTranspose")
@dataclass(frozen=True, slots=True)
class ConvTranspose(_ConvBase):
    """The transpose of Conv: `small` and `weight` to `large`, whose spatial sizes are `space`. The
    gradient of Conv's first operand, and a layer of its own."""

    space: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]
    group: int = 1

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        small, weight = operands
        if small.rank != weight.rank or small.rank < 2:
            raise ShapeError(f"ConvTranspose: {small} and weight {weight}")
        large = small.with_shape((small.shape[0], weight.shape[1] * self.group, *self.space))
        self.check(large, weight, small)
        return (large,)

    def signature(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Signature:
        kinds = (Kind.PARALLEL, Kind.PARALLEL, Kind.SUM)
        builder, large, weight, small = self.loops(results[0], operands[1], operands[0], kinds)
        return builder.build((small, weight), (large,))

    def work(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Work:
        return product_work(self.flops(operands[1], operands[0]), operands, results)

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        import numpy as np

        small, weight = operands
        kernel = weight.shape[2:]
        grouped = small.reshape(small.shape[0], self.group, -1, *small.shape[2:])
        filters = weight.reshape(self.group, -1, *weight.shape[1:])
        leading = (small.shape[0], self.group, weight.shape[1])
        large = self.window.blank(leading, self.space, np.result_type(small, weight))
        for place, cut in self.window.places(small.shape[2:], kernel):
            here = filters[(slice(None), slice(None), slice(None), *place)]
            large[cut] += np.einsum("ngm...,gmc->ngc...", grouped, here, optimize=True)
        result = self.window.cropped(large, self.space)
        return (result.reshape(small.shape[0], -1, *self.space),)

    def derivative(self, back: Backward) -> Gradients:
        small, weight = back.operands
        move = (self.strides, self.pads, self.dilations, self.group)
        of_small = of_weight = None
        if back.wanted[0]:
            of_small = back.add(Conv(*move), back.gradient, weight)
        if back.wanted[1]:
            op = ConvWeightGradient(weight.type.shape[2:], *move)
            of_weight = back.add(op, back.gradient, small)
        return (of_small, of_weight)

    def localized(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Op:
        group = self.local_group(results[0], operands[1])
        return replace(self, space=results[0].shape[2:], group=group)


@register_op("ConvWeightGradient")
@dataclass(frozen=True, slots=True)
class ConvWeightGradient(_ConvBase):
    """Gradient of Conv's weight from `x` and the result's gradient, summed over the batch."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]
    group: int = 1

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        large, small = operands
        shape = (small.shape[1], large.shape[1] // self.group, *self.kernel)
        weight = small.with_shape(shape)
        self.check(large, weight, small)
        return (weight,)

    def signature(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Signature:
        kinds = (Kind.SUM, Kind.PARALLEL, Kind.PARALLEL)
        builder, large, weight, small = self.loops(operands[0], results[0], operands[1], kinds)
        return builder.build((large, small), (weight,))

    def work(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Work:
        return product_work(self.flops(results[0], operands[1]), operands, results)

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        import numpy as np

        large, small = operands
        padded = self.window.padded(large, 0.0)
        padded = padded.reshape(large.shape[0], self.group, -1, *padded.shape[2:])
        grouped = small.reshape(small.shape[0], self.group, -1, *small.shape[2:])
        space = "xyzuvw"[: len(self.kernel)]
        equation = f"ngm{space},ngc{space}->gmc"
        result = np.zeros(
            (self.group, grouped.shape[2], padded.shape[2], *self.kernel),
            np.result_type(large, small),
        )
        for place, cut in self.window.places(small.shape[2:], self.kernel):
            result[(..., *place)] = np.einsum(equation, grouped, padded[cut], optimize=True)
        return (result.reshape(-1, *result.shape[2:]),)

    def localized(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Op:
        return replace(self, group=self.local_group(operands[0], results[0]))


# --- pooling -------------------------------------------------------------------------------------


class _Pool(Op):
    """Base: every channel on its own."""

    __slots__ = ()
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]

    @property
    def window(self) -> Window:
        """How the kernel moves."""
        return Window(self.strides, self.pads, self.dilations)

    def pooled(self, x: TensorType) -> TensorType:
        """Type of the pooled tensor; raises `ShapeError`."""
        if x.rank < 2:
            raise ShapeError(f"{self.name}: {x}; expected batch, channels and space")
        return x.with_shape((*x.shape[:2], *self.window.result_sizes(x.shape[2:], self.kernel)))

    def dims(self, x: TensorType, pooled: TensorType) -> tuple[SignatureBuilder, Dims, Dims]:
        """Dims of the operand and of the pooled tensor."""
        builder = SignatureBuilder()
        leading = builder.dims(x.shape[:2])
        before, after = _space_dims(builder, x.shape[2:], pooled.shape[2:], self.strides)
        return builder, (*leading, *before), (*leading, *after)

    def pool_work(
        self, pooled: TensorType, operands: Sequence[TensorType], results: Sequence[TensorType]
    ) -> Work:
        """One operation per place in the kernel."""
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

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        return (self.pooled(operands[0]),)

    def signature(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Signature:
        builder, x, pooled = self.dims(operands[0], results[0])
        return builder.build((x,), (pooled,))

    def work(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Work:
        return self.pool_work(results[0], operands, results)

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
    """The gradient of each window at its first maximum; from operand, result and its gradient."""

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
    """The mean in every window. Padding counts if `count_include_pad`, but never the last
    `overhang` of it, which rounding sizes up has added."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]
    overhang: tuple[int, ...]
    count_include_pad: bool = False

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        return (self.pooled(operands[0]),)

    def signature(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Signature:
        builder, x, pooled = self.dims(operands[0], results[0])
        return builder.build((x,), (pooled,))

    def work(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Work:
        return self.pool_work(results[0], operands, results)

    def counts(self, space: Sequence[int]) -> Array:
        """By what the sum of every window is divided."""
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
    """Spreads the gradient of each window over its elements."""

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


# --- normalisation -------------------------------------------------------------------------------


@register_op("BatchNormalization")
@dataclass(frozen=True, slots=True)
class BatchNormalization(Op):
    """`(x − mean) / √(variance + epsilon) · scale + bias` per channel, with statistics that are
    given. Operands `x, scale, bias, mean, variance`."""

    epsilon: float = 1e-5

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        x = operands[0]
        if x.rank < 2 or any(operand.shape != x.shape[1:2] for operand in operands[1:]):
            found = ", ".join(map(str, operands[1:]))
            raise ShapeError(f"BatchNormalization: {found} beside {x}; expected one per channel")
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
            raise TransformError("BatchNormalization: its statistics are constants")
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

    def _inverse_deviation(self, builder: Builder, variance: Value) -> Value:
        from distir.ops.arithmetic import Add, Reciprocal, Sqrt

        epsilon = builder.scalar(self.epsilon, variance.type.dtype)
        shifted = builder.add(Add(), variance, epsilon)
        return builder.add(Reciprocal(), builder.add(Sqrt(), shifted))

    def _column(self, builder: Builder, vector: Value, x: Value) -> Value:
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
            raise ShapeError(f"LRN: {operands[0]}, size {self.size}")
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
        """Sums over the channels that a channel looks at, or that look at it."""
        before, after = (self.size - 1) // 2, self.size // 2
        if backwards:
            before, after = after, before
        window = Window((1,), (before, after), (1,))
        moved = x.swapaxes(1, -1)
        return window.windows(window.padded(moved, 0.0), (self.size,)).sum(-1).swapaxes(1, -1)

    def divisor(self, x: Array) -> Array:
        """What is raised to `beta`."""
        return self.bias + self.alpha / self.size * self.neighbours(x * x, backwards=False)

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        return (operands[0] * self.divisor(operands[0]) ** -self.beta,)

    def derivative(self, back: Backward) -> Gradients:
        return (back.add(LRNGradient(self), back.operands[0], back.gradient),)


@register_op("LRNGradient")
@dataclass(frozen=True, slots=True)
class LRNGradient(Op):
    """Gradient of LRN's operand from it and the result's gradient."""

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
