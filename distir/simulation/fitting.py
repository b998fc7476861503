"""Cuts of chains of blocks into stages that fit in memory, those of many plans at once.

Stages are cut for time first (`partition`). Where a rank then holds more than its device, the
cut is looked for that fits and whose heaviest stage is the lightest: early ranks have most
microbatches in flight and get fewer blocks, the rank with the vocabulary too. What a stage holds
is taken to be the sum of what its blocks hold one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distir.schedules import InFlight
from distir.simulation.partition import Cuts, Places, Weights

TINY = 1e-300

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
    (plans, stages + 1), their points, and of `flights` which they have."""

    bounds: Cuts
    points: Places
    flights: Sequence[InFlight]
    flight: Places


def fitted_bounds(chain: Chain, groups: Sequence[Plans]) -> list[tuple[Places, Cuts]]:
    """Per group the plans that do not fit but would if their stages began elsewhere, and where
    stages then begin and end."""
    found: list[tuple[Places, Cuts]] = []
    if not groups:
        return found
    needs = [_Ranks(chain, plans).needs() for plans in groups]
    rows, begins = _Search(chain, _Needs.joined(needs)).search()
    first = 0
    for need in needs:
        own = (first <= rows) & (rows < first + len(need.plans))
        begin = begins[own, : need.share.shape[-1]]
        end = np.full((len(begin), 1), len(chain.kinds))
        found.append((need.plans[rows[own] - first], np.hstack([begin, end])))
        first += len(need.plans)
    return found


@dataclass(frozen=True, slots=True)
class _Needs:
    """Plans that do not fit. `lightest`: no cut has only stages lighter than this. `passing` is
    what blocks need in passing, of shape (plans, kinds of block). Of each stage, on each rank that
    holds it, of shape (plans, ranks, stages): microbatches after F and after B when the rank holds
    most, the stage's share of the rank's memory, and what stages beside it need in passing."""

    plans: Places
    points: Places
    stages: Places
    lightest: Floats
    passing: Floats
    forward: Floats
    backward: Floats
    share: Floats
    beside: Floats

    @classmethod
    def joined(cls, needs: Sequence[_Needs]) -> _Needs:
        """Of several groups; where there are fewer stages than columns, the rest is zeros."""
        ranks, stages = np.max([need.share.shape[1:] for need in needs], axis=0)

        def padded(values: NDArray[Any]) -> NDArray[Any]:
            if values.ndim < 3:
                return values
            wider = values[:, np.arange(ranks) % values.shape[1]]
            return np.pad(wider, [(0, 0), (0, 0), (0, stages - values.shape[2])])

        names = [each.name for each in fields(cls)]
        return cls(*(np.concatenate([padded(getattr(n, name)) for n in needs]) for name in names))

    def taken(self, rows: Places) -> _Needs:
        """Some of them."""
        return _Needs(*(getattr(self, each.name)[rows] for each in fields(self)))


