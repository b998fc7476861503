"""The placement rule: one SPMD program from lists of logical axes per mesh axis.

1. An op is split, per mesh axis in mesh order, over the first listed axis of its iteration space
   that it does not need whole.
2. A value stays where it was produced; a reader that needs it otherwise slices, gathers or
   exchanges it, once.
3. A summed split axis leaves a pending sum, which travels through single-use linear ops and is
   settled straight into the placement of its first other reader.

Where an entry says so (`ring`), what an op needs whole stays split and travels round the devices,
if the op can be computed part by part; and a boundary passes on the split instead of gathering.

The result is right for any lists; the lists decide only the cost.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import combinations

from distir.axes.model import Axes, Axis
from distir.ir.core import Node, Op, Value
from distir.ir.signature import Kind
from distir.ops.elementwise import Add, Sum
from distir.transforms.circulate import circulation


class Pending(Enum):
    """Along a mesh axis every device holds a part of a reduction that is still to be settled."""

    SUM = "sum"
    MAX = "max"


Spot = Axis | Pending | None
"""Along one mesh axis: split over a logical axis, pending, or the same on every device."""

Layout = tuple[Spot, ...]
"""Where a value rests: one spot per mesh axis."""

FLAT = Axis(0, "flat")
"""Stands for all elements of a shard, one after the other: what is split over it lies flat, in
pieces that are filled up to equal lengths. Any number of devices can share a value so, and no op
can read it."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a mesh axis's list. `everywhere` is the `*` of `axis*`: the entry counts only
    where all activation operands and all results of an op carry the axis. `ring` is the `~` of
    `axis~`: where an op split over it can, operands travel round instead of being gathered."""

    axis: Axis
    everywhere: bool = False
    ring: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Mesh:
    """The device grid inside a stage: names, outermost first, and per name the ordered list of
    axes. Lists speak of representatives: `group` maps every axis to the one it is tied to.
    Compared by identity.

    `users` says which choice of a strategy each mesh axis belongs to (itself, if nothing is said):
    one choice may be several mesh axes. Along those in `sharding` ZeRO splits states. The axes in
    `padded` (representatives) are made longer so that they divide.
    """

    names: tuple[str, ...]
    lists: tuple[tuple[Entry, ...], ...]
    group: Mapping[Axis, Axis]
    users: tuple[str, ...] = ()
    sharding: frozenset[str] = frozenset()
    padded: frozenset[Axis] = frozenset()

    def __post_init__(self) -> None:
        assert len(self.names) == len(self.lists)
        if not self.users:
            object.__setattr__(self, "users", self.names)

    @property
    def user_of(self) -> Mapping[str, str]:
        """The choice of a strategy that a mesh axis belongs to."""
        return dict(zip(self.names, self.users, strict=True))

    @property
    def whole(self) -> Layout:
        """The layout of a value that is the same on every device."""
        return (None,) * len(self.names)


class Move(Enum):
    """How a value gets from one layout to another, along one mesh axis or several at once."""

    SLICE = "slice"
    GATHER = "gather"
    EXCHANGE = "exchange"
    ALL_REDUCE = "all-reduce"
    REDUCE_SCATTER = "reduce-scatter"
    SPREAD = "spread"
    """Into a pending sum, which takes no communication."""


@dataclass(frozen=True, slots=True, eq=False)
class Local:
    """One device's shard of a value, in a layout. Compared by identity."""

    value: Value
    layout: Layout


