"""The arrangements of one program kind, and the rows of their stages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from distir.arrays import Floats, Indices, distinct_rows
from distir.plan import BlockProgram, ModelPrograms
from distir.plan.grid import DeviceGrid
from distir.simulation.cutting.many import AlikeArrangements, StageCuts
from distir.simulation.cutting.parameter_uses import (
    KnownParameterUses,
    ParameterUses,
    StageBlocks,
)
from distir.simulation.cutting.together import CutArrangements
from distir.simulation.many.priced_programs import PricedPrograms
from distir.simulation.many.program_sizes import ProgramSizes, SizesOfKind
from distir.simulation.many.shared_stages import (
    OverlappedPair,
    ProgramsOfStage,
    SharedStages,
)
from distir.simulation.many.stage_rows import NO_PAIRS, StageRows
from distir.simulation.pricing.tied import (
    ChargedElsewhere,
    KnownGradientBytes,
    TiedUse,
    tied_bytes,
    tied_seconds,
)


@dataclass(frozen=True, slots=True)
class _Described:
    """Arrangements of a kind whose stages are known."""

    alike: AlikeArrangements
    stages: Indices
    """The numbers of their stages."""
    tied: dict[tuple[int, ...], Floats]
    """The seconds in which groups of ranks add up gradients."""


@dataclass(frozen=True, slots=True)
class _Overlapping:
    """Arrangements with the same overlapped pairs."""

    alike: AlikeArrangements
    number: int
    """The number of the set of pairs."""
    places: Indices
    """Those that have it, by their positions among the arrangements."""
    pairs: list[OverlappedPair]


class _NumberedStage(NamedTuple):
    """A stage among the stages of kinds that share programs."""

    number: int
    programs: Sequence[BlockProgram]
    uses: Sequence[ChargedElsewhere]

    @property
    def adding_up(self) -> ProgramsOfStage:
        """The programs of its blocks, as they are in the stage."""
        both = zip(self.programs, self.uses, strict=True)
        return tuple([own.adding_up(uses.adds_up) for own, uses in both])


class _StagesOfKind:
    """The stages of one kind among the `stages` of kinds that share programs. Stages of equal
    blocks are one, wherever they lie."""

    def __init__(self, programs: ModelPrograms, uses: ParameterUses, stages: SharedStages) -> None:
        self._programs, self._uses, self._stages = programs, uses, stages
        self._known: dict[tuple[tuple[int, ...], int], _NumberedStage] = {}

    def of(self, stage: StageBlocks) -> _NumberedStage:
        """What a stage is there."""
        begin, end, charged = stage
        key = self._programs.kinds[begin:end], charged
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._numbered(stage)
        return found

    def _numbered(self, stage: StageBlocks) -> _NumberedStage:
        begin, end, charged = stage
        uses = self._uses.charges.of(charged, end - begin)
        programs = self._programs.of_stage(begin, end)
        return _NumberedStage(self._stages.number(programs, uses), programs, uses)


class KindRows:
    """The program sizes of one kind, and which rows they have. Sizes have their numbers among the
    shared ones."""

    def __init__(
        self,
        rows: StageRows,
        known_uses: KnownParameterUses,
        priced: PricedPrograms,
        of: SizesOfKind,
        own: ProgramSizes,
    ) -> None:
        """`own` are the kind's sizes. How the blocks are cut into stages (`found`) is found for
        several kinds together, from `to_cut`."""
        self.rows, self.priced = rows, priced
        self.pricer, self.pricing = priced.pricer, priced.pricing
        self.workload, self.of, self.sizes = self.pricer.workload, of, of.shared
        self.programs = priced.of(of.kind)
        splits = bool(own.splits.any())
        self._rankings = self._number_rankings()
        self._gradient_bytes: KnownGradientBytes = {}
        self._known_adding_up: dict[tuple[int, tuple[int, ...], tuple[TiedUse, ...]], Floats] = {}
        room_bytes = np.zeros(len(self.sizes))
        room_bytes[of.places] = self.pricer.cost.room_bytes(own.communicators)
        self.cuts = StageCuts(
            self.pricer,
            self.programs,
            self.pricing,
            splits,
            room_bytes,
            known_uses.of(self.programs.kept),
        )
        self.to_cut = self.cuts.to_cut(rows.arrangements, of.which, of.places)
        self.found: CutArrangements

    def described(self, stages: SharedStages) -> tuple[list[_Described], list[_Overlapping]]:
        """The arrangements, and what overlaps in them; their stages and pairs are marked as wanted
        among `stages`."""
        own_stages = _StagesOfKind(self.programs, self.cuts.uses, stages)
        described: list[_Described] = []
        overlapping: list[_Overlapping] = []
        for own in self.cuts.alike(self.found):
            found = [own_stages.of(stage) for stage in own.uses.stages]
            numbers = [each.number for each in found]
            kinds = self.rows.arrangements.cost_kinds[own.arrangements]
            stages.want(set(numbers), own.sizes, kinds)
            seconds = self._tied_seconds(own)
            described.append(_Described(own, np.array(numbers, np.int64), seconds))
            overlapping += self._overlapping(own, found, stages)
        return described, overlapping

    def add(self, described: Sequence[_Described], row_of: Indices) -> None:
        """Records the rows of all stages of arrangements: `row_of` is that of a stage at a size, of
        shape (stages, sizes)."""
        for each in described:
            own = each.alike
            self.rows.describe(
                own.shape, own.arrangements, row_of[each.stages][:, own.sizes], each.tied
            )
            self.rows.ranking_of_arrangement[own.arrangements] = self._rankings[own.sizes]
        self.rows.padding[self.of.which] = self._padding()[self.of.places]

    def add_pairs(
        self, overlapping: Sequence[_Overlapping], row_of: Mapping[OverlappedPair, Indices]
    ) -> None:
        """Records the rows of all overlapped pairs of arrangements: `row_of` is that of a pair at a
        size, of shape (sizes,)."""
        for each in overlapping:
            own, sizes = each.alike, each.alike.sizes[each.places]
            rows = np.stack([row_of[pair][sizes] for pair in each.pairs])
            arrangements = own.arrangements[each.places]
            self.rows.describe_pairs(own.shape, each.number, arrangements, rows)

    # --- stages -----------------------------------------------------------------------------------

    def _overlapping(
        self,
        own: AlikeArrangements,
        found: Sequence[_NumberedStage],
        stages: SharedStages,
    ) -> Iterator[_Overlapping]:
        """What overlaps in arrangements with these stages; marks the sizes at which it is
        wanted."""
        numbers = self.rows.pairs_of_arrangement[own.arrangements]
        different: list[int] = numbers.tolist()
        for number in sorted({*different} - {NO_PAIRS}):
            places = np.flatnonzero(numbers == number)
            pairs = [
                (found[one].adding_up, found[other].adding_up)
                for one, other in self.rows.pairs[number]
            ]
            for pair in pairs:
                stages.want_pair(pair, own.sizes[places])
            yield _Overlapping(own, number, places, pairs)

    # --- sizes ------------------------------------------------------------------------------------

    def _number_rankings(self) -> Indices:
        """Per size the number of the positions of its pipeline ranks."""
        stride = np.broadcast_to(np.asarray(self.pricing.grid.ranks.stride), len(self.sizes))
        devices = np.broadcast_to(np.asarray(self.pricing.grid.devices), len(self.sizes))
        keys = np.stack([stride, self.sizes.ranks, devices], axis=-1)
        first, which = distinct_rows(keys)
        numbers = [self.rows.ranking(self._grid_at(int(place))) for place in first]
        return np.array(numbers, np.int64)[which]

    def _grid_at(self, size: int) -> DeviceGrid:
        degrees = tuple(int(n) for n in self.sizes.degrees[size][: len(self.of.kind.mesh.names)])
        ranks = int(self.sizes.ranks[size])
        return DeviceGrid.of(self.of.kind.mesh, degrees, ranks, self.of.placement)

    def _padding(self) -> Floats:
        """Per size the fraction of products that padding adds, computed once for equal axes."""
        axes = self.programs.kept[0].sizes
        found = np.zeros(len(self.sizes))
        if axes.padded:
            padded = np.stack(
                [np.broadcast_to(np.asarray(n), len(found)) for n in axes.padded.values()], axis=-1
            )
            first, which = distinct_rows(padded)
            for number, place in enumerate(first):
                longer = dict(zip(axes.padded, map(int, padded[place]), strict=True))
                found[which == number] = self.workload.padding_fraction(longer)
        return found

    def _tied_seconds(self, own: AlikeArrangements) -> dict[tuple[int, ...], Floats]:
        """Per group of ranks, the seconds in which it adds up gradients in arrangements."""
        held, _ = self.rows.arrangements.shapes[own.shape]
        tied = own.uses.tied.items()
        return {ranks: self._adding_up(len(held), ranks, uses)[own.sizes] for ranks, uses in tied}

    def _adding_up(self, count: int, ranks: tuple[int, ...], uses: tuple[TiedUse, ...]) -> Floats:
        """The seconds in which some of `count` ranks add up gradients, at the sizes that have so
        many; NaN at others."""
        key = count, ranks, uses
        found = self._known_adding_up.get(key)
        if found is None:
            programs, known = self.programs.kept, self._gradient_bytes
            size_bytes = tied_bytes(self.workload, programs, uses, known)
            moved = np.broadcast_to(np.asarray(size_bytes, np.float64), len(self.sizes))
            found = self._known_adding_up[key] = self._seconds_of(count, ranks, moved)
        return found

    def _seconds_of(self, count: int, ranks: tuple[int, ...], moved: Floats) -> Floats:
        """The seconds in which some of `count` ranks add up so many bytes, which are the same for
        many kinds with one mesh."""
        key, known = (count, ranks, moved.tobytes()), self.priced.tied_seconds
        if key not in known:
            found = known[key] = np.full(len(self.sizes), np.nan)
            different: list[int] = self._rankings[self.sizes.ranks == count].tolist()
            for ranking in {*different}:
                alike, grid = self._rankings == ranking, self.rows.rankings[ranking]
                found[alike] = tied_seconds(grid, self.pricer.cost, ranks, moved[alike])
        return known[key]


__all__ = ["KindRows"]
