"""Rows that begin anywhere slow down products of activations alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from distir.cost.amounts import Divergence, many
from distir.ir import DType, TensorType
from distir.ops.linalg import MatMul

BOTH: Any = many([8, 7])
"""Lengths of rows in bf16: those of the first sizes are aligned, those of the second are not."""


def real(*shape: Any) -> TensorType:
    return TensorType(shape, DType.BFLOAT16)


def test_sizes_whose_products_with_weights_differ_in_alignment_have_one_program() -> None:
    work = MatMul().work([real(2, 4, BOTH), real(BOTH, 16)], [real(2, 4, 16)])
    assert work.dtype == DType.BFLOAT16.short_name
    assert np.array_equal(work.flops, 2.0 * 2 * 4 * 16 * np.array([8, 7]))


def test_sizes_whose_products_of_activations_differ_in_alignment_have_several() -> None:
    with pytest.raises(Divergence) as found:
        MatMul().work([real(2, 4, BOTH), real(2, BOTH, 16)], [real(2, 4, 16)])
    assert found.value.where.tolist() == [True, False]
