"""The programs of all blocks of a model, of which every stage takes its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from distir.plan.model import BlockProgram


@dataclass(frozen=True, eq=False)
class ModelPrograms:
    """Per block of a model two programs: one that keeps what its backward pass reads, and one that
    computes some of it again. A stage picks one of the two for each of its layers."""

    kept: tuple[BlockProgram, ...]
    recomputed: tuple[BlockProgram, ...]
    """As `kept`, but for the layers."""
    layers: frozenset[int] = frozenset()
    """The blocks that are layers, if stages pick. If not, both programs of a block are one."""
    most: int = 0
    """Layers of a stage that are computed again, at most."""

    @classmethod
    def alike(cls, programs: tuple[BlockProgram, ...]) -> ModelPrograms:
        """One program per block, whatever its stage."""
        return cls(programs, programs)

    @property
    def chooses(self) -> bool:
        """Whether it is left to stages, or to a plan, which layers are computed again."""
        return self.recomputed is not self.kept

    def recomputed_in(self, begin: int, end: int) -> Sequence[int]:
        """The layers that are computed again in a stage of the blocks from `begin` up to `end`: the
        first ones, as Megatron-LM takes them (transformer_block.py, `_checkpointed_forward`)."""
        return [block for block in range(begin, end) if block in self.layers][: self.most]

    def of_stage(self, begin: int, end: int) -> tuple[BlockProgram, ...]:
        """The programs of a stage of the blocks from `begin` up to `end`."""
        if not self.most:
            return self.kept[begin:end]
        again = set(self.recomputed_in(begin, end))
        return tuple(
            (self.recomputed if block in again else self.kept)[block] for block in range(begin, end)
        )

    @cached_property
    def kinds(self) -> tuple[int, ...]:
        """The kind of every block, numbered from 0: blocks of one kind have equal programs, and
        are layers or none of them is."""
        every = enumerate(zip(self.kept, self.recomputed, strict=True))
        kinds = [(pair, block in self.layers) for block, pair in every]
        numbers = {kind: number for number, kind in enumerate(dict.fromkeys(kinds))}
        return tuple(numbers[kind] for kind in kinds)

    def share(self, stages: int) -> float:
        """The fraction of all layers that are computed again, if `stages` have as many layers
        each."""
        return min(1.0, self.most * stages / len(self.layers)) if self.layers else 0.0


__all__ = ["ModelPrograms"]
