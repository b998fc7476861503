"""Cuts of chains of blocks into stages that fit in memory, those of many plans at once.

Stages are cut for time first (`partition`). Where a rank then holds more than its device, the
cut is looked for that fits and whose heaviest stage is the lightest: early ranks have most
microbatches in flight and get fewer blocks, the rank with the vocabulary too. What a stage holds
is taken to be the sum of what its blocks hold one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from distir.arrays import Flags, Floats, Indices
from distir.schedules import PeakInFlight
from distir.simulation.cutting.partition import Cuts, Weights
from distir.simulation.pricing.block_bytes import BlockBytes

TINY = 1e-200

ROUNDING = 1e-9
"""Errors of rounding are smaller than this, as a ratio."""

TRIES = 5
"""How often the range of the heaviest stage's weight is halved (as a ratio)."""

FREQUENT = 0.5
"""A kind of block is frequent if there are at least this many of it, as a ratio to how many there
are of the commonest kind. A plan is ruled out early by frequent kinds alone."""


@dataclass(frozen=True, slots=True)
class Chain:
    """The blocks to be cut: which of the different blocks each is, their weights at every point,
    of shape (points, blocks), what the different ones hold there, and what tensors may hold on a
    device, one number per program size."""

    kinds: Indices
    weights: Weights
    held: BlockBytes
    room_bytes: Floats


@dataclass(frozen=True, slots=True)
class Flights:
    """What is in flight under several schedules with the same ranks and kinds of action. An *entry*
    is a stage on a rank, those of one rank after those of the other.

    `counts` are microbatches between F and B, and between B and W, of shape (2, situations,
    entries, schedules); `fullest` is without situations that have no more of any than an earlier
    one. `stage` and `rank` are those of each entry; `entries` are those of each stage, of shape
    (ranks that hold it, stages).
    """

    actions: tuple[int, ...]
    counts: Floats
    fullest: Floats
    stage: Indices
    rank: Indices
    entries: Indices

    @classmethod
    def of(cls, flights: Sequence[PeakInFlight]) -> Flights:
        """Of such schedules."""
        owned = flights[0].stages_of_ranks
        situations = np.arange(max(len(flight.counts) for flight in flights))
        each = [np.array(flight.counts, np.float64) for flight in flights]
        counts = np.stack([own[situations % len(own)] for own in each], axis=-1)
        fullest: list[int] = []
        for one in situations.tolist():
            if not any((counts[one] <= counts[other]).all() for other in fullest):
                fullest.append(one)
        stage = np.concatenate([np.asarray(own, np.int64) for own in owned])
        homes, order = np.bincount(stage), np.argsort(stage, kind="stable")
        copy = np.arange(int(homes.max()))[:, None] % homes
        counts = np.moveaxis(counts, 2, 0)
        return cls(
            flights[0].cost_kinds,
            counts,
            counts[:, fullest],
            stage,
            np.repeat(np.arange(len(owned)), list(map(len, owned))),
            order[np.cumsum(homes) - homes + copy],
        )

    @property
    def ranks(self) -> int:
        """How many there are."""
        return int(self.rank[-1]) + 1

    @property
    def first_of_rank(self) -> Indices:
        """The first entry of each rank."""
        return np.searchsorted(self.rank, np.arange(self.ranks))

    @property
    def several(self) -> Flags:
        """Whether the rank of an entry has several."""
        return np.bincount(self.rank)[self.rank] > 1


@dataclass(frozen=True, slots=True)
class Plans:
    """Plans whose stages lie on the same ranks: where stages begin and end, of shape
    (cuts, stages + 1), which of these cuts each plan has, its point, and which of `flights`."""

    bounds: Cuts
    cut: Indices
    points: Indices
    flights: Flights
    flight: Indices

    def taken(self, which: Indices) -> Plans:
        """Some of them."""
        cut, points, flight = (each[which] for each in (self.cut, self.points, self.flight))
        return Plans(self.bounds, cut, points, self.flights, flight)


