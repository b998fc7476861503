"""Where one product makes attention and feed-forward, or takes both, each is split by itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from distir import Strategy, Workload
from distir.execute.sequential import evaluate
from distir.execute.verify import Verifier
from distir.importers.load import LoadedModel
from distir.ir import Builder, Function
from distir.ir.core import Value
from distir.ops.activations import Relu
from distir.ops.arithmetic import Add
from distir.ops.linalg import MatMul
from distir.ops.norm import RMSNormalization, Softmax
from distir.ops.tensor import Concat, Expand, Reshape, Split, Transpose
from distir.program import build_program
from distir.transforms.joints import joints, rounds_of_partings
from distir.transforms.parting import parted

BATCH, LENGTH, HIDDEN, SIZE = 5, 7, 24, 4
"""Samples, their length, their width, and the size of a head."""
HEADS, GROUPS, FFN = 6, 2, 44


def side_by_side(joined: bool, nested: bool, layers: int = 2, ffn: int = FFN) -> Function:
    """Layers in which one product makes queries, keys, values and the feed-forward's input, cut at
    once or one in the other, and in which one product takes both results if they are joined."""
    builder = Builder("side by side")
    x = builder.input("x", (BATCH, LENGTH, HIDDEN))
    for number in range(layers):
        normed = builder.add(RMSNormalization(), x, builder.parameter(f"scale{number}", (HIDDEN,)))
        sizes = (HEADS * SIZE, GROUPS * SIZE, GROUPS * SIZE)
        fused = builder.parameter(f"fused{number}", (HIDDEN, sum(sizes) + ffn))
        made = builder.add(MatMul(), normed, fused)
        if nested:
            first, inner = builder.apply(Split(2, (sum(sizes), ffn)), made)
            queries, keys, values = builder.apply(Split(2, sizes), first)
        else:
            queries, keys, values, inner = builder.apply(Split(2, (*sizes, ffn)), made)
        attended = _attended(builder, queries, keys, values)
        x = builder.add(
            Add(), x, _output(builder, attended, builder.add(Relu(), inner), joined, number)
        )
    return builder.build([x])


def _attended(builder: Builder, queries: Value, keys: Value, values: Value) -> Value:
    """Attention of grouped heads."""
    shape = (BATCH, LENGTH, GROUPS, HEADS // GROUPS, SIZE)
    turn = Transpose((0, 2, 3, 1, 4))
    queries = builder.add(turn, builder.add(Reshape(shape), queries))
    full = (BATCH, GROUPS, HEADS // GROUPS, LENGTH, SIZE)
    keys, values = (
        builder.add(
            Expand(full), builder.add(turn, builder.add(Reshape((*shape[:3], 1, SIZE)), each))
        )
        for each in (keys, values)
    )
    scores = builder.add(MatMul(), queries, builder.add(Transpose((0, 1, 2, 4, 3)), keys))
    mixed = builder.add(MatMul(), builder.add(Softmax(), scores), values)
    mixed = builder.add(Transpose((0, 3, 1, 2, 4)), mixed)
    return builder.add(Reshape((BATCH, LENGTH, HEADS * SIZE)), mixed)


def _output(builder: Builder, attended: Value, inner: Value, joined: bool, number: int) -> Value:
    rows, ffn = HEADS * SIZE, inner.type.shape[-1]
    if joined:
        both = builder.add(Concat(-1), attended, inner)
        return builder.add(MatMul(), both, builder.parameter(f"out{number}", (rows + ffn, HIDDEN)))
    out = builder.add(MatMul(), attended, builder.parameter(f"out{number}", (rows, HIDDEN)))
    down = builder.add(MatMul(), inner, builder.parameter(f"down{number}", (ffn, HIDDEN)))
    return builder.add(Add(), out, down)


def evaluated(function: Function, given: dict[str, Any]) -> Any:
    """The output, given parameters and inputs by name."""
    inputs, parameters = (
        [given[v.name] for v in own] for own in (function.inputs, function.parameters)
    )
    return evaluate(function, inputs, parameters)[0]


KINDS = [(False, True), (True, False), (True, True)]


@pytest.mark.parametrize(("joined", "nested"), KINDS)
def test_parts_compute_what_the_whole_does(joined: bool, nested: bool) -> None:
    function = side_by_side(joined, nested)
    rng = np.random.default_rng(0)
    given: dict[str, Any] = {
        value.name: rng.normal(size=value.type.shape)
        for value in (*function.inputs, *function.parameters)
    }
    expected = evaluated(function, given)
    for found in rounds_of_partings(function):
        function = parted(function, found)
        for each in found:
            for whole, own in each.parameters.items():
                pieces = each.cuts[whole].apart(given[whole.name])
                given |= {value.name: piece for value, piece in zip(own, pieces, strict=True)}
    assert not any(isinstance(node.op, (Concat, Split)) for node in function.nodes)
    np.testing.assert_allclose(evaluated(function, given), expected, rtol=1e-9)


@pytest.mark.parametrize(("joined", "nested"), KINDS)
def test_attention_and_feed_forward_are_both_split(joined: bool, nested: bool) -> None:
    program = build_program(side_by_side(joined, nested), training=True, loss="mse")
    assert {axis.size for axis in program.blocks.head_axes} == {GROUPS}
    assert {axis.size for axis in program.blocks.internal_axes} == {GROUPS, FFN}
    assert {axis.size for axis in program.blocks.inner_axes.values()} == {HEADS // GROUPS}
    assert program.num_layers == 2


@pytest.mark.parametrize("joined", [False, True])
def test_a_feed_forward_as_wide_as_queries_keys_and_values_together_is_split(joined: bool) -> None:
    ffn = (HEADS + 2 * GROUPS) * SIZE
    program = build_program(side_by_side(joined, True, ffn=ffn), training=True, loss="mse")
    assert {axis.size for axis in program.blocks.internal_axes} == {GROUPS, ffn}
    assert program.num_layers == 2


@pytest.mark.parametrize(("joined", "nested"), KINDS)
def test_plans_that_split_both_compute_what_one_device_does(joined: bool, nested: bool) -> None:
    model = LoadedModel("side by side", side_by_side(joined, nested))
    workload = Workload(model=model, batch_size=8, loss="mse")
    result = Verifier(workload).verify(Strategy(dp=2, tp=2, pp=2, microbatches=2))
    assert result.passed, result.first_difference


def without_heads(reader: str = "") -> Function:
    """A layer whose product takes two values joined, of which none has heads."""
    builder = Builder("joined")
    x = builder.input("x", (BATCH, LENGTH, HIDDEN))
    wide, narrow = (
        builder.add(Relu(), builder.add(MatMul(), x, builder.parameter(f"w{n}", (HIDDEN, n))))
        for n in (40, 16)
    )
    joined = builder.add(Concat(2), wide, narrow)
    matrix = builder.parameter("out", (56, HIDDEN))
    outputs = [builder.add(MatMul(), joined, matrix)]
    if reader == "joined":
        outputs.append(builder.add(Relu(), joined))
    elif reader == "output":
        outputs.append(joined)
    elif reader == "matrix":
        outputs.append(builder.add(Relu(), matrix))
    return builder.build(outputs)


def test_a_product_of_joined_values_without_heads_stays_one() -> None:
    function = without_heads()
    assert len(joints(function)) == 1
    program = build_program(function, training=True, loss="mse")
    assert [p.name for p in program.function.parameters] == [p.name for p in function.parameters]


def test_products_of_parts_that_are_equal_are_no_joints() -> None:
    """What a Split makes, of several results, may be multiplied as it is."""
    builder = Builder("split")
    halves = builder.apply(Split(2, (12, 12)), builder.input("x", (BATCH, LENGTH, HIDDEN)))
    outputs = [
        builder.add(MatMul(), half, builder.parameter(f"w{n}", (12, HIDDEN)))
        for n, half in enumerate(halves)
    ]
    assert not joints(builder.build(outputs))


@pytest.mark.parametrize("reader", ["joined", "output", "matrix"])
def test_what_is_read_whole_elsewhere_stays_joined(reader: str) -> None:
    assert not joints(without_heads(reader))
