"""A sequence is an axis whose positions a product treats alike, not any axis that meets itself."""

from __future__ import annotations

from typing import Any

import pytest

from distir.importers.onnx import read_onnx
from distir.program import build_program
from tests.importers.models import FLOAT, INT64, integers, model, node, weights

WIDTH = 6
TABLES = ("a", "b", "c", "d")


def recommender(projected: bool) -> Any:
    """Embeddings of features, side by side, are multiplied with each other, as in a DLRM; first,
    if asked for, they are projected by the same weights."""
    rows = [f"row_{name}" for name in TABLES]
    features = "projected" if projected else "stacked"
    return model(
        {"dense": (FLOAT, ["batch", 5])} | {name: (INT64, ["batch"]) for name in TABLES},
        [
            *(node("Gather", f"table_{name} {name}", f"row_{name}") for name in TABLES),
            *(node("Unsqueeze", f"{row} one", f"{row}_1") for row in rows),
            node("Concat", " ".join(f"{row}_1" for row in rows), "stacked", axis=1),
            node("MatMul", "stacked shared", "projected"),
            node("Transpose", features, "turned", perm=[0, 2, 1]),
            node("MatMul", f"{features} turned", "products"),
            node("Flatten", "products", "flat"),
            node("MatMul", "dense bottom", "x"),
            node("Relu", "x", "r"),
            node("Concat", "r flat", "joined", axis=1),
            node("MatMul", "joined top", "h"),
            node("Relu", "h", "hr"),
            node("MatMul", "hr last", "y"),
        ],
        "y",
        {f"table_{name}": weights(30 + i, WIDTH) for i, name in enumerate(TABLES)}
        | {
            "one": integers(1),
            "shared": weights(WIDTH, WIDTH),
            "bottom": weights(5, WIDTH),
            "top": weights(WIDTH + len(TABLES) ** 2, 24),
            "last": weights(24, 1),
        },
    )


@pytest.mark.parametrize("training", [True, False])
def test_features_that_are_only_multiplied_with_each_other_are_no_sequence(training: bool) -> None:
    program = build_program(read_onnx(recommender(False)).function, training=training)
    assert program.sequence is None


def test_features_that_the_same_weights_project_are_a_sequence() -> None:
    program = build_program(read_onnx(recommender(True)).function, training=True)
    assert program.sequence is not None
    assert program.sequence.size == len(TABLES)
