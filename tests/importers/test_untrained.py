"""Tensors that nobody trains: slopes and tables of distances, and what the file says of others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from distir.importers.onnx import read_onnx
from distir.importers.onnx_roles import Role
from tests.importers.models import FLOAT, INT64, model, node, weights

HEADS, LENGTH = 4, 24
SLOPES = np.asarray([0.5**head for head in range(1, HEADS + 1)], np.float32)


def attending(ops: list[Any], tables: Mapping[str, Any], inputs: Mapping[str, Any]) -> Any:
    """Scores of heads, to which `ops` add some `term`, masked or not, before a Softmax."""
    return model(
        {"x": (FLOAT, ["n", HEADS, LENGTH, 8]), **inputs},
        [
            node("MatMul", "x w", "k"),
            node("Transpose", "k", "t", perm=[0, 1, 3, 2]),
            node("MatMul", "x t", "scores"),
            *ops,
            node("MatMul", "probabilities x", "y"),
        ],
        "y",
        {"w": weights(8, 8), **tables},
    )


def added(name: str, masked: bool) -> list[Any]:
    """`name` added to the scores; where they are masked, the mask is a choice behind that."""
    read = "chosen" if masked else "sum"
    choice = [node("Where", "mask least sum", "chosen")] if masked else []
    softmax = node("Softmax", read, "probabilities")
    return [node("Add", f"scores {name}", "sum"), *choice, softmax]


def with_term(term: Any, masked: bool = False) -> Role:
    """The role of a tensor that is added to scores."""
    mask = np.tril(np.ones((LENGTH, LENGTH))) == 0
    tables = {"term": term, "mask": mask, "least": np.asarray(-1e9, np.float32)}
    return read_onnx(attending(added("term", masked), tables, {})).decisions["term"].role


@pytest.mark.parametrize("masked", [False, True])
def test_distances_times_slopes_are_a_table(masked: bool) -> None:
    """As ALiBi has them (Press et al. 2022): one number per head, times how far a key is."""
    distances = np.arange(1 - LENGTH, 1, dtype=np.float32) / np.float32(3)
    assert with_term(SLOPES[:, None, None] * distances, masked) is Role.TABLE


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("shape", [(HEADS, LENGTH, LENGTH), (HEADS, 1, LENGTH), (HEADS, 1, 1)])
def test_other_numbers_added_to_scores_are_trained(shape: tuple[int, ...], masked: bool) -> None:
    assert with_term(weights(*shape), masked) is Role.PARAMETER
    if shape[-1] > 1:
        assert with_term(np.full(shape, 0.5, np.float32), masked) is Role.PARAMETER


def test_slopes_of_positions_that_a_mask_counts_are_a_table() -> None:
    """Positions are counted from integers alone; a factor of what weights made is a scale."""
    counted = [
        node("CumSum", "mask axis", "counts"),
        node("Cast", "counts", "positions", to=FLOAT),
        node("Sub", "positions one", "from_zero"),
        node("Unsqueeze", "from_zero dims", "keys"),
        node("Mul", "slopes keys", "distances"),
        *added("distances", masked=False),
    ]
    tables = {
        "axis": np.asarray(1, np.int64),
        "one": np.asarray(1, np.float32),
        "dims": np.asarray([1, 2], np.int64),
        "slopes": SLOPES.reshape(1, HEADS, 1, 1),
    }
    made = attending(counted, tables, {"mask": (INT64, ["n", LENGTH])})
    assert read_onnx(made).decisions["slopes"].role is Role.TABLE
    scaled = [node("Mul", "slopes scores", "scaled"), node("Softmax", "scaled", "probabilities")]
    made = attending(scaled, {"slopes": tables["slopes"]}, {})
    assert read_onnx(made).decisions["slopes"].role is Role.PARAMETER


@pytest.mark.parametrize(
    ("kind", "role"),
    [("PARAMETER", Role.PARAMETER), ("BUFFER", Role.TABLE), ("CONSTANT_TENSOR", Role.TABLE)],
)
def test_what_the_file_says_of_tensors_is_believed(kind: str, role: Role) -> None:
    """PyTorch's exporter writes what initializers were, which their use does not tell."""
    made = model(
        {"x": (FLOAT, ["n", 6])},
        [node("MatMul", "x w", "p"), node("Add", "p bias", "q"), node("Mul", "q cosine", "y")],
        "y",
        {"w": weights(6, 4), "bias": weights(4), "cosine": weights(4, 4)[:1]},
    )
    for name in ("bias", "cosine"):
        value = made.graph.value_info.add(name=name)
        key = "pkg.torch.export.graph_signature.InputSpec.kind"
        value.metadata_props.add(key=key, value=kind)
    decisions = read_onnx(made).decisions
    assert (decisions["bias"].role, decisions["cosine"].role) == (role, role)
    assert decisions["w"].role is Role.PARAMETER
    chosen = read_onnx(made, parameters=["bias"], tables=["cosine"]).decisions
    assert (chosen["bias"].role, chosen["cosine"].role) == (Role.PARAMETER, Role.TABLE)


@pytest.mark.parametrize("stated", [True, False])
@pytest.mark.parametrize(("scale", "bias"), [(1, 0), (1, 1), (2, 0)])
def test_operands_that_change_nothing_are_no_weights_of_a_norm(
    stated: bool, scale: int, bias: int
) -> None:
    """Exporters write them for norms that have none, as Olmo's. In files that do not say what
    tensors were, they may be weights that nobody has trained yet."""
    made = model(
        {"x": (FLOAT, ["n", 6])},
        [node("MatMul", "x w", "p"), node("LayerNormalization", "p scale bias", "y")],
        "y",
        {
            "w": weights(6, 4),
            "scale": np.full(4, scale, np.float32),
            "bias": np.full(4, bias, np.float32),
        },
    )
    if stated:
        value = made.graph.value_info.add(name="w")
        key = "pkg.torch.export.graph_signature.InputSpec.kind"
        value.metadata_props.add(key=key, value="PARAMETER")
    decisions = read_onnx(made).decisions
    assert (decisions["scale"].role is Role.TABLE) == (stated and scale == 1)
    assert (decisions["bias"].role is Role.TABLE) == (stated and bias == 0)
