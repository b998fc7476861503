"""The placement rule: one SPMD program from lists of logical axes per mesh axis.

1. An op is split, per mesh axis in mesh order, over the first listed axis of its iteration space
   that it does not need whole.
2. A value stays where it was produced; a reader that needs it otherwise slices, gathers or
   exchanges it, once.
3. A summed split axis leaves a pending sum, which travels through single-use linear ops and is
   settled straight into the placement of its first other reader.

The result is right for any lists; the lists decide only the cost.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from distir.axes.model import Axes, Axis
from distir.ir.core import Node, Op, Value
from distir.ir.signature import Kind
from distir.ops.elementwise import Add, Sum


class Pending(Enum):
    """Along a mesh axis every device holds a part of a reduction that is still to be settled."""

    SUM = "sum"
    MAX = "max"


Spot = Axis | Pending | None
"""Along one mesh axis: split over a logical axis, pending, or the same on every device."""

Layout = tuple[Spot, ...]
"""Where a value rests: one spot per mesh axis."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a mesh axis's list. `everywhere` is the `*` of `axis*`: the entry counts only
    where all activation operands and all results of an op carry the axis."""

    axis: Axis
    everywhere: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Mesh:
    """The device grid inside a stage: names, outermost first, and per name the ordered list of
    axes. Lists speak of representatives: `group` maps every axis to the one it is tied to.
    Compared by identity."""

    names: tuple[str, ...]
    lists: tuple[tuple[Entry, ...], ...]
    group: Mapping[Axis, Axis]

    def __post_init__(self) -> None:
        assert len(self.names) == len(self.lists)

    @property
    def whole(self) -> Layout:
        """The layout of a value that is the same on every device."""
        return (None,) * len(self.names)


class Move(Enum):
    """How a value gets from one layout to another, along one mesh axis."""

    SLICE = "slice"
    GATHER = "gather"
    EXCHANGE = "exchange"
    ALL_REDUCE = "all-reduce"
    REDUCE_SCATTER = "reduce-scatter"


@dataclass(frozen=True, slots=True, eq=False)
class Local:
    """One device's shard of a value, in a layout. Compared by identity."""

    value: Value
    layout: Layout


@dataclass(frozen=True, slots=True, eq=False)
class PlacedOp:
    """An op on shards. `node` is the undistributed node that it computes a part of."""

    op: Op
    node: Node
    operands: tuple[Local, ...]
    results: tuple[Local, ...]


@dataclass(frozen=True, slots=True, eq=False)
class PlacedMove:
    """A change of layout along the mesh axis with index `mesh_axis`; `source` and `target` are
    the logical axes that are joined and split by it."""

    move: Move
    mesh_axis: int
    operand: Local
    result: Local
    source: Axis | None = None
    target: Axis | None = None
    reduction: str = "sum"


Placed = PlacedOp | PlacedMove


