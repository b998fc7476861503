"""A step in time says the same as the simulation of its plan."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from distir.simulation.reference import simulate_reference
from tests.conftest import HEALTH_CHECKS
from tests.laws.scenarios import Scenario, scenarios
from tests.slow import shares


@shares(3, seconds=1)
@settings(max_examples=7, deadline=None, suppress_health_check=HEALTH_CHECKS)
@given(scenarios())
def test_the_most_that_a_rank_holds_in_a_step_is_its_peak(share: int, scenario: Scenario) -> None:
    step = scenario.simulator.step_plan(scenario.plan)
    result = scenario.simulator.simulate_plan(scenario.plan)
    for rank, stage in enumerate(result.stages):
        held = [each.peak for each in step.holdings if each.rank == rank]
        assert max(held) + step.state[rank].total == pytest.approx(stage.peak_memory_bytes)
        assert all(each.after <= each.peak for each in step.holdings if each.rank == rank)
        in_parts = [each.buffers for each in step.holdings if each.rank == rank]
        assert all(0 <= part <= most for part, most in zip(in_parts, held, strict=True))


@shares(2, seconds=1)
@settings(max_examples=7, deadline=None, suppress_health_check=HEALTH_CHECKS)
@given(scenarios())
def test_messages_are_sent_after_they_are_made_and_read_after_they_arrive(
    share: int, scenario: Scenario
) -> None:
    step = scenario.simulator.step_plan(scenario.plan)
    ended = {(e.rank, a): e.end for e in step.actions for a in (e.action, e.beside) if a}
    started = {(e.rank, a): e.start for e in step.actions for a in (e.action, e.beside) if a}
    tolerance = 1e-9 * max(step.seconds, 1e-9)
    links: dict[int, float] = {}
    for each in step.messages:
        assert each.start >= ended[each.sender, each.action] - tolerance
        assert each.end <= started[each.receiver, each.reader] + tolerance
        assert each.sender != each.receiver
        assert each.start >= links.get(each.link, 0.0) - tolerance, "one at a time on a link"
        links[each.link] = each.end
    waiting = [at for at, need in enumerate(scenario.plan.schedule.needs) if need >= 0]
    assert len(step.messages) == len(waiting)


@pytest.mark.not_quick
@shares(2, seconds=1)
@settings(max_examples=5, deadline=None, suppress_health_check=HEALTH_CHECKS)
@given(scenarios())
def test_traffic_is_what_the_reference_engine_puts_on_the_streams(
    share: int, scenario: Scenario
) -> None:
    plan, cost = scenario.plan, scenario.simulator.cost
    step = scenario.simulator.step_plan(plan)
    run = simulate_reference(plan, cost)
    moved = {"compute", "optimizer"}
    of_reference = sum(
        span.end - span.start
        for span in run.spans
        if span.device == span.rank * plan.devices_per_stage
        and span.stream not in moved
        and span.label != "AllReduce tied gradients"
    )
    ours = sum(each.seconds for each in step.traffic if each.along != "pp")
    assert ours == pytest.approx(of_reference)
