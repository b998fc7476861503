"""Makes a model small enough to execute: fewer blocks and shorter axes, the same structure.

What a strategy does to a model depends on which axes its degrees divide and on which blocks are
equal, so both are kept. A degree of the strategy divides a shortened axis exactly if it divided
the original. Axes that must have equal sizes keep them. Every kind of block stays.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from distir.axes.model import Axes, Axis
from distir.axes.order import canonical_order
from distir.axes.rescale import op_at, rescale, resize
from distir.errors import DistirError, TransformError
from distir.execute.values import dims_indexed, random_values
from distir.importers.load import LoadedModel
from distir.ir.core import Array, Node, Part, Value
from distir.ir.function import Function
from distir.ops.loss import CrossEntropy
from distir.ops.tensor import Boundary, Concat, Split
from distir.program import Program, build_program
from distir.strategy import Strategy
from distir.transforms.blocks import Blocks
from distir.workload import Workload

SMALLEST = 4
"""No axis becomes shorter than this, and no chain of blocks, unless it was shorter before;
and what pieces of axes are padded to a multiple of does not stay larger."""

ATTEMPTS = 8
"""Sizes that are tried for an axis, and rounds in which tables get the rows that indices need."""

MOST_EXECUTED_SAMPLES = 1 << 13
"""Samples beyond which execution in NumPy takes too long; more would prove no more."""


def shrink(workload: Workload, strategies: Sequence[Strategy], samples: int = 2) -> Workload:
    """A small workload on which the strategies act as on the whole one.

    A microbatch has `samples` samples per replica. Raises `TransformError` if the strategies need
    more than `MOST_EXECUTED_SAMPLES` samples, or if no small sizes fit together.
    """
    degrees = _degrees(strategies)
    whole = _main_part(workload)
    stages = max(strategy.stages for strategy in strategies)
    sequences = workload.model.sequences
    function = drop_blocks(whole, max(2 * stages, SMALLEST), sequences)
    batch = samples * math.lcm(*(_pieces_of_batch(strategy) for strategy in strategies))
    if batch > MOST_EXECUTED_SAMPLES:
        raise TransformError(
            f"dp x microbatches needs {batch:,} samples ({samples} in each), too many to execute; "
            f"use fewer microbatches, which prove just as much (at most {MOST_EXECUTED_SAMPLES:,} "
            "samples)"
        )
    loss = _loss_kind(workload) if workload.training else None
    least: dict[str, int] = {}
    for _ in range(ATTEMPTS):
        small, row_axes = shrink_sizes(function, degrees, workload.length, least, sequences)
        stated = (v.type.shape[d] for v in small.inputs for d in sequences.get(v.name, ()))
        name, length = f"small {workload.model.name}", next(stated, None)
        model = LoadedModel(name, small, length, sequences=sequences)
        shrunk = Workload(
            model=model,
            mode=workload.mode,
            batch_size=batch,
            precision=workload.precision,
            gradient_precision=workload.gradient_precision,
            optimizer=workload.optimizer,
            loss=loss,
            dropout=workload.dropout,
            vocabulary_multiple=min(workload.vocabulary_multiple, SMALLEST),
        )
        if shrunk.num_blocks < stages and function is not whole:
            # Layers that are layers by their number alone are too few.
            function = whole
            continue
        needed = _rows_needed(shrunk, row_axes)
        if not needed:
            return shrunk
        least.update(needed)
    raise TransformError(
        f"{workload.model.name} cannot be made small: after {ATTEMPTS} attempts its indices still "
        f"need longer axes: {least}"
    )


def _degrees(strategies: Iterable[Strategy]) -> tuple[int, ...]:
    """Every number of pieces that an axis may be cut into: all divisors of the devices that share
    a stage, because a degree may be split into factors."""
    found: set[int] = set()
    for strategy in strategies:
        most = strategy.dp * strategy.tp * strategy.cp
        found.update(pieces for pieces in range(2, most + 1) if most % pieces == 0)
    return tuple(sorted(found))


def _pieces_of_batch(strategy: Strategy) -> int:
    """A number that the batch must be divisible by. Axis lists that a strategy states may split
    the batch over any mesh axis."""
    splitting = strategy.dp * (strategy.cp * strategy.tp if strategy.axes else 1)
    return splitting * strategy.microbatches


def _main_part(workload: Workload) -> Function:
    """The model with the chosen output first, and in training without the others."""
    function = workload.model.function
    outputs = list(function.outputs)
    if workload.output is not None:
        outputs.sort(key=lambda value: value.name != workload.output)
    if workload.training:
        outputs = outputs[:1]
    return without_unused(replace(function, outputs=tuple(outputs)))


def _loss_kind(workload: Workload) -> str | None:
    if workload.loss is not None:
        return workload.loss
    losses = [node.op for node in workload.program.function.nodes if node.part is Part.LOSS]
    return "cross-entropy" if any(isinstance(op, CrossEntropy) for op in losses) else "mse"


def without_unused(function: Function) -> Function:
    """The function without the ops, inputs, parameters and constants that no output needs."""
    function = canonical_order(function)
    read = {value for node in function.nodes for value in node.operands} | set(function.outputs)
    return replace(
        function,
        parameters=tuple(value for value in function.parameters if value in read),
        constants={value: a for value, a in function.constants.items() if value in read},
        inputs=tuple(value for value in function.inputs if value in read),
    )


# --- fewer blocks ---------------------------------------------------------------------------------


def drop_blocks(
    function: Function, fewest: int, sequences: Mapping[str, Sequence[int]] | None = None
) -> Function:
    """The function with fewer blocks, at least `fewest`.

    Stretches from a block up to an equal one are cut out. Every kind of block stays, and two of a
    kind that had two or more. If the shorter function would be cut into other blocks, fewer are
    left out. `sequences` are stated dims of inputs, as `build_program` has them.
    """
    blocks = build_program(function, training=False, sequences=sequences).blocks
    for least in range(fewest, len(blocks.blocks)):
        kept = _kept_blocks(blocks, least)
        if len(kept) == len(blocks.blocks):
            break
        shorter = without_boundaries(_chain(blocks, kept))
        found = build_program(shorter, training=False, sequences=sequences).blocks
        if _op_names(found, range(len(found.blocks))) == _op_names(blocks, kept):
            return shorter
    return function


def _op_names(blocks: Blocks, chosen: Iterable[int]) -> list[tuple[str, ...]]:
    """The names of the ops of each chosen block."""
    return [tuple(node.op.name for node in blocks.blocks[index].nodes) for index in chosen]


def _kept_blocks(blocks: Blocks, fewest: int) -> list[int]:
    """Indices of the blocks that stay if stretches are cut out until `fewest` are left."""
    kept = list(range(len(blocks.blocks)))
    while len(kept) > fewest:
        found = _removable_stretch(blocks, kept, fewest)
        if found is None:
            break
        del kept[found[0] : found[1]]
    return kept


def _removable_stretch(blocks: Blocks, kept: Sequence[int], fewest: int) -> tuple[int, int] | None:
    """The shortest stretch from a block up to an equal one that may be cut out: (start, stop) in
    `kept`."""
    kinds = [blocks.representative[index] for index in kept]
    for length in range(1, len(kept) - fewest + 1):
        for start in range(len(kept) - length):
            if kinds[start] != kinds[start + length]:
                continue
            rest = kinds[:start] + kinds[start + length :]
            cut = set(kinds[start : start + length])
            if all(rest.count(kind) >= min(2, kinds.count(kind)) for kind in cut):
                return start, start + length
    return None


def _chain(blocks: Blocks, kept: Sequence[int]) -> Function:
    """The function of the kept blocks alone; each reads from the kept block before it."""
    function = blocks.function
    renamed: dict[Value, Value] = {}
    previous = -1
    for index in kept:
        if index != previous + 1:
            # The first block that is left out equals this one.
            skipped = blocks.blocks[previous + 1]
            for ours, theirs in zip(blocks.blocks[index].inputs, skipped.inputs, strict=True):
                if ours is not theirs:
                    renamed[ours] = renamed.get(theirs, theirs)
        previous = index
    made = {v for index in kept for node in blocks.blocks[index].nodes for v in node.results}
    lost = {v for block in blocks.blocks for node in block.nodes for v in node.results} - made
    nodes = tuple(
        replace(node, operands=tuple(renamed.get(value, value) for value in node.operands))
        for node in function.nodes
        if node.results[0] not in lost
    )
    outputs = tuple(value for value in function.outputs if value not in lost)
    return without_unused(replace(function, nodes=nodes, outputs=outputs))


def without_boundaries(function: Function) -> Function:
    """The function without the boundaries that axis inference has inserted."""
    source: dict[Value, Value] = {}
    nodes: list[Node] = []
    for node in function.nodes:
        operands = tuple(source.get(value, value) for value in node.operands)
        if isinstance(node.op, Boundary):
            source[node.result] = operands[0]
        else:
            nodes.append(replace(node, operands=operands))
    outputs = tuple(source.get(value, value) for value in function.outputs)
    return replace(function, nodes=tuple(nodes), outputs=outputs)


# --- smaller sizes --------------------------------------------------------------------------------


def shrink_sizes(
    function: Function,
    degrees: Collection[int],
    sequence_length: int | None,
    least: Mapping[str, int],
    sequences: Mapping[str, Sequence[int]] | None = None,
) -> tuple[Function, Mapping[Value, tuple[RowAxis | None, ...]]]:
    """The function with every axis as short as possible, except the batch.

    Also returns, per parameter and constant, the axis of each dim (None for a dim that is a product
    of several axes). `least` gives smallest sizes by the names of such axes. `sequences` are stated
    dims of inputs, as `build_program` has them.
    """
    program = build_program(function, training=False, sequences=sequences)
    sizing = _Sizing(program, degrees, least)
    sizing.run(sequence_length)
    small = rescale(program.function, program.axes, sizing.sizes)
    old_sources = (*program.function.parameters, *program.function.constants)
    new_sources = (*small.parameters, *small.constants)
    row_axes = {
        new: tuple(
            RowAxis(sizing.names[sizing.root(dim[0])], dim[0].size) if len(dim) == 1 else None
            for dim in program.axes.dims[old]
        )
        for old, new in zip(old_sources, new_sources, strict=True)
    }
    return without_boundaries(small), row_axes


@dataclass(frozen=True, slots=True)
class RowAxis:
    """An axis of a table: a name, and the number of rows of the table as the model has it."""

    name: str
    rows: int


@dataclass(slots=True)
class _Sizing:
    """Finds a short size for every class of axes that must be equally long."""

    program: Program
    degrees: Collection[int]
    least: Mapping[str, int]
    sizes: dict[Axis, int] = field(default_factory=dict[Axis, int])
    members: dict[Axis, list[Axis]] = field(default_factory=dict[Axis, list[Axis]])
    names: dict[Axis, str] = field(default_factory=dict[Axis, str])
    _root: dict[Axis, Axis] = field(default_factory=dict[Axis, Axis])
    _changed: set[Axis] = field(default_factory=set[Axis])

    @property
    def axes(self) -> Axes:
        return self.program.axes

    def root(self, axis: Axis) -> Axis:
        """The representative of the axes that must be equally long: axes that are tied, and axes
        at the same place of equal blocks."""
        while axis in self._root:
            axis = self._root[axis]
        return axis

    def _join(self, a: Axis, b: Axis) -> None:
        a, b = self.root(a), self.root(b)
        if a is not b:
            self._root[b] = a

    def run(self, sequence_length: int | None) -> None:
        """Shortens one class of axes after the other, the longest first. A length that the model
        has as it is may be that of several axes together, and then says nothing of each."""
        if self.program.extents.piece == 1 and sequence_length == self.program.file_length:
            sequence_length = None
        group = self.program.blocks.group
        every = list(
            dict.fromkeys(a for dims in self.axes.dims.values() for dim in dims for a in dim)
        )
        for axis in every:
            self._join(self.axes.tied(axis), axis)
            self._join(group.get(axis, axis), axis)
        for axis in every:
            self.members.setdefault(self.root(axis), []).append(axis)
        self.names = {axis: f"axis {number}" for number, axis in enumerate(self.members)}
        extents = self.program.extents
        fixed = {self.root(axis) for axis in self.program.batches}
        followers = {self.root(axis) for axis in self.axes.follows}
        sequences = {self.root(axis) for axis in extents.sequences}
        for axis in sorted(self.members, key=lambda axis: -axis.size):
            if axis in fixed or axis in self._changed or axis in followers:
                continue
            length = sequence_length if axis in sequences and sequence_length else axis.size
            for size in self._candidates(axis, length):
                if self._try(axis, size, fixed):
                    break

    def _candidates(self, axis: Axis, length: int) -> Iterable[int]:
        """Short sizes that the same degrees divide as `length`; sizes that no other axis has come
        first."""
        smallest = max(min(SMALLEST, length), self.least.get(self.names[axis], 1))
        pattern = [length % degree == 0 for degree in self.degrees]
        fitting: list[int] = []
        for size in range(smallest, max(length, axis.size)):
            if [size % degree == 0 for degree in self.degrees] == pattern:
                fitting.append(size)
            if len(fitting) == ATTEMPTS:
                break
        taken = set(self.sizes.values())
        return [s for s in fitting if s not in taken] + [s for s in fitting if s in taken]

    def _try(self, axis: Axis, size: int, fixed: Collection[Axis]) -> bool:
        """Gives a class of axes a size, and other classes the sizes that follow from it; takes all
        back if they contradict each other. Returns whether they fit."""
        before, changed = dict(self.sizes), set(self._changed)
        self._set(axis, size)
        while True:
            repairs = self._contradiction()
            if repairs is None:
                return True
            kept = {*self._changed, *fixed}
            repair = next((r for r in repairs if self.root(r[0]) not in kept and r[1] > 1), None)
            if repair is None:
                self.sizes, self._changed = before, changed
                return False
            self._set(self.root(repair[0]), repair[1])

    def _set(self, axis: Axis, size: int) -> None:
        self.sizes.update(dict.fromkeys(self.members[axis], size))
        if self.members[axis][0] not in self.axes.follows:
            # An axis that follows another one changes whenever that one does.
            self._changed.add(axis)

    def _contradiction(self) -> Sequence[tuple[Axis, int]] | None:
        """Repairs of the first op whose sizes do not fit, each an axis with the size that would
        fit; empty if there is no repair, None if the sizes of all ops fit."""
        for node in self.program.function.nodes:
            operands = [self.axes.type_at(value, self.sizes) for value in node.operands]
            repairs = self._repairs_of_sum(node)
            if repairs:
                return repairs
            try:
                inferred = op_at(node, self.axes, self.sizes).infer(*operands)
            except (DistirError, ZeroDivisionError, IndexError):
                return ()
            for value, type in zip(node.results, inferred, strict=True):
                expected = self.axes.type_at(value, self.sizes).shape
                if len(expected) != len(type.shape):
                    return ()
                for dim, ours, theirs in zip(
                    self.axes.dims[value], expected, type.shape, strict=True
                ):
                    if ours != theirs:
                        return ((dim[0], theirs),) if len(dim) == 1 else ()
        return None

    def _repairs_of_sum(self, node: Node) -> list[tuple[Axis, int]]:
        """Repairs of a Split or Concat whose parts do not add up to the whole."""
        if isinstance(node.op, Split):
            whole, parts = node.operands[0], node.results
        elif isinstance(node.op, Concat):
            whole, parts = node.result, node.operands
        else:
            return []
        places = [self.axes.dims[value][node.op.axis] for value in (whole, *parts)]
        total, *lengths = (math.prod(self.sizes.get(a, a.size) for a in place) for place in places)
        excess = sum(lengths) - total
        if not excess:
            return []
        wanted = [total + excess, *(length - excess for length in lengths)]
        pairs = zip(places, wanted, strict=True)
        return [(place[0], size) for place, size in pairs if len(place) == 1]


def _rows_needed(
    workload: Workload, row_axes: Mapping[Value, Sequence[RowAxis | None]]
) -> dict[str, int]:
    """Names of table axes with fewer rows than their indices ask for, and the rows needed: never
    more than the model's own table has."""
    program = workload.program
    sequence = program.sequence
    tied, moving = program.axes.tied, program.blocks.roles.moving
    known = _known_values(workload)
    needed: dict[str, int] = {}
    for node in program.function.nodes:
        dims = dims_indexed(node)
        found = known.get(node.operands[1]) if dims else None
        for place, dim in enumerate(dims):
            axis = _row_axis(program, node.operands[0], dim, row_axes)
            if axis is None:
                continue
            reached = None
            if found is not None:
                # Of several dims, the last dim of the index has a place in each.
                reached = _rows_reached(found if len(dims) == 1 else found[..., place])
            # Positions run along one sequence, buckets of distances along two.
            of_result = program.axes.of(node.result)
            along = [a for a in of_result if sequence and tied(a) is tied(sequence)]
            if reached is None and len(along) == 1 and node.operands[1] not in moving:
                reached = along[0].size
            rows = node.operands[0].type.shape[dim]
            if reached is not None and rows < min(reached, axis.rows):
                needed[axis.name] = max(needed.get(axis.name, 0), min(reached, axis.rows))
    return needed


