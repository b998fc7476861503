"""Axis inference: union–find over the factors of dims.

Every dim starts as one factor, or as the factors of its producer's loops. Where an operand meets
the loops of its reader, factors are refined to their common refinement and united. Loops of one
op stay apart for ever: where a union would join two of them, or where no refinement exists, the
operand passes a `Boundary` with fresh factors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from distir.axes.model import Axes, Axis, AxisDims
from distir.axes.order import canonical_order
from distir.errors import TransformError
from distir.ir.core import Function, Node, Value
from distir.ir.signature import Kind
from distir.ops.arithmetic import Mul, Neg
from distir.ops.elementwise import Cast, Identity
from distir.ops.tensor import Boundary, Expand, Reshape, Scale, Transpose

MAX_PASSES = 8
"""Moving boundaries up can reveal others; real models settle after two passes."""


def infer_axes(
    function: Function, seeds: Mapping[Value, AxisDims] | None = None
) -> tuple[Function, Axes]:
    """The function in canonical order with its boundaries as ops, and its axes.

    `seeds` fixes the axes of some values; inference then extends to the others.
    """
    return infer_ordered(canonical_order(function), seeds)


class UnsettledError(TransformError):
    """A piece says something new of axes that were there before it."""


def infer_ordered(
    function: Function,
    seeds: Mapping[Value, AxisDims] | None = None,
    settled: Mapping[Value, Value] | None = None,
) -> tuple[Function, Axes]:
    """The same for a function whose ops are in the order in which they are to be looked at.

    `settled` has the first results of the first and last ops of pieces that are to say nothing new
    of axes from before them: they split none and unite no two. Raises `UnsettledError` if one does.
    """
    bounded, axes = _infer_once(function, seeds or {}, settled or {})
    for _ in range(MAX_PASSES - 1):
        if bounded is function:
            break
        function = _move_boundaries_up(bounded, axes)
        bounded, axes = _infer_once(function, seeds or {}, settled or {})
    return bounded, axes


def _infer_once(
    function: Function, seeds: Mapping[Value, AxisDims], settled: Mapping[Value, Value]
) -> tuple[Function, Axes]:
    inference = _Inference(function, seeds, settled)
    return inference.run(), inference.axes()


def extend_axes(
    nodes: Sequence[Node], sources: Iterable[Value], seeds: Mapping[Value, AxisDims]
) -> tuple[tuple[Node, ...], Axes]:
    """Axes of ops added to a program whose axes are known: `nodes` in their order, with the
    boundaries that the new ones need."""
    function = Function("extension", tuple(sources), (), {}, tuple(nodes), ())
    inference = _Inference(function, seeds)
    bounded = inference.run()
    return bounded.nodes, inference.axes()


class _Factor:
    """A class of the union–find: a leaf, or the product of its children."""

    __slots__ = ("apart", "axis", "children", "parent", "size")

    def __init__(self, size: int, axis: Axis | None = None) -> None:
        self.size = size
        self.parent: _Factor | None = None
        self.children: list[_Factor] | None = None
        self.apart: set[_Factor] = set()
        self.axis = axis

    def find(self) -> _Factor:
        factor = self
        while factor.parent is not None:
            if factor.parent.parent is not None:
                factor.parent = factor.parent.parent
            factor = factor.parent
        return factor


def _leaves(factors: Iterable[_Factor]) -> list[_Factor]:
    found: list[_Factor] = []
    for factor in factors:
        root = factor if factor.parent is None else factor.find()
        if root.children is None:
            found.append(root)
        else:
            found += _leaves(root.children)
    return found


def _set_apart(factors: Sequence[_Factor]) -> None:
    for i, a in enumerate(factors):
        for b in factors[:i]:
            if a is not b and b not in a.apart:
                a.apart.add(b)
                b.apart.add(a)


def _split(leaf: _Factor, outer_size: int) -> list[_Factor]:
    """Refines a leaf into `outer_size × rest`; both inherit what the leaf was apart from."""
    parts = [_Factor(outer_size), _Factor(leaf.size // outer_size)]
    for part in parts:
        part.apart = set(leaf.apart)
    for other in leaf.apart:
        other.apart.discard(leaf)
        other.apart.update(parts)
    leaf.apart = set()
    leaf.children = parts
    _set_apart(parts)
    return parts


def _may_join(a: _Factor, b: _Factor) -> bool:
    return b not in a.apart and (a.axis is None or b.axis is None or a.axis is b.axis)


def _join(a: _Factor, b: _Factor) -> None:
    """Makes two leaves of equal size one."""
    if len(a.apart) < len(b.apart):
        a, b = b, a
    for other in b.apart:
        other.apart.discard(b)
        other.apart.add(a)
    a.apart |= b.apart
    b.apart = set()
    b.parent = a
    if a.axis is None:
        a.axis = b.axis


@dataclass(slots=True)
class _Crossing:
    """A boundary to be made: per dim the factors before and after."""

    before: list[list[_Factor]]
    after: list[list[_Factor]]


@dataclass(slots=True)
class _Inference:
    function: Function
    seeds: Mapping[Value, AxisDims]
    settled: Mapping[Value, Value] = field(default_factory=dict[Value, Value])
    dims: dict[Value, list[list[_Factor]]] = field(default_factory=dict)
    loops: dict[Node, list[list[_Factor]]] = field(default_factory=dict)
    kinds: dict[Node, list[Kind]] = field(default_factory=dict)
    ties: list[tuple[list[_Factor], list[_Factor]]] = field(default_factory=list)
    followers: dict[Node, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    crossings: dict[Node, _Crossing] = field(default_factory=dict)
    _of_axis: dict[Axis, _Factor] = field(default_factory=dict)
    _nodes: list[Node] = field(default_factory=list)

    def run(self) -> Function:
        for value in self.function.sources():
            self._declare(value)
        ends: dict[Value, set[_Factor]] = {}
        for node in self.function.nodes:
            if self.settled and node.results[0] in self.settled:
                ends[self.settled[node.results[0]]] = self._met()
            self._visit(node)
            if ends and node.results[0] in ends:
                self._check_settled(ends.pop(node.results[0]))
        if not self.crossings:
            return self.function
        self._finish_boundaries()
        return replace(self.function, nodes=tuple(self._nodes))

    def _met(self) -> set[_Factor]:
        """The leaves of all that has been read and made so far."""
        values = {v for node in self._nodes for v in (*node.operands, *node.results)}
        return {leaf for v in values for dim in self.dims[v] for leaf in _leaves(dim)}

    @staticmethod
    def _check_settled(before: set[_Factor]) -> None:
        now = {leaf.find() for leaf in before}
        if len(now) < len(before) or any(leaf.children is not None for leaf in now):
            raise UnsettledError("a piece says something new of axes from before it")

    def _declare(self, value: Value) -> None:
        seed = self.seeds.get(value)
        if seed is not None:
            self.dims[value] = [[self._seeded(axis) for axis in dim] for dim in seed]
        else:
            self.dims[value] = [[_Factor(n)] if n != 1 else [] for n in value.type.shape]
        _set_apart(_leaves(f for dim in self.dims[value] for f in dim))

    def _seeded(self, axis: Axis) -> _Factor:
        factor = self._of_axis.get(axis)
        if factor is None:
            factor = self._of_axis[axis] = _Factor(axis.size, axis)
        return factor

    def _visit(self, node: Node) -> None:
        if isinstance(node.op, Boundary) and node.result in self.seeds:
            self._visit_known_boundary(node)
            return
        signature = node.op.signature(node.operand_types, node.result_types)
        loops: list[list[_Factor] | None] = [None] * len(signature.loops)
        sizes = [loop.size for loop in signature.loops]
        operands = list(node.operands)
        for position, (operand, dims) in enumerate(
            zip(node.operands, signature.operands, strict=True)
        ):
            before = self.dims[operand]
            open_loops = loops.count(None)
            after = [
                self._meet(loops, sizes, product, factors)
                for product, factors in zip(dims, before, strict=True)
            ]
            if any(new is not None for new in after):
                changed = [
                    old if new is None else new for old, new in zip(before, after, strict=True)
                ]
                operands[position] = self._cross(operand, before, changed)
            if loops.count(None) < open_loops:  # those met before are apart already
                _set_apart(_leaves(f for loop in loops if loop is not None for f in loop))
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
        """A boundary between two values whose axes are known. It needs both sides whole wherever
        they differ, so they may have any axes: also each other's, in other places."""
        self._declare(node.result)
        before, after = self.dims[node.operands[0]], self.dims[node.result]
        self.crossings[node] = _Crossing(before, after)
        self._tie_boundary(node)
        self._nodes.append(node)

    def _result_dims(
        self,
        node: Node,
        loops: list[list[_Factor] | None],
        sizes: Sequence[int],
        results: Sequence[Sequence[tuple[int, ...]]],
    ) -> list[list[_Factor]]:
        open_loops = loops.count(None)
        for value, dims in zip(node.results, results, strict=True):
            seed = self.seeds.get(value)
            if seed is None:
                continue
            self._declare(value)
            for product, factors in zip(dims, self.dims[value], strict=True):
                if self._meet(loops, sizes, product, factors) is not None:
                    raise TransformError(
                        f"the axes found for {value!r}, a result of {node.op}, contradict those "
                        "it is known to have"
                    )
        final = [
            loop if loop is not None else ([_Factor(size)] if size != 1 else [])
            for loop, size in zip(loops, sizes, strict=True)
        ]
        if open_loops:
            _set_apart(_leaves(f for loop in final for f in loop))
        for value, dims in zip(node.results, results, strict=True):
            if value not in self.dims:
                self.dims[value] = [[f for loop in dim for f in final[loop]] for dim in dims]
        return final

    def _meet(
        self,
        loops: list[list[_Factor] | None],
        sizes: Sequence[int],
        product: Sequence[int],
        factors: list[_Factor],
    ) -> list[_Factor] | None:
        """Unites the factors of one dim with the loops it is a product of. Returns the factors
        that the dim must have instead if a boundary is needed, else None."""
        rest = _leaves(factors)
        changed = False
        result: list[_Factor] = []
        for index in product:
            loop = loops[index]
            if loop is None:
                taken, rest, clash = self._take(loops, sizes[index], rest)
                loops[index] = taken
                result.extend(taken)
            else:
                rest, clash, now = self._unite(loop, rest)
                result.extend(now)
            changed |= clash
        return result if changed else None

    def _take(
        self, loops: Sequence[list[_Factor] | None], size: int, rest: list[_Factor]
    ) -> tuple[list[_Factor], list[_Factor], bool]:
        """The leading leaves that make up a loop seen for the first time. A leaf that another
        loop of the op has already is replaced by a fresh one."""
        present = set(_leaves(f for loop in loops if loop is not None for f in loop))
        taken: list[_Factor] = []
        clash = False
        rest = list(rest)
        while size > 1:
            leaf = rest.pop(0)
            if leaf.size > size and leaf.size % size == 0:
                leaf, remainder = _split(leaf, size)
                rest.insert(0, remainder)
            elif size % leaf.size:
                return self._regroup(taken, size, leaf, rest)
            if leaf in present:
                fresh = _Factor(leaf.size)
                self.ties.append(([leaf], [fresh]))
                leaf, clash = fresh, True
            taken.append(leaf)
            present.add(leaf)
            size //= leaf.size
        return taken, rest, clash

    def _regroup(
        self, taken: list[_Factor], size: int, leaf: _Factor, rest: list[_Factor]
    ) -> tuple[list[_Factor], list[_Factor], bool]:
        """No refinement exists: the loop and what follows get fresh factors of the right sizes."""
        following = leaf.size
        while following % size:
            following *= rest.pop(0).size
        remainder = [_Factor(following // size)] if following != size else []
        return [*taken, _Factor(size)], [*remainder, *rest], True

    def _unite(
        self, loop: list[_Factor], rest: list[_Factor]
    ) -> tuple[list[_Factor], bool, list[_Factor]]:
        """Unites a known loop with the leading leaves. Returns the leaves left over, whether a
        boundary is needed, and the loop's leaves."""
        clash = False
        ours, theirs = _leaves(loop), list(rest)
        seen: list[_Factor] = []
        while ours:
            a, b = ours.pop(0).find(), theirs.pop(0).find()
            if a.children is not None or b.children is not None:
                ours[:0] = _leaves([a])
                theirs[:0] = _leaves([b])
                continue
            if a.size == b.size:
                if a is not b:
                    if _may_join(a, b):
                        _join(a, b)
                    else:
                        self.ties.append(([b], [a]))
                        clash = True
                seen.append(a.find())
            elif b.size % a.size == 0 and b.axis is None:
                theirs[:0] = _split(b, a.size)
                ours.insert(0, a)
            elif a.size % b.size == 0 and a.axis is None:
                ours[:0] = _split(a, b.size)
                theirs.insert(0, b)
            else:
                clash = True
                left, right = a.size, b.size
                seen.append(a)
                while left != right:
                    if left < right:
                        if not ours:
                            theirs.insert(0, _Factor(right // left))
                            break
                        a = ours.pop(0).find()
                        left *= a.size
                        seen.append(a)
                    else:
                        right *= theirs.pop(0).size
        return theirs, clash, _leaves(seen)

    def _cross(
        self, operand: Value, before: list[list[_Factor]], after: list[list[_Factor]]
    ) -> Value:
        result = Value(operand.type, operand.name)
        self.dims[result] = after
        node = Node(Boundary(()), (operand,), (result,))
        self.crossings[node] = _Crossing(before, after)
        self._nodes.append(node)
        return result

    def _tie_boundary(self, node: Node) -> None:
        for old, new in zip(self.dims[node.operands[0]], self.dims[node.result], strict=True):
            self.ties.append((old, new))

    def _finish_boundaries(self) -> None:
        """Gives the new boundary ops their factors, now that all refinements are known."""
        for position, node in enumerate(self._nodes):
            crossing = self.crossings.get(node)
            if crossing is None:
                continue
            factors = tuple(
                _aligned(_leaves(old), _leaves(new))
                for old, new in zip(crossing.before, crossing.after, strict=True)
            )
            finished = replace(node, op=Boundary(factors))
            self._nodes[position] = finished
            signature = finished.op.signature(finished.operand_types, finished.result_types)
            self.loops[finished] = _boundary_loops(crossing)
            self.kinds[finished] = [loop.kind for loop in signature.loops]

    def axes(self) -> Axes:
        """The result, once `run` is done."""
        named: dict[_Factor, Axis] = {}

        def axis_of(leaf: _Factor) -> Axis:
            axis = named.get(leaf)
            if axis is None:
                axis = named[leaf] = leaf.axis or Axis(leaf.size)
            return axis

        dims = {
            value: tuple([tuple([axis_of(leaf) for leaf in _leaves(dim)]) for dim in factors])
            for value, factors in self.dims.items()
        }
        loops: dict[Node, tuple[tuple[Axis, ...], ...]] = {}
        kinds: dict[Node, dict[Axis, Kind]] = {}
        for node in self._nodes:
            own = [tuple([axis_of(leaf) for leaf in _leaves(loop)]) for loop in self.loops[node]]
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
                else:  # nobody can say which parts belong together
                    kinds[node].update(dict.fromkeys((*ours, *theirs), Kind.WHOLE))
        return Axes(dims, loops, kinds, self._size_ties(axis_of, dims.values()), follows)

    def _size_ties(
        self, axis_of: Callable[[_Factor], Axis], dims: Iterable[AxisDims]
    ) -> dict[Axis, Axis]:
        """By axis the first, in the order of values, of those that always have its size."""
        parent: dict[Axis, Axis] = {}

        def find(axis: Axis) -> Axis:
            while axis in parent:
                axis = parent[axis]
            return axis

        for old, new in self.ties:
            left = [axis_of(leaf) for leaf in _leaves(old)]
            right = [axis_of(leaf) for leaf in _leaves(new)]
            if [a.size for a in left] != [a.size for a in right]:
                continue
            for a, b in zip(left, right, strict=True):
                a, b = find(a), find(b)
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
            if axis in tied and (other := first.setdefault(find(axis), axis)) is not axis
        }


def _aligned(before: list[_Factor], after: list[_Factor]) -> tuple[tuple[int, bool], ...]:
    """Common cuts of the two sides of a boundary: `(size, fresh)` per piece."""
    pieces: list[tuple[int, bool]] = []
    i = j = 0
    while i < len(before):
        start_i, start_j = i, j
        a, b = before[i].size, after[j].size
        i, j = i + 1, j + 1
        while a != b:
            if a < b:
                a *= before[i].size
                i += 1
            else:
                b *= after[j].size
                j += 1
        same = before[start_i:i] == after[start_j:j]
        pieces.append((a, not same))
    return tuple(pieces)


def _boundary_loops(crossing: _Crossing) -> list[list[_Factor]]:
    """Loops of a finished boundary, in the order of its signature: kept, or old then new."""
    loops: list[list[_Factor]] = []
    for old, new in zip(crossing.before, crossing.after, strict=True):
        before, after = _leaves(old), _leaves(new)
        for size, fresh in _aligned(before, after):
            taken = _take_product(before, size)
            loops.append(taken)
            other = _take_product(after, size)
            if fresh:
                loops.append(other)
    return loops


def _take_product(leaves: list[_Factor], size: int) -> list[_Factor]:
    taken: list[_Factor] = []
    while size > 1:
        taken.append(leaves.pop(0))
        size //= taken[-1].size
    return taken


# --- moving boundaries to the smallest value -----------------------------------------------------

_MOVABLE = (Reshape, Transpose, Expand, Scale, Cast, Identity, Neg)


def _passes_through(node: Node) -> bool:
    if isinstance(node.op, _MOVABLE):
        return True
    return isinstance(node.op, Mul) and node.operands[1].type.num_elements == 1


def _move_boundaries_up(function: Function, axes: Axes) -> Function:
    """Every boundary on the smallest value above it that one chain of views and scalings leads
    from; the topmost of equals."""
    producers = function.producers()
    uses = function.uses()
    outputs = set(function.outputs)
    remove: dict[Value, Value] = {}
    insert: dict[Value, frozenset[Axis]] = {}
    for node in function.nodes:
        if not isinstance(node.op, Boundary):
            continue
        fresh = axes.of(node.operands[0]) - axes.of(node.result)
        place = best = node.operands[0]
        while place in producers and len(uses[place]) == 1 and place not in outputs:
            above = producers[place]
            source = above.operands[0] if above.operands else None
            if source is None or not _passes_through(above) or not fresh <= axes.of(source):
                break
            place = source
            if place.type.size_bytes <= best.type.size_bytes:
                best = place
        if best is node.operands[0] or len(uses[best]) > 1 or best in insert:
            continue
        remove[node.result] = node.operands[0]
        insert[best] = fresh
    return _rewrite_boundaries(function, axes, remove, insert)


def _rewrite_boundaries(
    function: Function,
    axes: Axes,
    remove: Mapping[Value, Value],
    insert: Mapping[Value, frozenset[Axis]],
) -> Function:
    nodes: list[Node] = []
    renamed: dict[Value, Value] = dict(remove)

    def bound(value: Value) -> None:
        if value in insert:
            factors = tuple(
                tuple((axis.size, axis in insert[value]) for axis in dim)
                for dim in axes.dims[value]
            )
            result = Value(value.type, value.name)
            nodes.append(Node(Boundary(factors), (value,), (result,)))
            renamed[value] = result

    for value in function.sources():
        bound(value)
    for node in function.nodes:
        if node.results[0] in remove:
            continue
        operands = tuple(_resolve(renamed, operand) for operand in node.operands)
        nodes.append(node if operands == node.operands else replace(node, operands=operands))
        for value in node.results:
            bound(value)
    outputs = tuple(_resolve(renamed, output) for output in function.outputs)
    return replace(function, nodes=tuple(nodes), outputs=outputs)


def _resolve(renamed: Mapping[Value, Value], value: Value) -> Value:
    while value in renamed:
        value = renamed[value]
    return value
