"""Memory of a loss that runs op by op: copies of its logits in fp32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from distir.ir.core import Node, Part, Value
from distir.ops.arithmetic import Exp
from distir.ops.collective import Scratch
from distir.ops.elementwise import UnaryGradient
from distir.ops.loss import CrossEntropyGradient


def with_loss_copies(nodes: Sequence[Node], copies: int) -> list[Node]:
    """The nodes of a backward pass, with the memory of `copies` copies of the logits in fp32 taken
    before the first of a cross-entropy, whole or with its classes split."""
    found = list(nodes)
    of_loss = [at for at, node in enumerate(nodes) if node.part is Part.LOSS]
    logits = [nodes[at].results[0].type for at in of_loss if _makes_logits(nodes[at])]
    if not copies or not logits:
        return found
    first = nodes[of_loss[0]]
    gradient = first.operands[-1]
    scratch = Scratch(logits[0].num_elements, copies)
    handed, taken = scratch.infer(gradient.type)
    made = Value(handed, gradient.name), Value(taken, "loss")
    found[of_loss[0] : of_loss[0] + 1] = [
        Node(scratch, (gradient,), made, first.origin, Part.LOSS),
        replace(first, operands=(*first.operands[:-1], made[0])),
    ]
    return found


def _makes_logits(node: Node) -> bool:
    """Whether a node of a loss makes the gradient of a cross-entropy's logits, or its part through
    their exponentials."""
    op = node.op
    through_exp = isinstance(op, UnaryGradient) and isinstance(op.op, Exp)
    return through_exp or isinstance(op, CrossEntropyGradient)


__all__ = ["with_loss_copies"]
