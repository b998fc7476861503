"""Products that stay in the type of values where others run in a narrower one."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from distir.cost.work import OpClass
from distir.ir.core import Node, Part, Value

__all__ = ["with_wide_products"]


def with_wide_products(nodes: Sequence[Node], activations: Collection[Value]) -> list[Node]:
    """The forward nodes of a block, with the products marked that recipes of narrow types leave in
    the type of values, and whose derivatives are marked with them: those that make what the loss
    reads, and those of two activations.

    The output head and the operators of attention keep their precision in DeepSeek-V3 (DeepSeek-AI
    2024, section 3.3.1), in Transformer Engine, where Megatron's output layer is none of its
    layers (megatron/core/models/gpt/gpt_model.py) and attention is in fp8 on request alone
    (DelayedScaling, fp8_dpa), and in torchao, which replaces linear layers but for those filtered
    out: in torchtitan's recipes the output.
    """
    active, for_loss = set(activations), set[Value]()
    wide: set[Node] = set()
    for node in nodes:
        if any(value in active for value in node.operands):
            active.update(node.results)
        if all(value in active for value in node.operands) and _is_product(node):
            wide.add(node)
    for node in reversed(nodes):
        if node.part is Part.LOSS:
            for_loss.update(node.operands)
        elif any(value in for_loss for value in node.results):
            if _is_product(node):
                wide.add(node)
            else:
                for_loss.update(node.operands)
    return [replace(node, part=Part.WIDE) if node in wide else node for node in nodes]


def _is_product(node: Node) -> bool:
    return node.op.work(node.operand_types, node.result_types).kind is OpClass.PRODUCT
