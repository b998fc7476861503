"""`Chains` of many plans at once, whose passes have the same instructions with other seconds.

What the streams of a device do after some blocks is a table: a row per time, a column per plan.
Chains that begin alike go on together as far as they are alike, each table having the plans that
are still wanted. A long run is gone through once, copy by copy, as far as states still change, and
the tables are kept: runs of any length, in any plan, are looked up in them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from distir.arrays import Floats, Indices
from distir.cost.amounts import Many, is_positive, taken
from distir.simulation.pricing.chains import TOLERANCE, BlockChain, ChainCost, Pass, PassCost
from distir.simulation.pricing.instructions import COMPUTE
from distir.simulation.pricing.timeline import LONG_AGO, SEVERAL, Moments, Start, latest_of

ManyBound = Callable[[Floats, Floats], Any]
"""Seconds of stretches of program, from what their streams and their launches take."""

FEW = 3
"""Copies of a word, as many in all plans, that are gone through without looking whether states
still change."""

STREAMS, LAUNCHES, EXPOSED, SETTLED = range(4)
"""Rows of sums: seconds of the streams and of the host so far, of the former those in which compute
waited; and until when the gradient stream is busy."""


@dataclass(frozen=True, slots=True)
class _Progress:
    """How far chains have come. Chains of many lengths at few points are often in equal states:
    `times` are those of the states that differ, of shape (times, states), at points `places` if
    not at all of them, and `state` says in which a chain is, if not each in its own. `sums` are of
    shape (sums, chains). `rests`: per block of the last word, seconds and launches after it."""

    start: Start
    times: Floats
    sums: Floats
    places: Indices | None = None
    state: Indices | None = None
    rests: Floats = field(default_factory=lambda: np.empty((0, 2, 0)))

    def apart(self) -> _Progress:
        """With a state for every chain."""
        if self.state is None:
            return self
        places = self.state if self.places is None else self.places[self.state]
        return replace(self, times=self.times[:, self.state], places=places, state=None)

    def some(self, chains: Indices) -> _Progress:
        """Some of the chains."""
        states, state = chains, None
        if self.state is not None:
            states, state = np.unique(self.state[chains], return_inverse=True)
        places = states if self.places is None else self.places[states]
        times, sums = self.times.take(states, axis=1), self.sums.take(chains, axis=1)
        return _Progress(self.start, times, sums, places, state)

    def of_chains(self, amount: Any) -> Any:
        """What is known by point, by chain."""
        places = self.places
        if places is not None and self.state is not None:
            places = places[self.state]
        return taken(amount, places)


@dataclass(frozen=True, slots=True)
class _Word:
    """What comes as a whole: its passes, and per pass seconds of the gradient stream after it."""

    passes: tuple[Pass, ...]
    services: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class _Ahead:
    """What is ahead of a chain in some plans: words that come once, or with numbers of copies by
    plan; and which chains of a `_Progress` these plans are."""

    number: int
    words: Sequence[tuple[_Word, Floats | None]]
    plans: Indices


class ColumnChains:
    """Chains of blocks of many plans: the points at which seconds of passes are known."""

    def __init__(self, host_bound: ManyBound, points: int) -> None:
        """`host_bound`: see `Chains`."""
        self._bound = host_bound
        self._points = points

    def run_all(self, chains: Sequence[BlockChain]) -> list[ChainCost]:
        """Schedules chains, at all points or at their `places`. What waits is added up under one
        name."""
        found: dict[int, ChainCost] = {}
        every = np.arange(self._points)
        by_exact: dict[frozenset[str] | None, list[_Ahead]] = {}
        for number, chain in enumerate(chains):
            plans = every if chain.places is None else chain.places
            ahead = _Ahead(number, _words(chain, len(plans)), plans)
            by_exact.setdefault(chain.exact, []).append(ahead)
        for exact, own in by_exact.items():
            times, sums = np.zeros((1, self._points)), np.zeros((4, self._points))
            self._run(_Progress(Start(), times, sums), own, exact, found)
        return [found[number] for number in range(len(chains))]

    def _run(
        self,
        begin: _Progress,
        chains: list[_Ahead],
        exact: frozenset[str] | None,
        found: dict[int, ChainCost],
    ) -> None:
        """Word by word, chains together that have begun with the same words."""
        left = [(begin, chains, 0)]
        while left:
            progress, ahead, done = left.pop()
            alike: dict[tuple[_Word, bool], list[_Ahead]] = {}
            for each in ahead:
                if done == len(each.words):
                    found[each.number] = self._cost(progress.some(each.plans))
                else:
                    word, counts = each.words[done]
                    alike.setdefault((word, counts is None), []).append(each)
            for (word, is_single), some in alike.items():
                own, some = _without_others(progress, some)
                if is_single:
                    left.append((_after(own, word, exact, self._bound), some, done + 1))
                    continue
                counts = np.concatenate([cast("Floats", each.words[done][1]) for each in some])
                plans = np.concatenate([each.plans for each in some])
                repeat = _Repeat(own.apart(), word, exact, self._bound)
                left.append((repeat.after(counts, plans), _numbered(some), done + 1))

    def _cost(self, progress: _Progress) -> ChainCost:
        sums, streams = progress.sums, len(progress.start.streams)
        tail = np.maximum(progress.times[:streams].max(axis=0, initial=0.0), 0.0)
        tail = tail if progress.state is None else tail[progress.state]
        seconds: Any = self._bound(sums[STREAMS] + tail, sums[LAUNCHES])
        found = [seconds, sums[EXPOSED] + tail, sums[SETTLED]]
        seconds, exposed, settled = (each.view(Many) for each in found)
        return ChainCost(PassCost(seconds, seconds - exposed, (("all", exposed),)), settled)


def _words(chain: BlockChain, plans: int) -> list[tuple[_Word, Floats | None]]:
    """Short runs are split into single blocks, so that chains share them even where one ends within
    a word."""
    services = chain.services or [[0.0] * len(word) for word, _ in chain.runs]
    found: list[tuple[_Word, Floats | None]] = []
    for (passes, count), own in zip(chain.runs, services, strict=True):
        if isinstance(count, np.ndarray) or count > FEW:
            counts = np.broadcast_to(np.asarray(count, np.float64), plans)
            found.append((_Word(tuple(passes), tuple(own)), counts))
            continue
        blocks = zip(passes, own, strict=True)
        found += [(_Word((each,), (service,)), None) for each, service in blocks] * count
    return found


def _without_others(
    progress: _Progress, chains: Sequence[_Ahead]
) -> tuple[_Progress, list[_Ahead]]:
    """Progress of the plans that these chains are of."""
    wanted = np.zeros(progress.sums.shape[1], np.bool_)
    for each in chains:
        wanted[each.plans] = True
    if wanted.all():
        return progress, list(chains)
    place = np.cumsum(wanted) - 1
    some = [replace(each, plans=place[each.plans]) for each in chains]
    return progress.some(np.flatnonzero(wanted)), some


def _numbered(chains: Sequence[_Ahead]) -> list[_Ahead]:
    """With plans that are numbered one after the other."""
    ends = np.cumsum([len(each.plans) for each in chains])
    return [
        replace(each, plans=np.arange(end - len(each.plans), end))
        for each, end in zip(chains, ends.tolist(), strict=True)
    ]


class _Repeat:
    """The same word again and again: where chains are after 0, 1, 2, … copies, as far as that is
    asked for and still changes."""

    def __init__(
        self, before: _Progress, word: _Word, exact: frozenset[str] | None, bound: ManyBound
    ) -> None:
        self._word, self._exact, self._bound = word, exact, bound
        first = _after(before, word, exact, bound)
        width = first.sums.shape[1]
        copied = (first.times.copy(), first.sums.copy(), first.rests.copy())
        self._now = _Progress(first.start, copied[0], copied[1], first.places, None, copied[2])
        """Where each chain is that may go on."""
        self._reached = np.ones(width, np.int64)
        """After how many copies."""
        self._steady = np.full(width, -1)
        """After how many copies the state changes no more, but by `_drift`; -1: that is not known
        yet."""
        self._starts = [first.start]
        """What is known where chains are, by copies, from the first."""
        self._alone, self._unused = _alone(word, first.start)
        self._change = np.full(first.times.shape, np.nan)
        """By how much times changed with the last copy, if none did but those that may drift."""
        self._drift = np.zeros(first.times.shape)
        if before.start == first.start:
            self._watch(before, first, np.arange(width, dtype=np.int64), 0)
        # Columns of what is kept, by copies and chains; the first ones are those of no copies.
        self._columns = [np.arange(width, dtype=np.int64), width + np.arange(width, dtype=np.int64)]
        self._sums, self._times = [before.sums, first.sums], [first.times]

    def after(self, counts: Floats, chains: Indices) -> _Progress:
        """The chains of these numbers after so many copies, at least one."""
        self._go_on(counts, chains)
        steady, now = self._steady[chains], self._now
        copies = np.where(steady < 0, counts, np.minimum(counts, steady)).astype(np.int64)
        more = counts - copies
        columns, sums = np.stack(self._columns), np.concatenate(self._sums, axis=1)
        here = sums[:, columns[copies, chains]]
        there = sums[:, columns[np.minimum(copies + 1, len(columns) - 1), chains]]
        found = here + more * (there - here)
        settled = self._settled(found, there[SETTLED], more, chains)
        found[SETTLED] = np.where(more > 0, settled, here[SETTLED])
        # A state that does not change any more is there after the first copy at the latest.
        copies, drift = np.maximum(copies, 1), self._drift[:, chains]
        column = columns[copies, chains] - len(self._steady)
        moved = np.where((drift != 0).any(axis=0), counts - copies, 0.0)
        codes = column * (1 + int(moved.max(initial=0.0))) + moved.astype(np.int64)
        _, which, state = np.unique(codes, return_index=True, return_inverse=True)
        times = np.concatenate(self._times, axis=1)[:, column[which]]
        times += moved[which] * drift[:, which]
        places = chains[which] if now.places is None else now.places[chains[which]]
        return _Progress(self._common_start(times, copies[which]), times, found, places, state)

    def _common_start(self, times: Floats, copies: Indices) -> Start:
        """What is known of states after such numbers of copies, whichever. Where after some of them
        a value is made and after others it is there already, `times` are changed: it is then made
        before any stream is free."""
        first, streams = self._starts[0], len(self._starts[0].streams)
        border: list[str] = []
        for number, whys in enumerate(zip(*(each.border for each in self._starts), strict=True)):
            if len(set(whys)) == 1:
                border.append(whys[0])
                continue
            border.append(SEVERAL)
            there = np.flatnonzero(np.array([not why for why in whys])[copies - 1])
            times[streams + 1 + number, there] = times[: streams + 1, there].min(axis=0)
        return replace(first, border=tuple(border))

    def _go_on(self, counts: Floats, chains: Indices) -> None:
        """Goes through copies, as many as chains have that are not steady before."""
        needed = np.zeros(len(self._steady), np.int64)
        np.maximum.at(needed, chains, counts.astype(np.int64))
        while len(going := np.flatnonzero((self._steady < 0) & (self._reached < needed))):
            copies = int(self._reached[going].min())
            self._step(going[self._reached[going] == copies], copies)

    def _step(self, going: Indices, copies: int) -> None:
        """One copy more of the chains of these numbers, which have gone through so many."""
        now = self._now
        places = going if now.places is None else now.places[going]
        start = self._starts[copies - 1]
        before = _Progress(start, now.times[:, going], now.sums[:, going], places)
        after = _after(before, self._word, self._exact, self._bound)
        self._starts.append(after.start)
        if after.start == start:
            self._watch(before, after, going, copies)
        else:
            self._alone, self._unused = _alone(self._word, after.start)
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
        """Takes down which chains are steady after so many copies, one before `after`.

        A stream for which nothing waits begins when it is free or when something is computed,
        whichever is later. If it falls behind by as much as with the copy before while all else
        stays the same, it did not wait, will not any more, and so falls behind by as much again.
        """
        change = after.times - before.times
        took = after.sums[STREAMS] - before.sums[STREAMS]
        slack = np.maximum(np.maximum(np.abs(before.times), np.abs(after.times)), took) * TOLERANCE
        same = np.abs(change) <= slack
        may = self._alone[:, None] & ((change > 0) | self._unused[:, None])
        as_before = np.abs(change - self._change[:, going]) <= slack
        steady = np.logical_and.reduce(same | (may & as_before), axis=0)
        drifts = np.logical_and.reduce(same | may, axis=0)
        self._change[:, going] = np.where(drifts, change, np.nan)
        self._steady[going[steady]] = copies
        self._drift[:, going[steady]] = np.where(same, 0.0, change)[:, steady]

    def _settled(self, found: Floats, done: Floats, more: Floats, chains: Indices) -> Floats:
        """Until when the gradient stream is busy after `more` copies in the same state, and until
        `done` after the first of these: what is decisive is the first or the last of them, as those
        between are computed no later than a line from one to the other says."""
        now = self._now
        services = [taken(now.of_chains(each), chains) for each in self._word.services]
        whole = sum(services)
        if not is_positive(whole):
            return done
        ends = [
            self._bound(found[STREAMS] - rest, found[LAUNCHES] - launch)
            for rest, launch in now.rests[:, :, chains]
        ]
        queued = done + (more - 1) * whole
        last = _latest(ends, services) + whole
        return np.where(whole > 0, np.maximum(queued, last), done)


def _after(
    before: _Progress, word: _Word, exact: frozenset[str] | None, bound: ManyBound
) -> _Progress:
    """After a word."""
    start, times, sums = before.start, before.times, before.sums.copy()
    ends: list[Floats] = []
    lengths: list[tuple[Any, Any]] = []
    settles = any(map(is_positive, word.services))
    for each in word.passes:
        start, times, took, waited = _passed(start, times, each, before.places, exact)
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
        services = [before.of_chains(each) for each in word.services]
        ready = _latest(ends, services)
        whole = sum(services)
        done = np.maximum(sums[SETTLED], ready) + whole
        sums[SETTLED] = np.where(whole > 0, done, sums[SETTLED])
    rests = np.zeros((len(lengths), 2, sums.shape[1]))
    for place in range(len(lengths) - 1, 0, -1):
        rests[place - 1] = rests[place]
        rests[place - 1, 0] += lengths[place][0]
        rests[place - 1, 1] += lengths[place][1]
    return _Progress(start, times, sums, before.places, before.state, rests)


def _alone(word: _Word, start: Start) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which of the times of a state nothing in a word waits for, and which of these do not even
    wait for anything."""
    streams = len(start.streams)
    alone = np.zeros(streams + 1 + len(start.border), np.bool_)
    alone[: streams + 1] = True
    unused = alone.copy()
    for each in word.passes:
        form = each.moments(start)
        named = {number for made in form.border for _, number in made}
        named.update(begin for begin, _ in form.waits)
        named.update(number for _, awaited in form.waits for _, number in awaited)
        for place in range(streams + 1):
            number = form.streams[start.streams[place]] if place < streams else -1
            others = (own for at, own in enumerate(form.delays) if at != number)
            alone[place] &= number not in named and all(place not in own for own in others)
            unused[place] &= number < 0 or set(form.delays[number]) == {place}
    return alone, alone & unused


