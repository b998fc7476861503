"""ONNX models of one node: what onnx.reference computes, and what they compute once imported."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from distir.execute.sequential import evaluate
from distir.importers.onnx import read_onnx

Array = Any


@dataclass
class OneNode:
    """A model of one node."""

    op_type: str
    operands: list[Array | None]
    attributes: dict[str, Any] = field(default_factory=dict[str, Any])
    constants: set[int] = field(default_factory=set[int])
    """Positions of operands that the op must know beforehand."""
    results: int = 1
    opset: int = 21


def reference(node: OneNode, constants: Collection[int]) -> list[Array]:
    """What onnx.reference computes, where these operands are stored in the model."""
    feeds = {
        f"x{i}": array
        for i, array in enumerate(node.operands)
        if array is not None and i not in constants
    }
    with np.errstate(all="ignore"):
        return cast("Any", ReferenceEvaluator(_model(node, constants))).run(None, feeds)


def imported(node: OneNode, constants: Collection[int]) -> list[Array]:
    """What the imported function computes, where these operands are stored in the model."""
    model = read_onnx(_model(node, constants), load_weights=True, widen=False)
    inputs = [
        array for i, array in enumerate(node.operands) if array is not None and i not in constants
    ]
    return evaluate(model.function, inputs, model.weights)


def _model(node: OneNode, constants: Collection[int]) -> Any:
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
