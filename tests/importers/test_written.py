"""`y[..., a:b] = x` is a Concat of `x` and what stays of `y`, at any batch and sequence length."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distir.execute.sequential import evaluate
from distir.importers import onnx_convert
from distir.importers.onnx import read_onnx
from distir.ops.lookup import ScatterND
from distir.ops.tensor import Concat, Slice
from distir.program import build_program
from tests.importers.models import FLOAT, feeds, model, node, weights

Array = Any
SHAPE = (3, 5, 8)


def places(*stretches: tuple[int, int, int], negative: bool = False) -> Array:
    """The tuples of all places in stretches `(start, stop, step)` of the dims, as exporters write
    them."""
    sizes = SHAPE if negative else (0, 0, 0)
    ranges = [np.arange(*own) - size for own, size in zip(stretches, sizes, strict=True)]
    return np.stack(np.meshgrid(*ranges, indexing="ij"), axis=-1)


def overwritten(*tables: Array) -> Any:
    """`x · w` with `x · v` cut to each table's shape written to its places, one after the other."""
    nodes = [node("MatMul", "x w", "y0")]
    initializers = {"w": weights(8, 8)}
    for number, table in enumerate(tables):
        width = table.shape[2]
        initializers |= {f"v{number}": weights(8, width), f"places{number}": table}
        initializers[f"samples{number}"] = np.arange(table.shape[0])
        initializers[f"rows{number}"] = np.arange(table.shape[1])
        nodes += [
            node("MatMul", f"x v{number}", f"all{number}"),
            node("Gather", f"all{number} samples{number}", f"some{number}", axis=0),
            node("Gather", f"some{number} rows{number}", f"own{number}", axis=1),
            node("ScatterND", f"y{number} places{number} own{number}", f"y{number + 1}"),
        ]
    outputs = f"y{len(tables)}"
    return model({"x": (FLOAT, SHAPE)}, nodes, outputs, initializers)


def results(made: Any) -> tuple[Array, Array]:
    """What the imported function and the ONNX reference make of the same inputs."""
    evaluator: Any = import_module("onnx.reference").ReferenceEvaluator
    imported = read_onnx(made, load_weights=True)
    fed = feeds(imported.function, 0, 1)
    (found,) = evaluate(imported.function, list(fed.values()), imported.weights)
    (expected,) = evaluator(made).run(None, fed)
    return found, expected


def ops_of(made: Any) -> list[type]:
    """The classes of the function's ops."""
    return [type(each.op) for each in read_onnx(made).function.nodes]


FULL = [(0, 3, 1), (0, 5, 1), (0, 8, 1)]


@st.composite
def tables(draw: st.DrawFn) -> Array:
    """Places of stretches of any dims, of any steps; mostly of one."""
    stretches = list(FULL)
    for dim in draw(st.sets(st.integers(0, 2), max_size=2)):
        start = draw(st.integers(0, SHAPE[dim] - 1))
        step = draw(st.sampled_from([1, 1, 2]))
        stretches[dim] = (start, draw(st.integers(start + 1, SHAPE[dim])), step)
    return places(*stretches, negative=draw(st.booleans()))


@given(st.lists(tables(), min_size=1, max_size=3))
def test_writes_give_what_onnx_says(found: list[Array]) -> None:
    ours, theirs = results(overwritten(*found))
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)


@pytest.mark.parametrize("negative", [False, True])
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_a_stretch_of_one_dim_is_joined(dim: int, negative: bool) -> None:
    stretches = list(FULL)
    stretches[dim] = (1, 3, 1)
    if dim == 0:
        stretches[dim] = (1, 2, 1)
    ops = ops_of(overwritten(places(*stretches, negative=negative)))
    assert Concat in ops
    assert ScatterND not in ops


def test_of_what_is_overwritten_stretch_by_stretch_nothing_stays() -> None:
    first, second = places(*FULL[:2], (0, 6, 1)), places(*FULL[:2], (6, 8, 1))
    function = read_onnx(overwritten(first, second)).function
    assert not any(isinstance(each.op, (ScatterND, Slice)) for each in function.nodes)
    (joined,) = [each for each in function.nodes if isinstance(each.op, Concat)]
    assert [value.type.shape[2] for value in joined.operands] == [6, 2]
    assert {value.name for value in function.parameters} == {"v0", "v1"}


