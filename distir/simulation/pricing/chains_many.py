"""Array version of `chains.py`: chains whose passes have equal instructions with other seconds.

The state of the streams after some blocks is a table with a row per time and a column per chain.
Chains go on together wherever their next passes are the same and their states are times of the
same streams and values, whatever came before. A repeated pattern is scheduled copy by copy as far
as states still change, and the tables are kept, so that chains with any number of copies are looked
up in them.

tests/simulation/test_chains.py holds the two to each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, cast

import numpy as np

from distir.arrays import Flags, Floats, Indices
from distir.cost.amounts import Many, is_positive, taken
from distir.simulation.pricing.chains import SAME_STATE, BlockChain, ChainCost, Pass, PassCost
from distir.simulation.pricing.instructions import COMPUTE
from distir.simulation.pricing.timeline import LONG_AGO, SEVERAL, Moments, Start, latest_of

ManyBound = Callable[[Floats, Floats], Any]
"""Seconds of stretches of program, from the seconds of their streams and of their launches."""

ALL = "all"
"""Stands for all streams other than compute."""

FEW_COPIES = 3
"""A pattern with at most this many copies, equally many in all chains, is scheduled copy by copy
without testing whether states still change."""

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
    size_numbers: Indices | None = None
    """Of each state the number of its program size; None: a state per size, in order."""
    state: Indices | None = None
    """Of each chain the number of its state; None: a state per chain, in order."""
    rests: Floats = field(default_factory=lambda: np.empty((0, 2, 0)))
    """Shape (passes, 2, chains): per pass of the last pattern, the seconds of streams and of
    launches after it."""

    def apart(self) -> _Progress:
        """The same chains, with a state for every chain."""
        if self.state is None:
            return self
        numbers = self.state if self.size_numbers is None else self.size_numbers[self.state]
        return replace(self, times=self.times[:, self.state], size_numbers=numbers, state=None)

    def taken(self, chains: Indices) -> _Progress:
        """The chains with these numbers."""
        states, state = chains, None
        if self.state is not None:
            states, state = np.unique(self.state[chains], return_inverse=True)
        numbers = states if self.size_numbers is None else self.size_numbers[states]
        times, sums = self.times.take(states, axis=1), self.sums.take(chains, axis=1)
        return _Progress(self.start, times, sums, numbers, state)

    def of_chains(self, amount: Any) -> Any:
        """An amount with one number per program size, as one number per chain."""
        numbers = self.size_numbers
        if numbers is not None and self.state is not None:
            numbers = numbers[self.state]
        return taken(amount, numbers)


@dataclass(frozen=True, slots=True)
class _Pattern:
    """A pattern of passes, with the seconds on the gradient stream after each pass."""

    passes: tuple[Pass, ...]
    settling_seconds: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class _Asked:
    """A `BlockChain` that is asked for: the patterns that it still has to pass, which come once
    (None), or with a number of copies per chain; and which chains of a `_Progress` it describes."""

    number: int
    patterns: Sequence[tuple[_Pattern, Floats | None]]
    chains: Indices


_Begun = tuple[_Progress, list[_Asked]]
"""Chains after some of their passes, and what is asked of them; all are asked for."""

_Next = tuple[_Pattern, bool, Start]
"""What chains that go on together have in common: the next pattern, whether it comes once, and what
the times of their states are times of."""


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
        for number, chain in enumerate(chains):
            numbers = every if chain.size_numbers is None else chain.size_numbers
            asked = _Asked(number, _patterns(chain, len(numbers)), numbers)
            by_exact.setdefault(chain.exact, []).append(asked)
        for exact, asked in by_exact.items():
            times, sums = np.zeros((1, self._num_sizes)), np.zeros((4, self._num_sizes))
            self._run(_Progress(Start(), times, sums), asked, exact, costs)
        return [_bounded_by_links(each, costs[n]) for n, each in enumerate(chains)]

    def _run(
        self,
        begin: _Progress,
        chains: list[_Asked],
        exact: frozenset[str] | None,
        costs: dict[int, ChainCost],
    ) -> None:
        """Schedules chains pattern by pattern; puts their costs into `costs`. Those whose next
        pattern and whose states are alike go on together, whatever came before: those with most
        patterns to come go first, so that others join them."""
        waiting: dict[_Next, list[_Begun]] = {}
        self._wait(begin, chains, waiting, costs)
        while waiting:
            pattern, is_single, start = following = max(
                waiting, key=lambda each: _patterns_to_come(waiting[each])
            )
            before, members = _side_by_side(start, waiting.pop(following))
            rest = [replace(each, patterns=each.patterns[1:]) for each in members]
            if is_single:
                after = _after(before, pattern, exact, self._bound)
            else:
                counts = [cast("Floats", each.patterns[0][1]) for each in members]
                numbers = np.concatenate([each.chains for each in members])
                copies = _Copies(before.apart(), pattern, exact, self._bound)
                after, rest = copies.after(np.concatenate(counts), numbers), _renumbered(rest)
            self._wait(after, rest, waiting, costs)

    def _wait(
        self,
        progress: _Progress,
        asked: Sequence[_Asked],
        waiting: dict[_Next, list[_Begun]],
        costs: dict[int, ChainCost],
    ) -> None:
        """Puts the costs of chains that have ended into `costs`, and the others with those that
        they can go on with."""
        alike: dict[_Next, list[_Asked]] = {}
        for each in asked:
            if each.patterns:
                pattern, counts = each.patterns[0]
                alike.setdefault((pattern, counts is None, progress.start), []).append(each)
            else:
                costs[each.number] = self._cost(progress.taken(each.chains))
        for following, members in alike.items():
            waiting.setdefault(following, []).append(_without_others(progress, members))

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


def _patterns(chain: BlockChain, num_chains: int) -> list[tuple[_Pattern, Floats | None]]:
    """The patterns of a chain. Those with few copies are split into single passes, so that chains
    can share the first of them."""
    settling = chain.settling_seconds or [[0.0] * len(pattern) for pattern, _ in chain.passes]
    patterns: list[tuple[_Pattern, Floats | None]] = []
    for (passes, count), seconds in zip(chain.passes, settling, strict=True):
        if isinstance(count, np.ndarray) or count > FEW_COPIES:
            counts = np.broadcast_to(np.asarray(count, np.float64), num_chains)
            patterns.append((_Pattern(tuple(passes), tuple(seconds)), counts))
            continue
        blocks = zip(passes, seconds, strict=True)
        patterns += [(_Pattern((each,), (own,)), None) for each, own in blocks] * count
    return patterns


def _patterns_to_come(begun: Sequence[_Begun]) -> int:
    """How many patterns the chain that has most still has to pass."""
    return max(len(each.patterns) for _, asked in begun for each in asked)


def _side_by_side(start: Start, begun: Sequence[_Begun]) -> _Begun:
    """Chains whose states are alike as one; chains and states are numbered one after the other."""
    if len(begun) == 1:
        return begun[0]
    every = [progress for progress, _ in begun]
    num_states = [each.times.shape[1] for each in every]
    num_chains = [each.sums.shape[1] for each in every]
    numbers = [
        _numbers(each.size_numbers, count) for each, count in zip(every, num_states, strict=True)
    ]
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
        replace(each, chains=first + each.chains)
        for (_, own), first in zip(begun, _starts(num_chains), strict=True)
        for each in own
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
        return progress, list(asked)
    number = np.cumsum(wanted) - 1
    renumbered = [replace(each, chains=number[each.chains]) for each in asked]
    return progress.taken(np.flatnonzero(wanted)), renumbered


def _renumbered(asked: Sequence[_Asked]) -> list[_Asked]:
    """The same, with chains numbered in the order in which they are asked for."""
    ends = np.cumsum([len(each.chains) for each in asked])
    return [
        replace(each, chains=np.arange(end - len(each.chains), end))
        for each, end in zip(asked, ends.tolist(), strict=True)
    ]


class _Copies:
    """Chains after 0, 1, 2, … copies of a pattern, as far as they are asked for and their states
    still change."""

    def __init__(
        self, before: _Progress, pattern: _Pattern, exact: frozenset[str] | None, bound: ManyBound
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
        numbers = members if now.size_numbers is None else now.size_numbers[members]
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
        numbers = going if now.size_numbers is None else now.size_numbers[going]
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
    before: _Progress, pattern: _Pattern, exact: frozenset[str] | None, bound: ManyBound
) -> _Progress:
    """Chains after one copy of a pattern. `exact`: see `exact_streams`."""
    start, times, sums = before.start, before.times, before.sums.copy()
    ends: list[Floats] = []
    lengths: list[tuple[Any, Any]] = []
    settles = any(map(is_positive, pattern.settling_seconds))
    for each in pattern.passes:
        start, times, took, waited = _after_pass(start, times, each, before.size_numbers, exact)
        if before.state is not None:
            took, waited = took[before.state], waited[before.state]
        launch = before.of_chains(each.launch_seconds)
        sums[STREAMS] += took
        sums[LAUNCHES] += launch
        sums[EXPOSED] += waited
        lengths.append((took, launch))
        if settles:
            ends.append(np.asarray(bound(*sums[[STREAMS, LAUNCHES]])))
    if settles:
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


def _drifting_times(pattern: _Pattern, start: Start) -> tuple[Flags, Flags]:
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
    size_numbers: Indices | None,
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