@dataclass(frozen=True, slots=True, eq=False)
class PlacedOp:
    """An op on shards. `node` is the undistributed node that it computes a part of. Round the
    devices that differ along the mesh axes `ring` (indices, ascending) its operands travel."""

    op: Op
    node: Node
    operands: tuple[Local, ...]
    results: tuple[Local, ...]
    ring: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class PlacedMove:
    """A change of layout along the mesh axes with these indices, ascending; `source` and `target`
    are the logical axes that are joined and split by it."""

    move: Move
    mesh_axes: tuple[int, ...]
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

    def next_phase(self, keep_gathered: bool = False) -> list[Placed]:
        """Ends a phase and returns its steps. Homes stay. Of the copies exchanged ones do, which
        are no larger than their home; gathered ones, which are, if they are asked for."""
        steps, self.steps = self.steps, []
        lasting = {Move.EXCHANGE, Move.GATHER} if keep_gathered else {Move.EXCHANGE}
        kept = {
            step.result for step in steps if isinstance(step, PlacedMove) and step.move in lasting
        }
        self.copies = {key: local for key, local in self.copies.items() if local in kept}
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
        indices = range(len(self.mesh.names))
        spots = [self._choose(node, operands, index, kinds) for index in indices]
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
        listed = self._listed(node, operands, index, kinds)
        travelling = self._travelling(node, operands, index)
        if not travelling or self._settles_first(node, operands, index, travelling, kinds):
            return listed
        return Pending.SUM

    def _listed(
        self, node: Node, operands: Sequence[Value], index: int, kinds: Mapping[Axis, Kind]
    ) -> Axis | None:
        """The first listed axis in the op's iteration space that it does not need whole."""
        by_group = {self._representative(axis): axis for axis in reversed(list(kinds))}
        for entry in self.mesh.lists[index]:
            axis = by_group.get(entry.axis)
            if axis is None or kinds[axis] is Kind.WHOLE:
                continue
            if entry.everywhere and not self._everywhere(node, operands, axis):
                continue
            return axis
        return None

    def _representative(self, axis: Axis) -> Axis:
        """What lists call an axis: one that follows another is split wherever that one is."""
        leader = self.axes.leader(axis)
        return self.mesh.group.get(leader, leader)

    def _rings(self, index: int, axis: Axis) -> bool:
        """Whether a mesh axis's list has an axis with the mark of the ring."""
        wanted = self._representative(axis)
        return any(entry.ring and entry.axis is wanted for entry in self.mesh.lists[index])

    def _along(self, value: Value, axis: Axis) -> Axis | None:
        """The axis of a value that an op which is split over `axis` splits."""
        return self.axes.along(self.totals.get(value, value), axis)

    def _everywhere(self, node: Node, operands: Sequence[Value], axis: Axis) -> bool:
        moving = [value for value in operands if value not in self.sources]
        return all(self._along(value, axis) is not None for value in (*moving, *node.results))

    def _travelling(self, node: Node, operands: Sequence[Value], index: int) -> list[Value]:
        """Operands whose pending sums travel through the op along a mesh axis; none if any of
        those that the op is linear in does not pend, or is read elsewhere too."""
        if tuple(operands) == node.operands:
            positions = node.op.linear_operands(node.operand_types)
        else:
            positions = tuple(range(len(operands)))
        travelling = [operands[i] for i in positions]
        pend = all(
            value in self.home
            and self.home[value].layout[index] is Pending.SUM
            and self.use_counts.get(value, 0) == 1
            for value in travelling
        )
        return travelling if pend else []

    def _settles_first(
        self,
        node: Node,
        operands: Sequence[Value],
        index: int,
        travelling: Sequence[Value],
        kinds: Mapping[Axis, Kind],
    ) -> bool:
        """Whether sums are scattered before the op rather than after it: where the op is split
        along this mesh axis, and operands have to be exchanged along another one. Exchanged while
        they pend, they would be as many times larger."""
        goal = self._listed(node, operands, index, kinds)
        if goal is None or any(self._along(value, goal) is None for value in travelling):
            return False
        for other in range(len(self.mesh.names)):
            spot = self._listed(node, operands, other, kinds)
            for value in travelling:
                here = self.home[value].layout[other]
                there = None if spot is None else self._along(value, spot)
                if isinstance(here, Axis) and there is not None and here is not there:
                    return True
        return False

    def _operand_layout(self, value: Value, spots: Sequence[Spot]) -> Layout:
        layout: list[Spot] = []
        for index, spot in enumerate(spots):
            if isinstance(spot, Axis):
                layout.append(self._along(value, spot))
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
        layout: list[Spot] = []
        for spot in spots:
            along = self._along(value, spot) if isinstance(spot, Axis) else spot
            if isinstance(spot, Axis) and along is None:
                along = Pending.MAX if kinds[spot] is Kind.MAX else Pending.SUM
            layout.append(along)
        return tuple(layout)

    def _add_alike(self, node: Node, operands: list[Value]) -> list[Value]:
        """Adds operands that pend alike before they are settled, so that they settle once. One that
        pends along fewer mesh axes is made to pend like the others."""
        pending = [
            value
            for value in dict.fromkeys(operands)
            if value in self.home
            and _pending(self.home[value].layout)
            and self.use_counts.get(value, 0) == 1
            and operands.count(value) == 1
            and value.type == node.result.type
        ]
        pending.sort(key=lambda value: -len(_pending(self.home[value].layout)))
        groups: dict[Layout, list[Value]] = {}
        for value in pending:
            layout = self.home[value].layout
            goal = next((goal for goal in groups if _spreads(layout, goal)), layout)
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
        """Makes a value pend along further mesh axes, the innermost first."""
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
            steps, copy = move(self._nearest(home, layout), layout)
            self.steps.extend(steps)
            for step in steps:
                if step.move in (Move.EXCHANGE, Move.GATHER):
                    self.copies[value, step.result.layout] = step.result
            self.copies[key] = copy
            if any(isinstance(spot, Pending) for spot in home.layout):
                # Settled once, for all readers to come.
                self.home[value] = copy
        return self.copies[key]

    def _nearest(self, home: Local, layout: Layout) -> Local:
        """Home, or a copy if fewer steps lead from there."""
        copies = [local for (value, _), local in self.copies.items() if value is home.value]
        return min((home, *copies), key=lambda local: len(move(local, layout)[0]))

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
        by_group = {self._representative(axis): axis for axis in carried}
        for entry in self.mesh.lists[index]:
            if entry.axis in by_group:
                return by_group[entry.axis]
        return None


