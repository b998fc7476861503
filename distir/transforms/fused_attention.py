"""Replaces attention that exporters spell out by one fused op, and the other way round.

The pattern is `softmax(scale · q @ kᵀ + mask) @ v`. Scaling and mask may be absent, rows with
nothing to attend to may be set to a constant, and attention weights may be dropped. Only ops and
wiring are matched; attention is left as it is where another op reads a value in between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from distir.ir.builder import Builder
from distir.ir.core import Array, Node, Value
from distir.ir.function import Function
from distir.ops.activations import Dropout
from distir.ops.arithmetic import Add, Div, Mul
from distir.ops.attention import FusedAttention, spell_out
from distir.ops.comparisons import IsNaN, Where
from distir.ops.linalg import MatMul
from distir.ops.norm import Softmax
from distir.ops.tensor import Scale, Transpose


def has_fused_attention(function: Function) -> bool:
    """Whether there is attention in one op."""
    return any(isinstance(node.op, FusedAttention) for node in function.nodes)


def may_have_attention(function: Function) -> bool:
    """Whether there may be attention of any kind, also such as no pattern is known of: there is a
    softmax."""
    return any(isinstance(node.op, (FusedAttention, Softmax)) for node in function.nodes)


def with_eager_attention(function: Function) -> Function:
    """The function with every `FusedAttention` spelled out as products and a softmax."""
    if not has_fused_attention(function):
        return function
    builder = Builder(function.name)
    nodes: list[Node] = []
    for node in function.nodes:
        if isinstance(node.op, FusedAttention):
            nodes += _spelled_out(builder, node, node.op)
        else:
            nodes.append(node)
    constants = {**function.constants, **builder.constants}
    return replace(function, nodes=tuple(nodes), constants=constants)


def _spelled_out(builder: Builder, node: Node, op: FusedAttention) -> list[Node]:
    """The nodes that compute one fused attention with products and a softmax."""
    builder.origin, builder.part = node.origin, node.part
    start = len(builder.nodes)
    spell_out(builder, op, *node.operands)
    *before, last = builder.nodes[start:]
    return [*before, replace(last, results=node.results)]


def with_fused_attention(function: Function) -> Function:
    """The function with every spelled-out attention replaced by a `FusedAttention`."""
    matcher = _AttentionMatcher(function)
    found = [match for node in function.nodes if (match := matcher.match(node))]
    if not found:
        return function
    dropped = {node for match in found for node in match.nodes}
    replaced = {match.nodes[-1]: match for match in found}
    nodes: list[Node] = []
    for node in function.nodes:
        if node in replaced:
            nodes += replaced[node].fused()
        elif node not in dropped:
            nodes.append(node)
    return replace(function, nodes=tuple(nodes))


@dataclass(frozen=True, slots=True)
class _Match:
    """One attention that was found. `nodes` spell it out; the last one makes the result."""

    nodes: tuple[Node, ...]
    query: Value
    key: Value
    """The keys before they are transposed; `permutation` makes them
    `[batch, heads, columns, depth]`."""
    permutation: tuple[int, ...]
    value: Value
    mask: Value | None
    scale: float
    dropout: Dropout

    def fused(self) -> list[Node]:
        """The nodes that replace it."""
        last = self.nodes[-1]
        turn = Transpose(self.permutation)
        (type,) = turn.infer(self.key.type)
        turned = Value(type, self.key.name)
        operands = (self.query, turned, self.value, *((self.mask,) if self.mask else ()))
        op = FusedAttention(self.scale, dropout=self.dropout.ratio, seed=self.dropout.seed)
        return [
            Node(turn, (self.key,), (turned,), last.origin, last.part),
            Node(op, operands, last.results, last.origin, last.part),
        ]


class _AttentionMatcher:
    """Finds spelled-out attention in a function."""

    def __init__(self, function: Function) -> None:
        self.producers: Mapping[Value, Node] = function.producers()
        self.uses: Mapping[Value, Sequence[Node]] = function.uses()
        self.constants: Mapping[Value, Array | None] = function.constants
        self.outputs = frozenset(function.outputs)

    def match(self, node: Node) -> _Match | None:
        """The attention around a softmax, if there is one."""
        op = node.op
        if not isinstance(op, Softmax) or op.axis % node.result.type.rank != 3:
            return None
        before = self._scores(node.operands[0])
        after = self._result(node.result)
        if before is None or after is None:
            return None
        scores, mask, scale = before
        query, turned = scores[-1].operands
        value = after[-1].operands[1]
        shapes = {each.type.shape[:2] for each in (query, turned, value)}
        if len(shapes) > 1 or any(each.type.rank != 4 for each in (query, turned, value)):
            return None
        nodes, key, permutation = (*reversed(scores), node, *after), turned, (0, 1, 3, 2)
        maker = self.producers.get(turned)
        if maker is not None and isinstance(maker.op, Transpose) and self._read_once(turned):
            first, second, depth, columns = maker.op.permutation
            nodes = (maker, *nodes)
            key, permutation = maker.operands[0], (first, second, columns, depth)
        drops = (each.op for each in after if isinstance(each.op, Dropout))
        dropout = next(drops, Dropout())
        return _Match(nodes, query, key, permutation, value, mask, scale, dropout)

    def _scores(self, value: Value) -> tuple[list[Node], Value | None, float] | None:
        """The ops from the softmax's operand back to the product of queries and keys, the mask and
        the scale; None if the ops between are others."""
        nodes: list[Node] = []
        mask: Value | None = None
        scale = 1.0
        while self._read_once(value) and (node := self.producers.get(value)) is not None:
            nodes.append(node)
            factor = self._factor(node)
            if isinstance(node.op, MatMul):
                return nodes, mask, scale
            if factor is not None:
                value, scale = factor[0], scale * factor[1]
            elif isinstance(node.op, Add) and mask is None and scale == 1.0:
                value, mask = self._sides(node)
                if mask.type.rank > 4 or not mask.type.dtype.is_float:
                    return None
            else:
                return None
        return None

    def _sides(self, node: Node) -> tuple[Value, Value]:
        """The operands of a sum in order: scores, mask."""
        a, b = node.operands
        maker = self.producers.get(a)
        of_scores = maker is not None and isinstance(maker.op, (MatMul, Mul, Div, Scale))
        return (a, b) if of_scores and a.type.shape == node.result.type.shape else (b, a)

    def _factor(self, node: Node) -> tuple[Value, float] | None:
        """The value that a node scales and the factor; None if the node does not scale."""
        if isinstance(node.op, Scale):
            return node.operands[0], node.op.factor
        if not isinstance(node.op, (Mul, Div)):
            return None
        value, other = node.operands
        number = self.constants.get(other)
        if number is None or other.type.num_elements != 1:
            return None
        known = float(number.reshape(-1)[0])
        return value, known if isinstance(node.op, Mul) else 1.0 / known

    def _result(self, weights: Value) -> list[Node] | None:
        """The ops from the softmax's result on to the product with the values, or None."""
        nodes: list[Node] = []
        readers = list(self.uses.get(weights, ()))
        if len(readers) == 2 and isinstance(readers[0].op, IsNaN):
            test, choice = readers
            wired = (test.result, weights) == (choice.operands[0], choice.operands[-1])
            if not (isinstance(choice.op, Where) and wired and self._read_once(test.result)):
                return None
            nodes, weights = [test, choice], choice.result
        if not self._read_once(weights):
            return None
        (last,) = self.uses[weights]
        if isinstance(last.op, Dropout):
            nodes, (weights, kept) = [*nodes, last], last.results
            if self.uses.get(kept) or kept in self.outputs or not self._read_once(weights):
                return None
            (last,) = self.uses[weights]
        if not isinstance(last.op, MatMul) or last.operands[0] is not weights:
            return None
        return [*nodes, last]

    def _read_once(self, value: Value) -> bool:
        return len(self.uses.get(value, ())) == 1 and value not in self.outputs


__all__ = ["with_eager_attention", "with_fused_attention"]