def _latest(ends: Sequence[Floats], services: Sequence[Any]) -> Floats:
    """When a stream could begin with all services of a word at once, if each is not to begin before
    its block has ended."""
    found: Floats = np.full(1, -np.inf)
    before: Any = 0.0
    for end, service in zip(ends, services, strict=True):
        later = np.maximum(found, end - before)
        found = np.where(np.asarray(service) > 0, later, found)
        before = before + service
    return found


def _passed(
    start: Start, times: Floats, each: Pass, places: Indices | None, exact: frozenset[str] | None
) -> tuple[Start, Floats, Floats, Floats]:
    """States after a pass, seconds until it is computed, and those that compute waited. `exact`:
    see `exact_streams`."""
    new = len(start.of_first(len(each.inputs)).border) - len(start.border)
    if new:
        start = start.of_first(len(each.inputs))
        times = np.concatenate([times, np.zeros((new, times.shape[1]))])
    form = each.moments(start)
    found = form.many(times, places)
    took = found[form.streams[COMPUTE]]
    whys, border = _border(form, found, took)
    floor: Any = LONG_AGO
    if exact is None:
        handed = [number for number, why in enumerate(whys) if why]
        floor = np.minimum(border[handed].min(axis=0, initial=0.0), 0.0)
    streams = {name: number for name, number in form.streams.items() if name != COMPUTE}
    free = np.maximum(found[list(streams.values())] - took, floor)
    idle = np.maximum(times[len(start.streams)] - took, floor)
    if exact is not None and exact <= streams.keys():
        idle = np.zeros_like(idle)  # of no stream that there is
    after = np.concatenate([free, idle[None], border])
    waited = form.waited_in_many(found)
    return Start(tuple(streams), whys, each.handed_times), after, took, waited


def _border(form: Moments, found: Floats, took: Floats) -> tuple[tuple[str, ...], Floats]:
    """What made the values that are handed on, and when, relative to compute."""
    if all(len(made) < 2 for made in form.border):
        plain = [made[0] if made else ("", form.streams[COMPUTE]) for made in form.border]
        return tuple(why for why, _ in plain), found[[number for _, number in plain]] - took
    latest = [latest_of(made, cast("Any", found)) if made else (took, "") for made in form.border]
    return tuple(why for _, why in latest), np.stack([at for at, _ in latest]) - took


__all__ = ["ColumnChains"]
