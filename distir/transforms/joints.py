"""Cuts parameters whose products take unequal values joined, each of which is split by itself.

Some models run attention and the feed-forward side by side, join what they make, and multiply it
with one matrix. The joined values have no axis in common along which devices could sum; the product
is the sum of the products of each value with its own rows, which are a parameter each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from distir.ir.core import Node, Value
from distir.ir.function import Function
from distir.ops.arithmetic import Add
from distir.ops.linalg import MatMul
from distir.ops.tensor import Concat
from distir.transforms.parting import Cut, Parting, Parts, parted, partings

WHY = "one product takes attention's heads and other values joined"


def joints(function: Function) -> list[Parting]:
    """All products of unequal values, joined along the dim that is summed, with a matrix that
    depends along it on parameters alone."""
    uses, producers = function.uses(), function.producers()
    found: list[Parting] = []
    for node in function.nodes:
        joined = producers.get(node.operands[0]) if isinstance(node.op, MatMul) else None
        if joined is None or not isinstance(joined.op, Concat):
            continue
        if len(uses[joined.result]) > 1 or joined.result in function.outputs:
            continue
        sizes = _summed_sizes(joined)
        if len(set(sizes)) > 1 and node.operands[1].type.rank > 1:
            parts = Parts(function, uses, producers)
            matrix = node.operands[1]
            rows = parts.of_operand(matrix, Cut(matrix.type.rank - 2, 1, sizes))
            if rows is not None and parts.parameters:
                nodes = {**parts.nodes, joined: (), node: _sum_of_products(node, joined, rows)}
                found.append(Parting(nodes, parts.parameters, parts.constants, parts.cuts, WHY))
    return found


def _summed_sizes(joined: Node) -> tuple[int, ...]:
    """The lengths of the values that a Concat joins along their last dim; none if it is no such."""
    rank = joined.result.type.rank
    if not isinstance(joined.op, Concat) or joined.op.axis % rank != rank - 1:
        return ()
    return tuple(value.type.shape[-1] for value in joined.operands)


def _sum_of_products(node: Node, joined: Node, rows: Sequence[Value]) -> list[Node]:
    """The products of the joined values with their rows, and their sum, which a node made."""
    made: list[Node] = []

    def add(op: MatMul | Add, a: Value, b: Value, result: Value) -> Value:
        made.append(Node(op, (a, b), (result,), node.origin, node.part))
        return result

    def fresh() -> Value:
        return Value(node.result.type, node.result.name)

    products = [
        add(MatMul(), value, own, fresh()) for value, own in zip(joined.operands, rows, strict=True)
    ]
    total, *others = products
    for place, other in enumerate(others, start=1):
        total = add(Add(), total, other, node.result if place == len(others) else fresh())
    return made


Rounds = Sequence[Sequence[Parting]]
"""Partings by rounds, each of what those before have made."""


def rounds_of_partings(function: Function) -> Rounds:
    """All that can be cut into parts, round by round, as parts may be cut again."""
    rounds: list[list[Parting]] = []
    while found := partings(function) or joints(function):
        rounds.append(found)
        function = parted(function, found)
    return rounds


def needed(rounds: Rounds, is_useful: Callable[[Parting], bool]) -> Rounds:
    """The partings that are useful, and those whose parts a later one of these cuts."""
    kept: list[list[Parting]] = []
    replaced: set[Node] = set()
    for found in reversed(rounds):
        own = [
            each
            for each in found
            if is_useful(each) or any(not replaced.isdisjoint(new) for new in each.nodes.values())
        ]
        replaced.update(node for each in own for node in each.nodes)
        kept.append(own)
    return kept[::-1]


__all__ = ["Rounds", "joints", "needed", "rounds_of_partings"]
