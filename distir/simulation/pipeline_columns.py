"""`run_pipeline` of many plans with one schedule, as arrays: a column per plan.

Actions that may run at the same time are one operation on arrays, for a block of plans that fits
in the cache. Where the same waves of actions come again and again, they are not walked through
again and again:

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

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, pairwise
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from distir.schedules import COST_KINDS, CompiledSchedule
from distir.schedules.waves import FEWEST_REPEATS, Loop, Turn, Waves, find_waves
from distir.simulation.pipeline_phases import Phases, find_phases, run_phases

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Index: TypeAlias = "slice | Ints"

BLOCK_BYTES = 1 << 21
"""What a block of plans takes: it should stay in the cache."""

LEAST_WORK = 1 << 13
"""Actions of plans in one operation on arrays, at least: with fewer, calls cost more than work."""

WHOLE_BYTES = 1 << 26
"""What the states of plans take that are run part by part."""

TOLERANCE = 2.0**-46
"""Of the time that has passed: what rounding may make of equal steps."""

NO_TIME = 2.0**-42
"""Of the time that has passed: what a rank waits less than that is rounding."""

STEPS_FIRST = 8
"""Repeats before it is tried to look ahead."""

MOST_PATIENCE = 16
"""Repeats until it is tried again, where it got few plans ahead."""

DRIFT = 2.0**-49
"""Of the time that has passed, for each repeat that is left out: what rounding of the steps may
add up to."""

FARTHEST = 1e9
"""Repeats; more than there are."""

ROUNDING = 2.0**-30
"""Repeats; since when a lead may be over that rounding says is not."""


@dataclass(frozen=True, slots=True)
class PipelineColumns:
    """`PipelineTime` of many plans with one schedule, one per row; arrays are (ranks, rows)."""

    end: Floats
    waited_for_transfer: Floats
    waited_for_stage: Floats
    begin: Floats
    """When a rank starts its first action."""
    begin_moving: Floats
    """For how much of this time the message that it waited for was on its way."""
    last_gradients: tuple[Floats, ...]
    """Per rank (own stages, rows): start of the action in which the stage's gradients are
    complete; 0 where there is none."""


def run_pipeline_columns(
    compiled: CompiledSchedule, seconds: Floats, transfers: Floats, *, goes_on: bool = True
) -> PipelineColumns:
    """`run_pipeline` of many plans with one schedule. `seconds` and `transfers` are
    (stages · COST_KINDS, rows)."""
    same = _distinct(seconds, transfers)
    if same is not None:
        kept, place = same
        found = _columns(compiled, seconds[:, kept], transfers[:, kept], goes_on)
        return PipelineColumns(
            found.end[:, place],
            found.waited_for_transfer[:, place],
            found.waited_for_stage[:, place],
            found.begin[:, place],
            found.begin_moving[:, place],
            tuple(each[:, place] for each in found.last_gradients),
        )
    return _columns(compiled, seconds, transfers, goes_on)


def _distinct(seconds: Floats, transfers: Floats) -> tuple[Ints, Ints] | None:
    """Plans that differ, and for each plan which of them it is like; None if nearly all differ."""
    weights = np.random.default_rng(0).random((2, len(seconds), 1))
    marks = (seconds * weights[0]).sum(axis=0) + (transfers * weights[1]).sum(axis=0)
    _, kept, place = np.unique(marks, return_index=True, return_inverse=True)
    like = kept[place]
    if 10 * len(kept) > 9 * len(marks):
        return None
    if not all(np.array_equal(each[:, like], each) for each in (seconds, transfers)):
        return None
    return kept, place


def _columns(
    compiled: CompiledSchedule, seconds: Floats, transfers: Floats, goes_on: bool
) -> PipelineColumns:
    program = _program(compiled)
    if program is None:
        return _one_by_one(compiled, seconds, transfers, goes_on)
    if isinstance(program, Phases):
        times, last = run_phases(program, seconds, transfers, goes_on)
        end, for_transfer, for_stage, begin, moving = times
        own = _by_rank(compiled, last)
        return PipelineColumns(end, for_transfer, for_stage, begin, moving, own)
    ranks, rows = program.ranks, seconds.shape[1]
    found = np.empty((program.kept, rows))
    for a, b in _edges(rows, WHOLE_BYTES // (8 * program.size) + 1):
        whole = _Block.new(program, seconds[program.costs, a:b], transfers[program.sent_costs, a:b])
        _run(program, whole, goes_on)
        found[:, a:b] = whole.state[: program.kept]
    end, for_stage, begin, moving = found[: 4 * ranks].reshape(4, ranks, rows)
    for_transfer = end - for_stage - _busy(compiled, seconds)
    for_transfer[for_transfer < NO_TIME * end] = 0.0
    own = _by_rank(compiled, found[4 * ranks :])
    return PipelineColumns(end, for_transfer, for_stage, begin, moving, own)


def _busy(compiled: CompiledSchedule, seconds: Floats) -> Floats:
    """What all actions of a rank take (ranks, rows)."""
    found = np.zeros((len(compiled.counts), seconds.shape[1]))
    for busy, own, counts in zip(found, compiled.stages_of_ranks, compiled.counts, strict=True):
        for stage, kinds in zip(own, counts, strict=True):
            for kind, count in enumerate(kinds):
                if count:
                    busy += seconds[stage * COST_KINDS + kind] * count
    return found


def _by_rank(compiled: CompiledSchedule, stages: Floats) -> tuple[Floats, ...]:
    """Rows of all ranks' stages, rank by rank."""
    return tuple(np.split(stages, np.cumsum([len(own) for own in compiled.stages_of_ranks])[:-1]))


