"""What measured runs say against how they were read, by what was predicted: times that are no times
of a step in seconds, and plans that do not fit though they ran. Nothing is left out or rescaled:
who measured decides."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from distir.units import counted, short_number, short_seconds

__all__ = ["Timed", "doubts_of", "ran_as_assumed"]

ABSURD = 10.0
"""Measured over predicted, or the other way round, from which on it is no error of a prediction:
of some 1,300 published runs all lie between 0.7 and 2.6."""

_UNITS = {"microseconds": 1e6, "milliseconds": 1e3, "minutes": 1 / 60, "hours": 1 / 3600}
"""Units in which logs state times, by how many of them are a second."""

_NEAR = 3.0
"""Factor up to which a median ratio is taken for that of a unit."""


@dataclass(frozen=True, slots=True)
class Timed:
    """A row's seconds, measured and predicted."""

    id: str
    measured: float
    predicted: float

    @property
    def ratio(self) -> float:
        """Measured over predicted."""
        return self.measured / self.predicted


def doubts_of(rows: Iterable[Timed]) -> list[str]:
    """A sentence for the rows that are absurdly slow and one for those that are absurdly fast: how
    many, an example, and what to look at."""
    listed = list(rows)
    slow = [each for each in listed if each.ratio >= ABSURD]
    fast = [each for each in listed if each.ratio <= 1 / ABSURD]
    return [
        _sentence(found, len(listed), what)
        for found, what in ((slow, "more"), (fast, "less"))
        if found
    ]


def ran_as_assumed(ids: Sequence[str]) -> list[str]:
    """A sentence for rows that ran and would not fit in memory, where what shards or saves memory
    was assumed; none if there are none."""
    if not ids:
        return []
    some = f"{ids[0]}, …" if len(ids) > 1 else ids[0]
    return [
        (
            f"{counted(len(ids), 'row')} ran and would not fit as assumed ({some}): what is "
            "sharded or recomputed is not stated there, and may be otherwise; state zero_stage "
            "and recompute."
        )
    ]


def _sentence(found: list[Timed], of: int, what: str) -> str:
    times = [max(each.ratio, 1 / each.ratio) for each in found]
    first = found[0]
    part = "than a tenth of what" if what == "less" else f"than {ABSURD:.0f} times what"
    return (
        f"{len(found):,} of {of:,} measured times {'is' if len(found) == 1 else 'are'} {what} "
        f"{part} is predicted, the median by a factor of {short_number(median(times))} "
        f"({first.id}: measured {short_seconds(first.measured)}, predicted "
        f"{short_seconds(first.predicted)}). {_advice(found)}"
    )


def _advice(found: list[Timed]) -> str:
    middle = median(math.log(each.ratio) for each in found)
    guess = ""
    unit, per_second = min(_UNITS.items(), key=lambda each: abs(middle - math.log(each[1])))
    if abs(middle - math.log(per_second)) <= math.log(_NEAR):
        factor = max(per_second, 1 / per_second)
        what = f"{'divide' if per_second > 1 else 'multiply'} them by {factor:,.0f}"
        guess = f"They look like {unit}; times are stated in seconds: if so, {what}. "
    return (
        f"{guess}"
        "Expected are seconds per step in iteration_time_s, tokens of one device in "
        "tokens_per_sec_per_gpu, and samples of all devices in global_batch; see whether they are."
    )
