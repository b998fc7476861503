"""The virtual devices of a stage: one NumPy array per device, and the ops they run together."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from distir.axes.model import Axis, AxisDims
from distir.errors import DistirError
from distir.execute.computing import NUMPY, Computing
from distir.ir.core import Array, Node, Value
from distir.ops.collective import Collective, FlatCut, Shard, Spread
from distir.ops.ring import Ring
from distir.transforms.instantiate import Sizes, without_flat
from distir.transforms.moves import FLAT, Layout, Pending
from distir.transforms.place import Mesh

Coordinate = dict[str, int]
Shards = list[Array]
"""One array per device, in mesh order."""


@dataclass(frozen=True, slots=True)
class WirePart:
    """A collective of one tensor: a device's own shard, and the value that it is of."""

    op: Collective
    shard: Array
    value: Value


class Wire(Protocol):
    """How one device, alone in its process, reaches the other devices of its mesh. A group has the
    places of its devices in the mesh, in mesh order."""

    @property
    def own(self) -> int:
        """The device's place in the mesh."""
        ...

    def exchange(self, parts: Sequence[WirePart], group: Sequence[int]) -> list[Array]:
        """The device's results of collectives of one kind over the group, which go as one
        message."""
        ...

    def go_round(
        self,
        op: Ring,
        operands: Sequence[Array],
        node: Node,
        places: Sequence[Coordinate],
        group: Sequence[int],
    ) -> tuple[Array, ...]:
        """The device's results of a ring exchange, which the node is; `places` are the coordinates
        of the group."""
        ...


