"""A cache of keys and values is empty unless its length is stated, so that the sequence has any
length."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import onnx
import pytest

from distir import Workload, load_model
from distir.importers.load import LoadedModel
from distir.importers.onnx import read_onnx
from tests.importers.models import FLOAT, INT64, model, node, weights

HIDDEN, HEADS = 12, 3
CACHE = ["batch", HEADS, "past", HIDDEN // HEADS]


def decoder(mask: Any = "past + sequence", cache: Any = CACHE) -> Any:
    """Two layers of attention whose keys and values follow earlier ones, with a mask over all."""
    inputs = {
        "ids": (INT64, ["batch", "sequence"]),
        "mask": (FLOAT, ["batch", 1, 1, mask]),
        **{f"past{part}{layer}": (FLOAT, cache) for layer in (0, 1) for part in "kv"},
    }
    stored = {"table": weights(30, HIDDEN), "apart": np.asarray([0, 0, HEADS, -1], np.int64)}
    stored["joined"] = np.asarray([0, 0, HIDDEN], np.int64)
    nodes, outputs, x = [node("Gather", "table ids", "x0")], ["logits"], "x0"
    for layer in (0, 1):
        for part in "qkv":
            stored[f"{part}{layer}"] = weights(HIDDEN, HIDDEN)
            nodes += [
                node("MatMul", f"{x} {part}{layer}", f"{part}m{layer}"),
                node("Reshape", f"{part}m{layer} apart", f"{part}r{layer}"),
                node("Transpose", f"{part}r{layer}", f"{part}h{layer}", perm=[0, 2, 1, 3]),
            ]
        stored[f"o{layer}"] = weights(HIDDEN, HIDDEN)
        nodes += [
            node("Concat", f"pastk{layer} kh{layer}", f"key{layer}", axis=2),
            node("Concat", f"pastv{layer} vh{layer}", f"value{layer}", axis=2),
            node("Transpose", f"key{layer}", f"kt{layer}", perm=[0, 1, 3, 2]),
            node("MatMul", f"qh{layer} kt{layer}", f"s{layer}"),
            node("Add", f"s{layer} mask", f"sm{layer}"),
            node("Softmax", f"sm{layer}", f"p{layer}"),
            node("MatMul", f"p{layer} value{layer}", f"c{layer}"),
            node("Transpose", f"c{layer}", f"ct{layer}", perm=[0, 2, 1, 3]),
            node("Reshape", f"ct{layer} joined", f"cj{layer}"),
            node("MatMul", f"cj{layer} o{layer}", f"y{layer}"),
            node("Add", f"{x} y{layer}", f"x{layer + 1}"),
        ]
        outputs += [f"key{layer}", f"value{layer}"]
        x = f"x{layer + 1}"
    stored["head"] = weights(HIDDEN, 30)
    nodes.append(node("MatMul", f"{x} head", "logits"))
    return model(inputs, nodes, " ".join(outputs), stored)


def loaded(made: Any, folder: Any, **sizes: int) -> LoadedModel:
    cast("Any", onnx).save(made, folder / "decoder.onnx")
    return load_model(folder / "decoder.onnx", onnx_options={"sizes": sizes} if sizes else None)


@pytest.mark.parametrize("mask", ["past + sequence", "total"])
def test_the_sequence_of_a_decoder_with_a_cache_has_any_length(mask: str, tmp_path: Any) -> None:
    found = loaded(decoder(mask), tmp_path)
    assert [value.name for value in found.function.inputs] == ["ids", "mask"]
    assert "caches are assumed to be empty: past = 0" in found.function.notes
    workload = Workload(model=found, batch_size=4, mode="inference", sequence_length=100)
    assert workload.sequence_lengths == (100,)
    per_token = 2 * (8 * HIDDEN**2 + HIDDEN * 30)
    attention = 2 * 2 * 2 * 100 * HIDDEN
    assert workload.forward_flops_per_sample == 100 * (per_token + attention)


def test_a_stated_cache_is_kept(tmp_path: Any) -> None:
    found = loaded(decoder(), tmp_path, past=24)
    inputs = {value.name: value.type.shape for value in found.function.inputs}
    assert {inputs[name][2] for name in inputs if name.startswith("past")} == {24}
    assert inputs["mask"][3] == 24 + inputs["ids"][1]
    assert inputs["ids"][1] != 24  # a size that is tried is none that is stated


def test_a_cache_of_a_fixed_length_is_kept() -> None:
    function = read_onnx(decoder("sequence + 40", ["batch", HEADS, 40, HIDDEN // HEADS])).function
    assert sum(value.name.startswith("past") for value in function.inputs) == 4


def test_images_and_single_inputs_are_no_caches() -> None:
    """A symbol of one input alone, or of inputs with other dims, is a length like any other."""
    nodes = [node("MatMul", "x w", "y")]
    made = model({"x": (FLOAT, ["batch", 3, "rows", 8])}, nodes, "y", {"w": weights(8, 8)})
    assert read_onnx(made).function.inputs[0].type.shape[2] > 1