@pytest.mark.parametrize("stretches", [[(0, 3, 1), (0, 2, 1), (0, 4, 1)], [*FULL[:2], (0, 8, 2)]])
def test_other_places_stay_a_scatter(stretches: Any) -> None:
    assert ScatterND in ops_of(overwritten(places(*stretches)))


def test_heads_that_are_written_in_two_stretches_can_be_split() -> None:
    """As keys whose rotated part is written beside the other one (DeepSeek)."""
    batch, length, heads, size = 3, 5, 4, 6
    shape = (batch, length, heads, size)
    grid = np.stack(np.meshgrid(*map(np.arange, shape), indexing="ij"), axis=-1)
    nodes = [
        node("MatMul", "x a", "fa"),
        node("MatMul", "x b", "fb"),
        node("Reshape", "fa by4", "ha"),
        node("Reshape", "fb by2", "hb"),
        node("ScatterND", "zeros first ha", "y0"),
        node("ScatterND", "y0 second hb", "keys"),
        node("Transpose", "keys", "k", perm=[0, 2, 3, 1]),
        node("MatMul", "x q", "fq"),
        node("Reshape", "fq by6", "hq"),
        node("Transpose", "hq", "queries", perm=[0, 2, 1, 3]),
        node("MatMul", "queries k", "scores"),
        node("Softmax", "scores", "probabilities"),
        node("Transpose", "hq", "values", perm=[0, 2, 1, 3]),
        node("MatMul", "probabilities values", "mixed"),
        node("Transpose", "mixed", "together", perm=[0, 2, 1, 3]),
        node("Reshape", "together flat", "m"),
        node("MatMul", "m o", "out"),
        node("Add", "out x", "y"),
    ]
    made = model(
        {"x": (FLOAT, [batch, length, 10])},
        nodes,
        "y",
        {
            "a": weights(10, heads * 4),
            "b": weights(10, heads * 2),
            "q": weights(10, heads * size),
            "o": weights(heads * size, 10),
            "by4": np.asarray([0, 0, heads, 4]),
            "by2": np.asarray([0, 0, heads, 2]),
            "by6": np.asarray([0, 0, heads, size]),
            "flat": np.asarray([0, 0, -1]),
            "zeros": np.zeros(shape, np.float32),
            "first": grid[..., :4, :],
            "second": grid[..., 4:, :],
        },
    )
    function = read_onnx(made, tables=["zeros"]).function
    program = build_program(function, training=True, loss="mse")
    assert [axis.size for axis in program.blocks.head_axes] == [heads]


def test_tables_of_places_take_no_more_memory_than_their_elements_that_differ(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As exporters write them: numbers along each dim, spread over all dims and joined. Without
    memory for what only repeats, later tables of a file are as well known as the first."""
    table = int(np.prod(SHAPE)) * 3 * 8  # the joined one
    monkeypatch.setattr(onnx_convert, "MOST_FOLDED_BYTES", 2 * table)
    nodes, initializers = [node("MatMul", "x w", "y")], {"w": weights(8, 8)}
    initializers["sizes"] = np.asarray(SHAPE)
    initializers["last"] = np.asarray([-1])
    for dim, size in enumerate(SHAPE):
        initializers[f"n{dim}"] = np.arange(size).reshape([-1] + [1] * (2 - dim))
        nodes += [
            node("Expand", f"n{dim} sizes", f"spread{dim}"),
            node("Unsqueeze", f"spread{dim} last", f"column{dim}"),
        ]
    nodes += [
        node("Concat", "column0 column1 column2", "places", axis=-1),
        node("ScatterND", "x places y", "z"),
    ]
    imported = read_onnx(model({"x": (FLOAT, SHAPE)}, nodes, "z", initializers))
    assert not any(isinstance(each.op, ScatterND) for each in imported.function.nodes)
