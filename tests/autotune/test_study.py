"""The loop: repeated suggestions cost nothing, the grid is all there is, nothing found is lost."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, cast

import pytest

import autotune
from autotune import Search, Trial, load_problem, solve
from autotune.api import DEFAULT_TRIALS
from autotune.exhaustive.grid import evaluate_grid
from autotune.objectives import load_objective
from autotune.objectives.costs import regret
from autotune.problem import default_batch_size
from autotune.study.study import Study
from autotune.study.trial import pareto_front
from autotune.testing import ToySimulator, ToyWorkload, toy_problem, toy_space
from distir.errors import DistirError
from distir.strategy import Strategy
from search_spaces import SearchSpace


class Stubborn:
    """Proposes the same strategy for ever."""

    def __init__(self, space: SearchSpace, seed: int):
        self.told: list[Strategy] = []
        self._only = space.at(0)

    def ask(self) -> Strategy | None:
        return self._only

    def tell(self, strategy: Strategy, cost: float | None, violation: float = 0.0) -> None:
        self.told.append(strategy)


def test_repeated_suggestions_are_answered_from_memory_and_not_charged() -> None:
    simulator = ToySimulator()
    result = solve(toy_problem(simulator), Search(sampler="tpe", compare_grid=False))
    assert len(result.trials) == DEFAULT_TRIALS == simulator.calls
    assert len({trial.strategy for trial in result.trials}) == DEFAULT_TRIALS
    assert result.repeats > 0


def test_a_stubborn_sampler_does_not_stop_the_search() -> None:
    result = solve(toy_problem(), Search(sampler=Stubborn, trials=5, compare_grid=False))
    assert len({trial.strategy for trial in result.trials}) == 5


def test_the_grid_evaluates_every_strategy_once_and_ranks_them() -> None:
    problem = toy_problem()
    grid = evaluate_grid(problem.space, load_objective("throughput", problem.simulate))
    assert grid.evaluated == problem.space.count()
    numbered = dict(enumerate(problem.space.enumerate()))
    assert all(numbered[trial.number] == trial.strategy for trial in grid.ranked)
    costs = [trial.cost for trial in grid.ranked]
    assert costs == sorted(costs, key=lambda cost: cost or 0.0)
    assert all(trial.feasible for trial in grid.ranked)
    assert grid.best is grid.ranked[0]
    assert grid.rank(grid.ranked[3]) == 4
    assert grid.regret(grid.best) == 0


def test_the_grid_is_the_filter_of_the_full_search() -> None:
    everything = solve(toy_problem(), Search(sampler="grid"))
    assert len(everything.trials) == everything.problem.space.count()
    assert everything.grid is not None
    assert everything.grid.evaluated == len(everything.trials)
    assert [t.strategy for t in everything.grid.ranked] == [t.strategy for t in everything.ranked]
    assert everything.regret == 0


def test_the_grid_is_compared_by_default_where_it_is_cheap() -> None:
    assert solve(toy_problem(), Search(trials=3)).grid is not None
    assert solve(toy_problem(), Search(trials=3, objective=lambda s: s.tp)).grid is None
    asked = Search(trials=3, objective=lambda s: s.tp, compare_grid=True)
    assert solve(toy_problem(), asked).grid is not None
    assert solve(toy_problem(), Search(trials=3, compare_grid=False)).grid is None


def test_a_grid_does_not_measure_again_what_a_costly_objective_has_measured() -> None:
    calls: list[Strategy] = []

    def counted(strategy: Strategy) -> float:
        calls.append(strategy)
        return 1.0

    problem = toy_problem()
    search = Search(trials=20, objective=counted, compare_grid=True, isolate=False)
    solve(problem, search)
    assert len(calls) == problem.space.count()


def test_regret_is_the_fraction_lost() -> None:
    assert regret(-90.0, -100.0) == pytest.approx(0.1)
    assert regret(1.25, 1.0) == pytest.approx(0.25)
    assert regret(1.0, 1.0) == 0


def test_an_interrupt_keeps_what_was_found() -> None:
    problem = toy_problem()
    objective = load_objective("throughput", problem.simulate)
    study = Study(problem.space, objective, Stubborn(problem.space, 0), objective.measure)

    def stop_after_three(trial: Trial) -> None:
        if trial.number == 2:
            raise KeyboardInterrupt

    study.run(10, stop_after_three)
    assert study.interrupted
    assert len(study.trials) == 3


def test_the_pareto_front_is_what_nothing_beats_in_both() -> None:
    problem = toy_problem()
    trials = evaluate_grid(problem.space, load_objective("throughput", problem.simulate)).ranked
    front = pareto_front(trials)

    def beats(one: Trial, other: Trial) -> bool:
        pairs = [
            (trial.cost or 0.0, trial.evaluation.metrics["peak_memory_bytes"])
            for trial in (one, other)
        ]
        return pairs[0] != pairs[1] and all(a <= b for a, b in zip(*pairs, strict=True))

    assert front
    assert not any(beats(trial, kept) for trial in trials for kept in front)


def test_the_result_as_json_has_the_agreed_keys() -> None:
    result = solve(toy_problem(), Search(trials=20))
    plain = json.loads(json.dumps(result.to_dict()))
    agreed = "model cluster devices mode objective space_size trials best grid mlflow"
    assert set(agreed.split()) <= set(plain)
    assert len(plain["trials"]) == 20
    assert set(plain["trials"][0]) == {"strategy", "metrics", "feasible", "reason"}
    assert set(plain["best"]) == {"strategy", "metrics", "memory"}
    assert set(plain["search"]["best"]) == {"strategy", "metrics", "memory"}
    compared = "method complete evaluated feasible seconds best regret rank"
    assert set(plain["grid"]) == set(compared.split())
    assert plain["grid"]["evaluated"] == plain["space_size"]
    assert plain["mlflow"] is None
    assert set(plain["best"]["strategy"]) == {*Strategy().to_dict(), "micro_batch"}
    assert {"dp", "tp", "pp", "microbatches", "schedule"} <= set(plain["best"]["strategy"])


@pytest.mark.parametrize(
    ("repeats", "said"),
    [(1, ", 1 suggestion answered from memory."), (2, ", 2 suggestions answered from memory.")],
)
def test_repeated_suggestions_are_counted(repeats: int, said: str) -> None:
    result = solve(toy_problem(), Search(trials=3, sampler="random", compare_grid=False))
    assert "from memory" not in " ".join(str(result).split())
    assert said in " ".join(str(replace(result, repeats=repeats)).split())


def test_where_nothing_fits_the_report_says_what_comes_closest_and_what_would_help() -> None:
    problem = toy_problem(ToySimulator(memory_bytes=2.5e9))
    result = solve(problem, Search(trials=30))
    assert result.best is None
    assert result.closest is not None
    assert result.to_dict()["best"] is None
    assert result.to_dict()["grid"]["best"] is None
    text = " ".join(str(result).split())
    assert "Nothing fits." in text
    assert f"Closest: {result.closest.label}" in text
    assert "What would help:" in text
    assert "On 32 devices of toy-cluster" in text
    few = solve(problem, Search(trials=3, sampler="random", compare_grid=False))
    words = f"None of the strategies that were tried fits: 3 of {problem.space.count()}."
    assert words in " ".join(str(few).split())


@pytest.mark.not_quick
def test_the_report_explains_the_best() -> None:
    result = solve(toy_problem(), Search())
    assert result.best is not None
    text = str(result)
    assert "134 valid strategies" in text
    assert "Compared with the next layout" in text
    assert "Compared with pure data parallelism" in text
    assert "peak memory, fullest stage" in text
    assert "<table" in getattr(result, "_repr_html_")()  # noqa: B009 (as notebooks ask for it)
    assert len(result.to_frame()) == DEFAULT_TRIALS


@pytest.mark.parametrize("devices", [1, 3, 16, 24, 100, 1024, 16384])
def test_the_default_batch_can_be_cut_in_many_ways(devices: int) -> None:
    batch = default_batch_size(devices, "training")
    assert batch >= 256
    assert batch % devices == 0
    assert batch // devices >= 2


def test_a_space_without_strategies_is_explained() -> None:
    workload = ToyWorkload(batch_size=5, num_blocks=1, internal_axes=(("heads", 3),))
    problem = toy_problem(ToySimulator(workload, devices=7))
    with pytest.raises(
        DistirError, match=r"no strategy of the space small uses .* dp = 7; dp = 1, 5 would do"
    ):
        solve(problem, Search())


def test_bad_numbers_are_refused() -> None:
    with pytest.raises(DistirError, match="trials is 0; expected at least 1"):
        Search(trials=0)
    with pytest.raises(DistirError, match="devices is 0; expected at least 1"):
        load_problem("gpt2", devices=0)


def test_toys_agree_with_each_other() -> None:
    assert toy_space().count() > 20


def test_everything_public_is_there() -> None:
    public: list[str] = cast("Any", autotune).__all__
    assert all(hasattr(autotune, name) for name in public)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = cast("Any", autotune).nothing
