"""Cuts the blocks of models into stages that fit in memory, for many plans at once.

Stages are balanced by time first (`partition.py`). If a rank then needs more memory than its device
has, this module looks for the cut that fits and has the lightest heaviest stage. Early ranks have
most microbatches in flight, so they get fewer blocks, and so does the rank with the vocabulary. The
bytes of a stage are estimated by the sum of the bytes of its blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple, cast

import numpy as np

from distir.arrays import Flags, Floats, Indices
from distir.schedules import PeakInFlight
from distir.simulation.cutting.partition import Bounds, Cuts, Weights
from distir.simulation.pricing.block_bytes import BlockBytes

TINY = 1e-200
"""A divisor in place of zero."""

RELATIVE_ERROR = 1e-9
"""A relative error that rounding does not exceed."""

HALVINGS = 5
"""The number of times that the range of the heaviest stage's weight is halved, as a ratio."""

FREQUENT = 0.5
"""A kind of block is frequent if it has at least this fraction of the blocks of the commonest kind.
Only frequent kinds are looked at to rule a plan out early."""

ENTRIES_AT_ONCE = 1 << 16
"""Stages on ranks that are looked at together: they should stay in the cache."""


@dataclass(frozen=True, slots=True)
class BlocksToCut:
    """The blocks of a model, at one or several program sizes."""

    kinds: Indices
    """The kind of each block; equal blocks have one kind."""
    weights: Weights
    """The weight of each block, of shape (sizes, blocks)."""
    held: BlockBytes
    """Bytes of each kind of block."""
    room_bytes: Floats
    """Bytes that tensors may take on a device, one number per size."""


@dataclass(frozen=True, slots=True)
class Runs:
    """Things that lie one after the other: the first, and the number, of those of each owner."""

    first: Indices
    count: Indices

    @classmethod
    def of_counts(cls, counts: Sequence[int] | Indices) -> Runs:
        """The runs of owners with these numbers of things."""
        count = np.array(counts, np.int64)
        return cls(np.cumsum(count) - count, count)

    def of(self, owners: Indices) -> tuple[Indices, Indices]:
        """The things of owners, one owner after the other, and the place of each one's owner."""
        counts = self.count[owners]
        place = np.repeat(np.arange(len(owners)), counts)
        before = self.first[owners] - np.cumsum(counts) + counts
        return np.arange(len(place)) + before[place], place


@dataclass(frozen=True, slots=True)
class InFlight:
    """Microbatches in flight under schedules. An *entry* is a stage on a rank; entries are listed
    schedule by schedule, and rank by rank."""

    cost_kinds: Sequence[tuple[int, ...]]
    """Cost kinds that schedules have."""
    kinds: Indices
    """The number of each schedule's cost kinds among these."""
    entries: Runs
    """The entries of schedules."""
    stages: Runs
    """The stages of schedules."""
    counts: Floats
    """Microbatches between F and B, and between B and W, of shape (2, situations, entries)."""
    fullest: Floats
    """`counts` without situations in which every entry of a schedule has at most what it has in an
    earlier one."""
    stage: Indices
    """The stage of each entry."""
    leads: Flags
    """Whether each entry is the first of its rank."""
    shares_its_rank: Flags
    """Whether the rank of an entry holds several stages."""
    homes: Indices
    """The entries of each stage, of shape (ranks that hold it, stages), from the first of the
    schedule on."""
    copies: Indices
    """On how many ranks every stage of a schedule is, at least."""

    @classmethod
    def of(cls, flights: Sequence[PeakInFlight]) -> InFlight:
        """The microbatches in flight under schedules; see the class."""
        kinds: dict[tuple[int, ...], int] = {}
        counts = [np.array(flight.counts, np.float64) for flight in flights]
        owned = [flight.stages_of_ranks for flight in flights]
        stage = [np.array([*chain.from_iterable(own)], np.int64) for own in owned]
        homes = [np.bincount(own) for own in stage]
        most = max(int(each.max()) for each in homes)
        held = np.array([len(own) for ranks in owned for own in ranks])
        leads = np.zeros(int(held.sum()), np.bool_)
        leads[np.cumsum(held) - held] = True
        return cls(
            kinds=np.array([kinds.setdefault(each.cost_kinds, len(kinds)) for each in flights]),
            cost_kinds=[*kinds],
            entries=Runs.of_counts([*map(len, stage)]),
            stages=Runs.of_counts([*map(len, homes)]),
            counts=_side_by_side(counts),
            fullest=_side_by_side([*map(_fullest, counts)]),
            stage=np.concatenate(stage),
            leads=leads,
            shares_its_rank=np.repeat(held > 1, held),
            homes=np.concatenate([_homes(own, most) for own in stage], axis=1),
            copies=np.array([int(each.min()) for each in homes]),
        )


