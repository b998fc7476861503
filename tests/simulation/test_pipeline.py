"""Many plans through one schedule at once are as each of them alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from distir.schedules import (
    BACKWARD,
    COST_KINDS,
    FORWARD,
    INPUT_PART,
    SCHEDULES,
    CompiledSchedule,
    Rhythm,
    Schedule,
    ScheduleFamily,
    compile_schedule,
    forward_only,
    parse_schedule,
)
from distir.simulation.pipeline.many import (
    alike_schedules,
    run_adjacent_columns,
    run_alike_columns,
)
from distir.simulation.pipeline.one import (
    PipelineColumns,
    PipelineTime,
    run_pipeline,
    run_pipeline_columns,
)
from distir.simulation.pipeline.waves import Ints, find_program
from distir.simulation.ranks.many import schedules_together

FAMILIES = [entry.value for entry in SCHEDULES] + [forward_only]

OWN = tuple(
    map(
        parse_schedule,
        (
            "0F0 0F1 0B0 0BW1 0W0",
            "0F0 0F1 0B1 0F2 0B0 0B2\n1F1 1F0 1B1 1B0 1F2 1B2",
            "0F0 0F1 3F0 3B0 3F1 3B1 0B0 0B1\n1F0 2F0 1F1 2F1 2B0 1B0 2B1 1B1",
            "0F0 0F1 (0F2;0B0)OVERLAP_F_B 0B1 0B2\n1F0 (1F1;1B0)OVERLAP_F_B 1B1 1F2 1B2",
            "0F0 (0F1;0BW0)OVERLAP_F_B (0F2;0BW1)OVERLAP_F_B 0B2 0W2",
        ),
    )
)
"""What no family makes: mixed backward passes, microbatches that overtake, stages side by side,
pairs of passes of one stage."""


def with_pairs(
    compiled: CompiledSchedule, seconds: NDArray[np.float64], transfers: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Costs (stages · COST_KINDS, rows) with those of overlapped pairs behind them: a pair takes
    less than both passes and sends what they send; both kinds of backward pass send the same."""
    rows = seconds.shape[1]
    transfers = transfers.copy()
    transfers[INPUT_PART::COST_KINDS] = transfers[BACKWARD::COST_KINDS]
    more = np.zeros((2, len(compiled.pairs), COST_KINDS, rows))
    for (took, sent), (forward, backward) in zip(more.swapaxes(0, 1), compiled.pairs, strict=True):
        numbers = [forward * COST_KINDS + FORWARD, backward * COST_KINDS + BACKWARD]
        took[FORWARD] = 0.9 * seconds[numbers].sum(axis=0)
        sent[[FORWARD, BACKWARD]] = transfers[numbers]
    flat = more.reshape(2, -1, rows)
    return np.concatenate([seconds, flat[0]]), np.concatenate([transfers, flat[1]])


@dataclass(frozen=True)
class Case:
    """A schedule, and costs (stages · COST_KINDS, rows)."""

    compiled: CompiledSchedule
    seconds: NDArray[np.float64]
    transfers: NDArray[np.float64]
    goes_on: bool

    def columns(self) -> PipelineColumns:
        return run_pipeline_columns(
            self.compiled, self.seconds, self.transfers, goes_on=self.goes_on
        )


