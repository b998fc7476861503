"""Figures that a reader can redo by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.validation.statistics import (
    Choice,
    precision_of,
    ranks,
    recall_of,
    regret_of,
    spearman,
)


def test_equal_values_share_the_mean_of_their_ranks() -> None:
    assert ranks([30.0, 10.0, 20.0, 20.0]) == [4.0, 1.0, 2.5, 2.5]


def test_spearman_agrees_with_a_hand_calculation() -> None:
    # Ranks 1 2 3 4 5 and 2 1 4 3 5: 1 - 6 * (1 + 1 + 1 + 1 + 0) / (5 * 24) = 0.8.
    assert spearman([1, 2, 3, 4, 5], [20, 10, 40, 30, 50]) == pytest.approx(0.8)


@pytest.mark.parametrize(("first", "second"), [([1, 2], [1, 2]), ([1, 1, 1], [1, 2, 3]), ([], [])])
def test_spearman_is_undefined_without_an_order(first: list[float], second: list[float]) -> None:
    assert spearman(first, second) is None


@given(st.lists(st.integers(0, 50), min_size=3, max_size=20, unique=True))
def test_spearman_of_any_increasing_map_is_one(values: list[int]) -> None:
    assert spearman(values, [value**3 + value for value in values]) == pytest.approx(1.0)
    assert spearman(values, [-value for value in values]) == pytest.approx(-1.0)


def test_regret_agrees_with_a_hand_calculation() -> None:
    choices = [
        # The prediction prefers 12 s; the best takes 10 s: 20 % lost.
        Choice("a", predicted=1.0, measured=12.0),
        Choice("a", predicted=2.0, measured=10.0),
        # The prediction is right: nothing lost.
        Choice("b", predicted=1.0, measured=5.0),
        Choice("b", predicted=9.0, measured=7.0),
        # Alone in its group: there is nothing to choose.
        Choice("c", predicted=1.0, measured=100.0),
    ]
    assert regret_of(choices) == pytest.approx(0.1)


def test_configurations_that_are_predicted_alike_count_by_their_mean() -> None:
    assert regret_of([Choice(0, 1.0, 10.0), Choice(0, 1.0, 14.0)]) == pytest.approx(0.2)


def test_regret_needs_a_choice() -> None:
    assert regret_of([Choice(0, 1.0, 1.0), Choice(1, 1.0, 1.0)]) is None


def test_recall_and_precision_agree_with_a_hand_calculation() -> None:
    happened = [True, True, False, False, False]
    foreseen = [True, False, True, True, False]
    assert recall_of(happened, foreseen) == pytest.approx(1 / 2)
    assert precision_of(happened, foreseen) == pytest.approx(1 / 3)


def test_a_false_alarm_counts_where_nothing_ran_out() -> None:
    assert recall_of([False], [True]) is None
    assert precision_of([False], [True]) == 0.0
    assert precision_of([False], [False]) is None
    assert precision_of([True], [False]) is None
