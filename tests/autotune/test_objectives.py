"""An objective may be anything that gives a number, and may fail in any way: the study goes on."""

from __future__ import annotations

import math
import os
import re
import sys
import time
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from autotune.api import Search, solve
from autotune.objectives import Evaluation, Objective, as_objective, load_objective
from autotune.objectives.evaluation import as_evaluation
from autotune.objectives.isolation import IsolatedObjective
from autotune.plugins import PluginError
from autotune.problem import load_problem
from autotune.testing import ObjectiveContract, toy_problem
from distir.errors import DistirError, UnknownNameError
from distir.strategy import Strategy

PLUGINS = Path(__file__).parent / "plugin_package"


def _one(strategy: Strategy) -> float:
    return 1.0


def load(spec: Any, **options: Any) -> Objective:
    return load_objective(spec, toy_problem().simulate, **options)


class TestABareNumber(ObjectiveContract):
    @staticmethod
    def objective(strategy: Strategy) -> float:
        return strategy.dp + 0.5


@pytest.mark.parametrize("raw", [10**400, -(10**400)])
def test_a_number_beyond_all_floats_is_a_failure(raw: object) -> None:
    found = as_evaluation(raw)
    assert found.failed
    assert "inf" in str(found.reason)


class TestAnEvaluation(ObjectiveContract):
    @staticmethod
    def objective(strategy: Strategy) -> Evaluation:
        return Evaluation({"cost": 1.0}, strategy.tp == 1, "tp is dear")


@pytest.mark.parametrize(
    ("raw", "metrics"),
    [
        (3, {"value": 3.0}),
        ({"a": 1, "b": 2.5}, {"a": 1.0, "b": 2.5}),
        (Evaluation({"c": 4}), {"c": 4.0}),
        (np.array(3), {"value": 3.0}),
        ({"a": np.array(1.5)}, {"a": 1.5}),
        (Decimal("1.5"), {"value": 1.5}),
    ],
)
def test_numbers_dicts_and_evaluations_are_understood(raw: object, metrics: object) -> None:
    assert as_evaluation(raw).metrics == metrics


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda: math.nan, "the objective returned nan"),
        (lambda: {"a": math.inf}, "the objective's a is inf"),
        (lambda: {"a": "x"}, "the objective's 'a' is 'x'; expected a number"),
        (lambda: None, "the objective returned NoneType None; expected a number"),
        (dict, "the objective gave no metric; it gave an empty mapping"),
        (object, "the objective returned object <object object>; expected a number"),
        (lambda: np.ones(2), "the objective returned ndarray array([1., 1.]); expected a number"),
        (lambda: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda: sys.exit(3), "SystemExit: 3"),
    ],
)
def test_what_goes_wrong_fails_the_trial_with_its_reason(
    function: Callable[[], Any], reason: str
) -> None:
    def objective(strategy: Strategy) -> Any:
        return function()

    result = solve(toy_problem(), Search(objective=objective, sampler="random", trials=3))
    assert [trial.state for trial in result.trials] == ["failed"] * 3
    assert all(str(trial.evaluation.reason).startswith(reason) for trial in result.trials)
    assert result.best is None
    assert "No trial succeeded." in str(result)
    assert re.search(r" for the smallest \w+\.", str(result))


@pytest.mark.slow(seconds=1)
def test_a_study_survives_an_objective_that_fails_now_and_then() -> None:
    def moody(strategy: Strategy) -> float:
        if strategy.tp == 2:
            raise RuntimeError("not\ntoday")
        return float(strategy.pp)

    result = solve(toy_problem(), Search(objective=moody, trials=40))
    assert result.best is not None
    assert result.best.strategy.pp == 1
    reasons = {trial.evaluation.reason for trial in result.trials if trial.failed}
    assert reasons == {"RuntimeError: not today"}


def test_throughput_alone_is_maximized_unless_told_otherwise() -> None:
    assert load("throughput").maximize
    assert not load("latency").maximize
    assert not load("memory").maximize
    assert not load(_one).maximize
    assert load(_one, direction="maximize").maximize
    with pytest.raises(DistirError, match="direction 'up'; expected maximize or minimize"):
        load(_one, direction="up")


