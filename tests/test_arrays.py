"""Products of arrays in parts: what they are, and that no part is large enough for threads. Where
equal values are adjacent."""

from __future__ import annotations

from itertools import accumulate, groupby
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distir import arrays
from distir.arrays import edges, grouped, product

SIDES = st.integers(0, 40)


@given(
    rows=SIDES,
    inner=SIDES,
    columns=SIDES,
    at_once=st.integers(1, 500),
    seed=st.integers(0, 99),
    bits=st.sampled_from([np.float32, np.float64]),
)
def test_products_in_parts_are_products(
    rows: int, inner: int, columns: int, at_once: int, seed: int, bits: type[np.floating[Any]]
) -> None:
    draw = np.random.default_rng(seed)
    matrix = draw.integers(-9, 10, (rows, inner)).astype(bits)
    others = draw.integers(-9, 10, (columns, inner)).astype(bits)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrays, "PRODUCTS_AT_ONCE", at_once)
        found = product(matrix, others.T)
    assert found.shape == (rows, columns)
    assert found.dtype == bits
    assert (found == matrix @ others.T).all()


@pytest.mark.parametrize(("rows", "inner", "columns"), [(6, 64, 9000), (4000, 230, 90), (9, 3, 2)])
def test_parts_are_as_large_as_one_thread_makes(
    rows: int, inner: int, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    matmul = np.matmul

    def counted(left: Any, right: Any, *, out: Any) -> None:
        sizes.append(len(left) * left.shape[1] * right.shape[1])
        matmul(left, right, out=out)

    monkeypatch.setattr(np, "matmul", counted)
    product(np.ones((rows, inner)), np.ones((inner, columns)))
    assert sum(sizes) == rows * inner * columns
    assert max(sizes) <= arrays.PRODUCTS_AT_ONCE
    assert len(sizes) < 3 + 3 * sum(sizes) // arrays.PRODUCTS_AT_ONCE  # few, and none a column each


@given(st.lists(st.integers(0, 2)))
def test_edges_are_where_adjacent_values_differ(values: list[int]) -> None:
    groups = [len(list(own)) for _, own in groupby(values)]
    assert edges(np.array(values, np.int64)).tolist() == [0, *accumulate(groups)]


@given(st.lists(st.integers(0, 3)))
def test_groups_are_the_positions_of_equal_numbers(values: list[int]) -> None:
    found = {number: places.tolist() for number, places in grouped(np.array(values, np.int64))}
    assert found == {
        number: [place for place, value in enumerate(values) if value == number]
        for number in sorted({*values})
    }
