"""Operands for ops that nobody listed: what ONNX says of the operator of that name, else tried out.

An op whose attributes all have defaults is tried with them. The operands are of the first kinds and
shapes that it takes, from the widest range over which its results are finite.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import onnx.defs

from distir.ir import Op
from distir.ops.elementwise import Elementwise
from tests.ops.makers import Case, Maker, booleans, integers, real

S = (4, 6)
BROADCAST = ((S, S), (S, (6,)), ((4, 1), S), ((2, 1, 6), S), (S, ()))
"""Shapes of the first operand and of all others."""
SHAPES = (S, (4, 4), (2, 4, 6))
"""Shapes of all operands of ops that are not elementwise."""
RANGES = ((-2.0, 2.0), (0.3, 2.0), (1.1, 3.0), (-0.9, 0.9))
"""Where functions are defined: everywhere, above zero, above one, between minus one and one."""
MOST_OPERANDS = 3


def derived_cases(cls: type[Op]) -> list[Case]:
    """Cases for an op class; none if it cannot be made without attributes or takes no operands
    that are known here."""
    try:
        op = cls()
    except TypeError:
        return []
    for kinds in _kinds(cls.name):
        for ranges in itertools.product(RANGES, repeat=len(kinds)):
            cases = [
                Case(op, tuple(map(_maker, kinds, shapes, ranges, itertools.count())))
                for shapes in _shapes(op, len(kinds))
            ]
            taken = [case for case in cases if _is_taken(case)]
            if taken:
                return taken if isinstance(op, Elementwise) else taken[:1]
    return []


def _kinds(name: str) -> Iterator[Sequence[str]]:
    """Kinds of the operands: real, integer or boolean."""
    if not onnx.defs.has(name):
        yield from (("real",) * count for count in range(1, MOST_OPERANDS + 1))
        return
    schema = onnx.defs.get_schema(name)
    kinds = [_kind(formal.types) for formal in schema.inputs]
    while len(kinds) < min(schema.max_input, MOST_OPERANDS):
        kinds.append(kinds[-1])  # any number of operands of one kind
    for count in range(schema.min_input, len(kinds) + 1):
        yield kinds[:count]


def _kind(types: set[str]) -> str:
    if "tensor(double)" in types:
        return "real"
    return "integer" if "tensor(int64)" in types else "boolean"


def _shapes(op: Op, count: int) -> Iterator[Sequence[tuple[int, ...]]]:
    if isinstance(op, Elementwise):
        shapes = BROADCAST if count > 1 else BROADCAST[:1]
        yield from ((first, *(other,) * (count - 1)) for first, other in shapes)
    else:
        yield from ((shape,) * count for shape in SHAPES)


def _maker(kind: str, shape: tuple[int, ...], bounds: tuple[float, float], position: int) -> Maker:
    if kind == "real":
        apart = 0.031 * position  # no number is an operand twice, for a maximum has a kink there
        return real(*shape, low=bounds[0] + apart, high=bounds[1] + apart)
    return integers(3, *shape) if kind == "integer" else booleans(*shape)


def _is_taken(case: Case) -> bool:
    """Whether the op takes the operands and has finite results there."""
    try:
        case.op.infer(*case.types())
        with np.errstate(all="ignore"):
            results = case.op.evaluate(*case.arrays())
    except (ArithmeticError, LookupError, TypeError, ValueError):
        return False
    return all(np.isfinite(result).all() for result in results)
