"""Converters of matrix products."""

from __future__ import annotations

from collections.abc import Sequence

from distir.errors import ImportModelError, UnsupportedOpError
from distir.importers.onnx_call import Call, converts
from distir.ir.core import Value
from distir.ops.linalg import Einsum, Gemm, MatMul
from distir.ops.reduce import ReduceSum
from distir.ops.tensor import Scale, Transpose


@converts("Gemm")
def gemm(call: Call) -> Value:
    """Gemm, with or without a bias."""
    call.without_effect("broadcast")  # shapes say it
    op = Gemm(
        alpha=float(call.attribute("alpha", 1.0)),
        beta=float(call.attribute("beta", 1.0)),
        trans_a=bool(call.attribute("transA", 0)),
        trans_b=bool(call.attribute("transB", 0)),
    )
    return call.add(op, *call.operands())


@converts("Einsum")
def einsum(call: Call) -> Value:
    """Einsum with its ellipsis written out; dims of 1 that are stretched are dropped, and letters
    that occur in one operand alone are summed over before. Of several operands the first two are
    multiplied first, as ONNX Runtime does."""
    operands = call.operands()
    terms, output = _einsum_terms(str(call.attribute("equation", "")), operands)
    operands = _without_stretched(call, terms, operands)
    values: list[Value] = []
    for position, (term, value) in enumerate(zip(terms, operands, strict=True)):
        others = set(output).union(*(t for i, t in enumerate(terms) if i != position))
        alone = tuple(i for i, letter in enumerate(term) if letter not in others)
        if alone:
            value = call.add(ReduceSum(alone, keepdims=False), value)
            terms[position] = "".join(letter for letter in term if letter in others)
        values.append(value)
    if len(values) == 1:
        order = tuple(terms[0].index(letter) for letter in output)
        return call.add(Transpose(order), values[0])
    while len(values) > 2:
        left = {*output, *"".join(terms[2:])}
        term = "".join(letter for letter in dict.fromkeys(terms[0] + terms[1]) if letter in left)
        values[:2] = [call.add(Einsum(f"{terms[0]},{terms[1]}->{term}"), *values[:2])]
        terms[:2] = [term]
    return call.add(Einsum(",".join(terms) + "->" + output), *values)


def _without_stretched(call: Call, terms: list[str], operands: Sequence[Value]) -> list[Value]:
    """The operands without their dims of size 1 that have another size in another operand, which
    are taken out of `terms`, too."""
    sizes: dict[str, int] = {}
    for term, value in zip(terms, operands, strict=True):
        for letter, size in zip(term, value.type.shape, strict=True):
            sizes[letter] = max(size, sizes.get(letter, 1))
    left: list[Value] = []
    for position, (term, value) in enumerate(zip(terms, operands, strict=True)):
        shape = value.type.shape
        dims = [i for i, letter in enumerate(term) if shape[i] == sizes[letter]]
        kept = [dims.index(i) if i in dims else None for i in range(len(shape))]
        if all(size == 1 for size, to in zip(shape, kept, strict=True) if to is None):
            value = call.view(value, [shape[i] for i in dims], kept)
            terms[position] = "".join(term[i] for i in dims)
        left.append(value)
    return left


def _einsum_terms(equation: str, operands: Sequence[Value]) -> tuple[list[str], str]:
    """The letters of each operand and of the result, without ellipsis."""
    left, arrow, output = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(operands):
        raise ImportModelError(
            f"equation {equation!r} has {len(terms)} terms; expected {len(operands)}, one per "
            "operand"
        )
    used = set(equation)
    spare = [c for c in "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ" if c not in used]
    longest = ""
    for position, (term, value) in enumerate(zip(terms, operands, strict=True)):
        if "..." in term:
            count = value.type.rank - (len(term) - 3)
            letters = "".join(spare[:count][::-1])
            longest = max(longest, letters, key=len)
            terms[position] = term.replace("...", letters)
        if len(terms[position]) != value.type.rank:
            raise ImportModelError(
                f"the term {term!r} of {equation!r} stands for {value.type}; expected a letter per "
                "dim"
            )
    if not arrow:
        letters = "".join(terms)
        free = sorted(c for c in set(letters) if letters.count(c) == 1 and c not in longest)
        output = "..." + "".join(free)
    for term in terms:
        if len(set(term)) != len(term):
            raise UnsupportedOpError(
                f"Einsum {equation!r} is not supported: a letter is twice in a term (a diagonal)"
            )
    return terms, output.replace("...", longest)


@converts("com.microsoft:FusedMatMul")
def fused_matmul(call: Call) -> Value:
    """MatMul of transposed operands, times alpha."""
    values: list[Value] = []
    for position, name in enumerate(("transA", "transB")):
        value = call.operand(position)
        if call.attribute(name, 0):
            rank = value.type.rank
            value = call.add(Transpose((*range(rank - 2), rank - 1, rank - 2)), value)
        values.append(value)
    result = call.add(MatMul(), *values)
    alpha = float(call.attribute("alpha", 1.0))
    return result if alpha == 1.0 else call.add(Scale(alpha), result)