# --- what is the same for all plans ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Wave:
    """Actions of a wave: readers first, senders next to each other. Indices of arrays are slices
    where they can be; messages are numbered over the loop or the whole schedule."""

    ranks: Index
    costs: Index
    readers: Index
    reading: int
    """How many of the actions read."""
    read: slice
    senders: Index
    sending: slice
    sent: slice
    links: Index
    sent_costs: Index
    first: tuple[tuple[int, int], ...]
    """Place in the wave and rank of what is a rank's first action."""
    last: tuple[tuple[int, int], ...]
    """Place in the wave and row in the state of actions in which gradients are complete."""


@dataclass(frozen=True, slots=True)
class _Part:
    """Waves that follow each other, with the slots in which their messages are read and put."""

    waves: tuple[_Wave, ...]
    read: Ints
    sent: Ints
    busiest: int
    """Actions on the rank with most."""
    actions: int
    maxima: int
    """How often something waits for one of two things."""
    last: Ints
    """Rows of the state that say when actions start in which gradients are complete."""


@dataclass(frozen=True, slots=True)
class _Repeat:
    """A part that is repeated. A channel's slots are a ring; messages turn round in it."""

    part: _Part
    times: int
    read_turn: tuple[Ints, Ints, Ints, Ints]
    """First slot of the channel, number of the message, messages in a repeat, size of the ring."""
    sent_turn: tuple[Ints, Ints, Ints, Ints]
    live_turn: tuple[Ints, Ints, Ints, Ints]
    """The same for messages under way between repeats."""


@dataclass(frozen=True, slots=True)
class _Program:
    """A schedule as index arrays. A column of the state: free, waited for stage, begin, begin
    moving (of each rank), last gradients; links; when messages arrive; when they left. What ranks
    waited for transfers is the rest of their time."""

    ranks: int
    kept: int
    links: slice
    arrived: slice
    left: slice
    size: int
    costs: Ints
    """Costs that there are."""
    sent_costs: Ints
    """Costs of actions that send."""
    parts: tuple[tuple[_Part, _Repeat | None], ...]
    """Each with what is repeated after it, if anything."""
    actions: int
    """Of a wave, on average."""


def _slots(turn: tuple[Ints, Ints, Ints, Ints], repeat: int) -> Ints:
    first, number, messages, ring = turn
    return first + (number + repeat * messages) % ring


