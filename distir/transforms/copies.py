"""Copies of a piece of a function: whether those that were analysed are alike, and the others made
like them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from distir.axes.model import Axes, Axis, AxisDims
from distir.ir.core import Node, Value
from distir.ir.function import Function
from distir.ir.signature import Kind
from distir.transforms.blocks import Roles
from distir.transforms.cut import Place
from distir.transforms.repeats import Homes, Repeat


@dataclass(frozen=True, slots=True)
class Copies:
    """A repeat in a function of which its first two copies and its last are left, with boundaries
    among their nodes: where each of the three is."""

    homes: Homes
    repeat: Repeat
    function: Function
    axes: Axes
    first: range
    second: range
    last: range
    twin: dict[Value, Value] = field(default_factory=dict[Value, Value])
    """By value made in the second copy that has no home, the one that the last has in its place."""
    next: dict[Axis, Axis] = field(default_factory=dict[Axis, Axis])
    """By axis of the second copy, the one that the last has in its place."""

    @classmethod
    def find(cls, homes: Homes, repeat: Repeat, function: Function, axes: Axes) -> Copies | None:
        """Every copy ends with its last node: a boundary after that belongs to the next. None if
        the second and the last are not equally long."""
        start, period = repeat.start, repeat.period
        edges = (start, start + period - 1, start + 2 * period - 1, repeat.end - 1)
        wanted = [homes.function.nodes[index].results[0] for index in edges]
        at = {node.results[0]: position for position, node in enumerate(function.nodes)}
        begin, *ends = (at[value] for value in wanted)
        first, second, last = ends
        found = range(begin, first + 1), range(first + 1, second + 1), range(second + 1, last + 1)
        if len(found[1]) != len(found[2]):
            return None
        return cls(homes, repeat, function, axes, *found)

    def have_own(self, axes: Collection[Axis]) -> bool:
        """Whether not all copies share these axes."""
        return any(self.next.get(axis, axis) is not axis for axis in axes)

    # --- whether they are alike -------------------------------------------------------------------

    def are_alike(self, roles: Roles) -> bool:
        """Whether the second copy and the last are the same but for names of axes, and what has
        another name in each is met nowhere else."""
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
        """Whether two nodes are the same where everything of the second copy has its twin's name.
        Notes the names that are new."""
        if ours.op != theirs.op or len(ours.operands) != len(theirs.operands):
            return False
        for value, other in zip(ours.results, theirs.results, strict=True):
            if value not in self.homes.of:
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
        """What the last copy has to have in the place of a value that the second reads or makes."""
        if value in self.twin:
            return self.twin[value]
        index, repeat = self.homes.node_of(value), self.repeat
        if index is None or index < repeat.start:
            return value
        if index < repeat.start + repeat.period:
            return self.homes.shifted(value, repeat.period)
        return self.homes.shifted(value, repeat.end - repeat.start - 2 * repeat.period)

    def _rename(self, ours: AxisDims, theirs: AxisDims, previous: dict[Axis, Axis]) -> bool:
        """Whether the axes are the same, or have been or can be renamed so, one to one."""
        if [len(dim) for dim in ours] != [len(dim) for dim in theirs]:
            return False
        return all(
            self.next.setdefault(a, b) is b and previous.setdefault(b, a) is a
            for dim, other in zip(ours, theirs, strict=True)
            for a, b in zip(dim, other, strict=True)
        )

    def _keep_to_themselves(self) -> bool:
        """Whether axes that not all copies share are carried by copies alone: those that the second
        has from the first by both, the others by the second and the last."""
        own = {axis for axis, other in self.next.items() if other is not axis}
        inherited = {axis for axis in own if self.next[axis] in self.next}
        inside = {value for where in (self.second, self.last) for value in self._met(where)}
        before = set(self._met(self.first))
        for value, dims in self.axes.dims.items():
            if value in inside:
                continue
            allowed = inherited if value in before else ()
            if any(axis in own and axis not in allowed for dim in dims for axis in dim):
                return False
        return True

    def _met(self, where: range) -> Iterator[Value]:
        """What a copy makes, and the sources that it is the first to read."""
        nodes = self._nodes(where)
        homes = [self.homes.node_of(v) for node in nodes for v in node.results]
        indices = [index for index in homes if index is not None]
        met = range(min(indices), max(indices) + 1)
        for node in nodes:
            yield from node.results
            yield from (value for value in node.operands if self.homes.node_of(value) in met)

    def _relate_alike(self, related: Mapping[Axis, Axis]) -> bool:
        """Whether axes of the second copy and their twins are tied, or follow, alike."""
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

    # --- the others, made like them ---------------------------------------------------------------

    def unfold(self, known: Known) -> list[Node]:
        """The nodes that were left out, and those of the last copy, which read them. Adds the axes
        of all that to what is known."""
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
        known: Known,
    ) -> Node:
        """The node so many copies after one of the second copy; `made` are the results of the
        boundaries of its copy."""
        shift = copy * self.repeat.period
        if model.home is None:
            operands = tuple(self._later(value, shift, made) for value in model.node.operands)
            results = tuple(Value(value.type, value.name) for value in model.node.results)
            made.update(zip(model.node.results, results, strict=True))
            node = replace(model.node, operands=operands, results=results)
        else:
            node = self.homes.function.nodes[model.home + shift]
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
        """What is so many nodes after a value that the second copy reads."""
        if value in made:
            return made[value]
        index = self.homes.node_of(value)
        if index is None or index < self.repeat.start:
            return value
        return self.homes.shifted(value, shift)

    def _last(
        self, names: Mapping[Axis, Axis], made: Mapping[Value, Value], known: Known
    ) -> Iterator[Node]:
        """The nodes of the last copy, which follow the last that was left out, not the second."""
        renaming = _Renaming(names)
        second = range(self.repeat.start + self.repeat.period, self.repeat.omitted.start)
        for value in self._met(self.last):
            known.dims[value] = renaming.dims(known.dims[value])
        for axis in self.next.values():
            known.rename_related(axis, names)
        for node in self._nodes(self.last):
            operands = tuple(
                self.homes.shifted(value, len(self.repeat.omitted))
                if self.homes.node_of(value) in second
                else made.get(value, value)
                for value in node.operands
            )
            now = node if operands == node.operands else replace(node, operands=operands)
            known.loops[now] = renaming.dims(known.loops.pop(node))
            known.kinds[now] = renaming.kinds(known.kinds.pop(node))
            yield now


@dataclass(frozen=True, slots=True)
class _Model:
    """A node of the second copy, after which others are made: where it is in the whole, unless it
    is a boundary, the sources that it is the first to read, and axes."""

    node: Node
    home: int | None
    reads_boundary: bool
    sources: tuple[tuple[int, AxisDims], ...]
    results: tuple[AxisDims, ...]
    loops: AxisDims
    kinds: Mapping[Axis, Kind]

    @classmethod
    def of(cls, node: Node, copies: Copies) -> _Model:
        homes, axes = copies.homes, copies.axes
        home = homes.node_of(node.results[0])
        return cls(
            node,
            home,
            any(value not in homes.of for value in node.operands),
            tuple(
                (place, axes.dims[value])
                for place, value in enumerate(node.operands)
                if home is not None and homes.node_of(value) == home
            ),
            tuple(axes.dims[value] for value in node.results),
            axes.loops[node],
            axes.kinds[node],
        )


class _Renaming:
    """Renames the axes of one copy."""

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
class Known:
    """What is known of the whole so far: its axes, and the places of nodes in alike copies."""

    dims: dict[Value, AxisDims]
    loops: dict[Node, AxisDims]
    kinds: dict[Node, Mapping[Axis, Kind]]
    ties: dict[Axis, Axis]
    follows: dict[Axis, Axis]
    places: dict[Node, Place] = field(default_factory=dict[Node, Place])

    @classmethod
    def of(cls, axes: Axes) -> Known:
        """What was found in the short function."""
        return cls(
            dict(axes.dims),
            dict(axes.loops),
            dict(axes.kinds),
            dict(axes.ties),
            dict(axes.follows),
        )

    def add_places(self, nodes: Iterable[Node], copy: int, base: int) -> None:
        """Notes that these are the nodes of one copy, in order."""
        self.places.update((node, (place, copy)) for place, node in enumerate(nodes, base))

    def relate(self, made: Iterable[tuple[Axis, Axis]], names: Mapping[Axis, Axis]) -> None:
        """Ties axes of a copy like those after which they were made, and lets them follow alike."""
        for axis, copied in made:
            for related in (self.ties, self.follows):
                if axis in related:
                    related[copied] = names.get(related[axis], related[axis])

    def rename_related(self, axis: Axis, names: Mapping[Axis, Axis]) -> None:
        """Ties an axis of the last copy, and lets it follow, by the names that hold there."""
        for related in (self.ties, self.follows):
            if axis not in names and related.get(axis) in names:
                related[axis] = names[related[axis]]
