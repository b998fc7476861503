"""Finds the cuts of the arrangements of several program kinds together.

Kinds with the same pattern of blocks are cut as one model, whose program sizes are those of all of
them: an arrangement is cut alike, alone and with others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import cast

import numpy as np

from distir.arrays import Flags, Floats, Indices, distinct, distinct_rows
from distir.schedules import PeakInFlight
from distir.simulation.cutting.fitting import (
    BlocksToCut,
    InFlight,
    PlansToFit,
    Runs,
    fit_as_cut,
    fitted_bounds,
)
from distir.simulation.cutting.parameter_uses import Partition
from distir.simulation.cutting.partition import Bounds, Shape
from distir.simulation.cutting.refine import SPARE_BYTES, KnownCuts, Order
from distir.simulation.pricing.block_bytes import BlockBytes

NO_ORDER = 0
"""The number of no order among all orders."""


class Arrangements:
    """Arrangements, sorted by their program sizes."""

    def __init__(
        self,
        shapes: Sequence[Shape],
        flights: Sequence[PeakInFlight],
        orders: Sequence[Order | None],
        size: Indices,
        shape: Indices,
        flight: Indices,
        order: Indices,
    ) -> None:
        """The last four have a number for each arrangement; of `orders`, the first is None."""
        self.shapes, self.size, self.shape = shapes, size, shape
        self.orders, self.order = orders, order
        self.flight, self.flights = flight, InFlight.of(flights)
        """The number of each one's schedule, and the microbatches in flight under schedules."""
        sets = np.array([sum(1 << kind for kind in each.cost_kinds) for each in flights], np.uint8)
        self.cost_kinds = sets[flight]
        """The cost kinds of each arrangement's actions, as a set: the sum of all `1 << kind`."""


@dataclass(frozen=True, slots=True)
class ToCut:
    """Arrangements of one program kind, or of several with the same pattern of blocks, and the
    blocks that they are cut from. These come in *mixes*: a program size, and a share of layers that
    stages recompute."""

    arrangements: Indices
    """Their numbers."""
    sizes: Indices
    """Their program sizes, numbered among those of their program kind."""
    kinds: tuple[int, ...]
    """The kind of each block of the model."""
    mix: Indices
    """The mix of each arrangement."""
    weights: Indices
    """What blocks weigh, in whole numbers, of shape (mixes, kinds)."""
    passes: Indices
    """What the passes of blocks take, in whole numbers, of shape (mixes, 3, cost kinds, kinds)."""
    held: BlockBytes
    """Bytes of blocks in mixes."""
    room_bytes: Floats
    """Bytes that tensors may take on a device, one number per mix."""

    @classmethod
    def joined(cls, several: Sequence[ToCut]) -> ToCut:
        """The arrangements of all, one after the other."""
        counts = [len(each.room_bytes) for each in several]
        firsts = (np.cumsum(counts) - counts).tolist()
        return cls(
            np.concatenate([each.arrangements for each in several]),
            np.concatenate([each.sizes for each in several]),
            several[0].kinds,
            np.concatenate([first + each.mix for first, each in zip(firsts, several, strict=True)]),
            np.concatenate([each.weights for each in several]),
            np.concatenate([each.passes for each in several]),
            BlockBytes.joined([each.held for each in several]),
            np.concatenate([each.room_bytes for each in several]),
        )


@dataclass(frozen=True, slots=True)
class CutArrangements:
    """Arrangements of one program kind, as they are cut."""

    arrangements: Indices
    """Their numbers."""
    sizes: Indices
    """Their program sizes, numbered among those of the program kind."""
    partitions: Sequence[Partition]
    """Partitions, among which are theirs."""
    number: Indices
    """The number of the partition of each."""


def cut_together(
    known_cuts: KnownCuts, every: Arrangements, several: Sequence[ToCut]
) -> list[CutArrangements]:
    """The arrangements of several program kinds, cut into stages that are balanced by time as far
    as memory allows, and refined by the order of their schedules, as far as memory allows."""
    alike: dict[tuple[int, ...], list[int]] = {}
    for place, each in enumerate(several):
        alike.setdefault(each.kinds, []).append(place)
    found: dict[int, CutArrangements] = {}
    for places in alike.values():
        own = [several[place] for place in places]
        cut = _Cut(known_cuts, every, ToCut.joined(own))
        cut.refine(*cut.fit())
        partitions = list(cut.partitions)
        ends = np.cumsum([len(each.arrangements) for each in own])
        numbers = np.split(cut.number, ends[:-1])
        for place, each, number in zip(places, own, numbers, strict=True):
            found[place] = CutArrangements(each.arrangements, each.sizes, partitions, number)
    return [found[place] for place in range(len(several))]


