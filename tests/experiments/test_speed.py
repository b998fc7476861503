"""The pace of the grid is measured on chunks as the grid cuts them."""

from __future__ import annotations

import random

import numpy as np
import pytest

from autotune.exhaustive.chunks import stretches
from experiments.speed.grids import GridProblem, measured, spread_out


def test_the_first_chunks_lie_far_apart_and_all_are_there() -> None:
    rng = random.Random(0)
    borders = np.cumsum([rng.randrange(1, 4000) for _ in range(900)])
    chunks = list(stretches(borders))
    found = spread_out(chunks)
    assert sorted(found) == chunks
    for count in (1, 3, 7):
        middles = sorted((first + size / 2) / int(borders[-1]) for first, size in found[:count])
        wanted = [(part + 1) / (count + 1) for part in range(count)]
        assert np.allclose(middles, wanted, atol=0.07)


@pytest.mark.slow(seconds=3)
def test_a_grid_in_full_is_all_of_its_space() -> None:
    problem = GridProblem("mlp-4x64", "dgx-a100", 4)
    whole = measured(problem, chunks=0)
    assert whole.evaluated == whole.space_size
    assert 0 < measured(problem, chunks=1).evaluated <= whole.evaluated
    assert whole.per_second > 0
    assert whole.peak_mib > 0
