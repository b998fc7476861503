"""A repeated pattern, copy by copy as far as states still change; many chains at once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

import numpy as np

from distir.arrays import Flags, Floats, Indices
from distir.simulation.pricing.chains import SAME_STATE
from distir.simulation.pricing.patterns import Pattern
from distir.simulation.pricing.progress import (
    LAUNCHES,
    SETTLED,
    STREAMS,
    ManyBound,
    PassLengths,
    Progress,
    earliest_start,
    with_rows,
)
from distir.simulation.pricing.timeline import Start
from distir.simulation.pricing.timeline_many import PassForm


class ManyCopies:
    """The copies of repeated patterns that are to come in chains that are numbered."""

    def __init__(self, width: int) -> None:
        self._left = np.zeros(width)
        self._change = np.zeros((1, width))
        """The change of times by the copy before, of shape (times, chains); NaN if there was none,
        or if times changed that may not drift."""

    def begin(self, chains: Indices, counts: Floats | float) -> None:
        """Some chains begin a pattern with so many copies."""
        self._left[chains] = counts
        self._change[:, chains] = np.nan

    def after(
        self,
        chains: Indices,
        before: Progress,
        after: Progress,
        pattern: Pattern,
        lengths: Sequence[PassLengths],
        bound: ManyBound,
    ) -> tuple[Progress, Flags]:
        """Some chains after one copy more, or after all copies if their state is steady, given
        their progress before and after this copy and what its passes take; and in which of them
        copies are left."""
        left = self._left[chains] - 1
        more, going = np.zeros(len(left)), left > 0
        if before.start == after.start:
            self._change = with_rows(self._change, len(after.times))
            steady, drift, change = self._steady(chains, before, after, pattern)
            if (steady & going).any():
                more[steady] = left[steady]
                after = _after_more(before, after, more, drift, lengths, bound)
                going &= ~steady
            self._change[: len(change), chains] = change
        else:
            self._change[:, chains] = np.nan
        self._left[chains] = left
        return after, going

    def _steady(
        self, chains: Indices, before: Progress, after: Progress, pattern: Pattern
    ) -> tuple[Flags, Floats, Floats]:
        """Which chains are in a steady state after a copy, that is in one that changes only by a
        drift; the drift by each copy; and the change of times by this one (`_change`).

        A stream for which nothing waits may drift. It starts work when it is free or when compute
        has made its operands, whichever is later. If it falls behind compute by as much as with the
        copy before, while all else stays the same, then it did not wait for compute and will not
        wait again, so it falls behind by as much with every further copy.
        """
        alone, unused = _drifting_times(pattern.forms, after.start)
        change = after.times - before.times
        took = after.sums[STREAMS] - before.sums[STREAMS]
        slack = np.maximum(np.maximum(np.abs(before.times), np.abs(after.times)), took) * SAME_STATE
        same = np.abs(change) <= slack
        may = alone[:, None] & ((change > 0) | unused[:, None])
        as_before = np.abs(change - self._change[: len(change), chains]) <= slack
        steady = np.logical_and.reduce(same | (may & as_before), axis=0)
        drifts = np.logical_and.reduce(same | may, axis=0)
        return steady, np.where(same, 0.0, change), np.where(drifts, change, np.nan)


def _after_more(
    before: Progress,
    after: Progress,
    more: Floats,
    drift: Floats,
    lengths: Sequence[PassLengths],
    bound: ManyBound,
) -> Progress:
    """Chains in a steady state after `more` copies, given their progress before and after a copy,
    the `drift` of their times by each, and what the passes of a copy take."""
    further = before.sums + (more + 1) * (after.sums - before.sums)
    sums = np.where(more > 0, further, after.sums)
    if any(each.settling.any() for each in lengths):
        settled = _settled(sums, after.sums[SETTLED], more, lengths, bound)
        sums[SETTLED] = np.where(more > 0, settled, after.sums[SETTLED])
    return Progress(after.start, after.times + more * drift, sums)


def _settled(
    sums: Floats, done: Floats, more: Floats, lengths: Sequence[PassLengths], bound: ManyBound
) -> Floats:
    """Until when the gradient stream is busy after `more` copies in a steady state, with these sums
    at their end, given that it is busy until `done` before them.

    See `settled_at`: the first or the last copy of some block decides.
    """
    seconds = [each.settling for each in lengths]
    whole = sum(seconds)
    later = lengths[:0:-1]
    rests = accumulate((each.streams for each in later), initial=np.zeros(1))
    launches = accumulate((each.launches for each in later), initial=np.zeros(1))
    ends = [
        np.asarray(bound(sums[STREAMS] - rest, sums[LAUNCHES] - launch))
        for rest, launch in zip(rests, launches, strict=True)
    ]
    last = earliest_start(ends[::-1], seconds) + whole
    return np.where(whole > 0, np.maximum(done + more * whole, last), done)


@lru_cache(maxsize=1 << 11)
def _drifting_times(forms: tuple[PassForm, ...], start: Start) -> tuple[Flags, Flags]:
    """Two flags per time of a state: whether nothing in a pattern whose passes have these forms
    waits for it, and whether, in addition, it depends on no other time."""
    streams = len(start.streams)
    alone = np.zeros(streams + 1 + len(start.border), np.bool_)
    alone[: streams + 1] = True
    unused = alone.copy()
    for form in forms:
        walk = form.walk(start)
        made = {row for row, why in zip(walk.border, walk.end.border, strict=True) if why}
        ends = made.union(walk.streams.values())
        starts = (1 << walk.starts) - 1
        for time in range(streams + 1):
            end = walk.streams[start.streams[time]] if time < streams else -1
            others = (walk.since[row] >> time & 1 for row in ends if row != end)
            alone[time] &= end not in made and not any(others)
            unused[time] &= end < 0 or walk.since[end] & starts == 1 << time
    return alone, alone & unused


__all__ = ["ManyCopies"]
