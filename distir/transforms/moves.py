"""Where values rest on the mesh, and how they get from one layout to another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import combinations

from distir.axes.model import Axis
from distir.ir.core import Value


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


def pending_along(layout: Layout) -> frozenset[int]:
    """The mesh axes along which sums pend."""
    return frozenset(i for i, spot in enumerate(layout) if spot is Pending.SUM)


def may_spread(layout: Layout, goal: Layout) -> bool:
    """Whether a value could pend as the goal does, having something to settle with it: all that is
    otherwise is split or the same where the goal pends, and no split is undone inside which
    another one stays."""
    changed = [i for i, (a, b) in enumerate(zip(layout, goal, strict=True)) if a is not b]
    if not pending_along(layout) & pending_along(goal):
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
