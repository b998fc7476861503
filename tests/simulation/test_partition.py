"""Stages are as even as contiguous runs of blocks can be."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distir.simulation.partition import balance_ranks as balance_many
from distir.simulation.partition import balanced_cuts as cut_many

weights_and_stages = st.lists(
    st.sampled_from([0.5, 1.0, 2.0, 3.5, 7.0]), min_size=1, max_size=9
).flatmap(lambda weights: st.tuples(st.just(weights), st.integers(1, len(weights))))


def balanced_cuts(weights: list[float], stages: int) -> tuple[int, ...]:
    return tuple(cut_many(np.array([weights], np.float64), np.array([stages]))[0].tolist())


def balance_ranks(
    weights: list[float], cuts: tuple[int, ...], rank_of_stage: list[int]
) -> tuple[int, ...]:
    own = np.array([cuts], np.int64).reshape(1, -1)
    return tuple(balance_many(np.array([weights], np.float64), own, rank_of_stage)[0].tolist())


def stage_loads(weights: list[float], cuts: tuple[int, ...]) -> list[float]:
    return [sum(weights[a:b]) for a, b in pairwise([0, *cuts, len(weights)])]


@given(weights_and_stages)
def test_the_heaviest_stage_is_as_light_as_can_be(case: tuple[list[float], int]) -> None:
    weights, stages = case
    cuts = balanced_cuts(weights, stages)
    assert len(cuts) == stages - 1
    assert all(a < b for a, b in pairwise([0, *cuts, len(weights)]))
    best = min(
        max(stage_loads(weights, found))
        for found in combinations(range(1, len(weights)), stages - 1)
    )
    assert max(stage_loads(weights, cuts)) == pytest.approx(best, rel=1e-5)


def test_thirteen_blocks_on_four_stages() -> None:
    cuts = balanced_cuts([1.0] * 13, 4)
    assert sorted(stage_loads([1.0] * 13, cuts)) == [3.0, 3.0, 3.0, 4.0]


@given(weights_and_stages, st.integers(1, 3))
def test_ranks_only_get_more_even(case: tuple[list[float], int], ranks: int) -> None:
    weights, stages = case
    rank_of_stage = [stage % ranks for stage in range(stages)]

    def heaviest(cuts: tuple[int, ...]) -> float:
        loads = [0.0] * ranks
        for rank, load in zip(rank_of_stage, stage_loads(weights, cuts), strict=True):
            loads[rank] += load
        return max(loads)

    before = balanced_cuts(weights, stages)
    after = balance_ranks(weights, before, rank_of_stage)
    assert len(after) == len(before)
    assert all(a < b for a, b in pairwise([0, *after, len(weights)]))
    assert heaviest(after) <= heaviest(before) + 1e-9


def test_the_rank_with_the_head_has_less_of_the_rest() -> None:
    weights = [1.0] * 12 + [4.0]
    cuts = balanced_cuts(weights, 4)
    even = balance_ranks(weights, cuts, [0, 1, 0, 1])
    loads = stage_loads(weights, even)
    assert (loads[0] + loads[2], loads[1] + loads[3]) == (8.0, 8.0)
