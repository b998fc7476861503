"""The costs of the stages of one program kind: their rows, before and after they are priced."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from distir.arrays import Flags, Floats, Indices, distinct_rows
from distir.plan import BlockProgram
from distir.plan.grid import DeviceGrid
from distir.schedules import COST_KINDS
from distir.simulation.cutting.many import (
    AlikeArrangements,
    StageBlocks,
    StageCuts,
)
from distir.simulation.cutting.refine import KnownCuts
from distir.simulation.many.priced_programs import PricedPrograms
from distir.simulation.many.program_sizes import ProgramSizes, SizesOfKind
from distir.simulation.many.stage_rows import NO_PAIRS, StageRows
from distir.simulation.pricing.repeats import RepeatedBlocks, Uneven, repeated_blocks
from distir.simulation.pricing.stage_cost import OverlappedStages
from distir.simulation.pricing.stage_table import (
    NAMES,
    columns_of,
    columns_of_pair,
    held_columns_of,
)
from distir.simulation.pricing.tied import (
    NOTHING_ELSEWHERE,
    ChargedElsewhere,
    tied_seconds,
)

if TYPE_CHECKING:
    from distir.simulation.pricing.chains import PassCost
    from distir.simulation.pricing.stage_cost import StageCost, UnpricedStage


_Stage = tuple[RepeatedBlocks[tuple[int, ChargedElsewhere]], ...]
"""A stage as repeated patterns of blocks, each with its kind and with what is charged elsewhere."""

_Programs = tuple[tuple[int, tuple[int, ...]], ...]
"""Per block of a stage its kind, and the positions of parameters that it adds up over
microbatches."""

_Pair = tuple[_Programs, _Programs]
"""The blocks of two stages: of one with a forward pass, and of one with a backward pass that runs
beside it."""

_Overlapping = tuple[AlikeArrangements, int, Indices, list[_Pair]]
"""Arrangements, the number of a set of overlapped pairs, those that have it, by their positions
among the arrangements, and the pairs."""

_Kinds = NDArray[np.uint8]
"""Sets of cost kinds: the sums of all `1 << kind`."""

LONG = 2
"""Patterns with at least this many copies are priced together, whatever their numbers of copies:
they have a first and a last copy."""


@dataclass(frozen=True, slots=True)
class Unpriced:
    """What is known of the program sizes of a kind before anything is priced."""

    described: list[tuple[AlikeArrangements, Indices, dict[tuple[int, ...], Floats]]]
    """Arrangements, the numbers of their stages, and the seconds in which groups of ranks add up
    gradients."""
    pairs: list[_Overlapping]
    overlapped: list[OverlappedStages]
    values: Floats
    """The rows of stages, as columns."""
    row_of: Indices
    """The row of a stage at a size, of shape (stages, sizes)."""
    stages: list[tuple[Indices, UnpricedStage]]
    """Stages, and the rows that they are in."""


@dataclass(frozen=True, slots=True)
class _AlikeRows:
    """Rows whose stages differ only in the numbers of copies of their long patterns."""

    rows: Indices
    """Their numbers."""
    sizes: Indices
    """Their program sizes."""
    cost_kinds: _Kinds
    """The actions that are asked for."""
    counts: Floats
    """The numbers of copies of patterns, of shape (rows, patterns)."""

    def taken(self, where: Flags) -> _AlikeRows:
        """Those of them that are marked."""
        return _AlikeRows(
            self.rows[where], self.sizes[where], self.cost_kinds[where], self.counts[where]
        )


class KindRows:
    """The rows of the program sizes of one kind. Sizes have their numbers among the shared ones."""

    def __init__(
        self,
        rows: StageRows,
        known_cuts: KnownCuts,
        priced: PricedPrograms,
        of: SizesOfKind,
        own: ProgramSizes,
    ) -> None:
        """Cuts the blocks into stages, but for what is refined (`found`). `own` are the kind's
        sizes."""
        self.rows, self.pricer, self.pricing = rows, priced.pricer, priced.pricing
        self.workload, self.of, self.sizes = self.pricer.workload, of, of.shared
        self.programs = priced.of(of.kind)
        every = dict.fromkeys((*self.programs.kept, *self.programs.recomputed))
        self.numbers = {program: number for number, program in enumerate(every)}
        self.different = list(every)
        splits = bool(own.splits.any())
        self._rankings = self._number_rankings()
        room_bytes = np.zeros(len(self.sizes))
        room_bytes[of.places] = self.pricer.cost.room_bytes(own.communicators)
        self.cuts = StageCuts(
            self.pricer,
            known_cuts,
            self.programs,
            self.pricing,
            splits,
            room_bytes,
        )
        self.found = self.cuts.cut(rows.arrangements, of.which, of.places)
        self._unpriced: Unpriced | None = None

    @property
    def wanted(self) -> Flags:
        """Which of its arrangements are to have rows."""
        return self.rows.wanted[self.found.cut.arrangements]

    def unpriced(self) -> Unpriced:
        """All that is to be priced: the stages of the arrangements that are wanted, and what
        overlaps."""
        if self._unpriced is None or not self.wanted.all():
            self._unpriced = self._make_unpriced()
        return self._unpriced

    def _make_unpriced(self) -> Unpriced:
        self._known_numbers: dict[StageBlocks, int] = {}
        self._stage_numbers: dict[_Stage, int] = {}
        self._wanted: list[_Kinds] = []
        self._pair_wanted: dict[_Pair, Flags] = {}
        described = [
            (own, self._numbered(own), self._tied_seconds(own.tied, own.sizes))
            for own in self.cuts.alike(self.found, self.rows.wanted)
        ]
        pairs = list(self._pairs(own for own, _, _ in described))
        overlapped = [
            OverlappedStages(
                self._adding_up(forward),
                self._adding_up(backward),
                np.flatnonzero(wanted),
            )
            for (forward, backward), wanted in self._pair_wanted.items()
        ]
        return Unpriced(described, pairs, overlapped, *self._unpriced_rows())

    def add_held(self) -> None:
        """Adds the rows of all stages of all arrangements, with nothing but bytes."""
        unpriced = self.unpriced()
        for rows, stage in unpriced.stages:
            unpriced.values[: len(NAMES), rows] = held_columns_of(stage, len(rows))
        self._add(unpriced)

    def add(
        self, unpriced: Unpriced, costs: Sequence[StageCost], costs_of_pairs: Sequence[PassCost]
    ) -> None:
        """Adds the rows of all stages of all arrangements, and of what overlaps, given what they
        cost."""
        for (rows, _), cost in zip(unpriced.stages, costs, strict=True):
            unpriced.values[: len(NAMES), rows] = columns_of(cost, len(rows))
        self._add(unpriced)
        self._add_pairs(unpriced.pairs, costs_of_pairs)

    def _add(self, unpriced: Unpriced) -> None:
        first = self.rows.add_rows(unpriced.values)
        for own, stages, seconds in unpriced.described:
            rows = first + unpriced.row_of[stages][:, own.sizes]
            self.rows.describe(own.shape, own.arrangements, rows, seconds)
            self.rows.ranking_of_arrangement[own.arrangements] = self._rankings[own.sizes]
        self.rows.padding[self.of.which] = self._padding()[self.of.places]

    # --- overlapped pairs -------------------------------------------------------------------------

    def _pairs(self, alike: Iterable[AlikeArrangements]) -> Iterator[_Overlapping]:
        """The overlapped pairs of all arrangements; marks the sizes at which they are wanted."""
        for own in alike:
            numbers = self.rows.pairs_of_arrangement[own.arrangements]
            for number in map(int, np.unique(numbers[numbers != NO_PAIRS])):
                some = np.flatnonzero(numbers == number)
                blocks = [self._programs_of(stage) for stage in own.stages]
                both = [(blocks[one], blocks[other]) for one, other in self.rows.pairs[number]]
                for pair in both:
                    none = np.zeros(len(self.sizes), np.bool_)
                    self._pair_wanted.setdefault(pair, none)[own.sizes[some]] = True
                yield own, number, some, both

    def _add_pairs(self, found: Sequence[_Overlapping], costs: Sequence[PassCost]) -> None:
        """Adds the rows of the overlapped pairs of all arrangements."""
        levels = len(self.pricer.cost.cluster.levels)
        first_rows: dict[_Pair, int] = {}
        for (pair, wanted), cost in zip(self._pair_wanted.items(), costs, strict=True):
            values = np.zeros((len(NAMES) + 2 * levels, int(wanted.sum())))
            values[: len(NAMES)] = columns_of_pair(cost, values.shape[1])
            first_rows[pair] = self.rows.add_rows(values)
        for own, number, some, both in found:
            sizes = own.sizes[some]
            rows = [
                first_rows[pair] + (np.cumsum(self._pair_wanted[pair]) - 1)[sizes] for pair in both
            ]
            self.rows.describe_pairs(own.shape, number, own.arrangements[some], np.stack(rows))

    def _adding_up(self, programs: _Programs) -> tuple[BlockProgram, ...]:
        return tuple(self.different[kind].adding_up(adds_up) for kind, adds_up in programs)

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

    def _tied_seconds(
        self, tied: dict[tuple[int, ...], Any], sizes: Indices
    ) -> dict[tuple[int, ...], Floats]:
        """Per group of ranks, the seconds to add up its gradients, given their bytes, at
        `sizes`."""
        if not tied:
            return {}
        rankings, cost = self._rankings[sizes], self.pricer.cost
        seconds: dict[tuple[int, ...], Floats] = {}
        for ranks, size_bytes in tied.items():
            moved = np.broadcast_to(np.asarray(size_bytes, np.float64), len(self.sizes))[sizes]
            found = seconds[ranks] = np.empty(len(sizes))
            for number in np.unique(rankings):
                alike = rankings == number
                grid = self.rows.rankings[int(number)]
                found[alike] = tied_seconds(grid, cost, ranks, moved[alike])
        return seconds

    # --- stages -----------------------------------------------------------------------------------

    def _numbered(self, alike: AlikeArrangements) -> Indices:
        """The numbers of the stages of arrangements, which are wanted at their sizes; equal stages
        have one number."""
        numbers = np.array([self._number(stage) for stage in alike.stages], np.int64)
        kinds = np.zeros(len(self.sizes), np.uint8)
        own = self.rows.arrangements.cost_kinds[alike.arrangements]
        np.bitwise_or.at(kinds, alike.sizes, own)
        for number in np.unique(numbers):
            self._wanted[number] |= kinds
        return numbers

    def _number(self, stage: StageBlocks) -> int:
        if stage not in self._known_numbers:
            blocks = self._blocks(*stage)
            number = self._stage_numbers.setdefault(blocks, len(self._wanted))
            if number == len(self._wanted):
                self._wanted.append(np.zeros(len(self.sizes), np.uint8))
            self._known_numbers[stage] = number
        return self._known_numbers[stage]

    def _blocks(self, begin: int, end: int, charged: int) -> _Stage:
        uses = self._uses(begin, end, charged)
        return tuple(repeated_blocks(list(zip(self._kinds(begin, end), uses, strict=True))))

    def _programs_of(self, stage: StageBlocks) -> _Programs:
        """Per block of a stage its program's number, and what it adds up over microbatches."""
        begin, end, _ = stage
        adds_up = (use.adds_up for use in self._uses(*stage))
        return tuple(zip(self._kinds(begin, end), adds_up, strict=True))

    def _uses(self, begin: int, end: int, charged: int) -> Sequence[ChargedElsewhere]:
        if charged:
            return next(found for found, number in self.cuts.uses.items() if number == charged)
        return [NOTHING_ELSEWHERE] * (end - begin)

    def _kinds(self, begin: int, end: int) -> tuple[int, ...]:
        """The numbers of the programs of a stage's blocks."""
        return tuple(self.numbers[program] for program in self.programs.of_stage(begin, end))

    def _unpriced_rows(self) -> tuple[Floats, Indices, list[tuple[Indices, UnpricedStage]]]:
        """The rows of all stages at the sizes where they are wanted, without what they cost; the
        number of a stage's row at a size, of shape (stages, sizes); and what is to be priced, with
        its rows."""
        kinds = np.array(self._wanted)
        wanted = kinds > 0
        row_of = np.cumsum(wanted).reshape(wanted.shape) - 1
        stage, size = np.nonzero(wanted)
        kinds = kinds[wanted]
        levels = len(self.pricer.cost.cluster.levels)
        found = np.empty((len(NAMES) + 2 * levels, len(stage)))
        # Stages that differ only in the numbers of copies of long patterns are priced together.
        alike: dict[_Stage, list[int]] = {}
        for number, stage_blocks in enumerate(self._stage_numbers):
            if not wanted[number].any():
                continue
            form = tuple((pattern, min(count, LONG)) for pattern, count in stage_blocks)
            alike.setdefault(form, []).append(number)
        copies = [[count for _, count in blocks] for blocks in self._stage_numbers]
        ends = np.cumsum(wanted.sum(axis=1))
        unpriced: list[tuple[Indices, UnpricedStage]] = []
        forward, backward = self._hops
        for form, numbers in alike.items():
            rows = np.concatenate(
                [np.arange(int(ends[n] - wanted[n].sum()), int(ends[n])) for n in numbers]
            )
            counts = np.array([copies[number] for number in numbers], np.float64)
            own = np.repeat(counts, wanted[numbers].sum(axis=1), axis=0)
            alike_rows = _AlikeRows(rows, size[rows], kinds[rows], own)
            unpriced += self._unpriced_stages(form, alike_rows)
            found[len(NAMES) :: 2, rows] = forward[:, form[-1][0][-1][0], size[rows]]
            found[len(NAMES) + 1 :: 2, rows] = backward[:, form[0][0][0][0], size[rows]]
        return found, row_of, unpriced

    def _unpriced_stages(
        self, form: _Stage, alike: _AlikeRows
    ) -> list[tuple[Indices, UnpricedStage]]:
        """The stages of rows that differ only in the numbers of copies of their long patterns: as
        one if it can be priced so, else as several."""
        blocks = [
            (
                tuple((self.different[kind].adding_up(own.adds_up), own) for kind, own in pattern),
                alike.counts[:, place] if count == LONG else count,
            )
            for place, (pattern, count) in enumerate(form)
        ]
        wanted = int(np.bitwise_or.reduce(alike.cost_kinds))
        cost_kinds = [kind for kind in range(COST_KINDS) if wanted >> kind & 1]
        try:
            stage = self.pricer.unpriced_stage(blocks, self.pricing, cost_kinds, alike.sizes)
        except Uneven as uneven:
            parts = (alike.taken(where) for where in (uneven.where, ~uneven.where))
            return [each for part in parts for each in self._unpriced_stages(form, part)]
        return [(alike.rows, stage)]

    @cached_property
    def _hops(self) -> tuple[Floats, Floats]:
        """Seconds of messages forward and backward, of shape (levels, kinds of block, sizes)."""
        programs = self.different
        levels = len(self.pricer.cost.cluster.levels)
        shape = (levels, len(programs), len(self.sizes))
        forward, backward = np.empty(shape), np.empty(shape)
        for number, program in enumerate(programs):
            sent = sum(value.type.size_bytes for value in program.outputs)
            returned = sum(value.type.size_bytes for value in program.input_gradients)
            ahead, back = program.outputs_repeated_along, program.input_gradients_repeated_along
            for level in range(levels):
                forward[level, number] = self.pricing.message_at(level, sent, ahead)
                backward[level, number] = self.pricing.message_at(level, returned, back)
        return forward, backward


__all__ = ["KindRows", "Unpriced"]