class _Ranks:
    """What the ranks of plans hold. An *entry* is a stage on a rank."""

    def __init__(self, chain: Chain, plans: Plans) -> None:
        self.chain, self.plans = chain, plans
        self.owned = owned = plans.flights[0].stages_of_ranks
        self.first_of_rank = np.cumsum([0, *map(len, owned[:-1])])
        self.rank_of_entry = np.repeat(np.arange(len(owned)), [len(own) for own in owned])
        self.stage_of_entry = np.concatenate([np.asarray(own, np.int64) for own in owned])
        stages = range(1 + int(self.stage_of_entry.max()))
        self.of_stage = [np.flatnonzero(self.stage_of_entry == stage) for stage in stages]
        """The entries of each stage."""
        most = max(len(flight.counts) for flight in plans.flights)
        shape = (most, len(self.stage_of_entry), 2)
        counts = np.array([np.resize(flight.counts, shape) for flight in plans.flights])
        self.in_flight = counts.astype(np.float64)
        """Of shape (flights, situations, entries, 2)."""

    def needs(self) -> _Needs:
        """The plans with a rank that holds too much."""
        passing = self._passing()
        holds, beside = self._loads(passing)
        by_rank = np.add.reduceat(holds, self.first_of_rank, axis=-1)
        worst = np.maximum.reduceat(beside, self.first_of_rank, axis=-1)
        over = (by_rank.max(axis=1) + worst > self.chain.capacity).any(axis=-1)
        (plans,) = np.nonzero(over & self._may_fit())
        holds, by_rank, worst = holds[plans], by_rank[plans], worst[plans]
        situation = by_rank.argmax(axis=1)[:, self.rank_of_entry]
        entries = np.arange(len(self.stage_of_entry))
        counts = self.in_flight[self.plans.flight[plans][:, None], situation, entries]
        # Where a rank has several stages, each may keep its share of what the rank holds.
        own = np.take_along_axis(holds, situation[:, None], 1)[:, 0]
        share = own / np.maximum(by_rank.max(axis=1)[:, self.rank_of_entry], 1.0)
        several = np.array([len(own) > 1 for own in self.owned])
        beside = (worst * several)[:, self.rank_of_entry]
        most = max(map(len, self.of_stage))
        entry = np.array([np.resize(each, most) for each in self.of_stage]).T
        points = self.plans.points[plans]
        return _Needs(
            plans,
            points,
            np.full(len(plans), len(self.of_stage)),
            _heaviest(self.chain.weights[points], self.plans.bounds[plans]),
            passing[plans],
            counts[:, entry, 0],
            counts[:, entry, 1],
            share[:, entry],
            beside[:, entry],
        )

    def _may_fit(self) -> Flags:
        """Whether all ranks together hold all blocks, with what is in flight where least is."""
        held, points = self.chain.held, self.plans.points
        blocks = np.bincount(self.chain.kinds)
        state, kept = held.state @ blocks, np.maximum(held.after_forward @ blocks, 0.0)
        least = self.in_flight[..., 0].min(axis=(1, 2))[self.plans.flight]
        needed = min(map(len, self.of_stage)) * (state[points] + kept[points] * least)
        return needed <= len(self.owned) * self.chain.capacity

    def _passing(self) -> Floats:
        """What blocks need in passing, of shape (plans, kinds of block)."""
        held, points, flights = self.chain.held, self.plans.points, self.plans.flights
        found = np.zeros((len(points), held.state.shape[1]))
        for kinds in {flight.kinds for flight in flights}:
            chosen = np.array([flight.kinds == kinds for flight in flights])[self.plans.flight]
            found[chosen] = np.max([held.passing[kind][points[chosen]] for kind in kinds], axis=0)
        return found

    def _loads(self, passing: Floats) -> tuple[Floats, Floats]:
        """Bytes that entries hold, of shape (plans, situations, entries), and what they need in
        passing, of shape (plans, entries)."""
        kinds, held = self.chain.kinds, self.chain.held
        bounds, points = self.plans.bounds, self.plans.points
        different = np.arange(passing.shape[1])
        before = np.zeros((len(kinds) + 1, len(different)))
        np.cumsum(kinds[:, None] == different, axis=0, out=before[1:])
        begin, end = bounds[:, :-1][:, self.stage_of_entry], bounds[:, 1:][:, self.stage_of_entry]
        state, forward, backward, beside = (np.zeros(begin.shape) for _ in range(4))
        for kind in different:
            blocks = before[end, kind] - before[begin, kind]
            state += blocks * held.state[points, kind, None]
            forward += blocks * held.after_forward[points, kind, None]
            backward += blocks * held.after_backward[points, kind, None]
            np.maximum(beside, np.where(blocks, passing[:, kind, None], 0.0), out=beside)
        counts = self.in_flight[self.plans.flight]
        in_flight = counts[..., 0] * forward[:, None] + counts[..., 1] * backward[:, None]
        return state[:, None] + in_flight, beside