class _Cut:
    """How arrangements are cut: the partitions that there are, and the number of each one's
    partition. Arrangements are given by their positions."""

    def __init__(self, known_cuts: KnownCuts, every: Arrangements, blocks: ToCut) -> None:
        """Cuts the arrangements into stages that are balanced by time."""
        self._known, self._every, self._blocks = known_cuts, every, blocks
        own = blocks.arrangements
        self._shape, self._flight, self._order = (
            each[own] for each in (every.shape, every.flight, every.order)
        )
        self.partitions: dict[Partition, int] = {}
        by_block = blocks.weights[:, blocks.kinds]
        first, heavy = distinct_rows(blocks.weights)
        row = heavy[blocks.mix]
        cases, which = distinct(row * len(every.shapes) + self._shape)
        bounds = known_cuts.balanced.bounds(
            by_block[first], every.shapes, row[cases], self._shape[cases]
        )
        self.number = self._numbered(cases, bounds)[which]
        kinds = np.array(blocks.kinds)
        self._model = BlocksToCut(
            kinds, by_block.astype(np.float64), blocks.held, blocks.room_bytes
        )

    def fit(self) -> tuple[Indices, Indices]:
        """Gives arrangements that do not fit as they are cut, but with another cut, that one;
        returns those that fit as they are cut, and those with another cut."""
        some, plans = self._to_fit(np.arange(len(self.number)), self.number)
        found = fitted_bounds(self._model, plans)
        moved = some[found.moved]
        self.number[moved] = self._numbered(moved, found.bounds)
        return some[found.as_cut], moved

    def refine(self, as_cut: Indices, short: Indices) -> None:
        """Refines arrangements whose schedules have an order: those that fit as time alone cuts
        them, and those that are short of memory."""
        as_cut, short = (some[self._order[some] != NO_ORDER] for some in (as_cut, short))
        first, row = distinct_rows(self._blocks.passes.reshape(len(self._blocks.passes), -1))
        rounded, row = self._blocks.passes[first][..., self._blocks.kinds], row[self._blocks.mix]
        less = replace(self._model, room_bytes=self._model.room_bytes * (1 - SPARE_BYTES))
        if len(as_cut):
            short = np.concatenate([self._refine_as_cut(less, rounded, row, as_cut), short])
        if not len(short):
            return

        def fit(places: Indices, bounds: Indices, begins: Indices) -> Flags:
            some, flights = short[places], self._every.flights
            plans = PlansToFit(bounds, begins, self._blocks.mix[some], flights, self._flight[some])
            found = np.zeros(len(places), np.bool_)
            found[fit_as_cut(less, plans)] = True
            return found

        plans = rounded, self._every.orders, row[short], self._order[short], self._bounds(short)
        self.number[short] = self._numbered(short, self._known.refined.moved(*plans, fit))

    def _refine_as_cut(
        self, model: BlocksToCut, rounded: Indices, row: Indices, some: Indices
    ) -> Indices:
        """Refines arrangements, those that are alike once; returns those that do not fit then, and
        stay as they are."""
        orders = self._every.orders
        key = row[some] * len(orders) + self._order[some]
        first, which = distinct(key * len(self.partitions) + self.number[some])
        cases = some[first]
        bounds = self._known.refined.bounds(
            rounded, orders, row[cases], self._order[cases], self._bounds(cases)
        )
        number = self.number.copy()
        number[some] = self._numbered(cases, bounds)[which]
        changed, plans = self._to_fit(some[number[some] != self.number[some]], number)
        chosen = fit_as_cut(model, plans)
        self.number[changed[chosen]] = number[changed[chosen]]
        return cast("Indices", np.delete(changed, chosen))

    # --- partitions -------------------------------------------------------------------------------

    def _numbered(self, some: Indices, bounds: Iterable[Bounds]) -> Indices:
        """The numbers of the partitions with these bounds, one for each of some arrangements."""
        known, shapes = self.partitions, self._shape[some].tolist()
        return np.array(
            [known.setdefault(own, len(known)) for own in zip(shapes, bounds, strict=True)],
            np.int64,
        )

    def _bounds(self, some: Indices) -> list[Bounds]:
        """The bounds of the stages of some arrangements."""
        partitions = list(self.partitions)
        return [partitions[number][1] for number in self.number[some].tolist()]

    def _to_fit(self, some: Indices, number: Indices) -> tuple[Indices, PlansToFit]:
        """Some arrangements with the partitions `number`, except those with a single stage."""
        flights = self._every.flights
        own = some[flights.stages.count[self._flight[some]] > 1]
        partitions = list(self.partitions)
        first, cut = distinct(number[own])
        bounds = [partitions[place][1] for place in map(int, number[own[first]])]
        begins = Runs.of_counts([*map(len, bounds)]).first
        flat = np.array([*chain.from_iterable(bounds)], np.int64)
        return own, PlansToFit(flat, begins[cut], self._blocks.mix[own], flights, self._flight[own])


__all__ = ["NO_ORDER", "Arrangements", "CutArrangements", "ToCut", "cut_together"]
