"""A space as columns is the space."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from distir.strategies import FIELDS, Strategies
from distir.strategy import Strategy
from search_spaces import Dimension, SearchSpace, distribution_space
from search_spaces.columns import SHARED, SpaceColumns
from tests.facts import Facts
from tests.search_spaces.test_distribution_space import devices, facts

names = st.sampled_from(["small", "standard", "full"])


@given(facts, devices, names)
def test_every_strategy_is_there_once_with_its_number(
    workload: Facts, number: int, name: str
) -> None:
    space = distribution_space(workload, number, name)
    table = SpaceColumns(space)
    assert len(table) == space.count()
    numbers, strategies = table.taken(0, 500)
    assert [space.at(int(each)) for each in numbers] == list(strategies)
    assert list(numbers) == sorted(set(numbers))
    if len(table) <= 500:
        assert list(strategies) == list(space.enumerate())


@given(facts, devices, st.lists(st.integers(1, 300), max_size=5))
def test_stretches_join(workload: Facts, number: int, sizes: list[int]) -> None:
    """However the table is cut, every strategy is in one part."""
    table = SpaceColumns(distribution_space(workload, number, "standard"))
    found: list[int] = []
    first = 0
    for size in (*sizes, len(table)):
        numbers, strategies = table.taken(first, size)
        assert len(numbers) == len(strategies)
        found += map(int, numbers)
        first += size
    assert sorted(found) == list(range(len(table)))


@given(facts, devices, names)
def test_between_borders_programs_are_shared(workload: Facts, number: int, name: str) -> None:
    """And all strategies that share programs are between two borders."""
    table = SpaceColumns(distribution_space(workload, number, name))
    assert table.borders[-1:].tolist() == [len(table)][: len(table)]

    def traits(strategy: Strategy) -> tuple[object, ...]:
        return tuple(each.of(getattr(strategy, each.name)) for each in SHARED)

    stretches = [
        {*map(traits, table.taken(int(first), int(end - first))[1])}
        for first, end in pairwise([0, *table.borders])
    ]
    assert all(len(each) == 1 for each in stretches)
    assert len({each for own in stretches for each in own}) == len(stretches)


@given(facts, devices)
def test_columns_say_what_strategies_say(workload: Facts, number: int) -> None:
    space = distribution_space(workload, number, "standard")
    _, strategies = SpaceColumns(space).taken(0, 200)
    again = Strategies.of(list(strategies))
    for name in FIELDS:
        values = [getattr(strategy, name) for strategy in strategies]
        assert strategies.column(name).tolist() == values
        assert again.column(name).tolist() == values
    _, which = strategies.distinct(("dp", "schedule"))
    kinds = [(strategy.dp, strategy.schedule) for strategy in strategies]
    assert len(set(zip(kinds, which.tolist(), strict=True))) == len(set(kinds))


def test_a_choice_may_have_more_values_than_two_bytes_count() -> None:
    """Such as the axis lists that models suggest."""
    every = range(1, 40_001)
    space = SearchSpace([Dimension("dp", lambda: [2]), Dimension("sync_every", lambda: every)])
    columns = SpaceColumns(space)
    numbers, found = columns.taken(len(every) - 2, 2)
    assert numbers.tolist() == [len(every) - 2, len(every) - 1]
    assert found[1] == Strategy(dp=2, sync_every=every[-1])
    table = Strategies.of(Strategy(dp=2, sync_every=steps) for steps in every)
    assert table.joined(found)[-1] == table[-1] == found[1]
    assert table.find(found[1]) == len(every) - 1
