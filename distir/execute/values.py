"""Inputs and results of a step as whole arrays, their microbatches, and random inputs for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np

from distir.axes.model import Axis
from distir.axes.rescale import part, resize, shape_at
from distir.ir.core import Array, Node, Value
from distir.ir.types import DType
from distir.ops.elementwise import Cast, Identity
from distir.ops.lookup import Gather, GatherElements, GatherND, ScatterElements, ScatterND
from distir.ops.loss import CrossEntropy, PickLast
from distir.ops.optimizer import AdamStep, MomentumStep, SGDStep
from distir.ops.tensor import Boundary, Concat, Expand, Reshape, Slice, Split, Transpose
from distir.workload import OPTIMIZERS, Workload

OptimizerStep = SGDStep | MomentumStep | AdamStep


@dataclass(frozen=True, slots=True)
class StepValues:
    """The arrays that a step begins with. `sources` are inputs and constants for the whole batch;
    `moments` is the optimizer's state per parameter. Keys are values of the workload's program."""

    sources: Mapping[Value, Array]
    parameters: Mapping[Value, Array]
    moments: Mapping[Value, tuple[Array, ...]] = field(default_factory=dict[Value, Any])


@dataclass(frozen=True, slots=True)
class StepResult:
    """The arrays that a step ends with. `outputs` is the loss alone when training; `parameters` and
    `moments` are those after the optimizer's step, and empty without one."""

    outputs: tuple[Array, ...]
    gradients: Mapping[Value, Array] = field(default_factory=dict[Value, Any])
    parameters: Mapping[Value, Array] = field(default_factory=dict[Value, Any])
    moments: Mapping[Value, tuple[Array, ...]] = field(default_factory=dict[Value, Any])

    @property
    def loss(self) -> float:
        """The loss of the batch, when training."""
        return float(self.outputs[0])


def optimizer_step(workload: Workload, step: int = 1) -> OptimizerStep:
    """The optimizer's op for step number `step`."""
    op = OPTIMIZERS[workload.optimizer].step
    return op(step=step) if issubclass(op, AdamStep) else op()


def loss_weight(workload: Workload, microbatches: int) -> float:
    """The factor of a microbatch's loss in the loss of the batch: a loss is the mean over its
    samples, unless the workload asks for the sum."""
    return 1.0 if workload.loss == "sum" else 1.0 / microbatches


def replica_weight(workload: Workload, microbatches: int, replicas: int) -> float:
    """As `loss_weight`, but in the loss of a replica's own samples, if `replicas` of them have
    parameters of their own."""
    alone = 1 if workload.loss == "sum" else replicas
    return alone * loss_weight(workload, microbatches)


# --- microbatches ---------------------------------------------------------------------------------


def batch_axes(workload: Workload) -> frozenset[Axis]:
    """All axes of the program that are batches: those of inputs, and axes tied to them."""
    program = workload.program
    tied = {program.axes.tied(axis) for axis in program.batches}
    return frozenset(axis for axis in program.all_axes if program.axes.tied(axis) in tied)


def microbatch(
    workload: Workload, value: Value, array: Array, index: int, microbatches: int
) -> Array:
    """The part of an input or constant that belongs to one microbatch."""
    samples = workload.batch_size // microbatches
    held = slice(index * samples, (index + 1) * samples)
    dims = workload.program.axes.dims[value]
    sizes = workload.sizes(workload.batch_size)
    return part(array, dims, sizes, dict.fromkeys(batch_axes(workload), held))


def join_microbatches(workload: Workload, value: Value, parts: Sequence[Array]) -> Array:
    """The array of an output from its parts per microbatch: joined along the batch; the mean if the
    output does not carry the batch. An output with the samples of two inputs (two batch axes) has
    the pairs within each microbatch, one microbatch after the other."""
    axes = [axis for dim in workload.program.axes.dims[value] for axis in dim]
    if batch_axes(workload).isdisjoint(axes):
        return reduce(np.add, parts) / len(parts)
    return joined_samples(workload, value, parts)


