"""A batch of 1 is followed through Reshapes that do not say where it goes; every sample of a wider
batch comes out as it does alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from distir.execute.sequential import evaluate
from distir.importers.onnx import import_onnx, read_onnx
from tests.importers.models import FLOAT, integers, model, node, weights

Array = Any


def check_samples(made: Any) -> None:
    """Widens the model and compares a batch with its samples, one by one."""
    one, wide = (read_onnx(made, widen=widen, load_weights=True) for widen in (False, True))
    x = np.random.default_rng(0).normal(size=wide.function.inputs[0].type.shape)
    assert len(x) > 1, wide.function.notes
    (together,) = evaluate(wide.function, [x], wide.weights)
    for sample, result in zip(x, together, strict=True):
        (alone,) = evaluate(one.function, [sample[None]], one.weights)
        np.testing.assert_allclose(result, alone[0], atol=1e-12)


def rows_first() -> Any:
    """Positions before samples, as torch's attention has them: `(rows, 1, width)`. Heads are cut
    out of the width, `(rows, batch · heads, depth)`, but the product before the end has
    `(rows · batch, width)`: both are `(rows, …)` without the batch."""
    return model(
        {"x": (FLOAT, [1, 5, 8])},
        [
            node("Transpose", "x", "t", perm=[1, 0, 2]),
            node("MatMul", "t w", "h"),
            node("Reshape", "h by_heads", "heads"),
            node("Transpose", "heads", "moved", perm=[1, 0, 2]),
            node("Transpose", "moved", "turned", perm=[0, 2, 1]),
            node("MatMul", "moved turned", "scores"),
            node("Softmax", "scores", "weights", axis=-1),
            node("MatMul", "weights moved", "mixed"),
            node("Transpose", "mixed", "back", perm=[1, 0, 2]),
            node("Reshape", "back merged", "m"),
            node("Gemm", "m v bias", "g"),
            node("Reshape", "g apart", "r"),
            node("Transpose", "r", "y", perm=[1, 0, 2]),
        ],
        "y",
        {
            "w": weights(8, 8),
            "v": weights(8, 6),
            "bias": weights(6),
            "by_heads": integers(5, 4, 2),
            "merged": integers(5, 8),
            "apart": integers(5, 1, 6),
        },
    )


def test_a_reshape_is_read_the_way_that_later_ops_can_take() -> None:
    check_samples(rows_first())


def test_a_softmax_is_never_over_samples() -> None:
    """`(rows, width)` with the batch at the start of the width would pass a Softmax over it."""
    check_samples(
        model(
            {"x": (FLOAT, [1, 5, 8])},
            [
                node("Transpose", "x", "t", perm=[1, 0, 2]),
                node("Reshape", "t flat", "f"),
                node("Softmax", "f", "s", axis=-1),
                node("Reshape", "s apart", "r"),
                node("Transpose", "r", "y", perm=[1, 0, 2]),
            ],
            "y",
            {"flat": integers(5, 8), "apart": integers(5, 1, 8)},
        )
    )


def test_a_table_beside_the_heads_of_all_samples_is_repeated() -> None:
    """`(batch · heads, …)` times a table per head, as relative positions are."""
    check_samples(
        model(
            {"x": (FLOAT, [1, 4, 5, 3])},
            [
                node("Reshape", "x stacked", "s"),
                node("MatMul", "s table", "p"),
                node("MatMul", "turned p", "q"),
                node("Reshape", "q apart", "y"),
            ],
            "y",
            {
                "stacked": integers(4, 5, 3),
                "table": weights(4, 3, 6),
                "turned": weights(4, 2, 5),
                "apart": integers(1, 4, 2, 6),
            },
        )
    )


def test_zeros_that_are_filled_with_what_a_sample_chose_are_repeated() -> None:
    """As gates of experts are made: zeros, with the largest scores put down."""
    check_samples(
        model(
            {"x": (FLOAT, [1, 5, 8])},
            [
                node("TopK", "x two", "best which", axis=-1),
                node("ScatterElements", "zeros which ones", "mask", axis=-1),
                node("ScatterElements", "zeros which best", "gate", axis=-1),
                node("Add", "mask gate", "y"),
            ],
            "y",
            {
                "two": integers(2),
                "zeros": np.zeros((1, 5, 8), np.float32),
                "ones": np.ones((1, 5, 2), np.float32),
            },
        )
    )


def test_of_two_unit_dims_the_one_that_later_ops_can_take_is_the_batch() -> None:
    """Attention with one query of its own, as it pools an image: `(1 query · batch, width)` becomes
    `(1 query, batch, width)`, and the query is picked."""
    check_samples(
        model(
            {"x": (FLOAT, [1, 5, 8])},
            [
                node("ReduceMean", "x", "mean", axes=[1], keepdims=0),
                node("MatMul", "mean w", "h"),
                node("Reshape", "h apart", "r"),
                node("Transpose", "r", "t", perm=[1, 0, 2]),
                node("Gather", "t first", "y", axis=1),
            ],
            "y",
            {
                "w": weights(8, 6),
                "apart": integers(1, 1, 6),
                "first": np.asarray(0, np.int64),
            },
        )
    )


def test_a_batch_that_was_left_to_broadcasting_is_found() -> None:
    """With one sample, `(1, heads, …)` times `(heads, …)` needs no Reshape, and exporters drop it;
    with more, the second is `(batch · heads, …)`."""
    check_samples(
        model(
            {"x": (FLOAT, [1, 3, 5, 4])},
            [
                node("Reshape", "x stacked", "s"),
                node("Transpose", "s", "t", perm=[0, 2, 1]),
                node("MatMul", "x t", "scores"),
                node("Reshape", "scores squares", "flat"),
                node("Softmax", "flat", "weights", axis=-1),
                node("Add", "weights scores", "sum"),
                node("MatMul", "sum x", "y"),
            ],
            "y",
            {"stacked": integers(3, 5, 4), "squares": integers(3, 5, 5)},
        )
    )


def test_samples_of_two_inputs_that_meet_are_two_batches() -> None:
    """One text and one image: neither has the other's batch, and every text meets every image."""
    made = model(
        {"text": (FLOAT, [1, 4]), "mask": (FLOAT, [1, 4]), "image": (FLOAT, [1, 6])},
        [
            node("Mul", "text mask", "m"),
            node("MatMul", "m w", "a"),
            node("MatMul", "image v", "b"),
            node("Transpose", "b", "bt", perm=[1, 0]),
            node("MatMul", "a bt", "scores"),
            node("Transpose", "scores", "y", perm=[1, 0]),
        ],
        "y",
        {"w": weights(4, 8), "v": weights(6, 8)},
    )
    one, wide = (read_onnx(made, widen=widen, load_weights=True) for widen in (False, True))
    rng = np.random.default_rng(0)
    text, mask, image = (rng.normal(size=v.type.shape) for v in wide.function.inputs)
    assert len(text) == len(mask) > 1
    assert len(image) not in (1, len(text))
    (together,) = evaluate(wide.function, [text, mask, image], wide.weights)
    for i, picture in enumerate(image):
        for j, (words, hidden) in enumerate(zip(text, mask, strict=True)):
            given = [words[None], hidden[None], picture[None]]
            (alone,) = evaluate(one.function, given, one.weights)
            np.testing.assert_allclose(together[i, j], alone[0, 0], atol=1e-12)


def traced(length: int = 10) -> Any:
    """An export that leaves the sequence open, whose trace has stated it all the same."""
    return model(
        {"x": (FLOAT, ["batch", "sequence", 6])},
        [
            node("Shape", "x", "shape"),
            node("Gather", "shape zero", "b"),
            node("Unsqueeze", "b first", "b1"),
            node("Concat", "b1 length halves", "target", axis=0),
            node("Reshape", "x target", "r"),
            node("MatMul", "r w", "y"),
        ],
        "y",
        {
            "zero": np.asarray(0, np.int64),
            "first": integers(0),
            "length": integers(length),
            "halves": integers(2, 3),
            "w": weights(3, 4),
        },
    )


@pytest.mark.parametrize("length", [10, 20])
def test_a_size_that_a_trace_has_fixed_is_found(length: int) -> None:
    function = import_onnx(traced(length))
    assert function.inputs[0].type.shape[1] == length
    assert f"works only at sequence = {length}" in function.notes[0]
