"""Passes that differ in nothing but which values they have are one."""

from __future__ import annotations

import pytest

from distir import Simulator, Strategy, Workload, load_cluster, load_model
from distir.plan.model import BlockProgram
from distir.plan.passes import Segment, segments
from distir.schedules import BACKWARD, FORWARD, INPUT_PART, WEIGHT_PART
from distir.simulation.pricing.chains import Pass
from distir.simulation.pricing.instructions import Pricing
from distir.simulation.pricing.known_passes import KnownPasses

KINDS = FORWARD, BACKWARD, INPUT_PART, WEIGHT_PART
CHOICES = [
    Strategy(tp=4, sequence_parallel=sequence, recompute=recompute, keep_gathered=kept)
    for sequence in (False, True)
    for recompute in ("none", "selective", "full")
    for kept in ("none", "activations")
]


@pytest.fixture(scope="module")
def simulator() -> Simulator:
    return Simulator(Workload(model=load_model("gpt2"), batch_size=8), load_cluster("dgx-a100", 4))


def alone(program: BlockProgram) -> list[Segment]:
    """The passes of a block between equal ones."""
    return [each for kind in KINDS for each in segments([program], kind, steady=True)]


def content(each: Pass) -> object:
    """What a pass takes, and what waits for what."""
    every = (each.instructions, each.gathers, each.scatters)
    seconds = [[(one.seconds, one.launch_seconds) for one in own] for own in every]
    return each.form, seconds, each.is_free_at_any_time


def test_a_pass_takes_what_it_takes_where_nothing_else_is_known(simulator: Simulator) -> None:
    pricing = Pricing.of(simulator.cost, simulator.plan(CHOICES[0]))
    known = KnownPasses(pricing)
    programs = {
        program for strategy in CHOICES for program in simulator.planner.block_programs(strategy)
    }
    found = {each: known.of(alone(each)) for each in programs}
    for program, passes in found.items():
        apart = KnownPasses(pricing).of(alone(program))
        assert list(map(content, passes)) == list(map(content, apart))
    every = [each for passes in found.values() for each in passes]
    assert len(set(every)) < len(every)  # recomputing leaves forward passes as they are


@pytest.mark.parametrize("longer", [False, True])
def test_passes_of_one_block_side_by_side_share_no_values(
    simulator: Simulator, longer: bool
) -> None:
    known = KnownPasses(Pricing.of(simulator.cost, simulator.plan(CHOICES[0])))
    layer = simulator.planner.block_programs(CHOICES[0])[1]
    forward, backward, *_ = alone(layer)
    own, other = known.of([forward, backward])
    ahead, back = (2, 1) if longer else (1, 2)
    ((both, *_), _), *_ = known.side_by_side([layer] * ahead, [layer] * back)
    assert len(set(both.inputs)) == len(set(own.inputs)) + len(set(other.inputs))
    assert len(set(both.outputs)) == len(set(own.outputs)) + len(set(other.outputs))
    seconds = sum(each.seconds for each in (*own.instructions, *other.instructions))
    assert sum(each.seconds for each in both.instructions) == pytest.approx(seconds)
