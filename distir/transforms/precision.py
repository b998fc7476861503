"""Element types of parts of a program that differ from the workload's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from distir.cost.work import OpClass
from distir.ir.core import Node, Part, Value
from distir.ir.types import DType
from distir.transforms.step import BlockStep


def read_by_products(step: BlockStep) -> frozenset[Value]:
    """Values of a block's passes that memory-bound kernels make and that only products read, views
    aside. Such kernels write them in the narrow type that products run in, and they are kept in
    that type (Transformer Engine: norms and activation functions with quantized results)."""
    nodes = (*step.forward, *step.backward)
    readers: dict[Value, list[Node]] = {}
    for node in nodes:
        for value in node.operands:
            readers.setdefault(value, []).append(node)
    handed = {*step.block.outputs, *step.block.results, *step.repeated_outputs}
    handed |= {*step.input_gradients.values(), *step.parameter_gradients.values()}
    found: set[Value] = set()

    def narrow(value: Value) -> bool:
        own = readers.get(value, [])
        views = [view for node in own if node.op.is_view for view in node.results]
        fits = (
            bool(own)
            and value not in handed
            and value.type.dtype.is_float
            and all(node.op.is_view or _is_narrow_product(node) for node in own)
            and all(map(narrow, views))
        )
        if fits:
            found.update((value, *views))
        return fits

    for node in nodes:
        if not node.op.is_view and _kind(node) is OpClass.MEMORY:
            for value in node.results:
                narrow(value)
    return frozenset(found)


def _is_narrow_product(node: Node) -> bool:
    return _kind(node) is OpClass.PRODUCT and node.part is not Part.WIDE


def _kind(node: Node) -> OpClass:
    return node.op.work(node.operand_types, node.result_types).kind


def in_type(nodes: Sequence[Node], dtype: DType) -> list[Node]:
    """The nodes on values of another element type."""
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
