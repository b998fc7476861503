"""Amounts that are numbers or arrays add up alike, however many there are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distir.cost.amounts import FEW, Many, is_many, many, total

numbers = st.integers(-9, 9).map(float)


@given(st.lists(st.one_of(numbers, st.lists(numbers, min_size=3, max_size=3)), max_size=3 * FEW))
def test_totals_are_those_of_each_plan(amounts: list[float | list[float]]) -> None:
    made = [many(each) if isinstance(each, list) else each for each in amounts]
    found = np.broadcast_to(np.asarray(total(made)), 3)
    for plan in range(3):
        own = [each[plan] if isinstance(each, list) else each for each in amounts]
        assert found[plan] == sum(own)


@pytest.mark.parametrize("count", [1, FEW, FEW + 1, 2 * FEW])
def test_a_total_of_many_is_many_and_leaves_what_it_adds(count: int) -> None:
    amounts = [many([1.0, 2.0]) for _ in range(count)]
    assert is_many(total([*amounts, 0.0]))
    assert all(isinstance(each, Many) and each.tolist() == [1.0, 2.0] for each in amounts)
