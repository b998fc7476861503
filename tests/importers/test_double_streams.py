"""Files of models with double streams: an image and a text that attend to each other in all layers,
and are scaled by what is made of a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from distir import Workload, load_model
from distir.execute.sequential import evaluate
from distir.importers.onnx import read_onnx
from tests.importers.models import FLOAT, feeds, model, node, weights

WIDTH, FFN, PATCHES, TOKENS = 12, 40, 20, 7


def double_streams(layers: int, reverse: bool = False) -> Any:
    """Layers of attention to all patches and tokens and of a feed-forward per stream."""
    tensors = {"split": np.asarray([PATCHES, TOKENS])}
    nodes = [*_beginning(tensors)]
    for number in range(layers):
        nodes += _layer(number, tensors)
    nodes.append(_product(f"image{layers}", "y", 10, tensors))
    inputs = {
        "image": (FLOAT, ["batch", PATCHES, WIDTH]),
        "text": (FLOAT, ["batch", TOKENS, WIDTH]),
        "time": (FLOAT, ["batch", 1, WIDTH]),
    }
    return model(inputs, nodes[::-1] if reverse else nodes, "y", tensors)


def _product(
    operand: str, result: str, columns: int, tensors: dict[str, Any], rows: int = WIDTH
) -> Any:
    tensors[f"{result}.w"] = weights(rows, columns) / 8
    return node("MatMul", f"{operand} {result}.w", result)


def _beginning(tensors: dict[str, Any]) -> Iterator[Any]:
    yield _product("time", "made", WIDTH, tensors)
    yield node("Relu", "made", "when")
    yield _product("image", "image0", WIDTH, tensors)
    yield _product("text", "text0", WIDTH, tensors)


def _layer(number: int, tensors: dict[str, Any]) -> Iterator[Any]:
    for own in ("image", "text"):
        name = f"{own}{number}"
        tensors[f"{name}.s"], tensors[f"{name}.b"] = weights(WIDTH), weights(WIDTH)
        yield _product("when", f"{name}.time", WIDTH, tensors)
        yield node("LayerNormalization", f"{name} {name}.s {name}.b", f"{name}.norm", axis=-1)
        yield node("Mul", f"{name}.norm {name}.time", f"{name}.scaled")
        for part in "qkv":
            yield _product(f"{name}.scaled", f"{name}.{part}", WIDTH, tensors)
    for part in "qkv":
        parts = f"image{number}.{part} text{number}.{part}"
        yield node("Concat", parts, f"{part}{number}", axis=1)
    yield node("Transpose", f"k{number}", f"t{number}", perm=[0, 2, 1])
    yield node("MatMul", f"q{number} t{number}", f"scores{number}")
    yield node("Softmax", f"scores{number}", f"shares{number}", axis=-1)
    yield node("MatMul", f"shares{number} v{number}", f"mixed{number}")
    yield node("Split", f"mixed{number} split", f"image{number}.m text{number}.m", axis=1)
    for own in ("image", "text"):
        name = f"{own}{number}"
        yield _product(f"{name}.m", f"{name}.o", WIDTH, tensors)
        yield node("Add", f"{name} {name}.o", f"{name}.a")
        yield _product(f"{name}.a", f"{name}.up", FFN, tensors)
        yield node("Relu", f"{name}.up", f"{name}.r")
        yield _product(f"{name}.r", f"{name}.down", WIDTH, tensors, rows=FFN)
        yield node("Add", f"{name}.a {name}.down", f"{own}{number + 1}")


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("layers", [4, 9])
def test_the_layers_of_double_streams_are_found(layers: int, reverse: bool) -> None:
    """In the last one, which makes nothing more of the text, as well."""
    found = Workload(model=load_model(double_streams(layers, reverse)), batch_size=8)
    assert found.num_layers == layers
    sizes = [len(block.nodes) for block in found.program.blocks.blocks]
    assert max(sizes) < sum(sizes) / layers + 20


def test_double_streams_compute_what_the_reference_computes() -> None:
    made = double_streams(2)
    imported = read_onnx(made, load_weights=True)
    fed = feeds(imported.function, 0, 1)
    (result,) = evaluate(imported.function, list(fed.values()), imported.weights)
    (expected,) = cast("Any", ReferenceEvaluator(made)).run(None, fed)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)
