"""Matrix products: MatMul, Gemm and Einsum. Gradients of products are Einsums."""

from __future__ import annotations

import math
import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from distir.cost.products import ProductShape
from distir.cost.work import OpClass, Work
from distir.errors import ShapeError
from distir.ir.core import Array, Backward, Gradients, Node, NodeBuilder, Op, Value
from distir.ir.registered import register_op
from distir.ir.signature import Dims, Kind, Signature, SignatureBuilder
from distir.ir.types import DType, TensorType
from distir.ops.base import broadcast_shapes, sum_to_shape

ALIGNMENT_BYTES = 16
"""Bytes that matrix units load at once: rows of a matrix must begin at multiples of it (NVIDIA,
Matrix Multiplication Background User's Guide, section 4)."""


def product_work(
    flops: float,
    operands: Sequence[TensorType],
    results: Sequence[TensorType],
    *,
    batched: bool = False,
) -> Work:
    """The work of a matrix product that reads its operands and writes its results once.

    A `batched` product of two activations, as in spelled-out attention, reads rows where they are.
    If their lengths are not multiples of `ALIGNMENT_BYTES`, it runs on vector units. For other
    products, libraries pad the rows of the weight.
    """
    fast = not batched or all(
        t.shape[-1] * t.dtype.itemsize % ALIGNMENT_BYTES == 0 for t in operands
    )
    dtype = results[0].dtype if fast else DType.FLOAT32
    return Work(
        kind=OpClass.PRODUCT,
        flops=flops,
        bytes_read=sum(t.size_bytes for t in operands),
        bytes_written=sum(t.size_bytes for t in results),
        dtype=dtype.short_name,
    )


