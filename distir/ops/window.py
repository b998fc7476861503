"""Moving a kernel over space: strides, padding, dilations, and the elements that it covers.

Layouts are ONNX's: spatial dims come last. `pads` has the padding in front of every spatial dim,
then the padding behind each. Spatial dims cannot be split, which would need halos.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from distir.errors import ShapeError
from distir.ir.core import Array
from distir.ir.signature import Dims, Kind, SignatureBuilder


@dataclass(frozen=True, slots=True)
class KernelWindow:
    """How a kernel moves over space."""

    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]

    @property
    def rank(self) -> int:
        """Number of spatial dims."""
        return len(self.strides)

    def result_sizes(self, space: Sequence[int], kernel: Sequence[int]) -> tuple[int, ...]:
        """The spatial sizes of the result; raises `ShapeError` if the kernel does not fit."""
        rank = self.rank
        fits = (
            len(space) == len(kernel) == rank == len(self.dilations) and len(self.pads) == 2 * rank
        )
        positive = all(n > 0 for n in (*self.strides, *self.dilations, *kernel))
        if not fits or not positive or min(self.pads, default=0) < 0:
            raise ShapeError(
                f"window {self} with kernel {list(kernel)} over {list(space)}; expected positive "
                "strides, dilations and kernel sizes, one per spatial dim, and two pads "
                "of at least 0"
            )
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
        """`x` with padding of this value."""
        import numpy as np

        widths = [(0, 0)] * (x.ndim - self.rank)
        widths += list(zip(self.pads[: self.rank], self.pads[self.rank :], strict=True))
        return np.pad(x, widths, constant_values=value)

    def windows(self, padded: Array, kernel: Sequence[int]) -> Array:
        """The elements that the kernel covers at each place: `[..., *result, *kernel]`."""
        from numpy.lib.stride_tricks import sliding_window_view

        spans = [d * (k - 1) + 1 for d, k in zip(self.dilations, kernel, strict=True)]
        axes: Any = range(padded.ndim - self.rank, padded.ndim)  # stubs of NumPy 2.2 know one axis
        view = sliding_window_view(padded, spans, axis=axes)
        moves = (..., *(slice(None, None, s) for s in self.strides))
        inner = tuple(slice(None, None, d) for d in self.dilations)
        return view[(*moves, *(slice(None) for _ in inner))][(..., *inner)]

    def places(
        self, result: Sequence[int], kernel: Sequence[int]
    ) -> Iterator[tuple[tuple[int, ...], tuple[Any, ...]]]:
        """Per place in the kernel: the index of the elements of padded space that this place
        covers, one per element of the result."""
        for place in itertools.product(*(range(size) for size in kernel)):
            cuts = tuple(
                slice(k * d, k * d + s * (n - 1) + 1, s)
                for k, d, s, n in zip(place, self.dilations, self.strides, result, strict=True)
            )
            yield place, (..., *cuts)

    def cropped(self, padded: Array, space: Sequence[int]) -> Array:
        """A padded array without its padding."""
        cuts = tuple(slice(b, b + n) for b, n in zip(self.pads, space, strict=False))
        return padded[(..., *cuts)]

    def blank(self, leading: Sequence[int], space: Sequence[int], dtype: Any) -> Array:
        """An array of zeros with the shape of `[*leading, *space]` with padding."""
        import numpy as np

        rank = self.rank
        sizes = [space[d] + self.pads[d] + self.pads[rank + d] for d in range(rank)]
        return np.zeros((*leading, *sizes), dtype)


def space_dims(
    builder: SignatureBuilder, space: Sequence[int], result: Sequence[int], strides: Sequence[int]
) -> tuple[Dims, Dims]:
    """The spatial dims of operand and result. An operand's dim is `result × stride` if the sizes
    allow, so that a convolution that keeps the size keeps the axis."""
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
