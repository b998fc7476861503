"""The passes of blocks on one mesh, of which equal ones are one.

Blocks that keep other values, or that something else is recomputed beside, often run equal ops in
equal order on other values. Their passes take equally long, whatever follows: they are one `Pass`,
so that all that is found out about it is found once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from typing import TypeAlias

from distir.ir.core import Node, Value
from distir.ops.ring import Ring
from distir.plan import BlockProgram
from distir.plan.model import fresh_values
from distir.plan.passes import Composed, Segment, composed, segments
from distir.schedules import BACKWARD, FORWARD, kinds_of_actions
from distir.simulation.pricing.chains import Pass
from distir.simulation.pricing.instructions import Instruction, Pricing
from distir.simulation.pricing.repeats import RepeatedBlocks, repeated_blocks
from distir.simulation.pricing.turns import turns

_Content: TypeAlias = tuple[tuple[int, ...], tuple[int, ...], int, tuple[int, ...]]
"""Kinds of the nodes of a segment; its values as numbers, in the order in which they occur; how
many of them are handed to it; kinds of the nodes that gather for it."""


@dataclass(frozen=True, eq=False)
class _Listed:
    """A segment as instructions."""

    instructions: Sequence[Instruction]
    """All but what shares out gradients."""
    handed: tuple[Value, ...]
    handing: tuple[Value, ...]
    scatters: Sequence[Instruction]
    gathers: Sequence[Instruction]
    """What is gathered for the block, in this segment or in another one."""

    @cached_property
    def alone(self) -> Pass:
        """The pass by itself."""
        return Pass.of(
            self.instructions,
            self.handed,
            self.handing,
            gathers=self.gathers,
            scatters=self.scatters,
        )

    @cached_property
    def aside(self) -> _Listed:
        """The same with values of its own, so that it can stand beside another segment of its
        block."""
        used = [value for each in self.instructions for value in (*each.reads, *each.writes)]
        values = fresh_values([*self.handed, *used, *self.handing])
        return _Listed(
            [
                each.of_values(
                    tuple([values[value] for value in each.reads]),
                    tuple([values[value] for value in each.writes]),
                )
                for each in self.instructions
            ],
            tuple([values[value] for value in self.handed]),
            tuple([values[value] for value in self.handing]),
            self.scatters,
            self.gathers,
        )


class KnownPasses:
    """Passes with the prices of one mesh; what was asked for is kept."""

    def __init__(self, pricing: Pricing) -> None:
        self._pricing = pricing
        self._kinds: dict[object, int] = {}
        self._kind_of: dict[Node, int] = {}
        self._priced: dict[int, Instruction] = {}
        """By kind of node: what equal ones take."""
        self._by_content: dict[_Content, _Listed] = {}
        self._listed: dict[Segment, _Listed] = {}
        self._passes: dict[Segment, Pass] = {}
        self._steady_passes: dict[tuple[tuple[BlockProgram, ...], int], list[_Listed]] = {}
        self._overlapped: dict[tuple[_Listed, _Listed, bool], Pass] = {}
        self._beside_others: dict[tuple[BlockProgram, bool], BlockProgram] = {}
        self._by_gathers: dict[object, BlockProgram] = {}

    def of(self, wanted: Iterable[Segment]) -> list[Pass]:
        """The passes of segments."""
        known, found = self._passes, list[Pass]()
        for segment in wanted:
            each = known.get(segment)
            if each is None:
                each = known[segment] = self._of_segment(segment).alone
            found.append(each)
        return found

    def beside(self, program: BlockProgram, splits: bool) -> BlockProgram:
        """The block itself, or the first one that may stand for it beside others: what these gather
        ahead for both is equal, and neither leaves them anything to copy to the host. `splits` says
        whether there are parts of backward passes."""
        found = self._beside_others.get((program, splits))
        if found is None:
            found = program
            if program.hosted is None:
                every = [program.in_action(kind).gathers for kind in kinds_of_actions(splits)]
                key = tuple([self._numbered(gathers) for gathers in every])
                found = self._by_gathers.setdefault((splits, key), program)
            self._beside_others[program, splits] = found
        return found

    def side_by_side(
        self, forward: Sequence[BlockProgram], backward: Sequence[BlockProgram]
    ) -> list[RepeatedBlocks[Pass]]:
        """The passes of blocks of a stage with a forward pass and of one with a backward pass
        beside it, in the order in which each visits them. The blocks that one stage has more than
        the other come last, alone."""
        ahead, back = self._steady(tuple(forward), FORWARD), self._steady(tuple(backward), BACKWARD)
        forward_is_longer = len(ahead) >= len(back)
        beside = repeated_blocks(list(zip_longest(ahead, back)))
        return [
            (tuple([self._beside(*both, forward_is_longer) for both in pattern]), count)
            for pattern, count in beside
        ]

    def _steady(self, programs: tuple[BlockProgram, ...], kind: int) -> list[_Listed]:
        """The segments of a steady pass of a stage."""
        found = self._steady_passes.get((programs, kind))
        if found is None:
            found = list(map(self._of_segment, segments(programs, kind, steady=True)))
            self._steady_passes[programs, kind] = found
        return found

    def _beside(self, ahead: _Listed | None, back: _Listed | None, forward_is_longer: bool) -> Pass:
        """The pass of a block with a forward and of one with a backward pass, or of one of them."""
        if ahead is not None and back is not None:
            return self._overlapping(ahead, back, forward_is_longer=forward_is_longer)
        alone = ahead or back
        if alone is None:
            raise ValueError("there is a block on one side at least")
        return alone.alone

    def _overlapping(self, ahead: _Listed, back: _Listed, *, forward_is_longer: bool) -> Pass:
        """A forward pass of a block and a backward pass of another, in turns. What comes from and
        goes to the blocks beside is listed for the pass of more blocks first: the other one may
        have ended before the next block."""
        key = (ahead, back, forward_is_longer)
        found = self._overlapped.get(key)
        if found is None:
            both = ahead, back.aside
            order = turns(*(each.instructions for each in both))
            first, second = both if forward_is_longer else both[::-1]
            found = self._overlapped[key] = Pass.of(
                [both[whose].instructions[at] for whose, part in order for at in part],
                (*first.handed, *second.handed),
                (*first.handing, *second.handing),
                gathers=[gather for each in both for gather in each.gathers],
                scatters=[scatter for each in both for scatter in each.scatters],
            )
        return found

    def _of_segment(self, segment: Segment) -> _Listed:
        found = self._listed.get(segment)
        if found is None:
            ops, gathers = composed(segment), segment.own.gathers
            content = self._content(ops, gathers)
            found = self._by_content.get(content)
            if found is None:
                found = self._by_content[content] = _Listed(
                    self._instructions(ops.without_scatters),
                    ops.handed,
                    ops.handing,
                    self._instructions(ops.scatters),
                    self._instructions(gathers),
                )
            self._listed[segment] = found
        return found

    def _content(self, ops: Composed, gathers: Sequence[Node]) -> _Content:
        """Equal for segments that differ in nothing but which values they have."""
        kinds, numbers = self._numbered(ops.nodes, ops.handed, ops.handing)
        return kinds, numbers, len(ops.handed), self._kinds_of(gathers)

    def _numbered(
        self,
        nodes: Sequence[Node],
        handed: Iterable[Value] = (),
        handing: Iterable[Value] = (),
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Kinds of nodes, and the values as numbers, in the order in which they occur."""
        values = [*handed]
        for node in nodes:
            values += node.operands
            values += node.results
        values += handing
        numbers = {value: number for number, value in enumerate(dict.fromkeys(values))}
        return self._kinds_of(nodes), tuple(map(numbers.__getitem__, values))

    def _kinds_of(self, nodes: Sequence[Node]) -> tuple[int, ...]:
        """The numbers of kinds of nodes, of which most are known."""
        known = self._kind_of
        return tuple([known[each] if each in known else self._kind(each) for each in nodes])

    def _kind(self, node: Node) -> int:
        """The number of a kind of node. Nodes of one op on operands of the same types take equally
        long."""
        found = self._kind_of.get(node)
        if found is None:
            key = (node.op, node.operand_types, node.result_types, node.part)
            found = self._kind_of[node] = self._kinds.setdefault(key, len(self._kinds))
        return found

    def _instructions(self, nodes: Sequence[Node]) -> list[Instruction]:
        """The instructions of nodes of one pass."""
        pricing, known = self._pricing, self._priced
        pipelined = pricing.products_beside(nodes)
        found: list[Instruction] = []
        for node in nodes:
            beside = pipelined.get(node, ())
            if beside or isinstance(node.op, Ring):
                found += pricing.of_node(node, beside)
                continue
            kind = self._kind(node)
            if kind in known:
                found.append(known[kind].of_values(node.operands, node.results))
            else:
                (known[kind],) = pricing.of_node(node)
                found.append(known[kind])
        return found


__all__ = ["KnownPasses"]
