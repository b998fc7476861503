"""Array version of `chains.py`: chains whose passes have equal instructions with other seconds.

The state of the streams after some blocks is a table with a row per time and a column per chain.
Chains go on together wherever their next passes are the same and their states are times of the
same streams and values, whatever came before. A repeated pattern is scheduled copy by copy as far
as states still change, and the tables are kept, so that chains with any number of copies are looked
up in them.

tests/simulation/test_chains.py holds the two to each other.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, count
from typing import Any, cast

import numpy as np

from distir.arrays import Flags, Floats, Indices
from distir.cost.amounts import Many, is_positive, taken
from distir.simulation.pricing.chains import SAME_STATE, BlockChain, ChainCost, Pass, PassCost
from distir.simulation.pricing.instructions import COMPUTE
from distir.simulation.pricing.patterns import Pattern, Step, steps_of
from distir.simulation.pricing.timeline import LONG_AGO, SEVERAL, Moments, Start, latest_of

ManyBound = Callable[[Floats, Floats], Any]
"""Seconds of stretches of program, from the seconds of their streams and of their launches."""

ALL = "all"
"""Stands for all streams other than compute."""

STREAMS, LAUNCHES, EXPOSED, SETTLED = range(4)
"""Rows of `_Progress.sums`: seconds until compute is free, seconds of launches, seconds in which
compute waited, and the time until which the gradient stream is busy."""


@dataclass(frozen=True, slots=True)
class _Progress:
    """Chains after some of their passes, with the same passes to come.

    Chains with different numbers of copies are often in equal states, which are kept once.
    """

    start: Start
    times: Floats
    """Of the different states, shape (times, states)."""
    sums: Floats
    """Shape (sums, chains)."""
    size_numbers: Indices
    """Of each state the number of its program size."""
    state: Indices | None = None
    """Of each chain the number of its state; None: a state per chain, in order."""
    rests: Floats = field(default_factory=lambda: np.empty((0, 2, 0)))
    """Shape (passes, 2, chains): per pass of the last pattern, the seconds of streams and of
    launches after it."""

    def apart(self) -> _Progress:
        """The same chains, with a state for every chain."""
        if self.state is None:
            return self
        numbers = self.size_numbers[self.state]
        return replace(self, times=self.times[:, self.state], size_numbers=numbers, state=None)

    def taken(self, chains: Indices) -> _Progress:
        """The chains with these numbers."""
        states, state = chains, None
        if self.state is not None:
            states, state = np.unique(self.state[chains], return_inverse=True)
        numbers = self.size_numbers[states]
        times, sums = self.times.take(states, axis=1), self.sums.take(chains, axis=1)
        return _Progress(self.start, times, sums, numbers, state)

    def at_sizes(self, num_sizes: int) -> _Progress:
        """The same chains after a step, in which the sizes of several patterns may have been
        numbered one after the other."""
        return replace(self, size_numbers=self.size_numbers % num_sizes)

    def of_chains(self, amount: Any) -> Any:
        """An amount with one number per program size, as one number per chain."""
        numbers = self.size_numbers
        if self.state is not None:
            numbers = numbers[self.state]
        return taken(amount, numbers)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A `BlockChain` that is asked for: its steps, how many of them are done, and which chains of a
    `_Progress` it describes."""

    number: int
    steps: Sequence[Step]
    done: int
    chains: Indices

    @property
    def to_come(self) -> int:
        """How many steps are to come."""
        return len(self.steps) - self.done

    @property
    def next(self) -> Step:
        """The next step."""
        return self.steps[self.done]

    def of(self, chains: Indices) -> _Asked:
        """The same for chains with other numbers."""
        return _Asked(self.number, self.steps, self.done, chains)


@dataclass(frozen=True, slots=True)
class _Begun:
    """Chains after some of their passes, and what is asked of them; all are asked for."""

    progress: _Progress
    asked: Sequence[_Asked]


_Next = tuple[Pattern, bool, Start]
"""What chains that go on together have in common: the next pattern, whether it comes once, and what
the times of their states are times of."""


