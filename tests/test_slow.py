"""The sample of slow tests that everyday runs take."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from tests.slow import sample

tests = st.dictionaries(
    st.from_regex(r"[ab]/test_[cd](\[[0-9]\])?", fullmatch=True), st.integers(1, 20)
)
budgets = st.integers(0, 100)


@given(tests, budgets)
def test_the_sample_takes_no_longer_than_it_may(seconds: dict[str, int], most: int) -> None:
    assert sum(seconds[name] for name in sample(seconds, most)) <= most


@given(tests, budgets)
def test_nothing_that_would_fit_beside_the_sample_is_left_out(
    seconds: dict[str, int], most: int
) -> None:
    chosen = sample(seconds, most)
    left = most - sum(seconds[name] for name in chosen)
    assert all(seconds[name] > left for name in seconds.keys() - chosen)


@given(
    st.dictionaries(st.sampled_from("abcde"), st.lists(st.integers(1, 20), min_size=1, max_size=4)),
    budgets,
    st.randoms(),
)
def test_the_sample_does_not_depend_on_the_order_of_tests(
    cases: dict[str, list[int]], most: int, chance: Random
) -> None:
    def listed(order: Iterable[str]) -> dict[str, float]:
        return {f"{test}[{n}]": each for test in order for n, each in enumerate(cases[test])}

    shuffled = list(cases)
    chance.shuffle(shuffled)
    assert sample(listed(shuffled), most) == sample(listed(cases), most)


@given(st.integers(1, 9), st.integers(1, 9))
def test_every_test_is_sampled_before_the_parameters_of_any_repeat(first: int, second: int) -> None:
    names = [f"a[{n}]" for n in range(first)] + [f"b[{n}]" for n in range(second)]
    assert {name[0] for name in sample(dict.fromkeys(names, 1.0), 2.0)} == {"a", "b"}


@given(st.integers(1, 9), st.integers(0, 9))
def test_the_cases_of_a_test_are_sampled_in_order(count: int, most: int) -> None:
    names = [f"a[{n}]" for n in range(count)]
    assert sample(dict.fromkeys(names, 1.0), most) == set(names[:most])
