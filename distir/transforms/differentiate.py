"""Reverse-mode differentiation: the ops of a backward pass, from the derivative of each op."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from distir.ir.builder import Builder
from distir.ir.core import Backward, Node, Value
from distir.ops.arithmetic import Sum


def differentiate(
    builder: Builder,
    nodes: Sequence[Node],
    output_gradients: Mapping[Value, Value],
    wanted: Collection[Value],
) -> dict[Value, Value]:
    """Adds the backward pass of `nodes` to `builder`. Returns the gradients of the `wanted` values
    that have one, and of the values between these and the outputs.

    `output_gradients` maps outputs to their gradients. Contributions to one gradient form a single
    n-ary `Sum`, so that placement can add partial sums of equal layout before communicating them.
    """
    active = _depending(nodes, wanted)
    contributions: dict[Value, list[Value]] = {
        value: [gradient] for value, gradient in output_gradients.items()
    }
    gradients: dict[Value, Value] = {}

    def gradient_of(value: Value) -> Value | None:
        if value not in gradients and value in contributions:
            parts = contributions[value]
            gradients[value] = parts[0] if len(parts) == 1 else builder.add(Sum(), *parts)
        return gradients.get(value)

    for node in reversed(nodes):
        if not any(value in active for value in node.results):
            continue
        received = [gradient_of(value) for value in node.results]
        if all(gradient is None for gradient in received):
            continue
        builder.origin, builder.part = node.origin, node.part
        wants = [operand in active for operand in node.operands]
        parts = node.op.derivative(Backward(builder, node, received, wants))
        for operand, part, want in zip(node.operands, parts, wants, strict=True):
            if want and part is not None:
                contributions.setdefault(operand, []).append(part)
    for value in wanted:
        gradient_of(value)
    return gradients


def _depending(nodes: Sequence[Node], sources: Collection[Value]) -> set[Value]:
    """The values of real type that depend on `sources`, including those sources."""
    active = {value for value in sources if value.type.dtype.is_float}
    for node in nodes:
        if any(operand in active for operand in node.operands):
            active.update(value for value in node.results if value.type.dtype.is_float)
    return active
