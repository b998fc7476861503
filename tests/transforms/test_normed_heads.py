"""Attention whose queries and keys are normed over all heads is split over heads."""

from __future__ import annotations

import numpy as np
import pytest

from distir import Strategy, Workload
from distir.execute.verify import Verifier
from distir.importers.load import LoadedModel
from distir.ir import Builder, Function, Value
from distir.ops.activations import Relu
from distir.ops.arithmetic import Add, Div, Mul, Sqrt
from distir.ops.linalg import MatMul
from distir.ops.norm import RMSNormalization, Softmax
from distir.ops.reduce import ReduceMean
from distir.ops.tensor import Expand, Reshape, Transpose
from distir.program import build_program

BATCH, LENGTH, HIDDEN, SIZE = 5, 7, 24, 10
HEADS, GROUPS, FFN = 6, 2, 44


def _normed(builder: Builder, x: Value, name: str, *, spelled_out: bool) -> Value:
    scale = builder.parameter(name, (x.type.shape[-1],))
    if not spelled_out:
        return builder.add(RMSNormalization(), x, scale)
    mean = builder.add(ReduceMean((-1,)), builder.add(Mul(), x, x))
    small = builder.constant(np.array(1e-5), x.type.dtype)
    root = builder.add(Sqrt(), builder.add(Add(), mean, small))
    return builder.add(Mul(), builder.add(Div(), x, root), scale)


def normed_heads(*, spelled_out: bool, layers: int = 6) -> Function:
    """Layers whose queries and keys are normed before they are parted into heads, as OLMo 2 has
    them."""
    builder = Builder("normed heads")
    x = builder.input("x", (BATCH, LENGTH, HIDDEN))
    heads = HEADS // GROUPS
    shape = (BATCH, LENGTH, GROUPS, heads, SIZE)
    for n in range(layers):
        made = {
            name: builder.add(MatMul(), x, builder.parameter(f"{name}{n}", (HIDDEN, width * SIZE)))
            for name, width in (("q", HEADS), ("k", GROUPS), ("v", GROUPS))
        }
        for name in "qk":
            made[name] = _normed(builder, made[name], f"s{name}{n}", spelled_out=spelled_out)
        turn = Transpose((0, 2, 3, 1, 4))
        queries = builder.add(turn, builder.add(Reshape(shape), made["q"]))
        keys, values = (
            builder.add(
                Expand((BATCH, GROUPS, heads, LENGTH, SIZE)),
                builder.add(turn, builder.add(Reshape((*shape[:3], 1, SIZE)), made[name])),
            )
            for name in "kv"
        )
        scores = builder.add(MatMul(), queries, builder.add(Transpose((0, 1, 2, 4, 3)), keys))
        mixed = builder.add(MatMul(), builder.add(Softmax(), scores), values)
        mixed = builder.add(Transpose((0, 3, 1, 2, 4)), mixed)
        mixed = builder.add(Reshape((BATCH, LENGTH, HEADS * SIZE)), mixed)
        out = builder.parameter(f"o{n}", (HEADS * SIZE, HIDDEN))
        x = builder.add(Add(), x, builder.add(MatMul(), mixed, out))
        up = builder.add(
            Relu(), builder.add(MatMul(), x, builder.parameter(f"u{n}", (HIDDEN, FFN)))
        )
        x = builder.add(
            Add(), x, builder.add(MatMul(), up, builder.parameter(f"d{n}", (FFN, HIDDEN)))
        )
    return builder.build([x])


@pytest.mark.parametrize("spelled_out", [True, False])
def test_heads_are_split_and_their_size_is_not(spelled_out: bool) -> None:
    function = normed_heads(spelled_out=spelled_out)
    blocks = build_program(function, training=True, loss="mse").blocks
    assert {axis.size for axis in blocks.head_axes} == {GROUPS}
    assert {axis.size for axis in blocks.internal_axes} == {GROUPS, FFN}
    assert {axis.size for axis in blocks.inner_axes.values()} == {HEADS // GROUPS}


@pytest.mark.parametrize("spelled_out", [True, False])
def test_plans_that_split_them_compute_what_one_device_does(spelled_out: bool) -> None:
    model = LoadedModel("normed heads", normed_heads(spelled_out=spelled_out))
    workload = Workload(model=model, batch_size=8, loss="mse")
    result = Verifier(workload).verify(Strategy(dp=2, tp=2, pp=2, microbatches=2))
    assert result.passed, result.first_difference
