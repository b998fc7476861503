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
        own = 1
        for operand in node.operands:
            own = max(own, depth.get(operand, 0) + 1)
        for value in node.results:
            depth[value] = own
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
    return replace(function, nodes=tuple(sorted(ordered, key=place.__getitem__)))
