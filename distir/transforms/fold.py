"""Analyses a shortened function and copies the result to the whole one.

Ninety-six equal layers are analysed as three. `Fold.of` leaves out the copies of a repeat between
its first two and its last. `unfold` gives the omitted copies the boundaries and axes of the second:
fresh axes where each copy has an axis of its own, the same axis where all share one.

This finds what an analysis of the whole would find (docs/decisions/0016). The axes of the values
that cross from one copy into the next are a state, and equal copies turn it into the next state in
the same way. If two neighbouring copies come out alike, that state has not changed, and every
further copy comes out alike too. The neighbours that are compared are the second copy and the last.
If they differ, or if the last splits or unites axes found before it, the whole is analysed instead.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from distir.axes.model import Axes, Axis
from distir.ir.core import Node, Value
from distir.ir.function import Function
from distir.transforms.blocks import Roles
from distir.transforms.copies import AnalysedRepeat, WholeAxes
from distir.transforms.pieces import CopyPlace
from distir.transforms.repeats import FirstMentions, NodeRepeat, find_repeats


@dataclass(frozen=True, slots=True)
class Unfolded:
    """A function with its boundaries and axes, and the places of nodes in copies that are alike."""

    function: Function
    axes: Axes
    places: Mapping[Node, CopyPlace]


@dataclass(frozen=True, slots=True)
class Fold:
    """A function in canonical order (`whole`), and the same with its repeats shortened."""

    whole: Function
    short: Function
    repeats: tuple[NodeRepeat, ...]
    mentions: FirstMentions

    @classmethod
    def of(cls, function: Function) -> Fold | None:
        """The function with its repeats shortened; None if it has none."""
        mentions = FirstMentions(function)
        repeats = find_repeats(mentions)
        if not repeats:
            return None
        return cls(function, _shortened(function, repeats, mentions), repeats, mentions)

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
        """The whole function with its boundaries and axes, given the short function with its own.

        None if copies are not alike after all, or if each has its own in place of a `named` axis.
        """
        roles = Roles.of(function)
        repeats: list[AnalysedRepeat] = []
        for repeat in self.repeats:
            analysed = AnalysedRepeat.find(self.mentions, repeat, function, axes)
            if analysed is None or not analysed.are_alike(roles) or analysed.have_own(named):
                return None
            repeats.append(analysed)
        return self._unfolded(function, axes, repeats)

    def _unfolded(
        self, function: Function, axes: Axes, repeats: Iterable[AnalysedRepeat]
    ) -> Unfolded:
        found = WholeAxes.of(axes)
        nodes: list[Node] = []
        begin = 0
        for repeat in repeats:
            nodes += function.nodes[begin : repeat.last.start]
            nodes += repeat.unfold(found)
            begin = repeat.last.stop
        nodes += function.nodes[begin:]
        whole = replace(self.whole, nodes=tuple(nodes))
        made = (value for node in nodes for value in node.results)
        dims = {value: found.dims[value] for value in (*whole.sources(), *made)}
        whole_axes = Axes(dims, found.loops, found.kinds, found.ties, found.follows)
        return Unfolded(whole, whole_axes, found.places)


def _shortened(
    function: Function, repeats: Iterable[NodeRepeat], mentions: FirstMentions
) -> Function:
    """The function without the omitted nodes and the sources first mentioned there. Where the last
    copy of a repeat reads an omitted value, it reads the corresponding one of the second copy."""
    nodes: list[Node] = []
    omitted: set[Value] = set()
    begin = 0
    for repeat in repeats:
        gap = repeat.omitted
        nodes += function.nodes[begin : gap.start]
        omitted.update(v for node in function.nodes[gap.start : gap.stop] for v in node.results)
        omitted.update(v for v in mentions.read_by(gap) if mentions.node_of(v) in gap)
        for node in function.nodes[gap.stop : repeat.end]:
            operands = tuple(
                mentions.shifted(value, -len(gap)) if value in omitted else value
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
