"""`x[arange(batch), places]` picks one row per sample at any batch and any sequence length."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import onnx
import pytest

from distir import Strategy, Workload, load_model
from distir.axes.rescale import rescale
from distir.execute.sequential import evaluate
from distir.execute.verify import RELATIVE_TOLERANCE, verify
from distir.importers.onnx import read_onnx
from distir.ops.lookup import GatherND
from distir.program import build_program
from tests.importers.models import FLOAT, INT64, integers, model, node, weights

Array = Any


def flattened(batch: Any = "batch", sequence: Any = "sequence") -> Any:
    """As torch's exporter writes it: positions in the flattened tensor."""
    return _model(
        batch,
        sequence,
        [
            node("Shape", "h", "shape"),
            node("Gather", "shape zero", "samples"),
            node("Gather", "shape one", "rows"),
            node("Range", "zero samples one", "numbers"),
            node("Mul", "numbers rows", "starts"),
            node("Add", "starts places", "where"),
            node("Reshape", "h flat", "f"),
            node("Gather", "f where", "picked"),
        ],
    )


def tuples(batch: Any = "batch", sequence: Any = "sequence") -> Any:
    """As newer exporters write it: pairs of sample and place."""
    return _model(
        batch,
        sequence,
        [
            node("Shape", "h", "shape"),
            node("Gather", "shape zero", "samples"),
            node("Range", "zero samples one", "numbers"),
            node("Unsqueeze", "numbers last", "n"),
            node("Unsqueeze", "places last", "p"),
            node("Concat", "n p", "where", axis=-1),
            node("GatherND", "h where", "picked"),
        ],
    )


def _model(batch: Any, sequence: Any, nodes: list[Any]) -> Any:
    return model(
        {"x": (FLOAT, [batch, sequence, 6]), "places": (INT64, [batch])},
        [node("MatMul", "x w", "h"), *nodes, node("MatMul", "picked v", "y")],
        "y",
        {
            "w": weights(6, 8),
            "v": weights(8, 5),
            "zero": np.asarray(0, np.int64),
            "one": np.asarray(1, np.int64),
            "last": integers(-1),
            "flat": integers(-1, 8),
        },
    )


@pytest.mark.parametrize("made", [flattened(), tuples(), flattened(1, 9), tuples(1, 9)])
def test_a_place_per_sample_is_found_at_any_size(made: Any) -> None:
    imported = read_onnx(made, load_weights=True)
    assert sum(isinstance(each.op, GatherND) for each in imported.function.nodes) == 1
    program = build_program(imported.function, training=False)
    function = rescale(program.function, program.axes, program.sizes(4))
    length = function.inputs[0].type.shape[1]
    rng = np.random.default_rng(0)
    x, places = rng.normal(size=(4, length, 6)), rng.integers(0, length, 4)
    values = {value.name: array for value, array in imported.weights.items()}
    found = evaluate(function, [x, places], [values[value.name] for value in function.parameters])
    expected = (x @ weights(6, 8))[np.arange(4), places] @ weights(8, 5)
    np.testing.assert_allclose(found[0], expected, atol=1e-6)


@pytest.mark.parametrize("made", [flattened(), tuples(1, 9)])
def test_samples_may_be_split(made: Any, tmp_path: Any) -> None:
    path = tmp_path / "model.onnx"
    cast("Any", onnx).save(made, path)
    workload = Workload(model=load_model(path), batch_size=8)
    assert (
        verify(workload, Strategy(dp=2, tp=2, microbatches=2)).max_relative_error
        < RELATIVE_TOLERANCE
    )


def test_rows_that_are_no_sample_numbers_stay_a_lookup() -> None:
    made = flattened(2, 9)
    starts = integers(9, 0)  # the samples exchanged
    nodes = [each for each in made.graph.node if each.output[0] != "starts"]
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    made.graph.initializer.append(onnx.numpy_helper.from_array(starts, "starts"))
    function = read_onnx(made).function
    assert not any(isinstance(each.op, GatherND) for each in function.nodes)
