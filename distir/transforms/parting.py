"""Cuts parameters whose products are cut into unequal parts, each of which is split by itself.

Some models keep the weights of queries, keys and values in one matrix and cut its product. Where
the parts are equally long, their number and their length are two axes, of which the second is
split. Unequal parts (more heads of queries than of keys and values) have no axis in common.
Training frameworks lay such a matrix out anew, so that a device holds its share of each part; here
each part is a parameter of its own, which comes to the same. Where the parts come again for every
group of heads, a part is what there is of it in all groups.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from distir.ir.core import Array, Node, Op, Value
from distir.ir.function import Function
from distir.ir.signature import Kind
from distir.ops.lookup import Gather
from distir.ops.tensor import Reshape, Slice, Split, Transpose

WHY = "one product makes queries, keys and values of unequal length"

NAMED = 3
"""The most parameters that are named."""


@dataclass(frozen=True, slots=True)
class Cut:
    """How a dim is cut: it is so many turns of all parts, one after another."""

    dim: int
    turns: int
    sizes: tuple[int, ...]
    """The lengths of the parts in one turn."""

    def shapes(self, shape: Sequence[int]) -> list[tuple[int, ...]]:
        """The shapes of the parts of what has this shape."""
        lengths = (self.turns * size for size in self.sizes)
        return [(*shape[: self.dim], length, *shape[self.dim + 1 :]) for length in lengths]

    def apart(self, array: Array) -> list[Array]:
        """The parts of an array, each with those of all turns joined."""
        import numpy as np

        dim, shape = self.dim, array.shape
        by_turn = array.reshape((*shape[:dim], self.turns, sum(self.sizes), *shape[dim + 1 :]))
        parts = np.split(by_turn, list(accumulate(self.sizes))[:-1], axis=dim + 1)
        return [part.reshape(own) for part, own in zip(parts, self.shapes(shape), strict=True)]


@dataclass(frozen=True, slots=True)
class Parting:
    """A value that is cut into unequal parts, and what makes these parts by themselves instead."""

    nodes: Mapping[Node, Sequence[Node]]
    """Per node, those in its place."""
    parameters: Mapping[Value, Sequence[Value]]
    """Per parameter, its parts."""
    constants: Mapping[Value, Array | None]
    """Parts of constants."""
    cuts: Mapping[Value, Cut]
    """Per parameter, how it was cut."""
    why: str
    """Why it has to be made in parts."""


def partings(function: Function) -> list[Parting]:
    """All values that are cut into unequal parts, or into equal ones of which one is cut into
    unequal parts, and depend along this dim on parameters alone."""
    uses, producers = function.uses(), function.producers()
    by_value: dict[tuple[Value, int], list[_Piece]] = {}
    turned = {node.result: node for node in function.nodes if isinstance(node.op, Transpose)}
    for node in function.nodes:
        for piece in _pieces(node, function.constants, turned):
            by_value.setdefault((piece.whole, piece.dim), []).append(piece)
    cut = {
        place: _sizes(pieces, place[0].type.shape[place[1]]) for place, pieces in by_value.items()
    }
    unequal = {place for place, sizes in cut.items() if len(set(sizes)) > 1}
    found: list[Parting] = []
    for (whole, dim), pieces in by_value.items():
        sizes = cut[whole, dim]
        is_wanted = (whole, dim) in unequal or any((each.result, dim) in unequal for each in pieces)
        if sizes and is_wanted and _read_only_by(whole, pieces, function, uses):
            parts = Parts(function, uses, producers)
            values = parts.of(whole, Cut(dim, 1, sizes))
            if values is not None and parts.parameters:
                found.append(parts.joined(pieces, sizes, values))
    return found


def parted(function: Function, chosen: Sequence[Parting]) -> Function:
    """The function with these values made in parts."""
    if not chosen:
        return function
    nodes = {node: new for each in chosen for node, new in each.nodes.items()}
    parameters = {value: new for each in chosen for value, new in each.parameters.items()}
    constants = {**function.constants}
    names: dict[str, list[str]] = {}
    for each in chosen:
        constants |= each.constants
        names.setdefault(each.why, []).extend(value.name for value in each.parameters)
    return replace(
        function,
        parameters=tuple(p for v in function.parameters for p in parameters.get(v, (v,))),
        constants=constants,
        nodes=tuple(new for node in function.nodes for new in nodes.get(node, (node,))),
        notes=(*function.notes, *(_note(why, own) for why, own in names.items())),
    )


def _note(why: str, names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"split part by part, since {why}: {', '.join(names[:NAMED])}{more}"


@dataclass(frozen=True, slots=True)
class _Piece:
    """A stretch of one dim of a value that a node takes."""

    whole: Value
    dim: int
    start: int
    size: int
    node: Node
    result: Value
    turn: Node | None
    """The Transpose of the whole that the node reads instead, if it does."""


def _pieces(
    node: Node, constants: Mapping[Value, Array | None], turned: Mapping[Value, Node]
) -> list[_Piece]:
    """The pieces that a node takes of its first operand, or of what this is a Transpose of."""
    if not node.operands:
        return []
    source = node.operands[0]
    found = _stretches(node, constants)
    turn = turned.get(source)
    if turn is None or not isinstance(turn.op, Transpose):
        return [
            _Piece(source, dim, start, size, node, result, None)
            for result, (dim, start, size) in zip(node.results, found, strict=False)
        ]
    whole, order = turn.operands[0], turn.op.permutation
    return [
        _Piece(whole, order[dim], start, size, node, result, turn)
        for result, (dim, start, size) in zip(node.results, found, strict=False)
    ]


def _stretches(node: Node, constants: Mapping[Value, Array | None]) -> list[tuple[int, int, int]]:
    """`(dim, start, size)` of what each result of a node is of its first operand, if they are
    stretches of one dim; otherwise none."""
    op, shape = node.op, node.operands[0].type.shape
    if isinstance(op, Split):
        starts = accumulate((0, *op.sizes[:-1]))
        return [(op.axis % len(shape), *each) for each in zip(starts, op.sizes, strict=True)]
    if isinstance(op, Slice):
        kept = node.result.type.shape
        cut = [dim for dim, size in enumerate(shape) if kept[dim] != size]
        if len(cut) == 1 and op.steps[cut[0]] == 1:
            (dim,) = cut
            return [(dim, range(shape[dim])[op.slices[dim]].start, kept[dim])]
    if isinstance(op, Gather):
        index = constants.get(node.operands[1])
        if index is not None and index.size == 1:
            dim = op.axis % len(shape)
            return [(dim, int(index.reshape(-1)[0]) % shape[dim], 1)]
    return []


def _sizes(pieces: Sequence[_Piece], size: int) -> tuple[int, ...]:
    """The sizes of the parts into which pieces cut a dim, if these are several and do not overlap;
    otherwise none."""
    parts = sorted({(each.start, each.size) for each in pieces})
    sizes = tuple(length for _, length in parts)
    ends = list(accumulate(sizes))
    is_tiled = [start for start, _ in parts] == [0, *ends[:-1]] and ends[-1] == size
    return sizes if is_tiled and len(sizes) > 1 else ()


def _read_only_by(
    whole: Value, pieces: Sequence[_Piece], function: Function, uses: Mapping[Value, list[Node]]
) -> bool:
    """Whether a value is read only by these pieces and by the Transposes that they read."""
    own = {each.node for each in pieces}
    turns = {each.turn for each in pieces if each.turn is not None}
    read = {reader for turn in turns for reader in uses[turn.result]} | set(uses[whole])
    kept = {whole, *(turn.result for turn in turns)}
    return read <= own | turns and kept.isdisjoint(function.outputs)


@dataclass(slots=True)
class Parts:
    """The parts of one value and of all that they are made of."""

    function: Function
    uses: Mapping[Value, list[Node]]
    producers: Mapping[Value, Node]
    nodes: dict[Node, list[Node]] = field(default_factory=dict[Node, list[Node]])
    parameters: dict[Value, list[Value]] = field(default_factory=dict[Value, list[Value]])
    constants: dict[Value, Array | None] = field(default_factory=dict[Value, "Array | None"])
    cuts: dict[Value, Cut] = field(default_factory=dict[Value, Cut])

    def of(self, value: Value, cut: Cut) -> list[Value] | None:
        """A value in parts; None if they cannot be made apart from each other, or if the value is
        needed as a whole elsewhere."""
        if value in self.parameters:
            return self.parameters[value]
        if value in self.function.constants:
            return self._of_constant(value, cut)
        if value in self.producers:
            return self._of_result(self.producers[value], cut)
        if value in self.function.parameters and self._is_read_once(value):
            parts = self.parameters[value] = _like(value, cut)
            self.cuts[value] = cut
            return parts
        return None

    def of_operand(self, value: Value, cut: Cut) -> list[Value] | None:
        """Like `of`, for a value of which no more than one node may need parts."""
        return self.of(value, cut) if self._is_read_once(value) else None

    def _is_read_once(self, value: Value) -> bool:
        """Whether one node alone needs a value; constants may be cut for each of their readers."""
        if value in self.function.constants:
            return True
        return len(self.uses[value]) == 1 and value not in self.function.outputs

    def _of_constant(self, value: Value, cut: Cut) -> list[Value]:
        parts, array = _like(value, cut), self.function.constants[value]
        own = [None] * len(parts) if array is None else cut.apart(array)
        self.constants.update(zip(parts, own, strict=True))
        return parts

    def _of_result(self, node: Node, cut: Cut) -> list[Value] | None:
        """The parts of a node's result, from the parts of the operands that have this dim, too."""
        if node in self.nodes:
            return [each.result for each in self.nodes[node]]
        along = _along(node, cut) if len(node.results) == 1 else None
        if along is None:
            return None
        operands: list[Sequence[Value]] = []
        for operand, own in zip(node.operands, along, strict=True):
            parts = [operand] * len(cut.sizes) if own is None else self.of_operand(operand, own)
            if parts is None:
                return None
            operands.append(parts)
        results = _like(node.result, cut)
        self.nodes[node] = [
            replace(node, op=_resized(node.op, own, result), operands=own, results=(result,))
            for own, result in zip(zip(*operands, strict=True), results, strict=True)
        ]
        return results

    def joined(
        self, pieces: Sequence[_Piece], sizes: Sequence[int], values: Sequence[Value]
    ) -> Parting:
        """All that was found, with the pieces as views of the parts of their whole."""
        part_at = dict(zip(accumulate((0, *sizes[:-1])), values, strict=True))
        views: dict[Node, list[Node]] = {}
        for each in pieces:
            part, node = part_at[each.start], each.node
            own = views.setdefault(node, [])
            if each.turn is not None:
                (type,) = each.turn.op.infer(part.type)
                turned = Value(type, part.name)
                own.append(replace(each.turn, operands=(part,), results=(turned,)))
                part = turned
            op = Reshape(each.result.type.shape)
            own.append(Node(op, (part,), (each.result,), node.origin, node.part))
        turns = {each.turn: list[Node]() for each in pieces if each.turn is not None}
        nodes = {**self.nodes, **turns, **views}
        return Parting(nodes, self.parameters, self.constants, self.cuts, WHY)


