"""Better hardware never makes a plan slower, and no plan is quicker than its busiest part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distir.cost import Cluster, Device
from distir.simulation import Simulator
from distir.simulation.reference import simulate_reference
from tests.conftest import HEALTH_CHECKS
from tests.laws.scenarios import Scenario, scenarios
from tests.slow import shares

any_scenario = settings(max_examples=10, deadline=None, suppress_health_check=HEALTH_CHECKS)
factors = st.floats(1.0, 1e3)

SLACK = 1e-9


def device(change: Callable[[Device, float], Device]) -> Callable[[Cluster, float], Cluster]:
    return lambda cluster, factor: replace(cluster, device=change(cluster.device, factor))


def faster(each: Device, factor: float) -> Device:
    rates = {name: rate * factor for name, rate in each.peak_flops_per_second.items()}
    return replace(each, peak_flops_per_second=rates)


def wider(each: Device, factor: float) -> Device:
    bandwidth = each.memory_bandwidth_bytes_per_second * factor
    return replace(each, memory_bandwidth_bytes_per_second=bandwidth)


def larger(each: Device, factor: float) -> Device:
    return replace(each, memory_bytes=each.memory_bytes * factor)


def links(cluster: Cluster, factor: float) -> Cluster:
    levels = tuple(
        replace(level, bandwidth_bytes_per_second=level.bandwidth_bytes_per_second * factor)
        for level in cluster.levels
    )
    return replace(cluster, levels=levels)


def latency(cluster: Cluster, factor: float) -> Cluster:
    levels = tuple(
        replace(level, latency_seconds=level.latency_seconds / factor) for level in cluster.levels
    )
    return replace(cluster, levels=levels)


def host(cluster: Cluster, factor: float) -> Cluster:
    """A host with more of everything."""
    assert cluster.host is not None
    better = replace(
        cluster.host,
        memory_bytes=cluster.host.memory_bytes * factor,
        memory_bandwidth_bytes_per_second=(cluster.host.memory_bandwidth_bytes_per_second * factor),
        link_bytes_per_second=cluster.host.link_bytes_per_second * factor,
        all_links_bytes_per_second=cluster.host.all_links_bytes_per_second * factor,
        latency_seconds=cluster.host.latency_seconds / factor,
    )
    return replace(cluster, host=better)


@shares(6, seconds=1)
@pytest.mark.parametrize(
    "change",
    [device(faster), device(wider), links, latency, host],
    ids=["flops", "memory bandwidth", "link bandwidth", "latency", "host"],
)
@any_scenario
@given(scenario=scenarios(), factor=factors)
def test_better_hardware_is_never_slower(
    share: int, change: Callable[[Cluster, float], Cluster], scenario: Scenario, factor: float
) -> None:
    ours = scenario.simulator
    better = Simulator(ours.workload, change(ours.cluster, factor), ours.cost.stack)
    before = ours.simulate_plan(scenario.plan).metrics
    after = better.simulate_plan(scenario.plan).metrics
    assert after["iteration_seconds"] <= before["iteration_seconds"] * (1 + SLACK)
    assert after["peak_memory_bytes"] == before["peak_memory_bytes"]


@shares(6, seconds=1)
@any_scenario
@given(scenario=scenarios(), factor=factors)
def test_more_memory_never_makes_a_plan_infeasible(
    share: int, scenario: Scenario, factor: float
) -> None:
    ours = scenario.simulator
    more = Simulator(ours.workload, device(larger)(ours.cluster, factor), ours.cost.stack)
    before = ours.simulate_plan(scenario.plan)
    after = more.simulate_plan(scenario.plan)
    assert after.feasible or not before.feasible
    assert after.metrics == before.metrics


@shares(6, seconds=1)
@any_scenario
@given(scenarios())
def test_a_step_lasts_as_long_as_its_busiest_rank_and_as_any_microbatch(
    share: int, scenario: Scenario
) -> None:
    """A step lasts at least as long as the busiest rank works, and as one microbatch takes through
    all stages and back, where the rest of its backward pass (`W`) waits for nobody."""
    result = scenario.simulator.simulate_plan(scenario.plan)
    iteration = result.metrics["iteration_seconds"]
    for stage in result.stages:
        busy = sum(seconds for kind, seconds in stage.seconds.items() if kind != "bubble")
        assert busy <= iteration * (1 + SLACK)
    run = simulate_reference(scenario.plan, scenario.simulator.cost)
    for microbatch in range(scenario.plan.strategy.microbatches):
        path = sum(
            span.end - span.start
            for span in run.actions
            if span.action.microbatch == microbatch
            and span.action.kind != "W"
            and span.device == span.rank * scenario.plan.devices_per_stage
        )
        assert path <= iteration * (1 + SLACK)


@shares(6, seconds=1)
@any_scenario
@given(scenarios())
def test_devices_of_a_rank_are_alike(share: int, scenario: Scenario) -> None:
    """What the fast engine rests on: one device stands for all of its rank."""
    run = simulate_reference(scenario.plan, scenario.simulator.cost)
    per_rank = scenario.plan.devices_per_stage
    seen: dict[int, list[tuple[str, str, float, float]]] = {}
    for span in run.spans:
        seen.setdefault(span.device, []).append((span.stream, span.label, span.start, span.end))
    for number, spans in seen.items():
        assert spans == seen[number - number % per_rank]
    for number, size in enumerate(run.live_bytes):
        assert size == run.live_bytes[number - number % per_rank]
