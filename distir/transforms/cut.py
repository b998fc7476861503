"""Cuts a program into blocks: between places where one activation crosses."""

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
"""A value that crosses many cuts (an encoder's output) is carried along if at least this many
pieces read it; fewer, and it is a part of one larger piece."""

Place = tuple[int, int]
"""Of a node in one of several copies that are alike: where in it, and in which."""


def cut_into_blocks(
    function: Function, axes: Axes, places: Mapping[Node, Place] | None = None
) -> Blocks:
    """Cuts `function`, which is in canonical order with its boundaries explicit."""
    roles = Roles.of(function)
    chain = [n for n in function.nodes if any(v in roles.activations for v in n.results)]
    pieces = _pieces(chain, roles)
    uses = function.uses()
    patterns = _Patterns(places or {})
    pieces = _merge(
        pieces,
        patterns.remember(lambda piece: _standing(piece, function.outputs, uses, axes, roles)),
    )
    firsts = patterns.firsts(pieces)
    kinds = _kinds(firsts, _with_weights(function, roles, pieces, set(firsts)), axes)
    pieces = [[node for i in layer for node in pieces[i]] for layer in repeated_runs(kinds)]
    found = _with_weights(function, roles, pieces, range(len(pieces)))
    representative = tuple(_kinds(patterns.firsts(pieces), found, axes))
    blocks = tuple(found.values())
    return Blocks(function, axes, roles, blocks, representative, _tie(blocks, representative, axes))


def _kinds(firsts: Sequence[int], blocks: Mapping[int, Block], axes: Axes) -> list[int]:
    """Per block the first that equals it, where it is known to equal one already."""
    by_key: dict[Hashable, int] = {}
    kinds = {
        first: by_key.setdefault(blocks[first].key(axes), first) for first in dict.fromkeys(firsts)
    }
    return [kinds[first] for first in firsts]


class _Patterns:
    """Tells pieces at the same places of copies that are alike, of which one is looked at."""

    def __init__(self, places: Mapping[Node, Place]) -> None:
        self._places = places

    def _of(self, piece: Sequence[Node]) -> Hashable:
        """Equal for two pieces if one is the other some copies later."""
        found = [self._places.get(node) for node in piece]
        if not found or found[0] is None:
            return tuple(piece)
        first = found[0][1]
        return tuple(
            node if place is None else (place[0], place[1] - first)
            for node, place in zip(piece, found, strict=True)
        )

    def remember(
        self, look: Callable[[list[Node]], _Standing]
    ) -> Callable[[list[Node]], _Standing]:
        """What is found in a piece holds for all that it tells alike."""
        known: dict[Hashable, _Standing] = {}

        def found(piece: list[Node]) -> _Standing:
            pattern = self._of(piece)
            if pattern not in known:
                known[pattern] = look(piece)
            return known[pattern]

        return found

    def firsts(self, pieces: Iterable[Sequence[Node]]) -> list[int]:
        """Per piece the first that it is known to equal."""
        first: dict[Hashable, int] = {}
        return [first.setdefault(self._of(piece), index) for index, piece in enumerate(pieces)]


LONGEST_PERIOD = 8
"""Most pieces that one layer is looked for in."""


def repeated_runs(kinds: Sequence[int]) -> list[list[int]]:
    """Groups pieces into layers: where a pattern of kinds repeats (attention, MLP, attention, MLP,
    …), one repetition is a group; other pieces stay alone.

    At every place the pattern that covers most is taken, of equals the shortest.
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
    """Runs of ops between places where one activation is live."""
    pieces = _runs(chain, _cuts(chain, roles, frozenset()))
    longest = max(pieces, key=len, default=list[Node]())
    if len(longest) < len(chain) / 4:
        return pieces
    shared = _shared_value(longest, chain, roles)
    if shared is None:
        return pieces
    return _runs(chain, _cuts(chain, roles, frozenset((shared,))))


def _cuts(chain: Sequence[Node], roles: Roles, carried: frozenset[Value]) -> list[int]:
    """Positions after which one activation, besides those carried along, is live."""
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
    bounds = [0, *cuts, len(chain)]
    return [list(chain[a:b]) for a, b in pairwise(bounds) if a < b]


def _shared_value(piece: Sequence[Node], chain: Sequence[Node], roles: Roles) -> Value | None:
    """The value that, carried along, cuts a long piece into several that read it."""
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
class _Standing:
    """Whether a piece has axes that tensor parallelism can split, and a matrix to split."""

    internal: bool
    output: bool
    has_matrix: bool


def _merge(
    pieces: list[list[Node]], standing: Callable[[list[Node]], _Standing]
) -> list[list[Node]]:
    """Pieces without an axis to split join the next. One without a matrix joins the one before if
    that is a table or a head (positions are added to what an embedding gives), or is the last."""
    merged: list[list[Node]] = []
    open_piece: list[Node] = []
    closed_by_output = False
    for piece in pieces:
        if closed_by_output and not open_piece and not standing(piece).has_matrix:
            merged[-1].extend(piece)
            continue
        open_piece = open_piece + piece
        found = standing(open_piece)
        if found.internal or found.output:
            merged.append(open_piece)
            open_piece = []
            closed_by_output = not found.internal
    if open_piece:
        if merged and not standing(open_piece).has_matrix:
            merged[-1].extend(open_piece)
        else:
            merged.append(open_piece)
    return merged


def _standing(
    piece: list[Node],
    outputs: Collection[Value],
    uses: Mapping[Value, list[Node]],
    axes: Axes,
    roles: Roles,
) -> _Standing:
    block = _border(piece, outputs, uses, roles)
    matrices = any(
        kind in (Kind.SUM, Kind.PICK) and axis in axes.of(value)
        for node in piece
        for value in node.operands
        if value in roles.weights
        for axis, kind in axes.kinds[node].items()
    )
    splits = Splits(block, axes, roles)
    return _Standing(bool(splits.internal), bool(splits.outputs), matrices)


def _border(
    piece: Sequence[Node],
    outputs: Collection[Value],
    uses: Mapping[Value, list[Node]],
    roles: Roles,
) -> Block:
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
    """The blocks of the wanted pieces, with the ops on parameters alone that they need; one needed
    twice is kept twice."""
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
    """Ties the axes at the same place of equal blocks, to the first block's."""
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
