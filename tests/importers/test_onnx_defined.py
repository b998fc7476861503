"""Ops without a converter that ONNX defines by other ops are read as these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.defs import onnx_opset_version

from distir.errors import UnsupportedOpError
from distir.execute.sequential import evaluate
from distir.importers.onnx import read_onnx
from distir.importers.onnx_by_name import find_converter
from tests.importers.models import FLOAT, model, node
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


def test_an_op_with_a_body_is_refused_for_what_it_is() -> None:
    helper = onnx.helper
    element, result = (helper.make_tensor_value_info(name, FLOAT, None) for name in "er")
    body = helper.make_graph([node("Relu", "e", "r")], "body", [element], [result])
    nodes = [node("SequenceConstruct", "x x", "s"), node("SequenceMap", "s", "t", body=body)]
    made = model(
        {"x": (FLOAT, [4, 6])}, [*nodes, node("ConcatFromSequence", "t", "y", axis=0)], "y"
    )
    with pytest.raises(UnsupportedOpError, match=r"SequenceMap is not supported.*unrolled"):
        read_onnx(made)


def _in_function() -> Any:
    """Shrink in a function of the model, whose attribute is the call's."""
    shrink = node("Shrink", "a", "b")
    shrink.attribute.add(name="lambd", type=FLOAT, ref_attr_name="bound")
    opset = onnx.helper.make_opsetid("", 18)
    function = onnx.helper.make_function("own", "F", ["a"], ["b"], [shrink], [opset], ["bound"])
    return [node("F", "x", "y", domain="own", bound=0.75)], [function]


def _in_branch() -> Any:
    """Shrink in the branch that is taken."""
    info = onnx.helper.make_empty_tensor_value_info
    taken, other = (
        onnx.helper.make_graph([node("Shrink", "x", "o", lambd=bound)], "branch", [], [info("o")])
        for bound in (0.75, 0.1)
    )
    return [node("If", "yes", "y", then_branch=taken, else_branch=other)], []


@pytest.mark.parametrize("where", [_in_function, _in_branch])
def test_a_defined_op_may_be_in_a_function_or_a_branch(where: Callable[[], Any]) -> None:
    nodes, functions = where()
    stored = {"yes": np.asarray(True)}
    made = model({"x": (FLOAT, [4, 6])}, nodes, "y", stored, functions=functions)
    x = _floats(4, 6)
    (found,) = evaluate(read_onnx(made).function, [x])
    np.testing.assert_allclose(found, np.where(abs(x) > 0.75, x, 0))
