"""What the attempts on a storage say, whatever has become of the workers that made them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as draw

from autotune.durable.attempts import Attempt, busy_seconds, entries_of, is_void
from autotune.durable.workers import BEATS, Watch
from autotune.objectives.evaluation import Evaluation
from distir.strategy import Strategy

KNOWN = Evaluation({"value": 1.0})


def attempt(number: int, dp: int, state: Any = "running", **more: Any) -> Attempt:
    known = KNOWN if state == "done" else None
    return Attempt(number, number, Strategy(dp=dp), state, evaluation=known, **more)


def test_a_strategy_whose_worker_died_is_tried_once_more_and_then_has_failed() -> None:
    lost = [attempt(0, 1, "lost")]
    assert entries_of(lost, retries=1)[0].open
    (entry,) = entries_of([*lost, attempt(1, 1, "lost")], retries=1)
    assert not entry.open
    assert entry.evaluation is not None
    assert entry.evaluation.failed
    assert entries_of([*lost, attempt(1, 1, "done")], retries=1)[0].evaluation == KNOWN


def test_of_workers_that_claim_the_same_at_once_the_first_goes_on() -> None:
    both = [attempt(0, 1), attempt(1, 1)]
    assert [is_void(each, both, budget=9, retries=1) for each in both] == [False, True]


@given(
    states=draw.lists(draw.sampled_from(["running", "done", "lost", "withdrawn"]), max_size=9),
    degrees=draw.lists(draw.integers(1, 3), min_size=9, max_size=9),
    claims=draw.lists(draw.integers(1, 3), min_size=1, max_size=4),
    budget=draw.integers(1, 4),
)
def test_no_strategy_has_two_workers_and_the_budget_holds(
    states: list[Any], degrees: list[int], claims: list[int], budget: int
) -> None:
    """Claims that are not void are entered, the others withdrawn, in any order."""
    attempts: list[Attempt] = []
    for state, dp in [*zip(states, degrees, strict=False), *(("running", dp) for dp in claims)]:
        mine = attempt(len(attempts), dp, state)
        void = is_void(mine, attempts, budget, retries=1)
        attempts.append(replace(mine, state="withdrawn", evaluation=None) if void else mine)
    entries = entries_of(attempts, retries=1)
    assert len(entries) <= budget
    for entry in entries:
        tries = [each.state for each in attempts if each.strategy == entry.strategy]
        assert tries.count("running") + tries.count("done") <= 1
        assert tries.count("lost") <= 2


def test_time_in_which_several_workers_are_busy_counts_once() -> None:
    spans = [(0.0, 4.0), (1.0, 2.0), (3.0, 3.0), (10.0, 1.0)]
    attempts = [
        attempt(n, n + 1, "done", started=began, seconds=took)
        for n, (began, took) in enumerate(spans)
    ]
    assert busy_seconds(attempts) == 7.0


def test_silence_counts_from_when_it_is_noticed_whatever_the_clocks_say() -> None:
    now = 0.0
    watch = Watch(60.0, clock=lambda: now, wall=lambda: 1000.0 + now)
    ahead, recent, long_past = 5000.0, 990.0, 100.0
    signs = {1: ahead, 2: recent, 3: long_past}
    assert not any(watch.is_silent(key, sign) for key, sign in signs.items())
    now = 2 * 60.0 / BEATS
    assert [watch.is_silent(key, sign) for key, sign in signs.items()] == [False, False, True]
    assert not watch.is_silent(3, long_past + 1)  # it lives
    now = 60.0
    assert [watch.is_silent(key, sign) for key, sign in signs.items()] == [True, True, False]
