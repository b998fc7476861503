"""The cuts of many plans; `one.py` is the version for one plan.

Plans are cut alike if they have one *arrangement*: a program size, a shape (see `partition.py`),
and the microbatches in flight on the ranks."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from distir.arrays import Floats, Indices, distinct, distinct_rows
from distir.plan import BlockProgram, ModelPrograms, Stage
from distir.plan.model import in_one_stage
from distir.schedules import PeakInFlight
from distir.simulation.cutting.fitting import BlocksToCut, InFlight, PlansToFit, fitted_bounds
from distir.simulation.cutting.partition import (
    Bounds,
    Partitions,
    Shape,
    num_stages,
    rounded_weights,
)
from distir.simulation.pricing.block_bytes import BlockBytes, mixed
from distir.simulation.pricing.instructions import Pricing
from distir.simulation.pricing.stages import StagePricer
from distir.simulation.pricing.tied import (
    NOTHING_ELSEWHERE,
    ChargedElsewhere,
    KnownGradients,
    StagesOfRanks,
    charged_to_earlier,
    tied_bytes,
)

StageBlocks = tuple[int, int, int]
"""A stage: its first block, the block after its last, and the number of what is charged
elsewhere."""

Partition = tuple[int, Bounds]
"""The number of a shape, and the bounds of its stages."""


class Arrangements:
    """Arrangements, sorted by their program sizes. A *family* of arrangements has one shape and the
    same cost kinds."""

    def __init__(
        self,
        shapes: Sequence[Shape],
        flights: Sequence[PeakInFlight],
        size: Indices,
        shape: Indices,
        flight: Indices,
    ) -> None:
        self.shapes, self.size, self.shape = shapes, size, shape
        first, pair = distinct(shape * max(1, len(flights)) + flight)
        members: dict[tuple[int, tuple[int, ...]], list[PeakInFlight]] = {}
        family: list[int] = []
        member: list[int] = []
        for own, number in zip(shape[first].tolist(), flight[first].tolist(), strict=True):
            key = (int(own), flights[int(number)].cost_kinds)
            alike = members.setdefault(key, [])
            family.append(list(members).index(key))
            member.append(len(alike))
            alike.append(flights[int(number)])
        self.family, self.member = (np.array(each, np.int64)[pair] for each in (family, member))
        """The family of each arrangement, and the number of its schedule in that family."""
        self.families = [(own, InFlight.of(alike)) for (own, _), alike in members.items()]
        """The shape of each family, and the microbatches in flight under its schedules."""


@dataclass(frozen=True, slots=True)
class AlikeArrangements:
    """Arrangements with equal stages."""

    shape: int
    arrangements: Indices
    """Their numbers."""
    sizes: Indices
    """Their program sizes, numbered among those of the program kind."""
    stages: list[StageBlocks]
    """Their stages."""
    tied: dict[tuple[int, ...], Any]
    """Bytes of gradients that groups of ranks add up, by the ranks."""


class StageCuts:
    """Cuts blocks into stages, at many program sizes of one program kind."""

    def __init__(
        self,
        pricer: StagePricer,
        partitions: Partitions,
        programs: ModelPrograms,
        pricing: Pricing,
        splits: bool,
        room_bytes: Floats,
    ) -> None:
        """`splits` says whether some schedule splits the backward pass. `room_bytes` are the bytes
        that tensors may take on a device, one number per program size."""
        self.pricer, self.workload = pricer, pricer.workload
        self.partitions = partitions
        self.programs, self.pricing = programs, pricing
        self.splits, self.room_bytes, self.num_sizes = splits, room_bytes, len(room_bytes)
        self.uses: dict[tuple[ChargedElsewhere, ...], int] = {}
        """What is charged elsewhere, per block of a stage, with numbers from 1."""
        self._sharing = sorted(self.workload.program.sharing_blocks)
        self._known_charged: dict[tuple[int, int, tuple[int, ...]], int] = {}
        self._gradients: KnownGradients = {}
        self._known_tied: dict[
            tuple[StagesOfRanks, tuple[int, ...]], dict[tuple[int, ...], Any]
        ] = {}

    def alike(self, every: Arrangements, which: Indices) -> Iterator[AlikeArrangements]:
        """The arrangements with the program sizes `which`, those with equal stages together."""
        begin, end = (np.searchsorted(every.size, which, side) for side in ("left", "right"))
        counts = end - begin
        starts = np.repeat(begin - np.concatenate([[0], np.cumsum(counts)[:-1]]), counts)
        arrangements = np.arange(int(counts.sum())) + starts
        places = np.repeat(np.arange(self.num_sizes), counts)
        shapes = every.shape[arrangements]
        mix, size, share = self._mixes(places, every, shapes)
        by_kind = rounded_weights(self._weights(size, share))
        by_block = by_kind[:, self.programs.kinds]
        first, heavy = distinct_rows(by_kind)
        cases, which = distinct(heavy[mix] * len(every.shapes) + shapes)
        bounds = self.partitions.bounds(
            by_block[first], every.shapes, heavy[mix[cases]], shapes[cases]
        )
        alike: dict[Partition, list[int]] = {}
        for case, own in enumerate(zip(shapes[cases].tolist(), bounds, strict=True)):
            alike.setdefault(own, []).append(case)
        of_case = np.empty(len(cases), np.int64)
        for partition, own in enumerate(alike.values()):
            of_case[own] = partition
        number = of_case[which]
        partitions = {each: partition for partition, each in enumerate(alike)}
        kinds, held = np.array(self.programs.kinds), self._held(size, share)
        model = BlocksToCut(kinds, by_block.astype(np.float64), held, self.room_bytes[size])
        for some, own in self._fitted(model, list(alike), number, every, arrangements, mix):
            number[some] = partitions.setdefault(own, len(partitions))
        found = list(partitions)
        for partition, chosen in _grouped(number):
            shape, own = found[partition]
            ranks, _ = every.shapes[shape]
            stages, tied = self._stages(ranks, own), self._tied(ranks, own)
            yield AlikeArrangements(shape, arrangements[chosen], places[chosen], stages, tied)

    def _fitted(
        self,
        model: BlocksToCut,
        partitions: Sequence[Partition],
        number: Indices,
        every: Arrangements,
        arrangements: Indices,
        mix: Indices,
    ) -> list[tuple[int, Partition]]:
        """The arrangements that do not fit with their partitions but do with another one, each with
        that partition. `number` has the partition, and `mix` the mix of blocks (see `_mixes`), of
        each of `arrangements`."""
        cuts: dict[int, list[Bounds]] = {}
        cut = np.zeros(len(partitions), np.int64)
        for partition, (shape, bounds) in enumerate(partitions):
            own = cuts.setdefault(shape, [])
            cut[partition] = len(own)
            own.append(bounds)
        groups: list[PlansToFit] = []
        chosen: list[tuple[int, Indices]] = []
        for family, some in _grouped(every.family[arrangements]):
            shape, flights = every.families[family]
            if len(cuts[shape][0]) > 2:
                bounds, member = np.array(cuts[shape]), every.member[arrangements[some]]
                groups.append(PlansToFit(bounds, cut[number[some]], mix[some], flights, member))
                chosen.append((shape, some))
        return [
            (arrangement, (shape, tuple(bounds)))
            for (shape, some), (moved, found) in zip(
                chosen, fitted_bounds(model, groups), strict=True
            )
            for arrangement, bounds in zip(some[moved].tolist(), found.tolist(), strict=True)
        ]

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
        found = [
            np.broadcast_to(np.asarray(self.pricer.weight(program, self.pricing)), self.num_sizes)
            for program in kinds.values()
        ]
        return np.stack(found, axis=1)

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

    def _stage(self, index: int, blocks: Iterable[int]) -> Stage:
        chosen = tuple(blocks)
        # Gradients are the same whether or not a block recomputes.
        programs = [self.programs.kept[block] for block in chosen]
        return Stage(index, chosen, in_one_stage(self.workload.program, chosen, programs))

    def _stages(self, ranks: StagesOfRanks, bounds: Sequence[int]) -> list[StageBlocks]:
        """The stages with these bounds."""
        stages = [(begin, end, 0) for begin, end in pairwise(bounds)]
        home = {block: bisect_right(bounds, block) - 1 for block in self._sharing}
        for stage in set(home.values()):
            begin, end, _ = stages[stage]
            own = next(own for own in ranks if stage in own)
            earlier = (block for block in self._sharing if home[block] in own and block < begin)
            stages[stage] = (begin, end, self._charged(begin, end, tuple(earlier)))
        return stages

    def _charged(self, begin: int, end: int, earlier: tuple[int, ...]) -> int:
        """The number of what is charged elsewhere of a stage, given the `earlier` blocks of its
        rank that share parameters."""
        key = (begin, end, earlier)
        if key not in self._known_charged:
            stage = self._stage(0, range(begin, end))
            found = charged_to_earlier(self.workload.program, stage, earlier)
            charged = any(each != NOTHING_ELSEWHERE for each in found)
            number = self.uses.setdefault(found, len(self.uses) + 1) if charged else 0
            self._known_charged[key] = number
        return self._known_charged[key]

    def _tied(self, ranks: StagesOfRanks, bounds: Sequence[int]) -> dict[tuple[int, ...], Any]:
        """Bytes of gradients that groups of ranks add up, by the ranks."""
        if not self.workload.training:
            return {}
        if sum(map(len, ranks)) >= len(bounds):
            blocks = [range(begin, end) for begin, end in pairwise(bounds)]
            return self._tied_of(ranks, blocks)
        # No stage is on several ranks, so only the uses of shared parameters matter.
        key = (ranks, tuple(bisect_right(bounds, block) - 1 for block in self._sharing))
        if key not in self._known_tied:
            sharing: list[list[int]] = [[] for _ in bounds[1:]]
            for block, stage in zip(self._sharing, key[1], strict=True):
                sharing[stage].append(block)
            self._known_tied[key] = self._tied_of(ranks, sharing)
        return self._known_tied[key]

    def _tied_of(
        self, ranks: StagesOfRanks, blocks: Iterable[Iterable[int]]
    ) -> dict[tuple[int, ...], Any]:
        stages = [self._stage(index, own) for index, own in enumerate(blocks)]
        return dict(tied_bytes(self.workload, ranks, stages, self._gradients))


def _grouped(numbers: Indices) -> Iterator[tuple[int, Indices]]:
    """The different numbers, each with its positions."""
    order = np.argsort(numbers, kind="stable")
    different, first = np.unique(numbers[order], return_index=True)
    yield from zip(different.tolist(), np.split(order, first[1:]), strict=True)


__all__ = ["AlikeArrangements", "Arrangements", "StageBlocks", "StageCuts"]
