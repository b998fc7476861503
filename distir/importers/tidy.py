"""Small rewrites after import: unused nodes are removed, slices that tile a dim become a Split."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from distir.ir.core import Array, Node, Value
from distir.ir.function import Function
from distir.ops.lookup import Gather
from distir.ops.tensor import Reshape, Slice, Split


def without_unused(function: Function) -> Function:
    """The function without nodes, parameters and constants that no output needs. Inputs stay."""
    needed: set[Value] = set(function.outputs)
    nodes: list[Node] = []
    for node in reversed(function.nodes):
        if any(result in needed for result in node.results):
            needed.update(node.operands)
            nodes.append(node)
    return replace(
        function,
        parameters=tuple(value for value in function.parameters if value in needed),
        constants={v: array for v, array in function.constants.items() if v in needed},
        nodes=tuple(reversed(nodes)),
    )


def merge_slices(function: Function) -> Function:
    """The function with slices (or Gathers of one row each) that together tile a dim of a value in
    equal parts replaced by one Split."""
    groups: dict[tuple[Value, int], list[tuple[int, int, Node]]] = {}
    tables = frozenset(function.parameters)
    for node in function.nodes:
        cut = _cut(node, function.constants, tables)
        if cut is not None:
            dim, start, size = cut
            groups.setdefault((node.operands[0], dim), []).append((start, size, node))
    replaced: dict[Node, tuple[Node, ...]] = {}
    for (value, dim), cuts in groups.items():
        parts = _tiling(sorted({(start, size) for start, size, _ in cuts}), value.type.shape[dim])
        if parts is not None:
            replaced |= _as_split(value, dim, parts, cuts)
    if not replaced:
        return function
    nodes = [new for node in function.nodes for new in replaced.get(node, (node,))]
    return replace(function, nodes=tuple(nodes))


def merge_strides(function: Function) -> Function:
    """The function with slices that take every n-th element of a dim, each from another of the
    first n, as a Reshape to `[…, rows, n, …]` and a Split: gates and values that take turns, or the
    pairs that rotary embedding turns."""
    groups: dict[tuple[Value, int, int], list[tuple[int, Node]]] = {}
    for node in function.nodes:
        strided = _every_nth(node)
        if strided is not None:
            dim, step, start = strided
            groups.setdefault((node.operands[0], dim, step), []).append((start, node))
    replaced: dict[Node, tuple[Node, ...]] = {}
    for (value, dim, step), cuts in groups.items():
        if {start for start, _ in cuts} == set(range(step)):
            replaced |= _as_turns(value, dim, step, cuts)
    if not replaced:
        return function
    nodes = [new for node in function.nodes for new in replaced.get(node, (node,))]
    return replace(function, nodes=tuple(nodes))


def _every_nth(node: Node) -> tuple[int, int, int] | None:
    """`(dim, n, start)` if the node takes every n-th element of one dim, whose size n divides, from
    one of the first n; otherwise None."""
    if not isinstance(node.op, Slice):
        return None
    shape, kept = node.operands[0].type.shape, node.result.type.shape
    dims = [dim for dim, size in enumerate(shape) if kept[dim] != size]
    if len(dims) != 1:
        return None
    (dim,) = dims
    step, start = node.op.steps[dim], node.op.starts[dim]
    is_whole = 0 <= start < step and shape[dim] == step * kept[dim]
    return (dim, step, start) if step > 1 and is_whole else None


def _as_turns(
    value: Value, dim: int, step: int, cuts: list[tuple[int, Node]]
) -> dict[Node, tuple[Node, ...]]:
    """Per slice, the node that replaces it: a view of its part; before the first, the Split."""
    shape = value.type.shape
    apart = Reshape((*shape[:dim], shape[dim] // step, step, *shape[dim + 1 :]))
    op = Split(dim + 1, (1,) * step)
    turns = Value(apart.infer(value.type)[0], value.name)
    types = op.infer(turns.type)
    parts = tuple(Value(type, f"{value.name}.{i}") for i, type in enumerate(types))
    new: dict[Node, tuple[Node, ...]] = {}
    for position, (start, node) in enumerate(cuts):
        view = Node(Reshape(node.result.type.shape), (parts[start],), node.results, node.origin)
        split = (
            Node(apart, (value,), (turns,), node.origin),
            Node(op, (turns,), parts, node.origin),
        )
        new[node] = (*split, view) if position == 0 else (view,)
    return new


def _cut(
    node: Node, constants: Mapping[Value, Array | None], tables: Collection[Value]
) -> tuple[int, int, int] | None:
    """`(dim, start, size)` if the node takes a contiguous piece of one dim; otherwise None."""
    shape = node.operands[0].type.shape if node.operands else ()
    if isinstance(node.op, Slice):
        dims = [d for d, n in enumerate(node.result.type.shape) if n != shape[d]]
        if len(dims) == 1 and node.op.steps[dims[0]] == 1 and node.op.starts[dims[0]] >= 0:
            return dims[0], node.op.starts[dims[0]], node.result.type.shape[dims[0]]
    if isinstance(node.op, Gather):
        index = constants.get(node.operands[1])
        if index is not None and index.ndim == 0 and node.operands[0] not in tables:
            return node.op.axis, int(index), 1
    return None


def _tiling(cuts: list[tuple[int, int]], size: int) -> list[tuple[int, int]] | None:
    """The cuts `(start, size)` if they are two or more, of equal sizes, and cover a dim of this
    size without overlap; otherwise None."""
    part = cuts[0][1]
    starts = list(range(0, size, part)) if part else []
    if len(cuts) > 1 and size % part == 0 and cuts == [(start, part) for start in starts]:
        return cuts
    return None


def _as_split(
    value: Value, dim: int, parts: list[tuple[int, int]], cuts: list[tuple[int, int, Node]]
) -> dict[Node, tuple[Node, ...]]:
    """Per cut, the nodes that replace it: a view of its part; before the first, the Split."""
    sizes = tuple(size for _, size in parts)
    op = Split(dim, sizes)
    results = tuple(Value(type, f"{value.name}.{i}") for i, type in enumerate(op.infer(value.type)))
    by_start = {start: result for (start, _), result in zip(parts, results, strict=True)}
    new: dict[Node, tuple[Node, ...]] = {}
    for position, (start, _, node) in enumerate(cuts):
        view = Node(Reshape(node.result.type.shape), (by_start[start],), node.results, node.origin)
        split = Node(op, (value,), results, node.origin)
        new[node] = (split, view) if position == 0 else (view,)
    return new
