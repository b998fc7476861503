"""The stages of program kinds that share programs: what is equal in several kinds is one stage, and
has a row per program size."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from distir.arrays import Flags, Floats, Indices
from distir.plan import BlockProgram
from distir.schedules import COST_KINDS
from distir.simulation.many.priced_programs import PricedPrograms
from distir.simulation.pricing.repeats import RepeatedBlocks, Uneven, repeated_blocks
from distir.simulation.pricing.stage_cost import OverlappedStages, UnpricedStage
from distir.simulation.pricing.stage_table import NAMES
from distir.simulation.pricing.tied import ChargedElsewhere

BlockKind: TypeAlias = tuple[int, ChargedElsewhere]
"""The number of a block's program, and what is charged elsewhere."""

_Stage: TypeAlias = tuple[RepeatedBlocks[BlockKind], ...]

ProgramsOfStage: TypeAlias = tuple[tuple[int, tuple[int, ...]], ...]
"""Per block of a stage the number of its program, and the positions of parameters that it adds up
over microbatches."""

OverlappedPair: TypeAlias = tuple[ProgramsOfStage, ProgramsOfStage]
"""The blocks of two stages: of one with a forward pass, and of one with a backward pass that runs
beside it."""

_Kinds: TypeAlias = NDArray[np.uint8]
"""Sets of cost kinds: the sums of all `1 << kind`."""

LONG = 2
"""Patterns with at least this many copies are priced together, whatever their numbers of copies:
they have a first and a last copy."""


@dataclass(frozen=True, slots=True)
class UnpricedRows:
    """The rows of stages before anything is priced."""

    values: Floats
    """The rows, as columns."""
    row_of: Indices
    """The row of a stage at a size, of shape (stages, sizes)."""
    stages: list[tuple[Indices, UnpricedStage]]
    """Stages, and the rows that they are in."""
    overlapped: list[OverlappedStages]


@dataclass(frozen=True, slots=True)
class _AlikeRows:
    """Rows whose stages differ only in the numbers of copies of their long patterns."""

    rows: Indices
    """Their numbers."""
    sizes: Indices
    """Their program sizes."""
    cost_kinds: _Kinds
    """The actions for which they are wanted."""
    counts: Floats
    """The numbers of copies of patterns, of shape (rows, patterns)."""

    def taken(self, where: Flags) -> _AlikeRows:
        """Those of them that are marked."""
        return _AlikeRows(
            self.rows[where], self.sizes[where], self.cost_kinds[where], self.counts[where]
        )