def _rows_reached(indices: Array) -> int:
    """The fewest rows that these indices can choose from; -1 is the last one."""
    return max(int(np.max(indices)) + 1, -int(np.min(indices)))


def _known_values(workload: Workload) -> dict[Value, Any]:
    """The free values that can be computed at the workload's sizes, with booleans of inputs all
    true, so that positions counted from a mask are as large as they get."""
    program = workload.program
    sizes = workload.sizes(workload.batch_size)
    known: dict[Value, Any] = {}
    for value, array in program.function.constants.items():
        resized = None if array is None else resize(array, program.axes.dims[value], sizes)
        if resized is not None:
            known[value] = resized
    sources = random_values(workload, truth=1.0).values.sources
    known.update((value, sources[value]) for value in program.function.inputs)
    for node in program.blocks.free_nodes:
        if all(value in known for value in node.operands):
            op = op_at(node, program.axes, sizes)
            try:
                made = op.evaluate(*(known[value] for value in node.operands))
            except (IndexError, ValueError):
                continue  # an index that the exporter computed for other sizes
            known.update(zip(node.results, made, strict=True))
    return known


def _row_axis(
    program: Program,
    table: Value,
    dim: int,
    row_axes: Mapping[Value, Sequence[RowAxis | None]],
) -> RowAxis | None:
    """The axis of a dim that indices choose from, if it is one of a parameter or constant."""
    dims = program.axes.dims
    rows = dims[table][dim]
    for value, found in row_axes.items():
        for other, axis in zip(dims.get(value, ()), found, strict=False):
            if other == rows and len(other) == 1 and axis is not None:
                return axis
    return None
