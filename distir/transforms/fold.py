"""Analyses the short, copies to the long.

Ninety-six equal layers are analysed as three: `Fold.of` leaves out what lies between the first two
copies of a repeat and its last, and `unfold` gives what was left out the boundaries and axes of
the second copy: fresh axes where the copies have axes of their own, the same where all share one.

Why what is copied is what an analysis of the whole finds (docs/decisions/0016): what the copies
before say about the values that cross into the next is a state, and every copy makes the next
state from it in the same way, since copies are equal. If two neighbours come out alike, the state
that went into the first has come out again, so every further copy comes out alike. The neighbours
that are compared are the second copy and the last; if they differ in anything, or the last says
something new of axes from before it, nothing is copied and the whole is analysed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from distir.axes.model import Axes, Axis
from distir.ir.core import Node, Value
from distir.ir.function import Function
from distir.transforms.blocks import Roles
from distir.transforms.copies import Copies, Known
from distir.transforms.cut import Place
from distir.transforms.repeats import Homes, Repeat, find_repeats


@dataclass(frozen=True, slots=True)
class Unfolded:
    """A function with its boundaries, its axes, and the places of its nodes in alike copies."""

    function: Function
    axes: Axes
    places: Mapping[Node, Place]


@dataclass(frozen=True, slots=True)
class Fold:
    """A function in canonical order, and what is left of it if its repeats are shortened."""

    whole: Function
    short: Function
    repeats: tuple[Repeat, ...]
    homes: Homes

    @classmethod
    def of(cls, function: Function) -> Fold | None:
        """The function with its repeats shortened; None if it has none."""
        homes = Homes(function)
        repeats = find_repeats(homes)
        if not repeats:
            return None
        return cls(function, _shortened(function, repeats, homes), repeats, homes)

    @property
    def last_copies(self) -> Mapping[Value, Value]:
        """The last copy of each repeat, from the first result of its first node to that of its last
        node. As it comes after an equal copy, it must not split or unite axes found before it."""
        nodes = self.whole.nodes
        return {
            nodes[repeat.omitted.stop].results[0]: nodes[repeat.end - 1].results[0]
            for repeat in self.repeats
        }

    def unfold(self, function: Function, axes: Axes, named: Collection[Axis]) -> Unfolded | None:
        """The whole, given the short function with its boundaries, and its axes. None if copies
        are not alike after all, or do not share one of the `named` axes."""
        roles = Roles.of(function)
        repeats: list[Copies] = []
        for repeat in self.repeats:
            copies = Copies.find(self.homes, repeat, function, axes)
            if copies is None or not copies.are_alike(roles) or copies.have_own(named):
                return None
            repeats.append(copies)
        return self._unfolded(function, axes, repeats)

    def _unfolded(self, function: Function, axes: Axes, repeats: Iterable[Copies]) -> Unfolded:
        known = Known.of(axes)
        nodes: list[Node] = []
        begin = 0
        for copies in repeats:
            nodes += function.nodes[begin : copies.last.start]
            nodes += copies.unfold(known)
            begin = copies.last.stop
        nodes += function.nodes[begin:]
        whole = replace(self.whole, nodes=tuple(nodes))
        made = (value for node in nodes for value in node.results)
        dims = {value: known.dims[value] for value in (*whole.sources(), *made)}
        found = Axes(dims, known.loops, known.kinds, known.ties, known.follows)
        return Unfolded(whole, found, known.places)


def _shortened(function: Function, repeats: Iterable[Repeat], homes: Homes) -> Function:
    """Without the omitted nodes and the sources that they are the first to read; what the last copy
    reads of them is what corresponds to it in the second."""
    nodes: list[Node] = []
    omitted: set[Value] = set()
    begin = 0
    for repeat in repeats:
        gap = repeat.omitted
        nodes += function.nodes[begin : gap.start]
        omitted.update(v for node in function.nodes[gap.start : gap.stop] for v in node.results)
        omitted.update(v for v in homes.read_by(gap) if homes.node_of(v) in gap)
        for node in function.nodes[gap.stop : repeat.end]:
            operands = tuple(
                homes.shifted(value, -len(gap)) if value in omitted else value
                for value in node.operands
            )
            nodes.append(node if operands == node.operands else replace(node, operands=operands))
        begin = repeat.end
    nodes += function.nodes[begin:]
    return replace(
        function,
        inputs=tuple(value for value in function.inputs if value not in omitted),
        parameters=tuple(value for value in function.parameters if value not in omitted),
        constants={v: array for v, array in function.constants.items() if v not in omitted},
        nodes=tuple(nodes),
        outputs=tuple(value for value in function.outputs if value not in omitted),
    )
