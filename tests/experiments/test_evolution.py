"""Regularised evolution over the tree of choices, as a plug-in sampler."""

from __future__ import annotations

from distir.strategy import Strategy
from experiments.samplers.evolution import RegularisedEvolution
from search_spaces import SearchSpace, listed_space

SIZES = (1, 2, 4, 8)


def _space() -> SearchSpace:
    return listed_space(
        [Strategy(dp=dp, tp=tp, pp=pp) for dp in SIZES for tp in SIZES for pp in SIZES]
    )


def _asked(
    sampler: RegularisedEvolution, cost: dict[Strategy, float], count: int
) -> list[Strategy]:
    found: list[Strategy] = []
    for _ in range(count):
        strategy = sampler.ask()
        assert strategy is not None
        sampler.tell(strategy, cost[strategy])
        found.append(strategy)
    return found


def _costs(space: SearchSpace) -> dict[Strategy, float]:
    return {each: 100.0 * each.dp + 10.0 * each.tp + each.pp for each in space.enumerate()}


def test_every_strategy_is_proposed_once() -> None:
    space = _space()
    sampler = RegularisedEvolution(space, 0, population=6, contenders=2)
    costs = _costs(space)
    found = _asked(sampler, costs, space.count())
    assert sorted(costs[each] for each in found) == sorted(costs.values())
    assert sampler.ask() is None


def test_children_of_the_best_come_before_the_rest_of_the_space() -> None:
    space = _space()
    costs = _costs(space)
    best_third = sorted(costs.values())[: len(costs) // 3]
    late = 0
    for seed in range(10):
        found = _asked(RegularisedEvolution(space, seed, population=6, contenders=6), costs, 30)
        late += sum(costs[each] in best_third for each in found)
    assert late / 10 > 1.3 * 30 / 3


def test_the_same_seed_proposes_the_same() -> None:
    space = _space()
    costs = _costs(space)
    first, other = (_asked(RegularisedEvolution(space, 3), costs, 30) for _ in range(2))
    assert first == other
