"""The blocks of stages on one mesh: what each adds to the passes of its stage, and what follows its
last backward pass. Equal ones are one.

What a block adds depends on the blocks directly before and after it; that of the first and of the
last block on the other end of the stage, too, as an action gathers for the next one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from distir.cost.amounts import total
from distir.plan import BlockProgram
from distir.plan.passes import (
    BlockPasses,
    Segment,
    at_beginning,
    at_end,
    is_reversed,
    segment,
)
from distir.schedules import COMPLETING, kinds_of_actions
from distir.simulation.pricing.chains import Pass, PassPattern, exact_streams
from distir.simulation.pricing.known_passes import KnownPasses
from distir.simulation.pricing.repeats import (
    Count,
    RepeatedBlocks,
    is_in_all,
    joined,
    require_even,
)
from distir.simulation.pricing.stage_cost import ActionPattern, ChargedBlock, StepEnd
from distir.simulation.pricing.step_ends import KnownStepEnds

_Place = tuple[BlockProgram | None, BlockProgram | None, BlockProgram | None, tuple[bool, bool]]
"""The blocks before and after a block in its stage, the one at the other end of the stage if the
block is at an end, and the way in which stages are asked for (`KnownStageBlocks.of`). Of blocks
that stand beside others alike (`KnownPasses.beside`) it names the first."""


@dataclass(frozen=True, slots=True, eq=False)
class StageBlock:
    """A block between its neighbours in a stage. Compared by identity."""

    held: BlockPasses
    """What it adds to passes that gather all they read themselves, which memory is counted by."""
    timed: BlockPasses
    """What it adds to passes between equal ones, which time is counted by."""
    end: StepEnd


class KnownStageBlocks:
    """Blocks of stages, and patterns of them in actions; what was asked for is kept."""

    def __init__(
        self, passes: KnownPasses, ends: KnownStepEnds, *, overlaps_gradients: bool
    ) -> None:
        """`overlaps_gradients`: whether gradients are settled as soon as they are computed, or at
        the end."""
        self._passes, self._ends = passes, ends
        self._overlaps_gradients = overlaps_gradients
        self._placed: dict[object, StageBlock] = {}
        self._held_between: dict[object, BlockPasses] = {}
        self._between: dict[object, tuple[BlockPasses, BlockPasses]] = {}
        self._blocks: dict[object, StageBlock] = {}
        self._of_kinds: dict[tuple[tuple[StageBlock, ...], int], ActionPattern] = {}
        self._patterns: dict[object, ActionPattern] = {}
        self._pass_patterns: dict[object, PassPattern] = {}

    def of(
        self, chain: Sequence[ChargedBlock], *, splits: bool, waits_for_gathers: bool
    ) -> list[StageBlock]:
        """The blocks of a stage. `splits` says whether they have the parts of backward passes;
        without `waits_for_gathers` passes find all gathered that they read."""
        known, way = self._placed, (splits, waits_for_gathers)
        beside = [self._passes.beside(program, splits) for program, _ in chain]
        found: list[StageBlock] = []
        last = len(chain) - 1
        for place, own in enumerate(chain):
            before = beside[place - 1] if place else None
            behind = beside[place + 1] if place < last else None
            # The other end of the stage, if the block is one.
            other = beside[last] if not place else beside[0] if place == last else None
            key = (own, before, behind, other, way)
            each = known.get(key)
            if each is None:
                each = known[key] = self._block(own, (before, behind, other, way))
            found.append(each)
        return found

    def _block(self, own: ChargedBlock, place: _Place) -> StageBlock:
        """A block at a place in a stage."""
        program, away = own
        passes = self._between.get((program, place))
        if passes is None:
            passes = self._between[program, place] = self._passes_at(program, *place)
        key = *passes, self._ends.of(program, away)
        return self._blocks.setdefault(key, StageBlock(*key))

    def held(self, programs: Sequence[BlockProgram], *, splits: bool) -> tuple[BlockPasses, ...]:
        """What the blocks of a stage add to passes that gather all they read themselves."""
        beside = [self._passes.beside(program, splits) for program in programs]
        around = zip((None, *beside[:-1]), programs, (*beside[1:], None), strict=True)
        return tuple([self._held(own, before, behind, splits) for before, own, behind in around])

    def _held(
        self,
        program: BlockProgram,
        before: BlockProgram | None,
        behind: BlockProgram | None,
        splits: bool,
    ) -> BlockPasses:
        """What a block adds to passes that gather all they read themselves, at a `_Place`."""
        key = program, before, behind, splits
        found = self._held_between.get(key)
        if found is None:
            around = [
                (program, kind, *_around(kind, before, behind)) for kind in kinds_of_actions(splits)
            ]
            found = self._held_between[key] = tuple([segment(*each) for each in around])
        return found

    def _passes_at(
        self,
        program: BlockProgram,
        before: BlockProgram | None,
        behind: BlockProgram | None,
        other: BlockProgram | None,
        way: tuple[bool, bool],
    ) -> tuple[BlockPasses, BlockPasses]:
        """What a block adds to passes, by which memory and by which time is counted, at a
        `_Place`."""
        splits, waits_for_gathers = way
        held = self._held(program, before, behind, splits)
        timed: list[Segment] = []
        for steady in held:
            first, last = _around(steady.kind, before, behind)
            if first is None:
                steady = at_beginning(steady)
            if last is None and other is not None:
                steady = at_end(steady, other)
            timed.append(steady if waits_for_gathers else steady.without_gathers)
        return held, tuple(timed)

    def in_actions(
        self, blocks: Sequence[RepeatedBlocks[StageBlock]], kinds: Iterable[int]
    ) -> dict[int, list[tuple[ActionPattern, Count]]]:
        """The blocks of a stage in the order in which actions visit them, by cost kind; patterns
        that differ only in other actions are one. Raises `Uneven` if a pattern that has copies in
        some stages only decides how passes are scheduled in these (see `exact_streams`)."""
        found: dict[int, list[tuple[ActionPattern, Count]]] = {}
        for kind in kinds:
            ordered = reversed(blocks) if is_reversed(kind) else blocks
            patterns = [(self._pattern(pattern, kind), count) for pattern, count in ordered]
            found[kind] = joined(patterns)
        if not all([is_in_all(count) for _, count in blocks]):
            for own in found.values():
                _require_alike(own)
        return found

    def _pattern(self, blocks: tuple[StageBlock, ...], kind: int) -> ActionPattern:
        """A pattern of blocks as actions of a cost kind visit them."""
        key = blocks, kind
        found = self._of_kinds.get(key)
        if found is None:
            ordered = blocks[::-1] if is_reversed(kind) else blocks
            passes = tuple(self._passes.of([each.timed[kind] for each in ordered]))
            ends = tuple([each.end for each in ordered]) if kind in COMPLETING else ()
            found = self._patterns.get((passes, ends, kind))
            if found is None:
                pattern = self._settled(passes, self._settling(passes, ends, kind))
                found = self._patterns[passes, ends, kind] = ActionPattern(pattern, ends)
            self._of_kinds[key] = found
        return found

    def without_settling(self, passes: tuple[Pass, ...]) -> PassPattern:
        """Passes after which no gradients are settled."""
        return self._settled(passes, ())

    def _settled(self, passes: tuple[Pass, ...], settling: tuple[float, ...]) -> PassPattern:
        key = passes, settling
        return self._pass_patterns.setdefault(key, PassPattern(passes, settling))

    def _settling(
        self, passes: Sequence[Pass], ends: Sequence[StepEnd], kind: int
    ) -> tuple[float, ...]:
        """Seconds on the gradient stream after each of these passes."""
        if kind not in COMPLETING:
            return ()
        scattering = [each.scatter_seconds for each in passes]
        if not self._overlaps_gradients:
            return tuple(scattering)
        both = zip(scattering, ends, strict=True)
        return tuple([total((own, end.settling_seconds[kind])) for own, end in both])


def _require_alike(patterns: Sequence[tuple[ActionPattern, Count]]) -> None:
    """Raises `Uneven` if patterns that are missing from some stages decide how passes are scheduled
    in the others."""
    every = [pattern.passes for pattern, _ in patterns]
    always = [pattern.passes for pattern, count in patterns if is_in_all(count)]
    if exact_streams(every) != exact_streams(always):
        for _, count in patterns:
            require_even(count)


def _around(
    kind: int, before: BlockProgram | None, behind: BlockProgram | None
) -> tuple[BlockProgram | None, BlockProgram | None]:
    """The blocks before and behind a block, in the order in which actions of a kind visit them."""
    return (behind, before) if is_reversed(kind) else (before, behind)


__all__ = ["KnownStageBlocks", "StageBlock"]
