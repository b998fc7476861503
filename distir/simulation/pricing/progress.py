"""Chains after some of their passes, many at once: the states of streams as tables.

A state is a column of times, and so far a chain is a column of sums. A pass is run from the times
of each state (`timeline_many.py`); until it is computed, compute is busy or waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from distir.arrays import Floats, Indices
from distir.simulation.pricing.instructions import COMPUTE
from distir.simulation.pricing.patterns import Pattern
from distir.simulation.pricing.timeline import Start
from distir.simulation.pricing.timeline_many import BESIDE, SUMMED, PassForm

ManyBound = Callable[[Floats, Floats], Any]
"""Seconds of stretches of program, from the seconds of their streams and of their launches."""

STREAMS, EXPOSED, SETTLED, LAUNCHES, LINKS, SCATTERED = range(6)
"""Rows of `Progress.sums`: seconds until compute is free, seconds in which compute waited, the time
until which the gradient stream is busy, and sums over passes (`SUMMED`)."""


class Progress(NamedTuple):
    """Chains after some of their passes, with the same passes to come."""

    start: Start
    times: Floats
    """Shape (times, chains)."""
    sums: Floats
    """Shape (sums, chains)."""


class ManyProgress:
    """The progress of chains that are numbered, each after some passes of its own."""

    def __init__(self, width: int) -> None:
        self.times = np.zeros((1, width))
        """As `Progress.times`; there may be more rows than a chain has times."""
        self.sums = np.zeros((SCATTERED + 1, width))

    def of(self, chains: Indices, start: Start) -> Progress:
        """The progress of some chains, whose times are those of `start`."""
        times = self.times[: start.num_times].take(chains, axis=1)
        return Progress(start, times, self.sums.take(chains, axis=1))

    def put(self, chains: Indices, progress: Progress) -> None:
        """Notes the progress of some chains."""
        self.times = with_rows(self.times, len(progress.times))
        self.times[: len(progress.times), chains] = progress.times
        self.sums[:, chains] = progress.sums


def with_rows(table: Floats, rows: int) -> Floats:
    """A table with at least so many rows."""
    more = rows - len(table)
    return table if more <= 0 else np.concatenate([table, np.zeros((more, table.shape[1]))])


class PassLengths(NamedTuple):
    """What a pass of a pattern takes, in seconds with one number per chain."""

    streams: Floats
    launches: Floats
    settling: Floats
    """On the gradient stream after it."""


def after_pattern(
    before: Progress,
    pattern: Pattern,
    sizes: Indices,
    exact: frozenset[str] | None,
    bound: ManyBound,
) -> tuple[Progress, list[PassLengths]]:
    """Chains after one copy of a pattern, and what its passes took; `sizes` are the places of the
    chains' program sizes among those of the pattern. `exact`: see `exact_streams`."""
    start, times, sums = before.start, before.times, before.sums.copy()
    ends: list[Floats] = []
    lengths: list[PassLengths] = []
    for each in pattern.passes:
        numbers = each.numbers.take(sizes, axis=1)
        computing, settling, launches = numbers[-BESIDE : 1 - SUMMED]
        start, times, took = _after_pass(start, times, each.form, numbers, exact)
        sums[STREAMS] += took
        sums[LAUNCHES:] += numbers[-SUMMED:]
        sums[EXPOSED] += np.maximum(took - computing, 0.0)
        if pattern.settles:
            ends.append(np.asarray(bound(sums[STREAMS], sums[LAUNCHES])))
        lengths.append(PassLengths(took, launches, settling))
    if pattern.settles:
        settling = [each.settling for each in lengths]
        whole = sum(settling)
        done = np.maximum(sums[SETTLED], earliest_start(ends, settling)) + whole
        sums[SETTLED] = np.where(whole > 0, done, sums[SETTLED])
    return Progress(start, times, sums), lengths


def earliest_start(ends: Sequence[Floats], seconds: Sequence[Floats]) -> Floats:
    """The earliest time at which the gradient stream can start to settle the blocks of a pattern
    without a gap, if it settles each block after its pass has ended."""
    start: Floats = np.full(1, -np.inf)
    before: Any = 0.0
    for end, own in zip(ends, seconds, strict=True):
        start = np.where(own > 0, np.maximum(start, end - before), start)
        before = before + own
    return start


def _after_pass(
    start: Start, times: Floats, form: PassForm, seconds: Floats, exact: frozenset[str] | None
) -> tuple[Start, Floats, Floats]:
    """The states after a pass (what their times are, and the times), and the seconds until the pass
    is computed. `exact`: see `exact_streams`."""
    walk = form.walk(start)
    values = walk.run(times, seconds)
    took = values[walk.streams[COMPUTE]]
    after = values.take(walk.kept, axis=0)
    after -= took
    idle = len(walk.end.streams)
    if exact is None:
        floor = np.minimum.reduce(after[walk.awaited], axis=0, initial=0.0)
        np.maximum(after[: idle + 1], floor, out=after[: idle + 1])
    elif exact.issubset(walk.end.streams):
        after[idle] = 0.0  # there is no other stream
    return walk.end, after, took


__all__ = [
    "EXPOSED",
    "LAUNCHES",
    "LINKS",
    "SCATTERED",
    "SETTLED",
    "STREAMS",
    "ManyBound",
    "ManyProgress",
    "PassLengths",
    "Progress",
    "after_pattern",
    "earliest_start",
    "with_rows",
]
