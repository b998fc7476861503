"""Cuts the blocks of models into stages that fit in memory, for many plans at once.

Stages are balanced by time first (`partition.py`). If a rank then needs more memory than its device
has, this module looks for the cut that fits and has the lightest heaviest stage. Early ranks have
most microbatches in flight, so they get fewer blocks, and so does the rank with the vocabulary. The
bytes of a stage are estimated by the sum of the bytes of its blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np

from distir.arrays import Flags, Floats, Indices
from distir.schedules import PeakInFlight
from distir.simulation.cutting.partition import Cuts, Weights
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
class InFlight:
    """Microbatches in flight under several schedules with the same stages on ranks and the same
    cost kinds. An *entry* is a stage on a rank; entries are listed rank by rank."""

    cost_kinds: tuple[int, ...]
    counts: Floats
    """Microbatches between F and B, and between B and W, of shape (2, situations, entries,
    schedules)."""
    fullest: Floats
    """`counts` without situations in which every entry has at most what it has in an earlier
    one."""
    stage: Indices
    """The stage of each entry."""
    rank: Indices
    """The rank of each entry."""
    entries: Indices
    """The entries of each stage, of shape (ranks that hold it, stages)."""

    @classmethod
    def of(cls, flights: Sequence[PeakInFlight]) -> InFlight:
        """The microbatches in flight under schedules; see the class."""
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
        """The number of ranks."""
        return int(self.rank[-1]) + 1

    @property
    def first_of_rank(self) -> Indices:
        """The first entry of each rank."""
        return np.searchsorted(self.rank, np.arange(self.ranks))

    @property
    def shares_its_rank(self) -> Flags:
        """Whether the rank of an entry holds several stages."""
        return np.bincount(self.rank)[self.rank] > 1


@dataclass(frozen=True, slots=True)
class PlansToFit:
    """Plans whose stages lie on the same ranks."""

    bounds: Cuts
    """Bounds of stages, of shape (cuts, stages + 1)."""
    cut: Indices
    """The number of each plan's cut."""
    sizes: Indices
    """The number of each plan's program size."""
    flights: InFlight
    flight: Indices
    """The number of each plan's schedule in `flights`."""

    def taken(self, which: Indices) -> PlansToFit:
        """The plans with these numbers."""
        cut, sizes, flight = (each[which] for each in (self.cut, self.sizes, self.flight))
        return PlansToFit(self.bounds, cut, sizes, self.flights, flight)


class FittedPlans(NamedTuple):
    """Plans of a group, given by their numbers."""

    as_cut: Indices
    """Those that fit as they are cut."""
    moved: Indices
    """Those that do not, but fit with another cut."""
    bounds: Cuts
    """The bounds of that cut, of shape (plans, stages + 1)."""


def fitted_bounds(model: BlocksToCut, groups: Sequence[PlansToFit]) -> list[FittedPlans]:
    """Per group of plans, which fit, and with which bounds."""
    if not groups:
        return []
    sums = _Sums(model)
    every = [(ranks.as_cut(), ranks.needs()) for ranks in (_Ranks(sums, each) for each in groups)]
    fits, begins = _Search(model, _Needs.joined([needs for _, needs in every])).search()
    found: list[FittedPlans] = []
    for as_cut, need in every:
        count = len(need.plans)
        own = begins[: count * need.num_stages].reshape(count, need.num_stages)[fits[:count]]
        end = np.full((len(own), 1), len(model.kinds))
        found.append(FittedPlans(as_cut, need.plans[fits[:count]], np.hstack([own, end])))
        fits, begins = fits[count:], begins[count * need.num_stages :]
    return found