class SharedStages:
    """Stages and overlapped pairs of kinds with the same `priced` programs, and the sizes at which
    they are wanted, and for which actions."""

    def __init__(self, priced: PricedPrograms, num_sizes: int) -> None:
        self._pricer, self._pricing = priced.pricer, priced.pricing
        self._num_sizes = num_sizes
        self._numbers: dict[BlockProgram, int] = {}
        self._stage_numbers: dict[_Stage, int] = {}
        self._wanted: list[_Kinds] = []
        self._pairs: dict[OverlappedPair, Flags] = {}

    # --- what is wanted ---------------------------------------------------------------------------

    def blocks(
        self, programs: Iterable[BlockProgram], uses: Iterable[ChargedElsewhere]
    ) -> list[BlockKind]:
        """The blocks of a stage, with programs as numbers."""
        numbers = self._numbers
        kinds = [numbers.setdefault(program, len(numbers)) for program in programs]
        return list(zip(kinds, uses, strict=True))

    def number(self, blocks: Sequence[BlockKind]) -> int:
        """The number of a stage; equal stages have one number."""
        number = self._stage_numbers.setdefault(tuple(repeated_blocks(blocks)), len(self._wanted))
        if number == len(self._wanted):
            self._wanted.append(np.zeros(self._num_sizes, np.uint8))
        return number

    def want(self, stages: Iterable[int], sizes: Indices, cost_kinds: _Kinds) -> None:
        """Marks stages as wanted at each of `sizes` for the actions of a set of cost kinds."""
        kinds = np.zeros(self._num_sizes, np.uint8)
        np.bitwise_or.at(kinds, sizes, cost_kinds)
        for number in stages:
            self._wanted[number] |= kinds

    def want_pair(self, pair: OverlappedPair, sizes: Indices) -> None:
        """Marks an overlapped pair as wanted at sizes."""
        self._pairs.setdefault(pair, np.zeros(self._num_sizes, np.bool_))[sizes] = True

    @property
    def pairs(self) -> Iterable[tuple[OverlappedPair, Flags]]:
        """The overlapped pairs, each with the sizes at which it is wanted."""
        return self._pairs.items()

    # --- what is to be priced ---------------------------------------------------------------------

    def unpriced(self) -> UnpricedRows:
        """All that is wanted."""
        kinds = np.array(self._wanted)
        wanted = kinds > 0
        row_of = np.cumsum(wanted).reshape(wanted.shape) - 1
        stage, size = np.nonzero(wanted)
        kinds = kinds[wanted]
        levels = len(self._pricer.cost.cluster.levels)
        values = np.empty((len(NAMES) + 2 * levels, len(stage)))
        # Stages that differ only in the numbers of copies of long patterns are priced together.
        alike: dict[_Stage, list[int]] = {}
        for number, blocks in enumerate(self._stage_numbers):
            form = tuple((pattern, min(count, LONG)) for pattern, count in blocks)
            alike.setdefault(form, []).append(number)
        copies = [[count for _, count in blocks] for blocks in self._stage_numbers]
        ends = np.cumsum(wanted.sum(axis=1))
        stages: list[tuple[Indices, UnpricedStage]] = []
        forward, backward = self._hops()
        for form, numbers in alike.items():
            rows = np.concatenate(
                [np.arange(int(ends[n] - wanted[n].sum()), int(ends[n])) for n in numbers]
            )
            counts = np.array([copies[number] for number in numbers], np.float64)
            own = np.repeat(counts, wanted[numbers].sum(axis=1), axis=0)
            same = _AlikeRows(rows, size[rows], kinds[rows], own)
            stages += self._unpriced_stages(form, same)
            values[len(NAMES) :: 2, rows] = forward[:, form[-1][0][-1][0], size[rows]]
            values[len(NAMES) + 1 :: 2, rows] = backward[:, form[0][0][0][0], size[rows]]
        return UnpricedRows(values, row_of, stages, self._overlapped())

    def _overlapped(self) -> list[OverlappedStages]:
        different = list(self._numbers)

        def adding_up(programs: ProgramsOfStage) -> tuple[BlockProgram, ...]:
            return tuple(different[kind].adding_up(adds_up) for kind, adds_up in programs)

        return [
            OverlappedStages(adding_up(forward), adding_up(backward), np.flatnonzero(wanted))
            for (forward, backward), wanted in self._pairs.items()
        ]

    def _unpriced_stages(
        self, form: _Stage, alike: _AlikeRows
    ) -> list[tuple[Indices, UnpricedStage]]:
        """The stages of rows that differ only in the numbers of copies of their long patterns: as
        one if it can be priced so, else as several."""
        different = list(self._numbers)
        blocks = [
            (
                tuple((different[kind].adding_up(own.adds_up), own) for kind, own in pattern),
                alike.counts[:, place] if count == LONG else count,
            )
            for place, (pattern, count) in enumerate(form)
        ]
        wanted = int(np.bitwise_or.reduce(alike.cost_kinds))
        cost_kinds = [kind for kind in range(COST_KINDS) if wanted >> kind & 1]
        try:
            stage = self._pricer.unpriced_stage(blocks, self._pricing, cost_kinds, alike.sizes)
        except Uneven as uneven:
            parts = (alike.taken(where) for where in (uneven.where, ~uneven.where))
            return [each for part in parts for each in self._unpriced_stages(form, part)]
        return [(alike.rows, stage)]

    def _hops(self) -> tuple[Floats, Floats]:
        """Seconds of messages forward and backward, of shape (levels, programs, sizes)."""
        levels = len(self._pricer.cost.cluster.levels)
        shape = (levels, len(self._numbers), self._num_sizes)
        forward, backward = np.empty(shape), np.empty(shape)
        for program, number in self._numbers.items():
            sent = sum(value.type.size_bytes for value in program.outputs)
            returned = sum(value.type.size_bytes for value in program.input_gradients)
            ahead, back = program.outputs_repeated_along, program.input_gradients_repeated_along
            for level in range(levels):
                forward[level, number] = self._pricing.message_at(level, sent, ahead)
                backward[level, number] = self._pricing.message_at(level, returned, back)
        return forward, backward


__all__ = ["BlockKind", "OverlappedPair", "ProgramsOfStage", "SharedStages", "UnpricedRows"]