def fitted_bounds(chain: Chain, groups: Sequence[Plans]) -> list[tuple[Indices, Cuts]]:
    """Per group the plans that do not fit but would if their stages began elsewhere, and where
    stages then begin and end."""
    if not groups:
        return []
    sums = _Sums(chain)
    needs = [_Ranks(sums, plans).needs() for plans in groups]
    fits, begins = _Search(chain, _Needs.joined(needs)).search()
    found: list[tuple[Indices, Cuts]] = []
    for need in needs:
        count = len(need.plans)
        own = begins[: count * need.num_stages].reshape(count, need.num_stages)[fits[:count]]
        end = np.full((len(own), 1), len(chain.kinds))
        found.append((need.plans[fits[:count]], np.hstack([own, end])))
        fits, begins = fits[count:], begins[count * need.num_stages :]
    return found


class _Sums:
    """What the blocks of a chain hold together."""

    def __init__(self, chain: Chain) -> None:
        self.chain, held = chain, chain.held
        different = np.arange(held.state.shape[1], dtype=np.int64)
        self.before = np.zeros((len(chain.kinds) + 1, len(different)), np.int64)
        """How many blocks of every kind there are before each."""
        np.cumsum(chain.kinds[:, None] == different, axis=0, out=self.before[1:])
        self._state, self._forward, self._backward = (
            (each @ self.before.T).ravel()
            for each in (held.state, held.after_forward, held.after_backward)
        )
        blocks = self.before[-1]
        self.state, self.kept = held.state @ blocks, np.maximum(held.after_forward @ blocks, 0.0)
        """Of all blocks at every point: at rest, and of a microbatch."""
        self.frequent = np.flatnonzero(blocks >= FREQUENT * blocks.max())
        """Kinds that make up most of the chain."""
        self.frees = bool(min(held.after_forward.min(), held.after_backward.min()) < 0)
        """Whether more blocks may hold less."""
        self._passing: dict[tuple[int, ...], Floats] = {}

    def of_stages(self, points: Indices, bounds: Cuts) -> tuple[Floats, Floats, Floats | None]:
        """What stages hold at rest, of a microbatch between F and B, and between B and W (none if
        nothing is held there), each of shape (stages, plans)."""
        at = bounds + points * len(self.before)
        state, forward = (np.diff(each.take(at), axis=0) for each in (self._state, self._forward))
        backward = np.diff(self._backward.take(at), axis=0) if self._backward.any() else None
        return state, forward, backward

    def passing(self, actions: tuple[int, ...]) -> Floats:
        """What blocks need in passing with these kinds of action, of shape (kinds, points)."""
        if actions not in self._passing:
            every = [self.chain.held.passing[action] for action in actions]
            self._passing[actions] = np.max(every, axis=0).T
        return self._passing[actions]


