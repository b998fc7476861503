"""Stages whose blocks are numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from distir.simulation.pricing.repeats import RepeatedBlocks
from distir.simulation.pricing.stage_cost import ChargedBlock

NumberedBlocks: TypeAlias = tuple[RepeatedBlocks[int], ...]
"""The blocks of a stage as repeated patterns of numbers."""


class StagesOfBlocks(NamedTuple):
    """Stages, and the blocks that numbers in them stand for."""

    stages: Sequence[NumberedBlocks]
    blocks: Sequence[ChargedBlock]


__all__ = ["NumberedBlocks", "StagesOfBlocks"]
