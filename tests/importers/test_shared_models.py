"""The real exports, at their own size, compute what `onnx.reference` computes.

Their weights were stripped; random ones take their place.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from distir.execute.sequential import evaluate
from distir.importers.onnx import read_onnx
from tests.conftest import shared_path
from tests.importers.models import feeds


def with_random_weights(path: Any) -> Any:
    """The model with values in place of the external data that is absent."""
    import onnx

    made = cast("Any", onnx).load(path, load_external_data=False)
    rng = np.random.default_rng(0)
    for tensor in made.graph.initializer:
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        shape = tuple(tensor.dims)
        if tensor.data_type == onnx.TensorProto.FLOAT:
            array = (0.05 * rng.standard_normal(shape)).astype(np.float32)
        elif tensor.data_type == onnx.TensorProto.BOOL:
            array = rng.random(shape) < 0.5
        else:
            array = rng.integers(0, shape[-1], shape)
        del tensor.external_data[:]
        tensor.data_location = onnx.TensorProto.DEFAULT
        tensor.raw_data = array.tobytes()
    return made


@pytest.mark.not_quick
@pytest.mark.parametrize(
    "name",
    [
        "mlp16",
        pytest.param("gpt2", marks=pytest.mark.slow(seconds=7)),
        pytest.param("llama-8layer", marks=pytest.mark.slow(seconds=15)),
    ],
)
def test_a_real_export_computes_what_the_reference_computes(name: str) -> None:
    from onnx.reference import ReferenceEvaluator

    made = with_random_weights(shared_path(f"models/{name}.onnx"))
    imported = read_onnx(made, load_weights=True)
    fed = feeds(imported.function, seed=1, most=1000)
    expected = cast("Any", ReferenceEvaluator(made)).run(None, fed)
    found = evaluate(imported.function, list(fed.values()), imported.weights, dtype="float32")
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 * np.abs(theirs).max())
