"""Numbers placed programs, so that strategies that run the same program are told to.

Two strategies have equal fingerprints if every device of theirs runs the same ops in the same
layouts, with the same changes of layout between them, whatever lists of axes led to that. What is
left are numbers: sizes, degrees, the order of a schedule. Values, axes and shards are compared by
where they first occur, and never by name.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence

from distir.axes.model import Axes, Axis
from distir.ir.core import Node, Value
from distir.plan.positions import Positions, positions_of
from distir.transforms.moves import FLAT, Local, PlacedMove
from distir.transforms.place import Mesh, Placed
from distir.transforms.place_block import PlacedBlock


class Fingerprints:
    """Gives equal placed programs equal numbers."""

    def __init__(self) -> None:
        self._blocks: dict[PlacedBlock, int] = {}
        self._numbers: dict[Hashable, int] = {}

    def of_chain(
        self,
        mesh: Mesh,
        chain: Sequence[PlacedBlock],
        stored: Sequence[Mapping[Value, Positions]],
    ) -> int:
        """The number of a model's blocks, placed on a mesh, with where their parameters rest."""
        padded = frozenset(
            (axis, tuple(any(e.axis is axis for e in entries) for entries in mesh.lists))
            for axis in mesh.padded
        )
        blocks = tuple(map(self._of_block, chain))
        rests = tuple(self._number(tuple(own.values())) for own in stored)
        return self._number((mesh.names, mesh.users, mesh.sharding, padded, blocks, rests))

    def _of_block(self, placed: PlacedBlock) -> int:
        if placed not in self._blocks:
            self._blocks[placed] = self._number(_Numbering(placed.step.axes).of_block(placed))
        return self._blocks[placed]

    def _number(self, key: Hashable) -> int:
        return self._numbers.setdefault(key, len(self._numbers))


class _Numbering:
    """Values, axes and shards of one placed block, numbered as they occur."""

    def __init__(self, axes: Axes) -> None:
        self._axes = axes
        self._of_axis: dict[Axis, int] = {}
        self._of_value: dict[Value, int] = {}
        self._of_local: dict[Local, int] = {}
        self._told: list[Hashable] = []
        """What the values and shards are, in the order of their numbers."""

    def of_block(self, placed: PlacedBlock) -> Hashable:
        """All that a placed block says, in numbers."""
        parameters = placed.step.block.parameters
        gradients = (placed.parameter_gradients.get(value) for value in parameters)
        steps = tuple(map(self._step, (*placed.forward, *placed.backward)))
        ends = tuple(
            tuple(-1 if local is None else self._local(local) for local in locals_)
            for locals_ in (
                placed.inputs,
                placed.outputs,
                placed.results,
                placed.output_gradients,
                placed.input_gradients,
                gradients,
            )
        )
        demanded, saved = (
            frozenset(map(self._local, locals_)) for locals_ in (placed.demanded, placed.saved)
        )
        values = tuple(map(self._value, parameters))
        return len(placed.forward), steps, ends, demanded, saved, values, tuple(self._told)

    def _step(self, step: Placed) -> Hashable:
        if isinstance(step, PlacedMove):
            dims = self._axes.dims[step.operand.value]
            spots = tuple(
                spot if spot is None or spot is FLAT else positions_of((spot,), dims)
                for spot in (step.source, step.target)
            )
            ends = self._local(step.operand), self._local(step.result)
            return step.move, step.mesh_axes, *ends, spots, step.reduction
        ends = self._locals(step.operands), self._locals(step.results)
        return step.op, self._node(step.node), *ends, step.ring

    def _node(self, node: Node) -> Hashable:
        operands, results = (
            tuple(map(self._value, values)) for values in (node.operands, node.results)
        )
        return node.op, node.part, operands, results

    def _locals(self, locals_: Iterable[Local]) -> tuple[int, ...]:
        return tuple(map(self._local, locals_))

    def _local(self, local: Local) -> int:
        if local not in self._of_local:
            value = self._value(local.value)
            self._of_local[local] = len(self._of_local)
            layout = positions_of(local.layout, self._axes.dims[local.value])
            self._told.append((value, layout))
        return self._of_local[local]

    def _value(self, value: Value) -> int:
        if value not in self._of_value:
            self._of_value[value] = len(self._of_value)
            dims = tuple(
                tuple(self._of_axis.setdefault(axis, len(self._of_axis)) for axis in dim)
                for dim in self._axes.dims[value]
            )
            self._told.append((value.type, dims))
        return self._of_value[value]


__all__ = ["Fingerprints"]
