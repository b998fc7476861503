"""What the rules of packages make is checked: engines believe a schedule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from distir.errors import ScheduleError
from distir.schedules import SCHEDULES, Schedule, parse_schedule
from distir.schedules.core.family import ScheduleFamily


def family(row: Callable[[int, int], str], **stated: Any) -> ScheduleFamily:
    """A family whose rank `r` does what `row(r, microbatches)` says."""

    def generate(ranks: int, _chunks: int, microbatches: int, /) -> Schedule:
        return parse_schedule("\n".join(row(rank, microbatches) for rank in range(ranks)))

    return ScheduleFamily(name="theirs", generate=generate, summary="", source="", **stated)


def actions(kinds: str, rank: int, microbatches: int) -> str:
    return " ".join(f"{rank}{kind}{m}" for kind in kinds for m in range(microbatches))


def test_a_schedule_that_runs_is_one() -> None:
    ours = family(lambda rank, count: actions("FB", rank, count))
    assert ours.requires(3, 1, 5) is None
    assert ours(3, 1, 5).ranks == SCHEDULES.get("gpipe")(3, 1, 5).ranks


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (
            family(lambda r, n: actions("BF", r, n)),
            r"cannot|can run for 3 ranks.*0B0 uses what 0F0",
        ),
        (family(lambda r, n: actions("FB", r, n - 1)), "with 3 microbatches; expected 4"),
        (family(lambda r, n: actions("FB", 2 - r, n)), "the stages 2 on rank 0; expected 0"),
        (family(lambda r, n: actions("F", r, n)), "forward passes only"),
        (family(lambda r, n: actions("FBW", r, n)), "without splits_backward=True"),
        (
            family(lambda r, n: f"{r}F0 {r}X0"),
            "makes no schedule for 3 ranks, 1 chunk, 4 microbatches",
        ),
        (
            family(lambda r, n: actions("FB", r, n // 0)),
            "theirs makes no schedule for 3.*ZeroDivision",
        ),
    ],
)
def test_what_cannot_run_is_no_schedule_and_says_why(made: ScheduleFamily, reason: str) -> None:
    with pytest.raises(ScheduleError, match=reason):
        made(3, 1, 4)


def test_what_is_no_schedule_is_called_by_its_kind() -> None:
    def generate(_ranks: int, _chunks: int, _microbatches: int, /) -> Any:
        return "0F0 0B0"

    made = ScheduleFamily(name="text", generate=generate, summary="", source="")
    assert "for 1 rank, 1 chunk, 1 microbatch: it is of <class 'str'>" in str(
        made.requires(1, 1, 1)
    )


def test_all_families_of_ours_are_known_to_run() -> None:
    assert all(each.value.is_proven for each in SCHEDULES)
