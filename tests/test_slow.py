"""The sample of slow tests that everyday runs take."""

from __future__ import annotations

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


@given(tests, budgets, st.randoms())
def test_the_sample_does_not_depend_on_the_order_of_tests(
    seconds: dict[str, int], most: int, chance: Random
) -> None:
    shuffled = list(seconds.items())
    chance.shuffle(shuffled)
    assert sample(dict(shuffled), most) == sample(seconds, most)


@given(st.integers(1, 9), st.integers(1, 9))
def test_every_test_is_sampled_before_the_parameters_of_any_repeat(first: int, second: int) -> None:
    names = [f"a[{n}]" for n in range(first)] + [f"b[{n}]" for n in range(second)]
    assert {name[0] for name in sample(dict.fromkeys(names, 1.0), 2.0)} == {"a", "b"}
