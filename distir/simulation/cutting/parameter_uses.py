"""What partitions of a model's blocks into stages make of parameters that several blocks use.

Which block is charged for a parameter, and which ranks add up its gradients, depends on the bounds
of stages and on how blocks lay out its gradients, and on no size. Kinds of program that lay them
out alike share it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from distir.ir.core import Value
from distir.plan import BlockProgram, Stage
from distir.plan.model import in_one_stage
from distir.simulation.cutting.partition import Bounds, Shape
from distir.simulation.pricing.tied import (
    NOTHING_ELSEWHERE,
    ChargedElsewhere,
    SharedUse,
    StagesOfRanks,
    TiedUse,
    TiedUses,
    between_ranks,
    charged_among,
    gradient_layout,
    gradients_of,
    tied_uses,
)
from distir.workload import Workload

StageBlocks: TypeAlias = tuple[int, int, int]
"""A stage: its first block, the block after its last, and the number of what is charged elsewhere
(`StageCharges`)."""

Partition: TypeAlias = tuple[int, Bounds]
"""The number of a shape, and the bounds of its stages."""


@dataclass(frozen=True, slots=True)
class PartitionUses:
    """What a partition makes of shared parameters."""

    stages: tuple[StageBlocks, ...]
    ranks: int
    """How many ranks there are."""
    tied: TiedUses
    """The gradients that groups of them add up."""


class _BlockUse(NamedTuple):
    """A block's use of a parameter that other blocks use, too, in a stage in which no other block
    uses it, and in a stage with others, where its gradient is added up."""

    alone: SharedUse
    added_up: SharedUse
    adds_up: bool
    """Whether adding up makes a difference to the block's program."""


class DifferentStages:
    """Stages of models whose blocks have these kinds. Stages with equal blocks that are charged
    alike are one."""

    def __init__(self, kinds: tuple[int, ...]) -> None:
        self._kinds = kinds
        self._numbers: dict[tuple[tuple[int, ...], int], int] = {}
        self._known: dict[tuple[StageBlocks, ...], list[int]] = {}

    def of(self, stages: tuple[StageBlocks, ...]) -> list[int]:
        """The numbers of stages among those that differ."""
        found = self._known.get(stages)
        if found is None:
            numbers = self._numbers
            keys = [(self._kinds[begin:end], charged) for begin, end, charged in stages]
            found = [numbers.setdefault(key, len(numbers)) for key in keys]
            self._known[stages] = found
        return found


class StageCharges:
    """What is charged elsewhere of stages whose blocks have these uses of shared parameters."""

    def __init__(self, sharing: Sequence[int], uses: Sequence[Sequence[_BlockUse]]) -> None:
        """`sharing` are the blocks that share parameters, in ascending order."""
        self._sharing, self._uses = sharing, uses
        self._different: list[Sequence[tuple[int, ChargedElsewhere]]] = [()]
        """By number what is charged elsewhere of some blocks of a stage; the first is nothing."""
        self._numbers: dict[object, int] = {(): 0}
        self._known: dict[object, int] = {}
        self._stages: dict[tuple[int, ...], DifferentStages] = {}

    def stages(self, kinds: tuple[int, ...]) -> DifferentStages:
        """The stages of models whose blocks have these kinds, which many program kinds share."""
        return self._stages.setdefault(kinds, DifferentStages(kinds))

    def of(self, number: int, blocks: int) -> list[ChargedElsewhere]:
        """What is charged elsewhere of each block of a stage with so many blocks."""
        found = [NOTHING_ELSEWHERE] * blocks
        for place, charged in self._different[number]:
            found[place] = charged
        return found

    def number(self, begin: int, among: range, earlier: tuple[range, ...]) -> int:
        """The number of what is charged elsewhere of a stage that begins with this block. Of the
        blocks that share parameters it has those with the places `among`, and the stages of its
        rank before it those with the places `earlier`."""
        key = begin, among, earlier
        found = self._known.get(key)
        if found is None:
            charged = tuple(self._charged(begin, among, earlier))
            found = self._known[key] = self._numbers.setdefault(charged, len(self._different))
            if found == len(self._different):
                self._different.append(charged)
        return found

    def _charged(
        self, begin: int, among: range, earlier: tuple[range, ...]
    ) -> Iterator[tuple[int, ChargedElsewhere]]:
        every = [self._uses[place] for place in among]
        users = Counter([use.alone.parameter for own in every for use in own])
        uses: list[list[SharedUse]] = []
        adds_up: list[tuple[int, ...]] = []
        for own in every:
            several = [use for use in own if users[use.alone.parameter] > 1]
            uses.append([use.added_up if use in several else use.alone for use in own])
            adds_up.append(tuple(sorted(use.alone.position for use in several if use.adds_up)))
        before = [use for own in earlier for place in own for use in self._uses[place]]
        charged = charged_among(uses, adds_up, {use.alone.parameter for use in before})
        for place, each in zip(among, charged, strict=True):
            if each != NOTHING_ELSEWHERE:
                yield self._sharing[place] - begin, each


