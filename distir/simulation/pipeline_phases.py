"""Schedules in which ranks do one thing with all microbatches, then the next: in closed form.

In a phase a rank does the same for microbatch 0, 1, 2, …, each of which takes as long. If what
arrives for microbatch `j` arrives at the maximum of some functions `first + slope · j`, the rank
starts it at the maximum of such functions, too: slopes that are less than what an action takes are
raised to that (microbatch 0 holds the later ones up), and there is one function more, that of a
rank which never waits. The same is true of a link. So a phase costs as much with ten thousand
microbatches as with ten.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from distir.schedules import COMPLETING, COST_KINDS, CompiledSchedule
from distir.schedules.waves import Ends, channels_of

Floats: TypeAlias = NDArray[np.float64]

BLOCK_ROWS = 2048
"""Plans that are run together: what is computed for them should stay in the cache."""

ROUNDING = 2.0**-50
"""Of a time: what rounding may make of equal ones."""


@dataclass(frozen=True, slots=True)
class Phase:
    """What a rank does with all microbatches. `source`: what sends it its messages; `link`: on
    which it sends, or -1; `first`: the rank's first phase; `last`: the place, among the stages of
    all ranks, of the one whose gradients are complete in it, or -1."""

    rank: int
    cost: int
    source: Ends | None
    link: int
    first: bool
    last: int


@dataclass(frozen=True, slots=True, eq=False)
class Phases:
    """A schedule as phases, each after those that it needs."""

    ranks: int
    links: int
    stages: int
    """Stages of all ranks, copies included."""
    phases: tuple[Phase, ...]


def find_phases(compiled: CompiledSchedule) -> Phases | None:
    """The phases of a schedule; None if it is not made of phases, or they need parts of each
    other."""
    ranks = compiled.runs
    times = {n for runs in ranks for _, n in runs}
    costs = [[cost for word, _ in runs for cost in word] for runs in ranks]
    single = all(len(word) == 1 for runs in ranks for word, _ in runs)
    if not single or len(times) > 1 or any(len({*own}) < len(own) for own in costs):
        return None
    channels = channels_of(compiled)
    if channels is None:
        return None
    sources = {each.reader: each.sender for each in channels}
    links = {each.sender: each.link for each in channels}
    place = {
        (rank, stage): sum(map(len, compiled.stages_of_ranks[:rank])) + i
        for rank, own in enumerate(compiled.stages_of_ranks)
        for i, stage in enumerate(own)
    }
    ends = {
        (rank, stage): max((i for i, c in enumerate(own) if _completes(c, stage)), default=-1)
        for rank, own in enumerate(costs)
        for stage in compiled.stages_of_ranks[rank]
    }
    found: list[Phase] = []
    done: set[Ends | None] = {None}
    heads = [0 for _ in costs]
    moved = True
    while moved:
        moved = False
        for rank, own in enumerate(costs):
            while heads[rank] < len(own) and sources.get((rank, own[heads[rank]])) in done:
                at, cost = heads[rank], own[heads[rank]]
                stage = cost // COST_KINDS
                last = place[rank, stage] if ends[rank, stage] == at else -1
                source, link = sources.get((rank, cost)), links.get((rank, cost), -1)
                found.append(Phase(rank, cost, source, link, at == 0, last))
                done.add((rank, cost))
                heads[rank] += 1
                moved = True
    if any(head < len(own) for head, own in zip(heads, costs, strict=True)):
        return None
    count = 1 + max(links.values(), default=-1)
    return Phases(len(costs), count, len(place), tuple(found))


def _completes(cost: int, stage: int) -> bool:
    return cost // COST_KINDS == stage and cost % COST_KINDS in COMPLETING


def run_phases(
    phases: Phases, counts: Floats, seconds: Floats, transfers: Floats, goes_on: bool
) -> tuple[Floats, Floats]:
    """When ranks are done, what they waited for transfers and for stages, when they begin, and for
    how much of this a message was on its way (5, ranks, rows); and starts of the actions in which
    gradients are complete (stages of all ranks, rows). `counts` are microbatches (rows,)."""
    rows = seconds.shape[1]
    times = np.zeros((5, phases.ranks, rows))
    last = np.zeros((phases.stages, rows))
    pieces = -(-rows // BLOCK_ROWS)
    for a, b in pairwise(rows * i // max(1, pieces) for i in range(pieces + 1)):
        _run_block(
            phases,
            counts[a:b],
            seconds[:, a:b],
            transfers[:, a:b],
            goes_on,
            times[:, :, a:b],
            last[:, a:b],
        )
    return times, last


def _run_block(
    phases: Phases,
    count: Floats,
    seconds: Floats,
    transfers: Floats,
    goes_on: bool,
    times: Floats,
    last: Floats,
) -> None:
    free, for_transfer, for_stage, begin, moving = times
    links = np.zeros((phases.links, seconds.shape[1]))
    left: dict[Ends, _Lines] = {}
    arrived: dict[Ends, _Lines] = {}
    for each in phases.phases:
        rank, took = each.rank, seconds[each.cost]
        idle = free[rank].copy()
        stays = took
        if each.link >= 0 and not goes_on:
            stays = took + transfers[each.cost]
        start = _Lines.of(idle, idle + stays * (count - 1))
        if each.source is not None:
            start = arrived.pop(each.source).paced(stays, count).with_(start)
            theirs = left.pop(each.source)
            if each.first:
                moving[rank] = start.first() - theirs.first()
            _add_waits(for_transfer[rank], for_stage[rank], idle, stays, start, theirs, count)
        if each.first:
            begin[rank] = start.first()
        free[rank] = start.last() + stays
        if each.last >= 0:
            last[each.last] = start.last()
        if each.link >= 0:
            message = transfers[each.cost]
            end = start.later(took)
            left[rank, each.cost] = end
            there = end.later(message)
            if goes_on:
                busy = links[each.link] + message
                own = _Lines.of(busy, busy + message * (count - 1))
                there = there.paced(message, count).with_(own)
            else:
                for_transfer[rank] += message * count
            links[each.link] = there.last()
            arrived[rank, each.cost] = there


def _add_waits(
    for_transfer: Floats,
    for_stage: Floats,
    idle: Floats,
    stays: Floats,
    start: _Lines,
    left: _Lines,
    count: Floats,
) -> None:
    """What a rank waits for messages: until they leave for the other stage, then for the transfer.
    It is free for microbatch 0 when `idle`, for others `stays` after it started the one before."""
    gone = np.maximum(left.first() - idle, 0.0)
    second, last = idle + stays, idle + stays * (count - 1)  # without any waiting
    before = start.without_last(count).later(stays).beyond(second, last)
    theirs = left.without_first(count).beyond(second, last)
    gone += theirs.with_(before).total(count - 1)
    gone -= before.total(count - 1)
    np.maximum(gone, 0.0, out=gone)
    waited = np.maximum(start.last() - idle - stays * (count - 1), gone)
    for_stage += gone
    for_transfer += waited - gone


@dataclass(frozen=True, slots=True)
class _Lines:
    """The maximum of functions that are straight over microbatches: their values for the first and
    the last one, each (functions, rows)."""

    firsts: Floats
    lasts: Floats

    @staticmethod
    def of(first: Floats, last: Floats) -> _Lines:
        return _Lines(first[None], last[None])

    def first(self) -> Floats:
        """Of the first microbatch."""
        return self.firsts.max(axis=0)

    def last(self) -> Floats:
        """Of the last one."""
        return self.lasts.max(axis=0)

    def later(self, seconds: Floats) -> _Lines:
        """All of it so much later."""
        return _Lines(self.firsts + seconds, self.lasts + seconds)

    def beyond(self, first: Floats, last: Floats) -> _Lines:
        """How much later than another function."""
        return _Lines(self.firsts - first, self.lasts - last)

    def paced(self, seconds: Floats, count: Floats) -> _Lines:
        """Each at least so many seconds after the one before."""
        return _Lines(self.firsts, np.maximum(self.lasts, self.firsts + seconds * (count - 1)))

    def without_first(self, count: Floats) -> _Lines:
        """From microbatch 1 on."""
        return _Lines(self.firsts + self._step(count), self.lasts)

    def without_last(self, count: Floats) -> _Lines:
        """To the last microbatch but one."""
        return _Lines(self.firsts, self.lasts - self._step(count))

    def _step(self, count: Floats) -> Floats:
        """From each microbatch to the next; 0 where there is only one."""
        return (self.lasts - self.firsts) / np.maximum(count - 1, 1)

    def with_(self, other: _Lines) -> _Lines:
        """The maximum of both."""
        kept = [*zip(other.firsts, other.lasts, strict=True)]
        for first, last in zip(self.firsts, self.lasts, strict=True):
            _add(kept, first, last)
        return _Lines(np.stack([a for a, _ in kept]), np.stack([b for _, b in kept]))

    def total(self, count: Floats) -> Floats:
        """Added up over so many microbatches, or none. Between the places where two functions
        cross, the largest one is the same."""
        if len(self.firsts) == 1:
            return (self.firsts[0] + self.lasts[0]) * (count / 2)
        slopes = self._step(count)
        edges = [np.zeros_like(count), count]
        for a, b in combinations(range(len(slopes)), 2):
            with np.errstate(divide="ignore", invalid="ignore"):
                crossing = (self.firsts[b] - self.firsts[a]) / (slopes[a] - slopes[b])
            inside = (crossing > 0) & (crossing < count)
            edges.append(np.where(inside, np.ceil(crossing), 0.0))
        found = np.zeros_like(self.firsts[0])
        for begin, end in pairwise(np.sort(np.stack(edges), axis=0)):
            ends = (self.firsts + slopes * at for at in (begin, end - 1))
            first, last = (each.max(axis=0) for each in ends)
            found += (first + last) * ((end - begin) / 2)
        return found


def _add(kept: list[tuple[Floats, Floats]], first: Floats, last: Floats) -> None:
    """Of two functions that do not cross, in any row, by more than rounding, their maximum is
    kept."""
    for i, (a, b) in enumerate(kept):
        sooner, later, exact = first - a, last - b, ROUNDING * np.abs(b)
        above = (sooner >= -exact) & (later >= -exact)
        below = (sooner <= exact) & (later <= exact)
        if (above | below).all():
            del kept[i]
            _add(kept, np.maximum(first, a), np.maximum(last, b))
            return
    kept.append((first, last))


__all__ = ["Phase", "Phases", "find_phases", "run_phases"]