class _Search:
    """Looks for stages that fit, for many plans at once."""

    def __init__(self, chain: Chain, needs: _Needs) -> None:
        self.chain, self.needs = chain, needs
        # Runs of equal blocks, from the last to the first.
        self.runs = [(kind, len(list(run))) for kind, run in groupby(chain.kinds[::-1].tolist())]
        first = [chain.kinds.tolist().index(kind) for kind in range(1 + int(chain.kinds.max()))]
        self.weight = chain.weights[:, first]

    def search(self) -> tuple[Places, Cuts]:
        """The plans for which something fits, and where stages begin."""
        total = self.chain.weights.sum(axis=1)
        fits, begins, high = self._filled(self.needs, total[self.needs.points])
        (rows,) = np.nonzero(fits)
        begins, high, some = begins[rows], high[rows], self.needs.taken(rows)
        low = np.minimum(some.lightest, high)
        for _ in range(TRIES if len(rows) else 0):
            limit = np.sqrt(low * high)
            fits, better, heaviest = self._filled(some, limit)
            begins = np.where(fits[:, None], better, begins)
            high, low = np.where(fits, heaviest, high), np.where(fits, low, limit)
        return rows, begins

    def _filled(self, needs: _Needs, limit: Floats) -> tuple[Flags, Cuts, Floats]:
        """Fills stages with blocks from the last to the first, none heavier than the limit, run by
        run: which plans that is possible for, where stages begin, and what the heaviest weighs."""
        plans, held = np.arange(len(needs.plans)), self.chain.held
        kind_of_run = np.array([*(kind for kind, _ in self.runs), 0])
        length_of_run = np.array([*(length for _, length in self.runs), 0])
        every = (self.weight, held.state, held.after_forward, held.after_backward)
        values = np.stack([*(each[needs.points] for each in every), needs.passing])
        begins = np.zeros((len(plans), needs.share.shape[2]), np.int64)
        stage, run = needs.stages - 1, np.zeros(len(plans), np.int64)
        left, blocks_left = length_of_run[run], np.full(len(plans), len(self.chain.kinds))
        filled, heaviest = np.zeros((5, len(plans))), np.zeros(len(plans))
        placed = np.zeros(len(plans))
        fits = np.ones(len(plans), np.bool_)
        while (active := fits & (blocks_left > 0)).any():
            own = values[:, plans, kind_of_run[run]]
            # The stages before this one need a block each.
            room = np.minimum(left, blocks_left - stage)
            room = np.minimum(room, (limit - filled[0]) // np.maximum(own[0], TINY))
            for copy in range(needs.share.shape[1]):
                at = plans, copy, stage
                flight = np.stack([np.ones(len(plans)), needs.forward[at], needs.backward[at]])
                beside = np.maximum(needs.beside[at], np.maximum(filled[4], own[4]))
                free = needs.share[at] * (self.chain.capacity - beside)
                free = free - (flight * filled[1:4]).sum(axis=0)
                room = np.minimum(room, free // np.maximum((flight * own[1:4]).sum(axis=0), TINY))
            count = np.where(active, np.maximum(room, 0), 0)
            filled[:4] += count * own[:4]
            filled[4] = np.where(count > 0, np.maximum(filled[4], own[4]), filled[4])
            np.maximum(heaviest, filled[0], out=heaviest)
            placed, left = placed + count, left - count.astype(np.int64)
            blocks_left = blocks_left - count.astype(np.int64)
            ended = active & (left == 0)
            full = active & ~ended
            fits &= ~full | ((placed > 0) & (stage > 0))
            begins[plans[full], stage[full]] = blocks_left[full]
            filled, placed = np.where(full, 0.0, filled), np.where(full, 0.0, placed)
            stage = np.maximum(stage - full, 0)
            run = run + ended
            left = np.where(ended, length_of_run[run], left)
        return fits, begins, heaviest


def _heaviest(weights: Weights, bounds: Cuts) -> Floats:
    prefix = np.zeros((len(weights), weights.shape[1] + 1))
    np.cumsum(weights, axis=1, out=prefix[:, 1:])
    return np.diff(np.take_along_axis(prefix, bounds, 1), axis=1).max(axis=1, initial=0.0)


__all__ = ["BlockBytes", "Chain", "Plans", "fitted_bounds"]
