"""Cuts a program into blocks, at places where a single activation is live."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, combinations, pairwise, product

from distir.axes.model import Axes, Axis, find_representative
from distir.ir.core import Node, Value
from distir.ir.function import Function
from distir.ir.signature import Kind
from distir.ops.arithmetic import Add
from distir.transforms.block import ops_with_weights
from distir.transforms.blocks import Block, Blocks, Roles
from distir.transforms.layer_groups import group_layers
from distir.transforms.pieces import (
    ALIKE,
    CopyPlace,
    KnownPiece,
    OpenPiece,
    Patterns,
    merge_pieces,
    runs_between,
)
from distir.transforms.splits import GrowingPiece
from distir.transforms.streams import made_late, narrow_sections

MIN_READERS_OF_SHARED = 3
"""A value that crosses many cuts, as an encoder's output does, is carried along with the activation
if at least this many pieces read it. Otherwise its readers stay in one piece."""

MOST_SHARED = 3
"""The most values that are carried along since many pieces read them."""

MOST_PASSING = 3
"""The most values that are carried past one tower at once."""

MOST_STREAMS = 3
"""The most activations that may go through layers side by side."""


def cut_into_blocks(
    function: Function, axes: Axes, places: Mapping[Node, CopyPlace] | None = None
) -> Blocks:
    """Cuts a function, which must be in canonical order and have its boundaries, into blocks.

    `places` says which nodes are at equal places of copies that are alike, so that their pieces are
    analysed once.
    """
    roles = Roles.of(function)
    chain = [n for n in function.nodes if any(v in roles.activations for v in n.results)]
    pieces = _pieces(_Chain(chain, roles, _bias_terms(chain, axes, roles)), function)
    readers = {value: len(nodes) for value, nodes in function.uses().items()}
    patterns = Patterns(places or {})
    known: dict[Hashable, KnownPiece] = {}

    def start() -> OpenPiece:
        growing = GrowingPiece(axes, roles, function.outputs, readers)
        return OpenPiece(growing, patterns, known)

    pieces = merge_pieces(pieces, roles, start)
    firsts = patterns.firsts(pieces)
    found = _with_weights(function, roles, pieces, set(firsts))
    kinds = _kinds(firsts, found, axes)
    layers = group_layers(*_families(kinds, found, roles))
    pieces = [[node for i in layer for node in pieces[i]] for layer in layers]
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


def _families(
    kinds: Sequence[int], blocks: Mapping[int, Block], roles: Roles
) -> tuple[list[int], list[bool]]:
    """Per piece, given its kind, the index of the first one of its family, and whether it hands on
    as much as it takes. What reads no activation, as a table does, begins a tower and is no part of
    a layer: it has a family of its own."""
    first: dict[Hashable, int] = {}
    family = {kind: first.setdefault(blocks[kind].family(roles), kind) for kind in set(kinds)}
    families = [family[kind] if blocks[kind].read else index for index, kind in enumerate(kinds)]
    return families, [blocks[kind].hands_on for kind in kinds]


# --- where to cut --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Chain:
    """The ops on activations, in order, and those of them that end no piece before them."""

    nodes: Sequence[Node]
    roles: Roles
    inseparable: Collection[Node]


@dataclass(frozen=True, slots=True)
class _Carried:
    """A value that may be live beside another one from one reading to the next: `past` are the
    cuts that it may cross so, by the position in the chain of the op behind them."""

    value: Value
    past: range


@dataclass(frozen=True, slots=True)
class _Beside:
    """What may be live beside the one activation at a cut."""

    carried: tuple[_Carried, ...] = ()
    """What is carried past a tower."""
    shared: tuple[Value, ...] = ()
    """What many pieces read, as an encoder's output, or the time and a text that every layer looks
    at."""
    streams: Mapping[int, int] = field(default_factory=dict[int, int])
    """How many activations may be live at a cut where it is not one, by the position of the op
    behind it."""


def _bias_terms(chain: Sequence[Node], axes: Axes, roles: Roles) -> frozenset[Node]:
    """The ops that add a weight to what the op before makes, a product with weights.

    They belong to that product, whether a file has the bias as an operand of it, as an op of its
    own, or, since it is zero, not at all.
    """
    return frozenset(
        node
        for product, node in pairwise(chain)
        if isinstance(node.op, Add)
        and any(value in roles.weights for value in node.operands)
        and any(value in product.results for value in node.operands)
        and Kind.SUM in axes.kinds[product].values()
        and any(value in roles.weights for value in product.operands)
    )


def _pieces(chain: _Chain, function: Function) -> list[list[Node]]:
    """Runs of ops between places where a single activation is live, apart from what may be live
    beside it. What layers' activations are scaled and shifted with, and what layers make of values
    that all of them read, is made in these layers if more of them are alike then."""
    pieces, beside = _cut(chain, _Beside())
    nodes = made_late(chain.nodes, function.outputs, beside.shared, chain.roles.activations)
    if nodes == chain.nodes:
        return pieces
    late, _ = _cut(replace(chain, nodes=nodes), _Beside(shared=beside.shared))
    return max(pieces, late, key=lambda each: sum(map(len, _copies(each, chain))))


def _cut(chain: _Chain, beside: _Beside) -> tuple[list[list[Node]], _Beside]:
    """The pieces of a chain in this order, or one in which streams can be cut, and what is live
    beside the one activation where it is cut: more than is known if there is a long piece."""
    pieces = runs_between(chain.nodes, _cuts(chain, beside))
    while longest := _too_long(pieces, chain):
        if more := _more_beside(longest, chain, beside):
            beside = more
        elif found := _streams(longest, chain, beside):
            chain, beside = found
        else:
            break
        pieces = runs_between(chain.nodes, _cuts(chain, beside))
    return pieces, beside


def _streams(piece: range, chain: _Chain, beside: _Beside) -> tuple[_Chain, _Beside] | None:
    """The chain with the ops of a long piece in an order in which most of it is cut into copies
    where several activations are live, as few as will do, and what is live beside one then: that
    many from the first copy to the last. None if there is no such order, or if some of the piece
    has been ordered so before."""
    if not beside.streams.keys().isdisjoint(piece[1:]):
        return None
    most = [value for value in _most_read(piece, chain) if value not in beside.shared]
    most = most[: MOST_SHARED - len(beside.shared)]
    nodes = chain.nodes[piece.start : piece.stop]
    carried = [each.value for each in beside.carried if not set(each.past).isdisjoint(piece)]
    for width, number in product(range(1, MOST_STREAMS + 1), range(len(most) + 1)):
        shared = (*beside.shared, *most[:number])
        sections = narrow_sections(nodes, chain.roles.activations, {*shared, *carried}, width)
        ordered = [node for section in sections for node in section]
        whole = [*chain.nodes[: piece.start], *ordered, *chain.nodes[piece.stop :]]
        found = replace(chain, nodes=whole)
        streams = {**beside.streams, **dict.fromkeys(piece, width)}
        cuts = _cuts(found, replace(beside, shared=shared, streams=streams))
        copies = _copies(
            runs_between(ordered, [at - piece.start for at in cuts if at in piece]), chain
        )
        if sum(map(len, copies)) > len(piece) / 2:
            first, last = (piece.start + ordered.index(n) for n in (copies[0][0], copies[-1][-1]))
            streams = {**beside.streams, **dict.fromkeys(range(first, last + 2), width)}
            return found, replace(beside, shared=shared, streams=streams)
    return None


def _more_beside(piece: range, chain: _Chain, beside: _Beside) -> _Beside | None:
    """What may be live beside an activation so that a long piece can be cut; None if nothing
    helps. Values that many ops read are looked for once."""
    if passing := _passing(piece, chain, beside):
        again = tuple({each.value for each in passing})
        if (
            len(again) == 1 < len(passing)
            and not beside.shared
            and _are_shared(again, chain, beside)
        ):
            return replace(beside, shared=again)  # so that what layers make of it is theirs
        return replace(beside, carried=(*beside.carried, *passing))
    most = [] if beside.shared else _most_read(piece, chain)
    for number in range(1, len(most) + 1):
        # What skips layers may be found only beside what all of them read, as the time is.
        often = replace(beside, shared=tuple(most[:number]))
        if passing := _passing(piece, chain, often):
            return replace(often, carried=(*often.carried, *passing))
        for shared in combinations(most, number):
            if _are_shared(shared, chain, beside):
                return replace(beside, shared=shared)
    return None


def _too_long(pieces: Sequence[Sequence[Node]], chain: _Chain) -> range | None:
    """The positions of the longest piece, if it is a quarter of the chain or more."""
    ends = [*accumulate(map(len, pieces))]
    places = (range(end - len(piece), end) for piece, end in zip(pieces, ends, strict=True))
    longest = max(places, key=len, default=range(0))
    return longest if len(longest) >= len(chain.nodes) / 4 else None


def _cuts(chain: _Chain, beside: _Beside | None = None) -> list[int]:
    """Positions in the chain before which a single activation is live, apart from what may be
    live `beside` it, or nothing but what is shared, as between an encoder and a decoder."""
    beside = beside or _Beside()
    nodes = chain.nodes
    shared = {node for node in nodes if any(value in beside.shared for value in node.results)}
    last_use = {
        value: node
        for node in nodes
        for value in node.operands
        if value in chain.roles.activations and value not in beside.shared
    }
    cuts: list[int] = []
    live: set[Value] = set()
    for position, node in enumerate(nodes[:-1]):
        live.update(value for value in node.results if value in last_use)
        live.difference_update([v for v in node.operands if last_use.get(v) is node])
        following = nodes[position + 1]
        if following in chain.inseparable:
            continue
        if node in shared and not live:
            cuts.append(position + 1)
            continue
        if chain.roles.activations.isdisjoint(following.operands):
            # It begins what meets the live value later: a tower is a piece, a second table is not.
            if all(position + 1 != each.past.start for each in beside.carried):
                continue
        passing = {each.value for each in beside.carried if position + 1 in each.past}
        streams = live - passing
        most = beside.streams.get(position + 1, 1)
        if live and len(streams) <= most and not _makes_less_of(streams, following, last_use):
            cuts.append(position + 1)
    return cuts


def _makes_less_of(streams: Collection[Value], node: Node, last_use: Mapping[Value, Node]) -> bool:
    """Whether an op is the last to read several values, and makes less of them, as a sum does, so
    that behind it is the better place for a cut."""
    if len(streams) < 2 or any(last_use[value] is not node for value in streams):
        return False
    made = sum(value.type.num_elements for value in node.results)
    return made < sum(value.type.num_elements for value in streams)


def _are_shared(values: Collection[Value], chain: _Chain, beside: _Beside) -> bool:
    """Whether at least `MIN_READERS_OF_SHARED` pieces read each value, if all are carried along."""
    runs = runs_between(chain.nodes, _cuts(chain, replace(beside, shared=tuple(values))))
    return all(
        sum(any(value in node.operands for node in run) for run in runs) >= MIN_READERS_OF_SHARED
        for value in values
    )


def _most_read(piece: range, chain: _Chain) -> list[Value]:
    """The values that most ops of a piece read, at least `MIN_READERS_OF_SHARED`: no more than
    `MOST_SHARED`."""
    counts = Counter(v for at in piece for v in dict.fromkeys(chain.nodes[at].operands))
    readers = {
        value: counts[value]
        for node in chain.nodes[: piece.stop]
        for value in node.results
        if value in chain.roles.activations and counts[value] >= MIN_READERS_OF_SHARED
    }
    return sorted(readers, key=lambda v: -readers[v])[:MOST_SHARED]


def _passing(piece: range, chain: _Chain, beside: _Beside) -> tuple[_Carried, ...]:
    """What is carried past a tower in a long piece: the fewest values, up to `MOST_PASSING`, that
    are not read for a quarter of the piece, so that, without them, `ALIKE` pieces there do the same
    with weights, at whatever sizes. Empty if there are none.

    So are the texts of a model that looks at images next, what an encoder and a decoder both begin
    with, and what skips layers.
    """
    places: dict[Value, list[int]] = {}
    for position, node in enumerate(chain.nodes[: piece.stop]):
        for value in (*dict.fromkeys(node.operands), *node.results):
            if value in chain.roles.activations:
                places.setdefault(value, []).append(position)
    unread = [
        _Carried(value, range(made + 1, read + 1))
        for value, known in places.items()
        for made, read in pairwise(known)
        if read in piece
    ]
    apart = {each: each.past[max(0, piece.start - each.past.start) :] for each in unread}
    long = [
        each for each in unread if len(apart[each]) > len(piece) / 4 and each not in beside.carried
    ]
    long.sort(key=lambda each: -len(apart[each]))
    for number in range(1, min(MOST_PASSING, len(long)) + 1):
        passing = tuple(long[:number])
        towers = {at for each in passing for at in apart[each]}
        past = replace(beside, carried=(*beside.carried, *passing))
        if _has_copies(towers, _cuts(chain, past), chain):
            return passing
    return ()


def _has_copies(places: Collection[int], cuts: Iterable[int], chain: _Chain) -> bool:
    """Whether, between the cuts that are at these places, `ALIKE` pieces do the same with weights,
    at whatever sizes."""
    runs = [chain.nodes[a:b] for a, b in pairwise([at for at in cuts if at in places])]
    return any(_copies(runs, chain, ALIKE))


def _copies(runs: Iterable[Sequence[Node]], chain: _Chain, number: int = 2) -> list[Sequence[Node]]:
    """The runs that do several things with weights, if at least `number` of them do the same, at
    whatever sizes."""
    products = [run for run in runs if len(ops_with_weights(run, chain.roles)) > 1]
    kinds = [tuple(type(node.op) for node in run) for run in products]
    counts = Counter(kinds)
    return [run for run, kind in zip(products, kinds, strict=True) if counts[kind] >= number]


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
    wanted = dict.fromkeys(value for node in piece for value in node.operands)
    stack = [(value, False) for value in reversed(wanted)]
    while stack:
        value, are_operands_done = stack.pop()
        node = producers.get(value)
        if node is None or value not in roles.weights or node in ordered:
            continue
        if are_operands_done:
            ordered[node] = None
            continue
        stack.append((value, True))
        stack += [(operand, False) for operand in reversed(node.operands)]
    return list(ordered)


def _tie(blocks: Sequence[Block], representative: Sequence[int], axes: Axes) -> dict[Axis, Axis]:
    """Maps axes at the same place of equal blocks to one representative, of the first block."""
    parent: dict[Axis, Axis] = {}
    order = {index: blocks[index].axis_order(axes) for index in set(representative)}
    for block, index in zip(blocks, representative, strict=True):
        for ours, first in zip(block.axis_order(axes), order[index], strict=True):
            a, b = find_representative(first, parent), find_representative(ours, parent)
            if a is not b:
                parent[b] = a
    return {axis: find_representative(axis, parent) for axis in tuple(parent)}
