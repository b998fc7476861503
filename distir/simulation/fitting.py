"""Cuts of chains of blocks into stages that fit in memory, those of many plans at once.

Stages are cut for time first (`partition`). Where a rank then holds more than its device, the
cut is looked for that fits and whose heaviest stage is the lightest: early ranks have most
microbatches in flight and get fewer blocks, the rank with the vocabulary too. What a stage holds
is taken to be the sum of what its blocks hold one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from distir.schedules import InFlight
from distir.simulation.partition import Cuts, Places, Weights

TINY = 1e-200

ROUNDING = 1e-9
"""Errors of rounding are smaller than this, as a ratio."""

TRIES = 5
"""How often the range of the heaviest stage's weight is halved (as a ratio)."""

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class BlockBytes:
    """What the different blocks hold, each of shape (points, kinds of block): at rest, of a
    microbatch between F and B, and between B and W; and by kind of action what it needs at its
    worst moment on top."""

    state: Floats
    after_forward: Floats
    after_backward: Floats
    passing: Mapping[int, Floats]

    @classmethod
    def empty(cls, points: int, kinds: int, actions: int) -> BlockBytes:
        """At so many points, of so many different blocks, to be filled."""
        state, forward, backward = np.zeros((3, points, kinds))
        return cls(state, forward, backward, dict(enumerate(np.zeros((actions, points, kinds)))))


@dataclass(frozen=True, slots=True)
class Chain:
    """The blocks to be cut: which of the different blocks each is, their weights at every point,
    of shape (points, blocks), and what the different ones hold there."""

    kinds: Places
    weights: Weights
    held: BlockBytes
    capacity: float


@dataclass(frozen=True, slots=True)
class Plans:
    """Plans whose stages lie on the same ranks: where stages begin and end, of shape
    (cuts, stages + 1), which of these cuts each plan has, its point, and which of `flights`."""

    bounds: Cuts
    cut: Places
    points: Places
    flights: Sequence[InFlight]
    flight: Places


def fitted_bounds(chain: Chain, groups: Sequence[Plans]) -> list[tuple[Places, Cuts]]:
    """Per group the plans that do not fit but would if their stages began elsewhere, and where
    stages then begin and end."""
    if not groups:
        return []
    sums = _Sums(chain)
    needs = [_Ranks(sums, plans).needs() for plans in groups]
    fits, begins = _Search(chain, _Needs.joined(needs)).search()
    found: list[tuple[Places, Cuts]] = []
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
        different = np.arange(held.state.shape[1])
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
        self.frequent = np.flatnonzero(2 * blocks >= blocks.max())
        """Kinds that make up most of the chain."""
        self.frees = bool(min(held.after_forward.min(), held.after_backward.min()) < 0)
        """Whether more blocks may hold less."""
        self._passing: dict[tuple[int, ...], Floats] = {}

    def of_stages(self, points: Places, bounds: Cuts) -> tuple[Floats, Floats, Floats]:
        """What stages hold at rest, of a microbatch between F and B, and between B and W, each of
        shape (stages, plans)."""
        at = bounds + points * len(self.before)
        state, forward, backward = (
            np.diff(each.take(at), axis=0) for each in (self._state, self._forward, self._backward)
        )
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

    plans: Places
    points: Places
    stages: Places
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


@lru_cache(maxsize=1024)
def _counts(flight: InFlight) -> Floats:
    """Microbatches in flight, of shape (after F and after B, situations, entries)."""
    return np.moveaxis(np.array(flight.counts, np.float64), -1, 0)


