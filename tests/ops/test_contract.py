"""Every op keeps what its signature, its attributes and its derivative promise.

The laws: shards along any loop, computed apart and put together as the loop's kind says, are the
whole; a linear op commutes with sums; a lowered composite is the composite; a derivative is the
limit of differences; an op reads back from its text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import MISSING, fields
from typing import Any, cast

import numpy as np
import onnx
import pytest

from distir.cost.work import OpClass
from distir.errors import TransformError
from distir.execute.sequential import evaluate
from distir.importers.onnx_by_name import converts_by_name
from distir.ir import Builder, Kind, Op, Signature, TensorType, Value
from distir.ir.core import Backward
from distir.ir.text import format_function, parse_function
from distir.ops import OPS, optimizer
from distir.ops.base import from_start
from tests.importers.one_node import OneNode, imported, reference
from tests.ops.cases import CASES, PLACED
from tests.ops.makers import Case, dtype_of

Array = Any

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)

by_name = pytest.mark.parametrize(
    "case",
    [case for case in CASES if converts_by_name(type(case.op))],
    ids=lambda case: case.label,
)
"""Ops that are ONNX's by name and attributes, and so have no converter."""


def test_every_op_has_a_case() -> None:
    covered = {case.op.name for case in CASES}
    missing = {
        entry.name
        for entry in OPS
        if entry.name not in covered and not issubclass(entry.value, PLACED)
    }
    assert not missing, "operands are not found by themselves: list a case in tests/ops/cases.py"


@by_name
def test_ops_named_as_onnxs_compute_what_onnx_computes(case: Case) -> None:
    since = onnx.defs.get_schema(case.op.name).since_version
    node = OneNode(case.op.name, case.arrays(), _onnx_attributes(case.op), opset=max(21, since))
    node.results = len(case.op.infer(*case.types()))
    for result, other in zip(imported(node, ()), reference(node, ()), strict=True):
        assert result.shape == other.shape
        np.testing.assert_allclose(result, other, rtol=2e-6, atol=2e-6)


@by_name
def test_defaults_of_ops_named_as_onnxs_are_onnxs(case: Case) -> None:
    attributes = onnx.defs.get_schema(case.op.name).attributes
    for field in fields(cast("Any", case.op)):
        default = onnx.helper.get_attribute_value(attributes[field.name].default_value)
        if field.default is not MISSING and default is not None:
            text = default.decode() if isinstance(default, bytes) else default
            assert field.default == pytest.approx(text)


@every_case
def test_evaluation_has_the_inferred_types(case: Case) -> None:
    arrays = case.arrays()
    types = case.op.infer(*case.types())
    results = case.op.evaluate(*arrays)
    assert [result.shape for result in results] == [type.shape for type in types]
    for result, type in zip(results, types, strict=True):
        assert (result.dtype.kind == "f") == type.dtype.is_float
        assert (result.dtype.kind == "b") == (type.dtype.short_name == "bool")


@every_case
def test_dims_are_products_of_the_loops(case: Case) -> None:
    signature, operands, results = _signature(case)
    assert len(signature.operands) == len(operands)
    assert len(signature.results) == len(results)
    for dims, type in zip(
        (*signature.operands, *signature.results), (*operands, *results), strict=True
    ):
        assert len(dims) == type.rank
        for loops, size in zip(dims, type.shape, strict=True):
            assert math.prod(signature.loops[loop].size for loop in loops) == size
        used = [loop for loops in dims for loop in loops]
        assert len(used) == len(set(used)), "a loop twice in one value"


@every_case
def test_shards_make_the_whole(case: Case) -> None:
    signature, _, _ = _signature(case)
    for loop, entry in enumerate(signature.loops):
        reduces = entry.kind in (Kind.SUM, Kind.MAX)
        if entry.kind is Kind.WHOLE or entry.size < 2 or (reduces and _is_lowered(case)):
            continue
        if loop in dict(signature.follows):
            continue  # split with its leader
        _check_shards(case, signature, loop, _halves(entry.size))
        if not any(leader == loop for _, leader in signature.follows):
            _check_shards(case, signature, loop, _odd_and_even(entry.size))


@every_case
def test_linear_ops_commute_with_sums(case: Case) -> None:
    linear = case.op.linear_operands(case.types())
    if not linear:
        return
    first, second = case.arrays(), case.arrays()
    for position in linear:
        second[position] = np.cos(first[position] * 3)
    both = list(first)
    for position in linear:
        both[position] = first[position] + second[position]
    for a, b, total in zip(
        case.op.evaluate(*first),
        case.op.evaluate(*second),
        case.op.evaluate(*both),
        strict=True,
    ):
        np.testing.assert_allclose(a + b, total, atol=1e-12)


@every_case
def test_lowered_form_is_the_composite(case: Case) -> None:
    builder, _, results = _built(case)
    lowered = case.op.lower(builder, builder.nodes[-1])
    if lowered is None:
        return
    assert [value.type for value in lowered] == [value.type for value in results]
    function = builder.build([*results, *lowered])
    outputs = evaluate(function, case.arrays())
    for whole, spelled in zip(outputs[: len(results)], outputs[len(results) :], strict=True):
        np.testing.assert_allclose(spelled, whole, atol=1e-12)


