"""A space is a tree of declared choices; a further dimension is one more declaration."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import search_spaces
from distir.arrays import distinct_codes
from distir.strategy import Strategy
from search_spaces import Branch, Dimension, Rule, SearchSpace


def numbered(name: str, *values: int) -> Dimension:
    def domain() -> Sequence[int]:
        return values

    return Dimension(name, domain)


def test_a_domain_may_depend_on_earlier_choices() -> None:
    def tp(dp: int) -> Sequence[int]:
        return range(1, dp + 1)

    space = SearchSpace([numbered("dp", 1, 2, 3), Dimension("tp", tp)])
    assert [(s.dp, s.tp) for s in space.enumerate()] == [
        (1, 1),
        (2, 1),
        (2, 2),
        (3, 1),
        (3, 2),
        (3, 3),
    ]
    assert space.branches({}) == (Branch(1, 1), Branch(2, 2), Branch(3, 3))


def test_branches_that_lead_nowhere_are_not_shown() -> None:
    def odd_sum(dp: int, tp: int) -> str | None:
        return None if (dp + tp) % 2 else "the sum is even"

    space = SearchSpace([numbered("dp", 1, 2), numbered("tp", 1, 3)], [Rule("odd sum", odd_sum)])
    assert space.branches({}) == (Branch(2, 2),)


def test_a_value_that_no_strategy_has_is_told_with_the_rule() -> None:
    def at_most(dp: int, tp: int) -> str | None:
        return None if dp * tp <= 6 else f"{dp} x {tp} is more than 6"

    def repeats(dp: int) -> Sequence[int]:
        return (1,) if dp == 1 else (1, 2)

    space = SearchSpace(
        [numbered("dp", 1, 2), numbered("tp", 1, 3, 7), Dimension("pp", repeats)],
        [Rule("at most", at_most)],
    )
    assert space.why_never("tp", 7) in ("1 x 7 is more than 6", "2 x 7 is more than 6")
    assert space.why_never("tp", 3) is None
    assert space.why_never("pp", 9) is None, "no rule is against it"


def test_adding_a_dimension_is_one_declaration() -> None:
    def no_more_than_replicas(dp: int, microbatches: int) -> str | None:
        return None if microbatches <= dp else f"{microbatches} is more than {dp}"

    smaller = [numbered("dp", 1, 2, 4)]
    larger = [*smaller, numbered("microbatches", 1, 2, 4)]
    rule = Rule("no more than replicas", no_more_than_replicas)
    assert SearchSpace(smaller).count() == 3
    assert SearchSpace(larger, [rule]).count() == 6
    reason = SearchSpace(larger, [rule]).explain(Strategy(dp=2, microbatches=4))
    assert reason == "4 is more than 2"


def test_a_field_that_is_no_dimension_keeps_its_default() -> None:
    space = SearchSpace([numbered("dp", 1, 2)])
    assert space.explain(Strategy(dp=2, tp=2)) == "tp = 2 is not searched here; it stays 1"


def test_what_follows_from_the_others_is_not_free() -> None:
    def tp(dp: int) -> Sequence[int]:
        return (12 // dp,)

    space = SearchSpace([numbered("dp", 1, 2, 3), Dimension("tp", tp)])
    assert space.is_free("dp")
    assert not space.is_free("tp")
    assert space.values("tp") == (4, 6, 12)


def test_indices_outside_are_refused() -> None:
    with pytest.raises(IndexError, match="index 2 is outside a space of 2 strategies"):
        SearchSpace([numbered("dp", 1, 2)]).at(2)


def test_what_is_not_in_the_space_has_no_index() -> None:
    with pytest.raises(ValueError, match="dp3-tp1-pp1-m1-1f1b is not in the space"):
        SearchSpace([numbered("dp", 1, 2)]).index(Strategy(dp=3))


def test_what_is_asked_is_asked_once() -> None:
    """A rule hears of no combination twice, nor of one that an earlier rule refuses."""
    asked: list[tuple[int, ...]] = []

    def even(tp: int) -> str | None:
        return "odd" if tp % 2 else None

    def watched(dp: int, tp: int) -> str | None:
        asked.append((dp, tp))
        return None

    space = SearchSpace(
        [numbered("dp", 1, 2), numbered("pp", 1, 2, 3), numbered("tp", 1, 2)],
        [Rule("even", even), Rule("watched", watched)],
    )
    assert space.count() == len(list(space.enumerate())) == 6
    assert sorted(asked) == [(1, 2), (2, 2)]


def test_rows_of_many_columns_are_told_apart() -> None:
    """Also where their numbers would be too large for a word."""
    rows = np.array(list(itertools.product([0, 5], repeat=3)), np.int16)
    columns = [(rows[:, place % 3], 1 << 14) for place in range(9)]
    first, which = distinct_codes(columns, len(rows))
    assert sorted(which.tolist()) == list(range(8))
    assert rows[first].tolist() == sorted(rows.tolist())


degree_lists = st.lists(st.integers(1, 6), min_size=1, max_size=4, unique=True)


@given(degree_lists, degree_lists, degree_lists, st.integers(2, 30))
def test_any_rule_filters_the_product(
    dps: list[int], tps: list[int], pps: list[int], most: int
) -> None:
    def bounded(dp: int, pp: int) -> str | None:
        return None if dp * pp <= most else "too many"

    def mixed(tp: int, dp: int) -> str | None:
        return None if (tp + dp) % 3 else "three"

    space = SearchSpace(
        [numbered("dp", *dps), numbered("tp", *tps), numbered("pp", *pps)],
        [Rule("bounded", bounded), Rule("mixed", mixed)],
    )
    expected = [
        Strategy(dp=dp, tp=tp, pp=pp)
        for dp, tp, pp in itertools.product(dps, tps, pps)
        if dp * pp <= most and (tp + dp) % 3
    ]
    assert list(space.enumerate()) == expected
    assert space.count() == len(expected)
    assert all(list(space.enumerate(first)) == expected[first:] for first in range(len(expected)))
    assert [space.index(strategy) for strategy in expected] == list(range(len(expected)))


def test_everything_public_is_there() -> None:
    assert all(hasattr(search_spaces, name) for name in search_spaces.__all__)
