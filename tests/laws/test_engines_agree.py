"""The fast engine, which composes summaries of blocks, gives the same seconds and bytes as the
reference engine, which walks through every op on every device."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings

from distir import Strategy, Workload, load_cluster, load_model
from distir.cost import load_stack
from distir.plan import Plan
from distir.simulation import SimulationResult, Simulator
from distir.simulation.reference import ReferenceRun, simulate_reference
from tests.conftest import HEALTH_CHECKS, shared_path
from tests.laws.placements import AnyPlan, any_plans
from tests.laws.scenarios import Scenario, scenarios
from tests.slow import shares

RELATIVE = 1e-9


def without_split(memory: Mapping[str, float]) -> dict[str, float]:
    """Memory of a rank without what of its peak buffers hold. That is not the same at all instants
    at which most is held, and the engines come upon these in different orders."""
    working = memory["activations_bytes"] + memory["buffers_bytes"]
    return {**memory, "activations_bytes": working, "buffers_bytes": 0.0}


def check(simulator: Simulator, plan: Plan) -> tuple[SimulationResult, ReferenceRun]:
    """Both engines' results, found equal."""
    fast = simulator.simulate_plan(plan)
    run = simulate_reference(plan, simulator.cost)
    reference = run.result
    iteration = reference.metrics["iteration_seconds"]
    assert fast.metrics == pytest.approx(reference.metrics, rel=RELATIVE)
    assert fast.feasible == reference.feasible
    splits = run.buffer_bytes[:: plan.devices_per_stage]
    for ours, theirs, split in zip(fast.stages, reference.stages, splits, strict=True):
        # A wait of no length is a key to one engine and none to the other, where times round.
        kinds = dict.fromkeys((*ours.seconds, *theirs.seconds), 0.0)
        assert {**kinds, **ours.seconds} == pytest.approx(
            {**kinds, **theirs.seconds}, rel=RELATIVE, abs=RELATIVE * iteration
        )
        assert without_split(ours.memory) == without_split(theirs.memory)
        assert ours.memory["buffers_bytes"] in split
        assert ours.blocks == theirs.blocks
        assert ours.host_bytes == theirs.host_bytes
        for report in (ours, theirs):
            assert sum(report.seconds.values()) == pytest.approx(iteration, rel=RELATIVE)
            assert min(report.seconds.values()) >= -RELATIVE * iteration
    return fast, run


@shares(10, seconds=1)
@settings(max_examples=12, deadline=None, suppress_health_check=HEALTH_CHECKS)
@given(scenarios(sync_every=(1, 1, 4)))
def test_engines_agree_on_any_plan(share: int, scenario: Scenario) -> None:
    check(scenario.simulator, scenario.plan)


@shares(5, seconds=1)
@settings(max_examples=8, deadline=None, suppress_health_check=HEALTH_CHECKS)
@given(any_plans())
def test_engines_agree_on_any_placement(share: int, case: AnyPlan) -> None:
    check(case.simulator, case.plan)


STRATEGIES = (
    Strategy(),
    Strategy(dp=4),
    Strategy(dp=2, tp=4, microbatches=2),
    Strategy(dp=2, pp=5, microbatches=4),
    Strategy(dp=2, pp=2, chunks=2, microbatches=4, schedule="zb-v", zero=3),
    Strategy(tp=2, pp=4, microbatches=8, schedule="zb-h2", recompute="selective"),
    Strategy(tp=2, pp=3, microbatches=4, schedule="gpipe"),
)


@pytest.mark.parametrize("name", ["gpt2", "llama-8layer", "mlp16"])
def test_engines_agree_on_exported_models(name: str) -> None:
    check_model(str(shared_path(f"models/{name}.onnx")), STRATEGIES)


@pytest.mark.parametrize("name", ["gpt2", "bert-base", "t5-small", "vit-b", "gpt3-125M"])
def test_engines_agree_on_zoo_models(name: str) -> None:
    check_model(name, STRATEGIES[-5:])


def check_model(source: str, strategies: tuple[Strategy, ...]) -> None:
    model = load_model(source)
    cluster = load_cluster("dgx-a100", 10)
    for stack in ("fsdp-compiled", "fsdp-eager"):
        workload = Workload(model=model, batch_size=8)
        simulator = Simulator(workload, cluster, load_stack(stack))
        for strategy in strategies:
            check(simulator, simulator.plan(strategy))
    workload = Workload(model=model, batch_size=8, mode="inference")
    simulator = Simulator(workload, cluster)
    check(simulator, simulator.plan(strategies[-1]))
