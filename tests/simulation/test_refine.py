"""Refined stages make the schedule shorter, and are found alike whatever is refined with them."""

from __future__ import annotations

from itertools import combinations, pairwise
from random import Random

import numpy as np
import pytest

from distir import Strategy, Workload, load_model
from distir.arrays import Flags, Floats, Indices
from distir.plan import Planner
from distir.schedules import BACKWARD, COST_KINDS, FORWARD, INPUT_PART, WEIGHT_PART
from distir.simulation.cutting.partition import Bounds, Partitions
from distir.simulation.cutting.ranges import LAUNCHES, STREAMS, Ranges
from distir.simulation.cutting.refine import (
    LEAST_GAIN,
    Fit,
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


def case(rng: Random) -> tuple[Indices, list[Order | None], Indices, Indices, list[Bounds]]:
    """Plans of several schedules, on two numbers of ranks, and rows of what their blocks take; the
    arguments of `RefinedCuts.bounds`."""
    orders: list[Order | None] = [
        order(*schedule, pp=rng.choice([2, 4]), microbatches=rng.choice([4, 8]))
        for schedule in rng.sample(SCHEDULES, 4)
    ]
    blocks = rng.randint(14, 30)
    rounded = np.concatenate([rounded_passes(passes(rng, blocks)) for _ in range(3)])
    rows, which = np.repeat(np.arange(3), 4), np.tile(np.arange(4), 3)
    bounds = list[Bounds]()
    for number in map(int, which):
        of = orders[number]
        assert of is not None
        inner = sorted(rng.sample(range(1, blocks), of.compiled.stages - 1))
        bounds.append((0, *inner, blocks))
    return rounded, orders, rows, which, bounds


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("refine.NUMBERS_AT_ONCE", 1 << 10),
        ("running.NUMBERS_AT_ONCE", 1 << 8),
        ("ranges.RANGES_AT_ONCE", 1),
        ("running.LANES", 1),
        ("running.LANES", 3),
        ("refine.EXACT", 0),
    ],
)
def test_plans_are_refined_alike_however_they_are_looked_at(
    seed: int, name: str, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In parts, next to each other or not, and in 32 bits or 64."""
    plans = case(Random(seed))
    found = cuts().bounds(*plans)
    monkeypatch.setattr(f"distir.simulation.cutting.{name}", value)
    assert cuts().bounds(*plans) == found


@pytest.mark.parametrize("seed", range(6))
def test_numbers_that_need_more_bits_are_refined_as_those_that_do_not(seed: int) -> None:
    rounded, orders, rows, which, bounds = case(Random(seed))
    found = cuts().bounds(rounded, orders, rows, which, bounds)
    assert cuts().bounds(rounded << 10, orders, rows, which, bounds) == found


@pytest.mark.parametrize("seed", range(6))
def test_plans_are_asked_whether_they_fit_with_their_own_bounds(seed: int) -> None:
    """Of different lengths, one after the other; and a plan alone has the cut that it has beside
    others."""
    rounded, orders, rows, which, bounds = case(Random(seed))

    def fit(of: Indices) -> Fit:
        """Whether plans `of` all fit: those in which no stage has many more blocks than before."""

        def found(some: Indices, flat: Indices, begins: Indices) -> Flags:
            fits = list[bool]()
            for plan, begin in zip(map(int, of[some]), map(int, begins), strict=True):
                after = tuple(map(int, flat[begin : begin + len(bounds[plan])]))
                fits.append(far(bounds[plan], after) <= 1)
            return np.array(fits, np.bool_)

        return found

    together = cuts().moved(rounded, orders, rows, which, bounds, fit(np.arange(len(rows))))
    for plan, (before, after) in enumerate(zip(bounds, together, strict=True)):
        assert far(before, after) <= 1
        alone = np.array([plan])
        own = cuts().moved(rounded, orders, rows[alone], which[alone], [before], fit(alone))
        assert own == [after]
    assert together != bounds


def far(before: Bounds, after: Bounds) -> int:
    """By how many blocks the border moved that moved farthest."""
    assert len(before) == len(after)
    return max(abs(a - b) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("seed", range(6))
def test_a_stage_takes_what_its_blocks_take_one_by_one(seed: int) -> None:
    """From any block to any other; ranges of equal blocks are the same range."""
    rng, blocks = np.random.default_rng(seed), 11
    passes = rng.integers(0, 20, (3, 3, COST_KINDS, 4))[..., rng.integers(0, 4, blocks)]
    ranges = Ranges(passes, np.add)
    seconds = ranges.seconds(slice(0, 3), [FORWARD, BACKWARD])
    for begin, end in combinations(range(blocks + 1), 2):
        streams, launches, links = passes[..., begin:end].sum(axis=-1).swapaxes(0, 1)
        wanted = np.maximum(streams + launches, links)
        wanted[:, [INPUT_PART, WEIGHT_PART]] = 0
        assert (seconds[:, ranges.numbers[begin, end]] == wanted).all()
    different = {passes[..., a:b].tobytes() for a, b in combinations(range(blocks + 1), 2)}
    assert seconds.shape[1] == 1 + len(different)


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
