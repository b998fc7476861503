"""Fills sizes into a placed program: shapes of shards, attributes of ops, cuts of collectives."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, reduce
from operator import mul

from distir.axes.model import Axes, Axis, AxisDims
from distir.cost.collectives import Copies
from distir.ir.core import Node, Op, Part, Value
from distir.ir.types import DType, TensorType
from distir.ops.collective import (
    AllGather,
    AllReduce,
    AllToAll,
    Cut,
    FlatCut,
    ReduceScatter,
    Shard,
    Sharded,
    Spread,
    Window,
)
from distir.ops.ring import Circulating, Ring
from distir.transforms.moves import FLAT, Layout, Local, Move, PlacedMove
from distir.transforms.place import Mesh, Placed, PlacedOp


@dataclass(frozen=True, slots=True)
class Sizes:
    """The numbers that a placed program is filled in with: sizes of axes, degrees of mesh axes, and
    the element type of real numbers.

    `unpadded` has the original sizes of the axes that are padded, `narrow` the types of values that
    are made in a narrower type than the others.
    """

    axes: Mapping[Axis, int]
    degrees: tuple[int, ...]
    dtype: DType = DType.FLOAT32
    unpadded: Mapping[Axis, int] = field(default_factory=dict[Axis, int])
    narrow: Mapping[Value, DType] = field(default_factory=dict[Value, DType])
    of_steps: dict[object, Sizes] = field(
        default_factory=dict[object, "Sizes"], init=False, repr=False, compare=False
    )
    """The sizes that steps of blocks make of these."""
    types: dict[tuple[AxisDims, Layout, DType], TensorType] = field(
        default_factory=dict[tuple[AxisDims, Layout, DType], TensorType],
        init=False,
        repr=False,
        compare=False,
    )
    """The types of shards that programs of one step have needed so far."""
    equal_types: dict[TensorType, TensorType] = field(
        default_factory=dict[TensorType, TensorType], repr=False, compare=False
    )
    """The types of all steps, by what equals them: equal types are one object, so that nodes which
    differ in nothing are soon told to be alike."""
    rescaled: dict[Node, Op] = field(
        default_factory=dict[Node, Op], init=False, repr=False, compare=False
    )
    """The ops of one step at these sizes, before they are cut into shards."""

    @property
    def padded(self) -> dict[Axis, int]:
        """The axes that are padded, with their padded sizes."""
        return {axis: self.axes[axis] for axis in self.unpadded}

    def of(self, axis: Axis) -> int:
        """The size of an axis; that of the model unless the workload gives another."""
        return self.axes.get(axis, axis.size)

    def whole_type(self, value: Value, dims: AxisDims) -> TensorType:
        """The type of the undistributed value."""
        return self.local_type(value, dims, (None,) * len(self.degrees))

    def dtype_of(self, value: Value) -> DType:
        """The element type of a value: the workload's for real numbers, otherwise its own."""
        own = value.type.dtype
        return self.narrow.get(value, self.dtype) if own.is_float else own

    def split_of(self, layout: Layout) -> dict[Axis, int]:
        """Per axis that a layout splits, the number of pieces."""
        splits: dict[Axis, int] = {}
        for spot, degree in zip(layout, self.degrees, strict=True):
            if isinstance(spot, Axis):
                splits[spot] = splits.get(spot, 1) * degree
        return splits

    def local_type(self, value: Value, dims: AxisDims, layout: Layout) -> TensorType:
        """The type of one device's shard."""
        key = (dims, layout, self.dtype_of(value))
        found = self.types.get(key)
        if found is None:
            made = self._made_type(*key)
            found = self.types[key] = self.equal_types.setdefault(made, made)
        return found

    def _made_type(self, dims: AxisDims, layout: Layout, dtype: DType) -> TensorType:
        if FLAT in layout:
            return self._flat_type(self._made_type(dims, without_flat(layout), dtype), layout)
        splits = self.split_of(layout)
        shape: list[int] = []
        for dim in dims:
            sizes = [
                self.of(axis) // splits[axis] if axis in splits else self.of(axis) for axis in dim
            ]
            shape.append(reduce(mul, sizes) if sizes else 1)
        return TensorType(tuple(shape), dtype)

    def _flat_type(self, whole: TensorType, layout: Layout) -> TensorType:
        flat = (i for i, spot in enumerate(layout) if spot is FLAT)
        cut = FlatCut(whole.shape, tuple(self.degrees[i] for i in flat))
        return whole.with_shape((cut.piece,))


