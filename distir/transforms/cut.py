"""Cuts a program into blocks, at places where a single activation is live."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from distir.axes.model import Axes, Axis
from distir.ir.core import Node, Value
from distir.ir.function import Function
from distir.ir.signature import Kind
from distir.transforms.blocks import Block, Blocks, Roles, Splits

MIN_READERS_OF_SHARED = 3
"""A value that crosses many cuts, as an encoder's output does, is carried along with the activation
if at least this many pieces read it. Otherwise its readers stay in one piece."""

CopyPlace = tuple[int, int]
"""(place within a copy, number of the copy) of a node in a repeat whose copies are alike."""


def cut_into_blocks(
    function: Function, axes: Axes, places: Mapping[Node, CopyPlace] | None = None
) -> Blocks:
    """Cuts a function, which must be in canonical order and have its boundaries, into blocks.

    `places` says which nodes are at equal places of copies that are alike, so that their pieces are
    analysed once.
    """
    roles = Roles.of(function)
    chain = [n for n in function.nodes if any(v in roles.activations for v in n.results)]
    pieces = _pieces(chain, roles)
    uses = function.uses()
    patterns = _Patterns(places or {})
    pieces = _merge(
        pieces,
        patterns.remember(lambda piece: _splittable(piece, function.outputs, uses, axes, roles)),
    )
    firsts = patterns.firsts(pieces)
    kinds = _kinds(firsts, _with_weights(function, roles, pieces, set(firsts)), axes)
    pieces = [[node for i in layer for node in pieces[i]] for layer in repeated_runs(kinds)]
    found = _with_weights(function, roles, pieces, range(len(pieces)))
    representative = tuple(_kinds(patterns.firsts(pieces), found, axes))
    blocks = tuple(found.values())
    return Blocks(function, axes, roles, blocks, representative, _tie(blocks, representative, axes))


def _kinds(firsts: Sequence[int], blocks: Mapping[int, Block], axes: Axes) -> list[int]:
    """Per block, the index of the first equal one. `firsts[i]` is a block that block i is known to
    equal; only those blocks need be in `blocks`."""
    by_key: dict[Hashable, int] = {}
    kinds = {
        first: by_key.setdefault(blocks[first].key(axes), first) for first in dict.fromkeys(firsts)
    }
    return [kinds[first] for first in firsts]


class _Patterns:
    """Recognises pieces at the same places of copies that are alike, so that one of them is
    analysed for all."""

    def __init__(self, places: Mapping[Node, CopyPlace]) -> None:
        self._places = places

    def _key(self, piece: Sequence[Node]) -> Hashable:
        """A key that is equal for two pieces if one is the other, some copies later."""
        found = [self._places.get(node) for node in piece]
        if not found or found[0] is None:
            return tuple(piece)
        first = found[0][1]
        return tuple(
            node if place is None else (place[0], place[1] - first)
            for node, place in zip(piece, found, strict=True)
        )

    def remember(
        self, analyse: Callable[[list[Node]], _Splittable]
    ) -> Callable[[list[Node]], _Splittable]:
        """`analyse`, run once for all pieces with the same key."""
        known: dict[Hashable, _Splittable] = {}

        def found(piece: list[Node]) -> _Splittable:
            key = self._key(piece)
            if key not in known:
                known[key] = analyse(piece)
            return known[key]

        return found

    def firsts(self, pieces: Iterable[Sequence[Node]]) -> list[int]:
        """Per piece, the index of the first piece that it is known to equal."""
        first: dict[Hashable, int] = {}
        return [first.setdefault(self._key(piece), index) for index, piece in enumerate(pieces)]


LONGEST_PERIOD = 8
"""The most pieces that may make up one layer."""


def repeated_runs(kinds: Sequence[int]) -> list[list[int]]:
    """Groups pieces, given their kinds, into layers: lists of indices.

    Where a pattern of kinds repeats (attention, MLP, attention, MLP, …), one repetition is a group;
    other pieces are groups of their own. At every place the pattern whose repetitions cover most
    pieces is taken; of several such patterns, the shortest.
    """
    groups: list[list[int]] = []
    start = 0
    while start < len(kinds):
        best_period, best_count = 1, 1
        for period in range(1, LONGEST_PERIOD + 1):
            pattern = list(kinds[start : start + period])
            count = 1
            while list(kinds[start + count * period : start + (count + 1) * period]) == pattern:
                count += 1
            if count > 1 and count * period > best_count * best_period:
                best_period, best_count = period, count
        for repetition in range(best_count):
            begin = start + repetition * best_period
            groups.append(list(range(begin, begin + best_period)))
        start += best_count * best_period
    return groups


# --- where to cut --------------------------------------------------------------------------------


def _pieces(chain: Sequence[Node], roles: Roles) -> list[list[Node]]:
    """Runs of ops between places where a single activation is live."""
    pieces = _runs(chain, _cuts(chain, roles, frozenset()))
    longest = max(pieces, key=len, default=list[Node]())
    if len(longest) < len(chain) / 4:
        return pieces
    shared = _shared_value(longest, chain, roles)
    if shared is None:
        return pieces
    return _runs(chain, _cuts(chain, roles, frozenset((shared,))))


def _cuts(chain: Sequence[Node], roles: Roles, carried: frozenset[Value]) -> list[int]:
    """Positions in the chain before which a single activation is live, apart from `carried`."""
    last_use = {
        value: position
        for position, node in enumerate(chain)
        for value in node.operands
        if value in roles.activations and value not in carried
    }
    cuts: list[int] = []
    live: set[Value] = set()
    for position, node in enumerate(chain):
        live.update(value for value in node.results if last_use.get(value, -1) > position)
        live.difference_update([v for v in node.operands if last_use.get(v) == position])
        if len(live) == 1 and position + 1 < len(chain):
            cuts.append(position + 1)
    return cuts


def _runs(chain: Sequence[Node], cuts: Sequence[int]) -> list[list[Node]]:
    """The chain cut at these positions."""
    bounds = [0, *cuts, len(chain)]
    return [list(chain[a:b]) for a, b in pairwise(bounds) if a < b]


def _shared_value(piece: Sequence[Node], chain: Sequence[Node], roles: Roles) -> Value | None:
    """The value that allows to cut a long piece if it is carried along; at least
    `MIN_READERS_OF_SHARED` of the new pieces read it. None if there is none."""
    start = chain.index(piece[0])
    inside = set(piece)
    made_before = [v for node in chain[:start] for v in node.results if v in roles.activations]
    made_inside = [v for node in piece for v in node.results if v in roles.activations]
    readers = {
        value: sum(value in node.operands for node in inside)
        for value in (*made_before, *made_inside)
    }
    for value in sorted(readers, key=lambda v: -readers[v])[:3]:
        if readers[value] < MIN_READERS_OF_SHARED:
            return None
        runs = _runs(chain, _cuts(chain, roles, frozenset((value,))))
        reading = sum(any(value in node.operands for node in run) for run in runs)
        if reading >= MIN_READERS_OF_SHARED:
            return value
    return None


@dataclass(frozen=True, slots=True)
class _Splittable:
    """Whether a piece has internal axes, output axes, and a matrix of parameters."""

    internal: bool
    output: bool
    has_matrix: bool


def _merge(
    pieces: list[list[Node]], splittable: Callable[[list[Node]], _Splittable]
) -> list[list[Node]]:
    """Merges pieces until each has an axis to split.

    A piece without one joins the next. A piece without a matrix joins the one before if that is a
    table or a head, since positions are added to what an embedding gives. So does the last piece if
    it has no matrix.
    """
    merged: list[list[Node]] = []
    open_piece: list[Node] = []
    closed_by_output = False
    for piece in pieces:
        if closed_by_output and not open_piece and not splittable(piece).has_matrix:
            merged[-1].extend(piece)
            continue
        open_piece = open_piece + piece
        found = splittable(open_piece)
        if found.internal or found.output:
            merged.append(open_piece)
            open_piece = []
            closed_by_output = not found.internal
    if open_piece:
        if merged and not splittable(open_piece).has_matrix:
            merged[-1].extend(open_piece)
        else:
            merged.append(open_piece)
    return merged


def _splittable(
    piece: list[Node],
    outputs: Collection[Value],
    uses: Mapping[Value, list[Node]],
    axes: Axes,
    roles: Roles,
) -> _Splittable:
    """What a piece has that can be split."""
    block = _as_block(piece, outputs, uses, roles)
    matrices = any(
        kind in (Kind.SUM, Kind.PICK) and axis in axes.of(value)
        for node in piece
        for value in node.operands
        if value in roles.weights
        for axis, kind in axes.kinds[node].items()
    )
    splits = Splits(block, axes, roles)
    return _Splittable(bool(splits.internal), bool(splits.outputs), matrices)


def _as_block(
    piece: Sequence[Node],
    outputs: Collection[Value],
    uses: Mapping[Value, list[Node]],
    roles: Roles,
) -> Block:
    """The block that a piece would be on its own; weights computed outside count as parameters."""
    made = {value for node in piece for value in node.results}
    read = dict.fromkeys(value for node in piece for value in node.operands)
    inside = set(piece)
    used_later = {
        value for value in made if any(node not in inside for node in uses.get(value, ()))
    }
    return Block(
        nodes=tuple(piece),
        inputs=tuple(v for v in read if v in roles.activations and v not in made),
        outputs=tuple(v for node in piece for v in node.results if v in used_later),
        results=tuple(v for v in outputs if v in made),
        free=tuple(v for v in read if v in roles.free),
        parameters=tuple(v for v in read if v in roles.weights),
    )


# --- blocks ------------------------------------------------------------------------------------


def _with_weights(
    function: Function, roles: Roles, pieces: Sequence[Sequence[Node]], wanted: Collection[int]
) -> dict[int, Block]:
    """The blocks of the wanted pieces (by index). Each has its own copy of the ops on parameters
    alone that it needs."""
    producers = function.producers()
    carried_until: dict[Value, int] = {}
    for index, piece in enumerate(pieces):
        for node in piece:
            for value in node.operands:
                if value in roles.activations:
                    carried_until[value] = index
    trained = set(function.parameters)
    blocks: dict[int, Block] = {}
    live: dict[Value, None] = {}
    for index, piece in enumerate(pieces):
        inputs = tuple(live)
        made = dict.fromkeys(value for node in piece for value in node.results)
        live.update(made)
        for value in [v for v in live if carried_until.get(v, -1) <= index]:
            del live[value]
        if index not in wanted:
            continue
        nodes = [*_weight_nodes(piece, producers, roles), *piece]
        read = dict.fromkeys(value for node in nodes for value in node.operands)
        blocks[index] = Block(
            nodes=tuple(nodes),
            inputs=inputs,
            outputs=tuple(live),
            results=tuple(v for v in function.outputs if v in made),
            free=tuple(v for v in read if v in roles.free),
            parameters=tuple(v for v in read if v in trained),
        )
    return blocks


def _weight_nodes(
    piece: Sequence[Node], producers: Mapping[Value, Node], roles: Roles
) -> list[Node]:
    """The ops on parameters alone whose results a piece needs, in order."""
    ordered: dict[Node, None] = {}

    def visit(value: Value) -> None:
        node = producers.get(value)
        if node is None or value not in roles.weights or node in ordered:
            return
        for operand in node.operands:
            visit(operand)
        ordered[node] = None

    for node in piece:
        for operand in node.operands:
            visit(operand)
    return list(ordered)


def _tie(blocks: Sequence[Block], representative: Sequence[int], axes: Axes) -> dict[Axis, Axis]:
    """Maps axes at the same place of equal blocks to one representative, of the first block."""
    parent: dict[Axis, Axis] = {}

    def find(axis: Axis) -> Axis:
        while axis in parent:
            axis = parent[axis]
        return axis

    order = {index: blocks[index].axis_order(axes) for index in set(representative)}
    for block, index in zip(blocks, representative, strict=True):
        for ours, first in zip(block.axis_order(axes), order[index], strict=True):
            a, b = find(first), find(ours)
            if a is not b:
                parent[b] = a
    return {axis: find(axis) for axis in parent}
