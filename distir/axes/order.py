"""The canonical order of ops, which depends on the graph and not on the file."""

from __future__ import annotations

from dataclasses import replace

from distir.ir.core import Function, Node, Value


def canonical_order(function: Function) -> Function:
    """Ops depth-first from the main output, each after its operands, the deeper operand's first.
    What other outputs need besides follows what it is made of at once, so that nothing is kept for
    it. Ops that no output needs are dropped."""
    producers = function.producers()
    depth: dict[Value, int] = {}
    for node in function.nodes:
        own = 1 + max((depth.get(operand, 0) for operand in node.operands), default=0)
        depth.update(dict.fromkeys(node.results, own))
    ordered: list[Node] = []
    place: dict[Node, int] = {}
    done: set[Node] = set()
    for number, output in enumerate(function.outputs):
        stack = [(producers[output], False)] if output in producers else []
        while stack:
            node, visited = stack.pop()
            if node in done:
                continue
            if visited:
                made = (place[producers[v]] for v in node.operands if v in producers)
                place[node] = max(made, default=-1) if number else len(ordered)
                done.add(node)
                ordered.append(node)
                continue
            stack.append((node, True))
            operands = sorted(dict.fromkeys(node.operands), key=lambda value: depth.get(value, 0))
            # The stack is last in, first out: the deepest operand is visited first.
            stack.extend(
                (producers[value], False)
                for value in operands
                if value in producers and producers[value] not in done
            )
    return replace(function, nodes=tuple(sorted(ordered, key=place.__getitem__)))
