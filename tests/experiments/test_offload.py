"""What the comparison of offloading with published figures rests on."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from experiments.offload.__main__ import CHECKPOINTED, STATES, largest, rates


@given(st.integers(1, 200), st.integers(0, 300))
def test_the_largest_that_fits_is_found(too_many: int, room: int) -> None:
    assert largest(lambda number: number <= room, too_many) == min(room, too_many - 1)


def test_what_does_not_fit_has_no_rate_and_does_with_parameters_on_the_host() -> None:
    assert rates(71, 8192, CHECKPOINTED) == "does not fit"
    assert "TFLOP/s with 1 per replica" in rates(71, 8192, replace(CHECKPOINTED, offload=STATES))
