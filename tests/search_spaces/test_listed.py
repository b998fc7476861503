"""A space that is given as a list is that list."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st

from distir.strategy import Strategy
from search_spaces import distribution_space, listed_space
from tests.facts import Facts
from tests.search_spaces.test_distribution_space import devices, facts


@given(facts, devices, st.data())
def test_a_listed_space_has_the_listed_strategies_and_no_others(
    workload: Facts, number: int, data: st.DataObject
) -> None:
    whole = distribution_space(workload, number, "standard")
    assume(whole.count())
    places = data.draw(st.sets(st.integers(0, whole.count() - 1), min_size=1, max_size=20))
    listed = [whole.at(place) for place in sorted(places)]
    space = listed_space(listed)
    assert set(space.enumerate()) == set(listed)
    assert space.count() == len(listed)
    others = (whole.at(place) for place in range(min(whole.count(), 50)) if place not in places)
    assert not any(other in space for other in others)


def test_the_list_of_the_default_strategy_alone_has_one_strategy() -> None:
    assert list(listed_space([Strategy()]).enumerate()) == [Strategy()]
