"""Precision tf32: products of fp32 on matrix units, all else is as in fp32."""

from __future__ import annotations

from typing import Any

import pytest

from distir import Simulator, Strategy, Workload, load_cluster, load_model
from distir.cost import OpClass, load_stack
from distir.ir import Builder, DType
from distir.ops.linalg import MatMul
from distir.plan import Plan
from distir.plan_text import format_plan, parse_plan
from distir.simulation.pricing.instructions import Pricing


def simulator(cluster: str, precision: str, devices: int = 1, **options: Any) -> Simulator:
    model = load_model("bert-large", **options)
    workload = Workload(model=model, batch_size=8, sequence_length=512, precision=precision)
    return Simulator(workload, load_cluster(cluster, devices), load_stack("ideal"))


def plan_and_pricing(cluster: str, precision: str, **options: Any) -> tuple[Plan, Pricing]:
    made = simulator(cluster, precision, **options)
    plan = made.plan(Strategy())
    return plan, Pricing.of(made.cost, plan)


@pytest.mark.parametrize(("precision", "rate"), [("fp32", 19.5e12), ("tf32", 156e12)])
def test_a_large_product_runs_at_the_rate_of_its_type(precision: str, rate: float) -> None:
    """8192^3 on an A100, whose matrix units reach 156 TFLOP/s in TF32; nothing is cast."""
    builder = Builder()
    a, b = (builder.input(name, (8192, 8192), DType.FLOAT32) for name in "ab")
    (node,) = builder.build([builder.add(MatMul(), a, b)]).nodes
    (instruction,) = plan_and_pricing("dgx-a100", precision)[1].of_node(node)
    assert instruction.seconds == pytest.approx(2 * 8192**3 / rate, rel=1e-3)


@pytest.mark.parametrize(
    ("attention", "faster"),
    [("eager", {OpClass.PRODUCT}), ("fused", {OpClass.PRODUCT, OpClass.ATTENTION})],
)
def test_products_alone_are_faster_than_in_fp32(attention: str, faster: set[OpClass]) -> None:
    plan, in_tf32 = plan_and_pricing("dgx-a100", "tf32", attention=attention)
    in_fp32 = plan_and_pricing("dgx-a100", "fp32", attention=attention)[1]
    found = {
        node.op.work(node.operand_types, node.result_types).kind
        for stage in plan.stages
        for program in stage.programs
        for node in (*program.forward, *program.backward_ops)
        if in_fp32.of_node(node) != in_tf32.of_node(node)
    }
    assert found == faster


def test_attention_in_a_ring_multiplies_in_tf32_as_well() -> None:
    plan = Strategy(cp=2, cp_exchange="ring")
    seconds = {
        precision: simulator("dgx-a100", precision, 2, attention="fused")
        .simulate(plan)
        .metrics["iteration_seconds"]
        for precision in ("fp32", "tf32")
    }
    assert seconds["tf32"] < seconds["fp32"] / 4


def test_memory_and_messages_are_those_of_fp32() -> None:
    tf32, fp32 = (simulator("dgx-a100", each).simulate(Strategy()) for each in ("tf32", "fp32"))
    assert tf32.metrics["peak_memory_bytes"] == fp32.metrics["peak_memory_bytes"]
    assert tf32.metrics["iteration_seconds"] < fp32.metrics["iteration_seconds"] / 4


def test_a_device_without_tf32_multiplies_in_fp32() -> None:
    tf32, fp32 = (simulator("dgx2-v100", each).simulate(Strategy()) for each in ("tf32", "fp32"))
    assert tf32.metrics["iteration_seconds"] == fp32.metrics["iteration_seconds"]
    assert tf32.metrics["mfu"] == fp32.metrics["mfu"]


def test_a_plan_in_tf32_is_written_and_read() -> None:
    text = format_plan(simulator("dgx-a100", "tf32").plan(Strategy()))
    again = parse_plan(text)
    assert again.workload.precision == "tf32"
    assert format_plan(again) == text
