"""The sampler `bounds` starts from what bounds say, and ends where they prove the best."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from autotune.api import Search, solve
from autotune.exhaustive.grid import evaluate_grid
from autotune.problem import Problem, load_problem
from autotune.prospects import bounded_pool
from autotune.prospects.bounded_pool import BoundedPool
from autotune.prospects.prospects import ProblemProspects
from autotune.rendering import as_text
from autotune.reports.study import study_report
from autotune.samplers import load_sampler
from autotune.samplers.bounded import BoundedSampler
from autotune.samplers.expectation import Expectation
from autotune.samplers.sampler import Outcome
from autotune.study.study import Study
from distir.simulation.bounds import Bounds
from distir.simulation.simulator import Simulator
from distir.strategies import Strategies
from distir.strategy import words_apart

pytestmark = pytest.mark.not_quick


@cache
def problem(space: str = "small", cluster: str = "dgx-a100") -> Problem:
    return load_problem("mlp-8x512", cluster, devices=8, space=space, batch_size=64)


class Counted(BoundedPool):
    """Counts how often bounds are asked for."""

    times = 0

    def start(self) -> Expectation:
        Counted.times += 1
        return super().start()


def test_bounds_wait_until_the_sampler_is_asked_and_what_was_told_before_counts() -> None:
    asked = problem()
    objective = asked.objective("throughput")
    told = next(iter(asked.space.enumerate()))
    sampler = BoundedSampler(Counted(asked, of_memory=False), asked.batch_size)
    found = objective.measure(told)
    cost, said = objective.cost(found), found.violation
    sampler.tell_outcome(Outcome(told, cost, said, found.metrics, found.reason))
    assert Counted.times == 0
    proposed = [sampler.ask() for _ in range(asked.space.count())]
    assert Counted.times == 1
    assert any(each is not None for each in proposed)
    assert told not in proposed


@pytest.mark.slow(seconds=3)
@pytest.mark.parametrize("objective", ["throughput", "latency", "memory"])
def test_the_best_is_found_in_thirty_trials(objective: str) -> None:
    result = solve(problem(), Search(objective=objective, sampler="bounds", trials=30))
    assert result.regret is not None
    assert result.regret <= 0.01


def test_what_is_not_tried_cannot_be_better() -> None:
    asked = problem()
    objective = asked.objective("throughput")
    pool = BoundedPool(asked, of_memory=False)
    sampler = BoundedSampler(pool, asked.batch_size)
    study = Study(asked.space, objective, sampler, objective.measure)
    study.run(10**6)
    assert len(study.trials) < asked.space.count()
    best = evaluate_grid(asked.space, objective).best
    assert best is not None
    assert study.best is not None
    assert study.best.cost == pytest.approx(best.cost, rel=1e-9)


@pytest.mark.slow(seconds=10)
def test_the_one_plan_that_fits_is_found() -> None:
    """It is one of the slowest, of 6,237."""
    asked = load_problem(
        "mixtral-8x7b", "p3dn-v100-32gb", devices=24, batch_size=24, sequence_length=2048
    )
    result = solve(asked, Search(sampler="bounds", trials=30, compare_grid=False))
    assert result.best is not None
    assert result.best.strategy.pp == 1


def test_a_search_ends_when_its_best_is_proved() -> None:
    result = solve(problem(), Search(sampler="bounds", trials=10**6))
    assert result.regret == 0
    assert len(result.trials) < problem().space.count()


def test_a_pool_grows_to_finer_choices_around_the_best() -> None:
    asked = problem("full")
    pool = BoundedPool(asked, of_memory=False)
    start = pool.start()
    assert not pool.is_whole
    assert len(start) < asked.space.count()
    around = pool.around(next(each for each in start.table if each.zero == 3 and each.dp == 8))
    assert all(each in asked.space for each in around.table)
    both = start.joined(around)
    assert len(set(both.table)) == len(both) > len(start)


def test_of_many_axis_lists_a_pool_takes_the_nearest_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_pool, "MOST_LISTS", 3)
    asked = load_problem(
        "mlp-4x64", devices=8, space={"tp": [8], "microbatches": [1, 2]}, mesh="data=4,model=2"
    )
    pool = BoundedPool(asked, of_memory=False)
    assert not pool.is_whole
    assert len(set(pool.start().table.column("axes"))) <= 3
    farthest = max(asked.space.enumerate(), key=lambda each: len(each.axes))
    around = set(pool.around(farthest).table.column("axes"))
    assert len(around) == 3
    others = {each.axes for each in asked.space.enumerate()} - around
    most = max(words_apart(farthest.axes, each) for each in around)
    assert all(words_apart(farthest.axes, each) >= most for each in others)


def test_expectations_lie_above_their_bounds_and_near_what_is_simulated() -> None:
    asked = problem("standard")
    simulator = asked.simulator
    assert isinstance(simulator, Simulator)
    table = Strategies.of(asked.space.enumerate())
    bounds, expected = Bounds(simulator.stages).ordered_and_expected(table)
    seconds = simulator.simulate_many(table).metrics["iteration_seconds"]
    assert (bounds.seconds <= seconds).all()
    alone = table.column("pp") == 1
    assert np.allclose(expected[alone], seconds[alone], rtol=0.05)
    off = np.abs(np.log(expected / seconds))
    assert np.median(off) < np.median(np.log(seconds / bounds.seconds))


@pytest.mark.slow(seconds=15)
@pytest.mark.parametrize("model", ["gpt2", "t5-small"])
def test_expectations_count_what_ranks_send_each_other_and_add_up(model: str) -> None:
    """On nodes that are joined by 25 Gbit/s, and for models with a table of words at both ends."""
    space = {"extends": "standard", "zero": [1], "microbatches": [4, 12], "schedule": "all"}
    asked = load_problem(model, "p3-v100-16gb", devices=12, batch_size=12, space=space)
    simulator = asked.simulator
    assert isinstance(simulator, Simulator)
    table = Strategies.of(each for each in asked.space.enumerate() if each.pp > 1)
    bounds = Bounds(simulator.stages)
    seconds = simulator.simulate_many(table).metrics["iteration_seconds"]
    off, roughly_off = (
        np.log(bounds.ordered_and_expected(table, roughly=roughly)[1] / seconds)
        for roughly in (False, True)
    )
    assert np.std(off) < 0.25
    assert np.std(off) < 0.6 * np.std(roughly_off)


@cache
def tight() -> Problem:
    """Much of it fits only where some layers recompute."""
    return load_problem(
        "gpt3-6.7B",
        "dgx-a100-40gb",
        devices=8,
        space="small",
        batch_size=64,
        recomputation="auto",
    )


@pytest.mark.slow(seconds=10)
def test_plans_that_choose_what_recomputes_are_expected_to_do_so_as_little_as_they_can() -> None:
    asked = tight()
    simulator = asked.simulator
    assert isinstance(simulator, Simulator)
    table = Strategies.of(asked.space.enumerate())
    bounds, expected = Bounds(simulator.stages).ordered_and_expected(table)
    ends = [
        Bounds(simulator.stages).ordered_and_expected(
            Strategies.of([replace(each, recompute=policy) for each in table])
        )
        for policy in ("none", "full")
    ]
    (kept, least), (again, most) = ends
    assert (least <= expected).all()
    assert (expected <= np.maximum(least, most)).all()
    room = np.asarray(simulator.cost.room_bytes(table.communicators))
    assert (expected == least)[kept.size <= room].all()
    between = (kept.size > room) & (again.size <= room)
    assert (expected > least)[between & (most > least)].all()
    assert between.any()
    found = simulator.simulate_many(table)
    seconds = found.metrics["iteration_seconds"]
    alike = between & found.feasible & (table.column("pp") == 1)
    assert alike.any()
    assert (bounds.seconds <= seconds).all()
    assert np.allclose(expected[alike], seconds[alike], rtol=0.1)


@pytest.mark.slow(seconds=10)
def test_what_recomputes_is_chosen_in_searches_that_start_from_bounds() -> None:
    asked = tight()
    objective = asked.objective("throughput")
    best = evaluate_grid(asked.space, objective).best
    sampler = load_sampler("bounds", asked.space, 0, ProblemProspects(asked, objective))
    study = Study(asked.space, objective, sampler, objective.measure)
    study.run(10)
    assert best is not None
    assert study.best is not None
    assert study.best.cost == pytest.approx(best.cost, rel=0.01)


def test_an_objective_without_bounds_is_searched_all_the_same() -> None:
    asked = problem()
    objective = asked.objective(lambda strategy: float(strategy.tp))
    assert ProblemProspects(asked, objective).bounded() is None
    result = solve(asked, Search(objective=lambda s: float(s.tp), sampler="bounds", isolate=False))
    assert result.best is not None
    assert result.best.strategy.tp == 1


def test_joined_columns_are_one_sequence() -> None:
    every = list(problem().space.enumerate())
    first, second = Strategies.of(every[:7]), Strategies.of(every[7:])
    joined = first.joined(second)
    assert list(joined) == every
    assert [joined.find(each) for each in every] == list(range(len(every)))
    assert first.find(every[-1]) is None


def test_tpe_tries_nothing_twice_and_nothing_that_bounds_rule_out() -> None:
    asked = load_problem("gpt2-xl", "p3-v100-16gb", devices=8, space="small", batch_size=32)
    objective = asked.objective("throughput")
    prospects = ProblemProspects(asked, objective)
    pool = prospects.bounded()
    assert pool is not None
    start = pool.start()
    hopeless = {start.table[int(place)] for place in np.flatnonzero(start.log_fill > 0)}
    assert hopeless
    sampler = load_sampler("tpe", asked.space, 0, prospects)
    study = Study(asked.space, objective, sampler, objective.measure)
    study.run(15)
    tried = [trial.strategy for trial in study.trials]
    assert len(tried) == len(set(tried)) > 0
    assert not hopeless.intersection(tried)


def test_a_search_that_bounds_end_says_so() -> None:
    problem = load_problem("gpt2", devices=4, space="small")
    found = solve(problem, Search(trials=30, sampler="bounds", compare_grid=False))
    assert found.best is not None
    assert len(found.trials) < 30
    assert found.stopped is not None
    assert found.stopped.reason == "sampler"
    assert "lower bounds rule out a better plan" in as_text(study_report(found))


def test_where_bounds_prove_that_nothing_fits_the_closest_plan_is_told() -> None:
    problem = load_problem("llama3-70b", cluster="hgx-h100", devices=4, batch_size=8, space="small")
    found = solve(problem, Search(trials=5))
    assert found.best is None
    told = as_text(study_report(found))
    assert "Nothing fits" in told
    assert "Closest: " in told
    assert "What would help" in told
    assert "No trial succeeded" not in told
