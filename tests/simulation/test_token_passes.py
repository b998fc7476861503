"""Passes over tokens on their way to experts: in which type they travel, and what copies them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import pytest

from distir import Simulator, Strategy, Workload, load_cluster
from distir.cost import SoftwareStack, load_stack
from distir.importers.load import load_source
from distir.ir.core import Node
from distir.models.transformer import TransformerConfig
from distir.models.zoo import find_model
from distir.ops.collective import AllToAll, Rearranged
from distir.ops.elementwise import Cast
from distir.plan_text import format_plan, parse_plan
from distir.simulation.reference import simulate_reference

HIDDEN, TOKENS, EXPERTS, TOP_K = 2048, 1024, 128, 8
CLUSTER = load_cluster("hgx-h100", 8)
SHARED = Strategy(dp=8, ep=8, microbatches=2)


def workload(precision: str, layers: int = 2) -> Workload:
    """A narrow mixture with many experts, Qwen3-30B-A3B."""
    config = find_model("qwen3-30b-a3b")
    assert isinstance(config, TransformerConfig)
    small = replace(config, layers=layers, vocabulary=1024)
    model = load_source(lambda: small)
    return Workload(model=model, batch_size=16, sequence_length=TOKENS, precision=precision)


WORKLOADS = {precision: workload(precision) for precision in ("bf16", "fp8")}


def stack(
    *, sorts_tokens: bool = False, pads_experts: bool = False, sends_narrow_tokens: bool = False
) -> SoftwareStack:
    return replace(
        load_stack("megatron"),
        sorts_tokens=sorts_tokens,
        pads_experts=pads_experts,
        sends_narrow_tokens=sends_narrow_tokens,
    )


def passes(
    precision: str, stack: SoftwareStack, strategy: Strategy = SHARED
) -> tuple[Sequence[Node], Sequence[Node]]:
    """The ops of a layer, forward and backward."""
    simulator = Simulator(WORKLOADS[precision], CLUSTER, stack)
    layer = simulator.plan(strategy).stages[0].programs[1]
    return layer.forward, layer.computed_backward


def sent(nodes: Sequence[Node]) -> list[int]:
    """Bytes of tokens that a device exchanges with the experts, exchange by exchange."""
    return [
        node.operands[0].type.size_bytes
        for node in nodes
        if isinstance(node.op, AllToAll) and node.op.routed is not None
    ]


def copies(nodes: Sequence[Node], why: str) -> int:
    return sum(isinstance(node.op, Rearranged) and node.op.why == why for node in nodes)


def test_tokens_travel_in_the_type_of_activations_whatever_products_run_in() -> None:
    rows = TOKENS * TOP_K * HIDDEN
    for precision, nodes in product(("bf16", "fp8"), (0, 1)):
        assert sent(passes(precision, stack())[nodes]) == [2 * rows, 2 * rows]


def test_software_that_casts_before_it_sends_sends_half_as_much_there_and_all_of_it_back() -> None:
    rows = TOKENS * TOP_K * HIDDEN
    for nodes in passes("fp8", stack(sends_narrow_tokens=True)):
        assert sent(nodes) == [rows, 2 * rows]


def test_tokens_that_arrive_are_cast_once_for_all_products_that_read_them() -> None:
    for nodes in passes("fp8", stack()):
        assert sum(isinstance(node.op, Cast) for node in nodes) == 1
    for nodes in (*passes("bf16", stack()), *passes("fp8", stack(sends_narrow_tokens=True))):
        assert not any(isinstance(node.op, Cast) for node in nodes)


@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_tokens_are_sorted_where_a_device_has_several_experts_of_an_exchange(
    precision: str,
) -> None:
    sorts = stack(sorts_tokens=True)
    for nodes in passes(precision, sorts):
        assert copies(nodes, "sorted") == 2
    for nodes in (
        *passes(precision, replace(sorts, sends_copies_once=True)),
        *passes(precision, sorts, replace(SHARED, ep=1)),
        *passes(precision, stack()),
    ):
        assert copies(nodes, "sorted") == 0


def test_a_device_with_one_expert_sorts_nothing() -> None:
    strategy = Strategy(dp=16, ep=16, microbatches=1)
    config = find_model("qwen3-30b-a3b")
    assert isinstance(config, TransformerConfig)
    assert config.experts is not None
    few = replace(config, layers=1, vocabulary=1024, experts=replace(config.experts, count=16))
    one = Workload(model=load_source(lambda: few), batch_size=16, sequence_length=TOKENS)
    simulator = Simulator(one, load_cluster("hgx-h100", 16), stack(sorts_tokens=True))
    layer = simulator.plan(strategy).stages[0].programs[1]
    assert copies(layer.forward, "sorted") == copies(layer.computed_backward, "sorted") == 0


def test_rows_are_aligned_before_and_after_products_in_fp8_alone() -> None:
    pads = stack(pads_experts=True)
    for strategy in (SHARED, replace(SHARED, ep=1)):
        for nodes in passes("fp8", pads, strategy):
            assert copies(nodes, "aligned") == 2
        for nodes in (*passes("bf16", pads, strategy), *passes("fp8", stack(), strategy)):
            assert copies(nodes, "aligned") == 0


def test_a_sort_reads_and_writes_every_row_once() -> None:
    """Two passes forward and two backward over 1,024 tokens at 8 experts, 2,048 numbers in bf16
    each, per layer and microbatch, at the bandwidth of the device's memory."""
    plain = load_stack("ideal")
    found = [
        Simulator(WORKLOADS["bf16"], CLUSTER, each).simulate(SHARED).metrics["iteration_seconds"]
        for each in (plain, replace(plain, sorts_tokens=True))
    ]
    moved = 2 * TOKENS * TOP_K * HIDDEN * 2
    bandwidth = CLUSTER.device.memory_bandwidth_bytes_per_second
    assert found[1] - found[0] == pytest.approx(2 * 2 * 4 * moved / bandwidth, rel=1e-6)


