"""Shapes after rescaling are those of a fresh export at that size, and axes do not depend on the
order of ops in the file."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distir import load_model
from distir.axes.infer import infer_axes
from distir.axes.model import Axes, Axis
from distir.axes.rescale import rescale, resize
from distir.errors import TransformError
from distir.execute.sequential import evaluate
from distir.execute.shrink import without_boundaries
from distir.ir import Function, Node, Value
from distir.ir.verifier import verify
from distir.models import TransformerConfig, find_model
from distir.program import Program, build_program
from tests.conftest import shared_path
from tests.laws.scenarios import models

FRESH = (
    "gpt2-xs",
    "llama2-7b",
    "qwen3-0.6b",
    "bert-base",
    "t5-small",
    "mlp-xs",
    "vit-b",
    "mixtral-8x7b",
)


def described(function: Function) -> list[object]:
    """Everything about a function but its values."""
    number: dict[Value, int] = {}
    for value in function.sources():
        number[value] = len(number)
    lines: list[object] = [
        [str(value.type) for value in function.sources()],
    ]
    for node in function.nodes:
        for value in node.results:
            number[value] = len(number)
        lines.append(
            (
                str(node.op),
                [number[value] for value in node.operands],
                [str(type) for type in node.result_types],
            )
        )
    return [*lines, [number[value] for value in function.outputs]]


def without_counts(lines: list[object]) -> list[object]:
    """A mean's own count stands for the sizes at hand until it is rescaled."""
    import re

    return [re.sub(r"count=\d+", "count", str(line)) for line in lines]


@settings(max_examples=10)
@given(st.sampled_from(FRESH), st.integers(2, 40), st.integers(2, 64))
def test_a_rescaled_zoo_model_is_a_fresh_build(name: str, batch: int, length: int) -> None:
    config = find_model(name)
    program = build_program(load_model(name).function, training=False)
    sized = length if program.sequence is not None and name != "vit-b" else None
    rescaled = rescale(program.function, program.axes, program.sizes(batch, sized))
    verify(rescaled)
    fresh = build_program(config.build(batch, length), training=False).function
    ours = described(without_boundaries(rescaled))
    assert without_counts(ours) == without_counts(described(without_boundaries(fresh)))


@settings(max_examples=30)
@given(models, st.integers(2, 7), st.integers(1, 3))
def test_a_model_rescaled_to_any_batch_and_back_is_the_same_function(
    function: Function, batch: int, there: int
) -> None:
    """To a size and back again is the same function; and all types stay what the ops infer."""
    program = build_program(function, training=False)
    rescaled = rescale(program.function, program.axes, program.sizes(batch * there))
    verify(rescaled)
    same = rescale(program.function, program.axes, {})
    assert without_counts(described(same)) == without_counts(described(program.function))


def test_what_a_concatenation_fixes_cannot_be_rescaled() -> None:
    program = build_program(load_model("vit-b").function, training=False)
    assert program.sequence is not None
    other = dict.fromkeys(_tied(program, program.sequence), 40)
    with pytest.raises(TransformError, match=r"fixes a size|cannot have other sizes"):
        rescale(program.function, program.axes, other)


def _tied(program: Program, axis: Axis) -> list[Axis]:
    axes = program.axes
    every = {a for dims in axes.dims.values() for dim in dims for a in dim}
    return [a for a in every if axes.tied(a) is axes.tied(axis)]  # type: ignore[arg-type]


def test_constants_keep_their_leading_part() -> None:
    function = load_model("qwen3-0.6b").function
    program = build_program(function, training=False)
    tables = {v: a for v, a in program.function.constants.items() if "cos" in v.name}
    ((value, array),) = tables.items()
    assert array is not None
    sizes = program.sizes(2, 5)
    shorter = resize(array, program.axes.dims[value], sizes)
    np.testing.assert_array_equal(shorter, array[:5])
    assert resize(array, program.axes.dims[value], program.sizes(2, 50)) is None


def test_a_rescaled_model_computes_what_a_fresh_one_does() -> None:
    config = TransformerConfig(
        name="small", layers=2, hidden=32, heads=4, vocabulary=50, sequence_length=32
    )
    rng = np.random.default_rng(0)
    program = build_program(config.build(11, 23), training=False)
    rescaled = rescale(program.function, program.axes, program.sizes(2, 7))
    fresh = config.build(2, 7)
    ids = rng.integers(0, 50, (2, 7))
    weights = [0.02 * rng.normal(size=value.type.shape) for value in fresh.parameters]
    for ours, theirs in zip(
        evaluate(rescaled, [ids], weights), evaluate(fresh, [ids], weights), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12)


# --- the order of ops -----------------------------------------------------------------------------


def shuffled(function: Function, chance: random.Random) -> Function:
    """The same function with its ops in another order."""
    left = list(function.nodes)
    made = {value for node in left for value in node.results}
    nodes: list[Node] = []
    while left:
        ready = [n for n in left if not any(v in made for v in n.operands)]
        node = chance.choice(ready)
        left.remove(node)
        made.difference_update(node.results)
        nodes.append(node)
    return replace(function, nodes=tuple(nodes))


def structure(function: Function, axes: Axes) -> list[object]:
    """Ops in order, with axes numbered as they come."""
    number: dict[object, int] = {}
    lines = described(function)
    values = [*function.sources(), *(v for node in function.nodes for v in node.results)]
    for value in values:
        lines.append(
            [[number.setdefault(axis, len(number)) for axis in dim] for dim in axes.dims[value]]
        )
    return lines


@pytest.mark.slow(seconds=4)
@settings(max_examples=30)
@given(models, st.randoms(use_true_random=False))
def test_axes_do_not_depend_on_the_order_of_ops(function: Function, chance: random.Random) -> None:
    expected = structure(*infer_axes(function))
    assert structure(*infer_axes(shuffled(function, chance))) == expected


@pytest.mark.parametrize("name", ["gpt2", "llama-8layer"])
def test_axes_of_an_export_do_not_depend_on_the_order_of_ops(name: str) -> None:
    function = load_model(str(shared_path(f"models/{name}.onnx"))).function
    expected = structure(*infer_axes(function))
    assert structure(*infer_axes(shuffled(function, random.Random(1)))) == expected
