"""A bias belongs to its product: whether it is there does not decide which blocks are equal."""

from __future__ import annotations

from typing import Any

import pytest

from distir.importers.onnx import read_onnx
from distir.program import Program, build_program
from tests.importers.models import FLOAT, model, node, weights

STAGES = ((3, 4), (4, 4), (4, 4), (4, 6), (6, 6), (6, 6), (6, 6))
"""Channels in and out of blocks; where they are equal, the block is residual."""


def inverted_residuals(bias: bool) -> Any:
    """Pointwise, depthwise and pointwise convolutions in turn, with biases or without."""
    nodes: list[Any] = []
    tensors: dict[str, Any] = {}

    def conv(x: str, name: str, shape: tuple[int, ...], **attributes: Any) -> str:
        tensors[f"{name}_w"] = weights(*shape)
        operands = f"{x} {name}_w"
        if bias:
            tensors[f"{name}_b"] = weights(shape[0])
            operands += f" {name}_b"
        nodes.append(node("Conv", operands, name, **attributes))
        return name

    x = "image"
    for i, (old, new) in enumerate(STAGES):
        wide = 5 * old
        y = conv(x, f"expand{i}", (wide, old, 1, 1))
        nodes.append(node("Relu", y, f"a{i}"))
        y = conv(f"a{i}", f"deep{i}", (wide, 1, 3, 3), group=wide, pads=(1, 1, 1, 1))
        nodes.append(node("Relu", y, f"b{i}"))
        y = conv(f"b{i}", f"project{i}", (new, wide, 1, 1))
        if old == new:
            nodes.append(node("Add", f"{x} {y}", f"sum{i}"))
            y = f"sum{i}"
        x = y
    nodes += [
        node("GlobalAveragePool", x, "pooled"),
        node("Flatten", "pooled", "flat"),
        node("MatMul", "flat head", "logits"),
    ]
    tensors["head"] = weights(STAGES[-1][1], 10)
    return model({"image": (FLOAT, ["batch", 3, 8, 8])}, nodes, "logits", tensors)


@pytest.mark.parametrize("training", [True, False])
def test_the_same_blocks_are_equal_with_and_without_biases(training: bool) -> None:
    def program(bias: bool) -> Program:
        return build_program(read_onnx(inverted_residuals(bias)).function, training=training)

    with_biases, without = program(True).blocks, program(False).blocks
    assert with_biases.representative == without.representative
    assert len(set(without.representative)) < len(without.blocks)
    sizes = [[a.size for a in blocks.internal_axes] for blocks in (with_biases, without)]
    assert sizes[0] == sizes[1]
