"""Trials that report values on their way and do not promise enough are ended, and told apart."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autotune.api import Search, TuneResult, solve
from autotune.cli import main
from autotune.durable.stated import Kept
from autotune.objectives import as_objective
from autotune.objectives.reporting import Pruned
from autotune.rendering import as_text
from autotune.reports.study import search_report
from autotune.testing import toy_problem
from distir.strategy import Strategy

STEPS = 6
FORKS = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that fork")


def final(strategy: Strategy) -> float:
    return strategy.pp + 1.0 / strategy.dp


def training(strategy: Strategy, report: Callable[[int, float], None]) -> float:
    """A loss that goes down to its final value, and steps that count."""
    for step in range(STEPS):
        report(step, final(strategy) + 1.0 / (step + 1))
    return final(strategy)


REPORTING: Any = training
"""As the type of objectives has it, a second parameter is the search's own business."""


def searched(
    function: Any = REPORTING, *, isolate: bool = False, kept: Kept | None = None, **more: Any
) -> TuneResult:
    search = Search(
        objective=function, isolate=isolate, sampler="random", trials=20, compare_grid=False, **more
    )
    return solve(toy_problem(), search, kept=kept)


@pytest.mark.parametrize("isolate", [False, pytest.param(True, marks=FORKS)])
@pytest.mark.parametrize("pruner", ["median", "hyperband"])
def test_trials_that_do_not_promise_enough_are_pruned_and_neither_failed_nor_infeasible(
    *, pruner: str, isolate: bool
) -> None:
    found = searched(isolate=isolate, pruner=pruner)
    states = {trial.state for trial in found.trials}
    assert states == {"feasible", "pruned"}
    assert found.closest is None
    for trial in found.trials:
        assert trial.cost == (None if trial.state == "pruned" else final(trial.strategy))
        assert trial.to_dict(1).get("pruned", False) == (trial.state == "pruned")
    pruned = sum(trial.state == "pruned" for trial in found.trials)
    report = as_text(search_report(found))
    assert f"{pruned} of 20 trials were pruned" in report
    assert "failed" not in report


@FORKS
def test_a_pruner_decides_the_same_in_a_process_of_its_own_with_a_time_limit() -> None:
    here, apart = searched(), searched(isolate=True, trial_timeout=60)
    assert [each.state for each in here.trials] == [each.state for each in apart.trials]


def test_optuna_has_the_values_on_the_way_and_the_state() -> None:
    found = searched()
    by_plan = {trial.label: trial for trial in found.trials}
    for theirs in found.study.trials:
        ours = by_plan[theirs.user_attrs["plan"]]
        assert (theirs.state.name == "PRUNED") == (ours.state == "pruned")
        assert (len(theirs.intermediate_values) < STEPS) == (ours.state == "pruned")


def test_a_study_that_is_resumed_knows_what_was_pruned_and_goes_on_pruning(tmp_path: Path) -> None:
    def on_storage(trials: int, *, resume: bool) -> TuneResult:
        kept = Kept(storage=f"journal:{tmp_path / 'study'}", study="mine", resume=resume)
        search = Search(
            objective=REPORTING, isolate=False, sampler="random", trials=trials, compare_grid=False
        )
        return solve(toy_problem(), search, kept=kept)

    on_storage(8, resume=False)
    resumed = on_storage(20, resume=True)
    assert [each.state for each in resumed.trials] == [each.state for each in searched().trials]


def test_nothing_is_pruned_where_nobody_reports_or_that_is_not_wanted() -> None:
    assert all(each.feasible for each in searched(pruner="none").trials)
    assert all(each.feasible for each in searched(final).trials)


def test_a_larger_value_is_kept_where_larger_is_better() -> None:
    def accuracy(strategy: Strategy, report: Callable[[int, float], None]) -> float:
        for step in range(STEPS):
            report(step, -final(strategy) - 1.0 / (step + 1))
        return -final(strategy)

    down, up = searched(), searched(accuracy, direction="maximize")
    assert [each.state for each in down.trials] == [each.state for each in up.trials]


@pytest.mark.parametrize(
    ("step", "value"),
    [(-1, 1.0), (0, float("nan")), (0, float("inf")), ("a", 1.0), (0, "b"), (None, 1.0)],
)
def test_what_is_no_step_or_no_value_fails_the_trial(step: Any, value: Any) -> None:
    def wrong(strategy: Strategy, report: Callable[[Any, Any], None]) -> float:
        report(step, value)
        return final(strategy)

    problem, function = toy_problem(), wrong
    objective = as_objective(function, "wrong", simulate=problem.simulate)
    evaluation = objective.measure(next(iter(problem.space.enumerate())))
    assert evaluation.failed
    assert "expected a step of at least 0 and a finite number" in (evaluation.reason or "")


def test_an_objective_that_catches_the_end_counts_with_what_it_returns() -> None:
    def stubborn(strategy: Strategy, report: Callable[[int, float], None]) -> float:
        try:
            return training(strategy, report)
        except Pruned:
            return final(strategy)

    assert all(each.feasible for each in searched(stubborn).trials)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--pruner", "mean"], "expected median, hyperband, none"),
        (["--pruner", "median"], "needs an objective that reports"),
        (
            ["--pruner", "median", "--objectives", "throughput,memory"],
            "a single objective, but --objectives names several",
        ),
    ],
)
def test_a_pruner_that_cannot_be_is_one_line(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--model", "mlp-2x8", "--no-tracking", "--quiet", *options]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert said in printed.err
    assert printed.err.count("\n") == 1
