"""Runs wave programs, for blocks of plans that fit in the processor's cache. Of waves that repeat,
only a few repeats are run:

Let `x` be the times at which ranks and links are free and messages arrive, and `F(x)` these times
after one more repeat. `F` takes maxima of sums, so it is convex, and along a line `x + j·d`
everything that is computed on the way is convex too. What lies on a line at three values of `j`
lies on it everywhere between them. So when two repeats in a row have moved `x` by the same `d`
(`j` = -1 and 0), a later one (`j` = n) is run from where the line says it starts. If it ends where
the line says, then so do all repeats between, and the seconds of waiting in them are an arithmetic
series. The speed at which the two sides of a maximum come closer says how far the line goes, until
they change places. If `d` is the same for all times, nothing needs to be tried: `F(x + d)` is
`F(x) + d`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from distir.schedules.compiled.waves import FEWEST_REPEATS
from distir.simulation.pipeline.block import BlockWatch, PlanBlock, walk
from distir.simulation.pipeline.waves import Floats, Ints, RepeatedPart, WaveProgram, slots_of

BLOCK_BYTES = 1 << 21
"""Bytes of a block of plans, so that it stays in the processor's cache."""

FEWEST_ACTIONS = 1 << 13
"""The least number of actions, over all plans, in one operation on arrays: with fewer, the calls
cost more than the work."""

STATES_BYTES = 1 << 26
"""Bytes of the states of all plans that run part by part together."""

EQUAL_STEPS = 2.0**-46
"""Fraction of the time that has passed: steps that differ by less count as equal."""

REPEATS_FIRST = 8
"""The number of repeats before the first look ahead."""

MOST_PATIENCE = 16
"""The largest number of repeats between two looks ahead, if they get few plans ahead."""

DRIFT = 2.0**-49
"""Fraction of the time that has passed, per skipped repeat: the error that rounding of the step may
add."""


