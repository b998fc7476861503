"""Which products a gather or a scatter of activations is pipelined with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from distir.cost import OpClass
from distir.ir.core import Node, Part, Value
from distir.ops.collective import Collective, Sharded

__all__ = ["products_beside"]


def products_beside(nodes: Sequence[Node]) -> Mapping[Node, tuple[Node, ...]]:
    """By gather or scatter of activations: the products of a pass that can be done piece by piece
    while it goes on. These read what is gathered, or make what is scattered, views aside. A product
    hides one collective, the first that it can.
    """
    readers: dict[Value, list[Node]] = {}
    makers: dict[Value, Node] = {}
    for node in nodes:
        makers.update(dict.fromkeys(node.results, node))
        for value in node.operands:
            readers.setdefault(value, []).append(node)
    found: dict[Node, tuple[Node, ...]] = {}
    busy: set[Node] = set()
    for node in nodes:
        op = node.op
        if not isinstance(op, Collective) or node.part is Part.STATE:
            continue
        if op.kind == "all_gather":
            beside = _reading(node.results[0], readers)
        elif op.kind == "reduce_scatter":
            beside = _making(node.operands[0], makers)
        else:
            continue
        own = tuple(each for each in dict.fromkeys(beside) if each not in busy)
        if own:
            found[node] = own
            busy.update(own)
    return found


def _reading(value: Value, readers: Mapping[Value, Sequence[Node]]) -> Iterator[Node]:
    for node in readers.get(value, ()):
        if _is_view(node):
            for view in node.results:
                yield from _reading(view, readers)
        elif _is_product(node):
            yield node


def _making(value: Value, makers: Mapping[Value, Node]) -> Iterator[Node]:
    node = makers.get(value)
    if node is None:
        return
    if _is_view(node):
        yield from _making(node.operands[0], makers)
    elif _is_product(node):
        yield node


def _is_view(node: Node) -> bool:
    return (node.op.op if isinstance(node.op, Sharded) else node.op).is_view


def _is_product(node: Node) -> bool:
    return node.op.work(node.operand_types, node.result_types).kind is OpClass.PRODUCT
