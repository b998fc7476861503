"""Masks the elements that pad a dim, so that reductions ignore them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from distir.cost.work import Work
from distir.ir.core import Array, Backward, Gradients, Op
from distir.ir.registered import register_op
from distir.ir.signature import Signature, SignatureBuilder
from distir.ir.types import TensorType


@register_op("MaskPadding")
@dataclass(frozen=True, slots=True)
class MaskPadding(Op):
    """`x` with all elements from position `size` of `dim` on set to zero, or to −∞ if `lowest`.

    It is done in place on the few columns that pad the dim, so that it counts as taking no time.
    """

    is_view: ClassVar[bool] = True

    dim: int
    size: int
    lowest: bool = True

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        return operands

    def signature(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Signature:
        builder = SignatureBuilder()
        masked = builder.positional(operands[0].shape[self.dim])
        dims = tuple(
            masked if dim == self.dim else builder.loop(size)
            for dim, size in enumerate(operands[0].shape)
        )
        return builder.build((dims,), (dims,))

    def work(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Work:
        return Work.nothing()

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        import numpy as np

        return self.evaluate_shard(
            {0: np.arange(operands[0].shape[self.dim], dtype=np.int64)}, *operands
        )

    def evaluate_shard(self, indices: Mapping[int, Array], *operands: Array) -> tuple[Array, ...]:
        import numpy as np

        (x,) = operands
        held = indices.get(0, np.arange(x.shape[self.dim], dtype=np.int64))
        kept = (held < self.size).reshape([-1 if d == self.dim else 1 for d in range(x.ndim)])
        return (np.where(kept, x, -np.inf if self.lowest else 0.0),)

    def derivative(self, back: Backward) -> Gradients:
        return (back.add(MaskPadding(self.dim, self.size, lowest=False), back.gradient),)

    def linear_operands(self, operands: Sequence[TensorType]) -> tuple[int, ...]:
        return () if self.lowest else (0,)


__all__ = ["MaskPadding"]
