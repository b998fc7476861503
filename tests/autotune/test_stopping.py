"""A search ends when its time is over, or when nothing is left to gain."""

from __future__ import annotations

import argparse
import math
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune import Evaluation, Search, TuneResult, solve
from autotune.cli.options import seconds, share
from autotune.durable.stated import Kept
from autotune.exhaustive.grid import evaluate_grid
from autotune.objectives import load_objective
from autotune.objectives.costs import regret
from autotune.rendering import as_text
from autotune.reports.study import study_report
from autotune.samplers.sampler import Predicts, Remaining
from autotune.study.stopping import FAILING
from autotune.testing import toy_problem
from distir.errors import DistirError
from distir.metrics import iteration_seconds
from distir.strategy import Strategy
from search_spaces import SearchSpace


@pytest.mark.parametrize(
    ("text", "expected"),
    [("90", 90), ("90s", 90), ("30m", 1800), ("6h", 21600), ("1h30m", 5400), ("0.5h", 1800)],
)
def test_times_have_units(text: str, expected: float) -> None:
    assert seconds(text) == expected


@pytest.mark.parametrize("text", ["", "0", "-1", "nan", "inf", "6 h", "h", "6x", "1h30", "1..5m"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not a time above 0"):
        seconds(text)


@pytest.mark.parametrize("text", ["5", "%", "-5%", "100%", "500%", "five%", "nan%"])
def test_what_is_no_percentage_is_refused(text: str) -> None:
    assert share("5%") == 0.05
    with pytest.raises(argparse.ArgumentTypeError, match="is not a percentage"):
        share(text)


def searched(objective: Callable[..., Any], **more: Any) -> TuneResult:
    return solve(
        toy_problem(),
        Search(objective=objective, compare_grid=False, isolate=False, **more),
    )


def test_when_the_time_is_over_no_trial_is_begun() -> None:
    def slow(strategy: Strategy) -> float:
        time.sleep(0.05)
        return 1.0

    found = searched(slow, timeout=0.3, trials=100)
    assert found.stopped is not None
    assert found.stopped.reason == "timeout"
    assert 1 <= len(found.trials) <= 6


@given(st.lists(st.sampled_from(["ok", "no such program", "another"]), min_size=6, max_size=9))
@settings(max_examples=20, deadline=None)
def test_a_search_ends_when_its_first_trials_fail_for_one_reason(ends: list[str]) -> None:
    told = iter(ends)

    def ending(strategy: Strategy) -> float:
        end = next(told)
        if end != "ok":
            raise RuntimeError(end)
        return 1.0

    found = searched(ending, trials=len(ends))
    hopeless = len({*ends[:FAILING]}) == 1 and ends[0] != "ok"
    assert found.stopped is not None
    assert found.stopped.reason == ("failing" if hopeless else "trials")
    assert len(found.trials) == (FAILING if hopeless else len(ends))
    assert ("have all failed for the same reason" in as_text(study_report(found))) == hopeless


def test_a_search_that_failed_is_taken_up_again(tmp_path: Path) -> None:
    storage, broken = f"journal:{tmp_path / 'log'}", True

    def mended(strategy: Strategy) -> float:
        if broken:
            raise RuntimeError("no such program")
        return 1.0

    search = Search(objective=mended, compare_grid=False, isolate=False, trials=FAILING + 3)
    kept = Kept(storage=storage, study="mine")
    first = solve(toy_problem(), search, kept=kept)
    assert [trial.evaluation.failed for trial in first.trials] == [True] * FAILING
    broken = False
    more = solve(toy_problem(), search, kept=replace(kept, resume=True))
    assert [trial.evaluation.failed for trial in more.trials] == [True] * FAILING + [False] * 3


def always_one(strategy: Strategy) -> float:
    return 1.0


def like_the_simulator(factor: float) -> Callable[..., float]:
    """Seconds that are the simulated ones times a factor, with some scatter."""

    def measure(strategy: Strategy, simulate: Callable[[Strategy], Evaluation]) -> float:
        scatter = 0.02 * math.sin(13 * strategy.dp + 7 * strategy.tp + 3 * strategy.microbatches)
        return factor * (1 + scatter) * simulate(strategy).metrics[iteration_seconds.name]

    return measure


@pytest.mark.parametrize("sampler", ["tpe", "random", "guided"])
@pytest.mark.parametrize("factor", [0.01, 1.7])
def test_what_is_left_when_a_search_ends_is_within_what_was_asked_for(
    sampler: str, factor: float
) -> None:
    found = searched(
        like_the_simulator(factor), sampler=sampler, stop_within=0.1, trials=1000, seed=2
    )
    assert found.stopped is not None
    assert found.stopped.reason in ("stop-within", "space")
    if sampler != "random":
        assert len(found.trials) < found.problem.space.count() / 2
    grid = evaluate_grid(
        found.problem.space, load_objective(like_the_simulator(factor), found.problem.simulate)
    )
    assert grid.best is not None
    assert found.found is not None
    assert regret(found.found.cost or 0.0, grid.best.cost or 0.0) <= 0.1 / 0.9
    if found.stopped.reason == "stop-within":
        words = found.stopped.words
        assert "10.0 % was requested), according to" in words
        basis = (
            r"the simulator's costs of the untried strategies, times a factor fitted to \d+ trials"
        )
        if sampler == "guided":
            basis = r"costs of the [\d,]+ remaining strategies .* corrected by \d+ trials"
        assert re.search(basis + r".* less 2 bands of [\d.]+ %", words)
        assert found.to_dict()["stopped_in_words"] == words
        assert words in " ".join(as_text(study_report(found)).split())


def less(part: float) -> Callable[..., float]:
    """Seconds less a number, so that costs may have both signs."""

    def measure(strategy: Strategy, simulate: Callable[[Strategy], Evaluation]) -> float:
        return simulate(strategy).metrics[iteration_seconds.name] - part

    return measure


def rate_below_zero(strategy: Strategy, simulate: Callable[[Strategy], Evaluation]) -> float:
    return -1 / simulate(strategy).metrics[iteration_seconds.name]


@pytest.mark.parametrize("sampler", ["random", "guided"])
def test_costs_may_have_either_sign_or_both(sampler: str) -> None:
    problem = toy_problem()
    times = [
        problem.simulate(each).metrics[iteration_seconds.name]
        for each in problem.space.enumerate()
        if problem.simulate(each).feasible
    ]
    middle = sorted(times)[len(times) // 4]
    objectives: list[Callable[..., float]] = [rate_below_zero, less(2 * max(times)), less(middle)]
    for objective in objectives:
        found = searched(objective, sampler=sampler, stop_within=0.1, trials=1000, seed=4)
        grid = evaluate_grid(problem.space, load_objective(objective, problem.simulate))
        assert grid.best is not None
        assert grid.best.cost is not None
        assert found.found is not None
        assert found.found.cost is not None
        assert found.found.cost - grid.best.cost <= 0.1 / 0.9 * abs(found.found.cost)
        if objective is rate_below_zero:
            assert found.stopped is not None
            assert found.stopped.reason == "stop-within"


def against(strategy: Strategy, simulate: Callable[[Strategy], Evaluation]) -> float:
    """Worse where the simulator expects better."""
    return 1 / simulate(strategy).metrics[iteration_seconds.name]


@pytest.mark.parametrize("sampler", ["random", "guided"])
def test_nothing_is_said_where_costs_run_against_what_is_simulated(sampler: str) -> None:
    found = searched(against, sampler=sampler, stop_within=0.05, trials=60, seed=1)
    assert found.stopped is not None
    assert found.stopped.reason in ("trials", "space")


def better_with_pipelines(part: float) -> Callable[..., float]:
    """The simulated seconds, of which only a part is right where there are pipelines."""

    def measure(strategy: Strategy, simulate: Callable[[Strategy], Evaluation]) -> float:
        wrong = part if strategy.pp > 1 else 1.0
        return wrong * simulate(strategy).metrics[iteration_seconds.name]

    return measure


def test_like_plans_say_little_of_others() -> None:
    """Five trials without pipelines that are as expected do not end the search while plans with
    pipelines are expected to be hardly worse: the simulator may be off by that."""
    problem = toy_problem()
    found = searched(better_with_pipelines(0.85), sampler="guided", stop_within=0.0, trials=1000)
    assert {trial.strategy.pp > 1 for trial in found.trials} == {False, True}
    whole = min(
        better_with_pipelines(0.85)(each, problem.simulate)
        for each in problem.space.enumerate()
        if problem.simulate(each).feasible
    )
    assert found.found is not None
    assert found.found.cost == pytest.approx(whole)


def test_nothing_is_said_of_what_is_left_before_enough_is_known() -> None:
    found = searched(like_the_simulator(1.0), sampler="tpe", stop_within=0.99, trials=1000)
    assert len(found.trials) >= 5
    assert found.stopped is not None
    assert "a factor fitted to 5 trials" in found.stopped.words


class Expecting:
    """Expects what it is told to."""

    def __init__(self, space: SearchSpace, seed: int, costs: list[float | None]):
        self._strategies = space.enumerate()
        self._costs = iter(costs)

    def ask(self) -> Strategy | None:
        return next(self._strategies, None)

    def tell(self, strategy: Strategy, cost: float | None, violation: float = 0.0) -> None:
        pass

    def best_remaining(self) -> Remaining | None:
        cost = next(self._costs)
        return None if cost is None else Remaining(cost, "a guess")


def test_a_sampler_says_itself_what_is_left() -> None:
    def made(space: SearchSpace, seed: int) -> Expecting:
        return Expecting(space, seed, [None, 0.8, 0.96])

    assert isinstance(made(toy_problem().space, 0), Predicts)
    found = searched(always_one, sampler=made, stop_within=0.05)
    assert len(found.trials) == 3
    assert found.stopped is not None
    assert "better by more than 4.0 % (5.0 % was requested), according to a guess" in (
        found.stopped.words
    )


def test_a_sampler_that_fails_to_say_it_ends_the_study_and_nothing_is_lost() -> None:
    def made(space: SearchSpace, seed: int) -> Expecting:
        return Expecting(space, seed, [None])

    found = searched(always_one, sampler=made, stop_within=0.05)
    assert len(found.trials) == 2
    assert "best_remaining" in str(found.error)


def test_a_space_too_large_to_simulate_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.prospects.remaining.MOST_SIMULATED", 10)
    with pytest.raises(DistirError, match="only a sampler can estimate what is left to gain"):
        searched(always_one, sampler="tpe", stop_within=0.05)


@pytest.mark.parametrize("stated", [5, 1.0, -0.1, float("nan")])
def test_a_percentage_is_no_fraction(stated: float) -> None:
    with pytest.raises(DistirError, match=r"expected a fraction such as 0\.05"):
        searched(like_the_simulator(1.0), stop_within=stated)


def test_a_best_of_nothing_can_still_be_better_by_any_fraction() -> None:
    def made(space: SearchSpace, seed: int) -> Expecting:
        return Expecting(space, seed, [-5.0] * 7)

    def always_nothing(strategy: Strategy) -> float:
        return 0.0

    found = searched(always_nothing, sampler=made, trials=7, stop_within=0.5)
    assert found.stopped is not None
    assert found.stopped.reason == "trials"
    assert len(found.trials) == 7
