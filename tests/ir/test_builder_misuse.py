"""What a builder is given that makes no function is told in one line, where it is given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from distir.errors import ArgumentError, ShapeError
from distir.ir import Builder, DType
from distir.ops.activations import Relu
from distir.ops.arithmetic import Add
from distir.ops.linalg import MatMul

Make = Callable[[Any, Any], object]

CASES: list[tuple[Make, type[Exception], str]] = [
    (lambda b, x: b.parameter("w", (64, -8)), ArgumentError, r"w has the shape \(64, -8\)"),
    (lambda b, x: b.parameter("w", (64, 8.0)), ArgumentError, r"whole numbers, none below 0"),
    (lambda b, x: b.input("w", (64, "8")), ArgumentError, r"shape \(64, '8'\); expected a list"),
    (lambda b, x: b.parameter("w", 64), ArgumentError, "w has the shape 64; expected a list"),
    (lambda b, x: b.input("w", (4, 8), "fp32"), ArgumentError, "type 'fp32'.*DType.FLOAT32"),
    (lambda b, x: b.input("w", (4, 8), np.float32), ArgumentError, "DType.FLOAT32"),
    (lambda b, x: b.parameter(None, (4, 8)), ArgumentError, "name of a value is None"),
    (
        lambda b, x: b.parameter("w", (64, 0)),
        ArgumentError,
        r"w has the shape \(64, 0\).*at least 1",
    ),
    (
        lambda b, x: b.parameter("w", (4, 8), DType.INT64),
        ArgumentError,
        "w is of the type i64; expected a parameter of real numbers.*builder.constant",
    ),
    (lambda b, x: b.add(MatMul, x, x), ArgumentError, r"expected an object .* as MatMul\(\)"),
    (
        lambda b, x: b.add(MatMul(), x, np.ones(8)),
        ArgumentError,
        "operand 2 of MatMul is of .*ndarray",
    ),
    (lambda b, x: b.add(MatMul(), x), ArgumentError, r"MatMul was given 1 operand \(fp32"),
    (lambda b, x: b.add(Relu(), x, x), ShapeError, r"Relu: 2 operands .*; expected 1"),
    (lambda b, x: b.add(Add(), x), ShapeError, r"Add: 1 operand .*; expected 2"),
]


@pytest.mark.parametrize(
    ("make", "error", "message"),
    CASES,
)
def test_what_makes_no_function_is_told_at_once(
    make: Make, error: type[Exception], message: str
) -> None:
    builder = Builder()
    x = builder.input("x", (4, 8))
    with pytest.raises(error, match=message):
        make(builder, x)


def test_inputs_may_be_empty_or_whole_numbers() -> None:
    """As caches of no earlier tokens are, and tokens."""
    builder = Builder()
    assert builder.input("past", (4, 0, 8)).type.num_elements == 0
    assert builder.input("tokens", (4, 8), DType.INT64).type.dtype is DType.INT64


def test_sizes_may_be_those_of_numpy() -> None:
    shape = Builder().parameter("w", np.array([3, 5]).tolist()).type.shape
    assert Builder().parameter("w", tuple(np.array([3, 5]))).type.shape == shape == (3, 5)


def test_an_error_of_an_op_of_ones_own_stays_what_it_is() -> None:
    class Strict(Relu):
        def infer(self, *operands: Any) -> Any:
            raise ValueError("only on Mondays")

    builder = Builder()
    with pytest.raises(ValueError, match="only on Mondays"):
        builder.add(Strict(), builder.input("x", (4, 8)))