@every_case
def test_derivative_is_the_limit_of_differences(case: Case) -> None:
    arrays = case.arrays()
    wanted = _wanted(case)
    builder, values, results = _built(case)
    real = [result for result in results if result.type.dtype.is_float]
    if not real or not any(wanted) or case.op.always_lowered or case.op.name == "StopGradient":
        return
    weights = [builder.input("weight", result.type.shape, result.type.dtype) for result in real]
    gradients = [weights[real.index(r)] if r in real else None for r in results]
    try:
        parts = case.op.derivative(Backward(builder, builder.nodes[-1], gradients, wanted))
    except TransformError:
        return  # it says that it has none, which not every op may
    assert len(parts) == len(arrays)
    rng = np.random.default_rng(3)
    pulls = [rng.normal(size=weight.type.shape) for weight in weights]
    for position, part in enumerate(parts):
        if not wanted[position]:
            continue
        numeric = _difference_quotients(case.op, arrays, position, pulls)
        if part is None:
            assert abs(numeric).max() < 1e-6, "no gradient where there should be one"
            continue
        assert part.type == values[position].type
        (symbolic,) = evaluate(builder.build([part]), [*arrays, *pulls])
        np.testing.assert_allclose(symbolic, numeric, rtol=2e-5, atol=2e-6)


def test_only_what_ends_a_step_or_makes_gradients_lacks_a_derivative() -> None:
    lacking: set[str] = set()
    made: set[str] = set()
    for case in CASES:
        builder, _, results = _built(case)
        real = [result.type if result.type.dtype.is_float else None for result in results]
        if not any(real) or case.op.always_lowered:
            continue
        gradients = [type and builder.input("gradient", type.shape, type.dtype) for type in real]
        wanted = _wanted(case)
        try:
            case.op.derivative(Backward(builder, builder.nodes[-1], gradients, wanted))
        except TransformError:
            lacking.add(case.op.name)
        made |= {node.op.name for node in builder.nodes[1:]}
    steps = {entry.name for entry in OPS if entry.value.__module__ == optimizer.__name__}
    assert lacking <= made | steps


@every_case
def test_ops_read_back_from_their_text(case: Case) -> None:
    builder, _, results = _built(case)
    function = builder.build(results)
    text = format_function(function)
    again = parse_function(text)
    assert format_function(again) == text
    assert again.nodes[-1].op == case.op


