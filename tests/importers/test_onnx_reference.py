"""Imported ops compute what `onnx.reference` computes, over drawn shapes and attributes.

The reference computes some ops, and holds all attributes, in single precision.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distir.execute.sequential import evaluate
from distir.importers.onnx import read_onnx
from distir.importers.onnx_call import CONVERTERS
from tests.importers.onnx_cases import CASES, OneNode

onnx = pytest.importorskip("onnx")
Array = Any

SPELLED_ELSEWHERE = {
    "Shape", "Size", "ConstantOfShape", "Range", "NonZero", "EyeLike", "Dropout", "CastLike",
    "Upsample", "Scatter", "SimplifiedLayerNormalization",
}  # fmt: skip
"""Constants (tested as shape arithmetic) and second names."""


def test_every_converter_has_a_case() -> None:
    names = {name for name in CONVERTERS.names() if ":" not in name}
    assert names - set(CASES) <= SPELLED_ELSEWHERE


def _model(node: OneNode, constants: set[int]) -> Any:
    helper, numpy_helper = onnx.helper, onnx.numpy_helper
    names = ["" if operand is None else f"x{i}" for i, operand in enumerate(node.operands)]
    outputs = [f"y{i}" for i in range(node.results)]
    inputs = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
        )
        for i, (name, array) in enumerate(zip(names, node.operands, strict=True))
        if array is not None and i not in constants
    ]
    graph = helper.make_graph(
        [helper.make_node(node.op_type, names, outputs, **node.attributes)],
        "one node",
        inputs,
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [
            numpy_helper.from_array(np.asarray(array), name)
            for i, (name, array) in enumerate(zip(names, node.operands, strict=True))
            if array is not None and i in constants
        ],
    )
    opset = helper.make_opsetid("", node.opset)
    return helper.make_model(graph, opset_imports=[opset])


def _reference(node: OneNode, constants: set[int]) -> list[Array]:
    from onnx.reference import ReferenceEvaluator

    feeds = {
        f"x{i}": array
        for i, array in enumerate(node.operands)
        if array is not None and i not in constants
    }
    with np.errstate(all="ignore"):
        return ReferenceEvaluator(_model(node, constants)).run(None, feeds)


def _imported(node: OneNode, constants: set[int]) -> list[Array]:
    model = read_onnx(_model(node, constants), load_weights=True, widen=False)
    inputs = [
        array for i, array in enumerate(node.operands) if array is not None and i not in constants
    ]
    return evaluate(model.function, inputs, model.weights)


@pytest.mark.parametrize("name", CASES)
@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_import_equals_the_reference(name: str, data: Any) -> None:
    node = CASES[name](data.draw, name)
    expected = _reference(node, node.constants)
    everything = set(range(len(node.operands)))
    for constants in (node.constants, everything):
        results = _imported(node, constants)
        assert len(results) == len(expected)
        for result, reference in zip(results, expected, strict=True):
            assert result.shape == reference.shape
            np.testing.assert_allclose(result, reference, rtol=2e-6, atol=2e-6)
