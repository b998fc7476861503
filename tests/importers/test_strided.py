"""What a Gather picks by evenly spaced indices is a view, and the view picks the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from distir.errors import TransformError
from distir.execute.sequential import evaluate
from distir.importers.onnx import import_onnx, read_onnx
from distir.importers.strided import strided_view
from distir.ops.lookup import Gather
from distir.ops.tensor import Reshape, Slice
from distir.program import build_program
from tests.importers.models import FLOAT, integers, model, node, weights

Array = Any


def spaced(counts: list[int], strides: list[int], offset: int) -> Array:
    """Indices of these many steps of these widths."""
    grids = np.meshgrid(*(np.arange(n) for n in counts), indexing="ij")
    return offset + sum(grid * stride for grid, stride in zip(grids, strides, strict=True))


@given(
    size=st.sampled_from((7, 12, 24)),
    counts=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    strides=st.lists(st.sampled_from((0, 1, 2, 3, 4, 6, 12)), min_size=3, max_size=3),
    offset=st.integers(0, 5),
    axis=st.integers(0, 2),
)
def test_a_view_picks_what_the_indices_pick(
    size: int, counts: list[int], strides: list[int], offset: int, axis: int
) -> None:
    indices = spaced(counts, strides[: len(counts)], offset)
    assume(indices.max() < size)
    shape = [2, 3]
    shape.insert(axis, size)
    x = np.arange(6 * size).reshape(shape)
    view = strided_view(shape, axis, indices)
    assume(view is not None)
    assert view is not None
    result = x
    for op in view:
        (result,) = op.evaluate(result)
    np.testing.assert_array_equal(result, np.take(x, indices, axis=axis))


@pytest.mark.parametrize(
    ("counts", "strides", "offset"),
    [
        ([12], [1], 0),  # all
        ([4], [3], 1),  # every third
        ([2, 6], [6, 1], 0),  # rows
        ([6, 2], [1, 6], 0),  # columns
        ([2, 2], [6, 2], 1),  # a window
    ],
)
def test_what_as_strided_writes_is_a_view(
    counts: list[int], strides: list[int], offset: int
) -> None:
    assert strided_view((12,), 0, spaced(counts, strides, offset)) is not None


@pytest.mark.parametrize("indices", [[0, 0, 1, 1], [3, 2, 1, 0], [0, 1, 3, 4], [[0, 1], [1, 2]]])
def test_what_repeats_turns_around_or_is_uneven_is_none(indices: list[Any]) -> None:
    assert strided_view((12,), 0, np.asarray(indices)) is None


def flattened(picked: Array) -> Any:
    """A product, flattened, of which positions are picked and multiplied again."""
    return model(
        {"x": (FLOAT, [1, 4, 6])},
        [
            node("MatMul", "x w", "h"),
            node("Reshape", "h flat", "f"),
            node("Gather", "f picked", "g"),
            node("MatMul", "g v", "y"),
        ],
        "y",
        {"w": weights(6, 8), "flat": integers(-1), "picked": picked, "v": weights(8, 5)},
    )


def test_a_batch_of_one_passes_an_as_strided() -> None:
    made = flattened(np.arange(32).reshape(1, 4, 8))
    one, wide = (read_onnx(made, widen=widen, load_weights=True) for widen in (False, True))
    assert not any(isinstance(each.op, Gather) for each in wide.function.nodes)
    assert any(isinstance(each.op, Reshape) for each in wide.function.nodes)
    x = np.random.default_rng(0).normal(size=wide.function.inputs[0].type.shape)
    assert len(x) > 1
    (together,) = evaluate(wide.function, [x], wide.weights)
    for sample, result in zip(x, together, strict=True):
        (alone,) = evaluate(one.function, [sample[None]], one.weights)
        np.testing.assert_allclose(result, alone[0], atol=1e-12)


def test_no_other_axis_is_taken_for_a_batch_that_is_lost() -> None:
    """Where positions are picked at random the batch of one stays one: an error says why, and the
    rows of a sample are not taken for samples."""
    order = np.random.default_rng(0).permutation(32).reshape(1, 4, 8)
    function = import_onnx(flattened(order))
    with pytest.raises(TransformError, match="could not be widened: Gather 'g' combines"):
        build_program(function, training=False)


# --- slices that take turns -----------------------------------------------------------------------


def _in_turns(size: int, step: int, taken: Sequence[int]) -> Any:
    """`x · w` of which every n-th element from each of some places is taken, and their products."""
    stored = {"w": weights(6, size), "axes": integers(2), "end": integers(1 << 40)}
    stored["step"] = integers(step)
    nodes = [node("MatMul", "x w", "h")]
    for start in taken:
        stored[f"start{start}"] = integers(start)
        nodes.append(node("Slice", f"h start{start} end axes step", f"p{start}"))
    product = f"p{taken[0]}"
    for start in taken[1:]:
        nodes.append(node("Mul", f"{product} p{start}", f"{product}{start}"))
        product = f"{product}{start}"
    stored["v"] = weights(len(range(taken[0], size, step)), 6)
    nodes.append(node("MatMul", f"{product} v", "y"))
    return model({"x": (FLOAT, [3, 5, 6])}, nodes, "y", stored)


@pytest.mark.parametrize(("size", "step"), [(8, 2), (12, 3), (12, 2)])
def test_parts_that_take_turns_have_an_axis(size: int, step: int) -> None:
    """As gates and values of GPT-OSS: the width of the layer can be split."""
    made = _in_turns(size, step, range(step))
    imported = read_onnx(made, load_weights=True)
    assert not any(isinstance(each.op, Slice) for each in imported.function.nodes)
    x = np.random.default_rng(0).normal(size=(3, 5, 6)).astype(np.float32)
    (found,) = evaluate(imported.function, [x], imported.weights)
    parts = [(x @ weights(6, size))[..., start::step] for start in range(step)]
    expected = np.prod(parts, axis=0) @ weights(size // step, 6)
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    program = build_program(imported.function, training=True, loss="mse")
    assert [axis.size for axis in program.blocks.internal_axes] == [size // step]


@pytest.mark.parametrize(("size", "step", "taken"), [(8, 2, [1]), (12, 3, [0, 2]), (9, 2, [0])])
def test_parts_of_which_some_are_not_taken_stay_slices(
    size: int, step: int, taken: Sequence[int]
) -> None:
    function = read_onnx(_in_turns(size, step, taken)).function
    assert sum(isinstance(each.op, Slice) for each in function.nodes) == len(taken)
