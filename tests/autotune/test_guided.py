"""The sampler `guided` starts from what is expected, and learns how far that was off."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from itertools import product

import numpy as np
import pytest

from autotune.api import Search, load_problem, solve
from autotune.prospects.prospects import ProblemProspects
from autotune.samplers.expectation import Expectation
from autotune.samplers.experience import experience_of
from autotune.samplers.guided import GuidedSampler
from autotune.samplers.margin import Margin
from autotune.samplers.residual import Estimate, Residual, improvement
from autotune.samplers.sampler import Outcome
from autotune.samplers.slope import slope_of
from autotune.study.trial import layout
from autotune.testing import ToySimulator, toy_problem
from distir.strategies import Strategies
from distir.strategy import AUTO, Strategy

pytestmark = pytest.mark.not_quick

STRATEGIES = [
    Strategy(dp=dp, tp=tp, pp=16 // dp // tp, microbatches=microbatches)
    for dp in (1, 2, 4)
    for tp in (1, 2, 4)
    for microbatches in (1, 2, 4, 8, 16)
]


def expected(seconds: Callable[[Strategy], float], fill: float = -1.0) -> Expectation:
    """What a function expects of the strategies."""
    log_cost = np.log([seconds(each) for each in STRATEGIES])
    return Expectation(Strategies.of(STRATEGIES), log_cost, np.full(len(STRATEGIES), fill))


def seconds(strategy: Strategy) -> float:
    """Invented times with their best at tp 2."""
    return 1.0 + abs(math.log2(strategy.tp) - 1) + 0.1 * strategy.pp / strategy.microbatches


def _proposed(sampler: GuidedSampler, real: Callable[[Strategy], float]) -> Iterator[Strategy]:
    while (strategy := sampler.ask()) is not None:
        sampler.tell(strategy, real(strategy))
        yield strategy


def proposals(sampler: GuidedSampler, real: Callable[[Strategy], float]) -> list[Strategy]:
    """All proposals, each told with its real time."""
    return list(_proposed(sampler, real))


def test_every_expected_strategy_is_proposed_once() -> None:
    found = proposals(GuidedSampler(expected(seconds), 64), seconds)
    assert sorted(found, key=STRATEGIES.index) == STRATEGIES


def test_the_best_expected_comes_first_and_another_layout_next() -> None:
    first, second, *_ = proposals(GuidedSampler(expected(seconds), 64), seconds)
    assert seconds(first) == min(map(seconds, STRATEGIES))
    assert layout(second) != layout(first)


@pytest.mark.parametrize("factor", [0.2, 1.0, 7.0])
def test_a_factor_that_all_expectations_are_off_by_changes_no_proposal(factor: float) -> None:
    plain = proposals(GuidedSampler(expected(seconds), 64), seconds)
    off = proposals(GuidedSampler(expected(seconds), 64), lambda each: factor * seconds(each))
    assert off == plain


def test_rates_to_be_made_large_are_found_like_times_to_be_made_small() -> None:
    plain = proposals(GuidedSampler(expected(seconds), 64), seconds)
    rates = proposals(GuidedSampler(expected(seconds), 64), lambda each: -1 / seconds(each))
    assert rates == plain


def test_wrong_expectations_are_corrected_by_what_trials_show() -> None:
    close = 1.05 * min(map(seconds, STRATEGIES))

    def trials_to_close(proposed: Iterable[Strategy]) -> int:
        return next(at for at, each in enumerate(proposed) if seconds(each) <= close)

    guided, in_order = 0, 0
    for by_tp, by_dp, by_microbatches in product((-1, 1), repeat=3):

        def wrong(
            each: Strategy, powers: tuple[int, ...] = (by_tp, by_dp, by_microbatches)
        ) -> float:
            factors = zip((each.tp, each.dp, each.microbatches), powers, strict=True)
            return seconds(each) * math.prod(base**power for base, power in factors)

        guided += trials_to_close(_proposed(GuidedSampler(expected(wrong), 64), seconds))
        in_order += trials_to_close(sorted(STRATEGIES, key=wrong))
    assert guided < 0.7 * in_order


def test_many_surprises_leave_chances_that_are_numbers() -> None:
    """The product of many small chances is less than the least number that there is."""
    fills = np.log([0.1, 0.5, 2.0])
    for fill, ran in ((0.01, False), (10.0, True), (math.inf, True)):
        chance = Margin.learned([math.log(fill)] * 200, [ran] * 200).chance_to_fit(fills)
        assert np.isfinite(chance).all()
        assert (chance >= 0).all()
        assert (chance <= 1).all()


def test_failures_for_want_of_memory_make_full_strategies_less_likely() -> None:
    table = Expectation(
        Strategies.of(STRATEGIES),
        np.log(np.arange(1.0, len(STRATEGIES) + 1)),
        np.log(np.linspace(0.95, 0.2, len(STRATEGIES))),
    )
    sampler = GuidedSampler(table, 64)
    first = STRATEGIES[0]
    assert sampler.ask() == first
    reason = "RuntimeError: CUDA out of memory. Tried to allocate 2 GiB"
    sampler.tell_outcome(Outcome(first, None, 0.0, {}, reason))
    told = Margin.learned([math.log(0.95)], [False])
    assert told.factor > Margin.learned([], []).factor
    second = sampler.ask()
    assert second is not None
    assert table.log_fill[STRATEGIES.index(second)] < math.log(0.9)


def test_another_failure_says_nothing_about_memory() -> None:
    sampler = GuidedSampler(expected(seconds, fill=math.log(0.95)), 64)
    strategy = sampler.ask()
    assert strategy is not None
    sampler.tell_outcome(Outcome(strategy, None, 0.0, {}, "RuntimeError: NCCL timeout"))
    assert sampler.experience == ()


FAILING: list[Callable[[Strategy], bool]] = [
    lambda strategy: strategy.tp == 2,
    lambda strategy: strategy.dp > 1,
    lambda strategy: strategy.pp < 4,
    lambda strategy: strategy.microbatches > 2,
]


@pytest.mark.parametrize("fails", FAILING)
def test_what_fails_is_left_for_what_runs(fails: Callable[[Strategy], bool]) -> None:
    """Also where all that is expected to be best fails."""
    sampler, failed = GuidedSampler(expected(seconds), 64), list[bool]()
    best = min(seconds(each) for each in STRATEGIES if not fails(each))
    found = math.inf
    while found > best:
        strategy = sampler.ask()
        assert strategy is not None
        failed.append(fails(strategy))
        if failed[-1]:
            sampler.tell_outcome(Outcome(strategy, None, 0.0, {}, "it returned nan"))
        else:
            found = min(found, seconds(strategy))
            sampler.tell(strategy, seconds(strategy))
    assert len(failed) <= 20
    assert sum(failed) <= 0.75 * len(failed)


def test_a_margin_falls_with_what_ran_and_rises_with_what_did_not() -> None:
    fills = np.log([0.7, 0.9, 1.0, 1.1])
    plain = Margin.learned([], []).chance_to_fit(fills)
    ran = Margin.learned([math.log(1.1)], [True]).chance_to_fit(fills)
    failed = Margin.learned([math.log(0.9)], [False]).chance_to_fit(fills)
    assert list(plain) == sorted(plain, reverse=True)
    assert (ran >= plain).all()
    assert (failed <= plain).all()


@pytest.mark.parametrize("factor", [0.05, 0.3, 1.0, 3.0, 10.0, 40.0])
def test_any_margin_is_learned_from_few_trials(factor: float) -> None:
    """A job may need many times the memory that is simulated, or a small part of it. Each trial is
    the fullest that is likely to run: the worst way to learn that all need more."""
    true = -math.log(factor)
    fills, ran = list[float](), list[bool]()
    for _ in range(20):
        every = np.linspace(-6, 4, 1001)
        likely = every[Margin.learned(fills, ran).chance_to_fit(every) >= 0.5]
        fills.append(float(likely.max()))
        ran.append(fills[-1] <= true)
    assert any(ran[:12])
    assert fills[-1] == pytest.approx(true, abs=0.1)
    assert Margin.learned(fills, ran).factor == pytest.approx(factor, rel=0.1)


def test_a_single_surprise_does_not_move_the_margin_that_others_show() -> None:
    others = [math.log(0.9)] * 5, [True] * 5
    told = Margin.learned([*others[0], math.log(0.4)], [*others[1], False])
    assert told.factor < 1.1
    assert (told.chance_to_fit(np.log([0.3, 0.8])) > 0.5).all()


def test_a_job_that_needs_many_times_the_memory_soon_runs() -> None:
    table = Expectation(
        Strategies.of(STRATEGIES),
        np.log(np.arange(1.0, len(STRATEGIES) + 1)),
        np.log(np.geomspace(0.95, 0.005, len(STRATEGIES))),
    )
    sampler, ran = GuidedSampler(table, 64), list[bool]()
    for _ in range(15):
        strategy = sampler.ask()
        assert strategy is not None
        place = STRATEGIES.index(strategy)
        ran.append(math.exp(table.log_fill[place]) * 30 < 1)
        cost = float(place + 1) if ran[-1] else None
        sampler.tell(strategy, cost, 0.0 if ran[-1] else 1.0)
    assert sum(ran) >= 3


def test_a_residual_meets_its_trials_and_is_unsure_elsewhere() -> None:
    rows = np.array([[0.0], [1.0], [2.0]])
    values = np.array([0.1, 0.4, 0.2])
    found = Residual.fitted(rows, values, 1e-3)
    assert np.allclose(found.at(rows).mean, values, atol=0.02)
    near, far = found.at(np.array([[1.0], [30.0]])).deviation
    assert near < far


def test_improvement_grows_with_a_lower_mean_and_with_doubt() -> None:
    gains = improvement(Estimate(np.array([0.0, -0.5, 0.0]), np.array([0.1, 0.1, 0.5])), 0.0)
    assert gains[1] > gains[0]
    assert gains[2] > gains[0]
    assert (gains > 0).all()


def test_experience_survives_a_file_and_moves_the_expectation_of_another_study() -> None:
    def off(strategy: Strategy) -> float:
        return seconds(strategy) * strategy.tp**2

    first = GuidedSampler(expected(seconds), 64)
    proposals(first, off)
    plain = json.loads(json.dumps([each.to_dict() for each in first.experience]))
    carried = experience_of(plain)
    assert carried == first.experience
    second = GuidedSampler(expected(seconds), 64, experience=carried)
    start = second.ask()
    assert start is not None
    assert off(start) <= 1.05 * min(map(off, STRATEGIES))
    assert off(start) < off(first.experience[0].strategy)


def test_a_forecast_is_rescaled_by_what_was_found() -> None:
    sampler = GuidedSampler(expected(seconds), 64)
    assert sampler.forecast is None
    strategy = sampler.ask()
    assert strategy is not None
    sampler.tell(strategy, 100 * seconds(strategy))
    forecast = sampler.forecast
    assert forecast is not None
    left = min(seconds(each) for each in STRATEGIES if each != strategy)
    assert forecast.ratio == pytest.approx(left / seconds(strategy), rel=0.01)


def test_the_simulator_ranks_a_space_for_an_objective_that_it_does_not_know() -> None:
    problem = toy_problem()

    def objective(strategy: Strategy) -> float:
        return 3 * problem.simulate(strategy).metrics["iteration_seconds"]

    result = solve(problem, Search(objective=objective, trials=3, isolate=False))
    assert result.sampler == "guided"
    best = solve(problem, Search(trials=10**6, sampler="grid")).best
    assert best is not None
    fitting = [trial.strategy for trial in result.trials]
    assert best.strategy in fitting


def test_expectations_are_the_best_of_the_space_and_of_every_layout() -> None:
    problem = toy_problem(ToySimulator(devices=8))
    found = ProblemProspects(problem, problem.objective("throughput")).simulated()
    layouts = {layout(each) for each in problem.space.enumerate()}
    assert {layout(each) for each in found.table} == layouts


@pytest.mark.parametrize("recomputation", ["none", AUTO])
def test_of_a_large_space_usual_strategies_and_the_best_are_expected(
    monkeypatch: pytest.MonkeyPatch, recomputation: str
) -> None:
    problem = load_problem("mlp-4x1024", "dgx2-v100", devices=4, recomputation=recomputation)
    prospects = ProblemProspects(problem, problem.objective("throughput"))
    every = prospects.simulated()
    for name in ("MOST_SIMULATED", "MOST_PLANNED"):
        monkeypatch.setattr(f"autotune.prospects.prospects.{name}", 20)
    monkeypatch.setattr("autotune.prospects.prospects.KEPT", 40)
    some = prospects.simulated()
    assert 20 <= len(some.table) < len(every.table)
    assert len({*some.table}) == len(some.table)
    known = dict(zip(every.table, every.log_cost, strict=True))
    for strategy, cost in zip(some.table, some.log_cost, strict=True):
        assert cost == pytest.approx(known[strategy])
    best = every.log_cost[every.log_fill <= 0].min()
    found = some.log_cost[some.log_fill <= 0].min()
    assert found >= best - 1e-9
    if recomputation != AUTO:
        assert found == pytest.approx(best)


def test_of_a_large_space_in_which_nothing_fits_nothing_is_expected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = load_problem("llama3-70b", devices=2)
    monkeypatch.setattr("autotune.prospects.prospects.MOST_SIMULATED", 10)
    found = ProblemProspects(problem, problem.objective("throughput")).simulated()
    assert not len(found.table)


@pytest.mark.parametrize("power", [-1.0, 0.0, 0.4])
def test_the_slope_of_what_was_found_is_learned(power: float) -> None:
    expected = np.linspace(0.0, 1.0, 8)
    assert slope_of(expected, (power - 1) * expected + 3, 0.01) == pytest.approx(power - 1, abs=0.1)
    assert slope_of(expected[:2], expected[:2], 0.01) == 0.0
    assert abs(slope_of(expected, np.array([0.05, -0.05] * 4), 0.05)) < 0.1
    alike = np.full(8, 0.3) + np.array([0.0, 1e-16] * 4)
    assert slope_of(alike, expected, 0.0) == pytest.approx(0.0, abs=1e-6)


def test_an_order_that_is_opposite_to_what_is_expected_is_found_soon() -> None:
    degrees = (1, 2, 4, 8, 16)
    strategies = [
        Strategy(dp=dp, tp=tp, microbatches=m) for dp in degrees for tp in degrees for m in degrees
    ]
    costs_expected = [s.tp**0.3 * s.microbatches**0.2 * s.dp**0.1 for s in strategies]
    log_cost = np.array([math.log(each) for each in costs_expected])
    expected = Expectation(Strategies.of(strategies), log_cost, np.full(len(strategies), -1.0))
    sampler = GuidedSampler(expected, 64)
    costs = dict(zip(strategies, np.exp(-log_cost), strict=True))
    for _ in range(12):
        asked = sampler.ask()
        assert asked is not None
        if costs[asked] <= 1.01 * min(costs.values()):
            return
        sampler.tell(asked, costs[asked])
    raise AssertionError("the best is not among the first 12")
