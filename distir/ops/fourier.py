"""Fourier transforms of complex numbers, whose real and imaginary parts are the last dim."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from distir.cost.work import OpClass, Work
from distir.errors import ShapeError
from distir.ir.core import Array, Backward, Gradients, Op
from distir.ir.registered import register_op
from distir.ir.signature import Signature, broadcast_signature
from distir.ir.types import TensorType
from distir.ops.base import normalize_axis

FLOPS_PER_POINT = 5.0
"""Operations per complex number and doubling of the length, as FFTs are usually counted (Frigo and
Johnson 2005, section II)."""


@register_op("Fourier")
@dataclass(frozen=True, slots=True)
class Fourier(Op):
    """`y[k] = Σ x[j] · exp(∓2πi · j · k / n)` along `axis`, with plus if it is `inverse`, which is
    not divided by n. Operand and result are `[..., n, ..., 2]`."""

    axis: int
    inverse: bool = False

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        (x,) = operands
        if x.rank < 2 or x.shape[-1] != 2 or normalize_axis(self.name, self.axis, x.rank - 1) < 0:
            raise ShapeError(f"Fourier: {x}; expected real and imaginary parts as the last dim")
        return (x,)

    def signature(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Signature:
        shape = operands[0].shape
        whole = frozenset((self.axis % (len(shape) - 1), len(shape) - 1))
        return broadcast_signature([shape], shape, whole_dims=whole)

    def work(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Work:
        import numpy as np

        (x,) = operands
        points, length = x.num_elements / 2, x.shape[self.axis % (x.rank - 1)]
        return Work(
            kind=OpClass.MEMORY,
            flops=FLOPS_PER_POINT * points * np.log2(length),
            bytes_read=x.size_bytes,
            bytes_written=results[0].size_bytes,
        )

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        import numpy as np

        (x,) = operands
        numbers = x[..., 0] + 1j * x[..., 1]
        if self.inverse:
            made = np.fft.ifft(numbers, axis=self.axis, norm="forward")
        else:
            made = np.fft.fft(numbers, axis=self.axis)
        return (np.stack([made.real, made.imag], -1),)

    def linear_operands(self, operands: Sequence[TensorType]) -> tuple[int, ...]:
        return (0,)

    def derivative(self, back: Backward) -> Gradients:
        """The matrix is symmetric, so that its adjoint is its conjugate."""
        return (back.add(Fourier(self.axis, not self.inverse), back.gradient),)


__all__ = ["Fourier"]
