"""The canonical order of a function's ops. It depends on the graph alone, not on the order that a
file lists ops in."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from distir.ir.core import Node, Value
from distir.ir.function import Function


def canonical_order(function: Function) -> Function:
    """The function with its ops depth-first from the main output: each after the ops of its
    operands, of which the deepest come first.

    An op that only other outputs need stands directly behind its last operand, so that no operand
    is kept for it. Ops that no output needs are dropped.
    """
    return replace(function, nodes=depth_first(function.nodes, function.outputs))


def depth_first(nodes: Iterable[Node], outputs: Iterable[Value]) -> tuple[Node, ...]:
    """The ops of a function, or of a part of one, in canonical order. They must be given in an
    order in which each comes after those of its operands."""
    producers: dict[Value, Node] = {}
    depth: dict[Value, int] = {}
    for node in nodes:
        own = 1
        for operand in node.operands:
            own = max(own, depth.get(operand, 0) + 1)
        for value in node.results:
            depth[value] = own
            producers[value] = node
    ordered: list[Node] = []
    place: dict[Node, int] = {}
    done: set[Node] = set()
    for number, output in enumerate(outputs):
        stack = [(producers[output], False)] if output in producers else []
        while stack:
            node, visited = stack.pop()
            if node in done:
                continue
            if visited:
                if number:
                    made = (place[producers[v]] for v in node.operands if v in producers)
                    place[node] = max(made, default=-1)
                else:
                    place[node] = len(ordered)
                done.add(node)
                ordered.append(node)
                continue
            stack.append((node, True))
            open_operands = [
                value
                for value in dict.fromkeys(node.operands)
                if value in producers and producers[value] not in done
            ]
            # The stack is last in, first out: the deepest operand is visited first.
            if len(open_operands) > 1:
                open_operands.sort(key=depth.__getitem__)
            stack += [(producers[value], False) for value in open_operands]
    return tuple(sorted(ordered, key=place.__getitem__))