def _pending(layout: Layout) -> frozenset[int]:
    """The mesh axes along which sums pend."""
    return frozenset(i for i, spot in enumerate(layout) if spot is Pending.SUM)


def _spreads(layout: Layout, goal: Layout) -> bool:
    """Whether a value could pend as the goal does, having something to settle with it: all that is
    otherwise is split or the same where the goal pends, and no split is undone inside which
    another one stays."""
    changed = [i for i, (a, b) in enumerate(zip(layout, goal, strict=True)) if a is not b]
    if not _pending(layout) & _pending(goal):
        return False
    return all(
        goal[i] is Pending.SUM
        and not isinstance(layout[i], Pending)
        and (layout[i] is None or layout[i] not in goal[i + 1 :])
        for i in changed
    )


def move(home: Local, target: Layout) -> tuple[list[PlacedMove], Local]:
    """The steps from one layout to another.

    Mesh axes that split the same logical axis nest in mesh order, the first outermost. So a
    split can be undone only when no inner one is left, and made only when no outer one is
    missing. Mesh axes along which the same is to be done are taken together: one collective over
    all of them. Cheap steps come first: slices, then those that shrink, then those that grow.
    """
    steps: list[PlacedMove] = []
    here = home
    while here.layout != target:
        found = _next_step(here.layout, target)
        if found is None:
            raise AssertionError(f"no step leads from {here.layout} to {target}")
        kind, group, goal = found
        before = here.layout[group[0]]
        layout = tuple(goal if i in group else spot for i, spot in enumerate(here.layout))
        result = Local(here.value, layout)
        source = before if isinstance(before, Axis) else None
        reduction = before.value if isinstance(before, Pending) else "sum"
        steps.append(PlacedMove(kind, group, here, result, source, goal, reduction))
        here = result
    return steps, here