@st.composite
def schedules(draw: st.DrawFn) -> Schedule | Rhythm:
    if draw(st.integers(0, 9)) == 0:
        return draw(st.sampled_from(OWN))
    family = draw(st.sampled_from(FAMILIES))
    most = family.most_chunks or 4
    numbers = st.tuples(
        st.integers(1, 6), st.integers(family.least_chunks, most), st.integers(1, 80)
    )
    return family.made(*draw(numbers.filter(lambda n: family.requires(*n) is None)))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Costs are equal on all stages, or but on the first and the last, or random, or nearly
    equal; of any size against each other, and zero now and then."""
    compiled = compile_schedule(draw(schedules()))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    stages, rows = compiled.stages, draw(st.integers(1, 5))

    def costs(scale: float) -> NDArray[np.float64]:
        found = (even + random.random((stages, COST_KINDS, rows))) * scale
        if alike < 2 and stages > 2:
            found[alike : stages - alike] = found[stages // 2]
        if coarse:
            found = np.round(found * 4) / 4
        return found.reshape(stages * COST_KINDS, rows)

    alike, coarse, even = draw(st.integers(0, 2)), draw(st.booleans()), draw(st.integers(0, 1)) * 30
    seconds, transfers = costs(1.0), costs(draw(st.sampled_from([0.0, 0.1, 1.0, 4.0])))
    return Case(compiled, *with_pairs(compiled, seconds, transfers), draw(st.booleans()))


@settings(deadline=None)
@given(cases())
def test_every_row_is_as_the_plan_alone(case: Case) -> None:
    check_against_each_alone(case)


def check_against_each_alone(case: Case) -> None:
    """Times are equal, to what rounding makes of the makespan."""
    compiled, found = case.compiled, case.columns()
    for row in range(case.seconds.shape[1]):
        seconds, transfers = case.seconds[:, row].tolist(), case.transfers[:, row].tolist()
        alone = run_pipeline(compiled, seconds, transfers, goes_on=case.goes_on)
        check_row(compiled, found, row, alone, seconds)


def check_row(
    compiled: CompiledSchedule,
    found: PipelineColumns,
    row: int,
    alone: PipelineTime,
    seconds: Sequence[float],
) -> None:
    makespan = max(alone.end)

    def same(ours: NDArray[np.float64], theirs: Sequence[float]) -> None:
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12 * makespan)

    same(found.end[:, row], alone.end)
    same(found.waited_for_transfer[:, row], alone.waited_for_transfer)
    same(found.waited_for_stage[:, row], alone.waited_for_stage)
    same(found.begin[:, row], [alone.start[i] for i in compiled.first])
    moving = [
        alone.start[i] - alone.start[j] - seconds[compiled.cost[j]] if j >= 0 else 0.0
        for i, j in ((i, compiled.needs[i]) for i in compiled.first)
    ]
    same(found.begin_moving[:, row], moving)
    last = [i for own in compiled.last_gradients for i in own]
    same(found.last_gradients[:, row], [alone.start[i] if i >= 0 else 0.0 for i in last])


def with_all_microbatches(family: ScheduleFamily, ranks: int) -> list[CompiledSchedule]:
    """The schedules of a family, with all numbers of microbatches that there are of these."""
    chunks = family.default_chunks
    return [
        compile_schedule(family.made(ranks, chunks, count))
        for count in (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 40, 41, 64, 100)
        if family.requires(ranks, chunks, count) is None
    ]


@pytest.mark.not_quick
@settings(deadline=None, max_examples=30)
@given(st.sampled_from(FAMILIES), st.integers(1, 5), st.booleans(), st.integers(0, 2**32 - 1))
def test_plans_with_schedules_that_are_alike_are_as_each_alone(
    family: ScheduleFamily, ranks: int, goes_on: bool, seed: int
) -> None:
    """Of a family with all numbers of microbatches that there are; a plan of each twice."""
    schedules = with_all_microbatches(family, ranks)
    groups = alike_schedules(schedules)
    assert sorted(chain.from_iterable(groups)) == [*range(len(schedules))]
    random = np.random.default_rng(seed)
    for group in groups:
        alike, which = [schedules[i] for i in group], np.repeat(np.arange(len(group)), 2)
        shape = alike[0].stages * COST_KINDS, len(which)
        seconds, transfers = with_pairs(alike[0], 1 + random.random(shape), random.random(shape))
        found = run_alike_columns(alike, which, seconds, transfers, goes_on=goes_on)
        for row, compiled in enumerate(alike[i] for i in which):
            costs = seconds[:, row].tolist(), transfers[:, row].tolist()
            alone = run_pipeline(compiled, *costs, goes_on=goes_on)
            check_row(compiled, found, row, alone, costs[0])


@pytest.mark.not_quick
@settings(deadline=None, max_examples=30)
@given(st.integers(1, 5), st.booleans(), st.integers(0, 2**32 - 1))
def test_plans_with_the_same_stages_on_their_ranks_are_as_each_alone(
    ranks: int, goes_on: bool, seed: int
) -> None:
    """Of all families with all numbers of microbatches; some of them have no plan."""
    random = np.random.default_rng(seed)
    schedules = [each for family in FAMILIES for each in with_all_microbatches(family, ranks)]
    groups = schedules_together(schedules)
    assert sorted(chain.from_iterable(groups)) == [*range(len(schedules))]
    for group in groups:
        together = [schedules[i] for i in group]
        times = random.integers(0, 3, len(group))
        times[0] = 1
        which = np.repeat(np.arange(len(group)), times)
        shape = together[0].stages * COST_KINDS, len(which)
        seconds, transfers = with_pairs(together[0], 1 + random.random(shape), random.random(shape))
        found = run_adjacent_columns(together, which, seconds, transfers, goes_on=goes_on)
        for row, compiled in enumerate(together[i] for i in which):
            costs = seconds[:, row].tolist(), transfers[:, row].tolist()
            alone = run_pipeline(compiled, *costs, goes_on=goes_on)
            check_row(compiled, found, row, alone, costs[0])


@pytest.mark.parametrize("name", [entry.name for entry in SCHEDULES])
def test_hundreds_of_microbatches_are_as_each_plan_alone(name: str) -> None:
    """Plans so nearly balanced that it takes long until their ranks are in step."""
    family = SCHEDULES.get(name)
    random = np.random.default_rng(1)
    compiled = compile_schedule(family.made(4, family.default_chunks, 304))
    shape = compiled.stages * COST_KINDS, 6
    seconds, transfers = with_pairs(
        compiled, 1 + 0.02 * random.random(shape), 0.3 * random.random(shape)
    )
    check_against_each_alone(Case(compiled, seconds, transfers, goes_on=True))


@settings(deadline=None, max_examples=30)
@given(st.sampled_from(FAMILIES), st.integers(1, 5), st.integers(1, 24), st.integers(1, 40))
def test_pieces_of_a_part_are_all_its_waves(
    family: ScheduleFamily, ranks: int, count: int, most: int
) -> None:
    assume(family.requires(ranks, family.default_chunks, count) is None)
    program = find_program(compile_schedule(family.made(ranks, family.default_chunks, count)))
    assume(program is not None)
    assert program is not None
    for part, _ in program.parts:
        pieces, whole = list(part.pieces(most)), part.whole
        assert [wave for piece in pieces for wave in piece.waves] == [*whole.waves]
        for name in ("costs", "read_costs", "sent_costs"):
            every: list[Ints] = [getattr(piece, name) for piece in pieces]
            assert np.concatenate(every).tolist() == getattr(whole, name).tolist()
        assert all(len(piece.costs) < most + ranks for piece in pieces)
