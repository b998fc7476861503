"""Replaces composite ops by the simpler ops that they consist of, and removes dropout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from distir.ir.builder import Builder
from distir.ir.core import Node, Value
from distir.ir.function import Function
from distir.ops.activations import Dropout
from distir.ops.attention import FusedAttention


def lower_nodes(
    builder: Builder, nodes: Sequence[Node], chosen: Callable[[Node], bool]
) -> list[Node]:
    """`nodes` with the chosen composite ops spelled out as simpler ones. Results keep their values,
    so that other nodes need no change. Constants that the simpler ops need are declared in
    `builder`."""
    result: list[Node] = []
    for node in nodes:
        if not chosen(node):
            result.append(node)
            continue
        builder.origin, builder.part = node.origin, node.part
        start = len(builder.nodes)
        values = node.op.lower(builder, node)
        added = builder.nodes[start:]
        if values is None:
            result.append(node)
            continue
        new_to_old = dict(zip(values, node.results, strict=True))
        result.extend(_with_results(each, new_to_old) for each in added)
    return result


def _with_results(node: Node, renamed: dict[Value, Value]) -> Node:
    """The node with the results renamed."""
    if not any(value in renamed for value in node.results):
        return node
    return replace(node, results=tuple(renamed.get(value, value) for value in node.results))


def lower_always(function: Function) -> Function:
    """The function with the ops spelled out that are always analysed as simpler ones."""
    if not any(node.op.always_lowered for node in function.nodes):
        return function
    builder = Builder(function.name)
    nodes = lower_nodes(builder, function.nodes, lambda node: node.op.always_lowered)
    constants = {**function.constants, **builder.constants}
    return replace(function, nodes=tuple(nodes), constants=constants)


def has_dropout(function: Function) -> bool:
    """Whether the function drops elements at random, by dropout ops or within fused attention."""
    return any(
        (isinstance(node.op, Dropout) and node.op.ratio > 0)
        or (isinstance(node.op, FusedAttention) and node.op.dropout > 0)
        for node in function.nodes
    )


def without_dropout(function: Function) -> Function:
    """The function without dropout, as inference runs it."""
    if not has_dropout(function):
        return function
    source: dict[Value, Value] = {}
    nodes: list[Node] = []
    for node in function.nodes:
        operands = tuple(source.get(value, value) for value in node.operands)
        if isinstance(node.op, Dropout):
            source[node.results[0]] = operands[0]
            continue
        op = replace(node.op, dropout=0.0) if isinstance(node.op, FusedAttention) else node.op
        nodes.append(replace(node, op=op, operands=operands))
    outputs = tuple(source.get(value, value) for value in function.outputs)
    return replace(function, nodes=tuple(nodes), outputs=outputs)
