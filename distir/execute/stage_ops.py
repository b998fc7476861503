"""Runs the ops of a stage on all of its devices, and counts them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeGuard

import numpy as np

from distir.execute.computing import NUMPY, Computing
from distir.execute.counts import Counts
from distir.execute.devices import Shards, VirtualMesh, Wire
from distir.ir.core import Array, Node, Op, Value
from distir.ir.types import DType, TensorType
from distir.ops.collective import Collective
from distir.ops.ring import Ring
from distir.plan import Plan, Stage
from distir.transforms.block import Block
from distir.transforms.moves import Layout


@dataclass(frozen=True, slots=True)
class _NodeCount:
    """What an op of a program adds to the counts, every time that it runs."""

    flops: float
    collective: tuple[str, tuple[str, ...]] | None
    size_bytes: float


@dataclass(slots=True)
class StageOps:
    """The devices of a stage as what computes: `meshes` has them block by block, since blocks
    differ in their axes. With a `wire`, one device of the stage is here, and the others are in
    processes of their own. `computing` holds the arrays.
    """

    plan: Plan
    stage: Stage
    wire: Wire | None = None
    computing: Computing = NUMPY
    counts: Counts = field(default_factory=Counts)
    meshes: tuple[VirtualMesh, ...] = field(init=False)
    _counted: dict[Node, _NodeCount] = field(default_factory=dict[Node, _NodeCount])

    def __post_init__(self) -> None:
        self.meshes = tuple(
            VirtualMesh(self.plan.mesh, program.sizes, self.wire, self.computing)
            for program in self.stage.programs
        )

    def block(self, block: int) -> Block:
        """The block of the model that is one of the stage's; equal blocks share their program."""
        return self.plan.workload.program.blocks.blocks[self.stage.blocks[block]]

    def scatter(self, block: int, value: Value, array: Array, layout: Layout) -> Shards:
        """The shards of a whole array, for a value of a block's program."""
        dims = self.stage.programs[block].placed.step.axes.dims[value]
        return self.meshes[block].scatter(array, dims, layout)

    def gather(self, block: int, value: Value, shards: Shards, layout: Layout) -> Array:
        """The whole array from its shards, for a value of a block's program."""
        dims = self.stage.programs[block].placed.step.axes.dims[value]
        return self.meshes[block].gather(shards, dims, layout)

    def held(self, shards: Shards, dtype: DType) -> Shards:
        """The shards as devices hold values of this type."""
        return [self.computing.held(shard, dtype) for shard in shards]

    def step(self, block: int, node: Node, operands: list[Shards]) -> list[Shards]:
        """Runs one op on all devices of the stage, and counts it."""
        made = self.meshes[block].step(node, operands)
        self._count(node, operands, made)
        return made

    def in_buckets(
        self, block: int, held: Mapping[int, Shards], nodes_of: Sequence[Sequence[Node]]
    ) -> dict[int, Shards]:
        """Runs, for each place in a block's list of parameters, its nodes on what is held there.
        Equal collectives of the block go as one message, as they are priced."""
        done = dict(held)
        for turn in range(max((len(nodes_of[place]) for place in held), default=0)):
            buckets: dict[object, list[int]] = {}
            for place in held:
                for node in nodes_of[place][turn : turn + 1]:
                    op = node.op
                    equal = (op.kind, op.mesh_axes, op.name) if _is_single(op) else place
                    buckets.setdefault(equal, []).append(place)
            for places in buckets.values():
                nodes = [nodes_of[place][turn] for place in places]
                before = [done[place] for place in places]
                done.update(zip(places, self._together(block, nodes, before), strict=True))
        return done

    def _together(self, block: int, nodes: list[Node], operands: list[Shards]) -> list[Shards]:
        if not _is_single(nodes[0].op):
            return self.step(block, nodes[0], operands)
        made = self.meshes[block].bucket(nodes, operands)
        for node, before, after in zip(nodes, operands, made, strict=True):
            self._count(node, [before], [after])
        return made

    def _count(self, node: Node, operands: list[Shards], made: list[Shards]) -> None:
        count = self._counted.get(node)
        if count is None:
            count = self._counted[node] = _count(node, operands, made)
        if count.collective is not None:
            self.counts.add_collective(*count.collective, count.size_bytes)
        self.counts.flops += count.flops


def _is_single(op: Op) -> TypeGuard[Collective]:
    """Whether an op is a collective of one tensor."""
    return isinstance(op, Collective) and op.tensors == (op,)


def _count(node: Node, operands: list[Shards], results: list[Shards]) -> _NodeCount:
    op, types = node.op, types_of(node, operands, results)
    flops = 0.0 if isinstance(op, Collective) else float(op.work(*types).flops)
    if isinstance(op, (Collective, Ring)):
        return _NodeCount(flops, (op.kind, op.mesh_axes), float(op.total_bytes(*types)))
    return _NodeCount(flops, None, 0.0)


def types_of(
    node: Node, operands: list[Shards], results: list[Shards]
) -> tuple[list[TensorType], list[TensorType]]:
    """Types of the shards that an op read and made on the first device."""
    operand_types, result_types = (
        [
            value.type.with_shape(np.shape(shards[0]))
            for value, shards in zip(values, arrays, strict=True)
        ]
        for values, arrays in ((node.operands, operands), (node.results, results))
    )
    return operand_types, result_types


__all__ = ["StageOps", "types_of"]
