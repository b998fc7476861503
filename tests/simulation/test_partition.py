"""Stages are as even as contiguous runs of blocks can be."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distir.simulation.cutting.partition import Partitions
from distir.simulation.cutting.partition import balance_ranks as balance_many
from distir.simulation.cutting.partition import balanced_cuts as cut_many

weights_and_stages = st.lists(st.sampled_from([0, 1, 2, 4, 7, 14]), min_size=1, max_size=9).flatmap(
    lambda weights: st.tuples(st.just(weights), st.integers(1, len(weights)))
)


def balanced_cuts(weights: list[int], stages: int) -> tuple[int, ...]:
    return tuple(cut_many(np.array([weights]), np.array([stages]))[0].tolist())


def balance_ranks(
    weights: list[int], cuts: tuple[int, ...], rank_of_stage: list[int]
) -> tuple[int, ...]:
    own = np.array([cuts], np.int64).reshape(1, -1)
    return tuple(balance_many(np.array([weights], np.float64), own, rank_of_stage)[0].tolist())


def stage_loads(weights: list[int], cuts: tuple[int, ...]) -> list[int]:
    return [sum(weights[a:b]) for a, b in pairwise([0, *cuts, len(weights)])]


def lightest(weights: list[int], stages: int) -> int:
    """What the heaviest of so many stages weighs at least."""
    every = combinations(range(1, len(weights)), stages - 1)
    return min(max(stage_loads(weights, found)) for found in every)


@given(weights_and_stages)
def test_the_heaviest_stage_is_as_light_as_can_be(case: tuple[list[int], int]) -> None:
    weights, stages = case
    cuts = balanced_cuts(weights, stages)
    assert len(cuts) == stages - 1
    assert all(a < b for a, b in pairwise([0, *cuts, len(weights)]))
    assert max(stage_loads(weights, cuts)) == lightest(weights, stages)


@given(weights_and_stages)
def test_the_heaviest_stage_before_any_other_is_as_light_as_can_be(
    case: tuple[list[int], int],
) -> None:
    weights, stages = case
    cuts = balanced_cuts(weights, stages)
    loads = stage_loads(weights, cuts)
    for before, end in enumerate(cuts, start=1):
        assert max(loads[:before]) == lightest(weights[:end], before)


@given(st.lists(weights_and_stages, min_size=1, max_size=6))
def test_plans_are_cut_together_as_alone(several: list[tuple[list[int], int]]) -> None:
    longest = max(len(weights) for weights, _ in several)
    every = [weights + [1] * (longest - len(weights)) for weights, _ in several]
    together = cut_many(np.array(every), np.array([stages for _, stages in several]))
    for weights, (_, stages), cuts in zip(every, several, together.tolist(), strict=True):
        assert tuple(cuts[: stages - 1]) == balanced_cuts(weights, stages)
        assert not any(cuts[stages - 1 :])


def test_bounds_that_were_forgotten_are_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distir.simulation.cutting.partition.MOST_KEPT", 3)
    partitions, alone = Partitions(), np.zeros(1, np.int64)
    weights = np.array([[heaviest, *[50] * 7] for heaviest in range(51, 60)])
    shapes = [(((0,), (1,)), 1)]
    before = partitions.bounds(weights, shapes, np.arange(9), np.zeros(9, np.int64))
    again = [partitions.bounds(weights[[row]], shapes, alone, alone)[0] for row in range(9)]
    assert before == again
    assert len(partitions) == 3


def test_thirteen_blocks_on_four_stages_are_three_but_for_one() -> None:
    cuts = balanced_cuts([1] * 13, 4)
    assert sorted(stage_loads([1] * 13, cuts)) == [3, 3, 3, 4]


@given(weights_and_stages, st.integers(1, 3))
def test_ranks_only_get_more_even(case: tuple[list[int], int], ranks: int) -> None:
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
    weights = [1] * 12 + [4]
    cuts = balanced_cuts(weights, 4)
    even = balance_ranks(weights, cuts, [0, 1, 0, 1])
    loads = stage_loads(weights, even)
    assert (loads[0] + loads[2], loads[1] + loads[3]) == (8, 8)
