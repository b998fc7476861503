"""Collectives of several tensors sent as one message, as frameworks do in buckets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from distir.ir.core import Node, Op, Part
from distir.ops.collective import Bucket, Collective


def bucketed(chains: Sequence[Sequence[Node]]) -> list[Node]:
    """One program of several chains of nodes, one per tensor, in which collectives of one kind over
    the same mesh axes are one `Bucket`. Each chain keeps its order."""
    left = [list(chain) for chain in chains if chain]
    found: list[Node] = []
    while left:
        # A kind that other chains have still to come to waits for them, so that buckets are full.
        later = [_bucket_key(node.op) for chain in left for node in chain[1:]]
        key = min((_bucket_key(chain[0].op) for chain in left), key=later.count)
        nodes = [chain.pop(0) for chain in left if _bucket_key(chain[0].op) == key]
        found += [_bucket(nodes)] if key else nodes
        left = [chain for chain in left if chain]
    return found


def _bucket_key(op: Op) -> tuple[str, ...]:
    """The kind and mesh axes of a collective, which are equal within a bucket; empty for others."""
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
