"""Axis inference: union–find over the factors of dims.

A dim of a source starts as one factor; a dim of a result has the factors of its op's loops. Where
an operand meets the loops of its reader, both are cut into their common refinement and united.
Loops of one op never become one axis: where a union would join two of them, or where no refinement
exists, the operand passes a `Boundary` with fresh factors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from distir.axes.boundaries import Crossing, move_boundaries_up
from distir.axes.factors import Factor, leaves, set_apart
from distir.axes.model import Axes, Axis, AxisDims, find_representative
from distir.axes.order import canonical_order
from distir.axes.unify import Loops, Ties, unify
from distir.errors import TransformError
from distir.ir.core import Node, Value
from distir.ir.function import Function
from distir.ir.signature import Kind
from distir.ops.tensor import Boundary

MAX_PASSES = 8
"""Boundaries that are moved up can make others necessary; real models need two passes."""


def infer_axes(
    function: Function, seeds: Mapping[Value, AxisDims] | None = None
) -> tuple[Function, Axes]:
    """The function in canonical order with its boundaries as ops, and its axes.

    `seeds` fixes the axes of some values; inference then extends to the others. Raises
    `TransformError` if the ops contradict the seeds.
    """
    return infer_ordered(canonical_order(function), seeds)


class CopiesDifferError(TransformError):
    """The last copy of a repeat splits or unites axes that were found before it."""


def infer_ordered(
    function: Function,
    seeds: Mapping[Value, AxisDims] | None = None,
    last_copies: Mapping[Value, Value] | None = None,
) -> tuple[Function, Axes]:
    """Like `infer_axes`, for a function whose ops are to be visited in the order they have.

    `last_copies` are stretches of ops, from the first result of the first op to the first result of
    the last op. Raises `CopiesDifferError` if one of them splits or unites axes from before it.
    """
    bounded, axes = _infer_once(function, seeds or {}, last_copies or {})
    for _ in range(MAX_PASSES - 1):
        if bounded is function:
            break
        function = move_boundaries_up(bounded, axes)
        bounded, axes = _infer_once(function, seeds or {}, last_copies or {})
    return bounded, axes


def _infer_once(
    function: Function, seeds: Mapping[Value, AxisDims], last_copies: Mapping[Value, Value]
) -> tuple[Function, Axes]:
    inference = _Inference(function, seeds, last_copies)
    return inference.run(), inference.axes()


def extend_axes(
    nodes: Sequence[Node], sources: Iterable[Value], seeds: Mapping[Value, AxisDims]
) -> tuple[tuple[Node, ...], Axes]:
    """Axes of ops that are added to a program whose axes are known, the `seeds`. Returns `nodes` in
    their order with the boundaries that they need, and the axes of all values."""
    function = Function("extension", tuple(sources), (), {}, tuple(nodes), ())
    inference = _Inference(function, seeds)
    bounded = inference.run()
    return bounded.nodes, inference.axes()


@dataclass(slots=True)
class _Inference:
    """One pass over the ops of a function: `run`, then `axes`."""

    function: Function
    seeds: Mapping[Value, AxisDims]
    last_copies: Mapping[Value, Value] = field(default_factory=dict[Value, Value])
    dims: dict[Value, list[list[Factor]]] = field(default_factory=dict[Value, list[list[Factor]]])
    loops: dict[Node, list[list[Factor]]] = field(default_factory=dict[Node, list[list[Factor]]])
    kinds: dict[Node, list[Kind]] = field(default_factory=dict[Node, list[Kind]])
    ties: Ties = field(default_factory=Ties)
    followers: dict[Node, tuple[tuple[int, int], ...]] = field(
        default_factory=dict[Node, tuple[tuple[int, int], ...]]
    )
    crossings: dict[Node, Crossing] = field(default_factory=dict[Node, Crossing])
    _of_axis: dict[Axis, Factor] = field(default_factory=dict[Axis, Factor])
    _nodes: list[Node] = field(default_factory=list[Node])

    def run(self) -> Function:
        """Visits all ops; the function with its new boundaries, or itself if it needs none."""
        for value in self.function.sources():
            self._declare(value)
        ends: dict[Value, set[Factor]] = {}
        for node in self.function.nodes:
            if self.last_copies and node.results[0] in self.last_copies:
                ends[self.last_copies[node.results[0]]] = self._visited_leaves()
            self._visit(node)
            if ends and node.results[0] in ends:
                self._check_unchanged(ends.pop(node.results[0]))
        if not self.crossings:
            return self.function
        self._finish_boundaries()
        return replace(self.function, nodes=tuple(self._nodes))

    def _visited_leaves(self) -> set[Factor]:
        """The leaves of all values that the ops visited so far have read and made."""
        values = {v for node in self._nodes for v in (*node.operands, *node.results)}
        return {leaf for v in values for dim in self.dims[v] for leaf in leaves(dim)}

    @staticmethod
    def _check_unchanged(before: set[Factor]) -> None:
        """Raises `CopiesDifferError` if any of these leaves were split or united since."""
        now = {leaf.find() for leaf in before}
        if len(now) < len(before) or any(leaf.children is not None for leaf in now):
            raise CopiesDifferError("the last copy of a repeat splits or unites earlier axes")

    def _declare(self, value: Value) -> None:
        """Gives a value the factors of its seed, or a fresh one for every dim."""
        seed = self.seeds.get(value)
        if seed is not None:
            self.dims[value] = [[self._seeded(axis) for axis in dim] for dim in seed]
        else:
            self.dims[value] = [[Factor(n)] if n != 1 else [] for n in value.type.shape]
        set_apart(leaves(f for dim in self.dims[value] for f in dim))

    def _seeded(self, axis: Axis) -> Factor:
        """The factor that stands for a known axis."""
        factor = self._of_axis.get(axis)
        if factor is None:
            factor = self._of_axis[axis] = Factor(axis.size, axis)
        return factor

    def _visit(self, node: Node) -> None:
        """Unites the dims of an op's operands with its loops, which give its results their dims."""
        if isinstance(node.op, Boundary) and node.result in self.seeds:
            self._visit_known_boundary(node)
            return
        signature = node.op.signature(node.operand_types, node.result_types)
        loops: Loops = [None] * len(signature.loops)
        sizes = [loop.size for loop in signature.loops]
        operands = list(node.operands)
        for position, (operand, dims) in enumerate(
            zip(node.operands, signature.operands, strict=True)
        ):
            before = self.dims[operand]
            open_loops = loops.count(None)
            after = [
                unify(loops, sizes, product, factors, self.ties)
                for product, factors in zip(dims, before, strict=True)
            ]
            if any(new is not None for new in after):
                changed = [
                    old if new is None else new for old, new in zip(before, after, strict=True)
                ]
                operands[position] = self._cross(operand, before, changed)
            if loops.count(None) < open_loops:  # loops known before are apart already
                set_apart(leaves(f for loop in loops if loop is not None for f in loop))
        if tuple(operands) != node.operands:
            node = replace(node, operands=tuple(operands))
        final = self._result_dims(node, loops, sizes, signature.results)
        if isinstance(node.op, Boundary):
            self._tie_boundary(node)
        self.ties += [(final[a], final[b]) for a, b in signature.equal]
        self.loops[node] = final
        self.kinds[node] = [loop.kind for loop in signature.loops]
        if signature.follows:
            self.followers[node] = signature.follows
        self._nodes.append(node)

    def _visit_known_boundary(self, node: Node) -> None:
        """Visits a boundary between two values whose axes are known. It needs both sides whole
        wherever they differ, so that they may have any axes, even each other's in other places."""
        self._declare(node.result)
        before, after = self.dims[node.operands[0]], self.dims[node.result]
        self.crossings[node] = Crossing(before, after)
        self._tie_boundary(node)
        self._nodes.append(node)

    def _result_dims(
        self,
        node: Node,
        loops: Loops,
        sizes: Sequence[int],
        results: Sequence[Sequence[tuple[int, ...]]],
    ) -> list[list[Factor]]:
        """Gives the results of an op their dims; loops that no operand has given get their factors
        from seeds of the results, or fresh ones. Returns the factors of all loops."""
        open_loops = loops.count(None)
        for value, dims in zip(node.results, results, strict=True):
            seed = self.seeds.get(value)
            if seed is None:
                continue
            self._declare(value)
            for product, factors in zip(dims, self.dims[value], strict=True):
                if unify(loops, sizes, product, factors, self.ties) is not None:
                    raise TransformError(
                        f"the axes found for {value!r}, a result of {node.op}, contradict those "
                        "it is known to have"
                    )
        final = [
            loop if loop is not None else ([Factor(size)] if size != 1 else [])
            for loop, size in zip(loops, sizes, strict=True)
        ]
        if open_loops:
            set_apart(leaves(f for loop in final for f in loop))
        for value, dims in zip(node.results, results, strict=True):
            if value not in self.dims:
                self.dims[value] = [[f for loop in dim for f in final[loop]] for dim in dims]
        return final

    def _cross(
        self, operand: Value, before: list[list[Factor]], after: list[list[Factor]]
    ) -> Value:
        """The operand behind a new boundary, whose op is finished after all ops are visited."""
        result = Value(operand.type, operand.name)
        self.dims[result] = after
        node = Node(Boundary(()), (operand,), (result,))
        self.crossings[node] = Crossing(before, after)
        self._nodes.append(node)
        return result

    def _tie_boundary(self, node: Node) -> None:
        for old, new in zip(self.dims[node.operands[0]], self.dims[node.result], strict=True):
            self.ties.append((old, new))

    def _finish_boundaries(self) -> None:
        """Gives the boundary ops their factors, now that all refinements are known."""
        for position, node in enumerate(self._nodes):
            crossing = self.crossings.get(node)
            if crossing is None:
                continue
            finished = replace(node, op=crossing.op())
            self._nodes[position] = finished
            signature = finished.op.signature(finished.operand_types, finished.result_types)
            self.loops[finished] = crossing.loops()
            self.kinds[finished] = [loop.kind for loop in signature.loops]

    def axes(self) -> Axes:
        """What was found; to be called after `run`."""
        named: dict[Factor, Axis] = {}

        def axis_of(leaf: Factor) -> Axis:
            axis = named.get(leaf)
            if axis is None:
                axis = named[leaf] = leaf.axis or Axis(leaf.size)
            return axis

        dims = {
            value: tuple([tuple([axis_of(leaf) for leaf in leaves(dim)]) for dim in factors])
            for value, factors in self.dims.items()
        }
        loops: dict[Node, tuple[tuple[Axis, ...], ...]] = {}
        kinds: dict[Node, dict[Axis, Kind]] = {}
        for node in self._nodes:
            own = [tuple([axis_of(leaf) for leaf in leaves(loop)]) for loop in self.loops[node]]
            loops[node] = tuple(own)
            kinds[node] = {
                axis: kind
                for loop, kind in zip(own, self.kinds[node], strict=True)
                for axis in loop
            }
        follows: dict[Axis, Axis] = {}
        for node, pairs in self.followers.items():
            for follower, leader in pairs:
                ours, theirs = loops[node][follower], loops[node][leader]
                if len(ours) == len(theirs) == 1:
                    follows[ours[0]] = theirs[0]
                else:  # it is unknown which parts belong together
                    kinds[node].update(dict.fromkeys((*ours, *theirs), Kind.WHOLE))
        return Axes(dims, loops, kinds, self._size_ties(axis_of, dims.values()), follows)

    def _size_ties(
        self, axis_of: Callable[[Factor], Axis], dims: Iterable[AxisDims]
    ) -> dict[Axis, Axis]:
        """Per axis that shares its size with others, the first of them in the order of values;
        that one itself is left out."""
        parent: dict[Axis, Axis] = {}

        for old, new in self.ties:
            left = [axis_of(leaf) for leaf in leaves(old)]
            right = [axis_of(leaf) for leaf in leaves(new)]
            if [a.size for a in left] != [a.size for a in right]:
                continue
            for a, b in zip(left, right, strict=True):
                a, b = find_representative(a, parent), find_representative(b, parent)
                if a is not b:
                    parent[b] = a
        if not parent:
            return {}
        tied = {*parent, *parent.values()}
        met = dict.fromkeys(axis for value in dims for dim in value for axis in dim)
        first: dict[Axis, Axis] = {}
        return {
            axis: other
            for axis in (*met, *tied)
            if axis in tied
            and (other := first.setdefault(find_representative(axis, parent), axis)) is not axis
        }
