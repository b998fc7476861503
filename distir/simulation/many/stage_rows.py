"""What the stages of many strategies take and hold: a row per stage and program size.

Strategies that differ in their schedule alone have the same programs and sizes, and share rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from distir.arrays import Floats, Indices, distinct_rows
from distir.plan import BlockProgram
from distir.plan.grid import Grid
from distir.plan.planner import ProgramKind
from distir.schedules import PeakInFlight
from distir.simulation.cutting.many import Layouts, Span, StageCuts
from distir.simulation.cutting.partition import Partitions, Shape
from distir.simulation.many.priced_programs import PricedPrograms
from distir.simulation.many.program_sizes import ProgramSizes
from distir.simulation.pricing.repeats import RepeatedBlocks, Uneven, repeated_blocks
from distir.simulation.pricing.stage_table import NAMES, columns_of
from distir.simulation.pricing.stages import StagePricer
from distir.simulation.pricing.tied import (
    NOTHING_ELSEWHERE,
    ChargedElsewhere,
    StagesOfRanks,
    tied_seconds,
)
from distir.simulation.ranks.many import LayoutGroup

if TYPE_CHECKING:
    from distir.simulation.pricing.stage_cost import UnpricedStage


Between = tuple[tuple[int, ...], ...]
"""Groups of ranks that add up gradients between them."""

_Stage = tuple[RepeatedBlocks[tuple[int, ChargedElsewhere]], ...]
"""A stage as runs of blocks, each with its kind and what is charged for elsewhere."""

LONG = 3
"""Copies from which on runs of different lengths are looked at together: their ends apart, there is
at least one."""


class StageRows:
    """The pool: rows of the stages of all points, and which of them the stages of a layout are.

    A layout is a point with a shape. A row has the numbers of `NAMES`, then per level of the
    cluster the seconds of the messages that the stage sends to the next and to the previous one.
    """

    def __init__(
        self,
        pricer: StagePricer,
        partitions: Partitions,
        shapes: Sequence[Shape],
        flights: Sequence[PeakInFlight],
        point_of_layout: Indices,
        shape_of_layout: Indices,
        flight_of_layout: Indices,
    ) -> None:
        """Layouts are sorted by their points; `flights` are what is in flight on their ranks."""
        self.pricer, self.partitions = pricer, partitions
        self.layouts = Layouts(shapes, flights, point_of_layout, shape_of_layout, flight_of_layout)
        count = len(point_of_layout)
        self.rankings: list[Grid] = []
        """Where ranks can lie."""
        self.ranking_of_layout = np.zeros(count, np.int64)
        self.tied_of_layout = np.zeros(count, np.int64)
        self.padding = np.zeros(int(point_of_layout[-1]) + 1 if count else 0)
        self.pool: Floats = np.empty((0, 0))
        self._parts: list[Floats] = []
        self._last_priced: tuple[object, PricedPrograms] | None = None
        self._count = 0
        self._ranking_numbers: dict[tuple[int, ...], int] = {}
        self._tied: dict[Between, int] = {}
        # Of each shape the rows and the seconds of tied gradients, by the place among its layouts.
        self._place = np.zeros(count, np.int64)
        self._rows: list[NDArray[np.int32]] = []
        for number, (ranks, _) in enumerate(shapes):
            own = np.flatnonzero(shape_of_layout == number)
            self._place[own] = np.arange(len(own))
            self._rows.append(np.zeros((_num_stages(ranks), len(own)), np.int32))
        self._seconds: dict[tuple[int, int], Floats] = {}

    def add(self, kind: ProgramKind, placement: str, which: Indices, points: ProgramSizes) -> None:
        """Evaluates points of one kind; raises `Divergence` if they differ in more than sizes."""
        if not len(which):
            return
        some = points.taken(which)
        _KindRows(self, self._priced(kind, placement, some), kind, placement, which, some).add()

    def _priced(self, kind: ProgramKind, placement: str, points: ProgramSizes) -> PricedPrograms:
        """Made anew where the last kind does not share programs, or is not at the same points, as
        it is in whole grids: with a simulator of its own, as what is found out about these points
        is of no use to others."""
        key = (kind.sharing, placement, points.sizes)
        if self._last_priced is None or self._last_priced[0] != key:
            own = self.pricer.of_many(len(points))
            self._last_priced = key, PricedPrograms(own, kind, placement, points)
        return self._last_priced[1]

    def add_rows(self, values: Floats) -> int:
        """Adds rows, the columns of `values`; returns the number of the first."""
        self._parts.append(values)
        self._count += values.shape[1]
        return self._count - values.shape[1]

    def finish(self) -> None:
        """All rows are there."""
        self._last_priced = None
        if self._parts:
            self.pool = np.empty((len(self._parts[0]), self._count))
        end = self._count
        while self._parts:  # what is put in the pool is let go
            part = self._parts.pop()
            self.pool[:, end - part.shape[1] : end] = part
            end -= part.shape[1]

    def ranking(self, grid: Grid) -> int:
        """The number of where ranks lie."""
        key = (grid.ranks.stride, grid.ranks.degree, grid.devices)
        if key not in self._ranking_numbers:
            self._ranking_numbers[key] = len(self.rankings)
            self.rankings.append(grid)
        return self._ranking_numbers[key]

    def describe(
        self, shape: int, layouts: Indices, rows: Indices, tied: dict[tuple[int, ...], Floats]
    ) -> None:
        """Says which rows the stages of layouts are, of shape (stages, layouts), and which ranks
        add up gradients between them, for how long."""
        places = self._place[layouts]
        self._rows[shape][:, places] = rows
        number = self._tied.setdefault(tuple(tied), len(self._tied))
        self.tied_of_layout[layouts] = number
        if tied:
            key = (shape, number)
            if key not in self._seconds:
                self._seconds[key] = np.zeros((len(tied), self._rows[shape].shape[1]))
            self._seconds[key][:, places] = list(tied.values())

    def group(self, layouts: Indices) -> LayoutGroup:
        """Layouts of one shape whose ranks share the same, one per plan."""
        shape, number = self.layouts.shape[layouts[0]], int(self.tied_of_layout[layouts[0]])
        places = self._place[layouts]
        between = next(ranks for ranks, each in self._tied.items() if each == number)
        seconds = self._seconds[int(shape), number][:, places] if between else ()
        return LayoutGroup(
            self._rows[shape][:, places].astype(np.int64),
            self.ranking_of_layout[layouts],
            dict(zip(between, seconds, strict=True)),
        )


def _num_stages(ranks: StagesOfRanks) -> int:
    return 1 + max(stage for own in ranks for stage in own)


# --- points of one kind ---------------------------------------------------------------------------


class _KindRows:
    """ProgramSizes of one kind: their number is their place among these from here on."""

    def __init__(
        self,
        rows: StageRows,
        priced: PricedPrograms,
        kind: ProgramKind,
        placement: str,
        which: Indices,
        points: ProgramSizes,
    ) -> None:
        self.rows, self.pricer, self.pricing = rows, priced.pricer, priced.pricing
        self.workload, self.kind, self.placement = self.pricer.workload, kind, placement
        self.which, self.points, self.programs = which, points, priced.of(kind)
        kinds: dict[BlockProgram, int] = {}
        self.block_kinds = [kinds.setdefault(program, len(kinds)) for program in self.programs]
        self.different = list(kinds)
        self.splits = bool(points.splits.any())
        self._rankings = self._number_rankings()
        self.cuts = StageCuts(
            self.pricer,
            rows.partitions,
            self.programs,
            self.block_kinds,
            self.pricing,
            self.splits,
            len(which),
        )
        self._span_numbers: dict[Span, int] = {}
        self._stage_numbers: dict[_Stage, int] = {}
        self._wanted: list[NDArray[np.bool_]] = []

    def add(self) -> None:
        """Adds the rows of all stages of all layouts."""
        described = [
            (own, self._numbered(own.spans, own.points), self._tied_seconds(own.tied, own.points))
            for own in self.cuts.alike(self.rows.layouts, self.which)
        ]
        values, row_of = self._values()
        first = self.rows.add_rows(values)
        for own, stages, seconds in described:
            rows = first + row_of[stages][:, own.points]
            self.rows.describe(own.shape, own.layouts, rows, seconds)
            self.rows.ranking_of_layout[own.layouts] = self._rankings[own.points]
        self.rows.padding[self.which] = self._padding()

    def _number_rankings(self) -> Indices:
        """Per point the number of where its ranks lie."""
        stride = np.broadcast_to(np.asarray(self.pricing.grid.ranks.stride), len(self.which))
        devices = np.broadcast_to(np.asarray(self.pricing.grid.devices), len(self.which))
        keys = np.stack([stride, self.points.ranks, devices], axis=-1)
        first, which = distinct_rows(keys)
        numbers = [self.rows.ranking(self._grid_at(int(place))) for place in first]
        return np.array(numbers, np.int64)[which]

    def _grid_at(self, point: int) -> Grid:
        degrees = tuple(int(n) for n in self.points.degrees[point][: len(self.kind.mesh.names)])
        ranks = int(self.points.ranks[point])
        return Grid.of(self.kind.mesh, degrees, ranks, self.placement)

    def _padding(self) -> Floats:
        """Per point the fraction of products on padding, made once for equal sizes."""
        sizes = self.programs[0].sizes
        found = np.zeros(len(self.which))
        if sizes.padded:
            padded = np.stack(
                [np.broadcast_to(np.asarray(n), len(found)) for n in sizes.padded.values()], axis=-1
            )
            first, which = distinct_rows(padded)
            for number, place in enumerate(first):
                longer = dict(zip(sizes.padded, map(int, padded[place]), strict=True))
                found[which == number] = self.workload.padding_fraction(longer)
        return found

    def _tied_seconds(
        self, tied: dict[tuple[int, ...], Any], points: Indices
    ) -> dict[tuple[int, ...], Floats]:
        """Seconds to add up so many bytes between ranks, per point."""
        if not tied:
            return {}
        rankings, cost = self._rankings[points], self.pricer.cost
        seconds: dict[tuple[int, ...], Floats] = {}
        for ranks, size in tied.items():
            sizes = np.broadcast_to(np.asarray(size, np.float64), len(self.which))[points]
            found = seconds[ranks] = np.empty(len(points))
            for number in np.unique(rankings):
                alike = rankings == number
                grid = self.rows.rankings[int(number)]
                found[alike] = tied_seconds(grid, cost, ranks, sizes[alike])
        return seconds

    # --- stages -----------------------------------------------------------------------------------

    def _numbered(self, spans: Sequence[Span], points: Indices) -> Indices:
        """Numbers of stages, which are wanted at these points; equal stages have one."""
        numbers = np.array([self._number(span) for span in spans], np.int64)
        for number in np.unique(numbers):
            self._wanted[number][points] = True
        return numbers

    def _number(self, span: Span) -> int:
        if span not in self._span_numbers:
            stage = self._runs(*span)
            number = self._stage_numbers.setdefault(stage, len(self._wanted))
            if number == len(self._wanted):
                self._wanted.append(np.zeros(len(self.which), np.bool_))
            self._span_numbers[span] = number
        return self._span_numbers[span]

    def _runs(self, begin: int, end: int, charged: int) -> _Stage:
        uses: Sequence[ChargedElsewhere] = [NOTHING_ELSEWHERE] * (end - begin)
        if charged:
            uses = next(found for found, number in self.cuts.uses.items() if number == charged)
        return tuple(repeated_blocks(list(zip(self.block_kinds[begin:end], uses, strict=True))))

    def _values(self) -> tuple[Floats, Indices]:
        """The rows of all stages at the points where they are wanted, and which row a stage is, of
        shape (stages, points)."""
        wanted = np.array(self._wanted)
        row_of = np.cumsum(wanted).reshape(wanted.shape) - 1
        stage, point = np.nonzero(wanted)
        levels = len(self.pricer.cost.cluster.levels)
        found = np.empty((len(NAMES) + 2 * levels, len(stage)))
        # Stages that differ in the lengths of long runs alone are looked at together.
        alike: dict[_Stage, list[int]] = {}
        for number, runs in enumerate(self._stage_numbers):
            if not wanted[number].any():
                continue
            form = tuple((word, min(count, LONG)) for word, count in runs)
            alike.setdefault(form, []).append(number)
        lengths = [[count for _, count in runs] for runs in self._stage_numbers]
        ends = np.cumsum(wanted.sum(axis=1))
        unpriced: list[tuple[Indices, UnpricedStage]] = []
        forward, backward = self._hops
        for form, numbers in alike.items():
            rows = np.concatenate(
                [np.arange(int(ends[n] - wanted[n].sum()), int(ends[n])) for n in numbers]
            )
            counts = np.array([lengths[number] for number in numbers], np.float64)
            own = np.repeat(counts, wanted[numbers].sum(axis=1), axis=0)
            unpriced += self._unpriced(form, rows, point[rows], own)
            found[len(NAMES) :: 2, rows] = forward[:, form[-1][0][-1][0], point[rows]]
            found[len(NAMES) + 1 :: 2, rows] = backward[:, form[0][0][0][0], point[rows]]
        costs = self.pricer.price([each for _, each in unpriced], self.pricing)
        for (rows, _), cost in zip(unpriced, costs, strict=True):
            found[: len(NAMES), rows] = columns_of(cost, len(rows))
        return found, row_of

    def _unpriced(
        self, form: _Stage, rows: Indices, points: Indices, counts: Floats
    ) -> list[tuple[Indices, UnpricedStage]]:
        """The stages of rows that differ in the lengths of their long runs alone, all together if
        these are even. `counts` are the lengths of runs, of shape (rows, runs)."""
        runs = [
            (
                tuple((self.different[kind], own) for kind, own in word),
                counts[:, place] if count == LONG else count,
            )
            for place, (word, count) in enumerate(form)
        ]
        try:
            stage = self.pricer.unpriced_stage(runs, self.pricing, self.splits, points)
        except Uneven as uneven:
            parts = uneven.where, ~uneven.where
            return [
                each
                for where in parts
                for each in self._unpriced(form, rows[where], points[where], counts[where])
            ]
        return [(rows, stage)]

    @cached_property
    def _hops(self) -> tuple[Floats, Floats]:
        """Seconds of messages forward and backward, of shape (levels, kinds of block, points)."""
        programs = self.different
        levels = len(self.pricer.cost.cluster.levels)
        shape = (levels, len(programs), len(self.which))
        forward, backward = np.empty(shape), np.empty(shape)
        for number, program in enumerate(programs):
            sent = sum(value.type.size_bytes for value in program.outputs)
            returned = sum(value.type.size_bytes for value in program.input_gradients)
            ahead, back = program.outputs_repeated_along, program.input_gradients_repeated_along
            for level in range(levels):
                forward[level, number] = self.pricing.message_at(level, sent, ahead)
                backward[level, number] = self.pricing.message_at(level, returned, back)
        return forward, backward


__all__ = ["Shape", "StageRows"]
