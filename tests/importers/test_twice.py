"""A parameter that a file stores once per use is one; what merely looks alike is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from distir import Strategy, Workload, load_model
from distir.execute.sequential import evaluate
from distir.execute.verify import RELATIVE_TOLERANCE, verify
from distir.importers.onnx import import_onnx, read_onnx
from distir.program import parameter_count
from tests.importers.models import FLOAT, INT64, model, node, weights

Array = Any
SIZE, WORDS = 8, 12


def language_model(head: Array, table: Array | None = None) -> Any:
    """An embedding, one layer that is used twice, whose matrix is stored twice, and a head."""
    shared = weights(SIZE, SIZE)
    return model(
        {"ids": (INT64, ["batch", "sequence"])},
        [
            node("Gather", "table ids", "e"),
            node("MatMul", "e first", "a"), node("Add", "a bias", "aa"), node("Tanh", "aa", "b"),
            node("MatMul", "b again", "c"), node("Add", "bias c", "cc"), node("Tanh", "cc", "d"),
            node("MatMul", "d head", "y"),
        ],
        "y",
        {
            "head": head, "first": shared, "again": shared.copy(), "bias": weights(SIZE),
            "table": weights(WORDS, SIZE) if table is None else table,
        },
    )  # fmt: skip


def test_copies_are_one_parameter_and_compute_the_same() -> None:
    table = weights(WORDS, SIZE)
    table[0] = 0  # the row of padding
    made = language_model(table.T.copy(), table)
    imported = read_onnx(made, load_weights=True)
    assert parameter_count(imported.function) == WORDS * SIZE + SIZE * SIZE + SIZE
    (note,) = imported.function.notes
    assert "head has the values of table, transposed" in note
    assert note.endswith("they are treated as one parameter; likewise 1 other")
    (ids,) = imported.function.inputs
    words = np.random.default_rng(0).integers(0, WORDS, ids.type.shape)
    (found,) = evaluate(imported.function, [words], imported.weights)
    (expected,) = cast("Any", ReferenceEvaluator(made)).run(None, {"ids": words})
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_what_is_trained_once_is_distributed_as_one() -> None:
    table = weights(WORDS, SIZE)
    loaded = load_model(language_model(table.T.copy(), table))
    workload = Workload(model=loaded, batch_size=8, sequence_length=6)
    for strategy in (Strategy(dp=2, tp=2, zero=3), Strategy(dp=2, pp=2, microbatches=2)):
        found = verify(workload, strategy)
        assert found.max_relative_error < RELATIVE_TOLERANCE, found.first_difference


@pytest.mark.parametrize("code", ["FLOAT", "FLOAT16"])
def test_values_in_an_external_file_are_compared(tmp_path: Path, code: str) -> None:
    table = weights(WORDS, SIZE)
    path = tmp_path / "tied.onnx"
    made = language_model(table.T.copy(), table)
    for stored in made.graph.initializer:
        array = onnx.numpy_helper.to_array(stored)
        kind = getattr(onnx.TensorProto, code)
        typed = array.astype(onnx.helper.tensor_dtype_to_np_dtype(kind))
        raw = onnx.helper.make_tensor(stored.name, kind, array.shape, typed.tobytes(), raw=True)
        stored.CopyFrom(raw)
    cast("Any", onnx).save(
        made, path, save_as_external_data=True, location="data", size_threshold=0
    )
    assert parameter_count(import_onnx(path)) == WORDS * SIZE + SIZE * SIZE + SIZE
    (tmp_path / "data").unlink()  # nothing is known of values, so that nothing is alike
    assert parameter_count(import_onnx(path)) == 2 * (WORDS * SIZE + SIZE * SIZE + SIZE)


@pytest.mark.parametrize(
    "alike",
    [
        np.zeros((SIZE, SIZE), np.float32),
        np.eye(SIZE, dtype=np.float32),
        np.tile(np.log(np.arange(1, SIZE + 1, dtype=np.float32)), (SIZE, 1)),
    ],
    ids=["zeros", "ones on the diagonal", "equal rows"],
)
def test_matrices_that_may_be_as_they_were_initialised_stay_apart(alike: Array) -> None:
    made = model(
        {"x": (FLOAT, ["batch", SIZE])},
        [node("MatMul", "x a", "h"), node("Tanh", "h", "t"), node("MatMul", "t b", "y")],
        "y",
        {"a": alike, "b": alike.copy()},
    )
    assert parameter_count(import_onnx(made)) == 2 * SIZE * SIZE


def two_layers(second_bias: str, **stored: Array) -> Any:
    """Two layers with equal matrices, and the biases that each of them adds."""
    return model(
        {"x": (FLOAT, ["batch", SIZE])},
        [
            node("Gemm", "x first bias", "h"), node("Tanh", "h", "t"),
            node("Gemm", f"t again {second_bias}", "y"),
        ],
        "y",
        {"first": weights(SIZE, SIZE), "again": weights(SIZE, SIZE), **stored},
    )  # fmt: skip


def test_layers_that_were_copied_as_they_were_initialised_stay_apart() -> None:
    """They have equal matrices, as one layer has that is used twice, but each has its own bias."""
    bias = weights(SIZE)
    one = import_onnx(two_layers("bias", bias=bias))
    assert parameter_count(one) == SIZE * SIZE + SIZE
    apart = import_onnx(two_layers("other", bias=bias, other=bias.copy()))
    assert parameter_count(apart) == 2 * SIZE * SIZE + 2 * SIZE


def test_what_the_exporter_calls_parameters_stays_apart() -> None:
    made = two_layers("bias", bias=weights(SIZE))
    for name in ("first", "again"):
        value = made.graph.value_info.add(name=name)
        key = "pkg.torch.export.graph_signature.InputSpec.kind"
        value.metadata_props.add(key=key, value="PARAMETER")
    assert parameter_count(import_onnx(made)) == 2 * SIZE * SIZE + SIZE
