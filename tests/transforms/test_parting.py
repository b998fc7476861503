"""A matrix whose product is cut into unequal parts is split part by part, if these have heads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from distir import Strategy, Workload
from distir.execute.sequential import evaluate
from distir.execute.verify import Verifier
from distir.importers.load import LoadedModel
from distir.ir import Builder, Function
from distir.ir.core import Value
from distir.ir.types import DType
from distir.ops.activations import Relu
from distir.ops.arithmetic import Add, Mul
from distir.ops.linalg import MatMul
from distir.ops.lookup import Gather
from distir.ops.norm import RMSNormalization, Softmax
from distir.ops.tensor import Concat, Expand, Reshape, Slice, Split, Transpose
from distir.program import Program, build_program
from distir.transforms.parting import parted, partings

BATCH, LENGTH, HIDDEN, SIZE = 5, 7, 24, 4
"""Samples, their length, their width, and the size of a head."""

Cut = Callable[[Builder, Value, int, int], Sequence[Value]]
"""Cuts a fused product into queries, keys and values of so many heads and groups."""


def by_split(builder: Builder, fused: Value, heads: int, groups: int) -> Sequence[Value]:
    return builder.apply(Split(2, (heads * SIZE, groups * SIZE, groups * SIZE)), fused)


def by_slices(builder: Builder, fused: Value, heads: int, groups: int) -> Sequence[Value]:
    ends = [0, heads * SIZE, (heads + groups) * SIZE, None]
    return [
        builder.add(Slice((0, 0, start or 0), (None, None, stop), (1, 1, 1)), fused)
        for start, stop in pairwise(ends)
    ]


def by_head(builder: Builder, fused: Value, heads: int, groups: int) -> Sequence[Value]:
    """Heads become a dim before they are parted; keys and values, if they are of one head, are
    looked up behind a Transpose, as recent exporters write `x[..., [-2], :]`."""
    by_head = builder.add(Reshape((BATCH, LENGTH, heads + 2 * groups, SIZE)), fused)
    if groups > 1:
        return builder.apply(Split(2, (heads, groups, groups)), by_head)
    first = builder.add(Transpose((2, 0, 1, 3)), by_head)
    queries = builder.add(Slice((0,) * 4, (None, None, heads, None), (1,) * 4), by_head)
    places = [builder.constant(np.array([heads + n]), DType.INT64) for n in (0, 1)]
    return [queries, *(builder.add(Gather(0), first, place) for place in places)]


def by_group(builder: Builder, fused: Value, heads: int, groups: int) -> Sequence[Value]:
    """The query heads of a group, then its key and its value; the next group follows."""
    own = heads // groups
    grouped = builder.add(Reshape((BATCH, LENGTH, groups, own + 2, SIZE)), fused)
    queries = builder.add(Slice((0,) * 5, (None, None, None, own, None), (1,) * 5), grouped)
    places = [builder.constant(np.array([own + n]), DType.INT64) for n in (0, 1)]
    shapes = [(BATCH, LENGTH, n * SIZE) for n in (heads, groups, groups)]
    every = [queries, *(builder.add(Gather(3), grouped, place) for place in places)]
    return [builder.add(Reshape(s), each) for s, each in zip(shapes, every, strict=True)]


def attention(cut: Cut, heads: int, groups: int, layers: int = 2, bias: bool = True) -> Function:
    """Layers of attention in which one matrix makes queries, keys and values."""
    builder = Builder("attention")
    x = builder.input("x", (BATCH, LENGTH, HIDDEN))
    for number in range(layers):
        scale = builder.parameter(f"scale{number}", (HIDDEN,))
        normed = builder.add(RMSNormalization(), x, scale)
        x = builder.add(Add(), x, _attended(builder, normed, cut, heads, groups, bias, f"{number}"))
        inner = builder.add(MatMul(), x, builder.parameter(f"up{number}", (HIDDEN, 2 * HIDDEN)))
        down = builder.parameter(f"down{number}", (2 * HIDDEN, HIDDEN))
        x = builder.add(Add(), x, builder.add(MatMul(), builder.add(Relu(), inner), down))
    return builder.build([x])


def _attended(
    builder: Builder, x: Value, cut: Cut, heads: int, groups: int, bias: bool, name: str
) -> Value:
    width = (heads + 2 * groups) * SIZE
    fused = builder.add(MatMul(), x, builder.parameter(f"fused{name}", (HIDDEN, width)))
    if bias:
        fused = builder.add(Add(), fused, builder.parameter(f"bias{name}", (width,)))
    queries, *others = cut(builder, fused, heads, groups)
    shape = (BATCH, LENGTH, groups, heads // groups, SIZE)
    queries = builder.add(Transpose((0, 2, 3, 1, 4)), builder.add(Reshape(shape), queries))
    keys, values = (_repeated(builder, each, heads, groups) for each in others)
    scores = builder.add(MatMul(), queries, builder.add(Transpose((0, 1, 2, 4, 3)), keys))
    mixed = builder.add(MatMul(), builder.add(Softmax(), scores), values)
    mixed = builder.add(Transpose((0, 3, 1, 2, 4)), mixed)
    mixed = builder.add(Reshape((BATCH, LENGTH, heads * SIZE)), mixed)
    return builder.add(MatMul(), mixed, builder.parameter(f"out{name}", (heads * SIZE, HIDDEN)))


def _repeated(builder: Builder, x: Value, heads: int, groups: int) -> Value:
    """Keys or values, once per query head that reads them."""
    x = builder.add(Reshape((BATCH, LENGTH, groups, 1, SIZE)), x)
    x = builder.add(Transpose((0, 2, 3, 1, 4)), x)
    return builder.add(Expand((BATCH, groups, heads // groups, LENGTH, SIZE)), x)


def evaluated(function: Function, given: dict[str, Any]) -> Any:
    """The output, given parameters and inputs by name."""
    inputs, parameters = (
        [given[v.name] for v in own] for own in (function.inputs, function.parameters)
    )
    return evaluate(function, inputs, parameters)[0]


def random_values(function: Function) -> dict[str, Any]:
    """A random array for every input and parameter, by name."""
    rng = np.random.default_rng(0)
    return {
        value.name: rng.normal(size=value.type.shape)
        for value in (*function.inputs, *function.parameters)
    }


def elements(function: Function) -> int:
    """The elements of all parameters."""
    return sum(value.type.num_elements for value in function.parameters)


def heads_of(program: Program) -> set[int]:
    """How many heads can be split, in any layer."""
    return {axis.size for axis in program.blocks.head_axes}


CUTS = [by_split, by_slices, by_head, by_group]


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize(("heads", "groups"), [(6, 2), (6, 1), (6, 3)])
@pytest.mark.parametrize("bias", [False, True])
def test_parts_compute_what_the_whole_does(cut: Cut, heads: int, groups: int, bias: bool) -> None:
    function = attention(cut, heads, groups, bias=bias)
    found = partings(function)
    assert len(found) == 2
    parts = parted(function, found)
    assert elements(parts) == elements(function)
    given = random_values(function)
    expected = evaluated(function, given)
    for each in found:
        for whole, own in each.parameters.items():
            pieces = each.cuts[whole].apart(given[whole.name])
            given |= {value.name: piece for value, piece in zip(own, pieces, strict=True)}
    np.testing.assert_allclose(evaluated(parts, given), expected, rtol=1e-9)


@pytest.mark.parametrize("cut", CUTS)
def test_grouped_heads_of_a_fused_matrix_can_be_split(cut: Cut) -> None:
    program = build_program(attention(cut, 6, 2), training=True, loss="mse")
    assert heads_of(program) == {2}
    assert {axis.size for axis in program.blocks.inner_axes.values()} == {3}


@pytest.mark.parametrize("cut", CUTS)
def test_with_one_head_of_keys_and_values_the_query_heads_are_split(cut: Cut) -> None:
    """Every device has the keys and values whole, as in multi-query attention of Megatron."""
    program = build_program(attention(cut, 6, 1), training=True, loss="mse")
    assert heads_of(program) == {6}
    assert {axis.size for axis in program.blocks.internal_axes} == {6, 2 * HIDDEN}


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize(("groups", "tp"), [(2, 2), (2, 6), (1, 3)])
def test_plans_that_split_parts_compute_what_one_device_does(
    cut: Cut, groups: int, tp: int
) -> None:
    model = LoadedModel("attention", attention(cut, 6, groups))
    workload = Workload(model=model, batch_size=8, loss="mse")
    for strategy in (Strategy(tp=tp, microbatches=2), Strategy(dp=2, tp=tp, pp=2, microbatches=2)):
        result = Verifier(workload).verify(strategy)
        assert result.passed, result.first_difference


def test_parts_of_every_head_stay_one_matrix() -> None:
    """Latent attention cuts each head into what is rotated and what is not; heads are split as the
    matrix is."""
    builder = Builder("latent")
    x = builder.input("x", (BATCH, LENGTH, HIDDEN))
    for number in range(2):
        own: list[Value] = []
        for name in "qk":
            matrix = builder.parameter(f"{name}{number}", (HIDDEN, 6 * SIZE))
            made = builder.add(Reshape((BATCH, LENGTH, 6, SIZE)), builder.add(MatMul(), x, matrix))
            plain, turned = builder.apply(Split(3, (SIZE - 1, 1)), made)
            whole = builder.add(Concat(3), plain, builder.add(Relu(), turned))
            own.append(builder.add(Transpose((0, 2, 1, 3)), whole))
        keys = builder.add(Transpose((0, 1, 3, 2)), own[1])
        scores = builder.add(Softmax(), builder.add(MatMul(), own[0], keys))
        mixed = builder.add(Transpose((0, 2, 1, 3)), builder.add(MatMul(), scores, own[1]))
        mixed = builder.add(Reshape((BATCH, LENGTH, 6 * SIZE)), mixed)
        out = builder.parameter(f"out{number}", (6 * SIZE, HIDDEN))
        x = builder.add(Add(), x, builder.add(MatMul(), mixed, out))
    function = builder.build([x])
    assert len(partings(function)) == 4
    program = build_program(function, training=True, loss="mse")
    assert heads_of(program) == {6}
    assert [p.name for p in program.function.parameters] == [p.name for p in function.parameters]


def test_equal_parts_stay_one_matrix() -> None:
    function = attention(by_split, 6, 6)
    assert not partings(function)
    assert heads_of(build_program(function, training=True, loss="mse")) == {6}


def test_a_bottleneck_stays_one_matrix() -> None:
    """Its parts have no heads: to split them would only make several sums of one."""
    builder = Builder("bottleneck")
    x = builder.input("x", (BATCH, LENGTH, HIDDEN))
    for number in range(2):
        inner = builder.add(MatMul(), x, builder.parameter(f"in{number}", (HIDDEN, 2 * HIDDEN)))
        small = builder.add(MatMul(), inner, builder.parameter(f"fused{number}", (2 * HIDDEN, 11)))
        rank, gate = builder.apply(Split(2, (8, 3)), small)
        wide = builder.add(MatMul(), rank, builder.parameter(f"wide{number}", (8, 2 * HIDDEN)))
        gates = builder.add(MatMul(), gate, builder.parameter(f"gate{number}", (3, 2 * HIDDEN)))
        mixed = reduce(lambda a, b: builder.add(Mul(), a, b), (inner, wide, gates))
        out = builder.parameter(f"out{number}", (2 * HIDDEN, HIDDEN))
        x = builder.add(Add(), x, builder.add(MatMul(), mixed, out))
    function = builder.build([x])
    assert len(partings(function)) == 2
    program = build_program(function, training=True, loss="mse")
    assert [p.name for p in program.function.parameters] == [p.name for p in function.parameters]
    assert {axis.size for axis in program.blocks.internal_axes} == {2 * HIDDEN}


@pytest.mark.parametrize("reader", ["matrix", "product", "output"])
def test_what_is_read_whole_elsewhere_is_not_parted(reader: str) -> None:
    builder = Builder("read twice")
    x = builder.input("x", (BATCH, LENGTH, HIDDEN))
    matrix = builder.parameter("fused", (HIDDEN, 40))
    fused = builder.add(MatMul(), x, matrix)
    outputs = [builder.add(Relu(), part) for part in builder.apply(Split(2, (24, 16)), fused)]
    if reader == "matrix":
        outputs.append(builder.add(MatMul(), builder.input("y", (BATCH, HIDDEN)), matrix))
    elif reader == "product":
        outputs.append(builder.add(Relu(), fused))
    else:
        outputs.append(fused)
    assert not partings(builder.build(outputs))


def test_a_matrix_that_an_op_reads_twice_is_parted_once() -> None:
    builder = Builder("squared")
    x = builder.input("x", (BATCH, LENGTH, HIDDEN))
    matrix = builder.parameter("fused", (HIDDEN, 40))
    fused = builder.add(MatMul(), x, builder.add(Mul(), matrix, matrix))
    parts = builder.apply(Split(2, (24, 16)), fused)
    function = builder.build([builder.add(Relu(), part) for part in parts])
    found = partings(function)
    names = [value.name for value in parted(function, found).parameters]
    assert names == ["fused.0", "fused.1"]
    made = {value for node in parted(function, found).nodes for value in node.operands}
    assert made.issuperset(parted(function, found).parameters)
