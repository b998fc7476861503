"""Liveness in program order: what a pass over a block adds to memory, and its peak on the way.

A value takes memory from the op that makes it to the last op that reads it; views share the
memory of what they look at. What is saved for the backward pass stays until its last reader there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from distir.ir.core import Node, Value


@dataclass(frozen=True, slots=True)
class MemoryEffect:
    """Bytes that a pass leaves behind (`delta`, negative if it frees more) and the most it holds
    on the way (`peak`), both relative to what was there before."""

    delta: float = 0.0
    peak: float = 0.0

    def then(self, other: MemoryEffect) -> MemoryEffect:
        """Both one after the other."""
        return MemoryEffect(self.delta + other.delta, max(self.peak, self.delta + other.peak))

    def times(self, count: int) -> MemoryEffect:
        """`count` times in a row."""
        return MemoryEffect(
            self.delta * count, self.peak + max(0.0, self.delta * (count - 1)) if count else 0.0
        )


def storages(nodes: Sequence[Node], known: Mapping[Value, Value] | None = None) -> dict[Value, Value]:
    """For every value made by a view, the value whose memory it shares."""
    roots: dict[Value, Value] = dict(known or {})
    for node in nodes:
        op = getattr(node.op, "op", node.op)
        if op.is_view:
            root = roots.get(node.operands[0], node.operands[0])
            roots.update(dict.fromkeys(node.results, root))
    return roots


def effect_of(
    nodes: Sequence[Node],
    held: Collection[Value],
    given: Collection[Value],
    kept: Collection[Value],
    roots: Mapping[Value, Value],
) -> MemoryEffect:
    """The effect of running `nodes`.

    `held` is in memory before and may be freed by its last reader here; `given` arrives at the
    start (its bytes are added). `kept` must not be freed. Values from elsewhere (parameters,
    inputs of the model) are none of this pass's business.
    """

    def root(value: Value) -> Value:
        return roots.get(value, value)

    keep = {root(value) for value in kept}
    last_use: dict[Value, int] = {}
    for position, node in enumerate(nodes):
        for value in (*node.operands, *node.results):
            last_use[root(value)] = position
    mine = {root(value) for value in (*held, *given)}
    live = sum(value.type.size_bytes for value in {root(v) for v in given})
    peak = live
    unread = [v for v in mine if v not in last_use and v not in keep]
    dying: dict[int, list[Value]] = {}
    for value, position in last_use.items():
        if value not in keep:
            dying.setdefault(position, []).append(value)
    live -= sum(value.type.size_bytes for value in unread)
    for position, node in enumerate(nodes):
        for value in node.results:
            if root(value) is value:
                mine.add(value)
                live += value.type.size_bytes
        peak = max(peak, live)
        for value in dying.get(position, ()):
            if value in mine:
                live -= value.type.size_bytes
    return MemoryEffect(live, peak)