def test_a_plugin_says_for_itself_what_counts() -> None:
    class Score:
        metric = "score"
        direction = "maximize"

        def __call__(self, strategy: Strategy) -> dict[str, float]:
            return {"other": 1.0, "score": float(strategy.tp)}

    result = solve(
        toy_problem(), Search(objective=cast("Any", Score), trials=30, compare_grid=True)
    )
    assert result.best is not None
    assert result.best.strategy.tp == 4
    assert result.to_dict()["metric"] == "score"


def test_a_plugin_may_wrap_the_default_simulator() -> None:
    def doubled(strategy: Strategy, simulate: Callable[[Strategy], Evaluation]) -> float:
        return 2 * simulate(strategy).metrics["iteration_seconds"]

    problem = toy_problem()
    strategy = Strategy(dp=16)
    objective = as_objective(doubled, "doubled", simulate=problem.simulate)
    expected = 2 * problem.simulate(strategy).metrics["iteration_seconds"]
    assert objective.measure(strategy).metrics == {"value": expected}


def test_an_objective_is_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def cost(strategy):\n    return strategy.pp\n")
    assert load(f"{file}:cost").measure(Strategy(pp=3)).metrics == {"value": 3.0}
    with pytest.raises(UnknownNameError, match="'cots'; did you mean: cost"):
        load(f"{file}:cots")


def test_plugins_that_are_not_there_say_where_they_were_looked_for(tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("import nothing_of_this_name\n")
    with pytest.raises(
        PluginError, match=r"broken\.py:cost: ModuleNotFoundError: .* \(at .*broken\.py:1\)"
    ):
        load(f"{broken}:cost")
    with pytest.raises(PluginError, match=r"objective nowhere\.py:cost: there is no file"):
        load("nowhere.py:cost")
    with pytest.raises(PluginError, match="objective nowhere:cost: ModuleNotFoundError"):
        load("nowhere:cost")
    with pytest.raises(PluginError, match="is incomplete"):
        load("nowhere:")
    with pytest.raises(UnknownNameError, match=r"did you mean: .*latency"):
        load("latencey")
    with pytest.raises(DistirError, match=r"is float 3\.14.*; expected a callable"):
        load("math:pi")


def test_entry_points_of_an_installed_package_are_objectives_and_samplers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "path", [str(PLUGINS), *sys.path])
    search = Search(objective="joules", sampler="last-first", trials=5)
    problem = toy_problem()
    result = solve(problem, search)
    last = [problem.space.at(problem.space.count() - 1 - index) for index in range(5)]
    assert [trial.strategy for trial in result.trials] == last
    assert result.objective.metric == "joules"
    assert result.grid is None


@pytest.mark.slow(seconds=1)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_trial_that_takes_too_long_is_given_up_and_the_next_goes_on(tmp_path: Path) -> None:
    never_returns = tmp_path / "never_returns"

    def slow_in_places(strategy: Strategy) -> float:
        if strategy.pp == 2:
            never_returns.write_text(str(os.getpid()), encoding="utf-8")
            while True:
                time.sleep(1)
        if strategy.pp == 4:
            os._exit(1)
        return float(os.getpid())

    objective = as_objective(slow_in_places, "slow", simulate=toy_problem().simulate)
    with IsolatedObjective(objective, timeout_seconds=0.5) as isolated:
        first = isolated.measure(Strategy())
        late = isolated.measure(Strategy(pp=2))
        second = isolated.measure(Strategy())
        dead = isolated.measure(Strategy(pp=4))
        third = isolated.measure(Strategy())
    assert late.reason == "took longer than 0.5 s"
    assert dead.reason == "the objective's process ended with exit code 1 before it answered"
    assert late.failed
    assert dead.failed
    workers = {each.metrics["value"] for each in (first, second, third)}
    assert len(workers) == 3
    assert os.getpid() not in workers
    for pid in (*workers, never_returns.read_text(encoding="utf-8")):
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)


@pytest.mark.slow(seconds=1)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_time_limit_changes_nothing_for_trials_that_keep_it() -> None:
    limited, free = (
        solve(toy_problem(), Search(sampler="random", trials=10, trial_timeout=limit))
        for limit in (20.0, None)
    )
    assert [t.to_dict(256) for t in limited.trials] == [t.to_dict(256) for t in free.trials]


