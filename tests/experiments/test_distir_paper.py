"""The original's outputs and measurements: the figures that the comparison is known to give."""

from __future__ import annotations

import math

import pytest

from distir.cost import CostModel
from distir.schedules import SCHEDULES, max_in_flight, parse_schedule, validate
from experiments.distir_paper import measured, original, reference
from experiments.distir_paper.orders import fifo
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
    tabled = [r for r in compared if r.hardware.startswith("synthetic") and "MLP" in r.family]
    assert len(tabled) == 6
    assert spearman([r.seconds for r in tabled], [r.original_seconds for r in tabled]) > 0.9


def test_all_reduces_of_a_table_take_what_it_says():
    """Of 0.25 GB on 4 devices: 2 gigabits at 6 ms, 10 us for each device, and 20 us."""
    cluster, stack = original.cluster(1e14, 8e11, 1200.0, 4), original.simple_stack()
    cost = original.TabledCost(cluster, stack, table={4: (0.006, 1e-5, 2e-5)})
    seconds = cost.collective_seconds("all_reduce", 0.25e9, cluster.group(4))
    assert seconds == pytest.approx(0.012 + 4e-5 + 2e-5)
    gathered = (
        each.collective_seconds("all_gather", 1e9, cluster.group(4))
        for each in (cost, CostModel(cluster, stack))
    )
    assert len(set(gathered)) == 1


def test_measured_steps_are_predicted():
    rows = measured.compare(shared_path("reference"))
    seconds = [row.seconds for row in rows]
    ours = mean_error([row.predicted_seconds for row in rows], seconds)
    assert ours < 0.15 < mean_error([row.original_seconds for row in rows], seconds)
    tasks, right, original_right = measured.right_choices(rows)
    assert right >= 0.75 * tasks > original_right


def test_fifo_order_agrees_with_one_by_hand():
    """Passes of one unit each: the last rank alternates between what comes and what it made ready,
    and the others have run all forward passes before the first gradient comes."""
    expected = parse_schedule(
        "0F0 0F1 0F2 0F3 0B0 0B1 0B2 0B3\n"
        "1F0 1F1 1F2 1F3 1B0 1B1 1B2 1B3\n"
        "2F0 2F1 2B0 2F2 2B1 2F3 2B2 2B3"
    )
    assert fifo(3, 4) == expected


@pytest.mark.parametrize("ranks", [1, 2, 5, 8])
@pytest.mark.parametrize("microbatches", [1, 3, 8, 20])
def test_fifo_order_is_a_schedule_that_holds_no_less_than_1f1b(ranks: int, microbatches: int):
    schedule = fifo(ranks, microbatches)
    validate(schedule)
    other = SCHEDULES.get("1f1b")(ranks, 1, microbatches)
    for stage in range(ranks):
        assert max_in_flight(schedule, stage) >= max_in_flight(other, stage)
