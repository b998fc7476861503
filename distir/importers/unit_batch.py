"""Widens the batch of an export that fixes it at 1.

A dim of size 1 has no axis. So its position is followed from the inputs, op by op, through the
function. Parameters and tables never carry it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from distir.errors import DistirError, TransformError
from distir.ir.core import Node, Op, Value
from distir.ir.function import Function
from distir.ir.signature import Kind, Signature
from distir.ir.types import TensorType
from distir.ops.elementwise import Elementwise
from distir.ops.linalg import MatMul
from distir.ops.lookup import GatherElements, ScatterElements
from distir.ops.tensor import Concat, Expand, Reshape, Slice


@dataclass(frozen=True, slots=True)
class BatchPlace:
    """Where the batch is in a tensor: in dim `dim`, which is `outer · batch · rest`.

    `outer` is 1 for a dim of size 1, and for `(batch · rows)`; for `(rows · batch)` it is `rows`.
    """

    dim: int
    outer: int = 1


def widen_batch(
    function: Function,
    positions: Mapping[Value, int],
    batch_size: int,
    axis_maps: Mapping[Value, tuple[int | None, ...]],
    renamed: dict[Value, Value],
) -> Function:
    """The function with the dims of size 1 at these `positions` of its inputs widened to
    `batch_size`.

    `axis_maps` says, for results of Reshapes that only add or drop dims of size 1, where each dim
    went (see `Call.view`). The new value of each old one is added to `renamed`. Raises
    `TransformError` if an op loses the batch or combines samples.

    A Reshape does not say whether `(rows, width)` has the batch at the end of its rows or at the
    start of its width, nor which of two dims of size 1 is the batch. If a later op cannot take the
    one choice, the nearest Reshapes before it are given the other, as long as that leads further.
    An op that keeps samples apart computes each as it would alone, so that choices which reach the
    end are right. If an op combines samples of two inputs, as of texts and images, each of these
    inputs gets a batch of its own.
    """
    best = _furthest(function, positions, batch_size, axis_maps)
    if best.error is None:
        renamed.update(best.new)
        return best.result()
    groups = best.inputs_that_meet()
    if groups is None:
        raise best.error
    now = {value: value for value in (*positions, *axis_maps)}
    for number, group in enumerate(groups):
        # Different sizes, so that the batches are not taken for one.
        size = batch_size + number * BATCH_STEP
        made: dict[Value, Value] = {}
        maps = {now[value]: dims for value, dims in axis_maps.items()}
        places = {now[value]: positions[value] for value in group}
        function = widen_batch(function, places, size, maps, made)
        now = {old: made.get(new, new) for old, new in now.items()}
        renamed.update({old: made.get(new, new) for old, new in renamed.items()})
        renamed.update({old: new for old, new in made.items() if old not in renamed})
    return function


def _furthest(
    function: Function,
    positions: Mapping[Value, int],
    batch_size: int,
    axis_maps: Mapping[Value, tuple[int | None, ...]],
) -> _Widening:
    """The attempt that gets through the whole function, or, if none does, the first."""
    first = best = _Widening(function, positions, batch_size, axis_maps, frozenset())
    while best.error is not None:
        others = (
            _Widening(function, positions, batch_size, axis_maps, best.second_choices ^ {choice})
            for choice in best.choices_before_error()
        )
        better = next((other for other in others if other.reached > best.reached), None)
        if better is None:
            return first
        best = better
    return best


BATCH_STEP = 2
"""How much longer each further batch is than the one before."""

_Choice = tuple[tuple[int, ...], BatchPlace, tuple[int, ...]]
"""A kind of Reshape: the shape before, where the batch is in it, and the shape after."""

MOST_OTHER_CHOICES = 8
"""Kinds of Reshape that are given the other choice if an op behind them cannot take the batch."""


class _Widening:
    """One attempt to widen a function. For the kinds of Reshape in `second_choices`, the batch is
    taken to be in the less likely place."""

    def __init__(
        self,
        function: Function,
        positions: Mapping[Value, int],
        batch_size: int,
        axis_maps: Mapping[Value, tuple[int | None, ...]],
        second_choices: frozenset[_Choice],
    ) -> None:
        self.function = function
        self.batch_size = batch_size
        self.axis_maps = axis_maps
        self.second_choices = second_choices
        self.new: dict[Value, Value] = {value: value for value in function.sources()}
        self.places: dict[Value, BatchPlace] = {}
        self.choices: dict[Value, _Choice] = {}
        self.nodes: list[Node] = []
        for value, dim in positions.items():
            self.places[value] = BatchPlace(dim)
            self.new[value] = Value(self._wide(value.type, BatchPlace(dim)), value.name)
        self.reached = 0
        self.error: DistirError | None = None
        try:
            for node in function.nodes:
                self._node(node)
                self.reached += 1
        except DistirError as error:
            self.error = error

    def choices_before_error(self) -> list[_Choice]:
        """The kinds of Reshape before the op that failed, nearest first."""
        producers = self.function.producers()
        found: dict[_Choice, None] = {}
        pending, seen = [self.function.nodes[self.reached]], set[Node]()
        while pending and len(found) < MOST_OTHER_CHOICES:
            node = pending.pop(0)
            for value in node.operands:
                if value not in self.places or value not in producers or producers[value] in seen:
                    continue
                seen.add(producers[value])
                pending.append(producers[value])
                if value in self.choices:
                    found[self.choices[value]] = None
        return list(found)

    def inputs_that_meet(self) -> list[list[Value]] | None:
        """Two groups of widened inputs, if the op that failed combines two operands that depend on
        no common input; otherwise None."""
        node = self.function.nodes[self.reached]
        behind: dict[Value, set[Value]] = {value: {value} for value in self.function.inputs}
        for each in self.function.nodes[: self.reached]:
            needed = {source for v in each.operands for source in behind.get(v, ())}
            behind.update(dict.fromkeys(each.results, needed))
        widened = [v for v in self.function.inputs if v in self.places]
        ways = [behind.get(v, set()) & set(widened) for v in node.operands if v in self.places]
        if len(ways) != 2 or ways[0] & ways[1]:
            return None
        return [[v for v in widened if v not in ways[1]], [v for v in widened if v in ways[1]]]

    def result(self) -> Function:
        """The widened function."""
        return replace(
            self.function,
            inputs=tuple(self.new[value] for value in self.function.inputs),
            nodes=tuple(self.nodes),
            outputs=tuple(self.new[value] for value in self.function.outputs),
        )

    def _wide(self, type: TensorType, place: BatchPlace) -> TensorType:
        shape = list(type.shape)
        shape[place.dim] *= self.batch_size
        return type.with_shape(tuple(shape))

    def _node(self, node: Node) -> None:
        if not any(operand in self.places for operand in node.operands):
            self.nodes.append(Node(node.op, self._operands(node), node.results, node.origin))
            self.new.update((result, result) for result in node.results)
            return
        node = self._with_batches_apart(node)
        operands = self._stacked(node)
        op, places = self._rewritten(node, operands)
        if isinstance(op, (Concat, Elementwise)):
            operands = self._filled(node, places[0])
        results: list[Value] = []
        for old, type, place in zip(
            node.results, op.infer(*(v.type for v in operands)), places, strict=True
        ):
            expected = old.type if place is None else self._wide(old.type, place)
            if type != expected:
                raise TransformError(
                    f"{op.name} {old.name!r} gives {type} where {expected} was expected"
                )
            new = Value(type, old.name)
            results.append(new)
            self.new[old] = new
            if place is not None:
                self.places[old] = place
        self.nodes.append(Node(op, operands, tuple(results), node.origin))

    def _with_batches_apart(self, node: Node) -> Node:
        """The node with a batch dim added to operands `(batch · heads, …)` beside `(batch, heads,
        …)`. With a batch of 1, the exporter left it to broadcasting."""
        if not isinstance(node.op, (MatMul, Elementwise)):
            return node
        ends = {v: self.places[v].dim - v.type.rank for v in node.operands if v in self.places}
        outermost = min(ends.values())
        if any(
            v.type.shape[self.places[v].dim] != 1 for v, end in ends.items() if end == outermost
        ):
            return node
        apart = {
            v: self._with_own_dim(v, node.origin)
            for v, end in ends.items()
            if end == outermost + 1 and self.places[v] == BatchPlace(0)
        }
        return replace(node, operands=tuple(apart.get(v, v) for v in node.operands))

    def _with_own_dim(self, value: Value, origin: str) -> Value:
        """Reshapes a value whose first dim begins with the batch, so that the batch gets a dim of
        its own."""
        apart = Value(value.type.with_shape((1, *value.type.shape)), value.name)
        wide = Value(self._wide(apart.type, BatchPlace(0)), value.name)
        self.nodes.append(Node(Reshape(wide.type.shape), (self.new[value],), (wide,), origin))
        self.new[apart] = wide
        self.places[apart] = BatchPlace(0)
        return apart

    def _operands(self, node: Node) -> tuple[Value, ...]:
        return tuple(self.new[operand] for operand in node.operands)

    def _stacked(self, node: Node) -> tuple[Value, ...]:
        """The operands of a node. In batched products and in lookups along another dim, operands
        without the batch are repeated for every sample."""
        op, operands = node.op, list(self._operands(node))
        if not isinstance(op, (MatMul, GatherElements, ScatterElements)):
            return tuple(operands)
        x = next(value for value in node.operands if value in self.places)
        place, rank = self.places[x], x.type.rank
        is_product = isinstance(op, MatMul)
        if place.dim >= rank - 2 if is_product else place.dim == op.axis % rank:
            return tuple(operands)
        for index, other in enumerate(node.operands):
            dim = place.dim - rank + other.type.rank
            if other in self.places or dim < 0 or (is_product and other.type.shape[dim] == 1):
                continue
            operands[index] = self._repeated(
                self.new[other], BatchPlace(dim, place.outer), node.origin
            )
        return tuple(operands)

    def _rewritten(
        self, node: Node, operands: Sequence[Value]
    ) -> tuple[Op, list[BatchPlace | None]]:
        """The op at the new sizes, and the place of the batch in each result."""
        op = node.op
        if isinstance(op, Reshape):
            place = self._reshaped(node)
            return Reshape(self._wide(node.result.type, place).shape), [place]
        if isinstance(op, Expand):
            source = self.places[node.operands[0]]
            added = node.result.type.rank - node.operands[0].type.rank
            place = BatchPlace(source.dim + added, source.outer)
            return Expand(self._wide(node.result.type, place).shape), [place]
        if isinstance(op, Slice):
            place = self.places[node.operands[0]]
            stops = list(op.stops)
            if node.result.type.shape[place.dim] != node.operands[0].type.shape[place.dim]:
                raise TransformError(f"Slice {node.result.name!r} cuts the batch")
            stops[place.dim] = None
            return replace(op, stops=tuple(stops)), [place]
        if isinstance(op, Concat):
            place = next(self.places[v] for v in node.operands if v in self.places)
            axis = op.axis % node.result.type.rank
            if place.dim == axis:
                raise TransformError(f"Concat {node.result.name!r} joins along the batch")
            return op, [place]
        if isinstance(op, Elementwise):
            return op, [self._aligned(node)]
        return op, self._by_inference(node, operands)

    def _aligned(self, node: Node) -> BatchPlace:
        """The place of the batch in the result of an elementwise op."""
        rank = node.results[0].type.rank
        found = {
            (self.places[v].dim + rank - v.type.rank, self.places[v].outer)
            for v in node.operands
            if v in self.places
        }
        if len(found) > 1:
            raise TransformError(f"{node.op.name} {node.results[0].name!r} has the batch twice")
        return BatchPlace(*found.pop())

    def _by_inference(self, node: Node, operands: Sequence[Value]) -> list[BatchPlace | None]:
        """The place of the batch in each result of an op without sizes among its attributes: in the
        dim that grows."""
        outer = next(self.places[v].outer for v in node.operands if v in self.places)
        given = [operand.type for operand in operands]
        types = node.op.infer(*given)
        self._check_apart(node, node.op.signature(given, types))
        places: list[BatchPlace | None] = []
        for old, new in zip(node.results, types, strict=True):
            grown = [
                dim
                for dim, (a, b) in enumerate(zip(old.type.shape, new.shape, strict=True))
                if a != b
            ]
            if not grown:
                raise TransformError(f"{node.op.name} {old.name!r} combines the samples of a batch")
            if len(grown) > 1:
                raise TransformError(f"{node.op.name} {old.name!r} has the batch twice")
            places.append(BatchPlace(grown[0], outer))
        return places

    def _check_apart(self, node: Node, signature: Signature) -> None:
        """Raises `TransformError` if an op does not go in parallel over a dim that contains the
        batch and other elements."""
        for value, dims in zip(node.operands, signature.operands, strict=True):
            place = self.places.get(value)
            if place is None or value.type.shape[place.dim] == 1:
                continue
            if any(signature.loops[loop].kind is not Kind.PARALLEL for loop in dims[place.dim]):
                raise TransformError(
                    f"{node.op.name} {node.results[0].name!r} combines the samples of a batch"
                )

    def _filled(self, node: Node, place: BatchPlace | None) -> tuple[Value, ...]:
        """The operands of a node; those without the batch are repeated for every sample where they
        are not broadcast over it."""
        assert place is not None
        operands: list[Value] = []
        for old in node.operands:
            new = self.new[old]
            offset = node.results[0].type.rank - old.type.rank
            dim = place.dim - offset
            is_stretched = dim < 0 or (
                old.type.shape[dim] == 1 and isinstance(node.op, Elementwise)
            )
            if old not in self.places and not is_stretched:
                new = self._repeated(new, BatchPlace(dim, place.outer), node.origin)
            operands.append(new)
        return tuple(operands)

    def _repeated(self, x: Value, place: BatchPlace, origin: str) -> Value:
        shape, dim, outer = x.type.shape, place.dim, place.outer
        if shape[dim] % outer:
            raise TransformError(
                f"{x} cannot be repeated for a batch inside {outer} elements of its dim {dim}"
            )
        inner = shape[dim] // outer
        before, after = shape[:dim], shape[dim + 1 :]
        steps: tuple[Op, ...] = (
            Reshape((*before, outer, 1, inner, *after)),
            Expand((*before, outer, self.batch_size, inner, *after)),
            Reshape((*before, shape[dim] * self.batch_size, *after)),
        )
        for op in steps:
            (type,) = op.infer(x.type)
            result = Value(type, x.name)
            self.nodes.append(Node(op, (x,), (result,), origin))
            x = result
        return x

    def _reshaped(self, node: Node) -> BatchPlace:
        (x,) = node.operands
        place = self.places[x]
        source, target = x.type.shape, node.result.type.shape
        kept = self.axis_maps.get(node.result)
        if kept is not None:
            to = kept[place.dim]
            if to is not None:
                return BatchPlace(to, place.outer)
        before = math.prod(source[: place.dim]) * place.outer
        is_unit = source[place.dim] == 1
        rank = _rank_among_units(source, place.dim) if is_unit else 0
        found = _places_at(target, before, rank)
        if len(found) == 1:
            return found[0]
        choice = self.choices[node.result] = (source, place, target)
        return found[choice in self.second_choices]


def _rank_among_units(shape: tuple[int, ...], dim: int) -> int:
    """The number of dims of size 1 directly before this one."""
    rank = 0
    while rank < dim and shape[dim - rank - 1] == 1:
        rank += 1
    return rank


def _places_at(shape: tuple[int, ...], before: int, rank: int) -> list[BatchPlace]:
    """The places in a shape that have `before` elements outside of them: at most two, the likelier
    first. `rank` chooses among dims of size 1 there.

    With dims of size 1 there, it is one of these. Otherwise it is the beginning of the next dim or
    the end of the one before, or, if no dim begins there, a place within a dim.
    """
    units = [
        dim for dim, size in enumerate(shape) if size == 1 and math.prod(shape[:dim]) == before
    ]
    if units:
        chosen = min(rank, len(units) - 1)
        beside = units[chosen + 1 :] or units[:chosen][::-1]
        return [BatchPlace(dim) for dim in (units[chosen], *beside[:1])]
    outer = 1
    for dim, size in enumerate(shape):
        if outer == before:
            return [BatchPlace(dim), *([BatchPlace(dim - 1, shape[dim - 1])] if dim else [])]
        if before % outer == 0 and before < outer * size and size % (before // outer) == 0:
            return [BatchPlace(dim, before // outer)]
        outer *= size
    if outer == before and shape:
        return [BatchPlace(len(shape) - 1, shape[-1])]
    raise TransformError(f"a Reshape to {list(shape)} loses the batch")
