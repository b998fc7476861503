"""Programs in another element type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from distir.ir.core import Node, Value
from distir.ir.types import DType


def in_type(nodes: Sequence[Node], dtype: DType) -> list[Node]:
    """A chain of nodes, each reading what the one before made, on values of another type."""
    made: dict[Value, Value] = {}

    def other(value: Value) -> Value:
        if value not in made:
            made[value] = Value(replace(value.type, dtype=dtype), value.name)
        return made[value]

    return [
        replace(
            node,
            operands=tuple(map(other, node.operands)),
            results=tuple(map(other, node.results)),
        )
        for node in nodes
    ]