class _Ranks:
    """What the ranks of plans hold. An *entry* is a stage on a rank."""

    def __init__(self, sums: _Sums, plans: Plans) -> None:
        self.sums, self.plans, self.chain = sums, plans, sums.chain
        owned = plans.flights[0].stages_of_ranks
        self.ranks = len(owned)
        self.first_of_rank = np.cumsum([0, *map(len, owned[:-1])])
        self.rank_of_entry = np.repeat(np.arange(len(owned)), list(map(len, owned)))
        self.stage_of_entry = np.concatenate([np.asarray(own, np.int64) for own in owned])
        self.several = np.array([len(own) > 1 for own in owned])[self.rank_of_entry, None]
        """Whether the rank of an entry has several."""
        order = np.argsort(self.stage_of_entry, kind="stable")
        homes = np.bincount(self.stage_of_entry)
        last = np.cumsum(homes) - 1
        most = np.arange(int(homes.max()))[:, None]
        self.entry = order[last - (homes - 1 - most) % homes]
        """The entries of each stage, of shape (ranks that hold it, stages)."""
        self.copies = int(homes.min())
        situations = max(len(flight.counts) for flight in plans.flights)
        counts = [_counts(flight) for flight in plans.flights]
        every = np.arange(situations)
        self.in_flight = np.stack([own[:, every % own.shape[1]] for own in counts], axis=-1)
        """Of shape (after F and after B, situations, entries, flights)."""

    def needs(self) -> _Needs:
        """The plans with a rank that holds too much, as far as no cut is known not to fit."""
        chain, plans = self.chain, self.plans
        (some,) = np.nonzero(self._may_fit())
        points, flight, cut = plans.points[some], plans.flight[some], plans.cut[some]
        passing = self._passing(points, flight)
        holds, beside = self._loads(points, flight, cut, passing)
        by_rank = np.add.reduceat(holds, self.first_of_rank, axis=1)
        worst = np.maximum.reduceat(beside, self.first_of_rank, axis=0)
        (over,) = np.nonzero((by_rank.max(axis=0) + worst > chain.capacity).any(axis=0))
        some, points, flight, passing = some[over], points[over], flight[over], passing[:, over]
        by_rank, holds, worst = by_rank[..., over], holds[..., over], worst[:, over]
        situation = by_rank.argmax(axis=0)[self.rank_of_entry]
        entries = np.arange(len(self.stage_of_entry))[:, None]
        forward, backward = self.in_flight[:, situation, entries, flight]
        # Where a rank has several stages, each may keep its share of what the rank holds.
        own = np.take_along_axis(holds, situation[None], 0)[0]
        share = own / np.maximum(by_rank.max(axis=0)[self.rank_of_entry], 1.0)
        every = (forward, backward, share, worst[self.rank_of_entry] * self.several)
        by_stage = np.stack(every)[:, self.entry]
        (may,) = np.nonzero(self._have_room(points, passing, by_stage))
        some, points = some[may], points[may]
        return _Needs(
            some,
            points,
            np.full(len(some), by_stage.shape[2]),
            _heaviest(chain.weights[points], plans.bounds[plans.cut[some]]),
            passing[:, may].T,
            *np.moveaxis(by_stage[..., may], -1, -2).reshape(4, len(self.entry), -1),
        )

    def _may_fit(self) -> Flags:
        """Whether all ranks together hold all blocks, with what is in flight where least is."""
        points = self.plans.points
        least = self.in_flight[0].min(axis=(0, 1))[self.plans.flight]
        needed = self.copies * (self.sums.state[points] + self.sums.kept[points] * least)
        return needed <= self.ranks * self.chain.capacity

    def _have_room(self, points: Places, passing: Floats, by_stage: Floats) -> Flags:
        """Whether there is room for the blocks of every frequent kind, were there no others: for so
        many a stage as have room there alone."""
        found = np.ones(len(points), np.bool_)
        if self.sums.frees:
            return found
        held = self.chain.held
        forward, backward, share, beside = by_stage
        for kind in self.sums.frequent:
            need = held.state[points, kind] + forward * held.after_forward[points, kind]
            need += backward * held.after_backward[points, kind]
            free = share * (self.chain.capacity - np.maximum(beside, passing[kind]))
            room = np.floor(free / np.maximum(need, TINY) * (1 + ROUNDING)).min(axis=0)
            found &= np.maximum(room, 0.0).sum(axis=0) >= self.sums.before[-1, kind]
        return found

    def _passing(self, points: Places, flight: Places) -> Floats:
        """What blocks need in passing, of shape (kinds of block, plans)."""
        actions: dict[tuple[int, ...], int] = {}
        own = [actions.setdefault(each.kinds, len(actions)) for each in self.plans.flights]
        every = [self.sums.passing(each)[:, points] for each in actions]
        return every[0] if len(every) == 1 else np.choose(np.array(own)[flight], every)

    def _loads(
        self, points: Places, flight: Places, cut: Places, passing: Floats
    ) -> tuple[Floats, Floats]:
        """Bytes that entries hold, of shape (situations, entries, plans), and what they need in
        passing, of shape (entries, plans)."""
        bounds = np.ascontiguousarray(self.plans.bounds.T)
        before = self.sums.before[bounds]
        present = np.moveaxis(before[1:] > before[:-1], -1, 0)
        stage = self.stage_of_entry
        beside = np.zeros((len(stage), len(points)))
        for own, most in zip(present, passing, strict=True):
            np.maximum(beside, own[stage][:, cut] * most, out=beside)
        sums = self.sums.of_stages(points, bounds[:, cut])
        state, forward, backward = (each[stage] for each in sums)
        counts = self.in_flight[..., flight]
        return state + (counts[0] * forward + counts[1] * backward), beside


class _Search:
    """Looks for stages that fit, for many plans at once."""

    def __init__(self, chain: Chain, needs: _Needs) -> None:
        self.chain, self.needs = chain, needs
        kinds, held, points = chain.kinds, chain.held, needs.points
        count = held.state.shape[1]
        different = np.arange(count)
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
        self.need = np.concatenate([weight[None], memory]).reshape(1 + len(memory), -1)
        """What a block weighs and holds, of shape (1 + ranks, stages · kinds)."""
        order = np.argsort(needs.passing, axis=1)
        self.place = np.argsort(order, axis=1).ravel()
        """The place of kinds among those of their plan by what they need in passing."""
        passing = np.take_along_axis(needs.passing, order, axis=1)[self.plan]
        beside = np.maximum(needs.beside[..., None], passing)
        free = needs.share[..., None] * (chain.capacity - beside)
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

    def _filled(self, rows: Places, limit: Floats) -> tuple[Flags, Cuts, Floats]:
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
            stage, at, begin, end, own, row = numbers
            kind, run = self.kind_before[begin], self.run_before[begin]
            slot = at * kinds
            need = self.need.take(slot + kind, axis=1)
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


__all__ = ["BlockBytes", "Chain", "Plans", "fitted_bounds"]