class _Waiting:
    """Chains that wait to go on, with those with which they can."""

    def __init__(self) -> None:
        self._begun: dict[_Next, list[_Begun]] = {}
        self._order: list[tuple[int, int, _Next]] = []
        self._numbers = count()

    def add(self, following: _Next, begun: _Begun) -> None:
        """Adds chains with equal next steps."""
        self._begun.setdefault(following, []).append(begun)
        to_come = max(each.to_come for each in begun.asked)
        heapq.heappush(self._order, (-to_come, next(self._numbers), following))

    def take(self) -> tuple[_Next, list[_Begun]] | None:
        """Chains that go on together, of which one has most steps to come, so that others join
        them; None if no chain is left."""
        while self._order:
            following = heapq.heappop(self._order)[-1]
            if following in self._begun:
                return following, self._begun.pop(following)
        return None


class ManyChainScheduler:
    """Array version of `ChainScheduler`: schedules chains of passes whose seconds have one number
    per program size."""

    def __init__(self, host_bound: ManyBound, num_sizes: int) -> None:
        """`host_bound`: see `ChainScheduler`."""
        self._bound = host_bound
        self._num_sizes = num_sizes

    def run_all(self, chains: Sequence[BlockChain]) -> list[ChainCost]:
        """The costs of chains, as arrays with one number per element of `size_numbers`. The seconds
        that compute waits for any stream are one entry, `ALL`."""
        costs: dict[int, ChainCost] = {}
        every = np.arange(self._num_sizes)
        by_exact: dict[frozenset[str] | None, list[_Asked]] = {}
        steps = steps_of(chains, self._num_sizes)
        for number, (chain, own) in enumerate(zip(chains, steps, strict=True)):
            numbers = every if chain.size_numbers is None else chain.size_numbers
            by_exact.setdefault(chain.exact, []).append(_Asked(number, own, 0, numbers))
        for exact, asked in by_exact.items():
            times, sums = np.zeros((1, self._num_sizes)), np.zeros((4, self._num_sizes))
            self._run(_Progress(Start(), times, sums, every), asked, exact, costs)
        return [_bounded_by_links(each, costs[n]) for n, each in enumerate(chains)]

    def _run(
        self,
        begin: _Progress,
        chains: list[_Asked],
        exact: frozenset[str] | None,
        costs: dict[int, ChainCost],
    ) -> None:
        """Schedules chains step by step; puts their costs into `costs`. Those whose next steps and
        whose states are alike go on together, whatever came before."""
        waiting = _Waiting()
        self._wait(begin, chains, waiting, costs)
        while together := waiting.take():
            (pattern, is_single, start), members = together
            before, asked = _side_by_side(start, members)
            if is_single:
                after = _after(before, pattern, exact, self._bound)
            else:
                counts = np.concatenate([cast("Floats", each.next.counts) for each in asked])
                numbers = np.concatenate([each.chains for each in asked])
                copies = _Copies(before.apart(), pattern, exact, self._bound)
                after, asked = copies.after(counts, numbers), _renumbered(asked)
            done = [_Asked(each.number, each.steps, each.done + 1, each.chains) for each in asked]
            self._wait(after.at_sizes(self._num_sizes), done, waiting, costs)

    def _wait(
        self,
        progress: _Progress,
        asked: Sequence[_Asked],
        waiting: _Waiting,
        costs: dict[int, ChainCost],
    ) -> None:
        """Puts the costs of chains that have ended into `costs`, and the others with those that
        they can go on with."""
        alike: dict[tuple[Pattern, int, bool], list[_Asked]] = {}
        for each in asked:
            if each.to_come:
                step = each.next
                key = step.pattern, step.first, step.counts is None
                alike.setdefault(key, []).append(each)
            else:
                costs[each.number] = self._cost(progress.taken(each.chains))
        for (pattern, _, is_single), members in alike.items():
            following = pattern, is_single, progress.start
            waiting.add(following, _without_others(progress, members))

    def _cost(self, progress: _Progress) -> ChainCost:
        sums, count = progress.sums, len(progress.start.streams)
        tail = np.maximum(progress.times[:count].max(axis=0, initial=0.0), 0.0)
        tail = tail if progress.state is None else tail[progress.state]
        seconds: Any = self._bound(sums[STREAMS] + tail, sums[LAUNCHES])
        arrays = [seconds, sums[EXPOSED] + tail, sums[STREAMS] + tail]
        seconds, exposed, streaming = (array.view(Many) for array in arrays)
        launches, settled = (sums[row].view(Many) for row in (LAUNCHES, SETTLED))
        cost = PassCost(seconds, seconds - exposed, ((ALL, exposed),))
        return ChainCost(cost, streaming, launches, settled)


