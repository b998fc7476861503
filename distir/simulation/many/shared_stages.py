"""The stages of program kinds that share programs: what is equal in several kinds is one stage, and
has a row per program size.

Stages that differ only in which of their blocks store and update parameters do and hold the same in
their actions: they share the rows of these (`pass_rows.py`), to which each adds what its blocks do
once per step (`step_columns.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from distir.arrays import Flags, Floats, Indices
from distir.plan import BlockProgram
from distir.simulation.many.numbered_stages import NumberedBlocks, StagesOfBlocks
from distir.simulation.many.pass_rows import PassRows
from distir.simulation.many.priced_programs import PricedPrograms
from distir.simulation.many.step_columns import add_step_columns, step_columns
from distir.simulation.pricing.chains_many import ChainColumns
from distir.simulation.pricing.repeats import joined, repeated_blocks
from distir.simulation.pricing.stage_cost import ChargedBlock, OverlappedStages
from distir.simulation.pricing.tied import ChargedElsewhere

ProgramsOfStage: TypeAlias = tuple[BlockProgram, ...]
"""The program of each block of a stage."""

OverlappedPair: TypeAlias = tuple[ProgramsOfStage, ProgramsOfStage]
"""The blocks of two stages: of one with a forward pass, and of one with a backward pass that runs
beside it."""

_Kinds: TypeAlias = NDArray[np.uint8]
"""Sets of cost kinds: the sums of all `1 << kind`."""


@dataclass(frozen=True, slots=True)
class UnpricedRows:
    """The rows of stages before anything is priced."""

    row_of: Indices
    """The row of a stage at a size, of shape (stages, sizes)."""
    steps: Floats
    """What stages do and hold once per step."""
    passes: PassRows
    """What they do and hold in their actions."""
    which: Indices | None
    """Of each row that of its actions; None: they have the same rows."""

    def priced(self, columns: Sequence[ChainColumns]) -> Floats:
        """The rows, as columns, given what the chains of `passes` cost, by cost kind."""
        values = self.passes.priced(columns)
        if self.which is not None:
            values = values.take(self.which, axis=1)
        add_step_columns(values, self.steps, overlaps=self.passes.overlaps_gradients)
        return values


class SharedStages:
    """Stages and overlapped pairs of kinds with the same `priced` programs, and the sizes at which
    they are wanted, and for which actions."""

    def __init__(self, priced: PricedPrograms) -> None:
        self._priced, self._num_sizes = priced, priced.num_sizes
        self._blocks: dict[ChargedBlock, int] = {}
        self._stages: dict[NumberedBlocks, int] = {}
        self._wanted: _Kinds = np.zeros((0, priced.num_sizes), np.uint8)
        """Of shape (stages, sizes); there may be more rows than stages."""
        self._pairs: dict[OverlappedPair, Flags] = {}

    # --- what is wanted ---------------------------------------------------------------------------

    def number(self, programs: Iterable[BlockProgram], uses: Iterable[ChargedElsewhere]) -> int:
        """The number of a stage, given its blocks; equal stages have one number."""
        known = self._blocks
        blocks = [known.setdefault(each, len(known)) for each in zip(programs, uses, strict=True)]
        return self._stages.setdefault(tuple(repeated_blocks(blocks)), len(self._stages))

    def want(self, stages: Indices, sizes: Indices, cost_kinds: _Kinds) -> None:
        """Marks stages as wanted, each at one of `sizes` for the actions of a set of cost kinds."""
        missing = len(self._stages) - len(self._wanted)
        if missing > 0:
            more = np.zeros((max(missing, len(self._wanted)), self._num_sizes), np.uint8)
            self._wanted = np.concatenate([self._wanted, more])
        for kinds in np.flatnonzero(np.bincount(cost_kinds)).tolist():
            own = cost_kinds == kinds
            self._wanted[stages[own], sizes[own]] |= np.uint8(kinds)

    def want_pair(self, pair: OverlappedPair, sizes: Indices) -> None:
        """Marks an overlapped pair as wanted at sizes."""
        self._pairs.setdefault(pair, np.zeros(self._num_sizes, np.bool_))[sizes] = True

    @property
    def pairs(self) -> Iterable[tuple[OverlappedPair, Flags]]:
        """The overlapped pairs, each with the sizes at which it is wanted."""
        return self._pairs.items()

    @property
    def overlapped(self) -> list[OverlappedStages]:
        """The overlapped pairs, to be priced at these sizes."""
        return [OverlappedStages(*pair, np.flatnonzero(at)) for pair, at in self._pairs.items()]

    # --- what is to be priced ---------------------------------------------------------------------

    def unpriced(self) -> UnpricedRows:
        """All that is wanted."""
        blocks = [(own.adding_up(uses.adds_up), uses) for own, uses in self._blocks]
        passes, own = self._passes(blocks)
        kinds = self._wanted[: len(self._stages)]
        if len(passes.stages) == len(kinds):
            rows = PassRows(self._priced, passes, kinds)
            row_of, stage, size, which = rows.row_of, rows.stage, rows.size, None
        else:
            of_passes = np.zeros((len(passes.stages), self._num_sizes), np.uint8)
            np.bitwise_or.at(of_passes, own, kinds)
            rows, wanted = PassRows(self._priced, passes, of_passes), kinds > 0
            row_of = np.cumsum(wanted).reshape(wanted.shape) - 1
            stage, size = np.nonzero(wanted)
            which = rows.row_of[own[stage], size]
        steps = step_columns(self._priced, StagesOfBlocks(list(self._stages), blocks), stage, size)
        return UnpricedRows(row_of, steps, rows, which)

    def _passes(self, blocks: Sequence[ChargedBlock]) -> tuple[StagesOfBlocks, Indices]:
        """The stages, of which those are one that do the same in their actions, and the number of
        each stage among them. Which blocks store parameters does not matter there."""
        numbers: dict[ChargedBlock, int] = {}
        acting = [(own, uses._replace(held=())) for own, uses in blocks]
        of_block = [numbers.setdefault(each, len(numbers)) for each in acting]
        found: dict[NumberedBlocks, int] = {}
        of_stage: list[int] = []
        for stage in self._stages:
            same = stage
            if len(numbers) < len(blocks):
                others = [(tuple([of_block[n] for n in own]), count) for own, count in stage]
                same = tuple(joined(others))
            of_stage.append(found.setdefault(same, len(found)))
        return StagesOfBlocks(list(found), list(numbers)), np.array(of_stage, np.int64)


__all__ = ["OverlappedPair", "ProgramsOfStage", "SharedStages", "UnpricedRows"]
