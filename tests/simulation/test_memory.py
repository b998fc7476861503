"""Memory composed block by block is memory counted value by value."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple

import numpy as np
import pytest
from hypothesis import given, settings

from distir.plan.passes import block_passes
from distir.simulation.pricing.instructions import Pricing
from distir.simulation.pricing.memory import ChainMemory, MemoryEffect, in_turn
from distir.simulation.pricing.repeats import repeated_blocks
from distir.simulation.reference.flat import FlatPass, FlatStage, flat_stage
from tests.conftest import HEALTH_CHECKS
from tests.laws.scenarios import Scenario, long_chains, scenarios
from tests.slow import shares


def value_by_value(stage: FlatStage, each: FlatPass) -> MemoryEffect:
    """What a pass over all blocks of a stage adds, and the most it holds."""
    sizes = stage.storage_bytes

    def total(storages: Iterable[int]) -> tuple[int, int]:
        held = [(sizes.get(number, 0), number in stage.buffers) for number in storages]
        return sum(size for size, _ in held), sum(size for size, buffer in held if buffer)

    live, buffers = total(each.received)
    peak, buffer_peak = live, buffers
    for position, step in [(-1, None), *enumerate(each.steps)]:
        made, made_buffers = total(step.writes if step else ())
        live, buffers = live + made, buffers + made_buffers
        if live > peak:
            peak, buffer_peak = live, buffers
        freed, freed_buffers = total(each.dying.get(position, ()))
        live, buffers = live - freed, buffers - freed_buffers
    freed, freed_buffers = total(each.leaving)
    live, buffers = live - freed, buffers - freed_buffers
    return MemoryEffect(float(live), float(peak), float(buffers), float(buffer_peak))


@pytest.mark.not_quick
@shares(8, seconds=1)
@settings(max_examples=20, deadline=None, suppress_health_check=HEALTH_CHECKS)
@given(scenarios(long_chains))
def test_blocks_compose(share: int, scenario: Scenario) -> None:
    plan = scenario.plan
    pricing = Pricing.of(scenario.simulator.cost, plan)
    splits = plan.schedule.splits_backward
    for index, stage in enumerate(plan.stages):
        passes = block_passes(stage.programs, splits)
        effects = ChainMemory().stage(repeated_blocks(passes))
        flat = flat_stage(plan, index, pricing)
        assert len(effects) == (4 if splits else 2)
        for kind, effect in effects.items():
            assert effect == value_by_value(flat, flat.passes[kind])
        if plan.workload.training:
            forward, backward, *parts = effects.values()
            assert backward.delta == -forward.delta
            assert not parts or sum(part.delta for part in parts) == -forward.delta


def test_effects_compose_associatively() -> None:
    a, b, c = MemoryEffect(3.0, 5.0), MemoryEffect(-2.0, 1.0), MemoryEffect(4.0, 4.0)
    assert a.then(b).then(c) == a.then(b.then(c))
    for each in (a, b):
        one = np.array([[field] for field in astuple(each)])
        thrice = each.then(each).then(each)
        assert MemoryEffect(*in_turn([one], [3])[:, 0]) == thrice
        assert MemoryEffect(*in_turn([one] * 3)[:, 0]) == thrice
    every = [np.array([[field] for field in astuple(each)]) for each in (a, c, b)]
    without = in_turn(every, [1, np.array([0.0, 1.0]), 1], np.array([0, 0]))
    assert MemoryEffect(*without[:, 0]) == a.then(b)
    assert MemoryEffect(*without[:, 1]) == a.then(c).then(b)
    no_buffers = in_turn(
        [each[:2] for each in every], [1, np.array([0.0, 1.0]), 1], np.zeros(2, int)
    )
    assert (no_buffers == without[:2]).all()