def _side_by_side(counts: Sequence[Floats]) -> Floats:
    """Counts of schedules, of shape (situations, entries, 2), as one array of shape (2, situations,
    entries); schedules with few situations have some of them several times."""
    situations = np.arange(max(map(len, counts)))
    every = np.concatenate([own[situations % len(own)] for own in counts], axis=1)
    return np.ascontiguousarray(np.moveaxis(every, 2, 0))


def _fullest(counts: Floats) -> Floats:
    """Without situations in which every entry has at most what it has in an earlier one."""
    fullest: list[int] = []
    for one in range(len(counts)):
        if not any((counts[one] <= counts[other]).all() for other in fullest):
            fullest.append(one)
    return counts[fullest]


def _homes(stage: Indices, most: int) -> Indices:
    """The entries of each stage, of shape (most, stages); those on fewer ranks several times."""
    homes, order = np.bincount(stage), np.argsort(stage, kind="stable")
    found: Indices = order[np.cumsum(homes) - homes + np.arange(most)[:, None] % homes]
    return found


@dataclass(frozen=True, slots=True)
class PlansToFit:
    """Plans with several stages each."""

    bounds: Indices
    """Bounds of stages of cuts, one cut after the other."""
    cut: Indices
    """Where the bounds of each plan's cut begin."""
    sizes: Indices
    """The number of each plan's program size."""
    flights: InFlight
    flight: Indices
    """The number of each plan's schedule in `flights`."""

    def taken(self, which: Indices) -> PlansToFit:
        """The plans with these numbers."""
        cut, sizes, flight = (each[which] for each in (self.cut, self.sizes, self.flight))
        return PlansToFit(self.bounds, cut, sizes, self.flights, flight)

    def parts(self) -> Iterator[tuple[Indices, PlansToFit]]:
        """Parts that are small enough for memory, with the numbers of their plans."""
        most = int(self.flights.entries.count[self.flight].max(initial=1))
        at_once = max(1, ENTRIES_AT_ONCE // most)
        for first in range(0, len(self.cut), at_once):
            some = np.arange(first, min(first + at_once, len(self.cut)))
            yield some, self.taken(some)


class FittedPlans(NamedTuple):
    """Plans, given by their numbers."""

    as_cut: Indices
    """Those that fit as they are cut."""
    moved: Indices
    """Those that do not, but fit with another cut."""
    bounds: list[Bounds]
    """The bounds of that cut."""


def fitted_bounds(model: BlocksToCut, plans: PlansToFit) -> FittedPlans:
    """Which plans fit, and with which bounds."""
    if not len(plans.cut):
        return FittedPlans(plans.cut, plans.cut, [])
    sums = _Sums(model)
    as_cut: list[Indices] = []
    every: list[_Needs] = []
    for some, part in plans.parts():
        ranks = _Ranks(sums, part)
        as_cut.append(some[ranks.as_cut()])
        needs = ranks.needs()
        every.append(replace(needs, plans=some[needs.plans]))
    needs = _Needs.joined(every)
    fits, begins = _Search(model, needs).search()
    ends, flat = np.cumsum(needs.stages), begins.tolist()
    edges = zip((ends - needs.stages)[fits].tolist(), ends[fits].tolist(), strict=True)
    bounds = [(*flat[begin:end], len(model.kinds)) for begin, end in edges]
    return FittedPlans(np.concatenate(as_cut), needs.plans[fits], bounds)


def fit_as_cut(model: BlocksToCut, plans: PlansToFit) -> Indices:
    """The numbers of the plans that fit as they are cut."""
    sums = _Sums(model)
    every = [some[_Ranks(sums, part).as_cut()] for some, part in plans.parts()]
    return np.concatenate([np.zeros(0, np.int64), *every])


class _Sums:
    """Bytes of several blocks together."""

    def __init__(self, model: BlocksToCut) -> None:
        self.model, held = model, model.held
        different = np.arange(held.state.shape[1], dtype=np.int64)
        self.before = np.zeros((len(model.kinds) + 1, len(different)), np.int64)
        """The number of blocks of every kind before each block."""
        np.cumsum(model.kinds[:, None] == different, axis=0, out=self.before[1:])
        self._state, self._forward, self._backward = (
            (each @ self.before.T).ravel()
            for each in (held.state, held.after_forward, held.after_backward)
        )
        blocks = self.before[-1]
        self.state, self.kept = held.state @ blocks, np.maximum(held.after_forward @ blocks, 0.0)
        """Bytes of all blocks at every size: of their state, and of a microbatch in flight."""
        self.frequent = np.flatnonzero(blocks >= FREQUENT * blocks.max())
        """The kinds that most blocks have."""
        self.frees = bool(min(held.after_forward.min(), held.after_backward.min()) < 0)
        """Whether more blocks may take fewer bytes."""
        weight = np.zeros((len(model.weights), len(self.before)))
        np.cumsum(model.weights, axis=1, out=weight[:, 1:])
        self.weight = weight.ravel()
        """The weight of the blocks before each block."""

    def of_stages(
        self, sizes: Indices, begin: Indices, end: Indices
    ) -> tuple[Floats, Floats, Floats | None]:
        """Bytes of stages: of their state, of a microbatch between F and B, and of one between B
        and W (None if there are none)."""
        first, last = (each + sizes * len(self.before) for each in (begin, end))
        state, forward = (
            each.take(last) - each.take(first) for each in (self._state, self._forward)
        )
        if not self._backward.any():
            return state, forward, None
        return state, forward, self._backward.take(last) - self._backward.take(first)

    def passing(self, cost_kinds: Sequence[tuple[int, ...]]) -> Floats:
        """Bytes that kinds of block need while an action of some cost kinds passes through them, of
        shape (kinds, different cost kinds, sizes)."""
        passing = self.model.held.passing  # without what no plan of the model does
        every = [
            np.max([passing[kind] for kind in kinds if kind in passing], axis=0)
            for kinds in cost_kinds
        ]
        return np.ascontiguousarray(np.array(every).transpose(2, 0, 1))


@dataclass(frozen=True, slots=True)
class _Needs:
    """Plans that do not fit but might. The last four arrays have the shape
    (ranks that hold a stage, plans · stages)."""

    plans: Indices
    """Numbers of the plans."""
    sizes: Indices
    """Numbers of their program sizes."""
    stages: Indices
    """Their numbers of stages."""
    lightest: Floats
    """A weight below which the heaviest stage of no cut is."""
    passing: Floats
    """Bytes that blocks need while an action passes through them, of shape (plans, kinds)."""
    forward: Floats
    """Microbatches between F and B when the rank holds most."""
    backward: Floats
    """Microbatches between B and W then."""
    share: Floats
    """The stage's share of the memory of its rank."""
    beside: Floats
    """Bytes that the rank's other stages need while an action passes through them."""

    @classmethod
    def joined(cls, needs: Sequence[_Needs]) -> _Needs:
        """The needs of several parts as one."""
        ranks = max(len(need.share) for need in needs)
        per_plan = ("plans", "sizes", "stages", "lightest", "passing")
        per_stage = ("forward", "backward", "share", "beside")
        every = np.arange(ranks)
        return cls(
            *(np.concatenate([getattr(n, name) for n in needs]) for name in per_plan),
            *(
                np.concatenate([getattr(n, name)[every % len(n.share)] for n in needs], axis=1)
                for name in per_stage
            ),
        )


class _Ranks:
    """Bytes on the ranks of plans."""

    def __init__(self, sums: _Sums, plans: PlansToFit) -> None:
        self.sums, self.model, self.flights = sums, sums.model, plans.flights
        # If more blocks never take fewer bytes, only the fullest situations matter.
        self.in_flight = self.flights.counts if sums.frees else self.flights.fullest
        (self.may_fit,) = np.nonzero(self._may_fit(plans))
        self.plans = plans.taken(self.may_fit)
        entry, plan = self.flights.entries.of(self.plans.flight)
        passing = sums.passing(self.flights.cost_kinds)
        self.passing = passing[:, self.flights.kinds[self.plans.flight], self.plans.sizes]
        """Bytes that blocks need while an action passes through them, of shape (kinds, plans)."""
        leads = self.flights.leads[entry]
        (first,) = np.nonzero(leads)
        self._entry, self._rank = entry, np.cumsum(leads) - 1
        self._holds, beside = self._loads(entry, plan)
        self._by_rank = np.add.reduceat(self._holds, first, axis=1) if len(first) else self._holds
        self._worst = np.maximum.reduceat(beside, first) if len(first) else beside
        self._fullest = self._by_rank.max(axis=0)
        room = self.model.room_bytes[self.plans.sizes]
        self._over = np.zeros(len(self.plans.cut), np.bool_)
        self._over[plan[first][self._fullest + self._worst > room[plan[first]]]] = True

    def as_cut(self) -> Indices:
        """The plans of which every rank fits."""
        return self.may_fit[~self._over]

    def needs(self) -> _Needs:
        """The plans with a rank that does not fit, without those for which surely no cut fits."""
        flights = self.flights
        (over,) = np.nonzero(self._over)
        stage, plan = flights.stages.of(self.plans.flight[over])
        counts = flights.entries.count[self.plans.flight]
        at = flights.homes[:, stage] + (np.cumsum(counts) - counts)[over][plan]
        entry, rank = self._entry[at], self._rank[at]
        situation = self._by_rank.argmax(axis=0)[rank]
        forward, backward = self.in_flight[:, situation, entry]
        # Each of several stages of a rank may keep its share of the rank's memory.
        share = self._holds[situation, at] / np.maximum(self._fullest, 1.0)[rank]
        beside = self._worst[rank] * flights.shares_its_rank[entry]
        stages = (forward, backward, share, beside)
        may = self._have_room(over, plan, *stages)
        (kept,) = np.nonzero(may[plan])
        plans = self.plans.taken(over[may])
        return _Needs(
            self.may_fit[over[may]],
            plans.sizes,
            flights.stages.count[plans.flight],
            self._heaviest(plans),
            self.passing[:, over[may]].T,
            *(each[:, kept] for each in stages),
        )

    def _may_fit(self, plans: PlansToFit) -> Flags:
        """Whether all ranks together have room for all blocks, if every rank has as few
        microbatches in flight as the rank with fewest."""
        flights, first = self.flights, self.flights.entries.first
        least = np.minimum.reduceat(self.in_flight[0].min(axis=0), first)[plans.flight]
        needed = self.sums.state[plans.sizes] + self.sums.kept[plans.sizes] * least
        ranks = np.add.reduceat(flights.leads.astype(np.int64), first)[plans.flight]
        return flights.copies[plans.flight] * needed <= ranks * self.model.room_bytes[plans.sizes]

    def _loads(self, entry: Indices, plan: Indices) -> tuple[Floats, Floats]:
        """Bytes that entries hold, of shape (situations, entries), and bytes that they need while
        an action passes through them, given the numbers of the entries and of their plans."""
        at = self.plans.cut[plan] + self.flights.stage[entry]
        begin, end = self.plans.bounds[at], self.plans.bounds[at + 1]
        beside = np.zeros(len(entry))
        for before, most in zip(self.sums.before.T, self.passing, strict=True):
            needed = np.where(before[end] > before[begin], most[plan], 0.0)
            np.maximum(beside, needed, out=beside)
        state, forward, backward = self.sums.of_stages(self.plans.sizes[plan], begin, end)
        holds = self.in_flight[0][:, entry] * forward
        if backward is not None:
            holds += self.in_flight[1][:, entry] * backward
        holds += state
        return holds, beside

    def _have_room(
        self,
        over: Indices,
        plan: Indices,
        forward: Floats,
        backward: Floats,
        share: Floats,
        beside: Floats,
    ) -> Flags:
        """Whether the blocks of every frequent kind of the plans `over` would fit if there were no
        other blocks. `plan` has the place in `over` of each stage; of the rest see `_Needs`."""
        found = np.ones(len(over), np.bool_)
        if self.sums.frees or not len(over):
            return found
        held, sizes = self.model.held, self.plans.sizes[over][plan]
        (first,) = np.nonzero(np.diff(plan, prepend=-1))
        for kind in self.sums.frequent:
            need = held.state[sizes, kind] + forward * held.after_forward[sizes, kind]
            need += backward * held.after_backward[sizes, kind]
            passing = self.passing[kind, over][plan]
            free = share * (self.model.room_bytes[sizes] - np.maximum(beside, passing))
            room = np.floor(free / np.maximum(need, TINY) * (1 + RELATIVE_ERROR)).min(axis=0)
            rooms = np.add.reduceat(np.maximum(room, 0.0), first)
            found &= rooms >= self.sums.before[-1, kind]
        return found

    def _heaviest(self, plans: PlansToFit) -> Floats:
        """The weight of the heaviest stage of each plan."""
        if not len(plans.cut):
            return np.zeros(0)
        counts = self.flights.stages.count[plans.flight]
        at, plan = Runs(plans.cut, counts).of(np.arange(len(counts)))
        blocks = plans.sizes[plan] * len(self.sums.before)
        weight = self.sums.weight.take(blocks + plans.bounds[at + 1])
        weight -= self.sums.weight.take(blocks + plans.bounds[at])
        return np.maximum.reduceat(weight, np.cumsum(counts) - counts)


class _Search:
    """Looks for cuts that fit, for many plans at once."""

    def __init__(self, model: BlocksToCut, needs: _Needs) -> None:
        self.model, self.needs = model, needs
        kinds, held, sizes = model.kinds, model.held, needs.sizes
        count = held.state.shape[1]
        different = np.arange(count, dtype=np.int64)
        first = np.array([kinds.tolist().index(kind) for kind in different])
        self.kind_before = np.concatenate([[0], kinds])
        """The kind of the block before each block, and the first of the equal blocks that end
        there."""
        changes = np.concatenate([[True], kinds[1:] != kinds[:-1]])
        begins = np.maximum.accumulate(np.where(changes, np.arange(len(kinds)), 0))
        self.equal_before = np.concatenate([[0], begins])
        self.first = np.cumsum(needs.stages) - needs.stages
        self.plan = np.repeat(np.arange(len(sizes)), needs.stages)
        """The plan of each stage."""
        of_stage = sizes[self.plan]
        memory = held.state[of_stage] + needs.forward[..., None] * held.after_forward[of_stage]
        memory = memory + needs.backward[..., None] * held.after_backward[of_stage]
        weight = model.weights[:, first][of_stage]
        self.need: Floats = np.concatenate([weight[None], memory]).reshape(1 + len(memory), -1)
        """The weight of a block and its bytes, of shape (1 + ranks, stages · kinds)."""
        order = np.argsort(needs.passing, axis=1)
        self.place = np.argsort(order, axis=1).ravel()
        """The order of each kind among those of its plan, by the bytes that it needs in passing."""
        passing = np.take_along_axis(needs.passing, order, axis=1)[self.plan]
        beside = np.maximum(needs.beside[..., None], passing)
        free = needs.share[..., None] * (model.room_bytes[of_stage, None] - beside)
        self.free = free.reshape(len(free), -1)
        """Bytes free for blocks if the kinds up to this order are there, of shape
        (ranks, stages · kinds)."""

    def search(self) -> tuple[Flags, Cuts]:
        """Whether some cut of each plan fits, and the first blocks of its stages, one plan after
        the other."""
        every, sizes = np.arange(len(self.first)), self.needs.sizes
        fits, begins, high = self._filled(every, self.model.weights.sum(axis=1)[sizes])
        low = np.minimum(self.needs.lightest, high)
        for _ in range(HALVINGS):
            (rows,) = np.nonzero(fits & (low < high))
            if not len(rows):
                break
            limit = np.sqrt(low[rows] * high[rows])
            fitted, better, heaviest = self._filled(rows, limit)
            again = np.zeros(len(fits), np.bool_)
            again[rows] = fitted
            begins = np.where(again[self.plan], better, begins)
            high[rows] = np.where(fitted, heaviest, high[rows])
            low[rows] = np.where(fitted, low[rows], limit)
        return fits, begins

    def _filled(self, rows: Indices, limit: Floats) -> tuple[Flags, Cuts, Floats]:
        """Fills the stages of plans, from the last to the first, with as many blocks as fit and
        weigh at most `limit`. Equal blocks beside each other are added together.

        Returns whether all blocks found room, the first blocks of stages, one plan after the other,
        and the weight of the heaviest stage.
        """
        begins, heaviest = np.zeros(len(self.plan), np.int64), np.zeros(len(rows))
        fits = np.zeros(len(rows), np.bool_)
        kinds, last = self.model.held.state.shape[1], self.needs.stages[rows] - 1
        blocks = np.full(len(rows), len(self.model.kinds))
        # Per plan: the stage that is filled, its number among the stages of all plans, its first
        # block and its end so far, the position of the plan's kinds, and its position in `rows`.
        numbers = np.stack(
            [last, self.first[rows] + last, blocks, blocks, rows * kinds, np.arange(len(rows))]
        )
        most = np.zeros(len(rows), np.int64)
        used = np.zeros((len(self.need), len(rows)))
        free = np.empty_like(used)
        free[0] = limit
        while numbers.size:
            columns: list[Indices] = list(numbers)
            stage, at, begin, end, own, row = columns
            kind, equal = self.kind_before[begin], self.equal_before[begin]
            slot = at * kinds
            need = cast("Floats", self.need.take(slot + kind, axis=1))
            worst = np.maximum(most, self.place[own + kind])
            free[1:] = self.free.take(slot + worst, axis=1)
            room = np.floor((free - used) / np.maximum(need, TINY)).min(axis=0)
            # The stages before this one need a block each.
            room = np.minimum(room, begin - np.maximum(equal, stage))
            count = np.maximum(room, 0.0)
            used += count * need
            begin -= count.astype(np.int64)
            np.maximum(most, worst * (count > 0), out=most)
            heaviest[row] = np.maximum(heaviest[row], used[0])
            begins[at] = begin
            full = begin > equal
            lost = full & ((begin == end) | (stage == 0))
            done = begin == 0
            numbers[:2] -= full
            end[full] = begin[full]
            used *= ~full
            most *= ~full
            left = ~(lost | done)
            if not left.all():
                fits[row[done]] = True
                numbers, most = numbers[:, left], most[left]
                used, free = used[:, left], free[:, left]
        return fits, begins, heaviest


__all__ = [
    "BlockBytes",
    "BlocksToCut",
    "FittedPlans",
    "InFlight",
    "PlansToFit",
    "Runs",
    "fit_as_cut",
    "fitted_bounds",
]
