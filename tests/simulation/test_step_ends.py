"""What follows the last backward pass of a block, and the bytes of its state."""

from __future__ import annotations

from dataclasses import astuple, replace

from hypothesis import given, settings

from distir.simulation.pricing.instructions import Pricing
from distir.simulation.pricing.state import StateBytes, state_bytes
from distir.simulation.pricing.step_ends import KnownStepEnds
from distir.simulation.pricing.tied import ChargedElsewhere
from tests.conftest import HEALTH_CHECKS
from tests.laws.scenarios import Scenario, long_chains, scenarios
from tests.slow import shares


@shares(4, seconds=1)
@settings(max_examples=10, deadline=None, suppress_health_check=HEALTH_CHECKS)
@given(scenarios(long_chains, sync_every=(1, 3)))
def test_what_is_known_of_some_blocks_holds_for_others(share: int, scenario: Scenario) -> None:
    plan = scenario.plan
    asked = plan.workload, Pricing.of(scenario.simulator.cost, plan)
    known = KnownStepEnds(*asked)
    for program in {own for stage in plan.stages for own in stage.programs}:
        for away in (ChargedElsewhere(), ChargedElsewhere(held=(0,), added=(0,))):
            alone = KnownStepEnds(*asked).of(program, away)
            assert astuple(known.of(program, away)) == astuple(alone)


@shares(4, seconds=1)
@settings(max_examples=10, deadline=None, suppress_health_check=HEALTH_CHECKS)
@given(scenarios(long_chains))
def test_the_state_of_a_block_is_that_of_its_parameters(share: int, scenario: Scenario) -> None:
    workload = scenario.plan.workload
    for program in {own for stage in scenario.plan.stages for own in stage.programs}:
        every = range(len(program.parameters))
        whole = state_bytes(workload, program)
        summed = StateBytes(inputs=whole.inputs, hosted=whole.hosted)
        for position in every:
            others = [other for other in every if other != position]
            own = state_bytes(workload, program, others, others)
            summed = summed.plus(replace(own, inputs=0.0, hosted=0.0))
        assert whole == summed
