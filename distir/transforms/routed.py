"""What is known of the rows that a block exchanges with experts."""

from __future__ import annotations

from distir.cost.collectives import Copies
from distir.ir.core import Value
from distir.ops.routing import Combine, Dispatch
from distir.transforms.step import BlockStep


def routed_rows(step: BlockStep) -> dict[Value, Copies]:
    """By value in slots, how many of its rows are copies of one token, or add up to one."""
    found: dict[Value, Copies] = {}
    for node in (*step.forward, *step.backward):
        if isinstance(node.op, Dispatch):
            found[node.result] = node.op.copies
        elif isinstance(node.op, Combine):
            found[node.operands[0]] = node.op.copies
    return found
