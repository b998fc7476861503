"""The backward pass in two parts: `B` is what the gradient sent upstream needs, `W` the rest."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from distir.ir.core import Node, Value


def split_backward(
    nodes: Sequence[Node], upstream: Collection[Value]
) -> tuple[list[Node], list[Node]]:
    """`nodes` as an input part, which makes the gradients `upstream`, and a weight part, which may
    read what the input part has made. Either may be empty. Every op is in one part, recomputed ones
    in the first that needs them."""
    needed = set(upstream)
    first: set[Node] = set()
    for node in reversed(nodes):
        if not needed.isdisjoint(node.results):
            needed.update(node.operands)
            first.add(node)
    return [n for n in nodes if n in first], [n for n in nodes if n not in first]


__all__ = ["split_backward"]