@every_case
def test_work_is_conserved_by_splitting(case: Case) -> None:
    signature, operands, results = _signature(case)
    work = case.op.work(operands, results)
    assert min(work.flops, work.bytes_read, work.bytes_written) >= 0
    if case.op.is_view:
        assert work.flops + work.bytes == 0
    for loop, entry in enumerate(signature.loops):
        if work.kind is OpClass.MEMORY or entry.kind is Kind.WHOLE or entry.size % 2:
            continue
        local_operands = _local(operands, signature.operands, signature, loop, entry.size // 2)
        local_results = _local(results, signature.results, signature, loop, entry.size // 2)
        local = case.op.localized(local_operands, local_results)
        assert 2 * local.work(local_operands, local_results).flops == work.flops


@every_case
def test_ops_follow_a_change_of_sizes(case: Case) -> None:
    signature, operands, results = _signature(case)
    for loop, entry in enumerate(signature.loops):
        if entry.kind is Kind.WHOLE or case.op.name == "Boundary":
            continue
        if any(loop in pair for pair in (*signature.equal, *signature.follows)):
            continue  # sizes that depend on others: test_routing.py
        more_operands = _local(operands, signature.operands, signature, loop, 2 * entry.size)
        more_results = _local(results, signature.results, signature, loop, 2 * entry.size)
        op = case.op.rescaled(more_operands, more_results)
        assert list(op.infer(*more_operands)) == more_results


# --- helpers -------------------------------------------------------------------------------------


def _onnx_attributes(op: Op) -> dict[str, Any]:
    """The op's attributes as ONNX writes them."""
    found = {field.name: getattr(op, field.name) for field in fields(cast("Any", op))}
    return {name: int(value) if isinstance(value, bool) else value for name, value in found.items()}


def _signature(case: Case) -> tuple[Signature, list[TensorType], list[TensorType]]:
    operands = case.types()
    results = list(case.op.infer(*operands))
    return case.op.signature(operands, results), operands, results


def _built(case: Case) -> tuple[Builder, list[Value], list[Value]]:
    builder = Builder("case")
    values = [
        builder.input(f"x{i}", array.shape, dtype_of(array))
        for i, array in enumerate(case.arrays())
    ]
    return builder, values, list(builder.apply(case.op, *values))


def _wanted(case: Case) -> list[bool]:
    """Operands that a gradient is asked for: mean and variance of a BatchNormalization are none."""
    wanted = [type.dtype.is_float for type in case.types()]
    return [*wanted[:3], False, False] if case.op.name == "BatchNormalization" else wanted


def _is_lowered(case: Case) -> bool:
    """Composites whose reduced loops are split in their spelled-out form only."""
    builder, _, _ = _built(case)
    return case.op.lower(builder, builder.nodes[-1]) is not None


def _halves(size: int) -> list[Array]:
    cut = max(1, size // 2)
    return [np.arange(cut), np.arange(cut, size)]


def _odd_and_even(size: int) -> list[Array]:
    return [np.arange(0, size, 2), np.arange(1, size, 2)]


def _local(
    types: Sequence[TensorType],
    dims: Sequence[Sequence[Sequence[int]]],
    signature: Signature,
    loop: int,
    size: int,
) -> list[TensorType]:
    """The types with another size of one loop."""
    sizes = [entry.size for entry in signature.loops]
    for follower, leader in signature.follows:
        if leader == loop:
            sizes[follower] = sizes[follower] * size // sizes[loop]
    sizes[loop] = size
    return [
        type.with_shape(
            tuple(
                math.prod(sizes[i] for i in loops) if loops else n
                for loops, n in zip(each, type.shape, strict=True)
            )
        )
        for type, each in zip(types, dims, strict=True)
    ]


def _part(
    array: Array, dims: Sequence[Sequence[int]], signature: Signature, loop: int, held: Array
) -> Array | None:
    """The positions `held` along `loop`, or the same part of a loop that follows it; `None` if the
    array carries neither."""
    sizes = [entry.size for entry in signature.loops]
    shape: list[int] = []
    found: tuple[int, Array] | None = None
    for loops, size in zip(dims, array.shape, strict=True):
        for i in loops or (None,):
            if i == loop:
                found = len(shape), held
            elif (i, loop) in signature.follows and i is not None:
                start, stop = (int(n) * sizes[i] // sizes[loop] for n in (held[0], held[-1] + 1))
                found = len(shape), np.arange(start, stop)
            shape.append(size if i is None else sizes[i])
    return None if found is None else np.take(array.reshape(shape), found[1], axis=found[0])


def _check_shards(case: Case, signature: Signature, loop: int, parts: Sequence[Array]) -> None:
    arrays, types = case.arrays(), case.types()
    whole = case.op.evaluate(*arrays)
    result_types = list(case.op.infer(*types))
    op = case.op.rescaled(types, result_types)  # tells means the count of the whole
    kind = signature.loops[loop].kind
    if loop == 0 and op.picks_by is not None:  # as `Sharded` hands them over
        arrays[op.picks_by] = from_start(arrays[op.picks_by], signature.loops[0].size)
    shards: list[tuple[Array, ...]] = []
    for held in parts:
        local_arrays: list[Array] = []
        local_types = _local(types, signature.operands, signature, loop, len(held))
        local_results = _local(result_types, signature.results, signature, loop, len(held))
        for array, dims, type in zip(arrays, signature.operands, local_types, strict=True):
            local = _part(array, dims, signature, loop, held)
            local_arrays.append((array if local is None else local).reshape(type.shape))
        local_op = op.localized(local_types, local_results)
        assert list(local_op.infer(*local_types)) == local_results
        shard = local_op.evaluate_shard({loop: held}, *local_arrays)
        assert [result.shape for result in shard] == [type.shape for type in local_results]
        shards.append(shard)
    for position, expected in enumerate(whole):
        pieces = [shard[position] for shard in shards]
        dims = signature.results[position]
        if _part(expected, dims, signature, loop, parts[0]) is not None:
            for held, piece in zip(parts, pieces, strict=True):
                part = _part(expected, dims, signature, loop, held)
                assert part is not None
                np.testing.assert_allclose(piece.reshape(part.shape), part, atol=1e-12)
        elif kind is Kind.MAX:
            np.testing.assert_allclose(np.maximum(*pieces), expected, atol=1e-12)
        elif kind in (Kind.SUM, Kind.PICK):
            np.testing.assert_allclose(sum(pieces), expected, atol=1e-12)
        else:
            for piece in pieces:
                np.testing.assert_allclose(piece, expected, atol=1e-12)


def _difference_quotients(
    op: Op, arrays: Sequence[Array], position: int, pulls: Sequence[Array], step: float = 1e-5
) -> Array:
    """Central differences of the results' product with `pulls`."""

    def pulled(moved: Array) -> float:
        operands = [moved if i == position else a for i, a in enumerate(arrays)]
        results = [r for r in op.evaluate(*operands) if r.dtype.kind == "f"]
        return float(sum((r * pull).sum() for r, pull in zip(results, pulls, strict=True)))

    base = arrays[position]
    quotients = np.zeros(base.shape)
    for place in np.ndindex(*base.shape):
        up, down = base.copy(), base.copy()
        up[place] += step
        down[place] -= step
        quotients[place] = (pulled(up) - pulled(down)) / (2 * step)
    return quotients
