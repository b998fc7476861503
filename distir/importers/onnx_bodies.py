"""The nodes of a file, with those of the branches and functions that it has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import TypeAlias

from distir.importers.onnx_file import FunctionRecord, GraphRecord, NodeRecord

Functions: TypeAlias = Mapping[tuple[str, str], FunctionRecord]
"""The functions of a file, by domain and name."""

MOST_NODES = 1 << 20
"""Nodes that are looked at: functions that call each other may spell out very many."""


def spelled_out(graph: GraphRecord, functions: Functions) -> tuple[NodeRecord, ...]:
    """All nodes of a graph and of the branches in it, with the bodies of functions in place of
    calls."""
    return tuple(islice(_with_bodies(_with_branches(graph), functions, frozenset()), MOST_NODES))


def _with_branches(graph: GraphRecord) -> Iterator[NodeRecord]:
    """All nodes of a graph and of the branches in it, whose names are apart."""
    for node in graph.nodes:
        yield node
        for attribute in node.attributes.values():
            if isinstance(attribute, GraphRecord):
                yield from _with_branches(attribute)


def _with_bodies(
    nodes: Iterable[NodeRecord], functions: Functions, inside: frozenset[tuple[str, str]]
) -> Iterator[NodeRecord]:
    """Nodes, with the bodies of functions in place of calls; `inside` are the functions that are
    being called: a damaged file may have one call itself."""
    for node in nodes:
        key = node.domain, node.op_type
        function = functions.get(key)
        if function is None or key in inside or not node.results:
            yield node
            continue
        names = dict(zip(function.outputs, node.results, strict=False))
        names.update(zip(function.inputs, node.operands, strict=False))
        body = [_renamed(each, names, node.results[0]) for each in function.nodes]
        yield from _with_bodies(body, functions, inside | {key})


def _renamed(node: NodeRecord, names: dict[str, str], call: str) -> NodeRecord:
    """A node of a function's body for one call: names that are not those of its operands and
    results are the call's own."""

    def own(name: str) -> str:
        return names.setdefault(name, f"{call}/{name}") if name else ""

    operands, results = tuple(map(own, node.operands)), tuple(map(own, node.results))
    return replace(node, operands=operands, results=results)


__all__ = ["Functions", "spelled_out"]