def _bounded_by_links(chain: BlockChain, cost: ChainCost) -> ChainCost:
    """The cost of a chain that lasts no less than its `link_seconds`."""
    late = cast("Any", chain.link_seconds - cost.cost.seconds)
    if not is_positive(late):
        return cost
    return replace(cost, cost=cost.cost.longer(np.maximum(late, 0.0), ALL))


def _side_by_side(start: Start, begun: Sequence[_Begun]) -> tuple[_Progress, Sequence[_Asked]]:
    """Chains whose states are alike as one, with the places of their program sizes among those of
    their next pattern as sizes; chains and states are numbered one after the other."""
    if len(begun) == 1 and not begun[0].asked[0].next.first:
        return begun[0].progress, begun[0].asked
    every = [each.progress for each in begun]
    num_states = [each.times.shape[1] for each in every]
    num_chains = [each.sums.shape[1] for each in every]
    numbers = [each.asked[0].next.first + each.progress.size_numbers for each in begun]
    joined = _Progress(
        start,
        np.concatenate([each.times for each in every], axis=1),
        np.concatenate([each.sums for each in every], axis=1),
        np.concatenate(numbers),
    )
    if any(each.state is not None for each in every):
        states = [
            first + _numbers(each.state, count)
            for each, first, count in zip(every, _starts(num_states), num_chains, strict=True)
        ]
        joined = replace(joined, state=np.concatenate(states))
    asked = [
        each.of(first + each.chains)
        for own, first in zip(begun, _starts(num_chains), strict=True)
        for each in own.asked
    ]
    return joined, asked


def _numbers(given: Indices | None, count: int) -> Indices:
    """The numbers that are given, or `count` in order."""
    return np.arange(count, dtype=np.int64) if given is None else given


def _starts(counts: Sequence[int]) -> list[int]:
    """Where each of several groups begins that are numbered one after the other."""
    return [0, *accumulate(counts)][:-1]


def _without_others(progress: _Progress, asked: Sequence[_Asked]) -> _Begun:
    """The progress of only those chains that are asked for, with their new numbers."""
    wanted = np.zeros(progress.sums.shape[1], np.bool_)
    for each in asked:
        wanted[each.chains] = True
    if wanted.all():
        return _Begun(progress, asked)
    number = np.cumsum(wanted) - 1
    renumbered = [each.of(number[each.chains]) for each in asked]
    return _Begun(progress.taken(np.flatnonzero(wanted)), renumbered)


def _renumbered(asked: Sequence[_Asked]) -> list[_Asked]:
    """The same, with chains numbered in the order in which they are asked for."""
    ends = np.cumsum([len(each.chains) for each in asked])
    return [
        each.of(np.arange(end - len(each.chains), end))
        for each, end in zip(asked, ends.tolist(), strict=True)
    ]


class _Copies:
    """Chains after 0, 1, 2, … copies of a pattern, as far as they are asked for and their states
    still change."""

    def __init__(
        self, before: _Progress, pattern: Pattern, exact: frozenset[str] | None, bound: ManyBound
    ) -> None:
        self._pattern, self._exact, self._bound = pattern, exact, bound
        first = _after(before, pattern, exact, bound)
        width = first.sums.shape[1]
        copied = (first.times.copy(), first.sums.copy(), first.rests.copy())
        self._now = _Progress(
            first.start, copied[0], copied[1], first.size_numbers, None, copied[2]
        )
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

    def after(self, counts: Floats, chains: Indices) -> _Progress:
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
        return _Progress(start, times, sums, numbers, state)

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
        before = _Progress(start, now.times[:, going], now.sums[:, going], numbers)
        after = _after(before, self._pattern, self._exact, self._bound)
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

    def _watch(self, before: _Progress, after: _Progress, going: Indices, copies: int) -> None:
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
        last = _earliest_start(ends, seconds) + whole
        return np.where(whole > 0, np.maximum(queued, last), done)


