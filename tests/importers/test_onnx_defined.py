"""Ops without a converter that ONNX defines by other ops are read as these."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx.defs import onnx_opset_version

from distir.errors import UnsupportedOpError
from distir.importers.onnx_by_name import find_converter
from tests.importers.one_node import OneNode, imported, reference

_DRAW = np.random.default_rng(5)


def _floats(*shape: int) -> Any:
    return _DRAW.normal(size=shape).astype(np.float32)


def _labels(*shape: int) -> Any:
    return _DRAW.integers(0, 7, shape)


_SIZES = np.array([2, 3, 4, 5])

CASES = [
    OneNode("MeanVarianceNormalization", [_floats(2, 3, 4, 5)], opset=13),
    OneNode("MeanVarianceNormalization", [_floats(2, 3, 4, 5)], {"axes": [1, 2]}, opset=20),
    OneNode("Shrink", [_floats(4, 5)], {"lambd": 0.6, "bias": 0.1}, opset=20),
    OneNode("Shrink", [_floats(4, 5)], opset=9),
    OneNode("CenterCropPad", [_floats(4, 9), np.array([6, 5])], {}, {1}, opset=20),
    OneNode("CenterCropPad", [_floats(4, 9), np.array([6])], {"axes": [1]}, {1}, opset=18),
    OneNode("AffineGrid", [_floats(2, 2, 3), _SIZES], {"align_corners": 1}, {1}, opset=20),
    OneNode("HannWindow", [np.array(8)], {}, {0}, opset=17),
    OneNode("CausalConvWithState", [_floats(2, 8, 6), _floats(8, 1, 4)], results=2, opset=27),
    OneNode("SoftmaxCrossEntropyLoss", [_floats(6, 7), _labels(6)], opset=13),
    OneNode(
        "SoftmaxCrossEntropyLoss",
        [_floats(6, 7, 3), _labels(6, 3)],
        {"ignore_index": 2},
        results=2,
        opset=13,
    ),
    OneNode(
        "NegativeLogLikelihoodLoss",
        [_floats(6, 7), _labels(6), abs(_floats(7))],
        {"reduction": "sum"},
        opset=22,
    ),
]


@pytest.mark.parametrize("node", CASES, ids=lambda node: f"{node.op_type}-{node.opset}")
def test_a_defined_op_computes_what_the_reference_computes(node: OneNode) -> None:
    if node.opset > onnx_opset_version():
        pytest.skip(f"the installed onnx does not know opset {node.opset}")
    assert find_converter(node.op_type) is None
    expected = reference(node, node.constants)
    for constants in (node.constants, set(range(len(node.operands)))):
        results = imported(node, constants)
        assert len(results) == len(expected)
        for result, other in zip(results, expected, strict=True):
            assert result.shape == other.shape
            np.testing.assert_allclose(result, other, rtol=1e-5, atol=1e-5)


def test_what_a_body_needs_is_named_where_it_is_not_supported() -> None:
    operands: list[Any] = [_floats(2, 5, 16)] * 3
    attributes = {"q_num_heads": 4, "kv_num_heads": 4, "update_rule": "linear"}
    node = OneNode("LinearAttention", operands, attributes, opset=27)
    if node.opset > onnx_opset_version():
        pytest.skip(f"the installed onnx does not know opset {node.opset}")
    with pytest.raises(UnsupportedOpError, match=r"LinearAttention.*Scan is not supported"):
        imported(node, ())


def test_an_op_that_nothing_defines_is_refused_by_name() -> None:
    node = OneNode("Det", [_floats(3, 3)], opset=22)
    with pytest.raises(UnsupportedOpError, match="Det is not supported"):
        imported(node, ())