@dataclass(frozen=True, slots=True)
class _Needs:
    """Plans that do not fit but might. `lightest`: no cut has only stages lighter than this.
    `passing` is what blocks need in passing, of shape (plans, kinds of block). Of each stage, on
    each rank that holds it, of shape (ranks, plans · stages): microbatches after F and after B when
    the rank holds most, the stage's share of the rank's memory, and what stages beside it need in
    passing."""

    plans: Indices
    points: Indices
    stages: Indices
    lightest: Floats
    passing: Floats
    forward: Floats
    backward: Floats
    share: Floats
    beside: Floats

    @property
    def num_stages(self) -> int:
        """How many stages each of the plans of one group has."""
        return int(self.stages[0]) if len(self.stages) else 0

    @classmethod
    def joined(cls, needs: Sequence[_Needs]) -> _Needs:
        """Of several groups."""
        ranks = max(len(need.share) for need in needs)
        per_plan = ("plans", "points", "stages", "lightest", "passing")
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
    """What the ranks of plans hold."""

    def __init__(self, sums: _Sums, plans: Plans) -> None:
        self.sums, self.chain, self.flights = sums, sums.chain, plans.flights
        flights = plans.flights
        # Where more blocks never hold less, nor do more microbatches.
        self.in_flight = flights.counts if sums.frees else flights.fullest
        (self.may_fit,) = np.nonzero(self._may_fit(plans))
        self.plans = plans.taken(self.may_fit)
        self.passing = sums.passing(flights.actions)[:, self.plans.points]
        """What blocks need in passing, of shape (kinds of block, plans)."""

    def needs(self) -> _Needs:
        """The plans with a rank that holds too much, as far as no cut is known not to fit."""
        holds, beside = self._loads()
        first, rank = self.flights.first_of_rank, self.flights.rank
        by_rank = np.add.reduceat(holds, first, axis=1)
        worst = np.maximum.reduceat(beside, first, axis=0)
        fullest = by_rank.max(axis=0)
        room = self.chain.room_bytes[self.plans.points]
        (over,) = np.nonzero((fullest + worst > room).any(axis=0))
        flight = self.plans.flight[over]
        if len(holds) == 1:
            own = holds[0][:, over]
            forward, backward = self.in_flight[:, 0][..., flight]
        else:
            situation = by_rank[..., over].argmax(axis=0)[rank]
            own = np.take_along_axis(holds[..., over], situation[None], 0)[0]
            every = np.arange(len(rank))[:, None]
            forward, backward = self.in_flight[:, situation, every, flight]
        # Where a rank has several stages, each may keep its share of what the rank holds.
        share = own / np.maximum(fullest[:, over], 1.0)[rank]
        besides = (worst[:, over] * self.flights.several[first, None])[rank]
        return self._chosen(over, forward, backward, share, besides)

    def _may_fit(self, plans: Plans) -> Flags:
        """Whether all ranks together hold all blocks, with what is in flight where least is."""
        least = self.in_flight[0].min(axis=(0, 1))[plans.flight]
        needed = self.sums.state[plans.points] + self.sums.kept[plans.points] * least
        copies = int(np.bincount(self.flights.stage).min())
        return copies * needed <= self.flights.ranks * self.chain.room_bytes[plans.points]

    def _loads(self) -> tuple[Floats, Floats]:
        """Bytes that entries hold, of shape (situations, entries, plans), and what they need in
        passing, of shape (entries, plans)."""
        cut, stage = self.plans.cut, self.flights.stage
        bounds = np.ascontiguousarray(self.plans.bounds.T)
        before = self.sums.before[bounds]
        present = (before[1:] > before[:-1])[stage]
        beside = np.zeros((len(stage), len(cut)))
        for kind, most in enumerate(self.passing):
            (some,) = np.nonzero(present[..., kind].any(axis=1))
            needed = np.where(present[some, :, kind][:, cut], most, 0.0)
            beside[some] = np.maximum(beside[some], needed)
        state, forward, backward = self.sums.of_stages(self.plans.points, bounds[:, cut])
        holds = self.in_flight[0][..., self.plans.flight] * forward[stage]
        if backward is not None:
            holds += self.in_flight[1][..., self.plans.flight] * backward[stage]
        holds += state[stage]
        return holds, beside

    def _chosen(
        self, over: Indices, forward: Floats, backward: Floats, share: Floats, beside: Floats
    ) -> _Needs:
        """The needs of those of the plans `over` that are not ruled out; the rest is of shape
        (entries, plans)."""
        entries = self.flights.entries
        (may,) = np.nonzero(self._have_room(over, forward, backward, share, beside))
        every = np.stack([each[:, may].T for each in (forward, backward, share, beside)])
        by_stage = np.moveaxis(every[:, :, entries], 2, 1)
        plans = self.plans.taken(over[may])
        return _Needs(
            self.may_fit[over[may]],
            plans.points,
            np.full(len(may), entries.shape[1]),
            _heaviest(self.chain.weights[plans.points], plans.bounds[plans.cut]),
            self.passing[:, over[may]].T,
            *by_stage.reshape(4, len(entries), -1),
        )

    def _have_room(
        self, over: Indices, forward: Floats, backward: Floats, share: Floats, beside: Floats
    ) -> Flags:
        """Whether there is room for the blocks of every frequent kind, were there no others: for so
        many a stage as have room there alone."""
        held, points = self.chain.held, self.plans.points[over]
        found = np.ones(len(over), np.bool_)
        for kind in () if self.sums.frees else self.sums.frequent:
            need = held.state[points, kind] + forward * held.after_forward[points, kind]
            need += backward * held.after_backward[points, kind]
            free = share * (
                self.chain.room_bytes[points] - np.maximum(beside, self.passing[kind, over])
            )
            room = np.floor(free / np.maximum(need, TINY) * (1 + ROUNDING))
            room = np.maximum(room[self.flights.entries].min(axis=0), 0.0)
            found &= room.sum(axis=0) >= self.sums.before[-1, kind]
        return found


