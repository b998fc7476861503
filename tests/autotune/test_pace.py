"""What a progress bar says of the rest is what the rest takes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.cli.pace import Pace

sizes = st.lists(st.integers(1, 1000), min_size=1, max_size=30)


@given(sizes, st.floats(0.01, 100.0))
def test_of_one_process_it_is_what_was_done_in_the_time(parts: list[int], each: float) -> None:
    pace, now = Pace(2 * sum(parts), began=5.0), 5.0
    for part in parts:
        now += part * each
        pace.add(part, part * each, now)
    assert pace.rate == pytest.approx(1 / each)
    assert pace.left(now) == pytest.approx(sum(parts) * each)
    assert pace.left(now + 0.5 * sum(parts) * each) == pytest.approx(0.5 * sum(parts) * each)
    assert pace.left(now + 3 * sum(parts) * each) == 0.0


@given(st.integers(2, 50), st.floats(0.01, 10.0), st.floats(0.0, 100.0))
def test_what_the_first_takes_for_all_is_not_expected_of_the_others(
    count: int, each: float, shared: float
) -> None:
    """As a search whose sampler finds bounds before its first trial: no estimate, not even that
    after one trial, takes that for the time of a trial."""
    pace = Pace(2 * count, began=0.0)
    for number in range(1, count + 1):
        now = shared + number * each
        pace.add(1, each, now)
        assert pace.rate == pytest.approx(1 / each)
        assert pace.left(now) == pytest.approx((2 * count - number) * each)


@given(sizes, st.integers(1, 8), st.floats(0.01, 100.0))
def test_processes_under_way_are_counted_but_never_more_than_they_do(
    parts: list[int], processes: int, each: float
) -> None:
    """Processes that all do one in `each` seconds, take the next part when they are free, and are
    heard in the order of the parts."""
    pace = Pace(sum(parts), processes, began=0.0)
    free, now = [0.0] * processes, 0.0
    for part in parts:
        begin = min(free)
        free[free.index(begin)] = begin + part * each
        now = max(now, begin + part * each)
        pace.add(part, part * each, now)
        rate = pace.rate
        assert rate is not None
        assert pace.done / now <= rate * (1 + 1e-9)
        assert rate <= processes / each * (1 + 1e-9)


@given(st.integers(1, 100), st.integers(1, 8))
def test_work_that_takes_no_time_is_no_quicker_than_it_is_heard(count: int, processes: int) -> None:
    pace = Pace(count, processes, began=0.0)
    for number in range(1, count + 1):
        pace.add(1, 0.0, 0.1 * number)
    assert pace.rate == pytest.approx((count + processes - 1) / (0.1 * count))


def test_before_anything_is_done_nothing_is_known() -> None:
    pace = Pace(10)
    assert pace.rate is None
    assert pace.left() is None
