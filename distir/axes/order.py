"""The canonical order of ops, which depends on the graph and not on the file."""

from __future__ import annotations

from dataclasses import replace

from distir.ir.core import Function, Node, Value


def canonical_order(function: Function) -> Function:
    """Ops depth-first from the outputs, the main one first, each after its operands, the deeper
    operand's first. Ops that no output needs are dropped."""
    producers = function.producers()
    depth: dict[Value, int] = {}
    for node in function.nodes:
        own = 1 + max((depth.get(operand, 0) for operand in node.operands), default=0)
        depth.update(dict.fromkeys(node.results, own))
    ordered: list[Node] = []
    done: set[Node] = set()
    for output in function.outputs:
        stack = [(producers[output], False)] if output in producers else []
        while stack:
            node, visited = stack.pop()
            if node in done:
                continue
            if visited:
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
    return replace(function, nodes=tuple(ordered))
