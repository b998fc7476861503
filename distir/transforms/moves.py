"""Layouts of values on the mesh, and the moves that lead from one layout to another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from itertools import combinations

from distir.axes.model import Axis
from distir.ir.core import Value


class Pending(Enum):
    """Along a mesh axis, every device holds a part of a sum (or of a maximum) that has not been
    combined yet."""

    SUM = "sum"
    MAX = "max"


Spot = Axis | Pending | None
"""What a value is along one mesh axis: split over a logical axis, a pending sum, or (None) the same
on every device."""

Layout = tuple[Spot, ...]
"""How a value lies on the devices: one spot per mesh axis."""

FLAT = Axis(0, "flat")
"""A pseudo-axis: all elements of a shard, one after the other. A value that is split over it lies
flat, in pieces that are filled up to equal lengths, so that any number of devices can share it. No
op can read such a value."""


class Move(Enum):
    """A kind of step from one layout to another, along one mesh axis or several at once."""

    SLICE = "slice"
    """Every device keeps its part of what all have."""
    GATHER = "gather"
    """An all-gather: parts are joined on every device."""
    EXCHANGE = "exchange"
    """An all-to-all: the split moves from one logical axis to another."""
    ALL_REDUCE = "all-reduce"
    REDUCE_SCATTER = "reduce-scatter"
    SPREAD = "spread"
    """A value becomes a pending sum, which takes no communication."""


@dataclass(frozen=True, slots=True, eq=False)
class Local:
    """One device's shard of a value in a layout. Compared by identity."""

    value: Value
    layout: Layout


@dataclass(frozen=True, slots=True, eq=False)
class PlacedMove:
    """A change of layout along the mesh axes with these indices (ascending): the split over the
    logical axis `source` is undone, and one over `target` is made."""

    move: Move
    mesh_axes: tuple[int, ...]
    operand: Local
    result: Local
    source: Axis | None = None
    target: Axis | None = None
    reduction: str = "sum"


def pending_along(layout: Layout) -> frozenset[int]:
    """The indices of the mesh axes along which a layout has a pending sum."""
    return frozenset(i for i, spot in enumerate(layout) if spot is Pending.SUM)


def may_spread(layout: Layout, goal: Layout) -> bool:
    """Whether a pending sum may become one in another layout without communication, to be added to
    values there.

    Both must be pending along some common mesh axis. Where they differ, the goal must be pending
    and the layout must not, and a split that is undone must not have an inner split of the same
    axis that stays.
    """
    changed = [i for i, (a, b) in enumerate(zip(layout, goal, strict=True)) if a is not b]
    if not pending_along(layout) & pending_along(goal):
        return False
    return all(
        goal[i] is Pending.SUM
        and not isinstance(layout[i], Pending)
        and (layout[i] is None or layout[i] not in goal[i + 1 :])
        for i in changed
    )


MOST_STEPS_KNOWN = 1 << 12
"""Pairs of layouts of which the first step from one to the other is known."""


def move(home: Local, target: Layout) -> tuple[list[PlacedMove], Local]:
    """The steps from one layout to another, and the shard that they end with.

    Mesh axes that split the same logical axis nest in mesh order, the first outermost. So a split
    can be undone only when no inner one is left, and made only when no outer one is missing. Mesh
    axes along which the same is to be done share one step: one collective over all of them. Steps
    that make shards smaller come before those that make them larger.
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


@lru_cache(MOST_STEPS_KNOWN)
def _next_step(here: Layout, target: Layout) -> tuple[Move, tuple[int, ...], Axis | None] | None:
    """The first step towards a layout: the kind of move, the mesh axes, and the logical axis over
    which it splits. None if no step is possible."""
    alike: dict[tuple[Spot, Spot], list[int]] = {}
    for index, pair in enumerate(zip(here, target, strict=True)):
        alike.setdefault(pair, []).append(index)
    shrinking: list[tuple[Move, tuple[int, ...], Axis]] = []
    for (spot, goal), indices in alike.items():
        if spot is goal or not isinstance(goal, Axis) or not _may_be_cut(here, target, goal):
            continue
        for group in _subsets(indices):
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
    """Whether a value may be split over an axis now. A flat value has lost its axes and can only be
    added up, so that the split over `FLAT` comes last."""
    if goal is not FLAT:
        return FLAT not in here
    return all(
        spot is wanted or (wanted in (None, FLAT) and not isinstance(spot, Axis))
        for spot, wanted in zip(here, target, strict=True)
    )


def _undone(here: Layout, target: Layout, axis: Axis) -> tuple[int, ...]:
    """The mesh axes of the innermost splits of an axis that a gather undoes together. A split that
    can be exchanged for another one, once it is the innermost, is left for that."""
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


def _subsets(indices: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """All subsets except the empty one, the largest first."""
    for size in range(len(indices), 0, -1):
        yield from combinations(indices, size)


def _nests(here: Layout, target: Layout, group: Sequence[int]) -> bool:
    """Whether splits along these mesh axes can be made now: together with those that are there they
    must be the outermost of the target's splits of the axis."""
    goal = target[group[0]]
    present = sorted([*group, *(i for i, spot in enumerate(here) if spot is goal)])
    wanted = [i for i, spot in enumerate(target) if spot is goal]
    return present == wanted[: len(present)] and present[-len(group) :] == list(group)


def _is_innermost(here: Layout, group: Sequence[int]) -> bool:
    """Whether no split outside the group is nested in the group's."""
    spot = here[group[0]]
    if not isinstance(spot, Axis):
        return True
    return not any(s is spot and i > group[0] and i not in group for i, s in enumerate(here))


def _is_wrong(here: Layout, target: Layout, index: int) -> bool:
    """Whether a split must be undone: the target does not have it, or it is nested in one that must
    be undone or made first."""
    spot = here[index]
    return target[index] is not spot or any(
        (here[outer] is spot) != (target[outer] is spot) for outer in range(index)
    )
