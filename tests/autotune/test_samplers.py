"""Every sampler meets the contract; the learning ones learn."""

from __future__ import annotations

import math
from statistics import mean

import pytest

from autotune.api import Search, solve
from autotune.exhaustive.grid import evaluate_grid
from autotune.objectives import load_objective
from autotune.questions.compare import Archive, contest, standing
from autotune.samplers import SAMPLERS, Sampler, load_sampler
from autotune.samplers.encoding import Encoding, Scale, relative
from autotune.testing import SamplerContract, ToySimulator, ToyWorkload, toy_problem, toy_space
from distir.errors import UnknownNameError
from distir.strategy import Strategy
from distir.units import percent
from search_spaces import SearchSpace


class TestRandom(SamplerContract):
    def make_sampler(self, space: SearchSpace, seed: int) -> Sampler:
        return load_sampler("random", space, seed)


class TestGrid(SamplerContract):
    def make_sampler(self, space: SearchSpace, seed: int) -> Sampler:
        return load_sampler("grid", space, seed)


class TestTpe(SamplerContract):
    def make_sampler(self, space: SearchSpace, seed: int) -> Sampler:
        return load_sampler("tpe", space, seed)


class TestNsga2(SamplerContract):
    def make_sampler(self, space: SearchSpace, seed: int) -> Sampler:
        return load_sampler("nsga2", space, seed)


@pytest.mark.slow(seconds=3)
class TestQmc(SamplerContract):
    def make_sampler(self, space: SearchSpace, seed: int) -> Sampler:
        return load_sampler("qmc", space, seed)


class TestReinforce(SamplerContract):
    def make_sampler(self, space: SearchSpace, seed: int) -> Sampler:
        return load_sampler("reinforce", space, seed)


class TestUct(SamplerContract):
    def make_sampler(self, space: SearchSpace, seed: int) -> Sampler:
        return load_sampler("uct", space, seed)


@pytest.mark.not_quick
class TestBounds(SamplerContract):
    budget = 14

    def make_sampler(self, space: SearchSpace, seed: int) -> Sampler:
        return load_sampler("bounds", space, seed)


class TestGuided(SamplerContract):
    budget = 14

    def make_sampler(self, space: SearchSpace, seed: int) -> Sampler:
        return load_sampler("guided", space, seed)


def test_a_former_name_is_still_known() -> None:
    strategy = load_sampler("surrogate", toy_space(), 0).ask()
    assert strategy == load_sampler("bounds", toy_space(), 0).ask()


@pytest.mark.parametrize("name", ["random", "grid", "reinforce", "uct", "bounds"])
def test_samplers_without_replacement_propose_each_strategy_once(name: str) -> None:
    space = toy_space(devices=2)
    sampler = load_sampler(name, space, 0)
    proposals: list[Strategy] = []
    while (strategy := sampler.ask()) is not None:
        proposals.append(strategy)
    assert len(proposals) == space.count()
    assert set(proposals) == set(space.enumerate())


@pytest.mark.not_quick
@pytest.mark.parametrize("name", SAMPLERS.names())
def test_a_budget_as_large_as_the_space_finds_the_best(name: str) -> None:
    problem = toy_problem(ToySimulator(ToyWorkload(batch_size=8, num_blocks=3), devices=4))
    result = solve(problem, Search(sampler=name, trials=10**6))
    assert result.regret == 0
    assert len(result.trials) == problem.space.count()


@pytest.mark.not_quick
@pytest.mark.parametrize("name", ["tpe", "reinforce"])
def test_learning_samplers_beat_random_search(name: str) -> None:
    problem = toy_problem()
    objective = load_objective("throughput", problem.simulate)
    archive = Archive(problem.space)
    grid = evaluate_grid(problem.space, objective, watch=lambda chunk, best: archive.add(chunk))
    every = list(problem.space.enumerate())
    assert [archive.measure(each) for each in every] == [objective.measure(each) for each in every]

    def mean_regret(sampler: str) -> float:
        contests = [
            contest(problem, objective, archive.measure, grid, sampler, seed, trials=30)
            for seed in range(8)
        ]
        assert standing(contests).seeds == 8
        return mean(1.0 if each.regret is None else each.regret for each in contests)

    assert mean_regret(name) < mean_regret("random")


def test_powers_of_two_are_encoded_by_their_logarithm() -> None:
    encoding = Encoding(toy_space(devices=16))
    assert encoding.values["tp"] == (1, 2, 4)
    assert "dp" not in encoding.values
    for strategy in encoding.space.enumerate():
        assert encoding.nearest(encoding.encode(strategy)) == strategy


def test_steadied_costs_keep_their_order() -> None:
    for costs in ([0.1, 3.0, 200.0], [-300.0, -2.0, -0.5], [-1.0, 0.0, 5.0]):
        scale = Scale.of(costs)
        steadied = scale.steadied(costs).tolist()
        assert sorted(steadied) == steadied
        assert [scale.cost(each) for each in steadied] == pytest.approx(costs)
    assert Scale.of([1.0]).cost(1e4) == math.inf
    assert Scale.of([-1.0]).cost(-1e4) == -math.inf
    assert Scale.of([1.0]).cost(math.log(1e-12)) == pytest.approx(1e-12, rel=1e-9)


def test_what_is_relative_may_be_more_than_any_number() -> None:
    assert relative(math.log(1.25)) == pytest.approx(0.25)
    assert relative(1e4) == math.inf
    assert percent(relative(1e4))


def test_an_unknown_sampler_is_met_with_the_near_ones() -> None:
    with pytest.raises(UnknownNameError, match="did you mean: random"):
        load_sampler("randon", toy_space(), 0)


@pytest.mark.not_quick
@pytest.mark.parametrize("name", SAMPLERS.names())
def test_same_seed_same_trials(name: str) -> None:
    first, second = (
        solve(toy_problem(), Search(sampler=name, trials=15, seed=7, compare_grid=False))
        for _ in range(2)
    )
    assert [trial.strategy for trial in first.trials] == [t.strategy for t in second.trials]


@pytest.mark.parametrize("seed", [-1, 1 << 40])
@pytest.mark.parametrize("name", ["tpe", "nsga2", "qmc", "random", "bounds"])
def test_every_whole_number_is_a_seed(name: str, seed: int) -> None:
    problem = toy_problem()
    assert load_sampler(name, problem.space, seed).ask() is not None