@dataclass(slots=True)
class Placement:
    """A running placement: steps so far, the home of every value, and its copies in this phase.

    `demanded` collects sources (parameters, values that depend on inputs alone) in the layouts
    that readers ask for: these are available in any layout.
    """

    mesh: Mesh
    axes: Axes
    sources: Collection[Value]
    steps: list[Placed] = field(default_factory=list)
    home: dict[Value, Local] = field(default_factory=dict)
    demanded: dict[tuple[Value, Layout], Local] = field(default_factory=dict)
    copies: dict[tuple[Value, Layout], Local] = field(default_factory=dict)
    use_counts: dict[Value, int] = field(default_factory=dict)
    totals: dict[Value, Value] = field(default_factory=dict)
    """Partial totals made on the way, with the value whose type and axes they have."""

    def axes_of(self, value: Value) -> frozenset[Axis]:
        """The axes that a value of the program, or a partial total, carries."""
        return self.axes.of(self.totals.get(value, value))

    def arrive(self, value: Value, layout: Layout) -> Local:
        """Declares a value that comes from outside in a given layout."""
        local = Local(value, layout)
        self.home[value] = local
        return local

    def next_phase(self) -> list[Placed]:
        """Ends a phase and returns its steps. Homes stay. Of the copies only exchanged ones do,
        which are no larger than their home; gathered ones are gathered again."""
        steps, self.steps = self.steps, []
        exchanged = {
            step.result
            for step in steps
            if isinstance(step, PlacedMove) and step.move is Move.EXCHANGE
        }
        self.copies = {key: local for key, local in self.copies.items() if local in exchanged}
        return steps

    def branch(self) -> Placement:
        """A placement that goes on from here and leaves this one as it is."""
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
            operands = self._add_alike(node, operands)
            if len(operands) == 1:
                self.home[node.result] = self._renamed(operands[0], node.result)
                return
            if isinstance(op, Add) and tuple(operands) != node.operands:
                op = Sum()
        kinds = self.axes.kinds[node]
        spots = [
            self._choose(node, operands, index, kinds) for index in range(len(self.mesh.names))
        ]
        locals_ = tuple(
            self.require(value, self._operand_layout(value, spots)) for value in operands
        )
        results = tuple(
            Local(value, self._result_layout(value, spots, kinds)) for value in node.results
        )
        self.steps.append(PlacedOp(op, node, locals_, results))
        self.home.update(zip(node.results, results, strict=True))

    # --- the rule of the op ---------------------------------------------------------------------

    def _choose(
        self, node: Node, operands: Sequence[Value], index: int, kinds: Mapping[Axis, Kind]
    ) -> Spot:
        if self._stays_pending(node, operands, index):
            return Pending.SUM
        by_group = {self.mesh.group.get(axis, axis): axis for axis in reversed(list(kinds))}
        for entry in self.mesh.lists[index]:
            axis = by_group.get(entry.axis)
            if axis is None or kinds[axis] is Kind.WHOLE:
                continue
            if entry.everywhere and not self._everywhere(node, operands, axis):
                continue
            return axis
        return None

    def _everywhere(self, node: Node, operands: Sequence[Value], axis: Axis) -> bool:
        moving = [value for value in operands if value not in self.sources]
        return all(axis in self.axes_of(value) for value in (*moving, *node.results))

    def _stays_pending(self, node: Node, operands: Sequence[Value], index: int) -> bool:
        if tuple(operands) == node.operands:
            positions = node.op.linear_operands(node.operand_types)
        else:
            positions = tuple(range(len(operands)))
        travelling = [operands[i] for i in positions]
        return bool(travelling) and all(
            value in self.home
            and self.home[value].layout[index] is Pending.SUM
            and self.use_counts.get(value, 0) == 1
            for value in travelling
        )

    def _operand_layout(self, value: Value, spots: Sequence[Spot]) -> Layout:
        carried = self.axes_of(value)
        layout: list[Spot] = []
        for index, spot in enumerate(spots):
            if isinstance(spot, Axis):
                layout.append(spot if spot in carried else None)
            elif spot is Pending.SUM and value in self.home:
                # Operands beside the travelling ones are whole along this mesh axis.
                own = self.home[value].layout[index]
                layout.append(Pending.SUM if own is Pending.SUM else None)
            else:
                layout.append(None)
        return tuple(layout)

    def _result_layout(
        self, value: Value, spots: Sequence[Spot], kinds: Mapping[Axis, Kind]
    ) -> Layout:
        carried = self.axes_of(value)
        layout: list[Spot] = []
        for spot in spots:
            if not isinstance(spot, Axis) or spot in carried:
                layout.append(spot)
            else:
                layout.append(Pending.MAX if kinds[spot] is Kind.MAX else Pending.SUM)
        return tuple(layout)

    def _add_alike(self, node: Node, operands: list[Value]) -> list[Value]:
        """Adds operands that pend alike before they are settled, so that they settle once."""
        groups: dict[Layout, list[Value]] = {}
        for value in dict.fromkeys(operands):
            local = self.home.get(value)
            if (
                local is not None
                and any(isinstance(spot, Pending) for spot in local.layout)
                and self.use_counts.get(value, 0) == 1
                and operands.count(value) == 1
                and value.type == node.result.type
            ):
                groups.setdefault(local.layout, []).append(value)
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

    def _renamed(self, value: Value, result: Value) -> Local:
        local = Local(result, self.home[value].layout)
        last = self.steps[-1]
        assert isinstance(last, PlacedOp)
        assert last.results == (self.home[value],)
        self.steps[-1] = PlacedOp(last.op, last.node, last.operands, (local,))
        return local

    # --- changes of layout ----------------------------------------------------------------------

    def require(self, value: Value, layout: Layout) -> Local:
        """The value in this layout: from home, from a copy of this phase, or moved now."""
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
            steps, copy = move(home, layout)
            self.steps.extend(steps)
            self.copies[key] = copy
            if any(isinstance(spot, Pending) for spot in home.layout):
                # Settled once, for all readers to come.
                self.home[value] = copy
        return self.copies[key]

    def settle(self, value: Value, keep: Iterable[int] = ()) -> Local:
        """The value with every pending sum settled where an elementwise reader would want it,
        except along the mesh axes in `keep`."""
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
        by_group = {self.mesh.group.get(axis, axis): axis for axis in carried}
        for entry in self.mesh.lists[index]:
            if entry.axis in by_group:
                return by_group[entry.axis]
        return None