def _like(value: Value, cut: Cut) -> list[Value]:
    """New values for the parts of a value."""
    return [
        Value(value.type.with_shape(shape), f"{value.name}.{number}")
        for number, shape in enumerate(cut.shapes(value.type.shape))
    ]


def _resized(op: Op, operands: Sequence[Value], result: Value) -> Op:
    return op.localized([value.type for value in operands], [result.type])


def _along(node: Node, cut: Cut) -> list[Cut | None] | None:
    """How the operands of a node are cut where a dim of its result is cut: None for one that each
    part needs as a whole. None in all if the parts are not computed independently of each other."""
    signature = node.op.signature(node.operand_types, node.result_types)
    (result,) = signature.results

    def steps(loops: Sequence[int]) -> int:
        return math.prod(signature.loops[loop].size for loop in loops)

    # The loop that is cut is the first within which the turns fit.
    loops = result[cut.dim]
    place = next((n for n in range(len(loops)) if steps(loops[: n + 1]) > cut.turns), None)
    if place is None:
        return None
    loop, inner = loops[place], steps(loops[place + 1 :])
    turns, rest = divmod(cut.turns, steps(loops[:place]))
    tied = {loop for pair in (*signature.follows, *signature.equal) for loop in pair}
    if (
        signature.loops[loop].kind is not Kind.PARALLEL
        or loop in tied
        or rest
        or any(size % inner for size in cut.sizes)
    ):
        return None
    found: list[Cut | None] = []
    for dims in signature.operands:
        own = [(dim, loops, loops.index(loop)) for dim, loops in enumerate(dims) if loop in loops]
        if len(own) > 1:
            return None
        cuts = [
            Cut(
                dim,
                steps(loops[:at]) * turns,
                tuple(size // inner * steps(loops[at + 1 :]) for size in cut.sizes),
            )
            for dim, loops, at in own
        ]
        found.append(cuts[0] if cuts else None)
    return found


__all__ = ["Cut", "Parting", "Parts", "parted", "partings"]
