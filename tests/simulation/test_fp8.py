"""Precision fp8: operands of products are cast, all else is as in bf16."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from distir import Simulator, Strategy, Workload, load_cluster, load_model
from distir.cost import OpClass, load_stack
from distir.ir import Builder, DType
from distir.ops.linalg import MatMul
from distir.plan import Plan
from distir.simulation.pricing.instructions import Pricing


def plan_and_pricing(cluster: str, precision: str) -> tuple[Plan, Pricing]:
    workload = Workload(model=load_model("gpt2"), batch_size=8, precision=precision)
    simulator = Simulator(workload, load_cluster(cluster), load_stack("ideal"))
    plan = simulator.plan(Strategy())
    return plan, Pricing.of(simulator.cost, plan)


def pricing(cluster: str, precision: str) -> Pricing:
    return plan_and_pricing(cluster, precision)[1]


def product_seconds(priced: Pricing, n: int) -> float:
    """What a product of two n x n matrices of bf16 takes."""
    builder = Builder()
    a, b = (builder.input(name, (n, n), DType.BFLOAT16) for name in "ab")
    (node,) = builder.build([builder.add(MatMul(), a, b)]).nodes
    (instruction,) = priced.of_node(node)
    return instruction.seconds


def test_a_large_product_runs_at_twice_the_rate_and_pays_for_its_casts() -> None:
    """8192^3 on an H100: 1.1e12 FLOP at what it sustains of 1979 TFLOP/s, and of two operands half
    of what is read in two bytes, for two products take it, and what is written in one: 268 MB at
    3.35 TB/s."""
    fast, slow = pricing("hgx-h100", "fp8"), pricing("hgx-h100", "bf16")
    sustained = fast.cost.cluster.device.sustained_fraction
    expected = 2 * 8192**3 / (1978.9e12 * sustained) + 4 * 8192**2 / 3.35e12
    assert product_seconds(fast, 8192) == pytest.approx(expected, rel=1e-3)
    expected = 2 * 8192**3 / (989.4e12 * sustained)
    assert product_seconds(slow, 8192) == pytest.approx(expected, rel=1e-3)


def test_all_but_products_takes_as_long_as_in_bf16() -> None:
    plan, in_bf16 = plan_and_pricing("hgx-h100", "bf16")
    in_fp8 = pricing("hgx-h100", "fp8")
    dearer_or_cheaper = {
        node.op.work(node.operand_types, node.result_types).kind
        for stage in plan.stages
        for program in stage.programs
        for node in (*program.forward, *program.backward_ops)
        if in_bf16.of_node(node) != in_fp8.of_node(node)
    }
    assert dearer_or_cheaper == {OpClass.PRODUCT}


def test_a_device_without_fp8_computes_in_bf16() -> None:
    in_fp8, in_bf16 = (pricing("dgx-a100", precision) for precision in ("fp8", "bf16"))
    assert product_seconds(in_fp8, 4096) == product_seconds(in_bf16, 4096)


def test_a_step_is_faster_and_keeps_in_fp8_what_products_alone_read() -> None:
    def result(precision: str) -> Mapping[str, float]:
        workload = Workload(model=load_model("gpt3-6.7B"), batch_size=8, precision=precision)
        cluster = load_cluster("hgx-h100", 8)
        return Simulator(workload, cluster).simulate(Strategy(tp=8)).metrics

    fp8, bf16 = result("fp8"), result("bf16")
    assert fp8["iteration_seconds"] < bf16["iteration_seconds"]
    # Per token and layer both norms' results in one byte less (2 h): 32 x 8 x 2048 x 2 x 4096.
    # The activation's 4 h / 8, too, and part of the embedding's and head's.
    kept = 32 * 8 * 2048 * (2 + 4 / 8) * 4096
    saved = bf16["peak_memory_bytes"] - fp8["peak_memory_bytes"]
    assert saved == pytest.approx(kept, rel=0.05)
    assert fp8["mfu"] < 2 * bf16["mfu"]
