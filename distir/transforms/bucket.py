"""Like collectives of several tensors as one, as frameworks send them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from distir.ir.core import Node, Op, Part
from distir.ops.collective import Bucket, Collective


def bucketed(chains: Sequence[Sequence[Node]]) -> list[Node]:
    """Chains of nodes, one per tensor and each in its order, as one program in which like
    collectives of different chains are one `Bucket`."""
    left = [list(chain) for chain in chains if chain]
    found: list[Node] = []
    while left:
        # What no chain has still to come to is sent last, so that every bucket is full.
        waiting = [_likeness(node.op) for chain in left for node in chain[1:]]
        alike = min((_likeness(chain[0].op) for chain in left), key=waiting.count)
        nodes = [chain.pop(0) for chain in left if _likeness(chain[0].op) == alike]
        found += [_bucket(nodes)] if alike else nodes
        left = [chain for chain in left if chain]
    return found


def _likeness(op: Op) -> tuple[str, ...]:
    """What ops that can be one message have in common; nothing for others."""
    return (op.kind, *op.mesh_axes) if isinstance(op, Collective) else ()


def _bucket(nodes: Sequence[Node]) -> Node:
    first = nodes[0]
    ops = [node.op for node in nodes if isinstance(node.op, Collective)]
    if len(nodes) == 1:
        return first
    return replace(
        first,
        op=Bucket(ops[0].mesh_axes, ops[0].degree, tuple(ops)),
        operands=tuple(node.operands[0] for node in nodes),
        results=tuple(node.results[0] for node in nodes),
        origin="",
        part=Part.STATE,
    )
