"""A model that stops gradients between its layers cannot be trained before that place."""

from __future__ import annotations

import pytest

from distir import Strategy, Workload, load_cluster
from distir.errors import TransformError
from distir.importers.load import LoadedModel
from distir.ir import Builder, Function
from distir.ops.elementwise import StopGradient
from distir.ops.linalg import MatMul
from distir.simulation import Simulator


def stopped() -> Function:
    builder = Builder("stopped")
    x = builder.input("x", (4, 16))
    for layer in range(3):
        up = builder.add(MatMul(), x, builder.parameter(f"{layer}.up", (16, 64)))
        up = builder.add(StopGradient(), up)
        x = builder.add(MatMul(), up, builder.parameter(f"{layer}.down", (64, 16)))
    return builder.build([x])


def test_where_no_gradient_comes_back_is_told() -> None:
    workload = Workload(model=LoadedModel("stopped", stopped()), batch_size=4)
    with pytest.raises(TransformError, match=r"no gradient comes back to .*; .*inference"):
        Simulator(workload, load_cluster("dgx-a100", 1)).simulate(Strategy())


def test_the_forward_pass_of_such_a_model_is_simulated() -> None:
    workload = Workload(model=LoadedModel("stopped", stopped()), batch_size=4, mode="inference")
    assert Simulator(workload, load_cluster("dgx-a100", 1)).simulate(Strategy()).feasible
