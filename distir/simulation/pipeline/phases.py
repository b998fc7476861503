"""A closed form for schedules in which every rank runs one cost kind for all microbatches, then the
next cost kind.

In a phase a rank runs equally long actions for the microbatches 0, 1, 2, …. If the message for
microbatch `j` arrives at the maximum of some functions `first + slope · j`, then the rank starts
microbatch `j` at a maximum of such functions too. Slopes smaller than the seconds of an action are
raised to these seconds, since microbatch 0 holds the later ones up; and there is one function more,
that of a rank that never waits. The same holds for a link. So a phase takes as long to compute for
ten thousand microbatches as for ten.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations, pairwise

import numpy as np

from distir.arrays import Floats
from distir.schedules import COMPLETING, COST_KINDS, CompiledSchedule
from distir.schedules.compiled.waves import Passes, RankAction, channels_of

BLOCK_PLANS = 2048
"""The number of plans that run together, so that their arrays stay in the processor's cache."""

EQUAL_TIMES = 2.0**-50
"""Relative difference of times up to which they count as equal."""


@dataclass(frozen=True, slots=True)
class Phase:
    """The actions of one rank with one cost number, for all microbatches.

    `source` is the rank and the cost number from which their messages come, `link` the number of
    the link on which they send, or -1. `first` says whether this is the rank's first phase. `last`
    is the position, among the stages of all ranks, of the stage whose gradients are complete with
    this phase, or -1.
    """

    rank: int
    cost: int
    source: RankAction | None
    link: int
    first: bool
    last: int


@dataclass(frozen=True, slots=True, eq=False)
class Phases:
    """A schedule as phases, each after the phases that it needs."""

    ranks: int
    links: int
    stages: int
    """The number of stages on all ranks; a stage on two ranks counts twice."""
    phases: tuple[Phase, ...]


