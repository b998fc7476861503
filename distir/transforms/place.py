"""The placement rule: makes one SPMD program from a list of logical axes per mesh axis.

1. Along each mesh axis, in mesh order, an op is split over the first listed axis of its iteration
   space that it does not need whole.
2. A value keeps the layout in which it was produced. A reader that needs another layout slices,
   gathers or exchanges the value, once for all such readers.
3. Summing over a split axis leaves a pending sum. It stays pending through linear ops that are its
   only reader; the first other reader has it added up straight into the layout that it needs.

Where an entry of a list says so (`ring`), operands that an op needs whole stay split and travel
round the devices, if the op can be computed part by part; and a boundary passes the split on
instead of gathering.

The program computes the same for any lists; the lists decide only what it costs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from distir.axes.model import Axes, Axis
from distir.ir.core import Node, Op, Value
from distir.ir.signature import Kind
from distir.ops.arithmetic import Add, Sum
from distir.transforms.circulate import circulation
from distir.transforms.moves import (
    Layout,
    Local,
    Move,
    Pending,
    PlacedMove,
    Spot,
    may_spread,
    move,
    pending_along,
)


@dataclass(frozen=True, slots=True)
class AxisListEntry:
    """One entry of a mesh axis's list. `everywhere` is the `*` of `axis*`: the entry counts only
    where all activation operands and all results of an op carry the axis. `ring` is the `~` of
    `axis~`: operands of an op that is split over the axis travel round the devices instead of being
    gathered, where the op allows it."""

    axis: Axis
    everywhere: bool = False
    ring: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Mesh:
    """The mesh axes of a stage's devices, outermost first, each with its ordered axis list.
    Compared by identity.

    Lists name representatives; `group` maps every axis to its representative. `users` names the
    degree of the strategy that each mesh axis belongs to (by default the one of the same name), as
    one degree may be several mesh axes. ZeRO shards along the mesh axes in `sharding`. The axes in
    `padded` (representatives) are made longer so that they divide.
    """

    names: tuple[str, ...]
    lists: tuple[tuple[AxisListEntry, ...], ...]
    group: Mapping[Axis, Axis]
    users: tuple[str, ...] = ()
    sharding: frozenset[str] = frozenset()
    padded: frozenset[Axis] = frozenset()

    def __post_init__(self) -> None:
        assert len(self.names) == len(self.lists)
        if not self.users:
            object.__setattr__(self, "users", self.names)

    @property
    def whole(self) -> Layout:
        """The layout of a value that is the same on every device."""
        return (None,) * len(self.names)


@dataclass(frozen=True, slots=True, eq=False)
class PlacedOp:
    """An op on shards; it computes a part of the undistributed `node`. Its operands travel round
    the devices along the mesh axes `ring` (indices, ascending)."""

    op: Op
    node: Node
    operands: tuple[Local, ...]
    results: tuple[Local, ...]
    ring: tuple[int, ...] = ()


Placed = PlacedOp | PlacedMove


@dataclass(slots=True)
class Placement:
    """A placement in progress: the steps so far, and where values can be had.

    A phase is a forward or a backward pass. `home` has the layout in which each value was produced,
    `copies` the other layouts in which it was made during this phase. Sources (parameters and free
    values) can be had in any layout; `demanded` collects those that readers ask for.
    """

    mesh: Mesh
    axes: Axes
    sources: Collection[Value]
    steps: list[Placed] = field(default_factory=list[Placed])
    home: dict[Value, Local] = field(default_factory=dict[Value, Local])
    demanded: dict[tuple[Value, Layout], Local] = field(
        default_factory=dict[tuple[Value, Layout], Local]
    )
    copies: dict[tuple[Value, Layout], Local] = field(
        default_factory=dict[tuple[Value, Layout], Local]
    )
    use_counts: dict[Value, int] = field(default_factory=dict[Value, int])
    named: dict[Node, Mapping[Axis, Axis]] = field(
        default_factory=dict[Node, "Mapping[Axis, Axis]"]
    )
    """Per op the axes that it may be split over, by the axes by which lists name them: the same for
    all lists."""
    totals: dict[Value, Value] = field(default_factory=dict[Value, Value])
    """Sums of some operands of an n-ary sum, mapped to the whole sum, whose type and axes they
    have."""

    def axes_of(self, value: Value) -> frozenset[Axis]:
        """The axes that a value of the program, or one of `totals`, carries."""
        return self.axes.of(self.totals.get(value, value))

    def arrive(self, value: Value, layout: Layout) -> Local:
        """Declares a value that comes from outside in a given layout."""
        local = Local(value, layout)
        self.home[value] = local
        return local

    def next_phase(self, keep_gathered: bool = False) -> list[Placed]:
        """Ends a phase and returns its steps. Copies are dropped, except those that an exchange
        made, which are no larger than the original, and, with `keep_gathered`, gathered ones."""
        steps, self.steps = self.steps, []
        lasting = {Move.EXCHANGE, Move.GATHER} if keep_gathered else {Move.EXCHANGE}
        kept = {
            step.result for step in steps if isinstance(step, PlacedMove) and step.move in lasting
        }
        self.copies = {key: local for key, local in self.copies.items() if local in kept}
        return steps

    def branch(self) -> Placement:
        """A copy of this placement, to go on from here in another way."""
        return replace(
            self,
            steps=list(self.steps),
            home=dict(self.home),
            demanded=dict(self.demanded),
            copies=dict(self.copies),
            use_counts=dict(self.use_counts),
            totals=dict(self.totals),
        )

    def place(self, node: Node) -> None:
        """Adds the steps that compute one node."""
        op, operands = node.op, list(node.operands)
        if isinstance(op, (Sum, Add)):
            operands = self._add_pending(node, operands)
            if len(operands) == 1:
                self.home[node.result] = self._renamed(operands[0], node.result)
                return
            if isinstance(op, Add) and tuple(operands) != node.operands:
                op = Sum()
        kinds = self.axes.kinds[node]
        indices = range(len(self.mesh.names))
        homes = [self.home[value] for value in operands if value in self.home]
        if any([Pending.SUM in home.layout for home in homes]):
            spots = [self._choose(node, operands, index, kinds) for index in indices]
        else:
            spots = [self._listed(node, operands, index, kinds) for index in indices]
        travels = circulation(node, operands, spots, self.home, self.axes, self._rings)
        locals_ = tuple(
            self.require(value, travels.operand(i, self._operand_layout(value, spots)))
            for i, value in enumerate(operands)
        )
        results = tuple(
            Local(value, travels.result(i, self._result_layout(value, spots, kinds)))
            for i, value in enumerate(node.results)
        )
        self.steps.append(PlacedOp(op, node, locals_, results, tuple(travels.columns)))
        self.home.update(zip(node.results, results, strict=True))

    # --- the rule of the op ---------------------------------------------------------------------

    def _choose(
        self, node: Node, operands: Sequence[Value], index: int, kinds: Mapping[Axis, Kind]
    ) -> Spot:
        """What an op is split over along a mesh axis, or `Pending.SUM` if the sums that its
        operands are stay pending through it."""
        listed = self._listed(node, operands, index, kinds)
        pending = self._linear_in_pending(node, operands, index)
        if not pending or self._scatters_first(node, operands, index, pending, kinds):
            return listed
        return Pending.SUM

    def _listed(
        self, node: Node, operands: Sequence[Value], index: int, kinds: Mapping[Axis, Kind]
    ) -> Axis | None:
        """The first listed axis in the op's iteration space that it does not need whole."""
        by_group = self.named.get(node)
        if by_group is None:
            by_group = {self._representative(axis): axis for axis in reversed(list(kinds))}
            by_group = {by: axis for by, axis in by_group.items() if kinds[axis] is not Kind.WHOLE}
            self.named[node] = by_group
        for entry in self.mesh.lists[index]:
            axis = by_group.get(entry.axis)
            if axis is None:
                continue
            if entry.everywhere and not self._everywhere(node, operands, axis):
                continue
            return axis
        return None

    def _representative(self, axis: Axis) -> Axis:
        """The axis by which lists name this one. An axis that follows another is split wherever
        its leader is, so that it is named by its leader."""
        leader = self.axes.leader(axis)
        return self.mesh.group.get(leader, leader)

    def _rings(self, index: int, axis: Axis) -> bool:
        """Whether the list of a mesh axis marks this axis with `~`."""
        wanted = self._representative(axis)
        return any(entry.ring and entry.axis is wanted for entry in self.mesh.lists[index])

    def _along(self, value: Value, axis: Axis) -> Axis | None:
        """The axis over which a value is split in an op that is split over `axis`."""
        return self.axes.along(self.totals.get(value, value), axis)

    def _everywhere(self, node: Node, operands: Sequence[Value], axis: Axis) -> bool:
        moving = [value for value in operands if value not in self.sources]
        return all(self._along(value, axis) is not None for value in (*moving, *node.results))

    def _linear_in_pending(self, node: Node, operands: Sequence[Value], index: int) -> list[Value]:
        """The operands in which the op is jointly linear, if all of them are pending sums along a
        mesh axis that nobody else reads; otherwise none. Then the result may be pending too."""
        homes = [self.home.get(value) for value in operands]
        if not any(home is not None and home.layout[index] is Pending.SUM for home in homes):
            return []
        if tuple(operands) == node.operands:
            positions = node.op.linear_operands(node.operand_types)
        else:
            positions = tuple(range(len(operands)))
        linear = [operands[i] for i in positions]
        all_pending = all(
            value in self.home
            and self.home[value].layout[index] is Pending.SUM
            and self.use_counts.get(value, 0) == 1
            for value in linear
        )
        return linear if all_pending else []

    def _scatters_first(
        self,
        node: Node,
        operands: Sequence[Value],
        index: int,
        pending: Sequence[Value],
        kinds: Mapping[Axis, Kind],
    ) -> bool:
        """Whether pending operands are reduce-scattered before the op instead of after it: if the
        op is split along this mesh axis, and they must be exchanged along another one. They would
        be larger by this mesh axis's degree if they were exchanged while still pending."""
        goal = self._listed(node, operands, index, kinds)
        if goal is None or any(self._along(value, goal) is None for value in pending):
            return False
        for other in range(len(self.mesh.names)):
            spot = self._listed(node, operands, other, kinds)
            for value in pending:
                here = self.home[value].layout[other]
                there = None if spot is None else self._along(value, spot)
                if isinstance(here, Axis) and there is not None and here is not there:
                    return True
        return False

    def _operand_layout(self, value: Value, spots: Sequence[Spot]) -> Layout:
        """The layout in which an op that is split like `spots` reads an operand."""
        layout: list[Spot] = []
        for index, spot in enumerate(spots):
            if isinstance(spot, Axis):
                layout.append(self._along(value, spot))
            elif spot is Pending.SUM and value in self.home:
                # The op is linear in its pending operands; others must be whole.
                own = self.home[value].layout[index]
                layout.append(Pending.SUM if own is Pending.SUM else None)
            else:
                layout.append(None)
        return tuple(layout)

    def _result_layout(
        self, value: Value, spots: Sequence[Spot], kinds: Mapping[Axis, Kind]
    ) -> Layout:
        """The layout in which an op that is split like `spots` makes a result."""
        layout: list[Spot] = []
        for spot in spots:
            along = self._along(value, spot) if isinstance(spot, Axis) else spot
            if isinstance(spot, Axis) and along is None:
                along = Pending.MAX if kinds[spot] is Kind.MAX else Pending.SUM
            layout.append(along)
        return tuple(layout)

    def _add_pending(self, node: Node, operands: list[Value]) -> list[Value]:
        """Adds the operands of a sum that are pending sums in one layout before they are
        communicated, so that one collective serves all. An operand that is pending along fewer mesh
        axes is spread into that layout first. Returns the operands that are left to add."""
        pending = [
            value
            for value in dict.fromkeys(operands)
            if value in self.home
            and pending_along(self.home[value].layout)
            and self.use_counts.get(value, 0) == 1
            and operands.count(value) == 1
            and value.type == node.result.type
        ]
        pending.sort(key=lambda value: -len(pending_along(self.home[value].layout)))
        groups: dict[Layout, list[Value]] = {}
        for value in pending:
            layout = self.home[value].layout
            goal = next((goal for goal in groups if may_spread(layout, goal)), layout)
            self._spread(value, goal)
            groups.setdefault(goal, []).append(value)
        merged: dict[Value, Value] = {}
        for layout, values in groups.items():
            if len(values) < 2:
                continue
            total = Value(node.result.type, node.result.name)
            local = Local(node.result, layout)
            self.totals[total] = node.result
            self.steps.append(
                PlacedOp(Sum(), node, tuple(self.home[value] for value in values), (local,))
            )
            self.home[total] = local
            self.use_counts[total] = 1
            merged[values[0]] = total
            for value in values[1:]:
                operands.remove(value)
        return [merged.get(value, value) for value in operands]

    def _spread(self, value: Value, goal: Layout) -> None:
        """Makes a value a pending sum along further mesh axes, the innermost first."""
        here = self.home[value]
        for index in reversed(range(len(goal))):
            spot = here.layout[index]
            if spot is not goal[index]:
                layout = (*here.layout[:index], goal[index], *here.layout[index + 1 :])
                there = Local(value, layout)
                source = spot if isinstance(spot, Axis) else None
                self.steps.append(PlacedMove(Move.SPREAD, (index,), here, there, source))
                here = there
        self.home[value] = here

    def _renamed(self, value: Value, result: Value) -> Local:
        """Lets the last step, which made `value`, make `result` instead."""
        local = Local(result, self.home[value].layout)
        last = self.steps[-1]
        assert isinstance(last, PlacedOp)
        assert last.results == (self.home[value],)
        self.steps[-1] = PlacedOp(last.op, last.node, last.operands, (local,))
        return local

    # --- changes of layout ----------------------------------------------------------------------

    def require(self, value: Value, layout: Layout) -> Local:
        """The value in this layout: as it was made, or a copy from this phase, or a new one."""
        home = self.home.get(value)
        if home is None:
            key = (value, layout)
            if key not in self.demanded:
                self.demanded[key] = Local(value, layout)
            return self.demanded[key]
        if home.layout == layout:
            return home
        key = (value, layout)
        if key not in self.copies:
            steps, copy = move(self._nearest(home, layout), layout)
            self.steps.extend(steps)
            for step in steps:
                if step.move in (Move.EXCHANGE, Move.GATHER):
                    self.copies[value, step.result.layout] = step.result
            self.copies[key] = copy
            if any(isinstance(spot, Pending) for spot in home.layout):
                # A pending sum is added up once, for all later readers.
                self.home[value] = copy
        return self.copies[key]

    def _nearest(self, home: Local, layout: Layout) -> Local:
        """The value as it was made, or the copy from which the fewest steps lead to a layout."""
        copies = [local for (value, _), local in self.copies.items() if value is home.value]
        if not copies:
            return home
        return min((home, *copies), key=lambda local: len(move(local, layout)[0]))

    def settle(self, value: Value, keep: Iterable[int] = ()) -> Local:
        """The value with its pending sums added up, except along the mesh axes in `keep`, in the
        layout in which an elementwise op would read it."""
        if value not in self.home:
            return self.require(value, self.mesh.whole)
        home = self.home[value]
        carried = self.axes_of(value)
        spots: list[Spot] = []
        for index, spot in enumerate(home.layout):
            if isinstance(spot, Pending) and index not in keep:
                spot = self._first_listed(index, carried)
            spots.append(spot)
        return self.require(value, tuple(spots))

    def _first_listed(self, index: int, carried: Collection[Axis]) -> Axis | None:
        """The first axis in the list of a mesh axis among those that a value carries."""
        by_group = {self._representative(axis): axis for axis in carried}
        for entry in self.mesh.lists[index]:
            if entry.axis in by_group:
                return by_group[entry.axis]
        return None
