"""Gathers and scatters of activations that are pipelined with products, done in pieces."""

from __future__ import annotations

from dataclasses import replace

import pytest

from distir import Simulator, Strategy, Workload, load_cluster, load_model
from distir.cost import SoftwareStack, load_stack
from distir.ir import Node
from distir.ops.collective import Collective
from distir.plan import Plan
from distir.simulation.pricing.instructions import Pricing
from distir.simulation.reference import simulate_reference

IDEAL = load_stack("ideal")


def plan_with(stack: SoftwareStack, tp: int, *, model: str = "gpt3-6.7B") -> tuple[Simulator, Plan]:
    workload = Workload(model=load_model(model), batch_size=4)
    simulator = Simulator(workload, load_cluster("dgx-a100", tp), stack)
    return simulator, simulator.plan(Strategy(tp=tp, sequence_parallel=True))


def collectives(plan: Plan) -> list[tuple[Node, list[Node]]]:
    """The gathers and scatters of a layer's forward pass, with all nodes of the pass."""
    nodes = list(plan.stages[0].programs[1].forward)
    return [(each, nodes) for each in nodes if isinstance(each.op, Collective)]


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_all_but_a_piece_of_the_products_hides_communication(tp: int) -> None:
    """t + c/n where communication is longer, c otherwise: of each, t - c (n-1)/n is left."""
    simulator, plan = plan_with(replace(IDEAL, overlaps_activations=True), tp)
    pricing = Pricing.of(simulator.cost, plan)
    found = 0
    for node, nodes in collectives(plan):
        beside = pricing.products_beside(nodes)[node]
        computing = sum(pricing.of_node(each)[0].seconds for each in beside)
        alone = pricing.of_node(node)[0].seconds
        left = pricing.of_node(node, beside)[0].seconds
        assert left == pytest.approx(max(0.0, alone - computing * (tp - 1) / tp))
        found += 1
    assert found == 4


def test_every_product_hides_one_collective() -> None:
    simulator, plan = plan_with(replace(IDEAL, overlaps_activations=True), 4)
    pricing = Pricing.of(simulator.cost, plan)
    for program in plan.stages[0].programs:
        for nodes in (program.forward, program.backward_ops):
            hiding = [each for own in pricing.products_beside(nodes).values() for each in own]
            assert len(hiding) == len(set(hiding))


@pytest.mark.parametrize("tp", [2, 8])
@pytest.mark.parametrize("stack", ["fsdp-compiled", "fsdp-eager", "ideal"])
def test_pipelining_never_loses_and_hides_no_more_than_communication(stack: str, tp: int) -> None:
    def seconds(overlaps: bool, free: bool = False) -> float:
        own = replace(load_stack(stack), overlaps_activations=overlaps)
        simulator, plan = plan_with(own, tp, model="gpt2-medium")
        if free:
            levels = tuple(
                replace(level, bandwidth_bytes_per_second=1e18, latency_seconds=0.0)
                for level in simulator.cost.cluster.levels
            )
            cluster = replace(simulator.cost.cluster, levels=levels)
            free_stack = replace(own, collective_launch_seconds=0.0)
            simulator = Simulator(plan.workload, cluster, free_stack)
        return simulator.simulate_plan(plan).metrics["iteration_seconds"]

    assert seconds(False, free=True) <= seconds(True) <= seconds(False)
    assert seconds(True) < seconds(False)


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_both_engines_pipeline_alike(schedule: str) -> None:
    workload = Workload(model=load_model("gpt2-medium"), batch_size=8)
    stack = replace(load_stack("fsdp-eager"), overlaps_activations=True)
    simulator = Simulator(workload, load_cluster("dgx-a100", 8), stack)
    strategy = Strategy(tp=4, pp=2, microbatches=4, schedule=schedule, sequence_parallel=True)
    plan = simulator.plan(strategy)
    fast = simulator.simulate_plan(plan).metrics["iteration_seconds"]
    slow = simulate_reference(plan, simulator.cost).result.metrics["iteration_seconds"]
    many = simulator.simulate_many([strategy]).metrics["iteration_seconds"][0]
    assert slow == pytest.approx(fast, rel=1e-9)
    assert many == pytest.approx(fast, rel=1e-9)
