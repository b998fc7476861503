"""A stage's passes in program order: block by block, parameters gathered one block ahead.

What a block gathers is issued when the block before it begins, so that it moves while that one is
computed; so no more than two blocks' parameters are together at any time. What the first block of
a pass reads is gathered at its beginning; in a pass that follows an equal one (`steady`), it is
gathered while the last block of the pass before is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from distir.ir.core import Node, Part, Value
from distir.ops.collective import Collective
from distir.plan.model import BlockPass, BlockProgram, ends_of, fresh_values, with_values
from distir.schedules import BACKWARD, COST_KINDS, FORWARD, INPUT_PART


class Segment(NamedTuple):
    """What a block adds to a pass of its stage. Its values are its own, but for those of `ahead`.

    `first`: nobody gathers for it. `following` is the block that it gathers for, if that gathers.
    `preceding` is the block before it, if what that copies to the host has to be there when this
    one ends; `lands`: what it copies itself has to be there.
    """

    program: BlockProgram
    kind: int
    first: bool = True
    following: BlockProgram | None = None
    preceding: BlockProgram | None = None
    lands: bool = True

    @property
    def own(self) -> BlockPass:
        """What the block does in this kind of action."""
        return self.program.in_action(self.kind)

    @property
    def own_gathers(self) -> tuple[Node, ...]:
        """What is gathered for the block itself before it begins."""
        return self.own.gathers if self.first else ()

    @property
    def ahead(self) -> tuple[Node, ...]:
        """What is gathered for the block that follows, in its values."""
        return () if self.following is None else self.following.in_action(self.kind).gathers

    @property
    def without_gathers(self) -> Segment:
        """The segment if something else gathers all that its pass reads."""
        return self._replace(first=False, following=None) if self.own.gathers else self

    @property
    def body(self) -> tuple[Node, ...]:
        """The block's own ops."""
        return (*self.own.nodes, *(self._copying if self.lands else ()))

    @property
    def landing(self) -> tuple[Node, ...]:
        """The end of what the block before copies to the host, in its values."""
        before = self.preceding
        return (before.hosted.landing,) if before is not None and before.hosted is not None else ()

    @property
    def copied(self) -> tuple[Value, ...]:
        """What the block copies to the host while the one after it is computed, and the copies."""
        return () if self.lands else tuple(v for node in self._copying for v in node.operands)

    @property
    def _copying(self) -> tuple[Node, ...]:
        hosted = self.program.hosted if self.kind == FORWARD else None
        return () if hosted is None else (hosted.landing,)

    @property
    def scatters(self) -> tuple[Node, ...]:
        """The collectives among the block's own ops that share out gradients of parameters among
        devices. No op of the pass reads their results."""
        return tuple(filter(_is_of_state, self.body))

    @property
    def received(self) -> tuple[Value, ...]:
        """Activations, or their gradients, from the segment before."""
        return self.own.received

    @property
    def sent(self) -> tuple[Value, ...]:
        """Activations, or their gradients, for the segment after."""
        return self.own.sent

    @property
    def gathered(self) -> tuple[Value, ...]:
        """What the segment before has gathered for this one."""
        return () if self.first else ends_of(self.own.gathers)


BlockPasses = tuple[Segment, ...]
"""What one block adds to the passes of its stage, by kind of action."""