def _next_step(here: Layout, target: Layout) -> tuple[Move, tuple[int, ...], Axis | None] | None:
    """The first step towards a layout: what is done, along which mesh axes, and the logical axis
    that is split by it."""
    alike: dict[tuple[Spot, Spot], list[int]] = {}
    for index, pair in enumerate(zip(here, target, strict=True)):
        alike.setdefault(pair, []).append(index)
    shrinking: list[tuple[Move, tuple[int, ...], Axis]] = []
    for (spot, goal), indices in alike.items():
        if spot is goal or not isinstance(goal, Axis) or not _may_be_cut(here, target, goal):
            continue
        for group in _parts(indices):
            if _nests(here, target, group) and _is_innermost(here, group):
                kind = (
                    Move.SLICE
                    if spot is None
                    else Move.REDUCE_SCATTER
                    if isinstance(spot, Pending)
                    else Move.EXCHANGE
                )
                shrinking.append((kind, group, goal))
                break
    if shrinking:
        return min(shrinking, key=lambda step: _SHRINKING.index(step[0]))
    for pending in Pending:
        group = tuple(i for i, s in enumerate(here) if s is pending and target[i] is not pending)
        if group:
            return Move.ALL_REDUCE, group, None
    splits = dict.fromkeys(spot for spot in reversed(here) if isinstance(spot, Axis))
    for axis in sorted(splits, key=lambda axis: axis is not FLAT):
        group = _undone(here, target, axis)
        if group:
            return Move.GATHER, group, None
    return None


def _may_be_cut(here: Layout, target: Layout, goal: Axis) -> bool:
    """Whether a value may be split over an axis now. What lies flat has lost its axes, so that it
    can only be added up afterwards: flat comes last."""
    if goal is not FLAT:
        return FLAT not in here
    return all(
        spot is wanted or (wanted in (None, FLAT) and not isinstance(spot, Axis))
        for spot, wanted in zip(here, target, strict=True)
    )


def _undone(here: Layout, target: Layout, axis: Axis) -> tuple[int, ...]:
    """The innermost splits of an axis that must be undone; not those that can be exchanged for
    others once they are the innermost."""
    group: list[int] = []
    for index in reversed(range(len(here))):
        if here[index] is not axis:
            continue
        exchanged = isinstance(target[index], Axis) and target[index] is not axis
        if not _is_wrong(here, target, index) or (group and exchanged):
            break
        group.insert(0, index)
        if exchanged:
            break
    return tuple(group)


_SHRINKING = (Move.SLICE, Move.REDUCE_SCATTER, Move.EXCHANGE)


def _parts(indices: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """All subsets but the empty one, the largest first."""
    for size in range(len(indices), 0, -1):
        yield from combinations(indices, size)


def _nests(here: Layout, target: Layout, group: Sequence[int]) -> bool:
    """Whether splits along these mesh axes, made now, nest as those of the target do: all that
    split the axis then are the outermost of those that will."""
    goal = target[group[0]]
    present = sorted([*group, *(i for i, spot in enumerate(here) if spot is goal)])
    wanted = [i for i, spot in enumerate(target) if spot is goal]
    return present == wanted[: len(present)] and present[-len(group) :] == list(group)


def _is_innermost(here: Layout, group: Sequence[int]) -> bool:
    """Whether nothing outside the group nests in its splits."""
    spot = here[group[0]]
    if not isinstance(spot, Axis):
        return True
    return not any(s is spot and i > group[0] and i not in group for i, s in enumerate(here))


def _is_wrong(here: Layout, target: Layout, index: int) -> bool:
    """Whether a split must be undone: itself wrong, or nested in a wrong one."""
    spot = here[index]
    return target[index] is not spot or any(
        (here[outer] is spot) != (target[outer] is spot) for outer in range(index)
    )