class VirtualMesh:
    """The devices of one stage, numbered with the last mesh axis fastest.

    All of them are in this process unless there is a `wire`: then it is the wire's own device
    alone, and shards are lists of one array.
    """

    def __init__(
        self, mesh: Mesh, sizes: Sizes, wire: Wire | None = None, computing: Computing = NUMPY
    ) -> None:
        self.mesh = mesh
        self.sizes = sizes
        self.wire = wire
        self.computing = computing
        ranges = (range(degree) for degree in sizes.degrees)
        self.coordinates: list[Coordinate] = [
            dict(zip(mesh.names, place, strict=True)) for place in itertools.product(*ranges)
        ]
        self.held = range(len(self)) if wire is None else (wire.own,)

    def __len__(self) -> int:
        return len(self.coordinates)

    def groups(self, mesh_axes: Sequence[str]) -> list[list[int]]:
        """The groups of devices that communicate along these mesh axes, each in mesh order."""
        groups: dict[tuple[tuple[str, int], ...], list[int]] = {}
        for index, coordinate in enumerate(self.coordinates):
            key = tuple(item for item in coordinate.items() if item[0] not in mesh_axes)
            groups.setdefault(key, []).append(index)
        return list(groups.values())

    def run(self, nodes: Sequence[Node], held: dict[Value, Shards]) -> None:
        """Runs an SPMD program. `held` maps values to shards; the results are added to it."""
        for node in nodes:
            results = self.step(node, [held[value] for value in node.operands])
            held.update(zip(node.results, results, strict=True))

    def step(self, node: Node, operands: Sequence[Shards]) -> list[Shards]:
        """Runs one op on all devices and returns the shards of its results.

        Raises `DistirError` if a shard does not have the shape that its type says.
        """
        op = node.op
        if isinstance(op, Collective):
            made = self._exchange(list(zip(op.tensors, operands, node.operands, strict=True)))
        elif isinstance(op, Ring):
            made = self._go_round(op, operands, node)
        else:
            made = self._compute(node, operands)
        return self._checked(node, made)

    def bucket(self, nodes: Sequence[Node], operands: Sequence[Shards]) -> list[Shards]:
        """Runs collectives of one kind over the same mesh axes, of one tensor each, as one message,
        and returns the shards of their results."""
        tensors = [
            (node.op, shards, node.operands[0])
            for node, shards in zip(nodes, operands, strict=True)
            if isinstance(node.op, Collective)
        ]
        made = self._exchange(tensors)
        return [self._checked(node, [each])[0] for node, each in zip(nodes, made, strict=True)]

    def _checked(self, node: Node, made: list[Shards]) -> list[Shards]:
        for value, shards in zip(node.results, made, strict=True):
            for shard in shards:
                if shard.shape != value.type.shape:
                    raise DistirError(
                        f"{node.op} computed a shard of shape {list(shard.shape)}; "
                        f"the placement expects {value}"
                    )
        return made

    def _exchange(self, tensors: Sequence[tuple[Collective, Shards, Value]]) -> list[Shards]:
        if self.wire is not None:
            parts = [WirePart(op, shards[0], value) for op, shards, value in tensors]
            group = self._own_group(parts[0].op.mesh_axes)
            return [[result] for result in self.wire.exchange(parts, group)]
        return [self._exchange_here(op, shards) for op, shards, _ in tensors]

    def _exchange_here(self, op: Collective, shards: Shards) -> Shards:
        results: dict[int, Array] = {}
        for group in self.groups(op.mesh_axes):
            exchanged = op.exchange([shards[index] for index in group])
            results.update(zip(group, exchanged, strict=True))
        return [results[index] for index in range(len(self))]

    def _go_round(self, op: Ring, operands: Sequence[Shards], node: Node) -> list[Shards]:
        if self.wire is not None:
            group = self._own_group(op.mesh_axes)
            places = [self.coordinates[index] for index in group]
            own = [shards[0] for shards in operands]
            return [[result] for result in self.wire.go_round(op, own, node, places, group)]
        made: list[dict[int, Array]] = [{} for _ in node.results]
        for group in self.groups(op.mesh_axes):
            own = [[shards[index] for shards in operands] for index in group]
            results = op.exchange([self.coordinates[index] for index in group], own)
            for index, each in zip(group, results, strict=True):
                for shards, result in zip(made, each, strict=True):
                    shards[index] = result
        return [[shards[index] for index in range(len(self))] for shards in made]

    def _own_group(self, mesh_axes: Sequence[str]) -> list[int]:
        (own,) = self.held
        return next(group for group in self.groups(mesh_axes) if own in group)

    def _compute(self, node: Node, operands: Sequence[Shards]) -> list[Shards]:
        op, dtypes = node.op, [value.type.dtype for value in node.results]
        made: list[Shards] = [[] for _ in node.results]
        for place, index in enumerate(self.held):
            coordinate = self.coordinates[index]
            own = [shards[place] for shards in operands]
            if isinstance(op, Shard):
                results = (op.pick(own[0], self._member(op.mesh_axes, coordinate)),)
            elif isinstance(op, Spread):
                results = (op.part(own[0], self._member(op.mesh_axes, coordinate)),)
            else:
                results = self.computing.evaluate(op, coordinate, own, dtypes)
            for shards, result in zip(made, results, strict=True):
                shards.append(result)
        return made

    def _member(self, mesh_axes: Sequence[str], coordinate: Coordinate) -> int:
        """The index of a device in its group along these mesh axes."""
        place = 0
        for name, degree in zip(self.mesh.names, self.sizes.degrees, strict=True):
            if name in mesh_axes:
                place = place * degree + coordinate[name]
        return place

    # --- between whole arrays and shards ----------------------------------------------------------

    def scatter(self, array: Array, dims: AxisDims, layout: Layout) -> Shards:
        """Every held device's shard of a whole array. Where the layout has a pending sum, the first
        device along that mesh axis gets the array and the others get zeros."""
        return [self._shard(array, dims, layout, self.coordinates[index]) for index in self.held]

    def _shard(self, array: Array, dims: AxisDims, layout: Layout, coordinate: Coordinate) -> Array:
        by_axis, axes = self._by_axis(np.asarray(array), dims)
        index: list[slice] = [slice(None)] * len(axes)
        for position, axis in enumerate(axes):
            start, stop = self._window(axis, layout, coordinate)
            index[position] = slice(start, stop)
        picked = by_axis[tuple(index)]
        shape: list[int] = []
        position = 0
        for dim in dims:
            size = 1
            for _ in dim:
                size *= picked.shape[position]
                position += 1
            shape.append(size)
        result = picked.reshape(shape)
        cut, members = self._flat(layout, result.shape)
        if members:
            result = cut.split(result, len(self))[self._member(members, coordinate)]
        first = all(
            coordinate[name] == 0
            for name, spot in zip(self.mesh.names, layout, strict=True)
            if isinstance(spot, Pending)
        )
        return result if first else np.zeros_like(result)

    def _by_axis(self, array: Array, dims: AxisDims) -> tuple[Array, list[Axis]]:
        """The array reshaped to one dim per axis, and those axes. An array that has the model's
        sizes is filled up with zeros to the padded sizes of the plan."""
        axes = [axis for dim in dims for axis in dim]
        padded = [self.sizes.of(axis) for axis in axes]
        if array.size == math.prod(padded):
            return array.reshape(padded), axes
        by_axis = array.reshape([self._unpadded(axis) for axis in axes])
        missing = [(0, size - held) for size, held in zip(padded, by_axis.shape, strict=True)]
        return np.pad(by_axis, missing), axes

    def _unpadded(self, axis: Axis) -> int:
        return self.sizes.unpadded.get(axis, self.sizes.of(axis))

    def _window(self, axis: Axis, layout: Layout, coordinate: Coordinate) -> tuple[int, int]:
        """The positions along an axis that a device holds: (first, last + 1)."""
        start, length = 0, self.sizes.of(axis)
        for name, degree, spot in zip(self.mesh.names, self.sizes.degrees, layout, strict=True):
            if spot is axis:
                length //= degree
                start += coordinate[name] * length
        return start, start + length

    def _flat(self, layout: Layout, shape: Sequence[int]) -> tuple[FlatCut, tuple[str, ...]]:
        """The mesh axes over which a shard of this shape lies flat, and how they cut it."""
        places = zip(self.mesh.names, self.sizes.degrees, layout, strict=True)
        flat = [(name, degree) for name, degree, spot in places if spot is FLAT]
        cut = FlatCut(tuple(shape), tuple(degree for _, degree in flat))
        return cut, tuple(name for name, _ in flat)

    def _joined(self, shards: Shards, dims: AxisDims, layout: Layout) -> Shards:
        """The shards with flat pieces joined."""
        shape = [
            math.prod(
                b - a for a, b in (self._window(axis, layout, self.coordinates[0]) for axis in dim)
            )
            for dim in dims
        ]
        cut, members = self._flat(layout, shape)
        joined: Shards = list(shards)
        for group in self.groups(members) if members else ():
            whole = cut.join([shards[index] for index in group])
            for index in group:
                joined[index] = whole
        return joined

    def gather(self, shards: Shards, dims: AxisDims, layout: Layout) -> Array:
        """The whole array from the shards of all devices: they are put in place, pending sums are
        added, and padding is cut off.

        Raises `DistirError` if devices that should hold equal copies do not.
        """
        shards, layout = self._joined(shards, dims, layout), without_flat(layout)
        axes = [axis for dim in dims for axis in dim]
        whole_shape = [self.sizes.of(axis) for axis in axes]
        maximum = any(spot is Pending.MAX for spot in layout)
        copies = [i for i, spot in enumerate(layout) if spot is None]
        pending = [i for i, spot in enumerate(layout) if isinstance(spot, Pending)]
        parts: dict[tuple[int, ...], dict[tuple[int, ...], Array]] = {}
        for coordinate, shard in zip(self.coordinates, shards, strict=True):
            place = tuple(coordinate.values())
            copy = tuple(place[i] for i in copies)
            part = tuple(place[i] for i in pending)
            whole = parts.setdefault(copy, {}).setdefault(part, np.zeros(whole_shape))
            windows = [self._window(axis, layout, coordinate) for axis in axes]
            index = tuple(slice(*window) for window in windows)
            whole[index] = np.asarray(shard).reshape([b - a for a, b in windows])
        stacked = [np.stack(list(own.values())) for own in parts.values()]
        total, *others = [own.max(axis=0) if maximum else own.sum(axis=0) for own in stacked]
        if not all(
            np.allclose(total, other, rtol=1e-9, atol=1e-12, equal_nan=True) for other in others
        ):
            raise DistirError("devices that should hold copies of a value disagree about it")
        total = total[tuple(slice(self._unpadded(axis)) for axis in axes)]
        return total.reshape([math.prod(map(self._unpadded, dim)) for dim in dims])