@dataclass(frozen=True, slots=True, eq=False)
class Composed:
    """A segment with values of its own alone, so that it can follow an equal one: what it gathers
    for the block that follows has other values there, and what the block before it copies to the
    host. `handed` and `handing` cross to the segment before and after; the first
    `len(segment.received)` or `len(segment.sent)` are activations."""

    gathers: tuple[Node, ...]
    """What the segment gathers for itself and for the block that follows."""
    body: tuple[Node, ...]
    handed: tuple[Value, ...]
    handing: tuple[Value, ...]

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes, in program order."""
        return (*self.gathers, *self.body)

    @property
    def scatters(self) -> tuple[Node, ...]:
        """See `Segment.scatters`."""
        return tuple(filter(_is_of_state, self.body))

    @property
    def without_scatters(self) -> tuple[Node, ...]:
        """All nodes but `scatters`."""
        return (*self.gathers, *(node for node in self.body if not _is_of_state(node)))


def composed(segment: Segment) -> Composed:
    """A segment with values of its own alone."""
    following, before = segment.following, segment.preceding
    ahead, ends = ((), ()) if following is None else following.gathered_ahead(segment.kind)
    landing = () if before is None else before.landing_behind
    return Composed(
        (*segment.own_gathers, *ahead),
        (*segment.body, *landing),
        (
            *segment.received,
            *(value for node in landing for value in node.operands),
            *segment.gathered,
        ),
        (*segment.sent, *segment.copied, *ends),
    )


def apart(ops: Composed) -> Composed:
    """The same with values that no other segment has, so that it can stand beside another segment
    of the same block, for another microbatch."""
    every = (
        *ops.handed,
        *(value for node in ops.nodes for value in (*node.operands, *node.results)),
        *ops.handing,
    )
    values = fresh_values(every)
    return Composed(
        with_values(ops.gathers, values),
        with_values(ops.body, values),
        tuple(values[value] for value in ops.handed),
        tuple(values[value] for value in ops.handing),
    )


def block_passes(
    programs: Sequence[BlockProgram], splits_backward: bool = False
) -> tuple[BlockPasses, ...]:
    """What the blocks of a stage add to its passes, from first to last; to the parts of the
    backward pass only if it `splits_backward`."""
    return by_block(stage_passes(programs, splits_backward))


def stage_passes(
    programs: Sequence[BlockProgram], splits_backward: bool = False
) -> list[tuple[Segment, ...]]:
    """The passes of a stage with these blocks, by kind of action; those of the parts of the
    backward pass only if it `splits_backward`."""
    kinds = range(COST_KINDS) if splits_backward else (FORWARD, BACKWARD)
    return [segments(programs, kind) for kind in kinds]


def by_block(every: Sequence[tuple[Segment, ...]]) -> tuple[BlockPasses, ...]:
    """The passes of a stage block by block, from first to last."""
    ordered = (own[::-1] if is_reversed(own[0].kind) else own for own in every)
    return tuple(zip(*ordered, strict=True))


def is_reversed(kind: int) -> bool:
    """Whether a kind of action visits blocks from the last to the first."""
    return kind in (BACKWARD, INPUT_PART)


def segments(
    programs: Sequence[BlockProgram], kind: int, *, steady: bool = False
) -> tuple[Segment, ...]:
    """A pass of a stage with these blocks, in the order in which it runs. `steady`: see
    `between_equal`."""
    ordered = programs[::-1] if is_reversed(kind) else programs
    beside = zip((None, *ordered[:-1]), ordered, (*ordered[1:], None), strict=True)
    found = tuple([segment(own, kind, before, behind) for before, own, behind in beside])
    return between_equal(found) if steady else found


def segment(
    program: BlockProgram, kind: int, before: BlockProgram | None, behind: BlockProgram | None
) -> Segment:
    """What a block adds to a pass, given the blocks before and behind it in the order of the pass,
    of which there may be none."""
    ahead = behind is not None and bool(behind.in_action(kind).gathers)
    copies = kind == FORWARD and before is not None and before.hosted is not None
    return Segment(
        program,
        kind,
        first=before is None or not program.in_action(kind).gathers,
        following=behind if ahead else None,
        preceding=before if copies else None,
        lands=program.hosted is None or kind != FORWARD or behind is None,
    )


def between_equal(alone: tuple[Segment, ...]) -> tuple[Segment, ...]:
    """A pass as it is between equal ones: its last block gathers for the first block of the next
    pass, and its first block finds gathered what it reads."""
    first, last = alone[0], alone[-1]
    if not first.own.gathers:
        return alone
    if len(alone) == 1:
        return (at_end(at_beginning(first), first.program),)
    return (at_beginning(first), *alone[1:-1], at_end(last, first.program))


def at_beginning(alone: Segment) -> Segment:
    """The first segment of a pass between equal ones."""
    return alone._replace(first=False) if alone.own.gathers else alone


def at_end(alone: Segment, first: BlockProgram) -> Segment:
    """The last segment of a pass between equal ones, which begin with the block `first`."""
    gathers = first.in_action(alone.kind).gathers
    return alone._replace(following=first) if gathers else alone


def _is_of_state(node: Node) -> bool:
    """Whether a node is a collective that moves parameters or their gradients."""
    return isinstance(node.op, Collective) and node.part is Part.STATE


__all__ = [
    "BlockPasses",
    "Composed",
    "Segment",
    "apart",
    "at_beginning",
    "at_end",
    "between_equal",
    "block_passes",
    "by_block",
    "composed",
    "is_reversed",
    "segment",
    "segments",
    "stage_passes",
]
