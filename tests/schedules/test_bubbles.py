"""Published bubbles and activation memory, by the engine that simulations use: uniform costs, free
links.

`f`, `b`, `w` are the seconds of a rank's forward pass, input-gradient part and weight-gradient part
for one microbatch over all its chunks; `p` ranks, `m` microbatches, `v` chunks. A whole backward
pass takes `b + w`.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from distir.schedules import (
    COST_KINDS,
    FORWARD,
    SCHEDULES,
    Schedule,
    ScheduleFamily,
    compile_schedule,
)
from distir.schedules.families.breadth_first import breadth_first
from distir.schedules.families.chimera import chimera
from distir.schedules.families.dual_pipe import dual_pipe, dual_pipe_v
from distir.schedules.families.gpipe import gpipe
from distir.schedules.families.interleaved import interleaved
from distir.schedules.families.one_f_one_b import one_f_one_b
from distir.schedules.families.zero_bubble import zb_h1, zb_h2, zb_v
from distir.simulation.pipeline.one import run_pipeline

seconds_ = st.integers(1, 6)
ranks_ = st.integers(1, 7)
chunks_ = st.integers(2, 4)


@dataclass(frozen=True)
class Idle:
    """Seconds that the slowest rank idles: `alone` in one iteration by itself, `repeated` when the
    next one may start on a rank as soon as this one has ended there."""

    alone: float
    repeated: float


def idle(schedule: Schedule, f: float, b: float, w: float = 0) -> Idle:
    compiled = compile_schedule(schedule)
    chunks = max(map(len, schedule.stages_of_ranks))
    if len(schedule.ranks) * chunks != schedule.stages:
        chunks = 1  # copies, not chunks
    costs = [f / chunks, (b + w) / chunks, b / chunks, w / chunks] * schedule.stages
    time = run_pipeline(compiled, costs, [0.0] * (COST_KINDS * schedule.stages))
    begin = [min(time.start[i] for i, r in enumerate(compiled.rank) if r == rank)
             for rank in range(len(schedule.ranks))]  # fmt: skip
    work = schedule.microbatches * (f + b + w)
    return Idle(
        max(time.end) - work, max(e - s for e, s in zip(time.end, begin, strict=True)) - work
    )


def peaks(schedule: Schedule) -> list[float]:
    """Most activations a rank holds, in microbatches of all its chunks; W holds as much as B."""
    compiled = compile_schedule(schedule)
    chunks = schedule.stages // len(schedule.ranks)
    return [
        max(sum(map(sum, each.counts)) + (each.cost_kind == FORWARD) for each in situations)
        / chunks
        for situations in compiled.situations
    ]


# --- bubbles --------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", [gpipe, one_f_one_b])
@settings(deadline=None)
@given(ranks_, st.integers(1, 20), seconds_, seconds_)
def test_gpipe_and_1f1b_fill_and_drain_the_pipeline(
    family: ScheduleFamily, p: int, m: int, f: int, b: int
) -> None:
    assert idle(family(p, 1, m), f, b).alone == (p - 1) * (f + b)


@pytest.mark.parametrize("family", [interleaved, breadth_first])
@settings(deadline=None)
@given(ranks_, chunks_, st.integers(0, 20), seconds_, seconds_)
def test_chunks_divide_the_bubble(
    family: ScheduleFamily, p: int, v: int, more: int, f: int, b: int
) -> None:
    """For any number of microbatches that fills the pipeline, also where it does not divide."""
    bubble = idle(family(p, v, p + more), f, b).alone
    assert bubble == pytest.approx((p - 1) * (f + b) / v, abs=1e-9)


@settings(deadline=None)
@given(ranks_, st.integers(0, 20), seconds_, seconds_, seconds_)
def test_zb_h1_hides_w_from_the_bubble(p: int, more: int, f: int, b: int, w: int) -> None:
    """(p - 1)(f + b - w), where W is no longer than F and so fits in its gaps; if it is longer than
    B, the last rank ends last."""
    assume(w <= f)
    found = idle(zb_h1(p, 1, p + more), f, b, w)
    assert found.repeated == (p - 1) * (f + b - w)
    assert found.alone == (p - 1) * (f + b - min(b, w))


@settings(deadline=None)
@given(ranks_, st.integers(0, 20), seconds_, seconds_, seconds_)
def test_zb_h2_hides_w_twice_if_iterations_overlap(
    p: int, more: int, f: int, b: int, w: int
) -> None:
    """(p - 1)(f + b - 2w); in an iteration alone the last rank starts (p - 1)f late as ever."""
    assume(w <= f and 2 * w <= f + b)
    found = idle(zb_h2(p, 1, 2 * p - 1 + more), f, b, w)
    assert found.repeated == (p - 1) * (f + b - 2 * w)
    assert found.alone >= (p - 1) * f


@pytest.mark.parametrize(("family", "chunks"), [(zb_h2, 1), (zb_v, 2)])
@settings(deadline=None)
@given(p=ranks_, more=st.integers(0, 20), seconds=seconds_)
def test_zb_h2_and_zb_v_have_no_bubble_where_all_parts_are_equal(
    family: ScheduleFamily, chunks: int, p: int, more: int, seconds: int
) -> None:
    """If iterations overlap; alone, ranks start after each other, in ZB-V twice as quickly."""
    found = idle(family(p, chunks, 2 * p - 1 + more), seconds, seconds, seconds)
    assert found == Idle((p - 1) * seconds / chunks, 0)


@settings(deadline=None)
@given(ranks_, st.integers(1, 20), seconds_)
def test_zero_bubble_schedules_are_never_slower_than_1f1b(p: int, m: int, seconds: int) -> None:
    plain = idle(one_f_one_b(p, 1, m), seconds, 2 * seconds).alone
    for family in (zb_h1, zb_h2, zb_v):
        schedule = family(p, family.default_chunks, m)
        assert idle(schedule, seconds, seconds, seconds).alone <= plain


@settings(deadline=None)
@given(st.integers(1, 4), st.integers(1, 5), seconds_, seconds_)
def test_chimera_has_half_the_bubble_of_1f1b_but_one_slot(
    half: int, units: int, f: int, b: int
) -> None:
    """(p - 2) slots; where the backward pass is longer, gaps between units of p microbatches."""
    assume(b >= f)
    p = 2 * half
    found = idle(chimera(p, 1, units * p), f, b).alone
    assert found == (p - 2) * (units * b - (units - 1) * f)


@dataclass(frozen=True)
class Overlapped:
    """Seconds that the slowest rank idles in one iteration, where an overlapped pair takes `o`, and
    the most microbatches that ranks hold."""

    idle: float
    held: list[int]


def overlapped(
    family: ScheduleFamily, p: int, m: int, f: float, b: float, w: float, o: float
) -> Overlapped:
    compiled = compile_schedule(family.made(p, family.default_chunks, m))
    costs = [f, b + w, b, w] * compiled.stages + [o, 0.0, 0.0, 0.0] * len(compiled.pairs)
    time = run_pipeline(compiled, costs, [0.0] * len(costs))
    alone = compiled.matrix_alone.reshape(p, -1, COST_KINDS).sum(axis=1) @ [f, b + w, b, w]
    work = alone + o * compiled.pair_counts.sum(axis=1)
    idle = max(end - own for end, own in zip(time.end, work.tolist(), strict=True))
    held = [
        max(sum(map(sum, each.counts)) + (each.cost_kind == FORWARD) for each in situations)
        for situations in compiled.situations
    ]
    return Overlapped(idle, held)


@settings(deadline=None)
@given(st.integers(1, 5), st.integers(0, 20), seconds_, st.integers(0, 8))
def test_dualpipe_has_the_published_bubble_and_activations(
    half: int, more: int, third: int, hidden: int
) -> None:
    """(PP/2 - 1)(F&B + B - 3W) where F, the part B and W take equally long, and PP + 1 microbatches
    on every rank (github.com/deepseek-ai/DualPipe, README, which calls a whole backward pass B);
    whatever the pair hides, F&B is no shorter than the longer one of its passes."""
    stages = 2 * half
    f = b = w = 4 * third  # in quarters, so that all is exact
    together = 3 * f - hidden * third / 2
    published = (half - 1) * (together + (b + w) - 3 * w)
    for family, p, m in (
        (dual_pipe, stages, 2 * stages + 2 * more),
        (dual_pipe_v, half, stages + more),
    ):
        found = overlapped(family, p, m, f, b, w, together)
        assert found.idle == published
        assert found.held == [stages + 1] * p


@settings(deadline=None)
@given(st.integers(1, 4), st.integers(0, 20), seconds_, seconds_, seconds_)
def test_dualpipe_idles_no_longer_than_1f1b(half: int, more: int, f: int, b: int, w: int) -> None:
    """Where nothing is hidden by overlapping, and none of the parts fits into another."""
    p, m = 2 * half, 4 * half + 2 * more
    assert overlapped(dual_pipe, p, m, f, b, w, f + b + w).idle <= (p - 1) * (f + b + w)


# --- memory ---------------------------------------------------------------------------------------


@settings(deadline=None)
@given(ranks_, st.integers(0, 20))
def test_1f1b_holds_as_many_microbatches_as_ranks_are_left_and_gpipe_all(p: int, more: int) -> None:
    """1F1B: as many as ranks are left, this one included. GPipe: all."""
    assert peaks(one_f_one_b(p, 1, p + more)) == list(range(p, 0, -1))
    assert peaks(gpipe(p, 1, p + more)) == [p + more] * p


@settings(deadline=None)
@given(ranks_, chunks_, st.integers(2, 4))
def test_interleaving_costs_the_first_rank_a_little_memory(p: int, v: int, groups: int) -> None:
    """1 + (p - 1)/(pv) times 1F1B's (Narayanan et al. 2021)."""
    found = peaks(interleaved(p, v, groups * p))
    assert found[0] == pytest.approx(p * (1 + (p - 1) / (p * v)))
    assert found[0] == max(found)