@pytest.mark.parametrize(
    ("plugin", "said"),
    [
        ("lambda: 1.0", "too many positional arguments"),
        ("lambda strategy, rate: 1.0", "missing a required argument: 'rate'"),
        ("lambda simulate: 1.0", "multiple values for argument 'simulate'"),
    ],
)
def test_a_plugin_that_no_strategy_can_be_given_is_refused_at_once(
    plugin: str, said: str, tmp_path: Path
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(f"cost = {plugin}\n")
    with pytest.raises(PluginError, match=f"cannot be called with a strategy: {said}; expected"):
        load(f"{file}:cost")


@pytest.mark.parametrize(
    "plugin",
    [
        "async def cost(strategy):\n    return 1.0\n",
        "async def cost(strategy):\n    yield 1.0\n",
        "class cost:\n    async def __call__(self, strategy):\n        return 1.0\n",
        "import functools\nasync def it(s):\n    return 1\ncost = functools.partial(it)\n",
    ],
)
def test_an_async_plugin_is_refused_when_it_is_loaded(plugin: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(plugin)
    with pytest.raises(
        PluginError, match="is an async function, whose result nothing awaits"
    ) as caught:
        load(f"{file}:cost")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("attribute", ["metric", "direction"])
def test_what_a_plugin_says_of_itself_is_a_text(attribute: str) -> None:
    def cost(strategy: Strategy) -> float:
        return 1.0

    setattr(cost, attribute, None)
    assert load(cost).measure(Strategy()).metrics == {"value": 1.0}
    setattr(cost, attribute, 3)
    with pytest.raises(PluginError, match=f"objective cost has {attribute} 3; expected a text"):
        load(cost)


@pytest.mark.parametrize("stated", [0.0, -3.0, math.nan, math.inf])
def test_what_a_plugin_calls_infeasible_is_never_told_as_feasible(stated: float) -> None:
    """A violation of 0 is that of feasible strategies, for samplers and for Optuna."""
    assert as_evaluation(Evaluation({"a": 1.0}, feasible=False, violation=stated)).violation == 1.0
    assert as_evaluation(Evaluation({"a": 1.0}, violation=stated)).violation == 0.0


@pytest.mark.parametrize("sampler", ["uct", "tpe"])
def test_samplers_leave_what_a_plugin_calls_infeasible(sampler: str) -> None:
    def cost(strategy: Strategy) -> Evaluation:
        return Evaluation({"cost": float(strategy.tp)}, strategy.tp > 1, "it needs tp")

    search = Search(objective=cost, sampler=sampler, trials=40, isolate=False)
    trials = solve(toy_problem(), search).trials
    assert sum(trial.feasible for trial in trials) > len(trials) / 2


def test_an_infeasible_plan_without_a_reason_is_not_said_to_have_failed() -> None:
    def cost(strategy: Strategy) -> Evaluation:
        return Evaluation({}, feasible=False)

    said = str(solve(toy_problem(), Search(objective=cost, sampler="random", trials=3)))
    assert "with no reason given" in said
    assert "failed" not in said


def test_a_name_is_the_plugins_own_first_and_then_the_simulators() -> None:
    """`throughput` is what the plug-in measures under this name, and the simulator's
    `throughput_samples_per_second` only where it measures no `throughput` of its own."""
    simulated = "throughput_samples_per_second"

    def both(strategy: Strategy) -> dict[str, float]:
        return {"throughput": 2.0, simulated: 5.0}

    def one(strategy: Strategy) -> dict[str, float]:
        return {"loss": 2.0, simulated: 5.0}

    own = load(both, metric="throughput")
    assert own.cost(own.checked(own.measure(Strategy()))) == -2.0
    other = load(one, metric="throughput")
    assert other.cost(other.checked(other.measure(Strategy()))) == -5.0
    assert other.metric == simulated


@pytest.mark.parametrize("name", ["cost", "time-to-train"])
def test_a_metric_of_ones_own_needs_nothing_that_the_simulators_would(name: str) -> None:
    """The simulator's `cost` needs a price; a plug-in that measures one of its own does not."""

    def measured(strategy: Strategy) -> dict[str, float]:
        return {"seconds": 1.0, name: float(strategy.tp)}

    problem = load_problem("mlp-2x8", "dgx-a100", devices=4, space="small")
    search = Search(objective=measured, metric=name, sampler="guided", trials=3, isolate=False)
    assert [trial.state for trial in solve(problem, search).trials] == ["feasible"] * 3