def run_program(
    program: WaveProgram, times: Ints, seconds: Floats, transfers: Floats, goes_on: bool
) -> Floats:
    """Runs plans; returns the first `program.kept` rows of their final states, of shape
    (kept, plans), in the order that `WaveProgram` gives.

    `times` has the number of repeats of each repeated part, of shape (parts, plans); `seconds` and
    `transfers` have the shape (stages · COST_KINDS, plans).
    """
    sent = program.sent_costs
    if goes_on and len(sent):
        # The next action that sends takes at least as long as the message: there is no queue.
        quick = transfers[sent].max(axis=0) <= seconds[program.sending_costs].min(axis=0)
    else:
        quick = np.ones(seconds.shape[1], np.bool_)
    for every, own in ((quick, program.without_queues()), (~quick, program)):
        if every.all():
            return _run_program(own, times, seconds, transfers, goes_on)
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
    for a, b in _edges(rows, STATES_BYTES // (8 * program.size) + 1):
        whole = PlanBlock.new(
            program, seconds[program.costs, a:b], transfers[program.sent_costs, a:b]
        )
        _run(program, times[:, a:b], whole, goes_on)
        found[:, a:b] = whole.state[: program.kept]
    return found


def _edges(count: int, size: int) -> list[tuple[int, int]]:
    """The edges of pieces of about equal size, at most `size`, of `count` things."""
    pieces = max(1, -(-count // size))
    return list(pairwise(count * i // pieces for i in range(pieces + 1)))


def _run(program: WaveProgram, times: Ints, whole: PlanBlock, goes_on: bool) -> None:
    """Runs part by part, block by block. When half of a block has done its repeats, the other plans
    of the block wait until they can go on together with those of other blocks."""
    rows = whole.state.shape[1]
    bytes_of_row = 8 * (program.size + len(whole.seconds) + len(whole.transfers))
    size = max(FEWEST_ACTIONS // program.actions, BLOCK_BYTES // bytes_of_row)
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
    """Plans of a block in a repeated part. Those that have done all repeats are put back into
    `whole`, the others go on."""

    def __init__(
        self,
        repeat: RepeatedPart,
        whole: PlanBlock,
        block: PlanBlock,
        columns: Ints,
        left: Ints,
        goes_on: bool,
    ) -> None:
        """`columns` are the columns of the block's plans in `whole`."""
        self.repeat = repeat
        self.whole = whole
        self.whole_left = left
        """The repeats left, of all plans. The rings of plans with repeats left are as at the start
        of the part."""
        self.goes_on = goes_on
        self.block = block
        self.columns = columns
        self.left = left[columns]
        """The number of repeats left, of the block's plans."""
        self.turned = 0
        """The number of times that the rings have turned."""

    def run(self, fewest: int) -> None:
        """Runs repeats until at most `fewest` plans have repeats left. Most plans soon move all
        times by the same step. For the others it pays to look ahead, unless the last look got few
        of them ahead."""
        patience, wait, looks = 0, REPEATS_FIRST, 0
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
        """Runs a repeat. With `look`, plans whose times it has all moved by the same step are moved
        to their end: the repeats left will move them by the same step."""
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
        alike = fast - slow <= EQUAL_STEPS * now.max(axis=0)
        if alike.any():
            left = np.where(alike, self.left, 0)
            later = left * ((slow + fast) / 2)
            block.free += later
            block.state[block.program.links.start :] += later
            block.state[last] += later
            block.waits += left * (block.waits - waited)
            self.left -= left
        self._put_back(self.left == 0)

    def _once(self, block: PlanBlock, turned: int, watch: BlockWatch | None = None) -> None:
        """Runs a repeat of a block whose rings have turned `turned` times."""
        repeat = self.repeat
        read, sent = slots_of(repeat.read_turn, turned + 1), slots_of(repeat.sent_turn, turned + 1)
        walk(block, repeat.part, read, sent, self.goes_on, watch)

    def _watched(self, block: PlanBlock, turned: int, maxima: int) -> tuple[Floats, BlockWatch]:
        """Runs a repeat; returns the times after it and its record."""
        ranks, rows = block.free.shape
        watch = BlockWatch(ranks, rows, maxima)
        self._once(block, turned, watch)
        return self._times(block, turned + 1), watch

    def _times(self, block: PlanBlock, turned: int) -> Floats:
        """The times at which ranks and links are free and messages under way arrive."""
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
        """Runs two repeats, and moves the plans on that are on a line: with `far` to their last
        repeat, else as far as the line goes. Returns whether that saved enough repeats."""
        block, turned, rows, part = self.block, self.turned, len(self.left), self.repeat.part
        maxima = 2 * len(part.read) + (len(part.sent) if block.program.queues else 0)
        times = [self._times(block, turned)]
        waited = [block.waits.copy()]
        seen: list[BlockWatch] = []
        for turn in range(2):
            after, watch = self._watched(block, turned + turn, 0 if far else maxima)
            times.append(after)
            waited.append(block.waits.copy())
            seen.append(watch)
        self.turned += 2
        self.left -= 2
        now = times[2]
        exact = EQUAL_STEPS * now.max(axis=0)
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
        """Moves plans by `far` repeats along their lines, if a repeat there confirms it."""
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
        """The plans, each `far` repeats further on its line, and whether the repeat there confirms
        that."""
        on = line.some(columns)
        everything = len(columns) == len(self.left)
        ahead = self.block.copy() if everything else self.block.some(columns)
        skipped = far - 1
        self._set_times(ahead, self.turned, on.times + skipped * on.step)
        begun = on.waited + skipped * on.waiting + on.growing * (skipped * far / 2)
        ahead.waits[...] = begun
        times, watch = self._watched(ahead, self.turned, 0)
        exact = EQUAL_STEPS * times.max(axis=0) + DRIFT * far * on.times.max(axis=0)
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
        """Copies plans, at positions `taken` of the block `source` whose rings have turned `turned`
        times, to `columns` of the block `target` whose rings have turned `there` times."""
        if not len(taken):
            return
        count = source.program.links.stop
        target.state[:count, columns] = source.state[:count, taken]
        here, put = slots_of(self.repeat.live_turn, turned), slots_of(self.repeat.live_turn, there)
        if source.program.queues:
            target.arrived[np.ix_(put, columns)] = source.arrived[np.ix_(here, taken)]
        target.left[np.ix_(put, columns)] = source.left[np.ix_(here, taken)]

    def _put_back(self, done: NDArray[np.bool_]) -> None:
        """Takes the plans that have done all repeats out of the block."""
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
    """The times of plans after a repeat, and how they change from repeat to repeat."""

    times: Floats
    step: Floats
    waited: Floats
    waiting: Floats
    """Seconds of waiting in the last repeat."""
    growing: Floats
    """The difference to the repeat before."""
    starts: Floats
    """Sums of the starts of actions in the last repeat."""
    starting: Floats
    """The difference to the repeat before."""

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
