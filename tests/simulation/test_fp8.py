"""Precision fp8: operands of products are cast, all else is as in bf16."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from distir import Simulator, Strategy, Workload, load_cluster, load_model
from distir.cost import OpClass, load_stack
from distir.cost.stack import Scaling
from distir.importers.load import LoadedModel
from distir.importers.probe import build_at_probe_sizes
from distir.ir import Builder, DType, Function
from distir.models.transformer import TransformerConfig
from distir.models.zoo import find_model
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


# --- where scales come from -----------------------------------------------------------------------


def with_scaling(scaling: Scaling) -> float:
    """Seconds of a product of two 8192 x 8192 matrices on an H100."""
    workload = Workload(model=load_model("gpt2"), batch_size=8, precision="fp8")
    stack = replace(load_stack("ideal"), fp8_scaling=scaling)
    simulator = Simulator(workload, load_cluster("hgx-h100"), stack)
    return product_seconds(Pricing.of(simulator.cost, simulator.plan(Strategy())), 8192)


def test_a_scale_that_is_not_known_beforehand_costs_a_pass_over_the_operands() -> None:
    """Half of it, that is: an operand has two products. So do rows of their own, as both layouts
    are read; the maxima of blocks are found in the cast."""
    delayed = with_scaling("delayed")
    more = 2 * 0.5 * 2 * 8192**2 / 3.35e12
    assert with_scaling("blocks") == delayed
    assert with_scaling("rows") == pytest.approx(delayed + more, rel=1e-6)
    assert with_scaling("current") == pytest.approx(delayed + more, rel=1e-6)


IN_FP8, IN_BF16 = 8532, 6667
"""Tokens per second and GPU of Llama 3.1 8B on 8 H100 with HBM2e (2.4 TB/s), FSDP and
torch.compile, with fp8 scaled by the tensor's own maximum and without (pytorch/torchtitan,
benchmarks/llama3_h100_202412_torchtitan.md, table 1)."""


@pytest.mark.slow(seconds=3)
def test_fp8_gains_about_as_much_as_published() -> None:
    cluster = load_cluster("hgx-h100", 8)
    device = replace(cluster.device, memory_bandwidth_bytes_per_second=2.4e12)

    def seconds(precision: str) -> float:
        model = load_model("llama3-8b")
        workload = Workload(model=model, batch_size=16, sequence_length=8192, precision=precision)
        simulator = Simulator(workload, cluster.with_device(device))
        strategy = Strategy(dp=8, zero=3, recompute="alternate")
        return simulator.simulate(strategy).metrics["iteration_seconds"]

    assert seconds("bf16") / seconds("fp8") == pytest.approx(IN_FP8 / IN_BF16, rel=0.07)


def products_in_fp8(plan: Plan, priced: Pricing) -> dict[str, set[bool]]:
    """By what a product is there for: whether it is priced as one in fp8."""
    in_bf16 = replace(priced, product=None)
    found: dict[str, set[bool]] = {}
    for stage in plan.stages:
        for program in stage.programs:
            for node in (*program.forward, *program.backward_ops):
                if node.op.work(node.operand_types, node.result_types).kind is OpClass.PRODUCT:
                    types = (*node.operand_types, *node.result_types)
                    is_head = any(50257 in each.shape for each in types)
                    weights = any(each.rank == 2 for each in types)
                    what = "head" if is_head else "layer" if weights else "attention"
                    differs = priced.of_node(node) != in_bf16.of_node(node)
                    found.setdefault(what, set()).add(differs)
    return found


def test_head_and_attention_stay_in_bf16() -> None:
    """DeepSeek-AI (2024, section 3.3.1), and what Transformer Engine and torchao do by default."""
    config = find_model("gpt2")
    assert isinstance(config, TransformerConfig)

    def build(batch_size: int, sequence_length: int) -> Function:
        return config.build(batch_size, sequence_length, "eager")

    function = build_at_probe_sizes(build, config.longest)
    model = LoadedModel("gpt2", function, config.sequence_length, config.longest)
    workload = Workload(model=model, batch_size=8, precision="fp8")
    simulator = Simulator(workload, load_cluster("hgx-h100"), load_stack("ideal"))
    plan = simulator.plan(Strategy())
    found = products_in_fp8(plan, Pricing.of(simulator.cost, plan))
    assert found == {"head": {False}, "layer": {True}, "attention": {False}}


def test_what_the_head_reads_is_not_made_in_fp8() -> None:
    plan, _ = plan_and_pricing("hgx-h100", "fp8")
    head = plan.stages[-1].programs[-1]
    types = {t.dtype.short_name for node in head.forward for t in node.result_types}
    assert "fp8" not in types
