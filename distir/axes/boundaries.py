"""Boundary ops: their factors and loops, and where in a function they cost least."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from distir.axes.factors import Factor, leaves
from distir.axes.model import Axes, Axis
from distir.ir.core import Node, Value
from distir.ir.function import Function
from distir.ops.arithmetic import Mul, Neg
from distir.ops.elementwise import Cast, Identity
from distir.ops.tensor import Boundary, Expand, Reshape, Scale, Transpose


@dataclass(slots=True)
class Crossing:
    """A boundary to be made: per dim, the factors of the operand and those of the result."""

    before: list[list[Factor]]
    after: list[list[Factor]]

    def op(self) -> Boundary:
        """The op, once all refinements of the factors are known."""
        sides = zip(self.before, self.after, strict=True)
        return Boundary(tuple(_factors(leaves(old), leaves(new)) for old, new in sides))

    def loops(self) -> list[list[Factor]]:
        """The factors of the op's loops, in the order of its signature: one loop for a piece that
        both sides share, otherwise the old and then the new one."""
        loops: list[list[Factor]] = []
        for old, new in zip(self.before, self.after, strict=True):
            before, after = leaves(old), leaves(new)
            for ours, theirs in common_runs(_sizes(before), _sizes(after)):
                loops.append(before[ours])
                if before[ours] != after[theirs]:
                    loops.append(after[theirs])
        return loops


def _sizes(factors: Sequence[Factor]) -> list[int]:
    return [factor.size for factor in factors]


def _factors(before: list[Factor], after: list[Factor]) -> tuple[tuple[int, bool], ...]:
    """The factors of a boundary's dim, `(size, fresh)` per piece that both sides cut alike."""
    return tuple(
        (math.prod(_sizes(before[ours])), before[ours] != after[theirs])
        for ours, theirs in common_runs(_sizes(before), _sizes(after))
    )


def common_runs(before: Sequence[int], after: Sequence[int]) -> Iterator[tuple[slice, slice]]:
    """Cuts two lists of factors with the same product into the shortest runs that pairwise have
    the same product."""
    i = j = 0
    while i < len(before):
        start_i, start_j = i, j
        a, b = before[i], after[j]
        i, j = i + 1, j + 1
        while a != b:
            if a < b:
                a *= before[i]
                i += 1
            else:
                b *= after[j]
                j += 1
        yield slice(start_i, i), slice(start_j, j)


# --- moving boundaries to the smallest value -----------------------------------------------------

_ELEMENT_BY_ELEMENT = (Reshape, Transpose, Expand, Scale, Cast, Identity, Neg)


def _passes_through(node: Node) -> bool:
    """Whether every element of the result is made from one element of the first operand."""
    if isinstance(node.op, _ELEMENT_BY_ELEMENT):
        return True
    return isinstance(node.op, Mul) and node.operands[1].type.num_elements == 1


def move_boundaries_up(function: Function, axes: Axes) -> Function:
    """Moves every boundary up its chain of views and scalings to the smallest value there, where
    gathering costs least; of equally small values, to the topmost. The values on the way must have
    no other readers."""
    producers = function.producers()
    uses = function.uses()
    outputs = set(function.outputs)
    remove: dict[Value, Value] = {}
    insert: dict[Value, frozenset[Axis]] = {}
    for node in function.nodes:
        if not isinstance(node.op, Boundary):
            continue
        fresh = axes.of(node.operands[0]) - axes.of(node.result)
        place = best = node.operands[0]
        while place in producers and len(uses[place]) == 1 and place not in outputs:
            above = producers[place]
            source = above.operands[0] if above.operands else None
            if source is None or not _passes_through(above) or not fresh <= axes.of(source):
                break
            place = source
            if place.type.size_bytes <= best.type.size_bytes:
                best = place
        if best is node.operands[0] or len(uses[best]) > 1 or best in insert:
            continue
        remove[node.result] = node.operands[0]
        insert[best] = fresh
    return _rewrite_boundaries(function, axes, remove, insert)


def _rewrite_boundaries(
    function: Function,
    axes: Axes,
    remove: Mapping[Value, Value],
    insert: Mapping[Value, frozenset[Axis]],
) -> Function:
    """The function without the boundaries whose results are in `remove`, which maps them to their
    operands, and with a boundary behind every value in `insert`, which gives the axes to replace by
    fresh ones."""
    nodes: list[Node] = []
    renamed: dict[Value, Value] = dict(remove)

    def bound(value: Value) -> None:
        if value in insert:
            factors = tuple(
                tuple((axis.size, axis in insert[value]) for axis in dim)
                for dim in axes.dims[value]
            )
            result = Value(value.type, value.name)
            nodes.append(Node(Boundary(factors), (value,), (result,)))
            renamed[value] = result

    for value in function.sources():
        bound(value)
    for node in function.nodes:
        if node.results[0] in remove:
            continue
        operands = tuple(_resolve(renamed, operand) for operand in node.operands)
        nodes.append(node if operands == node.operands else replace(node, operands=operands))
        for value in node.results:
            bound(value)
    outputs = tuple(_resolve(renamed, output) for output in function.outputs)
    return replace(function, nodes=tuple(nodes), outputs=outputs)


def _resolve(renamed: Mapping[Value, Value], value: Value) -> Value:
    """The value at the end of a chain of renamings."""
    while value in renamed:
        value = renamed[value]
    return value
