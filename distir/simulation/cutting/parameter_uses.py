"""What partitions of a model's blocks into stages make of parameters that several blocks use.

Which block is charged for a parameter, and which ranks add up its gradients, depends on the bounds
of stages and on how blocks lay out its gradients, and on no size. Kinds of program that lay them
out alike share it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from distir.plan import BlockProgram, Stage
from distir.plan.model import in_one_stage
from distir.plan.positions import positions_of
from distir.simulation.cutting.partition import Bounds, Shape
from distir.simulation.pricing.tied import (
    NOTHING_ELSEWHERE,
    ChargedElsewhere,
    StagesOfRanks,
    TiedUses,
    charged_to_earlier,
    gradients_of,
    tied_uses,
)
from distir.workload import Workload

StageBlocks: TypeAlias = tuple[int, int, int]
"""A stage: its first block, the block after its last, and the number of what is charged
elsewhere."""

Partition: TypeAlias = tuple[int, Bounds]
"""The number of a shape, and the bounds of its stages."""


@dataclass(frozen=True, slots=True)
class PartitionUses:
    """What a partition makes of shared parameters."""

    stages: Sequence[StageBlocks]
    tied: TiedUses
    """The gradients that groups of ranks add up."""


class ParameterUses:
    """What partitions make of the parameters of blocks with these programs, or others that lay out
    gradients alike."""

    def __init__(
        self, workload: Workload, shapes: Sequence[Shape], programs: Sequence[BlockProgram]
    ) -> None:
        self._workload, self._program = workload, workload.program
        self._shapes, self._programs = shapes, programs
        self._sharing = sorted(self._program.sharing_blocks)
        self.charged: list[tuple[ChargedElsewhere, ...]] = [()]
        """By number what is charged elsewhere, per block of a stage; the first one is nothing."""
        self._numbers: dict[tuple[ChargedElsewhere, ...], int] = {}
        self._charged_of: dict[tuple[int, int, tuple[int, ...]], int] = {}
        self._tied_of: dict[tuple[int, tuple[int, ...]], TiedUses] = {}
        self._known: dict[Partition, PartitionUses] = {}

    def of(self, partition: Partition) -> PartitionUses:
        """What a partition makes of parameters."""
        if partition not in self._known:
            self._known[partition] = PartitionUses(self._stages(partition), self._tied(partition))
        return self._known[partition]

    def _stages(self, partition: Partition) -> list[StageBlocks]:
        shape, bounds = partition
        ranks, _ = self._shapes[shape]
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
        if key not in self._charged_of:
            found = charged_to_earlier(self._program, self._stage(0, range(begin, end)), earlier)
            self._charged_of[key] = self._number(found)
        return self._charged_of[key]

    def _number(self, charged: tuple[ChargedElsewhere, ...]) -> int:
        if all(each == NOTHING_ELSEWHERE for each in charged):
            return 0
        number = self._numbers.setdefault(charged, len(self.charged))
        if number == len(self.charged):
            self.charged.append(charged)
        return number

    def _tied(self, partition: Partition) -> TiedUses:
        if not self._workload.training:
            return {}
        shape, bounds = partition
        ranks, _ = self._shapes[shape]
        if sum(map(len, ranks)) >= len(bounds):
            return self._tied_in(ranks, [range(begin, end) for begin, end in pairwise(bounds)])
        # No stage is on several ranks, so only the uses of shared parameters matter.
        key = (shape, tuple(bisect_right(bounds, block) - 1 for block in self._sharing))
        if key not in self._tied_of:
            sharing: list[list[int]] = [[] for _ in bounds[1:]]
            for block, stage in zip(self._sharing, key[1], strict=True):
                sharing[stage].append(block)
            self._tied_of[key] = self._tied_in(ranks, sharing)
        return self._tied_of[key]

    def _tied_in(self, ranks: StagesOfRanks, blocks: Iterable[Iterable[int]]) -> TiedUses:
        stages = [self._stage(index, own) for index, own in enumerate(blocks)]
        return tied_uses(self._program, ranks, stages)

    def _stage(self, index: int, blocks: Iterable[int]) -> Stage:
        chosen = tuple(blocks)
        programs = [self._programs[block] for block in chosen]
        return Stage(index, chosen, in_one_stage(self._program, chosen, programs))


class KnownParameterUses:
    """The parameter uses of kinds of program: one for all that lay out gradients alike."""

    def __init__(self, workload: Workload, shapes: Sequence[Shape]) -> None:
        """`shapes` are those of all partitions, by their numbers."""
        self._workload, self._shapes = workload, shapes
        self._known: dict[object, ParameterUses] = {}

    def of(self, programs: Sequence[BlockProgram]) -> ParameterUses:
        """Those of the blocks with these programs."""
        key = self._key(programs)
        if key not in self._known:
            self._known[key] = ParameterUses(self._workload, self._shapes, programs)
        return self._known[key]

    def _key(self, programs: Sequence[BlockProgram]) -> object:
        """What parameter uses depend on: which blocks are equal, which parameters have gradients,
        and which gradients of a shared parameter are laid out alike, with and without adding them
        up over a stage."""
        program = self._workload.program
        different: dict[tuple[BlockProgram, tuple[int, ...]], int] = {}
        equal: list[int] = []
        layouts: list[tuple[tuple[int, ...], int]] = []
        known: dict[object, int] = {}
        values = [block.parameters for block in program.blocks.blocks]
        for own, value, shared in zip(programs, values, program.shared_parameters, strict=True):
            equal.append(different.setdefault((own, shared), len(different)))
            for position in shared:
                for way in (own, own.adding_up((position,))):
                    layout = value[position], _layout(way, position)
                    layouts.append((way.adds_up, known.setdefault(layout, len(known))))
        trained = [tuple(gradients_of(own, shared)) for own, shared in different]
        return tuple(equal), tuple(trained), tuple(layouts)


def _layout(program: BlockProgram, position: int) -> object:
    """The layout of the gradient of a parameter, as positions."""
    gradient = program.parameters[position].gradient
    if gradient is None:
        return None
    return positions_of(gradient.layout, program.placed.step.axes.dims[gradient.value])


__all__ = [
    "KnownParameterUses",
    "ParameterUses",
    "Partition",
    "PartitionUses",
    "StageBlocks",
]