@register_op("MatMul")
@dataclass(frozen=True, slots=True)
class MatMul(Op):
    """`a[..., m, k] @ b[..., k, n]`, as `numpy.matmul`; 2·m·k·n flops per batch element."""

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        a, b = (t.shape for t in operands)
        if not a or not b or a[-1] != b[-2 if len(b) > 1 else 0]:
            raise ShapeError(
                f"MatMul: {operands[0]} @ {operands[1]}; the last dim of the first operand and "
                "the last but one of the second must be equal"
            )
        batch = broadcast_shapes(self.name, a[:-2], b[:-2])
        rows = a[-2:-1] if len(a) > 1 else ()
        columns = b[-1:] if len(b) > 1 else ()
        return (operands[0].with_shape(batch + rows + columns),)

    def signature(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Signature:
        a, b = (t.shape for t in operands)
        builder = SignatureBuilder()
        batch_shape = broadcast_shapes(self.name, a[:-2], b[:-2])
        batch = builder.dims(batch_shape)
        rows = builder.dims(a[-2:-1] if len(a) > 1 else ())
        summed = builder.loop(operands[0].shape[-1], Kind.SUM)
        columns = builder.dims(b[-1:] if len(b) > 1 else ())

        def batch_dims(shape: tuple[int, ...]) -> Dims:
            own = shape[:-2]
            offset = len(batch) - len(own)
            return tuple(() if n == 1 else batch[offset + dim] for dim, n in enumerate(own))

        a_dims = (*batch_dims(a), *rows, summed)
        b_dims = (*batch_dims(b), summed, *columns)
        return builder.build((a_dims, b_dims), ((*batch, *rows, *columns),))

    def work(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Work:
        flops = 2.0 * results[0].num_elements * operands[0].shape[-1]
        batched = min(t.rank for t in operands) > 2
        return product_work(flops, operands, results, batched=batched)

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        import numpy as np

        return (np.matmul(*operands),)

    def derivative(self, back: Backward) -> Gradients:
        a, b = back.operands
        batch_rank = max(a.type.rank, b.type.rank, 2) - 2
        letters = string.ascii_lowercase
        batch = letters[3 : 3 + batch_rank]

        def spell(value: Value, matrix: str, vector: str) -> str:
            rank = value.type.rank
            return batch[batch_rank - (rank - 2) :] + matrix if rank > 1 else vector

        a_dims = spell(a, "ab", "b")
        b_dims = spell(b, "bc", "b")
        y_dims = batch + ("a" if a.type.rank > 1 else "") + ("c" if b.type.rank > 1 else "")
        return (
            _einsum_gradient(back.builder, (back.gradient, y_dims), (b, b_dims), (a, a_dims))
            if back.wanted[0]
            else None,
            _einsum_gradient(back.builder, (back.gradient, y_dims), (a, a_dims), (b, b_dims))
            if back.wanted[1]
            else None,
        )


def _einsum_gradient(
    builder: NodeBuilder,
    gradient: tuple[Value, str],
    other: tuple[Value, str],
    of: tuple[Value, str],
) -> Value:
    """The gradient of the operand `of` of a product: `gradient · other`, summed over dims of size 1
    that were broadcast. Each is given with a letter per dim."""
    spelled: list[tuple[Value, str]] = []
    for value, dims in (gradient, other):
        spelled.append(_without_unit_dims(builder, value, dims))
    target = of[0].type.shape
    kept = "".join(
        letter
        for letter, size in zip(of[1], target, strict=True)
        if size != 1 or any(letter in dims for _, dims in spelled)
    )
    sizes = {
        letter: size
        for value, dims in spelled
        for letter, size in zip(dims, value.type.shape, strict=True)
    }
    # A dim of size 1 of the target was broadcast if the product's dim is larger.
    kept = "".join(letter for letter in kept if target[of[1].index(letter)] == sizes.get(letter, 0))
    equation = ",".join(dims for _, dims in spelled) + "->" + kept
    result = builder.add(Einsum(equation), *(value for value, _ in spelled))
    if result.type.shape != target:
        from distir.ops.tensor import Reshape

        result = builder.add(Reshape(target), result)
    return result


def _without_unit_dims(builder: NodeBuilder, value: Value, dims: str) -> tuple[Value, str]:
    """A value and its letters without dims of size 1, which an Einsum would not broadcast."""
    shape = value.type.shape
    drop = [i for i, size in enumerate(shape) if size == 1]
    if not drop:
        return value, dims
    from distir.ops.tensor import Reshape

    kept = [i for i in range(len(shape)) if i not in drop]
    value = builder.add(Reshape(tuple(shape[i] for i in kept)), value)
    return value, "".join(dims[i] for i in kept)


@register_op("Gemm")
@dataclass(frozen=True, slots=True)
class Gemm(Op):
    """`alpha · a' @ b' + beta · c`, where a' is `a`, or its transpose if `trans_a`; so for b."""

    alpha: float = 1.0
    beta: float = 1.0
    trans_a: bool = False
    trans_b: bool = False
    always_lowered: ClassVar[bool] = True

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        a, b = (t.shape for t in operands[:2])
        if len(a) != 2 or len(b) != 2:
            raise ShapeError(f"Gemm: {operands[0]} and {operands[1]}; expected matrices")
        rows, inner = a[::-1] if self.trans_a else a
        inner_b, columns = b[::-1] if self.trans_b else b
        if inner != inner_b:
            raise ShapeError(
                f"Gemm: {operands[0]} and {operands[1]}; their inner dims, {inner} and {inner_b}, "
                "must be equal"
            )
        result = operands[0].with_shape((rows, columns))
        if len(operands) > 2 and broadcast_shapes("Gemm", operands[2].shape, result.shape) != (
            rows,
            columns,
        ):
            raise ShapeError(f"Gemm: bias {operands[2]} does not broadcast to {result}")
        return (result,)

    def signature(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Signature:
        builder = SignatureBuilder()
        rows, columns = builder.dims(results[0].shape)
        a = operands[0].shape
        summed = builder.loop(a[0] if self.trans_a else a[1], Kind.SUM)
        dims: list[Dims] = [
            (summed, rows) if self.trans_a else (rows, summed),
            (columns, summed) if self.trans_b else (summed, columns),
        ]
        if len(operands) > 2:
            bias = operands[2].shape
            aligned = (rows, columns)[2 - len(bias) :]
            dims.append(tuple(() if n == 1 else d for n, d in zip(bias, aligned, strict=True)))
        return builder.build(dims, ((rows, columns),))

    def work(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Work:
        inner = operands[0].shape[0 if self.trans_a else 1]
        return product_work(2.0 * results[0].num_elements * inner, operands, results)

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        a = operands[0].T if self.trans_a else operands[0]
        b = operands[1].T if self.trans_b else operands[1]
        result = self.alpha * (a @ b)
        return (result + self.beta * operands[2] if len(operands) > 2 else result,)

    def lower(self, builder: NodeBuilder, node: Node) -> tuple[Value, ...] | None:
        """Product, then bias: the bias must be added once, after pending sums are added up."""
        from distir.ops.arithmetic import Add, Mul

        a, b = node.operands[:2]
        left, right = "ba" if self.trans_a else "ab", "cb" if self.trans_b else "bc"
        equation = f"{left},{right}->ac"
        value = builder.add(Einsum(equation), a, b)
        dtype = value.type.dtype
        if self.alpha != 1.0:
            value = builder.add(Mul(), value, builder.scalar(self.alpha, dtype))
        if len(node.operands) > 2:
            bias = node.operands[2]
            if self.beta != 1.0:
                bias = builder.add(Mul(), bias, builder.scalar(self.beta, dtype))
            value = builder.add(Add(), value, bias)
        return (value,)


@register_op("Einsum")
@dataclass(frozen=True, slots=True)
class Einsum(Op):
    """A sum of products, written with a letter per dim, such as `bsk,kn->bsn`. There is no ellipsis
    and no letter twice in one operand."""

    equation: str

    @property
    def terms(self) -> tuple[tuple[str, ...], str]:
        """The letters of each operand, and those of the result."""
        inputs, _, output = self.equation.replace(" ", "").partition("->")
        return tuple(inputs.split(",")), output

    def stacked(self, operands: Sequence[TensorType]) -> int:
        """How many matrices it has stacked, each multiplied with rows of its own, as the weights of
        experts are; 1 where there is no such stack. A letter of both operands and the result counts
        if one of these three has only a matrix beside it and another has more."""
        terms, output = self.terms
        lengths = [len(term) for term in (*terms, output)]
        common = set(output).intersection(*terms)
        if len(terms) != 2 or not min(lengths) == len(common) + 2 < max(lengths):
            return 1
        sizes = self._sizes(operands)
        return math.prod(sizes[letter] for letter in common)

    def _sizes(self, operands: Sequence[TensorType]) -> dict[str, int]:
        terms, output = self.terms
        if len(terms) != len(operands) or "->" not in self.equation:
            raise ShapeError(
                f"Einsum {self.equation!r}: {len(operands)} operands; expected as many as the "
                "equation has, and an arrow in it"
            )
        sizes: dict[str, int] = {}
        for term, operand in zip(terms, operands, strict=True):
            if len(term) != operand.rank or len(set(term)) != len(term):
                raise ShapeError(f"Einsum {self.equation!r}: {term!r} does not describe {operand}")
            for letter, size in zip(term, operand.shape, strict=True):
                if sizes.setdefault(letter, size) != size:
                    raise ShapeError(
                        f"Einsum {self.equation!r}: {letter!r} is {sizes[letter]} and {size}; "
                        "expected one size"
                    )
        if not set(output) <= set(sizes) or len(set(output)) != len(output):
            raise ShapeError(
                f"Einsum {self.equation!r}: result {output!r}; expected letters of the operands, "
                "each at most once"
            )
        return sizes

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        sizes = self._sizes(operands)
        return (operands[0].with_shape(tuple(sizes[letter] for letter in self.terms[1])),)

    def signature(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Signature:
        terms, output = self.terms
        builder = SignatureBuilder()
        loops = {
            letter: builder.loop(size, Kind.PARALLEL if letter in output else Kind.SUM)
            for letter, size in self._sizes(operands).items()
        }
        dims = [tuple(loops[letter] for letter in term) for term in terms]
        return builder.build(dims, (tuple(loops[letter] for letter in output),))

    def work(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Work:
        flops = 2.0
        for size in self._sizes(operands).values():
            flops *= size
        terms, output = self.terms
        batched = not set(output).isdisjoint(set(terms[0]).intersection(*terms[1:]))
        return product_work(flops, operands, results, batched=batched and len(terms) > 1)

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        import numpy as np

        return (np.einsum(self.equation, *operands, optimize=True),)

    def derivative(self, back: Backward) -> Gradients:
        terms, output = self.terms
        results: list[Value | None] = []
        for position, want in enumerate(back.wanted):
            others = [i for i in range(len(terms)) if i != position]
            present = set(output).union(*(terms[i] for i in others))
            if not want:
                results.append(None)
                continue
            if not set(terms[position]) <= present:
                missing = set(terms[position]) - present
                raise ShapeError(
                    f"Einsum {self.equation!r}: {missing} is summed in one operand alone; "
                    "sum it with ReduceSum first"
                )
            equation = ",".join([output, *(terms[i] for i in others)]) + "->" + terms[position]
            operands = (back.gradient, *(back.operands[i] for i in others))
            results.append(back.add(Einsum(equation), *operands))
        return results


def product_shape(op: Op, operands: Sequence[TensorType], dtype: str) -> ProductShape | None:
    """The sizes of a product that runs in `dtype`; None if the op is no product of two matrices, or
    of matrices side by side."""
    equation = _spelled(op, operands)
    if equation is None:
        return None
    (first, second), output = equation
    letters = set(first) | set(second)
    sizes = {
        letter: size
        for term, operand in zip((first, second), operands, strict=False)
        for letter, size in zip(term, operand.shape, strict=True)
    }
    found: dict[str, int] = dict.fromkeys(("batch", "rows", "columns", "inner"), 1)
    for letter in sorted(letters):
        places = letter in first, letter in second, letter in output
        side = _SIDES.get(places)
        if side is None:
            return None
        found[side] = found[side] * sizes[letter]
    return ProductShape(dtype, **found)


_SIDES = {
    (True, True, True): "batch",
    (True, False, True): "rows",
    (False, True, True): "columns",
    (True, True, False): "inner",
}
"""What a letter of an equation counts, by whether the first operand, the second, and the result
have it."""


def _spelled(op: Op, operands: Sequence[TensorType]) -> tuple[tuple[str, str], str] | None:
    """A product as the letters of its two operands and of its result."""
    if isinstance(op, Einsum):
        terms, output = op.terms
        return ((terms[0], terms[1]), output) if len(terms) == 2 else None
    if isinstance(op, Gemm):
        return ("ba" if op.trans_a else "ab", "cb" if op.trans_b else "bc"), "ac"
    ranks = [t.rank for t in operands[:2]]
    if not isinstance(op, MatMul) or min(ranks) < 2:
        return None
    batch = string.ascii_lowercase[3 : 1 + max(ranks)]
    first, second = (batch[len(batch) - (rank - 2) :] for rank in ranks)
    return (first + "ab", second + "bc"), batch + "ac"


__all__ = ["Einsum", "Gemm", "MatMul", "product_shape", "product_work", "sum_to_shape"]
