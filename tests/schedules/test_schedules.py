"""Schedules with one stage per rank: golden grids, memory, makespan; the text form of any."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distir.errors import ScheduleError, UnknownNameError
from distir.schedules import (
    SCHEDULES,
    Action,
    Schedule,
    ScheduleFamily,
    dependencies,
    format_schedule,
    forward_only,
    max_in_flight,
    parse_action,
    parse_schedule,
    validate,
)
from distir.schedules.families.gpipe import gpipe
from distir.schedules.families.one_f_one_b import one_f_one_b

generators = st.sampled_from([gpipe, one_f_one_b, forward_only])
stages_ = st.integers(1, 7)
microbatches_ = st.integers(1, 10)


def makespan(schedule: Schedule, seconds: dict[str, float]) -> float:
    """Longest path, the plain way: an action starts when its rank is free and its inputs ready."""
    end: dict[Action, float] = {}
    free = [0.0] * len(schedule.ranks)
    heads = [0] * len(schedule.ranks)
    while any(head < len(rank) for head, rank in zip(heads, schedule.ranks, strict=True)):
        for index, rank in enumerate(schedule.ranks):
            if heads[index] == len(rank):
                continue
            action = rank[heads[index]]
            needed = dependencies(action, schedule.stages)
            if all(need in end for need in needed):
                start = max([free[index], *(end[need] for need in needed)])
                end[action] = free[index] = start + seconds[action.kind]
                heads[index] += 1
    return max(free)


def test_one_f_one_b_looks_as_in_the_paper() -> None:
    assert str(one_f_one_b(2, 1, 3)) == "0F0 0F1 0B0 0F2 0B1 0B2\n1F0 1B0 1F1 1B1 1F2 1B2"
    assert str(one_f_one_b(3, 1, 4)) == (
        "0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3\n"
        "1F0 1F1 1B0 1F2 1B1 1F3 1B2 1B3\n"
        "2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3"
    )


def test_gpipe_runs_all_forward_passes_first() -> None:
    assert str(gpipe(2, 1, 3)) == "0F0 0F1 0F2 0B0 0B1 0B2\n1F0 1F1 1F2 1B0 1B1 1B2"


def test_forward_only_has_no_backward_pass() -> None:
    assert str(forward_only(2, 1, 2)) == "0F0 0F1\n1F0 1F1"
    assert not forward_only(2, 1, 2).has_backward
    assert max_in_flight(forward_only(2, 1, 9), 0) == 1


@given(stages_, microbatches_)
def test_one_f_one_b_holds_no_more_than_the_pipeline_below_needs(
    stages: int, microbatches: int
) -> None:
    schedule = one_f_one_b(stages, 1, microbatches)
    for stage in range(stages):
        assert max_in_flight(schedule, stage) == min(microbatches, stages - stage)


@given(stages_, microbatches_)
def test_gpipe_holds_all(stages: int, microbatches: int) -> None:
    schedule = gpipe(stages, 1, microbatches)
    assert {max_in_flight(schedule, stage) for stage in range(stages)} == {microbatches}


@pytest.mark.parametrize("generate", [gpipe, one_f_one_b])
@given(stages_, microbatches_, st.integers(1, 9), st.integers(1, 9))
def test_under_uniform_costs_the_pipeline_fills_and_drains_once(
    generate: ScheduleFamily, p: int, m: int, f: int, b: int
) -> None:
    """(m + p - 1)(f + b), links free."""
    assert makespan(generate(p, 1, m), {"F": f, "B": b}) == (m + p - 1) * (f + b)


@given(stages_, microbatches_, st.integers(1, 9))
def test_inference_fills_the_pipeline_once(p: int, m: int, f: int) -> None:
    assert makespan(forward_only(p, 1, m), {"F": f}) == (m + p - 1) * f


@given(generators, stages_, microbatches_)
def test_every_schedule_is_valid_and_survives_its_text_form(
    generate: ScheduleFamily, stages: int, microbatches: int
) -> None:
    schedule = generate(stages, 1, microbatches)
    validate(schedule)
    assert parse_schedule(format_schedule(schedule)) == schedule
    assert (schedule.stages, schedule.microbatches) == (stages, microbatches)
    assert schedule.stages_of_ranks == tuple((stage,) for stage in range(stages))


@given(generators, stages_, microbatches_)
def test_each_microbatch_visits_each_stage_once_each_way(
    generate: ScheduleFamily, stages: int, microbatches: int
) -> None:
    schedule = generate(stages, 1, microbatches)
    kinds = ("F", "B") if schedule.has_backward else ("F",)
    expected = {
        Action(stage, kind, m)
        for stage in range(stages)
        for m in range(microbatches)
        for kind in kinds
    }
    actions = list(schedule.actions)
    assert len(actions) == len(set(actions))
    assert set(actions) == expected


def test_registered_schedules_have_a_line_each_and_their_name() -> None:
    for entry in SCHEDULES:
        family = entry.value
        assert entry.summary == family.summary
        assert family(2, family.default_chunks, 4).name == family.name == entry.name
    assert SCHEDULES.get("GPipe") is gpipe
    with pytest.raises(UnknownNameError, match="did you mean: 1f1b"):
        SCHEDULES.get("1f1")


def test_text_may_hold_comments_and_empty_lines() -> None:
    text = "# mine\n\n0F0 0B0   # the only rank\n"
    assert parse_schedule(text) == one_f_one_b(1, 1, 1)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("0F0 0X0", "line 1: '0X0' is not an action; expected stage, kind (F, B, W, BW)"),
        ("0F0\nF1", "line 2: 'F1' is not an action"),
        ("0f0", "such as 2F0"),
        ("0F0 (0F1;0B0", "'(0F1;0B0' is not an action"),
        ("0F0 (0B0;0F1)OVERLAP_F_B", "expected a forward pass and a whole backward pass"),
        ("0F0 (0F1;0W0)OVERLAP_F_B", "'(0F1;0W0)OVERLAP_F_B' is not an overlapped pair"),
        ("# nothing", "the schedule is empty"),
    ],
)
def test_text_that_is_no_schedule_says_where(text: str, says: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        parse_schedule(text)
    assert says in str(caught.value)


@pytest.mark.parametrize("text", ["0F0", "12B345", "3W0", "7BW1"])
def test_an_action_is_what_it_prints(text: str) -> None:
    assert str(parse_action(text)) == text


def test_chunks_on_a_rank_and_split_backward_passes_are_schedules_too() -> None:
    """Two ranks with two stages each, backward passes in two parts: 4 F, 4 B and the last W."""
    schedule = parse_schedule("0F0 2F0 2B0 2W0 0B0 0W0\n1F0 3F0 3B0 3W0 1B0 1W0")
    validate(schedule)
    assert schedule.stages_of_ranks == ((0, 2), (1, 3))
    assert schedule.splits_backward
    assert makespan(schedule, {"F": 1, "B": 1, "W": 1}) == 9


def test_activations_are_kept_until_the_last_part_of_the_backward_pass() -> None:
    schedule = parse_schedule("0F0 0B0 0F1 0B1 0W0 0W1")
    validate(schedule)
    assert max_in_flight(schedule, 0) == 2


def test_a_stage_may_live_on_two_ranks() -> None:
    """A bidirectional pipeline: microbatch 1 runs the other way round."""
    schedule = parse_schedule("0F0 1F1 1B1 0B0\n0F1 1F0 1B0 0B1")
    validate(schedule)
    assert max_in_flight(schedule, 0) == 1
