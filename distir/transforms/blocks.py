"""Blocks: a program as a chain of pieces between places where a single activation is live.

Blocks of equal structure are placed, planned and priced once.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from distir.axes.model import Axes, Axis
from distir.ir.core import Node
from distir.ir.function import Function
from distir.transforms.block import Block, Roles
from distir.transforms.splits import Splits


@dataclass(frozen=True, eq=False)
class Blocks:
    """A function as a chain of blocks. `representative[i]` is the index of the first block that
    equals block `i`."""

    function: Function
    axes: Axes
    roles: Roles
    blocks: tuple[Block, ...]
    representative: tuple[int, ...]
    group: Mapping[Axis, Axis]
    """Per axis its representative: the axis at the same place of the first equal block."""

    @cached_property
    def families(self) -> tuple[int, ...]:
        """Per block the index of the first one of its family."""
        first: dict[Hashable, int] = {}
        family = {
            index: first.setdefault(self.blocks[index].family(self.roles), index)
            for index in dict.fromkeys(self.representative)
        }
        return tuple(family[index] for index in self.representative)

    @cached_property
    def free_nodes(self) -> tuple[Node, ...]:
        """Ops that compute free values; every device may run them for itself."""
        free = self.roles.free
        return tuple(n for n in self.function.nodes if all(v in free for v in n.results))

    @cached_property
    def _splits(self) -> tuple[Splits, ...]:
        """The axes that each kind of block can be split over, in model order."""
        first = sorted(set(self.representative))
        return tuple(Splits(self.blocks[index], self.axes, self.roles) for index in first)

    def internal_of(self, block: int) -> tuple[Axis, ...]:
        """The internal axes of blocks that equal this one, as the first of them names them."""
        kinds = sorted(set(self.representative))
        return self._splits[kinds.index(self.representative[block])].internal

    def _representatives(self, found: Iterable[Iterable[Axis]]) -> tuple[Axis, ...]:
        return tuple(dict.fromkeys(self.group.get(a, a) for axes in found for a in axes))

    @cached_property
    def internal_axes(self) -> tuple[Axis, ...]:
        """Representatives of all internal axes, in model order."""
        return self._representatives(splits.internal for splits in self._splits)

    @cached_property
    def expert_axes(self) -> tuple[Axis, ...]:
        """Representatives of the axes of experts, in model order."""
        return self._representatives(splits.experts for splits in self._splits)

    @cached_property
    def head_axes(self) -> tuple[Axis, ...]:
        """Representatives of attention's heads, in model order."""
        return self._representatives(splits.heads for splits in self._splits)

    @cached_property
    def inner_axes(self) -> Mapping[Axis, Axis]:
        """Per representative of an internal axis, the representative of the inner axis that can
        split the same work further: queries per head of keys and values."""
        return {
            self.group.get(axis, axis): self.group.get(inner, inner)
            for splits in reversed(self._splits)
            for axis, inner in splits.inner
        }

    @cached_property
    def output_axes(self) -> tuple[Axis, ...]:
        """Representatives of the output axes of parameters, in model order."""
        return self._representatives(splits.outputs for splits in self._splits)


__all__ = ["Block", "Blocks", "Roles", "Splits"]
