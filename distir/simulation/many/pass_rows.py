"""Rows of what stages do and hold in their actions: stages that differ only in how often their
patterns come are priced together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from distir.arrays import Flags, Floats, Indices
from distir.cost.amounts import is_many, taken
from distir.plan import BlockProgram
from distir.schedules import COMPLETING, COST_KINDS, FORWARD
from distir.simulation.many.numbered_stages import NumberedBlocks, StagesOfBlocks
from distir.simulation.many.priced_programs import PricedPrograms
from distir.simulation.pricing.chains_many import ChainColumns
from distir.simulation.pricing.memory import each_in_turn
from distir.simulation.pricing.repeats import Count, Uneven
from distir.simulation.pricing.stage_cost import UnpricedStage
from distir.simulation.pricing.stage_table import NAMES, ROW

_Kinds = NDArray[np.uint8]
"""Sets of cost kinds: the sums of all `1 << kind`."""

_Form = tuple[tuple[int, ...], ...]
"""The patterns of blocks of a stage, however often each of them comes."""

_Copies = tuple[int, tuple[int, ...]]
"""The number of a stage, and how often each pattern of its form comes in it."""


@dataclass(frozen=True, slots=True)
class _AlikeRows:
    """Rows whose stages differ only in the numbers of copies of their patterns."""

    rows: Indices
    """Their numbers."""
    sizes: Indices
    """Their program sizes."""
    cost_kinds: _Kinds
    """The actions for which they are wanted."""
    counts: Floats
    """The numbers of copies of patterns, of shape (patterns, rows)."""

    @property
    def acting(self) -> dict[int, Indices]:
        """By cost kind, the positions of the rows that are wanted for such actions, if any is."""
        both = ((kind, np.flatnonzero(self.cost_kinds >> kind & 1)) for kind in range(COST_KINDS))
        return {kind: own for kind, own in both if len(own)}

    def taken(self, where: Flags) -> _AlikeRows:
        """Those of them that are marked."""
        return _AlikeRows(
            self.rows[where], self.sizes[where], self.cost_kinds[where], self.counts[:, where]
        )


class PassRows:
    """The rows of stages at the sizes at which they are wanted, before they are priced."""

    def __init__(self, priced: PricedPrograms, every: StagesOfBlocks, cost_kinds: _Kinds) -> None:
        """`cost_kinds` are those of the actions for which stages are wanted, of shape
        (stages, sizes)."""
        self._pricer, self._pricing = priced.pricer, priced.pricing
        self._num_sizes = priced.num_sizes
        self._blocks = every.blocks
        alike = _by_form(every.stages)
        order = np.array([number for own in alike.values() for number, _ in own], np.int64)
        ordered = cost_kinds[order]
        wanted = ordered > 0
        self.row_of = np.empty(wanted.shape, np.int64)
        """The row of a stage at a size, of shape (stages, sizes)."""
        self.row_of[order] = np.cumsum(wanted).reshape(wanted.shape) - 1
        place, self.size = np.nonzero(wanted)
        """Of each row the number of its program size."""
        self.stage = order[place]
        """Of each row the number of its stage."""
        levels = len(self._pricer.cost.cluster.levels)
        self._values = np.zeros((len(NAMES) + 2 * levels, len(place)))
        self._stages: list[tuple[Indices, UnpricedStage]] = []
        kinds, counts = ordered[wanted], wanted.sum(axis=1)
        begin, end = 0, 0
        for form, stages in alike.items():
            own, counts = counts[: len(stages)], counts[len(stages) :]
            begin, end = end, end + int(own.sum())
            some = slice(begin, end)
            copies = np.array([each for _, each in stages], np.float64)
            of_rows = np.repeat(copies.T, own, axis=1)
            rows = np.arange(begin, end, dtype=np.int64)
            self._add(form, _AlikeRows(rows, self.size[some], kinds[some], of_rows))
        self._fill_memory()
        self._fill_messages(every.stages)

    @property
    def overlaps_gradients(self) -> bool:
        """Whether gradients are settled as soon as they are computed."""
        return self._pricer.cost.stack.overlaps_gradients

    @property
    def stages(self) -> list[UnpricedStage]:
        """What is to be priced."""
        return [stage for _, stage in self._stages]

    def _add(self, form: _Form, alike: _AlikeRows) -> None:
        """Adds the stages of rows that differ only in the numbers of copies of their patterns: as
        one if it can be priced so, else as several."""
        copies = map(_as_number, alike.counts)
        blocks = [
            (tuple([self._blocks[number] for number in pattern]), count)
            for pattern, count in zip(form, copies, strict=True)
            if not isinstance(count, int) or count
        ]
        acting = alike.acting
        some = {kind: own for kind, own in acting.items() if len(own) < len(alike.rows)}
        try:
            stage = self._pricer.unpriced_stage(blocks, self._pricing, acting, alike.sizes, some)
        except Uneven as uneven:
            for where in (uneven.where, ~uneven.where):
                self._add(form, alike.taken(where))
            return
        self._stages.append((alike.rows, stage))
        pattern, _ = stage.actions[FORWARD][0]
        gathered = pattern.passes.passes[0].gather_seconds
        if is_many(gathered) or gathered:
            self._values[ROW["first gather"], alike.rows] = taken(gathered, alike.sizes)

    def _fill_memory(self) -> None:
        """Fills in what actions hold."""
        for kind in range(COST_KINDS):
            own = [
                (_acting(rows, stage, kind), stage.turns(kind))
                for rows, stage in self._stages
                if kind in stage.memory
            ]
            if own:
                rows = np.concatenate([rows for rows, _ in own])
                sizes = [self.size[rows] for rows, _ in own]
                found = each_in_turn([turns for _, turns in own], sizes)
                self._values[ROW[f"delta {kind}"], rows] = found[0]
                self._values[ROW[f"peak {kind}"], rows] = found[1]

    def _fill_messages(self, stages: Sequence[NumberedBlocks]) -> None:
        """Fills in the seconds of messages to the next stage and to the previous one."""
        levels = range(len(self._pricer.cost.cluster.levels))
        ends = [(own[0][0], own[-1][0]) for own in stages]
        sides = (
            ([behind[-1] for _, behind in ends], _sent_forward),
            ([before[0] for before, _ in ends], _sent_backward),
        )
        for side, (blocks, sent) in enumerate(sides):
            known: dict[tuple[float, tuple[str, ...]], int] = {}
            of_block = {
                each: known.setdefault(sent(self._blocks[each][0]), len(known))
                for each in dict.fromkeys(blocks)
            }
            message = np.array([of_block[each] for each in blocks], np.int64)[self.stage]
            seconds = np.empty((len(known), self._num_sizes))
            for level in levels:
                for row, (size_bytes, along) in zip(seconds, known, strict=True):
                    row[:] = self._pricing.message_at(level, size_bytes, along)
                self._values[len(NAMES) + 2 * level + side] = seconds[message, self.size]

    def priced(self, columns: Sequence[ChainColumns]) -> Floats:
        """The rows, as columns, given what the chains of `stages` cost, by cost kind."""
        values = self._values
        for kind, found in enumerate(columns):
            having = [each for each in self._stages if kind in each[1].actions]
            if not having:
                continue
            rows = np.concatenate([_acting(*each, kind) for each in having])
            values[ROW[f"seconds {kind}"], rows] = found.seconds
            values[ROW[f"exposed {kind}"], rows] = found.waited
            if kind in COMPLETING:
                settled = found.settled
                if not self.overlaps_gradients:
                    settled = np.maximum(settled, found.seconds)
                values[ROW[f"settled {kind}"], rows] = settled
                values[ROW[f"settling {kind}"], rows] = found.scattering
                values[ROW[f"scattering {kind}"], rows] = found.scattering
        return values


def _as_number(copies: Floats) -> Count:
    """Numbers of copies; as one if what they count comes nowhere, or once in all rows: then there
    is no further copy to look for."""
    first = copies[0]
    return int(first) if first <= 1 and (copies == first).all() else copies


def _acting(rows: Indices, stage: UnpricedStage, kind: int) -> Indices:
    """Those of the rows of stages that have actions of a cost kind."""
    which = stage.acting.get(kind)
    return rows if which is None else rows[which]


def _by_form(stages: Sequence[NumberedBlocks]) -> dict[_Form, list[_Copies]]:
    """The stages by what they have in common if they differ only in the numbers of copies of
    patterns. Where some have several copies of a pattern inside, others may have none."""
    found: dict[_Form, list[_Copies]] = {}
    for number, blocks in enumerate(stages):
        form, counts = zip(*blocks, strict=True)
        found.setdefault(form, []).append((number, counts))
    for form in sorted(found, key=len, reverse=True):
        if form in found:
            for missing in _may_miss(found[form]):
                less = tuple([each for place, each in enumerate(form) if place not in missing])
                found[form] += [
                    (number, _with_none(counts, missing)) for number, counts in found.pop(less, ())
                ]
    return found


def _may_miss(alike: Sequence[_Copies]) -> Iterator[tuple[int, ...]]:
    """The places of patterns that others may miss, one or two, where these stages have several
    copies inside."""
    most = [max(copies) for copies in zip(*(counts for _, counts in alike), strict=True)]
    inside = [place for place in range(1, len(most) - 1) if most[place] > 1]
    for few in (1, 2):
        yield from combinations(inside, few)


def _with_none(counts: tuple[int, ...], missing: tuple[int, ...]) -> tuple[int, ...]:
    """Numbers of copies, with none at the places that are missing."""
    found = list(counts)
    for place in missing:  # ascending
        found.insert(place, 0)
    return tuple(found)


def _sent_forward(program: BlockProgram) -> tuple[float, tuple[str, ...]]:
    """What a stage that ends with this block sends to the next one."""
    sent = sum(value.type.size_bytes for value in program.outputs)
    return sent, program.outputs_repeated_along


def _sent_backward(program: BlockProgram) -> tuple[float, tuple[str, ...]]:
    """What a stage that begins with this block sends to the previous one."""
    sent = sum(value.type.size_bytes for value in program.input_gradients)
    return sent, program.input_gradients_repeated_along


__all__ = ["PassRows"]
