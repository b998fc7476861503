"""Finds which values of a block hold tokens on their way to experts and back."""

from __future__ import annotations

from distir.cost.collectives import Copies
from distir.ir.core import Value
from distir.ops.routing import Combine, Dispatch
from distir.transforms.step import BlockStep


def routed_rows(step: BlockStep) -> dict[Value, Copies]:
    """Per value that holds tokens in the slots of experts, how many of its rows are copies of one
    token, or are added up to one."""
    found: dict[Value, Copies] = {}
    for node in (*step.forward, *step.backward):
        if isinstance(node.op, Dispatch):
            found[node.result] = node.op.copies
        elif isinstance(node.op, Combine):
            found[node.operands[0]] = node.op.copies
    return found
