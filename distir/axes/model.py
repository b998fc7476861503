"""The result of axis inference: axes, and every dim and loop as a product of axes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain

from distir.ir.core import Node, Value
from distir.ir.signature import Kind
from distir.ir.types import TensorType


class Axis:
    """A logical axis, compared by identity. `size` is its length in the function as it was built;
    `label` is for people."""

    __slots__ = ("label", "size")

    def __init__(self, size: int, label: str = "") -> None:
        self.size = size
        self.label = label

    def __repr__(self) -> str:
        return f"{self.label or 'axis'}({self.size})"


AxisDims = tuple[tuple[Axis, ...], ...]
"""Per dim the axes whose product it is, outermost first; `()` for a dim of size 1."""


@dataclass(frozen=True, slots=True)
class Axes:
    """Axes of a function.

    `loops[node][i]` are the axes of loop `i` of the node's signature. `kinds[node]` gives the loop
    kind of each axis in the node's iteration space: what splitting it means for the results.
    `ties` maps an axis to the representative of those that always have its size (the two sides of
    a boundary). `follows` maps an axis to its leader, the one that it is split together with (slots
    of experts follow the sequence).
    """

    dims: Mapping[Value, AxisDims]
    loops: Mapping[Node, tuple[tuple[Axis, ...], ...]]
    kinds: Mapping[Node, Mapping[Axis, Kind]]
    ties: Mapping[Axis, Axis]
    follows: Mapping[Axis, Axis]
    _carried: dict[Value, frozenset[Axis]] = field(
        default_factory=dict[Value, frozenset[Axis]], init=False, repr=False, compare=False
    )
    _tied: dict[Value, frozenset[Axis]] = field(
        default_factory=dict[Value, frozenset[Axis]], init=False, repr=False, compare=False
    )
    _led: dict[Value, dict[Axis, Axis]] = field(
        default_factory=dict[Value, dict[Axis, Axis]], init=False, repr=False, compare=False
    )
    """By value, by leader, the first of its axes with this leader."""

    def of(self, value: Value) -> frozenset[Axis]:
        """All axes that a value carries."""
        found = self._carried.get(value)
        if found is None:
            found = self._carried[value] = frozenset(chain.from_iterable(self.dims[value]))
        return found

    def type_at(self, value: Value, sizes: Mapping[Axis, int]) -> TensorType:
        """The value's type when axes have other sizes; those not in `sizes` keep their own."""
        shape = tuple(
            math.prod(sizes.get(axis, axis.size) for axis in dim) for dim in self.dims[value]
        )
        return value.type.with_shape(shape)

    def leader(self, axis: Axis) -> Axis:
        """The axis that this one is split together with; itself if it follows no other."""
        return self.follows.get(axis, axis)

    def along(self, value: Value, axis: Axis) -> Axis | None:
        """The axis of a value that is split wherever `axis` is: `axis` itself, or one with the same
        leader. None if the value carries neither."""
        carried = self._carried.get(value)  # `of`, which is asked for most of the time in a search
        if axis in (self.of(value) if carried is None else carried):
            return axis
        led = self._led.get(value)
        if led is None:
            led = self._led[value] = {}
            for other in self.of(value):
                led.setdefault(self.leader(other), other)
        return led.get(self.leader(axis))

    def tied_of(self, value: Value) -> frozenset[Axis]:
        """The representatives of all axes that a value carries."""
        found = self._tied.get(value)
        if found is None:
            found = self._tied[value] = frozenset(map(self.tied, self.of(value)))
        return found

    def tied(self, axis: Axis) -> Axis:
        """The representative of the axes that always have the size of this one."""
        return self.ties.get(axis, axis)


def find_representative(axis: Axis, parents: dict[Axis, Axis]) -> Axis:
    """The axis at the end of a chain of parents, which is made shorter on the way."""
    while axis in parents:
        above = parents[axis]
        if above in parents:
            parents[axis] = parents[above]
        axis = above
    return axis