ALL = [
    dict(zip(("sorts_tokens", "pads_experts", "sends_narrow_tokens"), each, strict=True))
    for each in product((False, True), repeat=3)
]


@pytest.mark.parametrize("facts", ALL)
def test_every_pass_costs_time_and_both_engines_agree(facts: dict[str, bool]) -> None:
    simulator = Simulator(WORKLOADS["fp8"], CLUSTER, stack(**facts))
    fast = simulator.simulate(SHARED)
    slow = simulate_reference(simulator.plan(SHARED), simulator.cost).result
    assert fast.metrics["iteration_seconds"] == pytest.approx(slow.metrics["iteration_seconds"])
    assert fast.metrics["peak_memory_bytes"] == slow.metrics["peak_memory_bytes"]


@pytest.mark.parametrize("facts", ALL)
def test_a_plan_read_back_has_the_same_passes(facts: dict[str, bool]) -> None:
    plan = Simulator(WORKLOADS["fp8"], CLUSTER, stack(**facts)).plan(SHARED)
    assert format_plan(parse_plan(format_plan(plan))) == format_plan(plan)


def test_many_plans_at_once_have_the_passes_of_each() -> None:
    strategies = [Strategy(dp=8, ep=ep, microbatches=m) for ep in (1, 2, 4, 8) for m in (1, 2)]
    strategies += [Strategy(dp=4, tp=2, ep=ep, etp=1) for ep in (2, 8)]
    simulator = Simulator(WORKLOADS["fp8"], CLUSTER, stack(sorts_tokens=True, pads_experts=True))
    table = simulator.simulate_many(strategies)
    for index, strategy in enumerate(strategies):
        one, many = simulator.simulate(strategy).metrics, table.result(index).metrics
        assert many == pytest.approx(one)
