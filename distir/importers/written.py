"""Rewrites a ScatterND that overwrites a stretch of one dim as a Concat.

Exporters write `y[..., :n] = x` as a ScatterND with a table of all places. Axes are lost in it, but
not in a Concat of `x` and what stays of `y`; and of a `y` that is overwritten stretch by stretch
nothing stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from distir.ir.core import Array, Node, Value
from distir.ir.function import Function
from distir.ops.lookup import ScatterND
from distir.ops.tensor import Concat, Reshape, Slice


def join_written(function: Function) -> Function:
    """The function with each write to a stretch of one dim as a Concat."""
    if not any(isinstance(node.op, ScatterND) for node in function.nodes):
        return function
    written = _Written(function.constants)
    for node in function.nodes:
        written.add(node)
    return replace(function, nodes=tuple(written.nodes))


@dataclass(slots=True)
class _Written:
    """The nodes of a function, with Concats in the place of writes."""

    constants: Mapping[Value, Array | None]
    nodes: list[Node] = field(default_factory=list[Node])
    _joined: dict[Value, tuple[int, Sequence[Value]]] = field(
        default_factory=dict[Value, "tuple[int, Sequence[Value]]"]
    )
    """Per value that was written to, the dim along which it is joined, and its parts."""

    def add(self, node: Node) -> None:
        """Adds a node, or what it is as a Concat."""
        found = _stretch(node, self.constants)
        if found is None:
            self.nodes.append(node)
            return
        (base, _, update), (dim, start, stop) = node.operands, found
        size = base.type.shape[dim]
        parts = [*self._cut(base, dim, 0, start), update, *self._cut(base, dim, stop, size)]
        op = Reshape(base.type.shape) if len(parts) == 1 else Concat(dim)
        self.nodes.append(replace(node, op=op, operands=tuple(parts)))
        self._joined[node.result] = dim, parts

    def _cut(self, value: Value, dim: int, start: int, stop: int) -> list[Value]:
        """The values that make up a stretch of a dim of a value."""
        size = value.type.shape[dim]
        if start >= stop:
            return []
        if (start, stop) == (0, size):
            return [value]
        along, parts = self._joined.get(value, (dim, ()))
        if not parts or along != dim:
            return [self._slice(value, dim, start, stop)]
        found: list[Value] = []
        begin = 0
        for part in parts:
            length = part.type.shape[dim]
            first, end = max(start - begin, 0), min(stop - begin, length)
            found += self._cut(part, dim, first, end)
            begin += length
        return found

    def _slice(self, value: Value, dim: int, start: int, stop: int) -> Value:
        rank, size = value.type.rank, value.type.shape[dim]
        starts, stops = [0] * rank, list[int | None]([None] * rank)
        starts[dim], stops[dim] = start, None if stop == size else stop
        op = Slice(tuple(starts), tuple(stops), (1,) * rank)
        (type,) = op.infer(value.type)
        result = Value(type, value.name)
        self.nodes.append(Node(op, (value,), (result,)))
        return result


def _stretch(node: Node, constants: Mapping[Value, Array | None]) -> tuple[int, int, int] | None:
    """`(dim, start, stop)` of what a node overwrites, if this is a stretch of one dim, or all;
    otherwise None."""
    import numpy as np

    if not isinstance(node.op, ScatterND) or node.op.adds:
        return None
    shape, index = node.operands[0].type.shape, constants.get(node.operands[1])
    if index is None or index.ndim != index.shape[-1] + 1 or not index.size:
        return None
    cut: tuple[int, int, int] | None = None
    for dim, count in enumerate(map(int, index.shape[:-1])):
        places, size = np.asarray(index[..., dim], np.int64), shape[dim]
        start = int(places.reshape(-1)[0]) % size
        along = [count if other == dim else 1 for other in range(places.ndim)]
        expected = np.arange(start, start + count).reshape(along)
        if (np.where(places < 0, places + size, places) != expected).any():
            return None
        if count < size:
            if cut is not None:
                return None
            cut = dim, start, start + count
    return cut or (0, 0, shape[0])


__all__ = ["join_written"]