def move(home: Local, target: Layout) -> tuple[list[PlacedMove], Local]:
    """The steps from one layout to another.

    Mesh axes that split the same logical axis nest in mesh order, the first outermost. So a
    split can be undone only when no inner one is left, and made only when no outer one is
    missing. Cheap steps come first: slices, then those that shrink, then those that grow.
    """
    steps: list[PlacedMove] = []
    here = home

    def go(kind: Move, index: int, spot: Spot, source: Axis | None, goal: Axis | None) -> None:
        nonlocal here
        pending = here.layout[index]
        layout = (*here.layout[:index], spot, *here.layout[index + 1 :])
        result = Local(here.value, layout)
        reduction = pending.value if isinstance(pending, Pending) else "sum"
        steps.append(PlacedMove(kind, index, here, result, source, goal, reduction))
        here = result

    def wrong(index: int) -> bool:
        """Whether the split at `index` must be undone: itself wrong, or nested in a wrong one."""
        spot = here.layout[index]
        return isinstance(spot, Axis) and (
            target[index] is not spot
            or any(
                (here.layout[outer] is spot) != (target[outer] is spot) for outer in range(index)
            )
        )

    def innermost(index: int) -> bool:
        spot = here.layout[index]
        return not any(here.layout[i] is spot for i in range(index + 1, len(here.layout)))

    def ready(index: int) -> bool:
        """Whether the target's split at `index` nests correctly if made now."""
        goal = target[index]
        return isinstance(goal, Axis) and all(
            (here.layout[i] is goal) == (target[i] is goal and i < index)
            for i in range(len(target))
            if i != index
        )

    def one_step() -> bool:
        indices = range(len(target))
        for i in indices:
            if here.layout[i] is None and ready(i):
                go(Move.SLICE, i, target[i], None, target[i])  # type: ignore[arg-type]
                return True
        for i in indices:
            if isinstance(here.layout[i], Pending) and ready(i):
                go(Move.REDUCE_SCATTER, i, target[i], None, target[i])  # type: ignore[arg-type]
                return True
        for i in indices:
            spot = here.layout[i]
            if isinstance(spot, Axis) and target[i] is not spot and innermost(i) and ready(i):
                go(Move.EXCHANGE, i, target[i], spot, target[i])  # type: ignore[arg-type]
                return True
        for i in indices:
            if isinstance(here.layout[i], Pending) and here.layout[i] is not target[i]:
                go(Move.ALL_REDUCE, i, None, None, None)
                return True
        for i in reversed(indices):
            spot = here.layout[i]
            if wrong(i) and innermost(i):
                go(Move.GATHER, i, None, spot, None)  # type: ignore[arg-type]
                return True
        return False

    while here.layout != target:
        if not one_step():
            raise AssertionError(f"no step leads from {here.layout} to {target}")
    return steps, here
