"""Ring exchange: where lists mark an axis with `~`, columns of an op (keys and values) stay split
and travel round the devices, and a boundary passes on the split instead of gathering."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from distir.axes.model import Axes, Axis
from distir.ir.core import Node, Value
from distir.ops.ring import COLUMNS, ROWS, Circulating
from distir.ops.tensor import Boundary

if TYPE_CHECKING:
    from distir.transforms.moves import Layout, Local, Spot

Rings = Callable[[int, Axis], bool]
"""Whether the list of a mesh axis (by index) marks an axis with `~`."""


@dataclass(frozen=True, slots=True)
class Circulation:
    """Exceptions to the placement rule for one node. Mappings are from mesh axes, by index, to the
    axis that a value is split over.

    `columns` holds for the operands and results at the given positions: those that travel. `before`
    and `beyond` hold for the operand and the result of a boundary.
    """

    columns: Mapping[int, Axis] = field(default_factory=dict[int, Axis])
    operands: tuple[int, ...] = ()
    results: tuple[int, ...] = ()
    before: Mapping[int, Axis] = field(default_factory=dict[int, Axis])
    beyond: Mapping[int, Axis] = field(default_factory=dict[int, Axis])

    def operand(self, position: int, layout: Layout) -> Layout:
        """The layout in which an operand is read, given the one by the placement rule."""
        over = self.columns if position in self.operands else self.before
        if not over:
            return layout
        return tuple(over.get(index, spot) for index, spot in enumerate(layout))

    def result(self, position: int, layout: Layout) -> Layout:
        """The layout in which a result is made, given the one by the placement rule."""
        over = self.columns if position in self.results else self.beyond
        if not over:
            return layout
        return tuple(over.get(index, spot) for index, spot in enumerate(layout))


NOTHING_TRAVELS = Circulation()


def circulation(
    node: Node,
    operands: Sequence[Value],
    spots: Sequence[Spot],
    home: Mapping[Value, Local],
    axes: Axes,
    rings: Rings,
) -> Circulation:
    """The exceptions for one node. `spots` says what the node is split over along each mesh axis;
    `home` has the layouts in which its operands were made."""
    op = node.op
    if isinstance(op, Boundary):
        return _passed_on(node, spots, home, axes, rings)
    if isinstance(op, Circulating):
        columns = _columns(op, operands, spots, home, axes.loops[node], rings)
        return Circulation(columns, op.travelling, op.returning) if columns else NOTHING_TRAVELS
    return NOTHING_TRAVELS


def _passed_on(
    node: Node, spots: Sequence[Spot], home: Mapping[Value, Local], axes: Axes, rings: Rings
) -> Circulation:
    """A boundary passes a split on where a list marks the axes of both sides with `~`."""
    (operand,) = node.operands
    if operand not in home:
        return NOTHING_TRAVELS
    beyond = other_sides(node, axes)
    before = {
        index: here
        for index, here in enumerate(home[operand].layout)
        if isinstance(here, Axis) and here in beyond and spots[index] is None
        if rings(index, here) and rings(index, beyond[here])
    }
    return Circulation(before=before, beyond={i: beyond[here] for i, here in before.items()})


def _columns(
    op: Circulating,
    operands: Sequence[Value],
    spots: Sequence[Spot],
    home: Mapping[Value, Local],
    loops: Sequence[Sequence[Axis]],
    rings: Rings,
) -> Mapping[int, Axis]:
    """Per mesh axis, the axis over which an op's columns stay split: where the op's rows are split
    over an axis marked `~`, and all operands that travel were made split over one axis of the
    columns."""
    if any(operands[position] not in home for position in op.travelling):
        return {}
    found: dict[int, Axis] = {}
    for index, spot in enumerate(spots):
        if not (isinstance(spot, Axis) and spot in loops[ROWS] and rings(index, spot)):
            continue
        column, *others = {home[operands[i]].layout[index] for i in op.travelling}
        if not others and isinstance(column, Axis) and column in loops[COLUMNS]:
            found[index] = column
    return found


def other_sides(node: Node, axes: Axes) -> Mapping[Axis, Axis]:
    """Maps each axis that a boundary replaces to the fresh axis in its result."""
    (operand,), (result,) = node.operands, node.results
    found: dict[Axis, Axis] = {}
    for before, after in zip(axes.dims[operand], axes.dims[result], strict=True):
        if [axis.size for axis in before] == [axis.size for axis in after]:
            found.update((a, b) for a, b in zip(before, after, strict=True) if a is not b)
    return found


__all__ = ["Circulation", "circulation", "other_sides"]
