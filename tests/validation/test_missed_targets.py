"""What factors chosen in hindsight leave of an error, and the section of the report on them."""

from __future__ import annotations

import math
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.calibration.spreads import RowResidual
from experiments.fidelity.missed import best_factor, hindsight, mean_size, missed
from tests.validation.rows import case

RESIDUALS = st.lists(st.floats(-0.7, 0.7), min_size=1, max_size=12)
BATCHES = ("16", "32", "64")
CASES = [case(global_batch=batch) for batch in BATCHES]


def rows_of(residuals: list[float]) -> list[RowResidual]:
    """Rows of three batch sizes in turn."""
    return [RowResidual(CASES[at % len(CASES)], value) for at, value in enumerate(residuals)]


@given(RESIDUALS)
def test_the_best_factor_leaves_no_more_than_any_other(residuals: list[float]) -> None:
    ratios = [math.exp(each) for each in residuals]

    def left(factor: float) -> float:
        return fmean(abs(factor * ratio - 1.0) for ratio in ratios)

    least = left(best_factor(ratios))
    assert all(least <= left(0.4 + step / 50) + 1e-12 for step in range(100))


@given(RESIDUALS)
def test_more_factors_never_leave_more(residuals: list[float]) -> None:
    rows = rows_of(residuals)
    one = hindsight(rows, lambda _: 0.0)
    several = hindsight(rows, lambda each: each.batch_size)
    assert several <= one + 1e-12
    assert one <= mean_size(rows) + 1e-12


def test_rows_that_are_all_off_alike_are_right_with_a_factor() -> None:
    rows = rows_of([math.log(1.3)] * 5)
    assert mean_size(rows) == pytest.approx(0.3)
    assert hindsight(rows, lambda _: 0.0) == pytest.approx(0.0, abs=1e-12)


def test_the_section_names_targets_that_are_missed_and_no_others() -> None:
    rows = rows_of([0.2, -0.2, 0.1])
    text = "\n".join(missed({"here": 0.08, "elsewhere": 0.01}, 0.5, rows, [], 0.2))
    assert f"### here: {100 * mean_size(rows):.1f} % of 8.0 %" in text
    assert "elsewhere" not in text
    assert "mean over dense" not in text
    assert "### here, mixtures" in "\n".join(missed({}, 0.5, rows, rows, 0.01))
    assert "###" not in "\n".join(missed({"here": 0.5}, 0.5, rows, rows, 0.5))
    assert "### The mean over dense sources" in "\n".join(missed({}, 0.01, rows, [], 0.5))
