"""Splits the backward pass: `B` makes the gradients for the stage before, `W` does the rest."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from distir.ir.core import Node, Value


def split_backward(
    nodes: Sequence[Node], upstream: Collection[Value]
) -> tuple[list[Node], list[Node]]:
    """The nodes of the input part, which makes the gradients `upstream`, and those of the weight
    part, which may read results of the input part. Either may be empty.

    Every op is in one of them; an op that recomputes is in the first part that needs it.
    """
    needed = set(upstream)
    first: set[Node] = set()
    for node in reversed(nodes):
        if not needed.isdisjoint(node.results):
            needed.update(node.operands)
            first.add(node)
    return [n for n in nodes if n in first], [n for n in nodes if n not in first]


__all__ = ["split_backward"]
