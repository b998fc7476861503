"""Chooses the values of a forward pass to keep so that the others can be computed again: the fewest
bytes, by a minimum cut.

Values are the vertices of a graph whose edges lead from an op's operands to its results. Some ops
may run again; results of the others must be kept if they are needed. The kept values separate
those results from the values that the backward pass reads, so that the fewest bytes are a minimum
cut (He and Yu 2023; PyTorch, torch/_functorch/partitioners.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from distir.ir.core import Node, Value

FLOAT_BYTES = 2
"""Bytes of a real number, as in most steps: the choice depends only on how sizes compare."""

_Vertex = tuple[Value | None, bool]
"""A value and the end of its edge: False before, True behind. Cutting that edge means keeping the
value."""

_MADE: _Vertex = (None, False)
_READ: _Vertex = (None, True)


def least_kept(
    forward: Sequence[Node],
    given: Collection[Value],
    read: Collection[Value],
    again: Callable[[Node], bool],
) -> frozenset[Value]:
    """The values of a forward pass to keep so that the values in `read` are kept, or can be
    computed from kept ones by ops that may run `again`.

    `given` are the inputs, which count like results if they are kept. All other values that ops
    read are there in any case. Keeping a view means keeping the value that it shows. Of several
    choices with the fewest bytes, it is the one that leaves the least to compute again.
    """
    shown = _storages(forward)
    moving = {*given, *(value for node in forward for value in node.results)}
    graph = _Graph()
    for value in moving:
        if value not in shown:
            graph.add((value, False), (value, True), _bytes(value))
    for value in given:
        graph.add(_MADE, (value, False))
    for node in forward:
        if node.op.is_view:
            continue
        for made in node.results:
            if not again(node):
                graph.add(_MADE, (made, False))
                continue
            for operand in node.operands:
                if operand in moving:
                    graph.add((shown.get(operand, operand), True), (made, False))
    for value in read:
        if value in moving:
            graph.add((shown.get(value, value), True), _READ)
    return graph.last_cut()


def _storages(nodes: Sequence[Node]) -> Mapping[Value, Value]:
    """Per view, the value whose memory it shows."""
    shown: dict[Value, Value] = {}
    for node in nodes:
        if node.op.is_view:
            source = node.operands[0]
            shown.update(dict.fromkeys(node.results, shown.get(source, source)))
    return shown


def _bytes(value: Value) -> int:
    dtype = value.type.dtype
    return value.type.num_elements * (FLOAT_BYTES if dtype.is_float else dtype.itemsize)


@dataclass(slots=True)
class _Graph:
    """A flow network: the capacity that is left on each edge."""

    left: dict[_Vertex, dict[_Vertex, float]] = field(
        default_factory=dict[_Vertex, dict[_Vertex, float]]
    )

    def add(self, start: _Vertex, end: _Vertex, capacity: float = float("inf")) -> None:
        """Adds an edge, by default of unlimited capacity."""
        self.left.setdefault(start, {})[end] = capacity
        self.left.setdefault(end, {}).setdefault(start, 0.0)

    def last_cut(self) -> frozenset[Value]:
        """The values of the minimum cut that is nearest to the end (Edmonds and Karp 1972)."""
        while path := self._path():
            flow = min(self.left[a][b] for a, b in path)
            for a, b in path:
                self.left[a][b] -= flow
                self.left[b][a] += flow
        behind = self._reaching()
        return frozenset(
            value
            for value, kept in behind
            if kept and value is not None and (value, False) not in behind
        )

    def _path(self) -> list[tuple[_Vertex, _Vertex]]:
        """The edges of a shortest path with capacity left; empty if there is none."""
        before: dict[_Vertex, _Vertex] = {}
        waiting = deque([_MADE])
        while waiting:
            here = waiting.popleft()
            for there, capacity in self.left.get(here, {}).items():
                if capacity > 0 and there not in before and there != _MADE:
                    before[there] = here
                    waiting.append(there)
                    if there == _READ:
                        return self._back(before)
        return []

    def _back(self, before: Mapping[_Vertex, _Vertex]) -> list[tuple[_Vertex, _Vertex]]:
        path: list[tuple[_Vertex, _Vertex]] = []
        here = _READ
        while here != _MADE:
            path.append((before[here], here))
            here = before[here]
        return path

    def _reaching(self) -> set[_Vertex]:
        """The vertices from which a path with capacity left leads to the end."""
        found = {_READ}
        waiting = [_READ]
        while waiting:
            here = waiting.pop()
            for there in self.left.get(here, {}):
                if self.left[there][here] > 0 and there not in found:
                    found.add(there)
                    waiting.append(there)
        return found
