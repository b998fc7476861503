"""Sampling an image, or space of any number of dims, at places that are data: deformable attention,
optical flow, spatial transformers.

A *tap* is an element that a sample is weighed from: one for the nearest, two per dim where samples
are linear, four where they are cubic.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from distir.cost.amounts import smaller
from distir.cost.work import OpClass, Work
from distir.errors import ShapeError
from distir.ir.core import Array, Backward, Gradients, Op
from distir.ir.registered import register_op
from distir.ir.signature import Dims, Kind, Signature, SignatureBuilder
from distir.ir.types import TensorType

TAPS = {"nearest": 1, "linear": 2, "cubic": 4}
"""Per mode, the number of taps per dim."""
PADDINGS = ("zeros", "border", "reflection")
CUBIC = -0.75
"""The coefficient of cubic convolution (Keys, Cubic Convolution Interpolation for Digital Image
Processing, 1981) that ONNX and PyTorch have."""


class _Sampling(Op):
    """Base of sampling and its gradients. Space `[batch, channels, *space]` is sampled at a grid
    `[batch, *places, dims of space]`, whose coordinates run from -1 to 1, the last dim first."""

    __slots__ = ()
    mode: str
    padding_mode: str
    align_corners: bool

    def dims(
        self, x: Sequence[int], grid: Sequence[int], channels: Kind, places: Kind
    ) -> tuple[SignatureBuilder, Dims, Dims, Dims]:
        """A signature builder, and the dims of space, of the grid, and of the samples."""
        builder = SignatureBuilder()
        batch, channel = builder.loop(x[0]), builder.loop(x[1], channels)
        space = builder.dims(x[2:], Kind.WHOLE)
        where = builder.dims(grid[1:-1], places)
        coordinates = builder.loop(grid[-1], Kind.WHOLE)
        return (
            builder,
            (batch, channel, *space),
            (batch, *where, coordinates),
            (batch, channel, *where),
        )

    def sampling_work(
        self, x: TensorType, samples: TensorType, others: Sequence[TensorType], result: TensorType
    ) -> Work:
        """Memory-bound work: every sample weighs its taps; of space no more is read than they
        are."""
        taps = TAPS[self.mode] ** (x.rank - 2)
        touched = smaller(x.size_bytes, taps * samples.size_bytes)
        return Work(
            kind=OpClass.MEMORY,
            flops=2 * taps * samples.num_elements,
            bytes_read=touched + sum(each.size_bytes for each in others),
            bytes_written=result.size_bytes,
        )

    def taps(
        self, grid: Array, space: Sequence[int]
    ) -> Iterator[tuple[Array, Array, tuple[Array, ...]]]:
        """Of each tap the weights, their derivatives by coordinates, and the places in space; of
        shapes `[batch, *places]`, `[batch, *places, dims]`, and one `[batch, *places]` per dim."""
        import numpy as np

        along = [self._along(grid[..., -1 - dim], size) for dim, size in enumerate(space)]
        for chosen in product(*along):
            weights = [weight for weight, _, _ in chosen]
            slopes = [
                np.multiply.reduce([*weights[:dim], slope, *weights[dim + 1 :]])
                for dim, (_, slope, _) in enumerate(chosen)
            ]
            places = tuple(place for _, _, place in chosen)
            yield np.multiply.reduce(weights), np.stack(slopes[::-1], axis=-1), places

    def _along(self, coordinates: Array, size: int) -> list[tuple[Array, Array, Array]]:
        """Along one dim of space, of each tap the weights, their derivatives by coordinates, and
        the places. Where a coordinate is no number the weights are none; places always exist."""
        import numpy as np

        scale = (size - 1 if self.align_corners else size) / 2
        low, high = (0.0, size - 1.0) if self.align_corners else (-0.5, size - 0.5)
        places = (coordinates + 1) * scale + low
        if self.mode == "nearest":
            places = np.rint(places)
        outside = (places < low) | (places > high)
        slope = np.full_like(places, scale)
        if self.padding_mode == "border":
            places = np.where(outside, np.clip(places, 0, size - 1), places)
            slope = np.where(outside, 0, slope)
        elif self.padding_mode == "reflection":
            turned, sign = _reflected(places, low, high)
            places, slope = np.where(outside, turned, places), np.where(outside, sign, 1) * slope
        first = np.floor(places)
        found: list[tuple[Array, Array, Array]] = []
        for tap, (weight, by_place) in enumerate(_weights(self.mode, places - first)):
            place = first + (tap - 1 if self.mode == "cubic" else tap)
            inside = (place >= 0) & (place < size)
            if self.padding_mode == "zeros":
                weight, by_place = weight * inside, by_place * inside
            elif self.padding_mode == "reflection":
                place = np.where(inside, place, _reflected(place, low, high)[0])
            indices = np.nan_to_num(np.clip(np.trunc(place), 0, size - 1)).astype(np.int64)
            found.append((weight, by_place * slope, indices))
        return found


def _reflected(places: Array, low: float, high: float) -> tuple[Array, Array]:
    """Places reflected at both ends until they lie between them, and 1 or -1 where they run with or
    against what they are reflected from."""
    import numpy as np

    width = high - low
    if not width:
        return np.full_like(places, low), np.zeros_like(places)
    beyond = np.where(places < low, low - places, places - high)
    turns, left = np.divmod(np.maximum(beyond, 0), width)
    at_low = (places < low) == (turns % 2 == 0)
    sign = np.where(turns % 2 == 0, -1.0, 1.0).astype(places.dtype)
    return np.where(at_low, low + left, high - left), sign


def _weights(mode: str, t: Array) -> list[tuple[Array, Array]]:
    """Per tap its weight, and the derivative by the place, at a part `t` of the way from one
    element to the next."""
    import numpy as np

    one, zero = np.ones_like(t), np.zeros_like(t)
    if mode == "nearest":
        return [(one, zero)]
    if mode == "linear":
        return [(1 - t, -one), (t, one)]
    a, far, near = CUBIC, [t + 1, 2 - t], [t, 1 - t]
    outer = [(((a * x - 5 * a) * x + 8 * a) * x - 4 * a, (3 * a * x - 10 * a) * x + 8 * a)
             for x in far]  # fmt: skip
    inner = [(((a + 2) * x - (a + 3)) * x * x + 1, (3 * (a + 2) * x - 2 * (a + 3)) * x)
             for x in near]  # fmt: skip
    (first, by_first), (last, by_last) = outer
    (second, by_second), (third, by_third) = inner
    return [(first, by_first), (second, by_second), (third, -by_third), (last, -by_last)]


def _batched(places: tuple[Array, ...]) -> tuple[Any, ...]:
    """An index into `[batch, channels, *space]` that gives `[batch, *places, channels]`."""
    import numpy as np

    batch = np.arange(len(places[0])).reshape(-1, *(1,) * (places[0].ndim - 1))
    return (batch, slice(None), *places)


@register_op("GridSample")
@dataclass(frozen=True, slots=True)
class GridSample(_Sampling):
    """Samples of space at the places of a grid."""

    mode: str = "linear"
    padding_mode: str = "zeros"
    align_corners: bool = False

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        x, grid = operands
        if self.mode not in TAPS or self.padding_mode not in PADDINGS:
            raise ShapeError(
                f"{self.name}: mode {self.mode!r}, padding {self.padding_mode!r}; expected one of "
                f"{', '.join(TAPS)}, and one of {', '.join(PADDINGS)}"
            )
        fits = x.rank > 2 and grid.rank == x.rank and grid.shape[-1] == x.rank - 2
        if not fits or grid.shape[0] != x.shape[0]:
            raise ShapeError(
                f"{self.name}: {x} at {grid}; expected [batch, channels, *space] and [batch, "
                "*places, coordinates] with a coordinate per dim of space"
            )
        return (x.with_shape((*x.shape[:2], *grid.shape[1:-1])),)

    def signature(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Signature:
        x, grid = (each.shape for each in operands)
        builder, space, at, samples = self.dims(x, grid, Kind.PARALLEL, Kind.PARALLEL)
        return builder.build((space, at), (samples,))

    def work(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Work:
        return self.sampling_work(operands[0], results[0], operands[1:], results[0])

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        import numpy as np

        x, grid = operands
        taps = self.taps(grid, x.shape[2:])
        total = sum(x[_batched(places)] * weight[..., None] for weight, _, places in taps)
        return (np.moveaxis(np.asarray(total, x.dtype), -1, 1),)

    def derivative(self, back: Backward) -> Gradients:
        x, grid = back.operands
        how = (self.mode, self.padding_mode, self.align_corners)
        of_x = of_grid = None
        if back.wanted[0]:
            op = GridSampleGradient(x.type.shape[2:], *how)
            of_x = back.add(op, grid, back.gradient)
        if back.wanted[1]:
            of_grid = back.add(GridSamplePlaceGradient(*how), x, grid, back.gradient)
        return of_x, of_grid

    def linear_operands(self, operands: Sequence[TensorType]) -> tuple[int, ...]:
        return (0,)


@register_op("GridSampleGradient")
@dataclass(frozen=True, slots=True)
class GridSampleGradient(_Sampling):
    """The gradient of sampled space: adds that of samples at their taps. Operands are the grid and
    the gradient of the samples."""

    space: tuple[int, ...]
    mode: str = "linear"
    padding_mode: str = "zeros"
    align_corners: bool = False

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        gradient = operands[1]
        return (gradient.with_shape((*gradient.shape[:2], *self.space)),)

    def signature(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Signature:
        x, grid = results[0].shape, operands[0].shape
        builder, space, at, samples = self.dims(x, grid, Kind.PARALLEL, Kind.SUM)
        return builder.build((at, samples), (space,))

    def work(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Work:
        return self.sampling_work(results[0], operands[1], operands, results[0])

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        import numpy as np

        grid, gradient = operands
        result = np.zeros((*gradient.shape[:2], *self.space), gradient.dtype)
        last = np.moveaxis(gradient, 1, -1)
        for weight, _, places in self.taps(grid, self.space):
            np.add.at(result, _batched(places), last * weight[..., None])
        return (result,)

    def linear_operands(self, operands: Sequence[TensorType]) -> tuple[int, ...]:
        return (1,)


@register_op("GridSamplePlaceGradient")
@dataclass(frozen=True, slots=True)
class GridSamplePlaceGradient(_Sampling):
    """The gradient of a grid's places: how samples change where these move. Operands are space, the
    grid and the gradient of the samples."""

    mode: str = "linear"
    padding_mode: str = "zeros"
    align_corners: bool = False

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        return (operands[1],)

    def signature(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Signature:
        x, grid = (each.shape for each in operands[:2])
        builder, space, at, samples = self.dims(x, grid, Kind.SUM, Kind.PARALLEL)
        return builder.build((space, at, samples), (at,))

    def work(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Work:
        return self.sampling_work(operands[0], operands[2], operands[1:], results[0])

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        import numpy as np

        x, grid, gradient = operands
        last, result = np.moveaxis(gradient, 1, -1), np.zeros_like(grid)
        for _, slopes, places in self.taps(grid, x.shape[2:]):
            result += slopes * (x[_batched(places)] * last).sum(axis=-1)[..., None]
        return (result,)
