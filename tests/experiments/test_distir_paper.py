"""The original's outputs and measurements: the figures that the comparison is known to give."""

from __future__ import annotations

import math

import pytest

from experiments.distir_paper import measured, reference
from experiments.distir_paper.statistics import mean_error, spearman
from tests.conftest import shared_path

pytestmark = pytest.mark.not_quick


def test_rank_correlation_agrees_with_a_hand_calculation():
    """Places 1 2 3 against 1 3 2: 1 - 6 · (0 + 1 + 1) / (3 · 8)."""
    assert spearman([10, 20, 30], [1, 3, 2]) == pytest.approx(0.5)
    assert spearman([1, 2, 2, 3], [1, 2, 2, 3]) == pytest.approx(1)
    assert math.isnan(spearman([1, 1], [1, 2]))


def test_mean_error_agrees_with_a_hand_calculation():
    assert mean_error([1.1, 1.6], [1, 2]) == pytest.approx(0.15)


@pytest.mark.slow(seconds=5)
def test_strategies_are_ranked_as_the_original_ranks_them():
    compared, left_out = reference.compare(shared_path("reference"))
    assert len(compared) >= 70
    assert all("stages" in reason for reason in left_out)
    rank = spearman([r.seconds for r in compared], [r.original_seconds for r in compared])
    assert rank > 0.95


def test_measured_steps_are_predicted():
    rows = measured.compare(shared_path("reference"))
    seconds = [row.seconds for row in rows]
    ours = mean_error([row.predicted_seconds for row in rows], seconds)
    assert ours < 0.15 < mean_error([row.original_seconds for row in rows], seconds)
    tasks, right, original_right = measured.right_choices(rows)
    assert right >= 0.75 * tasks > original_right