class _Search:
    """Looks for stages that fit, for many plans at once."""

    def __init__(self, chain: Chain, needs: _Needs) -> None:
        self.chain, self.needs = chain, needs
        kinds, held, points = chain.kinds, chain.held, needs.points
        count = held.state.shape[1]
        different = np.arange(count, dtype=np.int64)
        first = np.array([kinds.tolist().index(kind) for kind in different])
        self.kind_before = np.concatenate([[0], kinds])
        """The kind of the block before each place, and where the run of equal ones begins."""
        changes = np.concatenate([[True], kinds[1:] != kinds[:-1]])
        begins = np.maximum.accumulate(np.where(changes, np.arange(len(kinds)), 0))
        self.run_before = np.concatenate([[0], begins])
        self.first = np.cumsum(needs.stages) - needs.stages
        self.plan = np.repeat(np.arange(len(points)), needs.stages)
        """The plan of each stage."""
        of_stage = points[self.plan]
        memory = held.state[of_stage] + needs.forward[..., None] * held.after_forward[of_stage]
        memory = memory + needs.backward[..., None] * held.after_backward[of_stage]
        weight = chain.weights[:, first][of_stage]
        self.need: Floats = np.concatenate([weight[None], memory]).reshape(1 + len(memory), -1)
        """What a block weighs and holds, of shape (1 + ranks, stages · kinds)."""
        order = np.argsort(needs.passing, axis=1)
        self.place = np.argsort(order, axis=1).ravel()
        """The place of kinds among those of their plan by what they need in passing."""
        passing = np.take_along_axis(needs.passing, order, axis=1)[self.plan]
        beside = np.maximum(needs.beside[..., None], passing)
        free = needs.share[..., None] * (chain.room_bytes[of_stage, None] - beside)
        self.free = free.reshape(len(free), -1)
        """What is left by blocks up to such a place, of shape (ranks, stages · kinds)."""

    def search(self) -> tuple[Flags, Cuts]:
        """The plans for which something fits, and where their stages begin, one plan after the
        other."""
        every, points = np.arange(len(self.first)), self.needs.points
        fits, begins, high = self._filled(every, self.chain.weights.sum(axis=1)[points])
        low = np.minimum(self.needs.lightest, high)
        for _ in range(TRIES):
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
        """Fills stages with blocks from the last to the first, none heavier than the limit, run by
        run: which of these plans that is possible for, where stages begin, one plan after the
        other, and what the heaviest weighs."""
        begins, heaviest = np.zeros(len(self.plan), np.int64), np.zeros(len(rows))
        fits = np.zeros(len(rows), np.bool_)
        kinds, last = self.chain.held.state.shape[1], self.needs.stages[rows] - 1
        blocks = np.full(len(rows), len(self.chain.kinds))
        # The stage, its place among those of all plans, where it begins and ends so far, the
        # place of the plan's kinds, and its place among these rows.
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
            kind, run = self.kind_before[begin], self.run_before[begin]
            slot = at * kinds
            need = cast("Floats", self.need.take(slot + kind, axis=1))
            worst = np.maximum(most, self.place[own + kind])
            free[1:] = self.free.take(slot + worst, axis=1)
            room = np.floor((free - used) / np.maximum(need, TINY)).min(axis=0)
            # The stages before this one need a block each.
            room = np.minimum(room, begin - np.maximum(run, stage))
            count = np.maximum(room, 0.0)
            used += count * need
            begin -= count.astype(np.int64)
            np.maximum(most, worst * (count > 0), out=most)
            heaviest[row] = np.maximum(heaviest[row], used[0])
            begins[at] = begin
            full = begin > run
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


def _heaviest(weights: Weights, bounds: Cuts) -> Floats:
    prefix = np.zeros((len(weights), weights.shape[1] + 1))
    np.cumsum(weights, axis=1, out=prefix[:, 1:])
    return np.diff(np.take_along_axis(prefix, bounds, 1), axis=1).max(axis=1, initial=0.0)


__all__ = ["BlockBytes", "Chain", "Flights", "Plans", "fitted_bounds"]
