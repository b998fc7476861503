"""Rewrites lookups of one position per sample, `x[arange(batch), places]`.

Exporters flatten `x` to `(batch · rows, …)` and gather at `arange(batch) · rows + places`, or give
a GatherND tuples `(sample, place)`. Both contain a table of sample numbers for the batch of the
file. As a GatherND with a batch dim, the lookup depends on no size of the file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from distir.ir.core import Array, Node, Value
from distir.ir.function import Function
from distir.ops.arithmetic import Add
from distir.ops.lookup import Gather, GatherND
from distir.ops.tensor import Concat, Reshape


def gather_per_sample(function: Function) -> Function:
    """The function with lookups of one position per sample as GatherND with a batch dim."""
    producers = function.producers()
    nodes: list[Node] = []
    for node in function.nodes:
        found = _places(node, producers, function.constants)
        nodes.extend([node] if found is None else _side_by_side(node, *found))
    return replace(function, nodes=tuple(nodes))


def _places(
    node: Node, producers: Mapping[Value, Node], constants: Mapping[Value, Array | None]
) -> tuple[Value, Value] | None:
    """The data that a lookup reads, `[batch, …]`, and the positions in each sample. None if the
    node is no lookup of one position per sample."""
    if isinstance(node.op, Gather) and node.op.axis == 0:
        flat, index = (producers.get(value) for value in node.operands)
        if flat is None or not isinstance(flat.op, Reshape):
            return None
        data = flat.operands[0]
        if data.type.rank < 2 or data.type.shape[2:] != node.operands[0].type.shape[1:]:
            return None
        if index is None or not isinstance(index.op, Add):
            return None
        for table, places in (index.operands, index.operands[::-1]):
            is_numbered = _numbers_samples(constants.get(table), index.result, data, stride=True)
            if is_numbered and places.type.shape == index.result.type.shape:
                return data, places
    elif isinstance(node.op, GatherND) and node.op.batch_dims == 0:
        data, tuples = node.operands
        joined = producers.get(tuples)
        if joined is None or not isinstance(joined.op, Concat) or len(joined.operands) != 2:
            return None
        table, places = joined.operands
        is_last = joined.op.axis % tuples.type.rank == tuples.type.rank - 1
        if is_last and _numbers_samples(constants.get(table), table, data, stride=False):
            return data, places
    return None


def _numbers_samples(table: Array | None, index: Value, data: Value, *, stride: bool) -> bool:
    """Whether a table numbers the samples along the first dim of an index: 0, 1, 2, …; with
    `stride`, these times the number of rows of a sample."""
    import numpy as np

    samples, rows = data.type.shape[:2]
    shape = index.type.shape
    if table is None or not shape or shape[0] != samples:
        return False
    numbers = np.arange(samples) * (rows if stride else 1)
    expected = np.broadcast_to(numbers.reshape(-1, *(1 for _ in shape[1:])), shape)
    return table.ndim <= len(shape) and np.array_equal(np.broadcast_to(table, shape), expected)


def _side_by_side(node: Node, data: Value, places: Value) -> Sequence[Node]:
    """The nodes that look up the same with a batch dim."""
    if isinstance(node.op, Gather):
        op = Reshape((*places.type.shape, 1))
        (type,) = op.infer(places.type)
        single = Value(type, places.name)
        return (
            Node(op, (places,), (single,), node.origin),
            Node(GatherND(1), (data, single), node.results, node.origin),
        )
    return (Node(GatherND(1), (data, places), node.results, node.origin),)
