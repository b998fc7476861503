"""Fuses chains of elementwise ops into one kernel, as compilers do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence

from distir.ir.core import Node, Op, Value
from distir.ops.collective import Sharded
from distir.ops.elementwise import Elementwise
from distir.ops.fused import Fused
from distir.ops.norm import Softmax, SoftmaxGradient
from distir.ops.tensor import Scale


def number_of_elements(value: Value) -> object:
    """The number of elements of a tensor, as a key to compare."""
    return value.type.num_elements


def fuse_elementwise(
    nodes: Sequence[Node],
    leaving: Collection[Value],
    elements: Callable[[Value], object] = number_of_elements,
) -> tuple[Node, ...]:
    """`nodes` with runs of elementwise ops as one `Fused` op each.

    The ops of a run feed each other or read the same tensor, and their results have the same
    elements. `elements` gives a key that is equal for tensors with the same elements; `leaving` are
    the values that are read outside of `nodes` too. A softmax may end a run, and its gradient may
    begin one: scale, mask and softmax are one kernel (Megatron-LM,
    fused_kernels/scaled_masked_softmax.cpp). A run ends where an op that is not in it reads one of
    its values, so that the other ops keep their order.
    """
    readers = Counter(value for node in nodes for value in node.operands)
    result: list[Node] = []
    group: list[Node] = []
    made: set[Value] = set()
    read: set[Value] = set()

    def close() -> None:
        if len(group) == 1:
            result.append(group[0])
        elif group:
            result.append(_fused(group, readers, leaving))
        group.clear()
        made.clear()
        read.clear()

    for node in nodes:
        reads_group = any(value in made for value in node.operands)
        if isinstance(node.op, Softmax) and reads_group:
            group.append(node)
            made.update(node.results)
            close()
            continue
        if isinstance(node.op, SoftmaxGradient):
            close()
            group.append(node)
            made.update(node.results)
            continue
        if not _is_elementwise(node.op) or node.op.is_view:
            if reads_group or not node.op.is_view:
                close()
            result.append(node)
            continue
        own = elements(node.results[0])
        tensors = {value for value in node.operands if elements(value) == own}
        belongs = reads_group or not tensors.isdisjoint(read)
        if not (belongs and elements(group[-1].results[0]) == own):
            close()
        group.append(node)
        made.update(node.results)
        read.update(tensors)
    close()
    return tuple(result)


def _is_elementwise(op: Op) -> bool:
    """Whether the op is elementwise; it may be `Sharded`, as dropout is, which must know which
    elements it has."""
    return isinstance(op.op if isinstance(op, Sharded) else op, (Elementwise, Scale))


def _fused(group: Sequence[Node], readers: Counter[Value], leaving: Collection[Value]) -> Node:
    made = dict.fromkeys(value for node in group for value in node.results)
    operands = tuple(dict.fromkeys(v for node in group for v in node.operands if v not in made))
    place = {value: i for i, value in enumerate((*operands, *made))}
    inside = Counter(value for node in group for value in node.operands)
    results = tuple(v for v in made if v in leaving or readers[v] > inside[v])
    steps = tuple((node.op, tuple(place[v] for v in node.operands)) for node in group)
    op = Fused(len(operands), steps, tuple(place[value] for value in results))
    return Node(op, operands, results, group[-1].origin, group[-1].part)
