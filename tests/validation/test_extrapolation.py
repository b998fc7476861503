"""What is added beyond the sizes of the data is what larger rows need."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from autotune.calibration.extrapolation import beyond_the_data
from autotune.calibration.fit import Fitted
from autotune.validation import Case
from tests.validation.rows import case

SOURCES = [f"source {number}" for number in range(12)]
DEVICES = (8, 16, 32, 64, 128, 256, 512, 1024)


def rows() -> list[Case]:
    """Each source has runs of all sizes."""
    return [
        case(
            id=f"{source} {devices}",
            source_group=source,
            num_gpus=str(devices),
            dp=str(devices // 4),
            global_batch=str(devices),
        )
        for source in SOURCES
        for devices in DEVICES
    ]


def fit_of(residuals: list[float]) -> Fitted:
    """A fit that ended with these residuals, whose one constant tells nothing of them."""
    values = np.array(residuals)
    nothing = np.zeros((len(residuals), 1))
    return Fitted(np.zeros(1), values, nothing, np.ones(len(residuals)), np.ones(1))


def drawn(cases: list[Case], per_doubling: float, seed: int = 0) -> Fitted:
    """Errors of 5 % in all rows and, beyond 8 devices, of so much more per doubling, each doubling
    on its own."""
    chance = random.Random(seed)
    return fit_of(
        [
            chance.gauss(0.0, 0.05)
            + chance.gauss(
                0.0, per_doubling * math.sqrt(math.log2(each.strategy.devices / 8) + 1e-9)
            )
            for each in cases
        ]
    )


def test_errors_that_grow_with_size_are_found_again() -> None:
    cases = rows()
    found = [beyond_the_data(drawn(cases, 0.1, seed), cases)["devices"].spread for seed in range(5)]
    assert np.mean(found) == pytest.approx(0.1, rel=0.35)


def test_larger_runs_that_are_off_as_much_as_smaller_ones_need_nothing() -> None:
    cases = rows()
    found = beyond_the_data(drawn(cases, 0.0), cases)
    assert found["devices"].spread < 0.03
    assert found["devices"].error_beyond == pytest.approx(found["devices"].error_within, rel=0.3)


def test_a_source_moves_no_cut_by_having_more_rows() -> None:
    """Every source weighs as much as ten rows at most, whose sizes are spread as before."""
    once = rows()
    often = [each for each in once for _ in range(50 if each.row.group == SOURCES[0] else 1)]
    cuts = [beyond_the_data(drawn(each, 0.1), each)["devices"].cuts for each in (once, often)]
    assert cuts[0] == cuts[1]


def test_small_runs_of_one_source_hardly_move_a_cut() -> None:
    """A thousand runs on the fewest devices are one source of many."""
    cases = rows()
    many = [*cases, *[cases[0]] * 1000]
    cuts = [beyond_the_data(drawn(each, 0.1), each)["devices"].cuts for each in (cases, many)]
    assert cuts[0][-1] == cuts[1][-1]


def test_sizes_that_all_rows_share_tell_nothing() -> None:
    cases = rows()
    assert not {"parameters", "sequence"} & set(beyond_the_data(drawn(cases, 0.1), cases))


def test_constants_have_not_seen_the_larger_rows() -> None:
    """A constant could explain that the largest rows are off by 0.3, and bears on them alone.
    Fitted to smaller ones it stays where it is, so that they stay off."""
    cases = rows()
    large = np.array([float(each.strategy.devices > 256) for each in cases])
    odd = np.array([SOURCES.index(each.row.group) % 2 for each in cases])
    residuals = 0.3 * large + 0.02 * odd
    fitted = Fitted(np.zeros(1), residuals, large[:, None], np.ones(len(cases)), np.ones(1))
    found = beyond_the_data(fitted, cases)["devices"]
    assert found.cuts == (16, 64, 256)
    # Of the rows beyond the cuts two of six, of four and of two sizes are off.
    assert found.error_beyond == pytest.approx(math.expm1(0.3) * (2 / 6 + 2 / 4 + 1) / 3, rel=0.1)
    assert found.error_within == pytest.approx(0.01, rel=0.1)
