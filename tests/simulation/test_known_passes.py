"""Passes that differ in nothing but which values they have are one."""

from __future__ import annotations

import pytest

from distir import Simulator, Strategy, Workload, load_cluster, load_model
from distir.plan.model import BlockProgram
from distir.plan.passes import Segment, segment, segments
from distir.schedules import BACKWARD, FORWARD, INPUT_PART, WEIGHT_PART
from distir.simulation.pricing.chains import Pass
from distir.simulation.pricing.instructions import Pricing
from distir.simulation.pricing.known_passes import KnownPasses
from distir.simulation.pricing.memory import ChainMemory

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


@pytest.mark.parametrize("keeps", ["none", "parameters"])
def test_a_block_may_stand_for_another_beside_blocks(simulator: Simulator, keeps: str) -> None:
    choices = [
        Strategy(dp=4, zero=3, recompute=recompute, keep_gathered=keeps)
        for recompute in ("none", "selective", "full")
    ]
    pricing = Pricing.of(simulator.cost, simulator.plan(choices[0]))
    known = KnownPasses(pricing)
    every = [each for own in choices for each in simulator.planner.block_programs(own)]
    first = {each: known.beside(each, splits=True) for each in every}
    assert 1 < len(set(first.values())) < len(first)  # recomputing gathers what keeping gathers
    layer = every[1]
    for both in first.items():
        own = [tuple([segment(layer, kind, None, each) for kind in KINDS]) for each in both]
        passes = [list(map(content, KnownPasses(pricing).of(each))) for each in own]
        held = [ChainMemory().stage([((each,), 1)]) for each in own]
        assert passes[0] == passes[1]
        assert held[0] == held[1]


def test_a_block_that_copies_to_the_host_stands_for_itself_alone() -> None:
    cluster = load_cluster("dgx-a100", 4)
    simulator = Simulator(Workload(model=load_model("gpt2"), batch_size=8), cluster)
    strategy = Strategy(dp=4, offload="activations")
    known = KnownPasses(Pricing.of(simulator.cost, simulator.plan(strategy)))
    programs = {*simulator.planner.block_programs(strategy)}
    hosting = {each for each in programs if each.hosted is not None}
    assert hosting
    assert all(known.beside(each, splits=False) is each for each in hosting)


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
