"""Convolution, its transpose and the gradient of its weight.

All three compute one of three tensors from the others: a large one, a small one (the result of the
convolution) and a weight. Layouts are ONNX's: `x[batch, channels, *space]` and
`weight[out channels, channels / group, *kernel]`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from distir.cost.work import Work
from distir.errors import ShapeError
from distir.ir.core import Array, Backward, Gradients, Op
from distir.ir.registered import register_op
from distir.ir.signature import Dims, Kind, Signature, SignatureBuilder
from distir.ir.types import TensorType
from distir.ops.linalg import product_work
from distir.ops.window import KernelWindow, space_dims


class _ConvBase(Op):
    """Base of Conv, its transpose and its weight gradient: `large[n, g·c, *space]` and
    `small[n, g·m, *result]` related by `weight[g·m, c, *kernel]`."""

    __slots__ = ()
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]
    group: int

    @property
    def window(self) -> KernelWindow:
        """How the kernel moves over space."""
        return KernelWindow(self.strides, self.pads, self.dilations)

    def loops(
        self,
        large: TensorType,
        weight: TensorType,
        small: TensorType,
        kinds: tuple[Kind, Kind, Kind],
    ) -> tuple[SignatureBuilder, Dims, Dims, Dims]:
        """A signature builder, and the dims of large, weight and small. `kinds` are those of the
        loops over the batch, the channels of large and the channels of small."""
        builder = SignatureBuilder()
        batch = builder.loop(large.shape[0], kinds[0])
        group = builder.loop(self.group)
        channels = builder.loop(weight.shape[1], kinds[1])
        out = builder.loop(weight.shape[0] // self.group, kinds[2])
        space, result = space_dims(builder, large.shape[2:], small.shape[2:], self.strides)
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
        """The shape of small; raises `ShapeError` if the tensors do not fit together."""
        fits = (
            large.rank == weight.rank >= 2
            and self.group > 0
            and weight.shape[0] % self.group == 0
            and large.shape[1] == weight.shape[1] * self.group
        )
        if not fits:
            raise ShapeError(
                f"{self.name}: {large} and weight {weight} in {self.group} groups; expected "
                "[batch, channels, *space] and [out channels, channels / groups, *kernel]"
            )
        shape = (
            large.shape[0],
            weight.shape[0],
            *self.window.result_sizes(large.shape[2:], weight.shape[2:]),
        )
        if small is not None and small.shape != shape:
            raise ShapeError(f"{self.name}: {small}; expected shape {list(shape)}")
        return shape

    def flops(self, weight: TensorType, small: TensorType) -> float:
        """FLOPs: two per element of small, channel of large (in a group), place in the kernel."""
        return 2.0 * small.num_elements * math.prod(weight.shape[1:])

    def local_group(self, large: TensorType, weight: TensorType) -> int:
        """The number of groups in a shard."""
        return max(1, large.shape[1] // weight.shape[1])


@register_op("Conv")
@dataclass(frozen=True, slots=True)
class Conv(_ConvBase):
    """The convolution of `x` with `weight`; a bias is an Add behind it."""

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
    """The transpose of Conv: computes `large`, whose spatial sizes are `space`, from `small` and
    `weight`. It is the gradient of Conv's first operand, and a layer of its own."""

    space: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]
    group: int = 1

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        small, weight = operands
        if small.rank != weight.rank or small.rank < 2:
            raise ShapeError(
                f"ConvTranspose: {small} and weight {weight}; expected equal ranks of at least 2"
            )
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
    """The gradient of Conv's weight from `x` and the result's gradient, summed over the batch."""

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
