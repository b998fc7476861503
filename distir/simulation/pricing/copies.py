"""A repeated pattern, copy by copy as far as states still change; many chains at once.

The tables of all copies are kept, so that chains with any number of copies are looked up in them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from distir.arrays import Flags, Floats, Indices
from distir.cost.amounts import is_positive, taken
from distir.simulation.pricing.chains import SAME_STATE
from distir.simulation.pricing.patterns import Pattern
from distir.simulation.pricing.progress import (
    LAUNCHES,
    SETTLED,
    STREAMS,
    ManyBound,
    Progress,
    after_pattern,
    earliest_start,
)
from distir.simulation.pricing.timeline import SEVERAL, Start


class Copies:
    """Chains after 0, 1, 2, … copies of a pattern, as far as they are asked for and their states
    still change."""

    def __init__(
        self, before: Progress, pattern: Pattern, exact: frozenset[str] | None, bound: ManyBound
    ) -> None:
        self._pattern, self._exact, self._bound = pattern, exact, bound
        first = after_pattern(before, pattern, exact, bound)
        width = first.sums.shape[1]
        copied = (first.times.copy(), first.sums.copy(), first.rests.copy())
        self._now = Progress(first.start, copied[0], copied[1], first.size_numbers, None, copied[2])
        """Each chain after as many copies as it has been scheduled for."""
        self._reached = np.ones(width, np.int64)
        """The number of these copies."""
        self._steady = np.full(width, -1)
        """The number of copies after which the state changes only by `_drift`; -1 if that is not
        known yet."""
        self._starts = [first.start]
        """What the times of states are times of, per number of copies, from one copy on."""
        self._alone, self._unused = _drifting_times(pattern, first.start)
        self._change = np.full(first.times.shape, np.nan)
        """The change of times by the last copy, if only those changed that may drift."""
        self._drift = np.zeros(first.times.shape)
        """The change of times by each further copy, once the state is steady."""
        if before.start == first.start:
            self._watch(before, first, np.arange(width, dtype=np.int64), 0)
        # Columns of the kept sums, by copies and chain; `_times` lack the columns of no copies.
        self._columns = [np.arange(width, dtype=np.int64), width + np.arange(width, dtype=np.int64)]
        self._sums, self._times = [before.sums, first.sums], [first.times]

    def after(self, counts: Floats, chains: Indices) -> Progress:
        """The chains with these numbers, each after its number of copies (at least one)."""
        self._schedule(counts, chains)
        steady, now = self._steady[chains], self._now
        copies = np.where(steady < 0, counts, np.minimum(counts, steady)).astype(np.int64)
        more = counts - copies
        columns, sums = np.stack(self._columns), np.concatenate(self._sums, axis=1)
        here = sums[:, columns[copies, chains]]
        there = sums[:, columns[np.minimum(copies + 1, len(columns) - 1), chains]]
        sums = here + more * (there - here)
        settled = self._settled(sums, there[SETTLED], more, chains)
        sums[SETTLED] = np.where(more > 0, settled, here[SETTLED])
        # A state that is steady from no copies on is that after the first copy.
        copies, drift = np.maximum(copies, 1), self._drift[:, chains]
        column = columns[copies, chains] - len(self._steady)
        moved = np.where((drift != 0).any(axis=0), counts - copies, 0.0)
        codes = column * (1 + int(moved.max(initial=0.0))) + moved.astype(np.int64)
        _, which, state = np.unique(codes, return_index=True, return_inverse=True)
        times = np.concatenate(self._times, axis=1)[:, column[which]]
        times += moved[which] * drift[:, which]
        members = chains[which]
        numbers = now.size_numbers[members]
        start = self._common_start(times, copies[which])
        return Progress(start, times, sums, numbers, state)

    def _common_start(self, times: Floats, copies: Indices) -> Start:
        """What the times of states are times of, after any of these numbers of copies.

        A value may be made by a stream after some numbers of copies, and be ready at the start
        after others. Where it is ready, `times` is changed: the value is made before any stream is
        free, which means the same.
        """
        first, streams = self._starts[0], len(self._starts[0].streams)
        border: list[str] = []
        for number, makers in enumerate(zip(*(each.border for each in self._starts), strict=True)):
            if len(set(makers)) == 1:
                border.append(makers[0])
                continue
            border.append(SEVERAL)
            ready = np.flatnonzero(np.array([not maker for maker in makers])[copies - 1])
            times[streams + 1 + number, ready] = times[: streams + 1, ready].min(axis=0)
        return replace(first, border=tuple(border))

    def _schedule(self, counts: Floats, chains: Indices) -> None:
        """Schedules copies, as many as each chain has, or until its state is steady."""
        needed = np.zeros(len(self._steady), np.int64)
        np.maximum.at(needed, chains, counts.astype(np.int64))
        while len(going := np.flatnonzero((self._steady < 0) & (self._reached < needed))):
            copies = int(self._reached[going].min())
            self._schedule_copy(going[self._reached[going] == copies], copies)

    def _schedule_copy(self, going: Indices, copies: int) -> None:
        """Schedules one copy more of the chains with these numbers, which have `copies` so far."""
        now = self._now
        numbers = now.size_numbers[going]
        start = self._starts[copies - 1]
        before = Progress(start, now.times[:, going], now.sums[:, going], numbers)
        after = after_pattern(before, self._pattern, self._exact, self._bound)
        self._starts.append(after.start)
        if after.start == start:
            self._watch(before, after, going, copies)
        else:
            self._alone, self._unused = _drifting_times(self._pattern, after.start)
            self._change[:, going] = np.nan
        self._reached[going] = copies + 1
        if len(self._columns) == copies + 1:
            self._columns.append(np.zeros(len(self._steady), np.int64))
        first = sum(each.shape[1] for each in self._sums)
        self._columns[copies + 1][going] = first + np.arange(len(going), dtype=np.int64)
        self._sums.append(after.sums)
        self._times.append(after.times)
        now.times[:, going], now.sums[:, going] = after.times, after.sums
        now.rests[:, :, going] = after.rests

    def _watch(self, before: Progress, after: Progress, going: Indices, copies: int) -> None:
        """Records which of the chains `going` are steady after `copies` copies, from their progress
        before and after one more copy.

        A stream for which nothing waits may drift. It starts work when it is free or when compute
        has made its operands, whichever is later. If it falls behind compute by as much as with
        the copy before, while all else stays the same, then it did not wait for compute and will
        not wait again, so it falls behind by as much with every further copy.
        """
        change = after.times - before.times
        took = after.sums[STREAMS] - before.sums[STREAMS]
        slack = np.maximum(np.maximum(np.abs(before.times), np.abs(after.times)), took) * SAME_STATE
        same = np.abs(change) <= slack
        may = self._alone[:, None] & ((change > 0) | self._unused[:, None])
        as_before = np.abs(change - self._change[:, going]) <= slack
        steady = np.logical_and.reduce(same | (may & as_before), axis=0)
        drifts = np.logical_and.reduce(same | may, axis=0)
        self._change[:, going] = np.where(drifts, change, np.nan)
        self._steady[going[steady]] = copies
        self._drift[:, going[steady]] = np.where(same, 0.0, change)[:, steady]

    def _settled(self, sums: Floats, done: Floats, more: Floats, chains: Indices) -> Floats:
        """Until when the gradient stream is busy after `more` copies in a steady state, with these
        sums at their end, given that it is busy until `done` after the first of these copies.

        See `settled_at`: the first or the last copy of some block decides.
        """
        now = self._now
        seconds = [taken(now.of_chains(each), chains) for each in self._pattern.settling_seconds]
        whole = sum(seconds)
        if not is_positive(whole):
            return done
        ends = [
            self._bound(sums[STREAMS] - rest, sums[LAUNCHES] - launch)
            for rest, launch in now.rests[:, :, chains]
        ]
        queued = done + (more - 1) * whole
        last = earliest_start(ends, seconds) + whole
        return np.where(whole > 0, np.maximum(queued, last), done)


def _drifting_times(pattern: Pattern, start: Start) -> tuple[Flags, Flags]:
    """Two flags per time of a state: whether nothing in the pattern waits for it, and whether, in
    addition, it depends on no other time."""
    streams = len(start.streams)
    alone = np.zeros(streams + 1 + len(start.border), np.bool_)
    alone[: streams + 1] = True
    unused = alone.copy()
    for each in pattern.passes:
        walk = each.walk(start)
        made = {row for causes in walk.border for row in causes.values()}
        ends = made.union(walk.streams.values())
        for time in range(streams + 1):
            end = walk.streams[start.streams[time]] if time < streams else -1
            others = (walk.depends[row] >> time & 1 for row in ends if row != end)
            alone[time] &= end not in made and not any(others)
            unused[time] &= end < 0 or walk.depends[end] == 1 << time
    return alone, alone & unused


__all__ = ["Copies"]
