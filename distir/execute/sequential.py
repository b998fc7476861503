"""The sequential meaning of a Function: one op after the other, in NumPy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from distir.errors import TransformError
from distir.ir.core import Function, Value

Array = Any


def evaluate(
    function: Function,
    inputs: Sequence[Array] | Mapping[Value, Array],
    parameters: Sequence[Array] | Mapping[Value, Array] = (),
    dtype: str = "float64",
) -> list[Array]:
    """The outputs. Floats are computed in `dtype`; integers keep theirs.

    `inputs` and `parameters` are in the function's order, or mapped from its values.
    """
    known = values(function, inputs, parameters, dtype)
    return [known[output] for output in function.outputs]


def values(
    function: Function,
    inputs: Sequence[Array] | Mapping[Value, Array],
    parameters: Sequence[Array] | Mapping[Value, Array] = (),
    dtype: str = "float64",
) -> dict[Value, Array]:
    """Every value of the function, as `evaluate` computes them."""
    import numpy as np

    known: dict[Value, Array] = {}
    known |= _given(function.inputs, inputs, "input", dtype)
    known |= _given(function.parameters, parameters, "parameter", dtype)
    for value, array in function.constants.items():
        if array is not None:
            known[value] = _as_computed(array, value, dtype)
    with np.errstate(all="ignore"):
        for node in function.nodes:
            operands = [_look_up(function, known, operand) for operand in node.operands]
            for value, array in zip(node.results, node.op.evaluate(*operands), strict=True):
                known[value] = array
    return known


def _given(
    declared: Sequence[Value],
    given: Sequence[Array] | Mapping[Value, Array],
    what: str,
    dtype: str,
) -> dict[Value, Array]:
    if not isinstance(given, Mapping):
        if len(given) != len(declared):
            raise TransformError(f"{len(given)} {what}s are given; expected {len(declared)}")
        given = dict(zip(declared, given, strict=True))
    arrays: dict[Value, Array] = {}
    for value in declared:
        if value not in given:
            raise TransformError(f"{what} {value} is not given")
        arrays[value] = _as_computed(given[value], value, dtype)
    return arrays


def _as_computed(array: Array, value: Value, dtype: str) -> Array:
    import numpy as np

    array = np.asarray(array)
    if array.shape != value.type.shape:
        raise TransformError(f"{value} is given an array of shape {list(array.shape)}")
    return array.astype(dtype) if value.type.dtype.is_float else array


def _look_up(function: Function, known: Mapping[Value, Array], value: Value) -> Array:
    if value not in known:
        raise TransformError(
            f"{function.name}: the values of table {value} are not known, so that the function "
            "cannot be executed; import the model from a file that has them"
        )
    return known[value]
