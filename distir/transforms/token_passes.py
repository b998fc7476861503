"""What software does with tokens on their way to experts and back, beside moving them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from distir.ir.core import Node, Op, Value
from distir.ir.types import DType
from distir.ops.collective import AllToAll, Distributed, Rearranged, Sharded
from distir.ops.elementwise import Cast
from distir.ops.routing import Combine, Dispatch

__all__ = ["NO_PASSES", "TokenPasses", "with_token_passes"]

EXPERTS = 1
"""The dim of experts in `[batch, experts, slots, hidden]`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPasses:
    """The passes over memory that a software stack makes over tokens that go to experts.

    The rest is one permutation each way, which every stack has.
    """

    sorts: bool = False
    """Whether rows are sorted by expert after an exchange and by device before the one back, where
    a device has several experts."""
    pads: bool = False
    """Whether the rows of each expert are copied to aligned places before products in a narrower
    type, and results copied back."""
    sends_narrow: bool = False
    """Whether tokens travel in the narrower type of products. Otherwise they are cast where they
    arrive."""


NO_PASSES = TokenPasses()
"""Nothing beside permutations, exchanges, and casts on arrival."""


def with_token_passes(
    nodes: Sequence[Node], kept: Collection[Value], passes: TokenPasses, narrow: DType | None
) -> list[Node]:
    """The nodes of a block's pass, with what happens to tokens beside permutations and exchanges.
    `kept` are the values that are read outside of `nodes` too, `narrow` is the type of experts'
    products if that is narrower than the type of values."""
    found = list(nodes)
    if narrow is not None and not passes.sends_narrow:
        found = _sent_wide(found, kept, narrow, pads=passes.pads)
    if narrow is not None and passes.pads:
        found = [each for node in found for each in _after_products(node, found)]
    if passes.sorts:
        found = [each for node in found for each in _in_order(node, found)]
    return found


def _sent_wide(
    nodes: Sequence[Node], kept: Collection[Value], narrow: DType, *, pads: bool
) -> list[Node]:
    """Tokens travel in the type in which they come, and are cast once for all products."""
    read = {v for node in nodes if not _moves(node.op) for v in node.operands} | set(kept)
    under_way: dict[Value, Value] = {}
    found: list[Node] = []
    for node in nodes:
        goes_on = _moves(node.op) and any(value in under_way for value in node.operands)
        if not (goes_on or isinstance(_own(node.op), Dispatch)):
            found.append(node)
            continue
        wide = under_way.get(node.operands[0], node.operands[0]).type.dtype
        arriving = [value for value in node.results if value.type.dtype is narrow]
        under_way |= {v: _like(v, wide) for v in arriving}
        operands, results = (
            tuple(under_way.get(value, value) for value in values)
            for values in (node.operands, node.results)
        )
        found.append(replace(node, operands=operands, results=results))
        for value in arriving:
            if value in read:
                cast = Node(Cast(narrow), (under_way[value],), (value,), node.origin, node.part)
                found += _preceded(cast, "aligned") if pads else (cast,)
    return found


def _after_products(node: Node, nodes: Sequence[Node]) -> tuple[Node, ...]:
    """The node; the results of experts that it is the first to take away are copied before."""
    takes_away = _goes_back(node.op) or isinstance(_own(node.op), Combine)
    exchanged = any(_goes_back(each.op) and node.operands[0] in each.results for each in nodes)
    return _preceded(node, "aligned") if takes_away and not exchanged else (node,)


def _in_order(node: Node, nodes: Sequence[Node]) -> tuple[Node, ...]:
    """The node; rows are copied after the last exchange to several experts, and before the first
    one back."""
    if _goes_back(node.op):
        first = not any(_goes_back(n.op) and node.operands[0] in n.results for n in nodes)
        sorts = first and _of_several(node.operands[0])
        return _preceded(node, "sorted") if sorts else (node,)
    if _goes_there(node.op):
        last = not any(_goes_there(n.op) and node.results[0] in n.operands for n in nodes)
        return _followed(node, "sorted") if last and _of_several(node.results[0]) else (node,)
    return (node,)


def _of_several(rows: Value) -> bool:
    return rows.type.shape[EXPERTS] > 1


def _preceded(node: Node, why: Literal["sorted", "aligned"]) -> tuple[Node, Node]:
    """The node behind a copy of its first operand."""
    operand, *others = node.operands
    copied = _like(operand, operand.type.dtype)
    copying = Node(Rearranged(why), (operand,), (copied,), node.origin, node.part)
    return copying, replace(node, operands=(copied, *others))


def _followed(node: Node, why: Literal["sorted", "aligned"]) -> tuple[Node, Node]:
    """The node before a copy of its result."""
    (result,) = node.results
    moved = _like(result, result.type.dtype)
    copying = Node(Rearranged(why), (moved,), (result,), node.origin, node.part)
    return replace(node, results=(moved,)), copying


def _like(value: Value, dtype: DType) -> Value:
    return Value(replace(value.type, dtype=dtype), value.name)


def _own(op: Op) -> Op:
    return op.op if isinstance(op, Sharded) else op


def _moves(op: Op) -> bool:
    """Whether an op does nothing but change where a value is."""
    return isinstance(op, Distributed) and not isinstance(op, Sharded)


def _goes_there(op: Op) -> bool:
    """Whether an op sends tokens to the devices of their experts."""
    return isinstance(op, AllToAll) and op.routed is not None and op.scatter.dim == EXPERTS


def _goes_back(op: Op) -> bool:
    """Whether an op sends the results of experts to where their tokens came from."""
    return isinstance(op, AllToAll) and op.routed is not None and op.gather.dim == EXPERTS
