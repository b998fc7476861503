"""Several elementwise ops as one kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from distir.cost.work import OpClass, Work
from distir.errors import TransformError
from distir.ir.core import Array, Op
from distir.ir.registered import register_op
from distir.ir.signature import Signature
from distir.ir.types import TensorType
from distir.ops.collective import Sharded


@register_op("Fused")
@dataclass(frozen=True, slots=True)
class Fused(Op):
    """A chain of elementwise ops in one kernel, in placed programs. Each operand is read once and
    each result written once; values in between stay in registers.

    `steps` are `(op, places of its operands)`. Places count the operands, then the results of all
    steps in order. `returned` are the places of the results.
    """

    num_operands: int
    steps: tuple[tuple[Op, tuple[int, ...]], ...]
    returned: tuple[int, ...]

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        types = self._types(operands)
        return tuple(types[place] for place in self.returned)

    def _types(self, operands: Sequence[TensorType]) -> list[TensorType]:
        types = list(operands)
        for op, places in self.steps:
            types.extend(op.infer(*(types[place] for place in places)))
        return types

    def signature(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Signature:
        raise TransformError("ops are fused after placement; a fused op has no axes")

    def work(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Work:
        types = list(operands)
        flops = 0.0
        for op, places in self.steps:
            read = [types[place] for place in places]
            made = op.infer(*read)
            flops += op.work(read, made).flops
            types.extend(made)
        return Work(
            kind=OpClass.MEMORY,
            flops=flops,
            bytes_read=sum(t.size_bytes for t in operands),
            bytes_written=sum(t.size_bytes for t in results),
        )

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        return self.evaluate_at({}, *operands)

    def evaluate_at(self, coordinate: dict[str, int], *operands: Array) -> tuple[Array, ...]:
        """The results on the device at this place of the mesh."""
        values = list(operands)
        for op, places in self.steps:
            read = (values[place] for place in places)
            sharded = isinstance(op, Sharded)
            values.extend(op.evaluate_at(coordinate, *read) if sharded else op.evaluate(*read))
        return tuple(values[place] for place in self.returned)
