"""Merges what lies between the places where a program can be cut into pieces that can be split.

Where each piece belongs is told by how often its like comes, and beside what: layers are what comes
again and again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from distir.ir.core import Node
from distir.transforms.block import ops_with_weights
from distir.transforms.blocks import Roles
from distir.transforms.layer_groups import LONGEST_PERIOD
from distir.transforms.splits import GrowingPiece, Splittable

CopyPlace = tuple[int, int]
"""(place within a copy, number of the copy) of a node in a repeat whose copies are alike."""


ALIKE = 3
"""As many copies in a row of what has no axis to split are layers, which have none either."""


class Patterns:
    """Recognises pieces at the same places of copies that are alike, so that one of them is
    analysed for all."""

    def __init__(self, places: Mapping[Node, CopyPlace]) -> None:
        self._places = places

    def copy_of(self, piece: Sequence[Node]) -> int | None:
        """The number of the copy in which a piece begins; None if it begins in none."""
        place = self._places.get(piece[0]) if piece else None
        return None if place is None else place[1]

    def key(self, piece: Sequence[Node], first: int | None) -> Hashable:
        """A key that is equal for two pieces if one is the other, some copies later. Copies are
        counted from the `first`; without it, a piece equals itself alone."""
        if first is None:
            return tuple(piece)
        found = (self._places.get(node) for node in piece)
        return tuple(
            node if place is None else (place[0], place[1] - first)
            for node, place in zip(piece, found, strict=True)
        )

    def firsts(self, pieces: Iterable[Sequence[Node]]) -> list[int]:
        """Per piece, the index of the first piece that it is known to equal."""
        first: dict[Hashable, int] = {}
        return [
            first.setdefault(self.key(piece, self.copy_of(piece)), index)
            for index, piece in enumerate(pieces)
        ]


def runs_between(chain: Sequence[Node], cuts: Sequence[int]) -> list[list[Node]]:
    """The chain cut at these positions."""
    bounds = [0, *cuts, len(chain)]
    return [list(chain[a:b]) for a, b in pairwise(bounds) if a < b]


def _like(nodes: Iterable[Node]) -> Hashable:
    """A key that is equal for runs of equal ops and types."""
    return tuple([(node.op, node.operand_types, node.result_types) for node in nodes])


class _Neighbours:
    """How often pieces that do the same come, and follow each other."""

    def __init__(self, pieces: Sequence[Sequence[Node]], roles: Roles) -> None:
        numbers: dict[Hashable, int] = {}
        self._kinds = [numbers.setdefault(_like(piece), len(numbers)) for piece in pieces]
        self._runs: dict[int, Counter[tuple[int, ...]]] = {}
        self._parts = {
            kind
            for kind, piece in zip(self._kinds, pieces, strict=True)
            if len(ops_with_weights(piece, roles)) > 1
        }
        """The kinds of pieces that do several things with weights, as parts of layers do."""
        self._before: Counter[int] = Counter()
        """Per kind of pieces, how many come behind most of the likes of the one before, less how
        many do not."""
        self._torn: Counter[int] = Counter()
        """Per kind of pieces, how many kinds of parts of layers come in two forms where it belongs
        to what is before it, less how many do where it belongs to what is behind it."""
        for at, kind in enumerate(self._kinds):
            self._before[kind] += 1 if self._mostly_behind(at) else -1
        for at in {pair: at for at, pair in enumerate(pairwise(self._kinds))}.values():
            before, behind = self._kinds[at : at + 2]
            often = self._often(at, at + 2)
            self._torn[behind] += before in self._parts and often < self._often(at, at + 1)
            self._torn[before] -= behind in self._parts and often < self._often(at + 1, at + 2)

    def belongs_before(self, at: int) -> bool:
        """Whether a piece, if it has no matrix, belongs to the one before it, as a norm at the end
        of a layer does, even of the last one: if it comes behind most of the likes of that one, as
        most pieces of its kind do, and no more parts of layers come both with and without it then
        than if it belonged to the piece behind it. Parts of layers belong to themselves alone."""
        kind = self._kinds[at]
        if kind in self._parts or self._before[kind] <= 0:
            return False
        return self._mostly_behind(at) and self._torn[kind] <= 0

    def _mostly_behind(self, at: int) -> bool:
        return 2 * self._often(at - 1, at + 1) > self._often(at - 1, at)

    def repeated_end(self, begin: int, end: int) -> int:
        """Where in a run of pieces the longest part of it begins that comes without what is before
        it more often than with it, up to the end of the run: so does a layer, the first of which
        comes behind what makes patches of an image. The run's beginning if there is none. Parts of
        more than `LONGEST_PERIOD` pieces are not looked for."""
        whole = self._often(begin, end) if end - begin <= LONGEST_PERIOD else 1
        longest = range(max(begin + 1, end - LONGEST_PERIOD), end)
        places = (at for at in longest if not self.belongs_before(at))
        return next((at for at in places if self._often(at, end) > 2 * whole), begin)

    def _often(self, begin: int, end: int) -> int:
        """How often such pieces follow each other so; 0 where there are none."""
        if begin < 0 or end > len(self._kinds):
            return 0
        length = end - begin
        if length not in self._runs:
            starts = range(len(self._kinds) - length + 1)
            self._runs[length] = Counter(tuple(self._kinds[at : at + length]) for at in starts)
        return self._runs[length][tuple(self._kinds[begin:end])]


def merge_pieces(
    pieces: Sequence[list[Node]], roles: Roles, start: Callable[[], OpenPiece]
) -> list[list[Node]]:
    """Merges pieces until each has an axis to split. `start` makes a piece without ops.

    A piece without one joins the next, but for copies that have none and come again and again: each
    is a piece, as of layers whose norms need whole what their products make. Where what can be
    split at last comes more often without what was before it, that is a piece of its own if it has
    a matrix. A piece without a matrix joins the one before if that is a table or a head, since
    positions are added to what an embedding gives, and where it belongs to that, as a norm at a
    layer's end. So does the last piece if it has no matrix.
    """
    merged: list[list[Node]] = []
    neighbours = _Neighbours(pieces, roles)
    piece = start()
    closed_by_output = False
    whole: list[tuple[Hashable, ...]] = []
    begin = 0

    def goes_before(at: int) -> bool:
        """Whether a piece has no matrix, and belongs to the one before it."""
        if at == len(pieces) or not neighbours.belongs_before(at):
            return False
        return not _grown(pieces[at : at + 1], start).found.has_matrix

    for at, nodes in enumerate(pieces):
        if not piece.nodes:
            begin = at
        piece.add(nodes)
        if (
            begin == at
            and not piece.found.has_matrix
            and (closed_by_output or (merged and neighbours.belongs_before(at)))
        ):
            merged[-1].extend(nodes)
            piece = start()
        elif piece.can_be_split:
            own = neighbours.repeated_end(begin, at + 1)
            before, end = (
                _grown(part, start) for part in (pieces[begin:own], pieces[own : at + 1])
            )
            if before.found.has_matrix and end.can_be_split:
                merged.append(before.nodes)
                piece = end
            merged.append(piece.nodes)
            piece, closed_by_output = start(), not piece.found.internal
        elif not piece.found.has_matrix or goes_before(at + 1):
            continue  # copies end with what belongs to them
        elif copies := piece.copies(whole):
            merged += copies
            piece, closed_by_output = start(), False
    if piece.nodes:
        if merged and not piece.found.has_matrix:
            merged[-1].extend(piece.nodes)
        else:
            merged.append(piece.nodes)
    return merged


def _grown(pieces: Iterable[list[Node]], start: Callable[[], OpenPiece]) -> OpenPiece:
    """All pieces as one."""
    whole = start()
    for nodes in pieces:
        whole.add(nodes)
    return whole


@dataclass(frozen=True, slots=True)
class KnownPiece:
    """What is known of a piece that began, and grew, like another one."""

    number: int
    splittable: Splittable


class OpenPiece:
    """A piece to which nodes are added until it can be split. What was found for a piece that
    consists of copies of the same nodes is not found again."""

    def __init__(
        self, growing: GrowingPiece, patterns: Patterns, known: dict[Hashable, KnownPiece]
    ) -> None:
        self.nodes: list[Node] = []
        self.found = Splittable()
        """What it has that can be split."""
        self._parts: list[tuple[Hashable, int]] = []
        """Per part that was added a key, equal for parts of equal ops and types, and where it ends
        among the nodes."""
        self._growing, self._patterns, self._known = growing, patterns, known
        self._first: int | None = None
        self._number: int = -1
        self._analysed = 0

    @property
    def can_be_split(self) -> bool:
        """Whether it has an axis to split."""
        return bool(self.found.internal or self.found.output)

    def add(self, nodes: Sequence[Node]) -> None:
        """Adds nodes, and finds what can be split then."""
        if not self.nodes:
            self._first = self._patterns.copy_of(nodes)
        self.nodes += nodes
        self._parts.append((_like(nodes), len(self.nodes)))
        key = (self._number, self._patterns.key(nodes, self._first))
        if key not in self._known:
            found = self._growing.add(self.nodes[self._analysed :])
            self._analysed = len(self.nodes)
            self._known[key] = KnownPiece(len(self._known), found)
        known = self._known[key]
        self._number, self.found = known.number, known.splittable

    def copies(self, known: list[tuple[Hashable, ...]]) -> list[list[Node]]:
        """Its nodes as copies, if it ends with `ALIKE` of them or is one of those `known`, to which
        new ones are added; nothing if it does not. What comes before copies is apart."""
        keys = tuple(key for key, _ in self._parts)
        if keys in known:
            return [self.nodes]
        for period in range(1, min(LONGEST_PERIOD, len(keys) // ALIKE) + 1):
            last = keys[-period:]
            if keys[-ALIKE * period :] == last * ALIKE:
                known.append(last)
                first = len(keys) - ALIKE * period
                ends = [
                    self._parts[place - 1][1] for place in range(first, len(keys), period) if place
                ]
                return runs_between(self.nodes, ends)
        return []


__all__ = [
    "ALIKE",
    "CopyPlace",
    "KnownPiece",
    "OpenPiece",
    "Patterns",
    "merge_pieces",
    "runs_between",
]
