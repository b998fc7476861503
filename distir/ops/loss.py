"""Losses of a training step, and their gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from distir.cost.work import Work
from distir.errors import ShapeError
from distir.ir.core import Array, Backward, Gradients, Node, NodeBuilder, Op, Value
from distir.ir.registered import register_op
from distir.ir.signature import Kind, Signature, SignatureBuilder
from distir.ir.types import TensorType
from distir.ops.base import from_start
from distir.ops.lookup import lookup_work


@register_op("CrossEntropy")
@dataclass(frozen=True, slots=True)
class CrossEntropy(Op):
    """`log Σ exp(logits) − logits[label]` per row of `logits[..., classes]`, with
    `labels[...]`."""

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        logits, labels = operands
        if labels.shape != logits.shape[:-1] or labels.dtype.is_float:
            raise ShapeError(
                f"CrossEntropy: labels {labels} beside logits {logits}; expected integers of "
                f"shape {list(logits.shape[:-1])}"
            )
        return (logits.with_shape(logits.shape[:-1]),)

    def signature(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Signature:
        builder = SignatureBuilder()
        rows = builder.dims(operands[1].shape)
        classes = builder.loop(operands[0].shape[-1], Kind.WHOLE)
        return builder.build(((*rows, classes), rows), (rows,))

    def masked_dims(self, operands: Sequence[TensorType]) -> tuple[int, ...]:
        return (operands[0].rank - 1,)

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        import numpy as np

        logits, labels = operands
        shifted = logits - logits.max(axis=-1, keepdims=True)
        log_total = np.log(np.exp(shifted).sum(axis=-1))
        picked = np.take_along_axis(shifted, labels[..., None].astype(np.int64), axis=-1)[..., 0]
        return (log_total - picked,)

    def derivative(self, back: Backward) -> Gradients:
        logits, labels = back.operands
        return (back.add(CrossEntropyGradient(), logits, labels, back.gradient), None)

    def lower(self, builder: NodeBuilder, node: Node) -> tuple[Value, ...] | None:
        """A form in which classes can be split over devices: one maximum and two sums over them
        (Shoeybi et al. 2019)."""
        from distir.ops.arithmetic import Exp, Log, Sub
        from distir.ops.elementwise import StopGradient
        from distir.ops.reduce import ReduceMax, ReduceSum

        logits, labels = node.operands
        last = (logits.type.rank - 1,)
        maximum = builder.add(StopGradient(), builder.add(ReduceMax(last), logits))
        shifted = builder.add(Sub(), logits, maximum)
        total = builder.add(ReduceSum(last, keepdims=False), builder.add(Exp(), shifted))
        picked = builder.add(PickLast(), shifted, labels)
        return (builder.add(Sub(), builder.add(Log(), total), picked),)


@register_op("CrossEntropyGradient")
@dataclass(frozen=True, slots=True)
class CrossEntropyGradient(Op):
    """`(softmax(logits) − onehot(labels)) · gradient`."""

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        return (operands[0],)

    def signature(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Signature:
        builder = SignatureBuilder()
        rows = builder.dims(operands[1].shape)
        classes = builder.loop(operands[0].shape[-1], Kind.WHOLE)
        return builder.build(((*rows, classes), rows, rows), ((*rows, classes),))

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        import numpy as np

        from distir.ops.norm import softmax

        logits, labels, gradient = operands
        result = softmax(logits, -1)
        picked = labels[..., None].astype(np.int64)
        ones = np.take_along_axis(result, picked, axis=-1) - 1
        np.put_along_axis(result, picked, ones, axis=-1)
        return (result * gradient[..., None],)


@register_op("PickLast")
@dataclass(frozen=True, slots=True)
class PickLast(Op):
    """`x[..., index[...]]`: one element of the last dim per row. A device that holds only a part of
    the last dim gives zero for elements in other parts."""

    picks_by: ClassVar[int | None] = 1

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        return (operands[0].with_shape(operands[1].shape),)

    def signature(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Signature:
        builder = SignatureBuilder()
        classes = builder.positional(operands[0].shape[-1], Kind.PICK)
        rows = builder.dims(operands[1].shape)
        return builder.build(((*rows, classes), rows), (rows,))

    def work(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Work:
        return lookup_work(operands, results)

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        return self.evaluate_shard({}, *operands)

    def evaluate_shard(self, indices: Mapping[int, Array], *operands: Array) -> tuple[Array, ...]:
        import numpy as np

        x, wanted = operands
        held = indices.get(0)
        if held is None:
            held = np.arange(x.shape[-1], dtype=np.int64)
            wanted = from_start(wanted, len(held))
        place = np.minimum(np.searchsorted(held, wanted), len(held) - 1)
        picked = np.take_along_axis(x, place[..., None], axis=-1)[..., 0]
        return (np.where(held[place] == wanted, picked, 0.0),)

    def derivative(self, back: Backward) -> Gradients:
        x, index = back.operands
        op = PickLastGradient(x.type.shape[-1])
        return (back.add(op, index, back.gradient), None)


@register_op("PickLastGradient")
@dataclass(frozen=True, slots=True)
class PickLastGradient(Op):
    """The gradient placed at the picked element of each row, zero elsewhere."""

    picks_by: ClassVar[int | None] = 0

    size: int

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        return (operands[1].with_shape((*operands[1].shape, self.size)),)

    def signature(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Signature:
        builder = SignatureBuilder()
        classes = builder.positional(self.size)
        rows = builder.dims(operands[1].shape)
        return builder.build((rows, rows), ((*rows, classes),))

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        return self.evaluate_shard({}, *operands)

    def evaluate_shard(self, indices: Mapping[int, Array], *operands: Array) -> tuple[Array, ...]:
        import numpy as np

        index, gradient = operands
        held = indices.get(0)
        if held is None:
            held = np.arange(self.size)
            index = from_start(index, self.size)
        return ((held == index[..., None]) * gradient[..., None],)

    def localized(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Op:
        return PickLastGradient(results[0].shape[-1])


@register_op("SquaredError")
@dataclass(frozen=True, slots=True)
class SquaredError(Op):
    """`(x − target)²` per element."""

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        if operands[0].shape != operands[1].shape:
            raise ShapeError(
                f"SquaredError: {operands[0]} and target {operands[1]}; expected equal shapes"
            )
        return (operands[0],)

    def signature(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Signature:
        from distir.ir.signature import broadcast_signature

        return broadcast_signature([t.shape for t in operands], results[0].shape)

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        return ((operands[0] - operands[1]) ** 2,)

    def derivative(self, back: Backward) -> Gradients:
        from distir.ops.arithmetic import Mul, Neg, Sub
        from distir.ops.tensor import Scale

        difference = back.add(Scale(2.0), back.add(Sub(), *back.operands))
        of_x = back.add(Mul(), difference, back.gradient)
        return (of_x, back.add(Neg(), of_x) if back.wanted[1] else None)
