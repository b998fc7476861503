"""Runs of elementwise ops as one kernel."""

from __future__ import annotations

from collections.abc import Sequence

from distir.ir import Builder, DType
from distir.ir.core import Node
from distir.ops.activations import Relu
from distir.ops.fused import Fused
from distir.ops.norm import Softmax, SoftmaxGradient
from distir.ops.tensor import Scale
from distir.transforms.fuse import fuse_elementwise


def test_scale_and_softmax_are_one_kernel_on_both_ways() -> None:
    """A read and a write forward, two reads and a write back, instead of twice as many passes."""
    builder = Builder("attention")
    scores = builder.input("scores", (8, 64, 64), DType.FLOAT16)
    gradient = builder.input("gradient", (8, 64, 64), DType.FLOAT16)
    weights = builder.add(Softmax(), builder.add(Scale(0.125), scores))
    back = builder.add(SoftmaxGradient(), weights, gradient)
    result = builder.add(Scale(0.125), back)
    size = scores.type.size_bytes

    def moved(nodes: Sequence[Node]) -> list[float]:
        works = (n.op.work(n.operand_types, n.result_types) for n in nodes)
        return [float(work.bytes) / size for work in works]

    assert moved(builder.nodes) == [2, 2, 3, 2]
    fused = fuse_elementwise(builder.nodes, {weights, result})
    assert [type(node.op) for node in fused] == [Fused, Fused]
    assert moved(fused) == [2, 3]


def test_what_follows_a_softmax_is_a_kernel_of_its_own() -> None:
    builder = Builder("attention")
    scores = builder.input("scores", (8, 64, 64), DType.FLOAT16)
    last = builder.add(Relu(), builder.add(Softmax(), scores))
    assert len(fuse_elementwise(builder.nodes, {last})) == 2
