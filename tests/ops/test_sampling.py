"""Sampling at places that are no numbers, as in a model whose values overflow."""

from __future__ import annotations

import numpy as np
import pytest

from distir.ops.sampling import (
    PADDINGS,
    TAPS,
    GridSample,
    GridSampleGradient,
    GridSamplePlaceGradient,
)


@pytest.mark.parametrize("mode", TAPS)
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("place", [np.nan, np.inf, -np.inf])
def test_a_place_that_is_no_number_spoils_its_own_sample_alone(
    mode: str, padding: str, place: float
) -> None:
    rng = np.random.default_rng(1)
    x, grid = rng.normal(size=(2, 3, 4, 5)), rng.uniform(-1, 1, (2, 3, 2, 2))
    how = (mode, padding, False)
    (expected,) = GridSample(*how).evaluate(x, grid)
    grid[0, 1, 0, 1] = place
    with np.errstate(invalid="ignore"):
        (samples,) = GridSample(*how).evaluate(x, grid)
        of_x = GridSampleGradient((4, 5), *how).evaluate(grid, samples)
        of_grid = GridSamplePlaceGradient(*how).evaluate(x, grid, samples)
    others = np.ones(samples.shape, bool)
    others[0, :, 1, 0] = False
    np.testing.assert_array_equal(samples[others], expected[others])
    assert of_x[0].shape == x.shape
    assert of_grid[0].shape == grid.shape
