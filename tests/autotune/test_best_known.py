"""The headline is the best plan that is known, and equal plans are equal everywhere."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune import Search, certify, evaluate_grid, load_problem, solve, tune
from autotune.objectives.costs import EQUAL, regret, settled
from autotune.problem import Problem
from autotune.testing.toys import toy_problem
from distir.errors import DistirError


@pytest.fixture(scope="module")
def gpt2() -> Problem:
    return load_problem("gpt2", "dgx-a100", devices=8, space="standard")


@given(st.floats(1e-12, 1e12), st.floats(-1e-13, 1e-13))
def test_costs_that_differ_in_their_last_bits_are_equal(cost: float, off: float) -> None:
    assert regret(cost * (1 + off), cost) == 0.0
    assert math.isclose(settled(cost), cost, rel_tol=1e-10)
    assert settled(settled(cost)) == settled(cost)


@given(st.floats(1e-12, 1e12), st.floats(10 * EQUAL, 1.0))
def test_costs_that_differ_by_more_are_not(cost: float, off: float) -> None:
    assert regret(cost * (1 + off), cost) == pytest.approx(off, rel=1e-3)


@pytest.mark.slow(seconds=2)
def test_no_plan_ranks_behind_itself(gpt2: Problem) -> None:
    """The grid evaluates many at once, a search one by one."""
    grid = evaluate_grid(gpt2.space, gpt2.objective("throughput"), top=5)
    alone = gpt2.objective("throughput")
    for place, trial in enumerate(grid.ranked, 1):
        cost = alone.cost(alone.measure(trial.strategy))
        again = replace(trial, cost=cost)
        assert (grid.rank(again) or 0) <= place
        assert grid.regret(again) == grid.regret(trial)
    assert grid.rank(grid.best) == 1


def test_the_headline_is_the_best_known_and_the_search_says_how_it_did() -> None:
    result = solve(toy_problem(), Search(sampler="random", trials=3))
    plain = result.to_dict()
    assert result.best == result.grid.best if result.grid else False
    assert plain["best"]["strategy"] == plain["grid"]["best"]["strategy"]
    assert result.found is not None
    assert plain["search"]["best"]["strategy"]["dp"] == result.found.strategy.dp
    assert plain["grid"]["rank"] > 1
    assert plain["grid"]["regret"] == result.regret
    assert plain["grid"]["regret"] > 0
    said = str(result)
    place = f"{result.found.label}, number {plain['grid']['rank']} in the grid"
    assert f"that the sampler random found is {place}" in " ".join(said.split())
    assert "0.0 % behind" not in said


@pytest.mark.slow(seconds=3)
def test_a_proof_that_runs_out_of_time_says_what_may_be_left(gpt2: Problem) -> None:
    objective = gpt2.objective("throughput")
    whole = certify(gpt2, objective)
    known = whole.best
    assert known is not None
    cut = certify(gpt2, objective, known=known, seconds=1e-6)
    assert not cut.complete
    assert cut.evaluated == 0
    gain = cut.may_gain(known)
    assert gain is None or 0 <= gain < 1
    assert whole.may_gain(known) == 0.0
    assert certify(gpt2, objective, known=known).best is not None


@pytest.mark.slow(seconds=2)
def test_a_known_plan_never_changes_what_is_proved(gpt2: Problem) -> None:
    objective = gpt2.objective("throughput")
    alone = certify(gpt2, objective).best
    tried = solve(gpt2, Search(trials=5, compare_grid=False)).found
    helped = certify(gpt2, objective, known=tried).best
    assert alone is not None
    assert helped is not None
    assert alone.strategy == helped.strategy


@pytest.mark.slow(seconds=3)
def test_latency_of_inference_is_that_of_the_least_batch() -> None:
    result = tune("gpt2", devices=4, mode="inference", objective="latency", trials=5)
    assert result.problem.batch_size == 1
    assert "the smallest that 4 devices can share" in str(result)
    stated = tune("gpt2", devices=4, mode="inference", objective="latency", batch_size=8, trials=2)
    assert stated.problem.batch_size == 8


@pytest.mark.parametrize(
    ("mode", "length", "shared"),
    [("training", 4096, False), ("training", 8192, True), ("inference", 1024, True)],
)
def test_long_sequences_and_inference_may_be_shared_by_default(
    mode: str, length: int, shared: bool
) -> None:
    problem = load_problem("llama3-8b", devices=8, mode=mode, sequence_length=length)  # type: ignore[arg-type]
    assert problem.space_name == "standard"
    assert (max(int(n) for n in problem.space.values("cp")) > 1) == shared


def test_what_cannot_be_stated_twice_is_refused() -> None:
    with pytest.raises(DistirError, match="batch_size"):
        load_problem(toy_problem(), batch_size=4)
