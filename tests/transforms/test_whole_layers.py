"""Layers that have no axis to split are layers all the same."""

from __future__ import annotations

import pytest

from distir import Simulator, Strategy, Workload, load_cluster
from distir.execute.verify import Verifier
from distir.importers.load import LoadedModel
from distir.ir import Builder, Function
from distir.ops.activations import Relu
from distir.ops.linalg import MatMul
from distir.ops.norm import LayerNormalization


def normed(layers: int, width: int = 1024) -> Function:
    """Layers of a product, a norm over all that it makes, and an activation: what a norm reads it
    needs whole, so that no layer has an axis that tensor parallelism could split."""
    builder = Builder("normed")
    x = builder.input("x", (11, width))
    for number in range(layers):
        made = builder.add(MatMul(), x, builder.parameter(f"w{number}", (width, width)))
        scale = builder.parameter(f"scale{number}", (width,))
        shift = builder.parameter(f"shift{number}", (width,))
        x = builder.add(Relu(), builder.add(LayerNormalization(), made, scale, shift))
    return builder.build([x])


def workload(layers: int) -> Workload:
    """The layers in training, with a loss."""
    model = LoadedModel("normed", normed(layers))
    return Workload(model=model, batch_size=64, loss="mse")


@pytest.mark.parametrize("layers", [12, 40])
def test_every_layer_but_the_first_and_last_is_a_block(layers: int) -> None:
    blocks = workload(layers).program.blocks
    assert layers - 4 <= len(blocks.blocks) <= layers
    products = [sum(isinstance(n.op, MatMul) for n in each.nodes) for each in blocks.blocks]
    assert sum(products) == layers
    assert products[1:-1] == [1] * (len(products) - 2)
    assert len(set(blocks.representative[1:-1])) == 1


def test_sharded_layers_are_gathered_one_after_the_other() -> None:
    """With ZeRO 3 a device holds its part of the state and a layer or two, not all of them."""
    deep, shallow = (
        Simulator(workload(layers), load_cluster("dgx-a100", 8)).simulate(
            Strategy(dp=8, zero=3, recompute="full")
        )
        for layers in (40, 20)
    )
    layer_bytes = 1024 * 1024 * 2
    more = deep.metrics["peak_memory_bytes"] - shallow.metrics["peak_memory_bytes"]
    assert more < 20 * layer_bytes * 2  # an eighth of 16 bytes per parameter, not more


def test_their_plans_compute_what_one_device_does() -> None:
    strategy = Strategy(dp=2, pp=2, microbatches=2, zero=3, recompute="full")
    result = Verifier(workload(12)).verify(strategy)
    assert result.passed, result.first_difference
