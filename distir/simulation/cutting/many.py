"""The cuts of many plans; `one.py` is the version for one plan.

Plans are cut alike if they have one *arrangement*: a program size, a shape (see `partition.py`),
the microbatches in flight on the ranks, and the order of what ranks run (see `refine.py`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from distir.arrays import Flags, Floats, Indices, distinct, distinct_rows
from distir.plan import BlockProgram, ModelPrograms
from distir.schedules import COST_KINDS, PeakInFlight
from distir.simulation.cutting.fitting import (
    BlocksToCut,
    InFlight,
    PlansToFit,
    Runs,
    fit_as_cut,
    fitted_bounds,
)
from distir.simulation.cutting.parameter_uses import ParameterUses, Partition, PartitionUses
from distir.simulation.cutting.partition import (
    Bounds,
    Shape,
    num_stages,
    rounded_weights,
)
from distir.simulation.cutting.refine import (
    LAUNCHES,
    LINKS,
    SPARE_BYTES,
    STREAMS,
    KnownCuts,
    Order,
    rounded_passes,
)
from distir.simulation.pricing.block_bytes import BlockBytes, mixed
from distir.simulation.pricing.instructions import Pricing
from distir.simulation.pricing.stages import StagePricer

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
class AlikeArrangements:
    """Arrangements with equal stages."""

    shape: int
    arrangements: Indices
    """Their numbers."""
    sizes: Indices
    """Their program sizes, numbered among those of the program kind."""
    uses: PartitionUses
    """Their stages, and what ranks add up."""


class StageCuts:
    """Cuts blocks into stages, at many program sizes of one program kind."""

    def __init__(
        self,
        pricer: StagePricer,
        known_cuts: KnownCuts,
        programs: ModelPrograms,
        pricing: Pricing,
        splits: bool,
        room_bytes: Floats,
        uses: ParameterUses,
    ) -> None:
        """`splits` says whether some schedule splits the backward pass. `room_bytes` are the bytes
        that tensors may take on a device, one number per program size; those of sizes that are not
        cut do not matter."""
        self.pricer, self.workload = pricer, pricer.workload
        self.known_cuts = known_cuts
        self.programs, self.pricing = programs, pricing
        self.splits, self.room_bytes, self.num_sizes = splits, room_bytes, len(room_bytes)
        self.uses = uses

    def cut(self, every: Arrangements, which: Indices, places: Indices) -> CutArrangements:
        """The arrangements with the program sizes `which`, cut into balanced stages that fit;
        `places` are the numbers of these sizes here. What is refined is refined afterwards
        (`refine`), that of several program kinds together."""
        begin, end = (np.searchsorted(every.size, which, side) for side in ("left", "right"))
        counts = end - begin
        starts = np.repeat(begin - np.concatenate([[0], np.cumsum(counts)[:-1]]), counts)
        arrangements = np.arange(int(counts.sum())) + starts
        places = np.repeat(places, counts)
        shapes = every.shape[arrangements]
        mix, size, share = self._mixes(places, every, shapes)
        by_kind = rounded_weights(self._weights(size, share))
        by_block = by_kind[:, self.programs.kinds]
        first, heavy = distinct_rows(by_kind)
        cases, which = distinct(heavy[mix] * len(every.shapes) + shapes)
        bounds = self.known_cuts.balanced.bounds(
            by_block[first], every.shapes, heavy[mix[cases]], shapes[cases]
        )
        alike: dict[Partition, list[int]] = {}
        for case, own in enumerate(zip(shapes[cases].tolist(), bounds, strict=True)):
            alike.setdefault(own, []).append(case)
        of_case = np.empty(len(cases), np.int64)
        for partition, own in enumerate(alike.values()):
            of_case[own] = partition
        kinds, held = np.array(self.programs.kinds), self._held(size, share)
        model = BlocksToCut(kinds, by_block.astype(np.float64), held, self.room_bytes[size])
        cut = _Cut(every, arrangements, mix, list(alike), of_case[which])
        as_cut, moved = self._fit(model, cut)
        ordered = every.order[arrangements] != NO_ORDER
        some, short = as_cut[ordered[as_cut]], moved[ordered[moved]]
        refining = None
        if len(some) or len(short):
            refining = self._refining(model, cut, size, share, some, short)
        return CutArrangements(cut, places, refining)

    def alike(self, found: CutArrangements, wanted: Flags) -> Iterator[AlikeArrangements]:
        """Those arrangements that are cut and `wanted`, those with equal stages together."""
        cut, partitions = found.cut, list(found.cut.partitions)
        some = np.flatnonzero(wanted[cut.arrangements])
        for number, places in _grouped(cut.number[some]):
            chosen, partition = some[places], partitions[number]
            shape, _ = partition
            yield AlikeArrangements(
                shape, cut.arrangements[chosen], found.places[chosen], self.uses.of(partition)
            )

    def _fit(self, model: BlocksToCut, cut: _Cut) -> tuple[Indices, Indices]:
        """Gives arrangements that do not fit as they are cut, but with another cut, that one;
        returns those that fit as they are cut, and those with another cut."""
        some, plans = cut.to_fit(np.arange(len(cut.number)), cut.number)
        found = fitted_bounds(model, plans)
        moved = some[found.moved]
        cut.number[moved] = cut.numbered(moved, found.bounds)
        return some[found.as_cut], moved

    def _refining(
        self,
        model: BlocksToCut,
        cut: _Cut,
        size: Indices,
        share: Floats,
        some: Indices,
        short: Indices,
    ) -> _Refining:
        by_kind = rounded_passes(self._passes(size, share))
        by_block = by_kind[..., self.programs.kinds]
        first, row = distinct_rows(by_kind.reshape(len(by_kind), -1))
        less = replace(model, room_bytes=model.room_bytes * (1 - SPARE_BYTES))
        return _Refining(less, cut, by_block[first], row[cut.mix], some, short)

    def _mixes(
        self, places: Indices, every: Arrangements, shapes: Indices
    ) -> tuple[Indices, Indices, Floats]:
        """What cuts are looked for with: a program size, and the share of layers that stages
        recompute, which depends on the number of stages. `places` and `shapes` are the sizes and
        shapes of arrangements. Returns the number of each arrangement's mix, and of each mix the
        size and the share."""
        if not self.programs.most:
            return places, np.arange(self.num_sizes), np.zeros(self.num_sizes)
        shares = np.array([self.programs.share(num_stages(ranks)) for ranks, _ in every.shapes])
        _, number = distinct(shares)
        first, mix = distinct(places * len(shares) + number[shapes])
        return mix, places[first], shares[shapes[first]]

    def _weights(self, size: Indices, share: Floats) -> Floats:
        """Seconds of the different blocks in mixes, of shape (mixes, kinds)."""
        kept = self._weights_of(self.programs.kept)[size]
        if not self.programs.most:
            return kept
        return mixed(kept, self._weights_of(self.programs.recomputed)[size], share)

    def _weights_of(self, programs: Sequence[BlockProgram]) -> Floats:
        """Seconds of the different blocks, of shape (sizes, kinds)."""
        kinds = dict(zip(self.programs.kinds, programs, strict=True))
        weights = self.pricer.weights(list(kinds.values()), self.pricing)
        return np.stack([np.broadcast_to(each, self.num_sizes) for each in weights], axis=1)

    def _passes(self, size: Indices, share: Floats) -> Floats:
        """What the passes of the different blocks take in mixes, of shape
        (mixes, 3, cost kinds, kinds)."""
        kept = self._passes_of(self.programs.kept)[size]
        if not self.programs.most:
            return kept
        again = self._passes_of(self.programs.recomputed)[size]
        flat = (len(size), -1)
        return mixed(kept.reshape(flat), again.reshape(flat), share).reshape(kept.shape)

    def _passes_of(self, programs: Sequence[BlockProgram]) -> Floats:
        """What the passes of the different blocks take, of shape (sizes, 3, cost kinds, kinds)."""
        kinds = dict(zip(self.programs.kinds, programs, strict=True))
        found = np.zeros((self.num_sizes, 3, COST_KINDS, len(kinds)))
        alone = self.pricer.passes_alone(list(kinds.values()), self.pricing, splits=self.splits)
        for place, own in enumerate(alone):
            for kind, each in enumerate(own):
                found[:, STREAMS, kind, place] = each.stream_seconds
                found[:, LAUNCHES, kind, place] = each.launch_seconds
                found[:, LINKS, kind, place] = each.link_seconds
        return found

    def _held(self, size: Indices, share: Floats) -> BlockBytes:
        """Bytes of the different blocks in mixes."""
        kinds, splits = self.programs.kinds, self.splits
        kept = self.pricer.block_bytes(self.programs.kept, kinds, splits, self.num_sizes)
        if not self.programs.most:
            return kept
        recomputed = self.pricer.block_bytes(
            self.programs.recomputed, kinds, splits, self.num_sizes
        )
        return kept.taken(size).mixed(recomputed.taken(size), share)


class _Cut:
    """How arrangements are cut: the partitions that there are, and the number of each one's
    partition. Arrangements are given by their positions."""

    def __init__(
        self,
        every: Arrangements,
        arrangements: Indices,
        mix: Indices,
        partitions: Sequence[Partition],
        number: Indices,
    ) -> None:
        """`mix` has the mix of blocks of each arrangement (see `StageCuts._mixes`)."""
        self.every, self.arrangements, self.mix = every, arrangements, mix
        self.partitions = {each: number for number, each in enumerate(partitions)}
        self.number = number

    def numbered(self, some: Indices, bounds: Iterable[Bounds]) -> list[int]:
        """The numbers of the partitions with these bounds, one for each of some arrangements."""
        shapes = self.every.shape[self.arrangements[some]].tolist()
        known = self.partitions
        return [known.setdefault(own, len(known)) for own in zip(shapes, bounds, strict=True)]

    def bounds(self, some: Indices) -> list[Bounds]:
        """The bounds of the stages of some arrangements."""
        partitions = list(self.partitions)
        return [partitions[int(number)][1] for number in self.number[some]]

    def to_fit(self, some: Indices, number: Indices) -> tuple[Indices, PlansToFit]:
        """Some arrangements with the partitions `number`, except those with a single stage."""
        flights, flight = self.every.flights, self.every.flight[self.arrangements[some]]
        several = flights.stages.count[flight] > 1
        own = some[several]
        partitions = list(self.partitions)
        first, cut = distinct(number[own])
        bounds = [partitions[place][1] for place in map(int, number[own[first]])]
        begins = Runs.of_counts([*map(len, bounds)]).first
        flat = np.array([*chain.from_iterable(bounds)], np.int64)
        return own, PlansToFit(flat, begins[cut], self.mix[own], flights, flight[several])

    def with_bounds(self, some: Indices, bounds: NDArray[np.int64]) -> PlansToFit:
        """Some arrangements with these bounds, of shape (arrangements, stages + 1)."""
        plans, width = bounds.shape
        flights, flight = self.every.flights, self.every.flight[self.arrangements[some]]
        begins = np.arange(plans, dtype=np.int64) * width
        return PlansToFit(bounds.ravel(), begins, self.mix[some], flights, flight)


@dataclass(frozen=True, slots=True)
class CutArrangements:
    """Arrangements of one program kind, as they are cut."""

    cut: _Cut
    places: Indices
    """Their program sizes, numbered among those of the program kind."""
    refining: _Refining | None
    """What is to be refined, if anything is."""


def refine(known_cuts: KnownCuts, found: Sequence[CutArrangements]) -> None:
    """Gives arrangements refined cuts that fit. Those of several program kinds with the same
    schedules are refined together: a plan is refined alike, alone and with others."""
    every = [each.refining for each in found if each.refining is not None]
    if every:
        _refine_as_cut(known_cuts, every)
        _refine_short_of_memory(known_cuts, every)


@dataclass(slots=True)
class _Refining:
    """The arrangements of a program kind that are refined, given by their positions."""

    model: BlocksToCut
    """The blocks, on devices without `SPARE_BYTES`."""
    cut: _Cut
    rounded: Indices
    """What the passes of blocks take, in whole numbers."""
    row: Indices
    """The row of each arrangement in `rounded`."""
    as_cut: Indices
    """Those that fit as time alone cuts them."""
    short: Indices
    """Those that are short of memory."""

    def cases(self) -> tuple[Indices, Indices]:
        """Of those that fit as they are cut, one of each kind, and the kind of each."""
        cut, some = self.cut, self.as_cut
        key = self.row[some] * len(cut.every.orders) + self.order(some)
        cases, which = distinct(key * len(cut.partitions) + cut.number[some])
        return some[cases], which

    def take(self, own: Indices, which: Indices, bounds: Sequence[Bounds]) -> None:
        """Takes the refined bounds of `cases`, where they fit; the others are short of memory and
        stay as they are."""
        cut, some = self.cut, self.as_cut
        number = cut.number.copy()
        number[some] = np.array(cut.numbered(own, bounds))[which]
        changed = some[number[some] != cut.number[some]]
        places, plans = cut.to_fit(changed, number)
        chosen = fit_as_cut(self.model, plans)
        cut.number[places[chosen]] = number[places[chosen]]
        self.short = np.concatenate([np.delete(places, chosen), self.short])

    def fit(self, places: Indices, bounds: NDArray[np.int64]) -> Flags:
        """Which of those that are short of memory, given by their positions among them, fit with
        these bounds."""
        found = np.zeros(len(places), np.bool_)
        plans = self.cut.with_bounds(self.short[places], bounds)
        found[fit_as_cut(self.model, plans)] = True
        return found

    def order(self, some: Indices) -> Indices:
        """The orders of arrangements."""
        return self.cut.every.order[self.cut.arrangements[some]]


def _refine_as_cut(known_cuts: KnownCuts, every: Sequence[_Refining]) -> None:
    """Refines the arrangements that fit as time alone cuts them."""
    cases = [each.cases() for each in every]
    owns = [own for own, _ in cases]
    if not any(map(len, owns)):
        return
    bounds = known_cuts.refined.bounds(*_to_refine(every, owns))
    for each, (own, which) in zip(every, cases, strict=True):
        if len(own):
            each.take(own, which, bounds[: len(own)])
            bounds = bounds[len(own) :]


def _refine_short_of_memory(known_cuts: KnownCuts, every: Sequence[_Refining]) -> None:
    """Refines arrangements as far as memory allows."""
    owns = [each.short for each in every]
    if not any(map(len, owns)):
        return
    counts = [len(own) for own in owns]
    first = np.cumsum(counts) - counts
    owner = np.repeat(np.arange(len(every)), counts)

    def fit(places: Indices, bounds: NDArray[np.int64]) -> Flags:
        found = np.zeros(len(places), np.bool_)
        for number, each in enumerate(every):
            own = np.flatnonzero(owner[places] == number)
            if len(own):
                found[own] = each.fit(places[own] - first[number], bounds[own])
        return found

    bounds = known_cuts.refined.moved(*_to_refine(every, owns), fit)
    for each, own in zip(every, owns, strict=True):
        if len(own):
            each.cut.number[own] = each.cut.numbered(own, bounds[: len(own)])
            bounds = bounds[len(own) :]


def _to_refine(
    every: Sequence[_Refining], owns: Sequence[Indices]
) -> tuple[Indices, Sequence[Order | None], Indices, Indices, list[Bounds]]:
    """Some arrangements of all program kinds, one after the other: what passes take, the orders,
    the row and the order of each arrangement in them, and its bounds."""
    counts = [len(each.rounded) for each in every]
    firsts = (np.cumsum(counts) - counts).tolist()
    owned = list(zip(every, owns, strict=True))
    return (
        np.concatenate([each.rounded for each in every]),
        every[0].cut.every.orders,
        np.concatenate(
            [first + each.row[own] for first, (each, own) in zip(firsts, owned, strict=True)]
        ),
        np.concatenate([each.order(own) for each, own in owned]),
        [bounds for each, own in owned for bounds in each.cut.bounds(own)],
    )


def _grouped(numbers: Indices) -> Iterator[tuple[int, Indices]]:
    """The different numbers, each with its positions."""
    order = np.argsort(numbers, kind="stable")
    if not len(order):
        return
    different, first = np.unique(numbers[order], return_index=True)
    yield from zip(different.tolist(), np.split(order, first[1:]), strict=True)


__all__ = [
    "AlikeArrangements",
    "Arrangements",
    "CutArrangements",
    "StageCuts",
    "refine",
]