def without_flat(layout: Layout) -> Layout:
    """The layout of a flat value before it was cut into flat pieces."""
    return tuple(None if spot is FLAT else spot for spot in layout)


@dataclass(slots=True)
class Instantiation:
    """Turns steps of a placement into nodes on shards; every `Local` becomes one value. The sizes
    are those of one step of a block."""

    mesh: Mesh
    axes: Axes
    sizes: Sizes
    values: dict[Local, Value]
    routed: Mapping[Value, Copies] = field(default_factory=dict[Value, Copies])
    """How many rows are copies of one token, for values that are exchanged with experts."""

    def value(self, local: Local) -> Value:
        """The value that stands for a shard."""
        found = self.values.get(local)
        if found is None:
            value = local.value
            type = self.sizes.local_type(value, self.axes.dims[value], local.layout)
            found = self.values[local] = Value(type, value.name)
        return found

    def nodes(self, steps: Sequence[Placed], part: Part = Part.MODEL) -> list[Node]:
        """The SPMD program of some steps. `part` is the purpose of the changes of layout; ops keep
        their own."""
        return [
            self._op(step) if isinstance(step, PlacedOp) else self._move(step, part)
            for step in steps
        ]

    def _op(self, step: PlacedOp) -> Node:
        operands = tuple(self.value(local) for local in step.operands)
        results = tuple(self.value(local) for local in step.results)
        op = step.op
        source = step.node
        if op is source.op:
            op = self._rescaled(source)
        if _holds_sizes(type(op)):
            op = op.localized([value.type for value in operands], [value.type for value in results])
        windows = self._windows(step)
        if step.ring:
            op, results = self._ring(step, op, windows, operands, results)
        elif windows:
            op = Sharded(op, windows)
        return Node(op, operands, results, source.origin, source.part)

    def _rescaled(self, node: Node) -> Op:
        """The op of an undistributed node at these sizes."""
        if not _holds_sizes(type(node.op)):
            return node.op
        found = self.sizes.rescaled.get(node)
        if found is None:
            whole = (list(map(self._whole, values)) for values in (node.operands, node.results))
            found = self.sizes.rescaled[node] = node.op.rescaled(*whole)
        return found

    def _ring(
        self,
        step: PlacedOp,
        op: Op,
        windows: tuple[Window, ...],
        operands: Sequence[Value],
        results: tuple[Value, ...],
    ) -> tuple[Ring, tuple[Value, ...]]:
        """The op as one that sends its operands round the devices, and its results, followed by the
        buffers that this takes."""
        assert isinstance(op, Circulating)
        names = tuple(self.mesh.names[index] for index in step.ring)
        degree = math.prod(self.sizes.degrees[index] for index in step.ring)
        ring = Ring(op, names, degree, windows)
        types = ring.infer(*(value.type for value in operands))
        return ring, (*results, *(Value(type, "in flight") for type in types[len(results) :]))

    def _whole(self, value: Value) -> TensorType:
        return self.sizes.whole_type(value, self.axes.dims[value])

    def _windows(self, step: PlacedOp) -> tuple[Window, ...]:
        """The positions that devices hold of an op's split loops, and of padded rows of a table
        that it looks up, whose end is not the table's; none for an op whose results do not depend
        on where its shard is."""
        if type(step.op).evaluate_shard is Op.evaluate_shard:
            return ()
        split = _split_axes((*step.operands, *step.results), len(self.mesh.names))
        windows: list[Window] = []
        for index, loop in enumerate(self.axes.loops[step.node]):
            factors = tuple(
                (
                    self.sizes.of(axis),
                    tuple(
                        (self.mesh.names[i], self.sizes.degrees[i])
                        for i, axes in enumerate(split)
                        if axis in axes
                    ),
                )
                for axis in loop
            )
            padded = any(axis in self.sizes.unpadded for axis in loop)
            counted = padded and index == 0 and step.op.picks_by is not None
            if counted or any(splits for _, splits in factors):
                windows.append(Window(index, factors, self._padding(loop) if padded else 0))
        return tuple(windows)

    def _padding(self, loop: Sequence[Axis]) -> int:
        """The number of positions of a loop that the model does not have."""
        sizes = self.sizes
        own = math.prod(sizes.unpadded.get(axis, sizes.of(axis)) for axis in loop)
        return math.prod(map(sizes.of, loop)) - own

    def _move(self, step: PlacedMove, part: Part) -> Node:
        operand, result = self.value(step.operand), self.value(step.result)
        names = tuple(self.mesh.names[index] for index in step.mesh_axes)
        degree = math.prod(self.sizes.degrees[index] for index in step.mesh_axes)
        op: Op
        if step.move is Move.ALL_REDUCE:
            op = AllReduce(names, degree, step.reduction)
        elif step.move is Move.GATHER:
            op = AllGather(names, degree, self._cut(step, step.source))
        elif step.move is Move.REDUCE_SCATTER:
            cut = self._cut(step, step.target)
            op = ReduceScatter(names, degree, cut, step.reduction)
        elif step.move is Move.SLICE:
            op = Shard(names, degree, self._cut(step, step.target))
        elif step.move is Move.SPREAD:
            cut = None if step.source is None else self._axis_cut(step.operand, step.source)
            op = Spread(names, degree, cut)
        else:
            op = self._exchange(step, names, degree)
        return Node(op, (operand,), (result,), step.operand.value.name, part)

    def _exchange(self, step: PlacedMove, names: tuple[str, ...], degree: int) -> AllToAll:
        scatter = self._axis_cut(step.operand, step.target)
        layout = step.operand.layout
        both = tuple(None if i in step.mesh_axes else spot for i, spot in enumerate(layout))
        # Between scattering and gathering, the value is split over both axes.
        splits = self.sizes.split_of(both)
        for axis in (step.source, step.target):
            assert axis is not None
            splits[axis] = splits.get(axis, 1) * degree
        gather = self._cut_at(step.operand.value, splits, step.source)
        return AllToAll(names, degree, scatter, gather, self.routed.get(step.operand.value))

    def _cut(self, step: PlacedMove, axis: Axis | None) -> Cut | FlatCut:
        if axis is FLAT:
            joined = step.result if step.move is Move.GATHER else step.operand
            degrees = tuple(self.sizes.degrees[index] for index in step.mesh_axes)
            return FlatCut(self.value(joined).type.shape, degrees)
        return self._axis_cut(step.operand, axis)

    def _axis_cut(self, local: Local, axis: Axis | None) -> Cut:
        return self._cut_at(local.value, self.sizes.split_of(local.layout), axis)

    def _cut_at(self, value: Value, splits: Mapping[Axis, int], axis: Axis | None) -> Cut:
        """Where an axis lies in a shard of a value that is split into these numbers of pieces."""
        for dim, factors in enumerate(self.axes.dims[value]):
            if axis in factors:
                sizes = tuple(self.sizes.of(a) // splits.get(a, 1) for a in factors)
                return Cut(dim, sizes, factors.index(axis))
        raise AssertionError(f"{value!r} does not carry {axis!r}")


@cache
def _holds_sizes(op: type[Op]) -> bool:
    """Whether ops of a class have attributes that depend on the sizes of axes."""
    return op.localized is not Op.localized or op.rescaled is not Op.rescaled


def _split_axes(locals_: Sequence[Local], count: int) -> list[set[Axis]]:
    """Per mesh axis, the logical axes that an op's operands and results are split over."""
    found: list[set[Axis]] = [set() for _ in range(count)]
    for local in locals_:
        for index, spot in enumerate(local.layout):
            if isinstance(spot, Axis):
                found[index].add(spot)
    return found
