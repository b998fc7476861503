"""Refined stages make the schedule shorter, and are found alike whatever is refined with them."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import numpy as np
import pytest

from distir import Strategy, Workload, load_model
from distir.arrays import Floats, Indices
from distir.plan import Planner
from distir.schedules import BACKWARD, COST_KINDS, FORWARD, INPUT_PART, WEIGHT_PART
from distir.simulation.cutting.partition import Bounds, Partitions
from distir.simulation.cutting.refine import (
    LAUNCHES,
    LEAST_GAIN,
    STREAMS,
    Order,
    RefinedCuts,
    order_of,
    rounded_passes,
)
from distir.simulation.pipeline.one import run_pipeline

PLANNER = Planner(Workload(model=load_model("gpt2"), batch_size=256))
SCHEDULES = [
    ("1f1b", 1),
    ("zb-h1", 1),
    ("interleaved", 2),
    ("interleaved", 3),
    ("breadth-first", 2),
    ("zb-v", 2),
    ("chimera", 1),
]


def order(schedule: str, chunks: int, pp: int = 4, microbatches: int = 8) -> Order:
    strategy = Strategy(pp=pp, microbatches=microbatches, schedule=schedule, chunks=chunks)
    found = order_of(PLANNER, strategy)
    assert found is not None
    return found


def passes(rng: Random, blocks: int) -> Floats:
    """What the passes of layers between two other blocks take, of which nothing is launched or
    gathered."""
    seconds = np.zeros((COST_KINDS, blocks))
    seconds[FORWARD] = 1.0
    seconds[FORWARD, [0, -1]] = rng.choice([0.1, 0.5, 2.0]), rng.choice([0.2, 1.5, 3.0])
    seconds[BACKWARD] = seconds[FORWARD] * rng.choice([2.0, 3.0])
    seconds[[INPUT_PART, WEIGHT_PART]] = seconds[BACKWARD] / 2
    found = np.zeros((1, 3, COST_KINDS, blocks))
    found[:, STREAMS] = seconds
    return found


def cuts() -> RefinedCuts:
    """Cuts where a pass lasts as long as its streams or its launches."""
    return RefinedCuts(np.maximum, training=True)


def balanced(rounded: Indices, of: Order) -> Bounds:
    shape = (of.compiled.stages_of_ranks, 2)
    alone = np.zeros(1, np.int64)
    weights = rounded[:, STREAMS, FORWARD] + rounded[:, STREAMS, BACKWARD]
    return Partitions().bounds(weights, [shape], alone, alone)[0]


def iteration(rounded: Indices, of: Order, bounds: Bounds) -> float:
    """How long the schedule of an order is, action by action."""
    every = [rounded[0, :, :, a:b].sum(axis=2).max(axis=0) for a, b in pairwise(bounds)]
    stages = np.array(every, np.float64)
    seconds = stages.ravel().tolist()
    time = run_pipeline(of.compiled, seconds, [0.0] * len(seconds))
    begun = [time.start[action] for action in of.compiled.first]
    return max(end - begin for end, begin in zip(time.end, begun, strict=True))


@pytest.mark.parametrize(("schedule", "chunks"), SCHEDULES)
def test_refined_stages_make_the_schedule_shorter_or_stay(schedule: str, chunks: int) -> None:
    rng, of, alone = Random(chunks), order(schedule, chunks), np.zeros(1, np.int64)
    moved = 0
    for _ in range(6):
        rounded = rounded_passes(passes(rng, rng.randint(17, 40)))
        before = balanced(rounded, of)
        (after,) = cuts().bounds(rounded, [of], alone, alone, [before])
        assert all(a < b for a, b in pairwise(after))
        assert (after[0], after[-1]) == (before[0], before[-1])
        if after != before:
            moved += 1
            longest = iteration(rounded, of, before) * (1 - LEAST_GAIN)
            assert iteration(rounded, of, after) <= longest
    assert moved or schedule not in ("1f1b", "interleaved", "chimera")


def test_a_stage_lasts_as_long_as_all_its_launches_or_all_its_streams() -> None:
    """And not as long as the longer of both in each block: all blocks take as long alone, but the
    first ones hide each other's launches."""
    of, alone = order("1f1b", 1), np.zeros(1, np.int64)
    found = np.zeros((1, 3, COST_KINDS, 32))
    found[:, STREAMS, : BACKWARD + 1] = [1.0, 3.0] * 8 + [3.0] * 16
    found[:, LAUNCHES, : BACKWARD + 1] = [3.0, 1.0] * 8 + [1.0] * 16
    rounded, before = rounded_passes(found), (0, 8, 16, 24, 32)
    (after,) = cuts().bounds(rounded, [of], alone, alone, [before])
    assert iteration(rounded, of, after) < iteration(rounded, of, before)
    assert after[2] > before[2]


def test_plans_are_refined_together_as_alone() -> None:
    rng, alone = Random(1), np.zeros(1, np.int64)
    orders = [order(*each) for each in SCHEDULES[:3]]
    rounded = np.concatenate([rounded_passes(passes(rng, 30)) for _ in range(5)])
    rows, which = np.repeat(np.arange(5), 3), np.tile(np.arange(3), 5)
    cases = list(zip(map(int, rows), map(int, which), strict=True))
    before = [balanced(rounded[[row]], orders[number]) for row, number in cases]
    known = cuts()
    together = known.bounds(rounded, orders, rows, which, before)
    assert together == known.bounds(rounded, orders, rows, which, before)
    for (row, number), bounds, found in zip(cases, before, together, strict=True):
        one = cuts().bounds(rounded[[row]], [orders[number]], alone, alone, [bounds])
        assert one == [found]


def test_many_microbatches_are_refined_as_few_and_a_full_pipeline() -> None:
    few, many, more = (order("interleaved", 2, microbatches=n) for n in (8, 64, 128))
    assert few.further == 0
    assert many == more
    assert many.compiled is few.compiled
    assert many.further > 0


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-h1"])
def test_stages_of_their_own_ranks_stay_balanced_while_the_pipeline_is_full(schedule: str) -> None:
    assert order_of(PLANNER, Strategy(pp=4, microbatches=64, schedule=schedule)) is None
    assert order_of(PLANNER, Strategy(pp=1, microbatches=4, schedule=schedule)) is None


@pytest.mark.parametrize(("schedule", "chunks"), [("dualpipe", 1), ("dualpipev", 2)])
def test_stages_of_overlapped_passes_stay_balanced(schedule: str, chunks: int) -> None:
    strategy = Strategy(pp=4, microbatches=8, schedule=schedule, chunks=chunks)
    assert order_of(PLANNER, strategy) is None