def find_phases(compiled: CompiledSchedule) -> Phases | None:
    """The phases of a schedule; None if it does not consist of phases, or if some phases need only
    parts of each other."""
    ranks = compiled.timed_costs
    times = {count for repeated in ranks for _, count in repeated}
    costs = [[cost for pattern, _ in repeated for cost in pattern] for repeated in ranks]
    single = all(len(pattern) == 1 for repeated in ranks for pattern, _ in repeated)
    if not single or len(times) > 1 or any(len({*own}) < len(own) for own in costs):
        return None
    sent = Passes(compiled).sent.tolist()
    if any(sent[cost] not in (-1, cost) for own in costs for cost in own):
        return None  # some backward passes are whole and others are not
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
    done: set[RankAction | None] = {None}
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
    """Runs plans, given the number of microbatches of each in `counts`, of shape (plans,).

    Returns two arrays. The first, of shape (5, ranks, plans), has the end of each rank, its seconds
    of waiting for transfers and for stages, its beginning, and the part of that in which a message
    was on its way. The second, of shape (stages of all ranks, plans), has the starts of the actions
    that complete gradients.
    """
    rows = seconds.shape[1]
    times = np.zeros((5, phases.ranks, rows))
    last = np.zeros((phases.stages, rows))
    pieces = -(-rows // BLOCK_PLANS)
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
    left: dict[RankAction, _Lines] = {}
    arrived: dict[RankAction, _Lines] = {}
    others = count - 1
    for each in phases.phases:
        rank, took = each.rank, seconds[each.cost]
        idle = free[rank].copy()
        stays = took
        if each.link >= 0 and not goes_on:
            stays = took + transfers[each.cost]
        start = _Lines.of(idle, stays)
        if each.source is not None:
            start = arrived.pop(each.source).paced(stays).with_(start, others)
            theirs = left.pop(each.source)
            if each.first:
                moving[rank] = start.first() - theirs.first()
            _add_waits(for_transfer[rank], for_stage[rank], idle, stays, start, theirs, others)
        if each.first:
            begin[rank] = start.first()
        final = start.at(others)
        if each.last >= 0:
            last[each.last] = final
        free[rank] = final + stays
        if each.link >= 0:
            message = transfers[each.cost]
            end = start.later(took)
            left[rank, each.cost] = end
            there = end.later(message)
            if goes_on:
                there = there.paced(message)
                busy = links[each.link] + message
                if (busy > there.first()).any():
                    there = there.with_(_Lines.of(busy, message), others)
            else:
                for_transfer[rank] += message * count
            links[each.link] = there.at(others)
            arrived[rank, each.cost] = there


def _add_waits(
    for_transfer: Floats,
    for_stage: Floats,
    idle: Floats,
    stays: Floats,
    start: _Lines,
    left: _Lines,
    others: Floats,
) -> None:
    """Adds the seconds in which a rank waits for messages: for the other stage until they leave,
    then for the transfer. The rank is free for microbatch 0 at `idle`, and for each of the `others`
    `stays` seconds after it started the one before."""
    gone = np.maximum(left.first() - idle, 0.0)
    second = idle + stays  # without any waiting
    before = start.later(stays).beyond(second, stays)
    theirs = left.after_first().beyond(second, stays)
    if len(before.firsts) == 1:
        more = theirs.beyond(before.firsts[0], before.slopes[0])
        gone += more.total(others, least=0.0)
    else:
        gone += theirs.with_(before, others - 1).total(others)
        gone -= before.total(others)
        np.maximum(gone, 0.0, out=gone)
    waited = np.maximum(start.at(others) - idle - stays * others, gone)
    for_stage += gone
    waited -= gone
    for_transfer += waited


@dataclass(frozen=True, slots=True)
class _Lines:
    """The maximum of functions that are linear in the microbatch: their values at microbatch 0 and
    their slopes, each of shape (functions, plans)."""

    firsts: Floats
    slopes: Floats

    @staticmethod
    def of(first: Floats, slope: Floats) -> _Lines:
        return _Lines(first[None], slope[None])

    def first(self) -> Floats:
        """The value at microbatch 0."""
        return self.firsts[0] if len(self.firsts) == 1 else self.firsts.max(axis=0)

    def at(self, place: Floats) -> Floats:
        """The value at the microbatch with this number."""
        found = self.slopes * place
        found += self.firsts
        return found[0] if len(found) == 1 else found.max(axis=0)

    def later(self, seconds: Floats) -> _Lines:
        """The functions, all of them `seconds` later."""
        return _Lines(self.firsts + seconds, self.slopes)

    def beyond(self, first: Floats, slope: Floats) -> _Lines:
        """The difference to the linear function with this first value and slope."""
        return _Lines(self.firsts - first, self.slopes - slope)

    def paced(self, seconds: Floats) -> _Lines:
        """The functions if each microbatch is at least `seconds` after the one before."""
        return _Lines(self.firsts, np.maximum(self.slopes, seconds))

    def after_first(self) -> _Lines:
        """The functions from microbatch 1 on."""
        return _Lines(self.firsts + self.slopes, self.slopes)

    def with_(self, other: _Lines, last: Floats) -> _Lines:
        """The maximum of both, up to the microbatch with the number `last`."""
        kept = [*zip(self.firsts, self.slopes, strict=True)]
        for first, slope in zip(other.firsts, other.slopes, strict=True):
            _add(kept, first, slope, last)
        if len(kept) == 1:
            return _Lines.of(*kept[0])
        return _Lines(np.array([a for a, _ in kept]), np.array([b for _, b in kept]))

    def total(self, count: Floats, least: float | None = None) -> Floats:
        """The sum over `count` microbatches, which may be 0; each counts at least `least`. Between
        two microbatches at which functions cross, the largest function stays the same."""
        if least is not None:
            if len(self.firsts) == 1:
                return _above(self.firsts[0] - least, self.slopes[0], count) + least * count
            flat = np.full_like(self.firsts[:1], least)
            lines = _Lines(
                np.concatenate([flat, self.firsts]), np.concatenate([0.0 * flat, self.slopes])
            )
            return lines.total(count)
        if len(self.firsts) == 1:
            return (self.firsts[0] + self.slopes[0] * ((count - 1) / 2)) * count
        if len(self.firsts) == 2:
            more = _above(self.firsts[1] - self.firsts[0], self.slopes[1] - self.slopes[0], count)
            return (self.firsts[0] + self.slopes[0] * ((count - 1) / 2)) * count + more
        edges = [np.zeros_like(count), count]
        for a, b in combinations(range(len(self.slopes)), 2):
            with np.errstate(divide="ignore", invalid="ignore"):
                crossing = (self.firsts[b] - self.firsts[a]) / (self.slopes[a] - self.slopes[b])
            inside = (crossing > 0) & (crossing < count)
            edges.append(np.where(inside, np.ceil(crossing), 0.0))
        found = np.zeros_like(self.firsts[0])
        for begin, end in pairwise(np.sort(np.array(edges), axis=0)):
            found += (self.at(begin) + self.at(end - 1)) * ((end - begin) / 2)
        return found


def _above(first: Floats, slope: Floats, count: Floats) -> Floats:
    """The sum over `count` microbatches of the positive values of a linear function."""
    with np.errstate(divide="ignore", invalid="ignore"):
        crossing = np.ceil(first / (0.0 - slope))  # where it is flat, +0
    inside = np.fmax(np.fmin(crossing, count), 0.0)
    rising = slope > 0
    begin, end = np.where(rising, inside, 0.0), np.where(rising, count, inside)
    return np.maximum(end - begin, 0.0) * (first + slope * ((begin + end - 1) / 2))


def _add(kept: list[tuple[Floats, Floats]], first: Floats, slope: Floats, last: Floats) -> None:
    """Adds a function to those that are kept. If it crosses a kept one in no plan, by more than
    rounding, the maximum of the two replaces them."""
    for i, (a, b) in enumerate(kept):
        sooner = first - a
        later = (slope - b) * last
        later += sooner
        exact = b * last
        exact += a
        exact *= EQUAL_TIMES
        np.abs(exact, out=exact)
        crossing = np.minimum(sooner, later) < -exact
        crossing &= np.maximum(sooner, later) > exact
        if not crossing.any():
            del kept[i]
            sooner += later
            above = sooner > 0
            _add(kept, np.where(above, first, a), np.where(above, slope, b), last)
            return
    kept.append((first, slope))


__all__ = ["Phase", "Phases", "find_phases", "run_phases"]