def fit_as_cut(model: BlocksToCut, groups: Sequence[PlansToFit]) -> list[Indices]:
    """Per group of plans, the numbers of those that fit as they are cut."""
    sums = _Sums(model)
    return [_Ranks(sums, plans).as_cut() for plans in groups]


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
        self._passing: dict[tuple[int, ...], Floats] = {}

    def of_stages(self, sizes: Indices, bounds: Cuts) -> tuple[Floats, Floats, Floats | None]:
        """Bytes of stages: of their state, of a microbatch between F and B, and of one between B
        and W (None if there are none), each of shape (stages, plans)."""
        at = bounds + sizes * len(self.before)
        state, forward = (np.diff(each.take(at), axis=0) for each in (self._state, self._forward))
        backward = np.diff(self._backward.take(at), axis=0) if self._backward.any() else None
        return state, forward, backward

    def passing(self, cost_kinds: tuple[int, ...]) -> Floats:
        """Bytes that kinds of block need while an action of these cost kinds passes through them,
        of shape (kinds, sizes)."""
        if cost_kinds not in self._passing:
            every = [self.model.held.passing[cost_kind] for cost_kind in cost_kinds]
            self._passing[cost_kinds] = np.max(every, axis=0).T
        return self._passing[cost_kinds]


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

    @property
    def num_stages(self) -> int:
        """The number of stages of each plan, in a group with one number."""
        return int(self.stages[0]) if len(self.stages) else 0

    @classmethod
    def joined(cls, needs: Sequence[_Needs]) -> _Needs:
        """The needs of several groups as one."""
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
        flights = plans.flights
        # If more blocks never take fewer bytes, only the fullest situations matter.
        self.in_flight = flights.counts if sums.frees else flights.fullest
        (self.may_fit,) = np.nonzero(self._may_fit(plans))
        self.plans = plans.taken(self.may_fit)
        self.passing = sums.passing(flights.cost_kinds)[:, self.plans.sizes]
        """Bytes that blocks need while an action passes through them, of shape (kinds, plans)."""
        self._holds, beside = self._loads()
        first = flights.first_of_rank
        self._by_rank = np.add.reduceat(self._holds, first, axis=1)
        self._worst = np.maximum.reduceat(beside, first, axis=0)
        self._fullest = self._by_rank.max(axis=0)
        room = self.model.room_bytes[self.plans.sizes]
        self._over = (self._fullest + self._worst > room).any(axis=0)

    def as_cut(self) -> Indices:
        """The plans of which every rank fits."""
        return self.may_fit[~self._over]

    def needs(self) -> _Needs:
        """The plans with a rank that does not fit, without those for which surely no cut fits."""
        holds, by_rank, worst, fullest = self._holds, self._by_rank, self._worst, self._fullest
        first, rank = self.flights.first_of_rank, self.flights.rank
        (over,) = np.nonzero(self._over)
        flight = self.plans.flight[over]
        if len(holds) == 1:
            own = holds[0][:, over]
            forward, backward = self.in_flight[:, 0][..., flight]
        else:
            situation = by_rank[..., over].argmax(axis=0)[rank]
            own = np.take_along_axis(holds[..., over], situation[None], 0)[0]
            every = np.arange(len(rank))[:, None]
            forward, backward = self.in_flight[:, situation, every, flight]
        # Each of several stages of a rank may keep its share of the rank's memory.
        share = own / np.maximum(fullest[:, over], 1.0)[rank]
        besides = (worst[:, over] * self.flights.shares_its_rank[first, None])[rank]
        return self._chosen(over, forward, backward, share, besides)

    def _may_fit(self, plans: PlansToFit) -> Flags:
        """Whether all ranks together have room for all blocks, if every rank has as few
        microbatches in flight as the rank with fewest."""
        least = self.in_flight[0].min(axis=(0, 1))[plans.flight]
        needed = self.sums.state[plans.sizes] + self.sums.kept[plans.sizes] * least
        copies = int(np.bincount(self.flights.stage).min())
        return copies * needed <= self.flights.ranks * self.model.room_bytes[plans.sizes]

    def _loads(self) -> tuple[Floats, Floats]:
        """Bytes that entries hold, of shape (situations, entries, plans), and bytes that they need
        while an action passes through them, of shape (entries, plans)."""
        cut, stage = self.plans.cut, self.flights.stage
        bounds = np.ascontiguousarray(self.plans.bounds.T)
        before = self.sums.before[bounds]
        present = (before[1:] > before[:-1])[stage]
        beside = np.zeros((len(stage), len(cut)))
        for kind, most in enumerate(self.passing):
            (some,) = np.nonzero(present[..., kind].any(axis=1))
            needed = np.where(present[some, :, kind][:, cut], most, 0.0)
            beside[some] = np.maximum(beside[some], needed)
        state, forward, backward = self.sums.of_stages(self.plans.sizes, bounds[:, cut])
        holds = self.in_flight[0][..., self.plans.flight] * forward[stage]
        if backward is not None:
            holds += self.in_flight[1][..., self.plans.flight] * backward[stage]
        holds += state[stage]
        return holds, beside

    def _chosen(
        self, over: Indices, forward: Floats, backward: Floats, share: Floats, beside: Floats
    ) -> _Needs:
        """The needs of the plans `over` that are not ruled out. The other arguments have the shape
        (entries, plans); see `_Needs`."""
        entries = self.flights.entries
        (may,) = np.nonzero(self._have_room(over, forward, backward, share, beside))
        every = np.stack([each[:, may].T for each in (forward, backward, share, beside)])
        by_stage = np.moveaxis(every[:, :, entries], 2, 1)
        plans = self.plans.taken(over[may])
        return _Needs(
            self.may_fit[over[may]],
            plans.sizes,
            np.full(len(may), entries.shape[1]),
            _heaviest(self.model.weights[plans.sizes], plans.bounds[plans.cut]),
            self.passing[:, over[may]].T,
            *by_stage.reshape(4, len(entries), -1),
        )

    def _have_room(
        self, over: Indices, forward: Floats, backward: Floats, share: Floats, beside: Floats
    ) -> Flags:
        """Whether the blocks of every frequent kind would fit if there were no other blocks."""
        held, sizes = self.model.held, self.plans.sizes[over]
        found = np.ones(len(over), np.bool_)
        for kind in () if self.sums.frees else self.sums.frequent:
            need = held.state[sizes, kind] + forward * held.after_forward[sizes, kind]
            need += backward * held.after_backward[sizes, kind]
            free = share * (
                self.model.room_bytes[sizes] - np.maximum(beside, self.passing[kind, over])
            )
            room = np.floor(free / np.maximum(need, TINY) * (1 + RELATIVE_ERROR))
            room = np.maximum(room[self.flights.entries].min(axis=0), 0.0)
            found &= room.sum(axis=0) >= self.sums.before[-1, kind]
        return found


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


def _heaviest(weights: Weights, bounds: Cuts) -> Floats:
    prefix = np.zeros((len(weights), weights.shape[1] + 1))
    np.cumsum(weights, axis=1, out=prefix[:, 1:])
    return np.diff(np.take_along_axis(prefix, bounds, 1), axis=1).max(axis=1, initial=0.0)


__all__ = [
    "BlockBytes",
    "BlocksToCut",
    "FittedPlans",
    "InFlight",
    "PlansToFit",
    "fit_as_cut",
    "fitted_bounds",
]
