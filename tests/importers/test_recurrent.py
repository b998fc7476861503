"""Recurrent layers as exporters write them: what they cost, and what splits them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from distir import Simulator, Strategy, Workload, load_cluster, load_model
from distir.errors import UnsupportedOpError
from distir.execute.verify import RELATIVE_TOLERANCE, verify
from distir.importers.onnx import import_onnx
from distir.program import build_program, parameter_count
from tests.importers.models import FLOAT, GATES, integers, model, node, recurrent, weights

Array = Any
WORDS, SIZE, LAYERS = 40, 8, 4


def encoder(lengths: Array | None = None) -> Any:
    """One layer in both directions, of which the last states are classified."""
    width = GATES["GRU"] * SIZE
    stored = {
        "w": weights(2, width, 6), "r": weights(2, width, SIZE), "b": weights(2, 2 * width),
        "head": weights(2 * SIZE, 10), "flat": integers(0, 2 * SIZE),
    }  # fmt: skip
    if lengths is not None:
        stored["lengths"] = lengths
    operands = "t w r b" + (" lengths" if lengths is not None else "")
    nodes = [
        node("Transpose", "x", "t", perm=[1, 0, 2]),
        node("GRU", operands, "every last", direction="bidirectional", linear_before_reset=1),
        node("Transpose", "last", "both", perm=[1, 0, 2]),
        node("Reshape", "both flat", "h"),
        node("MatMul", "h head", "out"),
    ]
    return model({"x": (FLOAT, ["batch", "sequence", 6])}, nodes, "out", stored)


@pytest.mark.parametrize("kind", GATES)
def test_steps_cost_two_flops_per_weight_and_token(kind: str) -> None:
    loaded = load_model(recurrent(kind, WORDS, SIZE, LAYERS))
    workload = Workload(model=loaded, batch_size=8, sequence_length=24)
    matrices = 2 * GATES[kind] * SIZE * SIZE * LAYERS + SIZE * WORDS
    biases = 2 * GATES[kind] * SIZE * LAYERS
    assert parameter_count(loaded.function) == matrices + biases + WORDS * SIZE
    metrics = Simulator(workload, load_cluster("dgx-a100", 1)).simulate(Strategy()).metrics
    flops = metrics["model_tflops_per_device"] * metrics["iteration_seconds"] * 1e12
    assert flops == pytest.approx(3 * 2 * matrices * 8 * 24)


@pytest.mark.parametrize("kind", GATES)
def test_samples_stages_and_what_is_beside_the_steps_are_split(kind: str) -> None:
    workload = Workload(
        model=load_model(recurrent(kind, WORDS, SIZE, LAYERS)), batch_size=8, sequence_length=24
    )
    assert workload.program.num_layers == LAYERS
    for strategy in (
        Strategy(dp=2, tp=2, pp=2, microbatches=2, zero=1),
        Strategy(dp=2, cp=2, pp=4, microbatches=4, recompute="full"),
    ):
        found = verify(workload, strategy)
        assert found.max_relative_error < RELATIVE_TOLERANCE, found.first_difference
        assert found.simulated_peak_bytes == found.executed_peak_bytes


def test_steps_are_the_sequence() -> None:
    for made in (recurrent("LSTM", WORDS, SIZE, 1), encoder()):
        program = build_program(import_onnx(made), training=True)
        assert program.sequence in program.axes.of(program.function.inputs[0])
        assert program.batch is not program.sequence


def test_both_directions_are_split_by_samples() -> None:
    workload = Workload(model=load_model(encoder()), batch_size=8, sequence_length=6)
    found = verify(workload, Strategy(dp=4, microbatches=2))
    assert found.max_relative_error < RELATIVE_TOLERANCE, found.first_difference


def test_lengths_of_samples_are_told_unless_all_are_the_longest() -> None:
    (note,) = import_onnx(encoder(lengths=np.array([4, 3], np.int32)), sequence_length=4).notes
    assert "all 4 steps of every sample; lengths of samples are not applied" in note
    assert not import_onnx(encoder(lengths=np.full(2, 4, np.int32)), sequence_length=4).notes


@pytest.mark.parametrize(
    ("kind", "attributes", "told"),
    [
        ("LSTM", {"input_forget": 1}, "one gate for input and forgetting"),
        ("LSTM", {"activations": ["Relu", "Tanh", "Tanh"]}, "Relu, Tanh, Tanh are not supported"),
        ("RNN", {"activations": ["Affine"]}, "Affine are not supported; expected Tanh or Relu"),
        ("GRU", {}, "expected linear_before_reset = 1"),
        ("LSTM", {"clip": 1.0}, "clipped gates"),
    ],
)
def test_other_forms_are_refused(kind: str, attributes: dict[str, Any], told: str) -> None:
    width = GATES[kind] * SIZE
    stored = {"w": weights(1, width, 6), "r": weights(1, width, SIZE)}
    made = model(
        {"x": (FLOAT, [5, "batch", 6])}, [node(kind, "x w r", "y", **attributes)], "y", stored
    )
    with pytest.raises(UnsupportedOpError, match=told):
        import_onnx(made)