def joined_samples(workload: Workload, value: Value, parts: Sequence[Array]) -> Array:
    """A value of the whole batch from its parts for as many equal shares of the samples, in order;
    the first part if the value has no samples."""
    dims = workload.program.axes.dims[value]
    axes = [axis for dim in dims for axis in dim]
    batch = batch_axes(workload)
    position = next((i for i, axis in enumerate(axes) if axis in batch), None)
    if position is None:
        return parts[0]
    sizes = dict(workload.sizes(workload.batch_size // len(parts)))
    by_axis = [each.reshape([sizes.get(axis, axis.size) for axis in axes]) for each in parts]
    whole = np.concatenate(by_axis, axis=position)
    sizes[axes[position]] = workload.batch_size
    return whole.reshape(shape_at(dims, sizes))


# --- random values --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RandomValues:
    """Random values to run a program with; `invented` names the tables whose values were made up,
    because the model does not have them or has them for other sizes."""

    values: StepValues
    invented: tuple[str, ...]


def random_values(
    workload: Workload, seed: int = 0, truth: float = 0.5, microbatches: int = 1
) -> RandomValues:
    """Random inputs, parameters and moments; real numbers in float64.

    Integers that are used as indices are in range, also for one of the microbatches alone. A table
    without values gets made-up ones: real numbers, integers in range, or booleans of which the
    fraction `truth` is true. These show as well as any others whether a distributed program
    computes what the sequential one does.
    """
    program, rng = workload.program, np.random.default_rng(seed)
    function, axes = program.function, program.axes
    sizes = workload.sizes(workload.batch_size)
    least = workload.sizes(workload.batch_size // microbatches)
    bounds = index_bounds(function.nodes, {v: shape_at(axes.dims[v], least) for v in axes.dims})
    make = _Maker(rng, bounds, truth)
    sources: dict[Value, Array] = {}
    invented: list[str] = []
    for value, array in function.constants.items():
        known = None if array is None else resize(array, axes.dims[value], sizes)
        if known is None:
            invented.append(value.name)
            sources[value] = make(value, shape_at(axes.dims[value], sizes))
            continue
        if value in bounds and np.any((known >= bounds[value]) | (known < -bounds[value])):
            # Indices that the exporter computed for the sizes in the file.
            invented.append(value.name)
            known = known % bounds[value]
        sources[value] = known.astype(np.float64) if value.type.dtype.is_float else known
    for value in function.inputs:
        sources[value] = make(value, shape_at(axes.dims[value], sizes))
    parameters = {
        value: make.parameter(value, shape_at(axes.dims[value], sizes))
        for value in function.parameters
    }
    num_moments = OPTIMIZERS[workload.optimizer].num_moments
    moments = {
        value: tuple(rng.random(array.shape) for _ in range(num_moments))
        for value, array in parameters.items()
    }
    return RandomValues(StepValues(sources, parameters, moments), tuple(invented))


@dataclass(frozen=True, slots=True)
class _Maker:
    rng: np.random.Generator
    bounds: Mapping[Value, int]
    truth: float

    def __call__(self, value: Value, shape: tuple[int, ...]) -> Array:
        if value.type.dtype.is_float:
            return self.rng.normal(size=shape)
        if value.type.dtype is not DType.BOOL and value in self.bounds:
            return self.rng.integers(0, self.bounds[value], shape)
        truths = self.rng.random(shape) < self.truth
        if shape and shape[-1] > 1 and 0 < self.truth < 1:
            # A mask keeps something, whether true or false means masked.
            truths[..., 0], truths[..., -1] = True, False
        return truths if value.type.dtype is DType.BOOL else truths.astype(np.int64)

    def parameter(self, value: Value, shape: tuple[int, ...]) -> Array:
        if not value.type.dtype.is_float:
            return self(value, shape)
        if len([size for size in shape if size > 1]) < 2:
            # Scales of norms and variances must stay away from zero.
            return 0.5 + self.rng.random(shape)
        scale = max(1, min(np.prod(shape[1:]), np.prod(shape[:-1]))) ** -0.5
        return scale * self.rng.normal(size=shape)


_MOVING = (Reshape, Transpose, Expand, Slice, Split, Concat, Cast, Identity, Boundary)
"""Ops whose results have only elements of their operands, so that a bound on them goes through."""


def index_bounds(
    nodes: Sequence[Node], shapes: Mapping[Value, tuple[int, ...]]
) -> dict[Value, int]:
    """Per integer value that is used as an index, the number of rows it may choose from: of all its
    uses the fewest."""
    bounds: dict[Value, int] = {}

    def bound(value: Value, rows: int) -> None:
        bounds[value] = min(rows, bounds.get(value, rows))

    for node in reversed(nodes):
        indexed = rows_indexed(node, shapes)
        if indexed is not None:
            bound(node.operands[1], indexed)
        if isinstance(node.op, _MOVING):
            for result in node.results:
                if result in bounds:
                    for operand in node.operands:
                        bound(operand, bounds[result])
    return bounds


def rows_indexed(node: Node, shapes: Mapping[Value, tuple[int, ...]]) -> int | None:
    """Number of rows that the second operand of a node chooses from, in each of several dims at
    least; None if it is no index."""
    dims = dims_indexed(node)
    return min((shapes[node.operands[0]][dim] for dim in dims), default=None)


def dims_indexed(node: Node) -> tuple[int, ...]:
    """The dims of a node's first operand that its second one chooses from; none if it is no index.
    If there are several, the last dim of the index has a place in each of them."""
    op = node.op
    if isinstance(op, (Gather, GatherElements, ScatterElements)):
        return (op.axis,)
    if isinstance(op, (CrossEntropy, PickLast)):
        return (-1,)
    if isinstance(op, (GatherND, ScatterND)):
        start = op.batch_dims if isinstance(op, GatherND) else 0
        return tuple(range(start, start + node.operands[1].type.shape[-1]))
    return ()


__all__ = [
    "OptimizerStep",
    "RandomValues",
    "StepResult",
    "StepValues",
    "batch_axes",
    "dims_indexed",
    "index_bounds",
    "join_microbatches",
    "joined_samples",
    "loss_weight",
    "microbatch",
    "optimizer_step",
    "random_values",
    "replica_weight",
    "rows_indexed",
]