class ParameterUses:
    """What partitions make of the parameters of blocks with these programs, or others that lay out
    gradients alike."""

    def __init__(
        self,
        workload: Workload,
        shapes: Sequence[Shape],
        programs: Sequence[BlockProgram],
        charges: StageCharges,
    ) -> None:
        self.charges = charges
        self._workload, self._program = workload, workload.program
        self._shapes, self._programs = shapes, programs
        self._sharing = sorted(self._program.sharing_blocks)
        blocks, shared = self._program.blocks.blocks, self._program.shared_parameters
        self._trained = [
            [
                (blocks[block].parameters[position], TiedUse(block, position, 1))
                for position in shared[block]
                if programs[block].parameters[position].gradient is not None
            ]
            for block in self._sharing
        ]
        """Per block that shares parameters, those that have gradients."""
        self._tied_of: dict[object, TiedUses] = {}
        self._known: dict[Partition, PartitionUses] = {}

    def of(self, partition: Partition) -> PartitionUses:
        """What a partition makes of parameters."""
        found = self._known.get(partition)
        if found is None:
            found = self._known[partition] = self._made(*partition)
        return found

    def _made(self, shape: int, bounds: Bounds) -> PartitionUses:
        ranks, _ = self._shapes[shape]
        stages = [(begin, end, 0) for begin, end in pairwise(bounds)]
        borders = [bisect_left(self._sharing, block) for block in bounds]
        among = [range(first, end) for first, end in pairwise(borders)]
        for stage, (begin, end, _) in enumerate(stages):
            if among[stage]:
                own = next(own for own in ranks if stage in own)
                earlier = tuple([among[one] for one in own if one < stage and among[one]])
                stages[stage] = begin, end, self.charges.number(begin, among[stage], earlier)
        return PartitionUses(tuple(stages), len(ranks), self._tied(ranks, bounds, among))

    def _tied(self, ranks: StagesOfRanks, bounds: Bounds, among: Sequence[range]) -> TiedUses:
        if not self._workload.training:
            return {}
        if sum(map(len, ranks)) >= len(bounds):
            stages = [self._stage(index, *both) for index, both in enumerate(pairwise(bounds))]
            return tied_uses(self._program, ranks, stages)
        # No stage is on several ranks, so only the uses of shared parameters matter.
        holding = {stage: rank for rank, own in enumerate(ranks) for stage in own}
        key = tuple([(own, holding[stage]) for stage, own in enumerate(among) if own])
        if key not in self._tied_of:
            found: dict[Value, tuple[set[int], TiedUse]] = {}
            for own, rank in key:
                for place in own:
                    for parameter, use in self._trained[place]:
                        found.setdefault(parameter, (set(), use))[0].add(rank)
            self._tied_of[key] = between_ranks(found.values())
        return self._tied_of[key]

    def _stage(self, index: int, begin: int, end: int) -> Stage:
        chosen, programs = tuple(range(begin, end)), self._programs[begin:end]
        return Stage(index, chosen, in_one_stage(self._program, chosen, programs))


class KnownParameterUses:
    """The parameter uses of kinds of program: one for all that lay out gradients alike."""

    def __init__(self, workload: Workload, shapes: Sequence[Shape]) -> None:
        """`shapes` are those of all partitions, by their numbers."""
        self._workload, self._shapes = workload, shapes
        self._known: dict[object, ParameterUses] = {}
        self._charges: dict[object, StageCharges] = {}

    def of(self, programs: Sequence[BlockProgram]) -> ParameterUses:
        """Those of the blocks with these programs."""
        uses = tuple(self._uses(programs))
        key = self._gradients(programs), uses
        if key not in self._known:
            sharing = sorted(self._workload.program.sharing_blocks)
            charges = self._charges.setdefault(uses, StageCharges(sharing, uses))
            found = ParameterUses(self._workload, self._shapes, programs, charges)
            self._known[key] = found
        return self._known[key]

    def _uses(self, programs: Sequence[BlockProgram]) -> Iterator[tuple[_BlockUse, ...]]:
        """Per block that shares parameters its uses of them, with layouts as numbers: which
        gradients of a parameter are laid out alike, with and without adding them up over a
        stage."""
        program, known = self._workload.program, dict[object, int]()
        for block in sorted(program.sharing_blocks):
            own, parameters = programs[block], program.blocks.blocks[block].parameters
            yield tuple(
                [
                    _BlockUse(
                        _shared_use(own, parameters[at], at, known),
                        _shared_use(own.adding_up((at,)), parameters[at], at, known),
                        bool(own.adding_up((at,)).adds_up),
                    )
                    for at in program.shared_parameters[block]
                ]
            )

    def _gradients(self, programs: Sequence[BlockProgram]) -> object:
        """Which blocks are equal, and which parameters have gradients."""
        different: dict[tuple[BlockProgram, tuple[int, ...]], int] = {}
        both = zip(programs, self._workload.program.shared_parameters, strict=True)
        equal = tuple([different.setdefault(each, len(different)) for each in both])
        return equal, tuple([tuple(gradients_of(own, shared)) for own, shared in different])


def _shared_use(
    program: BlockProgram, parameter: Value, position: int, known: dict[object, int]
) -> SharedUse:
    """A block's use of a shared parameter, with the layout of the gradient as a number."""
    layout = gradient_layout(program, position)
    number = None if layout is None else known.setdefault((parameter, layout), len(known))
    return SharedUse(position, parameter, number)


__all__ = [
    "DifferentStages",
    "KnownParameterUses",
    "ParameterUses",
    "Partition",
    "PartitionUses",
    "StageBlocks",
    "StageCharges",
]
