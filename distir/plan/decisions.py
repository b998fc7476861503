"""What axis lists decide in a block: per op the axis over which a list splits it.

Lists that decide the same everywhere lead to the same program, so an entry that decides nothing may
be left out of a list, and the list is then one that was placed before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from distir.axes.model import Axis
from distir.ir.core import Node, Op
from distir.ir.signature import Kind
from distir.program import Program
from distir.transforms.place import AxisListEntry
from distir.transforms.step import BlockStep, build_step


@dataclass(frozen=True, slots=True)
class Place:
    """A place where a list decides: an op, or a value that leaves a block or is masked.

    Representatives of the axes over which it `can` be split, of those that `all` its activations
    carry, and of those that a composite op needs `whole`, so that it is spelled out if one of them
    comes first.
    """

    can: frozenset[Axis]
    all: frozenset[Axis]
    whole: frozenset[Axis] = frozenset()

    def decided(self, entries: Sequence[AxisListEntry]) -> int:
        """The index of the entry over whose axis this is split; that of the last one and one more
        if there is none."""
        for index, entry in enumerate(entries):
            if entry.axis in (self.all if entry.everywhere else self.can):
                return index
        return len(entries)

    def spelled_out(self, entries: Sequence[AxisListEntry]) -> int:
        """The index of the entry that has this op spelled out; as `decided` if there is none."""
        if not self.whole:
            return len(entries)
        for index, entry in enumerate(entries):
            if not entry.everywhere and (entry.axis in self.whole or entry.axis in self.can):
                return index if entry.axis in self.whole else len(entries)
        return len(entries)


def places_of(program: Program, first: int) -> tuple[Place, ...]:
    """The places of a block: those of its ops, whether composite ones are spelled out or not, in
    both passes."""
    blocks = program.blocks
    block = blocks.blocks[first]
    composite = (i for i, node in enumerate(block.nodes) if _is_composite(node))
    found: dict[Place, None] = {}
    for lowered in dict.fromkeys((frozenset[int](), frozenset(composite))):
        step = build_step(blocks, block, lowered, program.training)
        found.update(dict.fromkeys(_places(program, step)))
    return tuple(found)


def _is_composite(node: Node) -> bool:
    return type(node.op).lower is not Op.lower


def _places(program: Program, step: BlockStep) -> Iterator[Place]:
    axes, group = step.axes, program.blocks.group

    def representatives(found: Sequence[Axis]) -> frozenset[Axis]:
        return frozenset(group.get(leader, leader) for leader in map(axes.leader, found))

    values = [*step.block.inputs, *step.block.outputs, *step.block.results]
    for node in (*step.forward, *step.backward):
        kinds = axes.kinds[node]
        moving = [v for v in (*node.operands, *node.results) if v not in step.sources]
        can = [axis for axis, kind in kinds.items() if kind is not Kind.WHOLE]
        everywhere = [a for a in can if all(axes.along(v, a) is not None for v in moving)]
        whole = [a for a, k in kinds.items() if k is Kind.WHOLE] if _is_composite(node) else []
        yield Place(*map(representatives, (can, everywhere, whole)))
        if node.op.masked_dims(node.operand_types):
            values.append(node.operands[0])
    for value in values:
        carried = representatives(tuple(axes.of(value)))
        yield Place(carried, carried)


def deciding(
    places: Sequence[Place], entries: Sequence[AxisListEntry]
) -> tuple[AxisListEntry, ...]:
    """A list without the entries that decide nothing. Those with a mark stay: what is recomputed,
    and what travels, depends on their being there."""
    used = {place.decided(entries) for place in places}
    used |= {place.spelled_out(entries) for place in places if place.whole}
    return tuple(
        entry
        for index, entry in enumerate(entries)
        if index in used or entry.everywhere or entry.ring
    )


__all__ = ["Place", "deciding", "places_of"]
