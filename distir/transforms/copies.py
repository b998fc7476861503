"""The copies of a repeat: checks that the analysed ones are alike, and makes others like them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from distir.axes.model import Axes, Axis, AxisDims
from distir.ir.core import Node, Value
from distir.ir.function import Function
from distir.ir.signature import Kind
from distir.transforms.blocks import Roles
from distir.transforms.pieces import CopyPlace
from distir.transforms.repeats import FirstMentions, NodeRepeat


@dataclass(frozen=True, slots=True)
class AnalysedRepeat:
    """A repeat whose first two copies and last were analysed.

    `function` has these three, with boundaries; `first`, `second` and `last` are the ranges of
    their nodes. `mentions` and `repeat` speak of the whole function, before it was shortened.
    """

    mentions: FirstMentions
    repeat: NodeRepeat
    function: Function
    axes: Axes
    first: range
    second: range
    last: range
    twin: dict[Value, Value] = field(default_factory=dict[Value, Value])
    """Per result of a boundary in the second copy, the value at its place in the last copy."""
    next: dict[Axis, Axis] = field(default_factory=dict[Axis, Axis])
    """Per axis of the second copy, the axis at its place in the last copy."""

    @classmethod
    def find(
        cls, mentions: FirstMentions, repeat: NodeRepeat, function: Function, axes: Axes
    ) -> AnalysedRepeat | None:
        """Finds the three copies in the shortened function with boundaries. A boundary behind the
        last node of a copy belongs to the next copy. None if the second and the last copy have
        different numbers of nodes."""
        start, period = repeat.start, repeat.period
        edges = (start, start + period - 1, start + 2 * period - 1, repeat.end - 1)
        wanted = [mentions.function.nodes[index].results[0] for index in edges]
        at = {node.results[0]: position for position, node in enumerate(function.nodes)}
        begin, *ends = (at[value] for value in wanted)
        first, second, last = ends
        found = range(begin, first + 1), range(first + 1, second + 1), range(second + 1, last + 1)
        if len(found[1]) != len(found[2]):
            return None
        return cls(mentions, repeat, function, axes, *found)

    def have_own(self, axes: Collection[Axis]) -> bool:
        """Whether each copy has an axis of its own in the place of one of these."""
        return any(self.next.get(axis, axis) is not axis for axis in axes)

    # --- comparing the second copy with the last --------------------------------------------------

    def are_alike(self, roles: Roles) -> bool:
        """Whether the second copy and the last differ by a renaming of axes alone, and the axes
        that are renamed occur only in copies."""
        seen: set[Value] = set()
        previous: dict[Axis, Axis] = {}
        pairs = zip(self._nodes(self.second), self._nodes(self.last), strict=True)
        return (
            all(self._are_twins(ours, theirs, roles, seen, previous) for ours, theirs in pairs)
            and self._keep_to_themselves()
            and self._relate_alike(self.axes.ties)
            and self._relate_alike(self.axes.follows)
        )

    def _nodes(self, where: range) -> tuple[Node, ...]:
        return self.function.nodes[where.start : where.stop]

    def _are_twins(
        self,
        ours: Node,
        theirs: Node,
        roles: Roles,
        seen: set[Value],
        previous: dict[Axis, Axis],
    ) -> bool:
        """Whether a node of the second copy becomes a node of the last if values and axes are
        renamed. Adds to the renaming (`twin`, `next`) what these nodes mention first."""
        if ours.op != theirs.op or len(ours.operands) != len(theirs.operands):
            return False
        for value, other in zip(ours.results, theirs.results, strict=True):
            if value not in self.mentions.position:
                self.twin[value] = other
        for value, other in zip(
            (*ours.operands, *ours.results), (*theirs.operands, *theirs.results), strict=True
        ):
            if self._twin(value) is not other:
                return False
            if value in seen:
                continue
            seen.add(value)
            if any((value in role) != (other in role) for role in (roles.free, roles.weights)):
                return False
            if not self._rename(self.axes.dims[value], self.axes.dims[other], previous):
                return False
        if not self._rename(self.axes.loops[ours], self.axes.loops[theirs], previous):
            return False
        kinds = self.axes.kinds[ours].items()
        return [(self.next[a], kind) for a, kind in kinds] == [*self.axes.kinds[theirs].items()]

    def _twin(self, value: Value) -> Value:
        """The value that the last copy must have in the place of one that the second mentions."""
        if value in self.twin:
            return self.twin[value]
        index, repeat = self.mentions.node_of(value), self.repeat
        if index is None or index < repeat.start:
            return value
        if index < repeat.start + repeat.period:
            return self.mentions.shifted(value, repeat.period)
        return self.mentions.shifted(value, repeat.end - repeat.start - 2 * repeat.period)

    def _rename(self, ours: AxisDims, theirs: AxisDims, previous: dict[Axis, Axis]) -> bool:
        """Whether a one-to-one renaming of axes that agrees with the one so far turns `ours` into
        `theirs`. Adds it to `next`, and its inverse to `previous`."""
        if [len(dim) for dim in ours] != [len(dim) for dim in theirs]:
            return False
        return all(
            self.next.setdefault(a, b) is b and previous.setdefault(b, a) is a
            for dim, other in zip(ours, theirs, strict=True)
            for a, b in zip(dim, other, strict=True)
        )

    def _keep_to_themselves(self) -> bool:
        """Whether axes that are renamed occur in copies alone: those that the second copy takes
        over from the first in the first three, the others in the second and the last."""
        own = {axis for axis, other in self.next.items() if other is not axis}
        inherited = {axis for axis in own if self.next[axis] in self.next}
        inside = {value for where in (self.second, self.last) for value in self._mentioned(where)}
        before = set(self._mentioned(self.first))
        for value, dims in self.axes.dims.items():
            if value in inside:
                continue
            allowed = inherited if value in before else ()
            if any(axis in own and axis not in allowed for dim in dims for axis in dim):
                return False
        return True

    def _mentioned(self, where: range) -> Iterator[Value]:
        """The values that a copy is the first to mention: its results, and sources it reads."""
        nodes = self._nodes(where)
        found = [self.mentions.node_of(v) for node in nodes for v in node.results]
        indices = [index for index in found if index is not None]
        own = range(min(indices), max(indices) + 1)
        for node in nodes:
            yield from node.results
            yield from (value for value in node.operands if self.mentions.node_of(value) in own)

    def _relate_alike(self, related: Mapping[Axis, Axis]) -> bool:
        """Whether `related` (ties, or followers) holds for the axes of the last copy as it does for
        those of the second."""
        twins = {*self.next, *self.next.values()}
        own = {axis for axis, other in self.next.items() if other is not axis}
        if any(other in own and axis not in twins for axis, other in related.items()):
            return False
        for axis, twin in self.next.items():
            other = related.get(axis)
            expected = None if other is None else self.next.get(other, other)
            if related.get(twin) is not expected:
                return False
        return True

    # --- making the omitted copies ----------------------------------------------------------------

    def unfold(self, known: WholeAxes) -> list[Node]:
        """The nodes of the omitted copies and of the last copy, which now reads from them. Adds
        their axes to `known`."""
        own = [axis for axis, other in self.next.items() if other is not axis]
        models = [_Model.of(node, self) for node in self._nodes(self.second)]
        known.add_places((model.node for model in models), 0, base := len(known.places))
        names = {axis: axis for axis in own}
        made: dict[Value, Value] = {}
        nodes: list[Node] = []
        for copy in range(1, self.repeat.copies - 2):
            fresh = [axis for axis in own if self.next[axis] not in self.next]
            handed = {axis: names[self.next[axis]] for axis in own if self.next[axis] in self.next}
            names = handed | {axis: Axis(axis.size, axis.label) for axis in fresh}
            known.relate(((axis, names[axis]) for axis in fresh), names)
            renaming, made = _Renaming(names), {}
            copied = [self._copied(model, copy, renaming, made, known) for model in models]
            known.add_places(copied, copy, base)
            nodes += copied
        return [*nodes, *self._last(names, made, known)]

    def _copied(
        self,
        model: _Model,
        copy: int,
        renaming: _Renaming,
        made: dict[Value, Value],
        known: WholeAxes,
    ) -> Node:
        """The node of a later copy that corresponds to one of the second. `copy` counts from the
        second copy; `made` maps results of boundaries there to those of the later copy."""
        shift = copy * self.repeat.period
        if model.index is None:
            operands = tuple(self._later(value, shift, made) for value in model.node.operands)
            results = tuple(Value(value.type, value.name) for value in model.node.results)
            made.update(zip(model.node.results, results, strict=True))
            node = replace(model.node, operands=operands, results=results)
        else:
            node = self.mentions.function.nodes[model.index + shift]
            if model.reads_boundary:
                operands = (self._later(value, shift, made) for value in model.node.operands)
                node = replace(node, operands=tuple(operands))
        for place, dims in model.sources:
            known.dims[node.operands[place]] = renaming.dims(dims)
        for value, dims in zip(node.results, model.results, strict=True):
            known.dims[value] = renaming.dims(dims)
        known.loops[node] = renaming.dims(model.loops)
        known.kinds[node] = renaming.kinds(model.kinds)
        return node

    def _later(self, value: Value, shift: int, made: Mapping[Value, Value]) -> Value:
        """The value that corresponds, `shift` nodes later, to one that the second copy reads."""
        if value in made:
            return made[value]
        index = self.mentions.node_of(value)
        if index is None or index < self.repeat.start:
            return value
        return self.mentions.shifted(value, shift)

    def _last(
        self, names: Mapping[Axis, Axis], made: Mapping[Value, Value], known: WholeAxes
    ) -> Iterator[Node]:
        """The nodes of the last copy, reading from the last omitted copy instead of the second."""
        renaming = _Renaming(names)
        second = range(self.repeat.start + self.repeat.period, self.repeat.omitted.start)
        for value in self._mentioned(self.last):
            known.dims[value] = renaming.dims(known.dims[value])
        for axis in self.next.values():
            known.rename_related(axis, names)
        for node in self._nodes(self.last):
            operands = tuple(
                self.mentions.shifted(value, len(self.repeat.omitted))
                if self.mentions.node_of(value) in second
                else made.get(value, value)
                for value in node.operands
            )
            now = node if operands == node.operands else replace(node, operands=operands)
            known.loops[now] = renaming.dims(known.loops.pop(node))
            known.kinds[now] = renaming.kinds(known.kinds.pop(node))
            yield now


@dataclass(frozen=True, slots=True)
class _Model:
    """A node of the second copy, from which nodes of other copies are made."""

    node: Node
    index: int | None
    """Its index in the whole function; None for a boundary."""
    reads_boundary: bool
    sources: tuple[tuple[int, AxisDims], ...]
    """Places and dims of the operands that are sources first mentioned here."""
    results: tuple[AxisDims, ...]
    loops: AxisDims
    kinds: Mapping[Axis, Kind]

    @classmethod
    def of(cls, node: Node, repeat: AnalysedRepeat) -> _Model:
        mentions, axes = repeat.mentions, repeat.axes
        index = mentions.node_of(node.results[0])
        return cls(
            node,
            index,
            any(value not in mentions.position for value in node.operands),
            tuple(
                (place, axes.dims[value])
                for place, value in enumerate(node.operands)
                if index is not None and mentions.node_of(value) == index
            ),
            tuple(axes.dims[value] for value in node.results),
            axes.loops[node],
            axes.kinds[node],
        )


class _Renaming:
    """Renames axes of the second copy to those of another copy."""

    def __init__(self, names: Mapping[Axis, Axis]) -> None:
        self._names = names
        self._dims: dict[AxisDims, AxisDims] = {}

    def dims(self, dims: AxisDims) -> AxisDims:
        found = self._dims.get(dims)
        if found is None:
            names = self._names
            found = tuple([tuple([names.get(axis, axis) for axis in dim]) for dim in dims])
            self._dims[dims] = found
        return found

    def kinds(self, kinds: Mapping[Axis, Kind]) -> Mapping[Axis, Kind]:
        names = self._names
        return {names.get(axis, axis): kind for axis, kind in kinds.items()}


@dataclass(frozen=True, slots=True)
class WholeAxes:
    """The axes of the whole function as far as they are known, and the places of nodes in copies
    that are alike."""

    dims: dict[Value, AxisDims]
    loops: dict[Node, AxisDims]
    kinds: dict[Node, Mapping[Axis, Kind]]
    ties: dict[Axis, Axis]
    follows: dict[Axis, Axis]
    places: dict[Node, CopyPlace] = field(default_factory=dict[Node, CopyPlace])

    @classmethod
    def of(cls, axes: Axes) -> WholeAxes:
        """The axes of the short function, as a start."""
        return cls(
            dict(axes.dims),
            dict(axes.loops),
            dict(axes.kinds),
            dict(axes.ties),
            dict(axes.follows),
        )

    def add_places(self, nodes: Iterable[Node], copy: int, base: int) -> None:
        """Adds the nodes of one copy, in order; `base` is the number of places already given."""
        self.places.update((node, (place, copy)) for place, node in enumerate(nodes, base))

    def relate(self, made: Iterable[tuple[Axis, Axis]], names: Mapping[Axis, Axis]) -> None:
        """Gives new axes the ties and leaders of the axes that they are copies of: `made` has pairs
        (axis of the second copy, new axis), `names` the axes of the new copy."""
        for axis, copied in made:
            for related in (self.ties, self.follows):
                if axis in related:
                    related[copied] = names.get(related[axis], related[axis])

    def rename_related(self, axis: Axis, names: Mapping[Axis, Axis]) -> None:
        """Renames what an axis of the last copy is tied to, or follows, if that was an axis of the
        second copy."""
        for related in (self.ties, self.follows):
            if axis not in names and related.get(axis) in names:
                related[axis] = names[related[axis]]
