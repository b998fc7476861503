"""Orders ops so that few values are live at many places.

Where several activations go through a model side by side, as an image's and a text's, the ops that
one needs next may come before the other is as far, and all that is between is live with it. Which
of them comes first does not matter to what is computed.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import pairwise

from distir.axes.order import depth_first
from distir.ir.core import Node, Value
from distir.ops.elementwise import Elementwise

_Place = Node | Value
"""What flows pass: ops, and values, which are as wide as one."""


def narrow_sections(
    nodes: Sequence[Node], activations: Collection[Value], free: Collection[Value], width: int
) -> list[list[Node]]:
    """The ops in sections between which at most `width` of the `activations` are live, not counting
    those that are `free`. A section is the shortest that ends where as few are live as anywhere
    ahead, up to the last op that reads `width` values. The last one is all behind that, and all
    before which more have to be live.

    What most ops follow in a row comes first. Where one more value has to be live, it is what one
    more input begins, if there is one. What is made of free values alone is in the section that
    reads it.
    """
    flow = _Flow(nodes, activations, free, width)
    sections = [flow.pass_makers_of(free)]
    late = _made_of(free, nodes, activations)
    beginnings = deque(n for n in nodes if not any(v in activations for v in n.operands))
    for value in flow.live:
        sections += flow.keep(value)
    waiting = deque(node for node in nodes if node not in late)
    while waiting and flow.width <= flow.most:
        while beginnings and beginnings[0] in flow.passed:
            beginnings.popleft()
        if waiting[0] in flow.passed:
            waiting.popleft()
            continue
        candidates = [node for node in flow.following() if node not in late]
        following = max(candidates, key=flow.height.__getitem__, default=waiting[0])
        if beginnings and flow.widens_with(following):
            for node in flow.alone_from(beginnings[0]):
                sections += flow.pass_by(node)
        else:
            sections += flow.pass_by(following)
    sections.append([node for node in nodes if node not in flow.passed])
    return [_ordered(section) for section in sections if section]


def _ordered(section: Sequence[Node]) -> list[Node]:
    """The ops of a section in canonical order from what it hands on, the largest first: an order
    that does not depend on what is behind it."""
    read = {value for node in section for value in node.operands}
    ends = [value for node in section for value in node.results if value not in read]
    ends.sort(key=lambda value: -value.type.num_elements)
    return list(depth_first(section, ends))


def _made_of(
    values: Collection[Value], nodes: Iterable[Node], activations: Collection[Value]
) -> set[Node]:
    """The ops that read these activations, or what is made of them, and no others."""
    found: set[Node] = set()
    made = set(values)
    for node in nodes:
        read = [value for value in node.operands if value in activations]
        if read and made.issuperset(read):
            found.add(node)
            made.update(node.results)
    return found


def made_late(
    nodes: Sequence[Node],
    outputs: Collection[Value],
    shared: Collection[Value],
    activations: Collection[Value],
) -> list[Node]:
    """The ops in an order in which those come right before what reads them, in the first layer as
    in the others, that make what activations are scaled and shifted with, which are operands that
    are repeated along an axis, and those that make something of `shared` values alone, as the keys
    of an encoder's output.

    What makes `outputs` and `shared` values stays where it is.
    """
    late = _making_repeated(nodes, outputs, shared)
    read = {value for node in nodes for value in node.operands}.difference(outputs)
    late |= {
        node
        for node in _made_of(shared, nodes, activations)
        if read.issuperset(node.results) and not any(value in shared for value in node.results)
    }
    makers = {value: node for node in late for value in node.results}
    place = {node: at for at, node in enumerate(nodes)}
    ordered: dict[Node, None] = {}
    for node in nodes:
        if node in late:
            continue
        needed, stack = set[Node](), [node]
        while stack:
            for value in stack.pop().operands:
                maker = makers.get(value)
                if maker is not None and maker not in ordered and maker not in needed:
                    needed.add(maker)
                    stack.append(maker)
        ordered.update(dict.fromkeys(sorted(needed, key=place.__getitem__)))
        ordered[node] = None
    return list(ordered)


def _making_repeated(
    nodes: Sequence[Node], outputs: Iterable[Value], early: Iterable[Value]
) -> set[Node]:
    """The ops that make nothing but operands which elementwise ops repeat along an axis, without
    those that the `early` values are made of."""
    found: set[Node] = set()
    streams, kept = set(outputs), set(early)
    read = {value for node in nodes for value in node.operands}
    for node in reversed(nodes):
        if not kept.isdisjoint(node.results):
            kept.update(node.operands)
        elif streams.isdisjoint(node.results) and not read.isdisjoint(node.results):
            found.add(node)
            continue
        streams.update(value for value in node.operands if not _repeats(node, value))
    return found


def _repeats(node: Node, operand: Value) -> bool:
    """Whether an elementwise op repeats an operand along an axis."""
    size = node.results[0].type.num_elements
    return isinstance(node.op, Elementwise) and operand.type.num_elements < size


def _last_to_join(nodes: Sequence[Node], counted: Collection[Value], number: int) -> Node:
    """The last op that reads at least `number` of these values, or the last of all: behind it,
    fewer may be live than where all streams go on."""
    for node in reversed(nodes):
        if sum(value in counted for value in {*node.operands}) >= number:
            return node
    return nodes[-1]


class _Flow:
    """The largest flow, up to `most` units, from the ops that were passed to the last one that
    joins streams, through values that are as wide as one: as many units as there are values live at
    the narrowest place between (the theorem of max-flow and min-cut). What flows into an op may
    flow on from each that it reads from, for these must have been passed as well.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        activations: Collection[Value],
        free: Collection[Value],
        most: int,
    ) -> None:
        self.most = most
        self.passed: set[_Place] = set()
        self._at = {node: at for at, node in enumerate(nodes)}
        self._makers = {value: node for node in nodes for value in node.results}
        self._readers: dict[Value, dict[Node, None]] = {}
        """Per value that counts, the ops that read it and were not passed."""
        for node in nodes:
            for value in dict.fromkeys(node.operands):
                if value in activations and value not in free:
                    self._readers.setdefault(value, {})[node] = None
        self._last = _last_to_join(nodes, self._readers, most)
        self.live = [value for value in self._readers if value not in self._makers]
        """The values that come from outside, or from ops that were passed, and are still read, in
        the order in which they became live."""
        self.height: dict[Node, int] = {}
        """Per op, how many follow it at most, each reading what the one before makes."""
        for node in reversed(nodes):
            readers = (n for value in node.results for n in self._readers.get(value, ()))
            self.height[node] = max((self.height[n] + 1 for n in readers), default=0)
        self._units: Counter[tuple[_Place, _Place]] = Counter()
        self.width = 0
        """The units that flow: how many values are live at the narrowest place ahead. One more than
        `most` if there is no such place."""

    def pass_makers_of(self, values: Iterable[Value]) -> list[Node]:
        """Passes the ops that these values are made by, and all before them; returns these."""
        found: set[Node] = set()
        stack = [self._makers[value] for value in values if value in self._makers]
        while stack:
            node = stack.pop()
            if node not in found:
                found.add(node)
                stack += [self._makers[value] for value in node.operands if value in self._makers]
        return self._pass(found)

    def following(self) -> Iterator[Node]:
        """The ops that read live values, first those of what has been live for longest."""
        for value in self.live:
            yield from self._readers[value]

    def widens_with(self, node: Node) -> bool:
        """Whether nothing can be passed on the way behind an op unless one more value is live."""
        return next(self._search(node))[1]

    def keep(self, value: Value) -> Iterator[list[Node]]:
        """Has a value live that was live before the first op, if it need stay so; the ops, in
        groups, that are passed since it need not."""
        for places, is_way in self._search(value):
            if is_way:
                self._widen(places)
            else:
                yield self._pass(places)

    def pass_by(self, node: Node) -> Iterator[list[Node]]:
        """Passes an op, and as little more as leaves the fewest values live. The ops between all
        places on the way where as few are live; up to where more than `most` have to be."""
        while node not in self.passed and self.width <= self.most:
            for places, is_way in self._search(node):
                if is_way:
                    self._widen(places)
                else:
                    yield self._pass(places)

    def _widen(self, way: Sequence[_Place]) -> None:
        """Has one more unit flow this way, back where one came from there."""
        self.width += 1
        for place, following in pairwise(way):
            if self._units[following, place]:
                self._units[following, place] -= 1
            else:
                self._units[place, following] += 1

    def _pass(self, places: Collection[_Place]) -> list[Node]:
        self.passed.update(places)
        nodes = [place for place in places if isinstance(place, Node)]
        nodes.sort(key=self._at.__getitem__)
        for node in nodes:
            for value in node.operands:
                self._readers.get(value, {}).pop(node, None)
        made = (value for node in nodes for value in node.results)
        self.live = [value for value in (*self.live, *made) if self._readers.get(value)]
        return nodes

    def alone_from(self, node: Node) -> Iterator[Node]:
        """An op, and those behind it as long as each is the only one to read what the one before
        makes, and reads no other activation."""
        while True:
            yield node
            readers = {reader for value in node.results for reader in self._readers.get(value, ())}
            if len(readers) != 1:
                return
            (node,) = readers
            if sum(value in self._readers for value in dict.fromkeys(node.operands)) > 1:
                return

    def _search(self, start: _Place) -> Iterator[tuple[list[_Place], bool]]:
        """Places that a unit could flow to from here, from each of which it could come back, and
        from none of which it could flow to others that were not passed: behind them, as few values
        are live as anywhere ahead. The search goes on if they are passed. If the last op is found,
        the way there, and true.

        They are the strongly connected components, as Tarjan's algorithm finds them.
        """
        number: dict[_Place, int] = {}
        least: dict[_Place, int] = {}
        reached: list[_Place] = []
        path: list[tuple[_Place, int, Iterator[_Place]]] = []
        new: _Place | None = start
        while new is not None or path:
            if new is not None and new not in number:
                number[new] = least[new] = len(number)
                path.append((new, len(reached), self._following(new)))
                reached.append(new)
            elif new is not None:
                least[path[-1][0]] = min(least[path[-1][0]], number[new])
            else:
                place, at, _ = path.pop()
                if least[place] == number[place]:
                    yield reached[at:], False
                    del reached[at:]
                else:
                    before = path[-1][0]
                    least[before] = min(least[before], least[place])
            if path and path[-1][0] is self._last:
                yield [place for place, _, _ in path], True
                return
            new = next((p for p in path[-1][2] if p not in self.passed), None) if path else None

    def _following(self, place: _Place) -> Iterator[_Place]:
        """Where a unit may flow next: on, or back to where one came from, in its stead."""
        if isinstance(place, Value):
            yield from tuple(self._readers[place])
            if place in self._makers and self._units[self._makers[place], place]:
                yield self._makers[place]
            return
        for value in place.operands:
            if value in self._makers:
                yield self._makers[value]
            if self._units[value, place]:
                yield value
        for value in place.results:
            if value in self._readers and not self._units[place, value]:
                yield value
            for reader in tuple(self._readers.get(value, ())):
                if self._units[reader, place]:
                    yield reader


__all__ = ["made_late", "narrow_sections"]