@lru_cache(maxsize=1024)
def _program(compiled: CompiledSchedule) -> _Program | Phases | None:
    phases = find_phases(compiled)
    if phases is not None:
        return phases
    waves = find_waves(compiled)
    return None if waves is None else _Builder(compiled, waves).program()


def _index(numbers: Sequence[int]) -> Index:
    """A slice if the numbers go up by equal steps."""
    if not numbers:
        return slice(0, 0)
    step = numbers[1] - numbers[0] if len(numbers) > 1 else 1
    if step > 0 and all(b - a == step for a, b in pairwise(numbers)):
        return slice(numbers[0], numbers[-1] + 1, step)
    return np.array(numbers, np.int64)


class _Builder:
    """Makes index arrays of turns."""

    def __init__(self, compiled: CompiledSchedule, waves: Waves) -> None:
        self.waves = waves
        self.ranks = len(compiled.stages_of_ranks)
        self.last_row: dict[tuple[int, int], int] = {}
        for rank, own in enumerate(compiled.stages_of_ranks):
            for stage in own:
                self.last_row[rank, stage] = 4 * self.ranks + len(self.last_row)
        self.rings = np.maximum(np.array(waves.most_under_way, np.int64), 1)
        costs = sorted({cost for runs in compiled.runs for word, _ in runs for cost in word})
        self.cost_row = {cost: row for row, cost in enumerate(costs)}
        sent = sorted({each.sender[1] for each in waves.channels})
        self.sent_row = {cost: row for row, cost in enumerate(sent)}
        self.first_slots = np.cumsum(self.rings) - self.rings

    def program(self) -> _Program:
        parts: list[tuple[_Part, _Repeat | None]] = []
        done = 0
        for loop in self.waves.loops:
            parts.append((self._part(self.waves.waves[done : loop.end]), self._repeat(loop)))
            done = loop.end
        parts.append((self._part(self.waves.waves[done:]), None))
        kept, slots = 4 * self.ranks + len(self.last_row), int(self.rings.sum())
        links = kept + self.waves.num_links
        return _Program(
            ranks=self.ranks,
            kept=kept,
            links=slice(kept, links),
            arrived=slice(links, links + slots),
            left=slice(links + slots, links + 2 * slots),
            size=links + 2 * slots,
            costs=np.array([*self.cost_row], np.int64),
            sent_costs=np.array([*self.sent_row], np.int64),
            parts=tuple(parts),
            actions=sum(map(len, self.waves.waves)) // len(self.waves.waves),
        )

    def _repeat(self, loop: Loop) -> _Repeat:
        turns = list(chain.from_iterable(map(_ordered, loop.waves)))
        live = [(channel, i) for channel, each in enumerate(loop.under_way) for i in each]
        messages = np.array(loop.messages, np.int64)
        return _Repeat(
            self._part(loop.waves),
            loop.times,
            self._turn([(t.reads, t.read) for t in turns if t.reads >= 0], messages),
            self._turn([(t.sends, t.sent) for t in turns if t.sends >= 0], messages),
            # those under way after the loop's waves were under way, turned back, before them
            self._turn(live, messages),
        )

    def _turn(
        self, places: Sequence[tuple[int, int]], messages: Ints
    ) -> tuple[Ints, Ints, Ints, Ints]:
        channels = np.array([channel for channel, _ in places], np.int64)
        numbers = np.array([number for _, number in places], np.int64)
        return self.first_slots[channels], numbers, messages[channels], self.rings[channels]

    def _part(self, waves: Sequence[tuple[Turn, ...]]) -> _Part:
        none = np.zeros(len(self.rings), np.int64)
        ordered = [_ordered(wave) for wave in waves]
        turns = list(chain.from_iterable(ordered))
        read = self._turn([(t.reads, t.read) for t in turns if t.reads >= 0], none)
        sent = self._turn([(t.sends, t.sent) for t in turns if t.sends >= 0], none)
        made: list[_Wave] = []
        reads = sends = 0
        for wave in ordered:
            made.append(self._wave(wave, reads, sends))
            reads, sends = made[-1].read.stop, made[-1].sent.stop
        counts = np.bincount([turn.rank for turn in turns], minlength=1)
        return _Part(
            waves=tuple(made),
            read=_slots(read, 0),
            sent=_slots(sent, 0),
            busiest=int(counts.max()),
            actions=len(turns),
            maxima=2 * len(read[0]) + len(sent[0]),
            last=np.array([row for wave in made for _, row in wave.last], np.int64),
        )

    def _wave(self, wave: Sequence[Turn], reads: int, sends: int) -> _Wave:
        readers = [turn for turn in wave if turn.reads >= 0]
        senders = [turn for turn in wave if turn.sends >= 0]
        from_ = next((i for i, turn in enumerate(wave) if turn.sends >= 0), 0)
        return _Wave(
            ranks=_index([turn.rank for turn in wave]),
            costs=_index([self.cost_row[turn.cost] for turn in wave]),
            readers=_index([turn.rank for turn in readers]),
            reading=len(readers),
            read=slice(reads, reads + len(readers)),
            senders=_index([turn.rank for turn in senders]),
            sending=slice(from_, from_ + len(senders)),
            sent=slice(sends, sends + len(senders)),
            links=_index([self.waves.channels[turn.sends].link for turn in senders]),
            sent_costs=_index([self.sent_row[turn.cost] for turn in senders]),
            first=tuple((i, turn.rank) for i, turn in enumerate(wave) if turn.first),
            last=tuple(
                (i, self.last_row[turn.rank, turn.cost // COST_KINDS])
                for i, turn in enumerate(wave)
                if turn.last
            ),
        )


def _ordered(wave: Sequence[Turn]) -> list[Turn]:
    """Readers first, senders next to each other, then by rank."""
    order = {(True, False): 0, (True, True): 1, (False, True): 2, (False, False): 3}
    return sorted(wave, key=lambda turn: (order[turn.reads >= 0, turn.sends >= 0], turn.rank))


# --- a block of plans -----------------------------------------------------------------------------


@dataclass(slots=True)
class _Block:
    """Plans that are run together, as views of one array (`_Program` says in which order)."""

    program: _Program
    state: Floats
    seconds: Floats
    transfers: Floats
    free: Floats
    waits: Floats
    """For stages."""
    links: Floats
    arrived: Floats
    left: Floats

    @staticmethod
    def of(program: _Program, state: Floats, seconds: Floats, transfers: Floats) -> _Block:
        ranks = program.ranks
        return _Block(
            program,
            state,
            seconds,
            transfers,
            state[:ranks],
            state[ranks : 2 * ranks],
            state[program.links],
            state[program.arrived],
            state[program.left],
        )

    @staticmethod
    def new(program: _Program, seconds: Floats, transfers: Floats) -> _Block:
        """Nothing has happened yet."""
        return _Block.of(program, np.zeros((program.size, seconds.shape[1])), seconds, transfers)

    def copy(self) -> _Block:
        """What may change is copied."""
        return _Block.of(self.program, self.state.copy(), self.seconds, self.transfers)

    def some(self, columns: Index) -> _Block:
        """A copy of some plans."""
        return _Block.of(
            self.program,
            np.ascontiguousarray(self.state[:, columns]),
            np.ascontiguousarray(self.seconds[:, columns]),
            np.ascontiguousarray(self.transfers[:, columns]),
        )


def _edges(count: int, size: int) -> list[tuple[int, int]]:
    """Cuts `count` things into pieces of about equal size."""
    pieces = max(1, -(-count // size))
    return list(pairwise(count * i // pieces for i in range(pieces + 1)))


def _run(program: _Program, whole: _Block, goes_on: bool) -> None:
    """Runs part by part, block by block. Where half of a block is through a repeat, the rest waits
    for that of others."""
    rows = whole.state.shape[1]
    bytes_of_row = 8 * (program.size + len(whole.seconds) + len(whole.transfers))
    size = max(LEAST_WORK // program.actions, BLOCK_BYTES // bytes_of_row)
    pieces = _edges(rows, size)
    for part, repeat in program.parts:
        left = np.zeros(rows, np.int64) if repeat is None else np.full(rows, repeat.times)
        for a, b in pieces:
            block = whole.some(slice(a, b))
            _walk(block, part, part.read, part.sent, goes_on)
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


def _walk(
    block: _Block,
    part: _Part,
    read_slots: Ints,
    sent_slots: Ints,
    goes_on: bool,
    watch: _Watch | None = None,
) -> None:
    """Runs waves; `watch` sees what happens."""
    free, links, arrived, left = block.free, block.links, block.arrived, block.left
    seconds, transfers, state = block.seconds, block.transfers, block.state
    ranks = block.program.ranks
    for_stage = block.waits
    for wave in part.waves:
        now = free[wave.ranks]
        if wave.reading:
            slots = read_slots[wave.read]
            before = now[: wave.reading]
            moving = left.take(slots, axis=0)
            for i, rank in wave.first:
                if i < wave.reading:
                    state[3 * ranks + rank] = -moving[i]  # the start is added below
            begin = arrived.take(slots, axis=0)
            if watch is not None:
                watch.see(moving, before)
                watch.see(begin, before)
            np.maximum(moving, before, out=moving)
            moving -= before
            for_stage[wave.readers] += moving
            np.maximum(begin, before, out=before)
        for i, rank in wave.first:
            state[2 * ranks + rank] = now[i]
            if i < wave.reading:
                state[3 * ranks + rank] += now[i]
        for i, row in wave.last:
            state[row] = now[i]
        if watch is not None:
            watch.starts[wave.ranks] += now
        now += seconds[wave.costs]
        if not isinstance(wave.ranks, slice):
            free[wave.ranks] = now
        if wave.sending.stop:
            end = now[wave.sending]
            slots = sent_slots[wave.sent]
            left[slots] = end
            there = links[wave.links]
            if watch is not None:
                watch.see(there, end)
            there = np.maximum(there, end)
            there += transfers[wave.sent_costs]
            links[wave.links] = there
            arrived[slots] = there
            if not goes_on:
                free[wave.senders] = there


class _Watch:
    """What happens in a repeat: what starts add up to, by rank, and, if it matters, by how much
    either side of each maximum is ahead."""

    def __init__(self, ranks: int, rows: int, maxima: int) -> None:
        self.starts = np.zeros((ranks, rows))
        self.leads = np.empty((maxima, rows))
        self.seen = 0

    def see(self, one: Floats, other: Floats) -> None:
        """Takes down the lead of one side of some maxima."""
        if len(self.leads):
            until = self.seen + len(one)
            np.subtract(one, other, out=self.leads[self.seen : until])
            self.seen = until

    def until_changed(self, before: _Watch, exact: Floats) -> Floats:
        """In how many more repeats some maximum changes sides, if leads go on to change as they did
        since the repeat before."""
        if not len(self.leads):
            return np.full(len(exact), FARTHEST)
        change = before.leads
        change -= self.leads
        steady = np.abs(change) <= exact
        change[steady] = np.inf
        turns = self.leads
        turns /= change
        turns[(turns < -ROUNDING) | steady] = FARTHEST
        return np.maximum(turns.min(axis=0), 0.0)


class _Looping:
    """Plans in a part that is repeated. Those that are done are put back, others go on."""

    def __init__(
        self,
        repeat: _Repeat,
        whole: _Block,
        block: _Block,
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

    def _once(self, block: _Block, turned: int, watch: _Watch | None = None) -> None:
        """`turned`: how often the block's rings have turned."""
        repeat = self.repeat
        read, sent = _slots(repeat.read_turn, turned + 1), _slots(repeat.sent_turn, turned + 1)
        _walk(block, repeat.part, read, sent, self.goes_on, watch)

    def _watched(self, block: _Block, turned: int, maxima: int) -> tuple[Floats, _Watch]:
        """Runs a repeat; returns the times after it, and what happened."""
        ranks, rows = block.free.shape
        watch = _Watch(ranks, rows, maxima)
        self._once(block, turned, watch)
        return self._times(block, turned + 1), watch

    def _times(self, block: _Block, turned: int) -> Floats:
        """When ranks, links and messages under way are free, or there."""
        live = _slots(self.repeat.live_turn, turned)
        return np.concatenate([block.free, block.links, block.arrived[live], block.left[live]])

    def _set_times(self, block: _Block, turned: int, times: Floats) -> None:
        live = _slots(self.repeat.live_turn, turned)
        ranks, links = len(block.free), len(block.links)
        edges = np.cumsum([ranks, links, len(live)])
        block.free[...], block.links[...], block.arrived[live], block.left[live] = np.split(
            times, edges
        )

    def _jump(self, *, far: bool) -> bool:
        """Runs two repeats, and those plans on that are on a line: to the end, if it goes so far,
        or, if not `far`, to where it ends. Whether that was worth it."""
        block, turned, rows, part = self.block, self.turned, len(self.left), self.repeat.part
        times = [self._times(block, turned)]
        waited = [block.waits.copy()]
        seen: list[_Watch] = []
        for turn in range(2):
            after, watch = self._watched(block, turned + turn, 0 if far else part.maxima)
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

    def _try(self, line: _Line, columns: Ints, far: Ints) -> tuple[_Block, NDArray[np.bool_]]:
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
        self, source: _Block, taken: Ints, turned: int, target: _Block, columns: Ints, there: int
    ) -> None:
        """Puts plans of a block with rings so often turned in one with rings turned otherwise."""
        if not len(taken):
            return
        count = source.program.links.stop
        target.state[:count, columns] = source.state[:count, taken]
        here, put = _slots(self.repeat.live_turn, turned), _slots(self.repeat.live_turn, there)
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


# --- schedules in which microbatches overtake each other ------------------------------------------


def _one_by_one(
    compiled: CompiledSchedule, seconds: Floats, transfers: Floats, goes_on: bool
) -> PipelineColumns:
    """Action by action."""
    ranks, rows = len(compiled.stages_of_ranks), seconds.shape[1]
    free, transfer_wait, stage_wait = np.zeros((3, ranks, rows))
    link_free = np.zeros((compiled.num_links, rows))
    senders = [compiled.needs[i] for i in compiled.first]
    kept = {*compiled.first, *chain.from_iterable(compiled.last_gradients)}
    starts: dict[int, Floats] = {-1: np.zeros(rows)}
    ended: dict[int, Floats] = {}
    arrived: dict[int, Floats] = {}
    first_ends: dict[int, Floats] = {}
    flat = compiled.flat
    actions = zip(flat.rank, flat.cost, flat.needs, flat.link, strict=True)
    for i, (rank, cost, needed, link) in enumerate(actions):
        begin = free[rank]
        if needed >= 0:
            arrival, left = arrived.pop(needed), ended.pop(needed)
            start = np.maximum(arrival, begin)
            for_stage = np.maximum(left, begin) - begin
            stage_wait[rank] += for_stage
            transfer_wait[rank] += start - begin - for_stage
            begin = start
        if i in kept:
            starts[i] = begin.copy()
        end = begin + seconds[cost]
        free[rank] = end
        if link >= 0:
            ended[i] = end
            link_free[link] = np.maximum(end, link_free[link]) + transfers[cost]
            arrived[i] = link_free[link].copy()
            if i in senders:
                first_ends[i] = end
            if not goes_on:
                transfer_wait[rank] += arrived[i] - end
                free[rank] = arrived[i]
    begin = np.stack([starts[i] for i in compiled.first])
    begin_moving = np.zeros_like(begin)
    for rank, sender in enumerate(senders):
        if sender >= 0:
            begin_moving[rank] = begin[rank] - first_ends[sender]
    last = tuple(np.stack([starts[i] for i in own]) for own in compiled.last_gradients)
    return PipelineColumns(free, transfer_wait, stage_wait, begin, begin_moving, last)


__all__ = ["PipelineColumns", "run_pipeline_columns"]