def _after(
    before: _Progress, pattern: Pattern, exact: frozenset[str] | None, bound: ManyBound
) -> _Progress:
    """Chains after one copy of a pattern. `exact`: see `exact_streams`."""
    start, times, sums = before.start, before.times, before.sums.copy()
    ends: list[Floats] = []
    lengths: list[tuple[Any, Any]] = []
    for each, launch_seconds in zip(pattern.passes, pattern.launch_seconds, strict=True):
        start, times, took, waited = _after_pass(start, times, each, before.size_numbers, exact)
        if before.state is not None:
            took, waited = took[before.state], waited[before.state]
        launch = before.of_chains(launch_seconds)
        sums[STREAMS] += took
        sums[LAUNCHES] += launch
        sums[EXPOSED] += waited
        lengths.append((took, launch))
        if pattern.settles:
            ends.append(np.asarray(bound(*sums[[STREAMS, LAUNCHES]])))
    if pattern.settles:
        seconds = [before.of_chains(each) for each in pattern.settling_seconds]
        whole = sum(seconds)
        done = np.maximum(sums[SETTLED], _earliest_start(ends, seconds)) + whole
        sums[SETTLED] = np.where(whole > 0, done, sums[SETTLED])
    rests = np.zeros((len(lengths), 2, sums.shape[1]))
    for number in range(len(lengths) - 1, 0, -1):
        rests[number - 1] = rests[number]
        rests[number - 1, 0] += lengths[number][0]
        rests[number - 1, 1] += lengths[number][1]
    return _Progress(start, times, sums, before.size_numbers, before.state, rests)


def _drifting_times(pattern: Pattern, start: Start) -> tuple[Flags, Flags]:
    """Two flags per time of a state: whether nothing in the pattern waits for it, and whether, in
    addition, it depends on no other time."""
    streams = len(start.streams)
    alone = np.zeros(streams + 1 + len(start.border), np.bool_)
    alone[: streams + 1] = True
    unused = alone.copy()
    for each in pattern.passes:
        moments = each.moments(start)
        named = {number for made in moments.border for _, number in made}
        named.update(begin for begin, _ in moments.waits)
        named.update(number for _, awaited in moments.waits for _, number in awaited)
        for time in range(streams + 1):
            number = moments.streams[start.streams[time]] if time < streams else -1
            others = (delays for at, delays in enumerate(moments.delays) if at != number)
            alone[time] &= number not in named and all(time not in delays for delays in others)
            unused[time] &= number < 0 or set(moments.delays[number]) == {time}
    return alone, alone & unused


def _earliest_start(ends: Sequence[Floats], seconds: Sequence[Any]) -> Floats:
    """The earliest time at which the gradient stream can start to settle the blocks of a pattern
    without a gap, if it settles each block after its pass has ended."""
    start: Floats = np.full(1, -np.inf)
    before: Any = 0.0
    for end, own in zip(ends, seconds, strict=True):
        start = np.where(np.asarray(own) > 0, np.maximum(start, end - before), start)
        before = before + own
    return start


def _after_pass(
    start: Start,
    times: Floats,
    each: Pass,
    size_numbers: Indices,
    exact: frozenset[str] | None,
) -> tuple[Start, Floats, Floats, Floats]:
    """The states after a pass (what their times are, and the times), the seconds until the pass is
    computed, and those in which compute waits. `exact`: see `exact_streams`."""
    new = len(start.of_first(len(each.inputs)).border) - len(start.border)
    if new:
        start = start.of_first(len(each.inputs))
        times = np.concatenate([times, np.zeros((new, times.shape[1]))])
    moments = each.moments(start)
    values = moments.at_many(times, size_numbers)
    took = values[moments.streams[COMPUTE]]
    whys, border = _border(moments, values, took)
    floor: Any = LONG_AGO
    if exact is None:
        handed = [number for number, why in enumerate(whys) if why]
        floor = np.minimum(border[handed].min(axis=0, initial=0.0), 0.0)
    streams = {name: number for name, number in moments.streams.items() if name != COMPUTE}
    free = np.maximum(values[list(streams.values())] - took, floor)
    idle = np.maximum(times[len(start.streams)] - took, floor)
    if exact is not None and exact <= streams.keys():
        idle = np.zeros_like(idle)  # there is no other stream
    after = np.concatenate([free, idle[None], border])
    waited = moments.waited_many(values)
    return Start(tuple(streams), whys, each.handed_times), after, took, waited


def _border(moments: Moments, values: Floats, took: Floats) -> tuple[tuple[str, ...], Floats]:
    """The streams that make the values for the next block, and when, relative to compute."""
    if all(len(made) < 2 for made in moments.border):
        plain = [made[0] if made else ("", moments.streams[COMPUTE]) for made in moments.border]
        return tuple(why for why, _ in plain), values[[number for _, number in plain]] - took
    latest = [
        latest_of(made, cast("Any", values)) if made else (took, "") for made in moments.border
    ]
    return tuple(why for _, why in latest), np.stack([at for at, _ in latest]) - took


__all__ = ["ManyChainScheduler"]
