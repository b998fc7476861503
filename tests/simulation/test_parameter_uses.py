"""What partitions make of parameters that several blocks use is what plans say, however many kinds
of program share it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distir import Simulator, Strategy, Workload, load_cluster, load_model
from distir.simulation.cutting.parameter_uses import DifferentStages, KnownParameterUses
from distir.simulation.pricing.tied import (
    charged_elsewhere,
    tied_bytes,
    tied_gradients,
)

KINDS = [
    Strategy(dp=dp, tp=tp, pp=2, microbatches=4, zero=zero, recompute=recompute)
    for dp, tp, zero in [(4, 1, 0), (2, 2, 0), (2, 2, 1), (4, 1, 2), (2, 2, 2), (2, 2, 3)]
    for recompute in ("none", "full")
]
SCHEDULES = [("1f1b", 1), ("interleaved", 2), ("zb-v", 2), ("dualpipe", 1)]
"""Ranks hold one stage, several, both ends of the model, or stages that other ranks hold, too."""


@pytest.mark.parametrize("model", ["gpt2", "t5-small"])
@pytest.mark.parametrize(("schedule", "chunks"), SCHEDULES)
def test_kinds_that_lay_out_gradients_alike_share_what_plans_say(
    model: str, schedule: str, chunks: int
) -> None:
    workload = Workload(model=load_model(model), batch_size=32, sequence_length=128)
    simulator = Simulator(workload, load_cluster("dgx-a100", 8))
    planner, cost = simulator.planner, simulator.cost
    strategies = [replace(kind, schedule=schedule, chunks=chunks) for kind in KINDS]
    ranks = planner.schedule(strategies[0]).stages_of_ranks
    known = KnownParameterUses(workload, [(ranks, 0)])
    different = set[int]()
    for strategy in strategies:
        programs = planner.model_programs(strategy).kept
        uses, stages = known.of(programs), 1 + max(map(max, ranks))
        different.add(id(uses))
        for first in (1, 2, 5):
            bounds = (0, *range(first, first + stages - 1), len(programs))
            found, plan = uses.of((0, bounds)), planner.plan(strategy, bounds[1:-1])
            for index, (begin, end, number) in enumerate(found.stages):
                charged = uses.charges.of(number, end - begin)
                assert tuple(charged) == charged_elsewhere(plan, index)
            assert [(begin, end) for begin, end, _ in found.stages] == [*pairwise(bounds)]
            sizes = {own: tied_bytes(workload, programs, each) for own, each in found.tied.items()}
            assert sizes == {each.ranks: each.size_bytes for each in tied_gradients(plan, cost)}
    assert len(different) < len(strategies)


@given(st.data())
def test_stages_are_one_if_their_blocks_are_equal_and_charged_alike(data: st.DataObject) -> None:
    kinds = tuple(data.draw(st.lists(st.integers(0, 1), min_size=1, max_size=8)))
    block = st.integers(0, len(kinds))
    stage = st.tuples(block, block, st.integers(0, 1))
    several = data.draw(st.lists(st.lists(stage, min_size=1, max_size=4).map(tuple), max_size=4))
    different = DifferentStages(kinds)
    numbers = [number for stages in several for number in different.of(stages)]
    every = [(kinds[begin:end], charged) for own in several for begin, end, charged in own]
    for one, number in zip(every, numbers, strict=True):
        assert [each == one for each in every] == [each == number for each in numbers]
