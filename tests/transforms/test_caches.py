"""Keys and values that a model takes in from the step before and hands out for the next are split
over heads like the rest of attention: they are no borders of a block."""

from __future__ import annotations

import pytest

from distir import Strategy, Workload
from distir.execute.verify import RELATIVE_TOLERANCE, verify
from distir.importers.load import LoadedModel
from distir.ir.builder import Builder
from distir.ir.core import Value
from distir.ir.function import Function
from distir.ir.types import DType
from distir.ops.arithmetic import Add
from distir.ops.linalg import MatMul
from distir.ops.norm import Softmax
from distir.ops.tensor import Concat, Reshape, Transpose

BATCH, LENGTH, PAST, HEADS, DEPTH = 3, 5, 7, 4, 6
WIDTH = HEADS * DEPTH


def decoder(layers: int, *, takes: bool, gives: bool) -> Function:
    """Layers of attention that take past keys and values, or hand theirs out, or both."""
    builder = Builder("decoder")

    def weight(name: str) -> Value:
        return builder.parameter(name, (WIDTH, WIDTH), DType.FLOAT32)

    def cache(name: str) -> Value:
        return builder.input(name, (BATCH, HEADS, PAST, DEPTH), DType.FLOAT32)

    x = builder.input("x", (BATCH, LENGTH, WIDTH), DType.FLOAT32)
    caches: list[Value] = []
    for layer in range(layers):
        parts: list[Value] = []
        for name in "qkv":
            made = builder.add(MatMul(), x, weight(f"{layer}.{name}"))
            apart = builder.add(Reshape((BATCH, LENGTH, HEADS, DEPTH)), made)
            parts.append(builder.add(Transpose((0, 2, 1, 3)), apart))
        q, k, v = parts
        if takes:
            k = builder.add(Concat(2), cache(f"{layer}.past_k"), k)
            v = builder.add(Concat(2), cache(f"{layer}.past_v"), v)
        # One is handed out as it is read on, the other in a shape of its own.
        caches += [k, builder.add(Transpose((0, 2, 1, 3)), v)] if gives else []
        scores = builder.add(MatMul(), q, builder.add(Transpose((0, 1, 3, 2)), k))
        mixed = builder.add(MatMul(), builder.add(Softmax(-1), scores), v)
        joined = builder.add(Transpose((0, 2, 1, 3)), mixed)
        joined = builder.add(Reshape((BATCH, LENGTH, WIDTH)), joined)
        x = builder.add(Add(), x, builder.add(MatMul(), joined, weight(f"{layer}.o")))
    return builder.build([x, *caches])


@pytest.mark.parametrize("mode", ["training", "inference"])
@pytest.mark.parametrize(("takes", "gives"), [(True, True), (True, False), (False, True)])
def test_heads_of_caches_are_split(takes: bool, gives: bool, mode: str) -> None:
    model = LoadedModel("decoder", decoder(4, takes=takes, gives=gives))
    workload = Workload(model=model, batch_size=4, mode=mode)  # pyright: ignore[reportArgumentType]
    assert ("heads", HEADS) in workload.internal_axes
    result = verify(workload, Strategy(dp=2, tp=2, pp=2))
    assert result.max_relative_error < RELATIVE_TOLERANCE
    assert result.simulated_peak_bytes == result.executed_peak_bytes


def test_the_columns_of_an_output_that_nothing_reads_are_a_border() -> None:
    builder = Builder("two ends")
    x = builder.input("x", (BATCH, WIDTH), DType.FLOAT32)
    h = builder.add(MatMul(), x, builder.parameter("w", (WIDTH, 8), DType.FLOAT32))
    ends = [
        builder.add(MatMul(), h, builder.parameter(f"v{n}", (8, n), DType.FLOAT32)) for n in (5, 3)
    ]
    model = LoadedModel("two ends", builder.build(ends))
    workload = Workload(model=model, batch_size=4, mode="inference")
    assert {5, 3}.isdisjoint(size for _, size in workload.internal_axes)