@settings(deadline=None)
@given(ranks_, chunks_, st.integers(1, 20))
def test_breadth_first_keeps_all(p: int, v: int, m: int) -> None:
    assert peaks(breadth_first(p, v, m)) == [m] * p


@settings(deadline=None)
@given(ranks_, st.integers(0, 20))
def test_zero_bubble_schedules_hold_the_published_memory(p: int, more: int) -> None:
    """ZB-H1 and ZB-V: 1F1B's on every rank; ZB-H2: 2p - 1 (Qi et al. 2023, table 2)."""
    m = 2 * p - 1 + more
    assert peaks(zb_h1(p, 1, m)) == [p] * p
    assert peaks(zb_h2(p, 1, m)) == [2 * p - 1] * p
    assert peaks(zb_v(p, 2, m)) == [p] * p


@settings(deadline=None)
@given(st.integers(1, 4), st.integers(2, 5))
def test_chimera_balances_activations(half: int, units: int) -> None:
    """Between p/2 + 1 and p (Li and Hoefler 2021, table 2)."""
    p = 2 * half
    found = peaks(chimera(p, 1, units * p))
    assert found == found[::-1]
    assert (min(found), max(found)) == ((half + 1, p) if p > 2 else (2, 2))


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 6), st.integers(1, 5))
def test_no_schedule_but_gpipe_and_breadth_first_holds_more_with_more_microbatches(
    p: int, m: int
) -> None:
    enough = 4 * p
    for entry in SCHEDULES:
        family = entry.value
        numbers = (p, family.default_chunks)
        if entry.name in {"gpipe", "breadth-first"} or family.requires(*numbers, 2):
            continue
        assert peaks(family(*numbers, enough + 2 * p * m)) == peaks(family(*numbers, enough))
