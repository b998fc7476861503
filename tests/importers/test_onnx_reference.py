"""Imported ops compute what `onnx.reference` computes, over drawn shapes and attributes.

The reference computes some ops, and holds all attributes, in single precision.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distir.importers.onnx_call import CONVERTERS
from tests.importers.one_node import imported, reference
from tests.importers.onnx_cases import CASES

SPELLED_ELSEWHERE = {
    "Shape", "Size", "ConstantOfShape", "Range", "NonZero", "EyeLike", "Dropout", "CastLike",
    "Upsample", "Scatter", "SimplifiedLayerNormalization",
    "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "MatMulInteger", "ConvInteger",
    "QLinearMatMul", "QLinearConv", "CumProd",
}  # fmt: skip
"""Constants (tested as shape arithmetic), second names, ops that are simulated as floats, and one
that older packages of ONNX do not have."""


def test_every_converter_has_a_case() -> None:
    names = {name for name in CONVERTERS.names() if ":" not in name}
    assert names - set(CASES) <= SPELLED_ELSEWHERE


@pytest.mark.parametrize("name", CASES)
@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_import_equals_the_reference(name: str, data: Any) -> None:
    node = CASES[name](data.draw, name)
    expected = reference(node, node.constants)
    everything = set(range(len(node.operands)))
    for constants in (node.constants, everything):
        results = imported(node, constants)
        assert len(results) == len(expected)
        for result, other in zip(results, expected, strict=True):
            assert result.shape == other.shape
            np.testing.assert_allclose(result, other, rtol=2e-6, atol=2e-6)
