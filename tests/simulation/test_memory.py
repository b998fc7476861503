"""Memory composed block by block is memory counted value by value."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from distir.arrays import Floats
from distir.plan.passes import block_passes
from distir.simulation.pricing.instructions import Pricing
from distir.simulation.pricing.memory import (
    ChainMemory,
    MemoryEffect,
    Turns,
    each_in_turn,
    in_turn,
)
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


@pytest.mark.not_quick
@shares(4, seconds=1)
@settings(max_examples=10, deadline=None, suppress_health_check=HEALTH_CHECKS)
@given(scenarios(long_chains))
def test_what_is_known_of_some_stages_holds_for_others(share: int, scenario: Scenario) -> None:
    """Stages whose backward passes are split and others, which have blocks in common."""
    known = ChainMemory()
    for stage in scenario.plan.stages:
        every = stage.programs
        for programs in filter(None, (every, every[:-1], every[1:])):
            for splits in (False, True) if scenario.plan.workload.training else (False,):
                blocks = repeated_blocks(block_passes(programs, splits))
                assert known.stage(blocks) == ChainMemory().stage(blocks)


def test_effects_compose_associatively() -> None:
    a, b, c = MemoryEffect(3.0, 5.0), MemoryEffect(-2.0, 1.0), MemoryEffect(4.0, 4.0)
    assert a.then(b).then(c) == a.then(b.then(c))
    for each in (a, b):
        one = np.array([[field] for field in astuple(each)])
        thrice = each.then(each).then(each)
        assert MemoryEffect(*in_turn([one], [3])[:, 0]) == thrice
        assert MemoryEffect(*in_turn([one] * 3)[:, 0]) == thrice
    every = [np.array([[field] for field in astuple(each)]) for each in (a, c, b)]
    assert MemoryEffect(*in_turn(every, [1, 0, 1])[:, 0]) == a.then(b)
    assert MemoryEffect(*in_turn(every)[:, 0]) == a.then(c).then(b)


@given(st.data())
@settings(max_examples=50, deadline=None)
def test_many_effects_in_turn_are_each_as_alone(data: st.DataObject) -> None:
    """Bytes that are there at the end are among those at the peak."""
    sizes, numbers = data.draw(st.integers(1, 3)), st.integers(-9, 9)

    def effect() -> Floats:
        deltas = np.array(data.draw(st.lists(numbers, min_size=sizes, max_size=sizes)), float)
        more = data.draw(st.lists(st.integers(0, 9), min_size=sizes, max_size=sizes))
        return np.stack([deltas, np.maximum(deltas, 0) + more])

    known = [effect() for _ in range(4)]
    every: list[Turns] = []
    places: list[NDArray[np.int64]] = []
    for _ in range(data.draw(st.integers(1, 4))):
        own = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=4))
        where = data.draw(st.lists(st.integers(0, sizes - 1), min_size=1, max_size=3))
        counts: list[Any] = []
        for least in (1, *[0] * (len(own) - 1)):  # something comes in every stage
            copies = st.lists(st.integers(least, 4), min_size=len(where), max_size=len(where))
            counts.append(np.array(data.draw(copies), float) if data.draw(st.booleans()) else 2)
        every.append(Turns([known[number] for number in own], counts))
        places.append(np.array(where))
    found = each_in_turn(every, places).T.tolist()
    for turns, where in zip(every, places, strict=True):
        for column, size in enumerate(where.tolist()):
            effects = [each[:, size : size + 1] for each in turns.effects]
            counts = [int(np.broadcast_to(n, len(where))[column]) for n in turns.counts]
            assert found.pop(0) == in_turn(effects, counts)[:, 0].tolist()
    assert not found
