"""The arrangements of one program kind, and the rows of their stages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from distir.arrays import Floats, Indices, distinct, distinct_rows, grouped
from distir.plan import BlockProgram, ModelPrograms
from distir.plan.grid import DeviceGrid
from distir.simulation.cutting.fitting import Runs
from distir.simulation.cutting.many import PartitionedArrangements, StageCuts
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
class _Tied:
    """Arrangements in which the same groups of ranks add up gradients."""

    places: Indices
    """Their positions among the arrangements of their kind."""
    seconds: Mapping[tuple[int, ...], Floats]
    """The seconds in which each group of ranks does."""


@dataclass(frozen=True, slots=True)
class _Overlapping:
    """Arrangements with one partition and the same overlapped pairs."""

    places: Indices
    """Their positions among the arrangements of their kind."""
    pairs: Sequence[OverlappedPair]


@dataclass(frozen=True, slots=True)
class DescribedArrangements:
    """Arrangements of a kind whose stages are known."""

    cut: PartitionedArrangements
    runs: Runs
    """The stages of their partitions, one partition after the other."""
    numbers: Indices
    """The numbers of these stages."""
    tied: Sequence[_Tied]
    overlapping: Sequence[_Overlapping]

    @property
    def stages(self) -> tuple[Indices, Indices]:
        """The numbers of the stages of all arrangements, one arrangement after the other, and the
        position of each one's arrangement."""
        at, place = self.runs.of(self.cut.which)
        return self.numbers[at], place


@dataclass(frozen=True, eq=False)
class _NumberedStage:
    """A stage among the stages of kinds that share programs."""

    number: int
    programs: Sequence[BlockProgram]
    uses: Sequence[ChargedElsewhere]

    @cached_property
    def adding_up(self) -> ProgramsOfStage:
        """The programs of its blocks, as they are in the stage."""
        both = zip(self.programs, self.uses, strict=True)
        return tuple([own.adding_up(uses.adds_up) for own, uses in both])


class _StagesOfKind:
    """The stages of one kind among the `stages` of kinds that share programs. Stages of equal
    blocks are one, wherever they lie."""

    def __init__(self, programs: ModelPrograms, uses: ParameterUses, stages: SharedStages) -> None:
        self._programs, self._uses, self._stages = programs, uses, stages
        self._different = uses.charges.stages(programs.kinds)
        self._known: dict[int, _NumberedStage] = {}

    def of(self, stages: tuple[StageBlocks, ...]) -> list[_NumberedStage]:
        """What stages are there."""
        known, numbers = self._known, self._different.of(stages)
        for stage, number in zip(stages, numbers, strict=True):
            if number not in known:
                known[number] = self._numbered(stage)
        return [known[number] for number in numbers]

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

    def described(self, stages: SharedStages) -> DescribedArrangements:
        """The arrangements, and what overlaps in them; their stages and pairs are marked as wanted
        among `stages`."""
        own = self.cuts.partitioned(self.found)
        own_stages = _StagesOfKind(self.programs, self.cuts.uses, stages)
        found = [own_stages.of(uses.stages) for uses in own.partitions]
        described = DescribedArrangements(
            own,
            Runs.of_counts([*map(len, found)]),
            np.array([each.number for every in found for each in every], np.int64),
            list(self._tied(own)),
            list(self._overlapping(own, found)),
        )
        numbers, place = described.stages
        kinds = self.rows.arrangements.cost_kinds[own.arrangements]
        stages.want(numbers, own.sizes[place], kinds[place])
        for each in described.overlapping:
            for pair in each.pairs:
                stages.want_pair(pair, own.sizes[each.places])
        return described

    def add(self, described: DescribedArrangements, row_of: Indices) -> None:
        """Records the rows of all stages of arrangements: `row_of` is that of a stage at a size, of
        shape (stages, sizes)."""
        own = described.cut
        numbers, place = described.stages
        self.rows.describe(own.arrangements, row_of[numbers, own.sizes[place]])
        for each in described.tied:
            self.rows.tie(own.arrangements[each.places], each.seconds)
        self.rows.ranking_of_arrangement[own.arrangements] = self._rankings[own.sizes]
        self.rows.padding[self.of.which] = self._padding()[self.of.places]

    def add_pairs(
        self, described: DescribedArrangements, row_of: Mapping[OverlappedPair, Indices]
    ) -> None:
        """Records the rows of all overlapped pairs of arrangements: `row_of` is that of a pair at a
        size, of shape (sizes,)."""
        own = described.cut
        for each in described.overlapping:
            rows = np.stack([row_of[pair][own.sizes[each.places]] for pair in each.pairs])
            self.rows.describe_pairs(own.arrangements[each.places], rows)

    # --- stages -----------------------------------------------------------------------------------

    def _overlapping(
        self, own: PartitionedArrangements, found: Sequence[Sequence[_NumberedStage]]
    ) -> Iterator[_Overlapping]:
        """What overlaps in arrangements, of whose partitions these stages are `found`."""
        numbers = self.rows.pairs_of_arrangement[own.arrangements]
        (having,) = np.nonzero(numbers != NO_PAIRS)
        for case, some in grouped(numbers[having] * len(found) + own.which[having]):
            number, partition = divmod(case, len(found))
            stages = found[partition]
            pairs = [
                (stages[one].adding_up, stages[other].adding_up)
                for one, other in self.rows.pairs[number]
            ]
            yield _Overlapping(having[some], pairs)

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

    def _tied(self, own: PartitionedArrangements) -> Iterator[_Tied]:
        """What groups of ranks add up in arrangements."""
        known: dict[tuple[tuple[int, ...], ...], int] = {}
        numbers = [known.setdefault(tuple(uses.tied), len(known)) for uses in own.partitions]
        different = list(known)
        for number, places in grouped(np.array(numbers, np.int64)[own.which]):
            seconds = {ranks: self._tied_seconds(own, places, ranks) for ranks in different[number]}
            yield _Tied(places, seconds)

    def _tied_seconds(
        self, own: PartitionedArrangements, places: Indices, ranks: tuple[int, ...]
    ) -> Floats:
        """The seconds in which some ranks add up gradients in the arrangements at some places."""
        first, which = distinct(own.which[places])
        partitions: list[int] = own.which[places[first]].tolist()
        known: dict[tuple[int, tuple[TiedUse, ...]], int] = {}
        several = [own.partitions[each] for each in partitions]
        numbers = [known.setdefault((uses.ranks, uses.tied[ranks]), len(known)) for uses in several]
        seconds = np.array([self._adding_up(count, ranks, uses) for count, uses in known])
        return seconds[np.array(numbers)[which], own.sizes[places]]

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


__all__ = ["DescribedArrangements", "KindRows"]
