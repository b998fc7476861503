"""Runs a program of waves, for a block of plans that fits in the cache. Where the same waves come
again and again, they are not walked through again and again:

Let `x` be the times at which ranks, links and messages under way are free or there, and `F(x)` the
same after another repeat. `F` takes maxima of sums, so it is convex: along a line `x + j·d`
so is everything that is computed on the way. If it lies on a line at three values of `j`, it does
everywhere between them. So when two repeats in a row have moved `x` by the same `d` (`j` = -1 and
0), one more is walked through, a later one (`j` = n): if that ends where the line says, the
repeats between end where the line says, too, and what was waited for in them is an arithmetic
series. How far the line goes, until some maximum changes sides, is seen from how fast the two
sides come closer. Where `d` is the same for everything, there is nothing to try: `F(x + d)` is
`F(x) + d`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from distir.schedules.compiled.waves import FEWEST_REPEATS
from distir.simulation.pipeline.block import PlanBlock, Watch, walk
from distir.simulation.pipeline.waves import Floats, Ints, Repeat, WaveProgram, slots_of

BLOCK_BYTES = 1 << 21
"""What a block of plans takes: it should stay in the cache."""

LEAST_WORK = 1 << 13
"""Actions of plans in one operation on arrays, at least: with fewer, calls cost more than work."""

WHOLE_BYTES = 1 << 26
"""What the states of plans take that are run part by part."""

TOLERANCE = 2.0**-46
"""Of the time that has passed: what rounding may make of equal steps."""

STEPS_FIRST = 8
"""Repeats before it is tried to look ahead."""

MOST_PATIENCE = 16
"""Repeats until it is tried again, where it got few plans ahead."""

DRIFT = 2.0**-49
"""Of the time that has passed, for each repeat that is left out: what rounding of the steps may
add up to."""


def run_program(
    program: WaveProgram, times: Ints, seconds: Floats, transfers: Floats, goes_on: bool
) -> Floats:
    """What is kept of the state in the end (`WaveProgram` says in which order): (kept, rows).
    `times` says how often what repeats does, (repeats, rows); `seconds` and `transfers` are
    (stages · COST_KINDS, rows)."""
    sent = program.sent_costs
    if goes_on and len(sent):
        # A rank is at least as long on the next action that sends.
        quick = transfers[sent].max(axis=0) <= seconds[sent].min(axis=0)
    else:
        quick = np.ones(seconds.shape[1], np.bool_)
    if quick.all():
        return _run_program(program.without_queues(), times, seconds, transfers, goes_on)
    found = np.empty((program.kept, len(quick)))
    for own, some in ((program.without_queues(), quick), (program, ~quick)):
        found[:, some] = _run_program(
            own, times[:, some], seconds[:, some], transfers[:, some], goes_on
        )
    return found


def _run_program(
    program: WaveProgram, times: Ints, seconds: Floats, transfers: Floats, goes_on: bool
) -> Floats:
    rows = seconds.shape[1]
    found = np.empty((program.kept, rows))
    for a, b in _edges(rows, WHOLE_BYTES // (8 * program.size) + 1):
        whole = PlanBlock.new(
            program, seconds[program.costs, a:b], transfers[program.sent_costs, a:b]
        )
        _run(program, times[:, a:b], whole, goes_on)
        found[:, a:b] = whole.state[: program.kept]
    return found


def _edges(count: int, size: int) -> list[tuple[int, int]]:
    """Cuts `count` things into pieces of about equal size."""
    pieces = max(1, -(-count // size))
    return list(pairwise(count * i // pieces for i in range(pieces + 1)))


def _run(program: WaveProgram, times: Ints, whole: PlanBlock, goes_on: bool) -> None:
    """Runs part by part, block by block. Where half of a block is through a repeat, the rest waits
    for that of others."""
    rows = whole.state.shape[1]
    bytes_of_row = 8 * (program.size + len(whole.seconds) + len(whole.transfers))
    size = max(LEAST_WORK // program.actions, BLOCK_BYTES // bytes_of_row)
    pieces = _edges(rows, size)
    for number, (part, repeat) in enumerate(program.parts):
        left = np.zeros(rows, np.int64) if repeat is None else times[number].copy()
        for a, b in pieces:
            block = whole.some(slice(a, b))
            walk(block, part, part.read, part.sent, goes_on)
            if repeat is None:
                whole.state[:, a:b] = block.state
            else:
                looping = _Looping(repeat, whole, block, np.arange(a, b), left, goes_on)
                looping.run((b - a) // 2 if len(pieces) > 1 else 0)
        while repeat is not None and len(columns := np.flatnonzero(left)):
            rest = _edges(len(columns), size)
            for a, b in rest:
                own = columns[a:b]
                looping = _Looping(repeat, whole, whole.some(own), own, left, goes_on)
                looping.run((b - a) // 2 if len(rest) > 1 else 0)


class _Looping:
    """Plans in a part that is repeated. Those that are done are put back, others go on."""

    def __init__(
        self,
        repeat: Repeat,
        whole: PlanBlock,
        block: PlanBlock,
        columns: Ints,
        left: Ints,
        goes_on: bool,
    ) -> None:
        """`columns` are those of the block in `whole`."""
        self.repeat = repeat
        self.whole = whole
        self.whole_left = left
        """Of all plans; those that have repeats left are where the part begins, as to rings."""
        self.goes_on = goes_on
        self.block = block
        self.columns = columns
        self.left = left[columns]
        """How many repeats are left."""
        self.turned = 0
        """How often the rings have turned."""

    def run(self, fewest: int) -> None:
        """Runs repeats until all plans are done but so many. Most are soon in step; where they are
        not, it is worth while to look ahead, unless that got few of them on the last time."""
        patience, wait, looks = 0, STEPS_FIRST, 0
        while len(self.left) > fewest:
            if wait or self.left.min() < FEWEST_REPEATS:
                self._step(look=not looks or wait == 1)
                wait = max(0, wait - 1)
            else:
                patience = (
                    0 if self._jump(far=looks % 4 == 0) else min(MOST_PATIENCE, 1 + 2 * patience)
                )
                wait, looks = patience, looks + 1
        everything = np.arange(len(self.left))
        self._place(self.block, everything, self.turned, self.whole, self.columns, 0)
        self.whole_left[self.columns] = self.left

    def _step(self, *, look: bool) -> None:
        """Runs a repeat. Where it moved all times alike, so will those that are left, if we
        `look`."""
        block, last = self.block, self.repeat.part.last
        if not look:
            self._once(block, self.turned)
            self.turned += 1
            self.left -= 1
            self._put_back(self.left == 0)
            return
        before, waited = self._times(block, self.turned), block.waits.copy()
        self._once(block, self.turned)
        self.turned += 1
        self.left -= 1
        now = self._times(block, self.turned)
        step = now - before
        slow, fast = step.min(axis=0), step.max(axis=0)
        alike = fast - slow <= TOLERANCE * now.max(axis=0)
        if alike.any():
            left = np.where(alike, self.left, 0)
            later = left * ((slow + fast) / 2)
            block.free += later
            block.state[block.program.links.start :] += later
            block.state[last] += later
            block.waits += left * (block.waits - waited)
            self.left -= left
        self._put_back(self.left == 0)

    def _once(self, block: PlanBlock, turned: int, watch: Watch | None = None) -> None:
        """`turned`: how often the block's rings have turned."""
        repeat = self.repeat
        read, sent = slots_of(repeat.read_turn, turned + 1), slots_of(repeat.sent_turn, turned + 1)
        walk(block, repeat.part, read, sent, self.goes_on, watch)

    def _watched(self, block: PlanBlock, turned: int, maxima: int) -> tuple[Floats, Watch]:
        """Runs a repeat; returns the times after it, and what happened."""
        ranks, rows = block.free.shape
        watch = Watch(ranks, rows, maxima)
        self._once(block, turned, watch)
        return self._times(block, turned + 1), watch

    def _times(self, block: PlanBlock, turned: int) -> Floats:
        """When ranks, links and messages under way are free, or there."""
        live = slots_of(self.repeat.live_turn, turned)
        if not block.program.queues:
            return np.concatenate([block.free, block.left[live]])
        return np.concatenate([block.free, block.links, block.arrived[live], block.left[live]])

    def _set_times(self, block: PlanBlock, turned: int, times: Floats) -> None:
        live = slots_of(self.repeat.live_turn, turned)
        ranks, links = len(block.free), len(block.links)
        if not block.program.queues:
            block.free[...], block.left[live] = times[:ranks], times[ranks:]
            return
        edges = np.cumsum([ranks, links, len(live)])
        block.free[...], block.links[...], block.arrived[live], block.left[live] = np.split(
            times, edges
        )

    def _jump(self, *, far: bool) -> bool:
        """Runs two repeats, and those plans on that are on a line: to the end, if it goes so far,
        or, if not `far`, to where it ends. Whether that was worth it."""
        block, turned, rows, part = self.block, self.turned, len(self.left), self.repeat.part
        maxima = 2 * len(part.read) + (len(part.sent) if block.program.queues else 0)
        times = [self._times(block, turned)]
        waited = [block.waits.copy()]
        seen: list[Watch] = []
        for turn in range(2):
            after, watch = self._watched(block, turned + turn, 0 if far else maxima)
            times.append(after)
            waited.append(block.waits.copy())
            seen.append(watch)
        self.turned += 2
        self.left -= 2
        now = times[2]
        exact = TOLERANCE * now.max(axis=0)
        step = (now - times[0]) / 2
        waiting = waited[2] - waited[1]
        growing = waiting - (waited[1] - waited[0])
        growing[np.abs(growing) <= exact] = 0.0
        ahead = np.minimum(self.left, seen[1].until_changed(seen[0], exact)).astype(np.int64)
        straight = (np.abs(now - times[1] - step) <= exact).all(axis=0)
        straight &= ahead >= np.minimum(self.left, 4 + 2 * block.program.size // part.actions)
        straight &= ahead >= 2
        starting = seen[1].starts - seen[0].starts
        line = _Line(now, step, waited[2], waiting, growing, seen[1].starts, starting)
        columns = np.flatnonzero(straight)
        if len(columns):
            self._land(line, columns, ahead[columns])
        return int(ahead[columns].sum()) >= 8 * rows

    def _land(self, line: _Line, columns: Ints, far: Ints) -> None:
        """Runs plans on, `far` repeats further on their lines, if they are there."""
        ahead, good = self._try(line, columns, far)
        landed = columns[good]
        self.left[landed] -= far[good]
        taken, finished = np.flatnonzero(good), self.left[landed] == 0
        turned, times = self.turned + 1, self.repeat.times
        done, on = landed[finished], landed[~finished]
        self._place(ahead, taken[finished], turned, self.whole, self.columns[done], times)
        self._place(ahead, taken[~finished], turned, self.block, on, self.turned)
        self.whole_left[self.columns[done]] = 0
        self._keep(self.left > 0)

    def _try(self, line: _Line, columns: Ints, far: Ints) -> tuple[PlanBlock, NDArray[np.bool_]]:
        """The plans, each `far` repeats further on its line, and whether they are there."""
        on = line.some(columns)
        everything = len(columns) == len(self.left)
        ahead = self.block.copy() if everything else self.block.some(columns)
        skipped = far - 1
        self._set_times(ahead, self.turned, on.times + skipped * on.step)
        begun = on.waited + skipped * on.waiting + on.growing * (skipped * far / 2)
        ahead.waits[...] = begun
        times, watch = self._watched(ahead, self.turned, 0)
        exact = TOLERANCE * times.max(axis=0) + DRIFT * far * on.times.max(axis=0)
        waits = ahead.waits - begun - on.waiting - far * on.growing
        good = (np.abs(times - on.times - far * on.step) <= exact).all(axis=0)
        good &= (np.abs(waits) <= exact * self.repeat.part.busiest).all(axis=0)
        off = watch.starts - on.starts - far * on.starting
        good &= (np.abs(off) <= exact * self.repeat.part.busiest).all(axis=0)
        return ahead, good

    def _place(
        self,
        source: PlanBlock,
        taken: Ints,
        turned: int,
        target: PlanBlock,
        columns: Ints,
        there: int,
    ) -> None:
        """Puts plans of a block with rings so often turned in one with rings turned otherwise."""
        if not len(taken):
            return
        count = source.program.links.stop
        target.state[:count, columns] = source.state[:count, taken]
        here, put = slots_of(self.repeat.live_turn, turned), slots_of(self.repeat.live_turn, there)
        if source.program.queues:
            target.arrived[np.ix_(put, columns)] = source.arrived[np.ix_(here, taken)]
        target.left[np.ix_(put, columns)] = source.left[np.ix_(here, taken)]

    def _put_back(self, done: NDArray[np.bool_]) -> None:
        """Takes plans out that are done."""
        if done.any():
            where = np.flatnonzero(done)
            columns = self.columns[where]
            self._place(self.block, where, self.turned, self.whole, columns, self.repeat.times)
            self.whole_left[columns] = 0
            self._keep(~done)

    def _keep(self, kept: NDArray[np.bool_]) -> None:
        if not kept.all():
            where = np.flatnonzero(kept)
            self.block = self.block.some(where)
            self.columns, self.left = self.columns[where], self.left[where]


@dataclass(frozen=True, slots=True)
class _Line:
    """Where plans are after a repeat, and how that changes from repeat to repeat."""

    times: Floats
    step: Floats
    waited: Floats
    waiting: Floats
    """How much of it in the last repeat."""
    growing: Floats
    """How much more than in the one before."""
    starts: Floats
    """What starts of actions added up to in the last repeat."""
    starting: Floats
    """How much more than in the one before."""

    def some(self, columns: Ints) -> _Line:
        return _Line(
            self.times[:, columns],
            self.step[:, columns],
            self.waited[:, columns],
            self.waiting[:, columns],
            self.growing[:, columns],
            self.starts[:, columns],
            self.starting[:, columns],
        )


__all__ = ["run_program"]
