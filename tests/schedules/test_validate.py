"""What is wrong with a schedule is said, and shown in the grid."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from distir.errors import DeadlockError, ScheduleError
from distir.schedules import Action, Schedule, format_grid, parse_schedule, validate
from distir.schedules.families.gpipe import gpipe
from distir.schedules.families.one_f_one_b import one_f_one_b


@pytest.mark.parametrize(
    ("text", "says", "shows"),
    [
        ("0F0 0B0\n1F0", "1B0 is missing", "[?]"),
        ("0B0\n1F0 1B0", "0F0 is missing", "[?]"),
        ("0F0 0F0 0B0", "0F0 appears twice, first on rank 0, position 0", "[0F0]"),
        ("0B0 0F0", "0B0 uses what 0F0 produces, which comes later", "[0B0]"),
        ("0F0 2F0 2B0 1F0 1B0 0B0", "2F0 uses what 1F0 produces", "[2F0]"),
        ("0F0 0W0 0B0", "0W0 uses what 0B0 produces", "[0W0]"),
        ("0F0 0B0 0W0 0F1 0B1", "0W1 is missing: where a schedule has W", "[?]"),
        ("0F0 0BW0 0W0", "0W0 is part of 0BW0", "[0W0]"),
        ("0F0\n0B0", "0B0 is on rank 1, but its forward pass is on rank 0", "[0B0]"),
        ("0F0 (0F1;0B1)OVERLAP_F_B 0B0", "0B1 cannot overlap with 0F1, whose results", "[0F1]"),
        ("0F0 (0F1;0B0)OVERLAP_F_B 0W0 0BW1", "0F1 and 0B0 cannot overlap; expected", "[0F1]"),
    ],
)
def test_what_is_wrong_is_said_and_shown(text: str, says: str, shows: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        validate(parse_schedule(text))
    problem, _, grid = str(caught.value).partition("\n")
    assert says in problem
    assert shows in grid
    assert not isinstance(caught.value, DeadlockError)


def test_a_deadlock_says_who_waits_for_what() -> None:
    text = "0F0 0F1 0B1 0B0\n1F0 1B0 1F1 1B1"
    validate(parse_schedule(text))
    with pytest.raises(DeadlockError) as caught:
        validate(parse_schedule("0F0 0B0 0F1 0B1\n1F0 1F1 1B0 1B1"))
    problem, _, grid = str(caught.value).partition("\n")
    assert problem == (
        "deadlock: rank 0 at 0B0 waits for 1B0 on rank 1; rank 1 at 1F1 waits for 0F1 on rank 0"
    )
    assert "[0B0]" in grid


def test_a_pair_waits_for_what_both_of_its_actions_need() -> None:
    """One after the other they would not wait for ever: rank 1 gets 0F1 before rank 0 wants 1B0."""
    apart = "0F0 0F1 0B0 0B1\n1F0 1F1 1B0 1B1"
    validate(parse_schedule(apart))
    with pytest.raises(DeadlockError) as caught:
        validate(parse_schedule(apart.replace("0F1 0B0", "(0F1;0B0)OVERLAP_F_B")))
    problem, _, _ = str(caught.value).partition("\n")
    assert problem == (
        "deadlock: rank 0 at 0B0 waits for 1B0 on rank 1; rank 1 at 1F1 waits for 0F1 on rank 0"
    )


def test_indices_out_of_range_are_shown() -> None:
    with pytest.raises(ScheduleError, match="1F0 has no such stage; expected stages 0 to 0"):
        validate(Schedule(((Action(1, "F", 0),),), 1, 1))
    with pytest.raises(ScheduleError, match="0F2 has no such microbatch"):
        validate(Schedule(((Action(0, "F", 2),),), 1, 1))


@given(st.integers(1, 5), st.integers(1, 6), st.data())
def test_leaving_out_or_repeating_any_action_is_noticed(
    stages: int, microbatches: int, data: st.DataObject
) -> None:
    assume(stages * microbatches > 1)  # a lone forward pass is a schedule for inference
    schedule = one_f_one_b(stages, 1, microbatches)
    rank = data.draw(st.integers(0, stages - 1))
    actions = schedule.ranks[rank]
    index = data.draw(st.integers(0, len(actions) - 1))
    for spoilt in (
        actions[:index] + actions[index + 1 :],
        (*actions, actions[index]),
    ):
        ranks = (*schedule.ranks[:rank], spoilt, *schedule.ranks[rank + 1 :])
        with pytest.raises(ScheduleError, match=str(actions[index])):
            validate(Schedule(ranks, stages, microbatches))


@given(st.integers(1, 4), st.integers(1, 4), st.randoms(use_true_random=False))
def test_any_order_is_either_valid_or_explained(
    stages: int, microbatches: int, random: Random
) -> None:
    shuffled = [list(rank) for rank in gpipe(stages, 1, microbatches).ranks]
    for rank in shuffled:
        random.shuffle(rank)
    schedule = Schedule(tuple(map(tuple, shuffled)), stages, microbatches)
    problem = ""
    try:
        validate(schedule)
    except ScheduleError as error:
        problem = str(error)
    assert not problem or "[" in problem


def test_the_grid_of_a_small_schedule_shows_all_of_it() -> None:
    assert format_grid(one_f_one_b(2, 1, 2)) == (
        "rank 0  | 0F0  0F1  0B0  0B1\nrank 1  | 1F0  1B0  1F1  1B1"
    )


def test_the_grid_of_a_large_schedule_shows_the_neighbourhood() -> None:
    grid = format_grid(one_f_one_b(64, 1, 256), (30, 100), reach=2)
    assert len(grid.splitlines()) == 6
    assert grid.splitlines()[-1] == "… 59 more ranks"
    assert grid.count("[") == 1
    assert all(len(line) < 60 for line in grid.splitlines())
