"""A stage's passes in program order: block by block, parameters gathered one block ahead.

What a block gathers is issued when the block before it begins, so that it moves while that one is
computed; so no more than two blocks' parameters are together at any time. What the first block of
a pass reads is gathered at its beginning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from distir.ir.core import Node, Value
from distir.plan.model import BlockProgram


@dataclass(frozen=True, slots=True)
class Segment:
    """What a block adds to a pass of its stage. Its values are its own, but for those of `ahead`.

    `first`: nobody gathers for it. `following` is the block that it gathers for, if that gathers.
    """

    program: BlockProgram
    backward: bool
    first: bool = True
    following: BlockProgram | None = None

    @property
    def own_gathers(self) -> tuple[Node, ...]:
        """What is gathered for the block itself before it begins."""
        return _gathers(self.program, self.backward) if self.first else ()

    @property
    def ahead(self) -> tuple[Node, ...]:
        """What is gathered for the block that follows, in its values."""
        return () if self.following is None else _gathers(self.following, self.backward)

    @property
    def body(self) -> tuple[Node, ...]:
        """The block's own ops."""
        return self.program.backward if self.backward else self.program.forward

    @property
    def received(self) -> tuple[Value, ...]:
        """Activations, or their gradients, from the segment before."""
        return self.program.output_gradients if self.backward else self.program.inputs

    @property
    def sent(self) -> tuple[Value, ...]:
        """Activations, or their gradients, for the segment after."""
        return self.program.input_gradients if self.backward else self.program.outputs

    @property
    def gathered(self) -> tuple[Value, ...]:
        """What the segment before has gathered for this one."""
        return () if self.first else _read_of(self.program, self.backward)


@dataclass(frozen=True, slots=True)
class BlockPasses:
    """What one block adds to the passes of its stage."""

    forward: Segment
    backward: Segment


@dataclass(frozen=True, slots=True, eq=False)
class Composed:
    """A segment with values of its own alone, so that it can follow an equal one: what it gathers
    for the block that follows has other values there. `handed` and `handing` cross to the segment
    before and after; the first `len(segment.received)` or `len(segment.sent)` are activations."""

    nodes: tuple[Node, ...]
    handed: tuple[Value, ...]
    handing: tuple[Value, ...]


def composed(segment: Segment) -> Composed:
    """A segment with values of its own alone."""
    ahead = segment.ahead
    fresh = {
        value: Value(value.type, value.name)
        for node in ahead
        for value in (*node.operands, *node.results)
    }
    renamed = [
        replace(
            node,
            operands=tuple(fresh[value] for value in node.operands),
            results=tuple(fresh[value] for value in node.results),
        )
        for node in ahead
    ]
    following = segment.following
    crossing = () if following is None else _read_of(following, segment.backward)
    return Composed(
        (*segment.own_gathers, *renamed, *segment.body),
        (*segment.received, *segment.gathered),
        (*segment.sent, *(fresh[value] for value in crossing)),
    )


def block_passes(programs: Sequence[BlockProgram]) -> tuple[BlockPasses, ...]:
    """What the blocks of a stage add to its passes, from first to last."""
    return tuple(
        BlockPasses(forward, backward)
        for forward, backward in zip(
            segments(programs, backward=False),
            reversed(segments(programs, backward=True)),
            strict=True,
        )
    )


def segments(programs: Sequence[BlockProgram], *, backward: bool) -> tuple[Segment, ...]:
    """A pass of a stage with these blocks, in the order in which it runs."""
    ordered = programs[::-1] if backward else programs
    found: list[Segment] = []
    for place, program in enumerate(ordered):
        following = ordered[place + 1] if place + 1 < len(ordered) else None
        if following is not None and not _gathers(following, backward):
            following = None
        first = place == 0 or not _gathers(program, backward)
        found.append(Segment(program, backward, first, following))
    return tuple(found)


def _gathers(program: BlockProgram, backward: bool) -> tuple[Node, ...]:
    return program.backward_gathers if backward else program.forward_gathers


def _read_of(program: BlockProgram, backward: bool) -> tuple[Value, ...]:
    """What gathering ends with: the results that it does not read itself."""
    nodes = _gathers(program, backward)
    read = {value for node in nodes for value in node.operands}
    return tuple(value for node in nodes for value in node.results if value not in read)


__all__ = ["BlockPasses", "Composed", "Segment", "block_passes", "composed", "segments"]
