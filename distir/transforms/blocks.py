"""Blocks: pieces of a program between places where a single activation is live.

Blocks of equal structure are placed, planned and priced once.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from distir.axes.model import Axes, Axis
from distir.cost.work import OpClass
from distir.ir.core import Node, Op, Value
from distir.ir.function import Function
from distir.ir.signature import Kind
from distir.ops.elementwise import Cast, Identity
from distir.ops.tensor import Boundary, Concat, Expand, Reshape, Slice, Transpose

_COPYING = (Boundary, Cast, Concat, Expand, Identity, Reshape, Slice, Transpose)
"""Ops whose results consist of elements of their operands."""


@dataclass(frozen=True, slots=True)
class Roles:
    """The values of a function by what they depend on.

    *Free* values depend on inputs and constants alone, so that every device can have them.
    *Weights* are parameters and what is computed from parameters and constants alone.
    *Activations* depend on an input and a parameter.
    """

    free: frozenset[Value]
    weights: frozenset[Value]
    activations: frozenset[Value]
    samples: frozenset[Value]
    """Free values that depend on an input, and so differ from sample to sample."""
    moving: frozenset[Value]
    """All values that depend on an input: activations and samples."""
    inputs: tuple[Value, ...]
    """The inputs of the function."""

    @classmethod
    def of(cls, function: Function) -> Roles:
        """The roles of all values."""
        on_input = set(function.inputs)
        on_parameter = set(function.parameters)
        for node in function.nodes:
            if any(value in on_input for value in node.operands):
                on_input.update(node.results)
            if any(value in on_parameter for value in node.operands):
                on_parameter.update(node.results)
        every = {*function.sources(), *(v for node in function.nodes for v in node.results)}
        return cls(
            free=frozenset(every - on_parameter),
            weights=frozenset(on_parameter - on_input),
            activations=frozenset(on_parameter & on_input),
            samples=frozenset(on_input - on_parameter),
            moving=frozenset(on_input),
            inputs=function.inputs,
        )


@dataclass(frozen=True, eq=False)
class Block:
    """A piece of the program. `inputs` and `outputs` are the activations that cross its borders,
    `results` the function's outputs that it makes; `free` and `parameters` are the free values and
    parameters that it reads, in order of first use."""

    nodes: tuple[Node, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    results: tuple[Value, ...]
    free: tuple[Value, ...]
    parameters: tuple[Value, ...]

    @cached_property
    def values(self) -> tuple[Value, ...]:
        """All values that the block reads and makes, in an order that equal blocks share."""
        seen: dict[Value, None] = dict.fromkeys(self.inputs)
        for node in self.nodes:
            seen.update(dict.fromkeys(node.operands))
            seen.update(dict.fromkeys(node.results))
        return tuple(seen)

    def key(self, axes: Axes) -> Hashable:
        """A key that is equal for blocks of equal structure: the same ops, attributes, wiring and
        types, and axes that differ only by name."""
        number = {value: i for i, value in enumerate(self.values)}
        names: dict[Axis, int] = {}
        types = tuple(
            (
                value.type,
                tuple(
                    tuple(names.setdefault(axis, len(names)) for axis in dim)
                    for dim in axes.dims[value]
                ),
            )
            for value in self.values
        )
        wiring = tuple(
            (node.op, *(number[v] for v in node.operands), -1, *(number[v] for v in node.results))
            for node in self.nodes
        )
        ends = (
            tuple(number[v] for v in self.inputs),
            tuple(number[v] for v in self.outputs),
            tuple(number[v] for v in self.results),
            tuple(number[v] for v in self.free),
            tuple(number[v] for v in self.parameters),
        )
        return (wiring, types, ends)

    def axis_order(self, axes: Axes) -> tuple[Axis, ...]:
        """All axes in order of first occurrence; those of equal blocks correspond by position."""
        return tuple(
            dict.fromkeys(axis for value in self.values for dim in axes.dims[value] for axis in dim)
        )


@dataclass(frozen=True, eq=False)
class Blocks:
    """A function as a chain of blocks. `representative[i]` is the index of the first block that
    equals block `i`."""

    function: Function
    axes: Axes
    roles: Roles
    blocks: tuple[Block, ...]
    representative: tuple[int, ...]
    group: Mapping[Axis, Axis]
    """Per axis its representative: the axis at the same place of the first equal block."""

    @cached_property
    def free_nodes(self) -> tuple[Node, ...]:
        """Ops that compute free values; every device may run them for itself."""
        free = self.roles.free
        return tuple(n for n in self.function.nodes if all(v in free for v in n.results))

    @cached_property
    def _splits(self) -> tuple[Splits, ...]:
        """The axes that each kind of block can be split over, in model order."""
        first = sorted(set(self.representative))
        return tuple(Splits(self.blocks[index], self.axes, self.roles) for index in first)

    def _representatives(self, found: Iterable[Iterable[Axis]]) -> tuple[Axis, ...]:
        return tuple(dict.fromkeys(self.group.get(a, a) for axes in found for a in axes))

    @cached_property
    def internal_axes(self) -> tuple[Axis, ...]:
        """Representatives of all internal axes, in model order."""
        return self._representatives(splits.internal for splits in self._splits)

    @cached_property
    def expert_axes(self) -> tuple[Axis, ...]:
        """Representatives of the axes of experts, in model order."""
        return self._representatives(splits.experts for splits in self._splits)

    @cached_property
    def head_axes(self) -> tuple[Axis, ...]:
        """Representatives of attention's heads, in model order."""
        return self._representatives(splits.heads for splits in self._splits)

    @cached_property
    def inner_axes(self) -> Mapping[Axis, Axis]:
        """Per representative of an internal axis, the representative of the inner axis that can
        split the same work further: queries per head of keys and values."""
        return {
            self.group.get(axis, axis): self.group.get(inner, inner)
            for splits in reversed(self._splits)
            for axis, inner in splits.inner
        }

    @cached_property
    def output_axes(self) -> tuple[Axis, ...]:
        """Representatives of the output axes of parameters, in model order."""
        return self._representatives(splits.outputs for splits in self._splits)


@dataclass(frozen=True, eq=False)
class Splits:
    """Axes that a block can be split over."""

    block: Block
    axes: Axes
    roles: Roles

    @property
    def internal(self) -> tuple[Axis, ...]:
        """Axes that tensor parallelism may split inside the block.

        A parameter carries the axis in an op that depends on an input, the axis does not cross the
        block's border, no op needs it whole, and it is summed only against parameters or chosen
        rows of them. An axis that never occurs without another internal axis is left out.
        """
        return self._internal_and_secondary[0]

    @property
    def inner(self) -> tuple[tuple[Axis, Axis], ...]:
        """Pairs of an internal axis and a secondary one inside it that splits the same products of
        activations: heads of keys and values, and the query heads that read each of them."""
        internal, secondary = self._internal_and_secondary
        all_spaces = self._spaces_between_activations
        found: list[tuple[Axis, Axis]] = []
        for axis in internal:
            spaces = [space for space in all_spaces if axis in space]
            inside = (s for s, beside in secondary.items() if axis in beside)
            inner = next(
                (s for s in inside if spaces and all(s in space for space in spaces)), None
            )
            if inner is not None:
                found.append((axis, inner))
        return tuple(found)

    @property
    def heads(self) -> tuple[Axis, ...]:
        """Internal axes in the iteration space of a product of activations: attention's heads."""
        spaces = self._spaces_between_activations
        internal = self.internal
        return tuple(axis for axis in internal if any(axis in space for space in spaces))

    @cached_property
    def experts(self) -> tuple[Axis, ...]:
        """Axes of experts inside the block: a product runs over them in parallel, with parameters
        of its own at each position. Both operands and the result carry such an axis."""
        block, axes, roles = self.block, self.axes, self.roles
        border = {axis for v in (*block.inputs, *block.outputs) for axis in axes.of(v)}
        excluded = border | set(self.internal)
        found: dict[Axis, None] = {}
        for node in block.nodes:
            kinds = axes.kinds[node]
            if Kind.SUM not in kinds.values():
                continue
            weights = {a for v in node.operands if v in roles.weights for a in axes.of(v)}
            moving = {a for v in node.operands if v in roles.moving for a in axes.of(v)}
            for axis, kind in kinds.items():
                if kind is Kind.PARALLEL and axis in weights and axis in moving:
                    found[axis] = None
        return tuple(axis for axis in found if axis not in excluded)

    @cached_property
    def outputs(self) -> tuple[Axis, ...]:
        """Output axes: axes of parameters that do not leave the block, as the rows of an embedding
        table, or the columns of the model's head. No op sums over them, and only composites that
        can be lowered, such as the loss, need them whole."""
        block, axes, roles = self.block, self.axes, self.roles
        passed = {axis for v in (*block.inputs, *block.outputs) for axis in axes.of(v)}
        excluded = passed | set(self.internal)
        excluded |= set(self.experts)
        excluded |= {axis for table in self._chosen_rows.values() for axis in axes.of(table)}
        found: dict[Axis, None] = {}
        for node in block.nodes:
            kinds = axes.kinds[node]
            reads_input = any(v in roles.moving for v in node.operands)
            lowerable = type(node.op).lower is not Op.lower
            for axis, kind in kinds.items():
                if kind in (Kind.SUM, Kind.MAX) or (kind is Kind.WHOLE and not lowerable):
                    excluded.add(axis)
            for value in node.operands:
                if reads_input and value in roles.weights and len(axes.of(value)) > 1:
                    found.update(dict.fromkeys(axes.of(value)))
        return tuple(
            axis for axis in block.axis_order(axes) if axis in found and axis not in excluded
        )

    @cached_property
    def _internal_and_secondary(
        self,
    ) -> tuple[tuple[Axis, ...], Mapping[Axis, Collection[Axis]]]:
        """The internal axes, and per secondary axis the axes that it never occurs without."""
        block, axes, roles = self.block, self.axes, self.roles
        border = {axis for value in _border_values(block, roles) for axis in axes.of(value)}
        candidates: dict[Axis, None] = {}
        excluded: set[Axis] = set(border)
        together: dict[Axis, set[Axis]] = {}
        chosen = self._chosen_rows
        for node in block.nodes:
            kinds = axes.kinds[node]
            weights = [v for v in node.operands if v in roles.weights or v in chosen]
            carried = {axis for value in weights for axis in axes.of(value)}
            reads_input = any(v in roles.moving for v in node.operands)
            features = {axis for v in node.operands if v in roles.samples for axis in axes.of(v)}
            for axis, kind in kinds.items():
                if kind in (Kind.WHOLE, Kind.PICK) or (
                    kind in (Kind.SUM, Kind.MAX) and (axis not in carried or axis in features)
                ):
                    excluded.add(axis)
                if axis in carried and reads_input:
                    candidates[axis] = None
        found = [axis for axis in candidates if axis not in excluded]
        for node in block.nodes:
            present = set(axes.kinds[node])
            for axis in found:
                if axis in present:
                    together[axis] = together[axis] & present if axis in together else set(present)
        primary: list[Axis] = []
        secondary: dict[Axis, Collection[Axis]] = {}
        for i, axis in enumerate(found):
            beside = [other for other in found if other is not axis and other in together[axis]]
            dominated = any(
                axis not in together[other] or found.index(other) < i for other in beside
            )
            if dominated:
                secondary[axis] = beside
            else:
                primary.append(axis)
        return tuple(primary), secondary

    @cached_property
    def _chosen_rows(self) -> Mapping[Value, Value]:
        """Values that are rows of a parameter, chosen by a sample, and that multiply activations,
        as the weights of the experts that tokens go through; mapped to their parameters. Rows that
        become activations, as those of an embedding do, are left out."""
        roles, kinds = self.roles, self.axes.kinds
        source: dict[Value, Value] = {}
        multiplying: set[Value] = set()
        for node in self.block.nodes:
            first = node.operands[0] if node.operands else None
            if first in roles.weights and Kind.PICK in kinds[node].values():
                source.update((value, first) for value in node.results)
            elif first in source and node.op.is_view:
                source.update((value, source[first]) for value in node.results)
            elif Kind.SUM in kinds[node].values():
                rows = [v for v in node.operands if v in source]
                others = [v for v in node.operands if v in roles.moving and v not in source]
                multiplying.update(source[value] for value in rows if others)
        return {value: table for value, table in source.items() if table in multiplying}

    @property
    def _spaces_between_activations(self) -> list[Collection[Axis]]:
        """The iteration spaces of products that read no parameter and no chosen rows of one."""
        roles, chosen = self.roles, self._chosen_rows
        return [
            self.axes.kinds[node].keys()
            for node in self.block.nodes
            if node.op.work(node.operand_types, node.result_types).kind is not OpClass.MEMORY
            and not any(value in roles.weights or value in chosen for value in node.operands)
        ]


def _border_values(block: Block, roles: Roles) -> Iterator[Value]:
    """The values that cross the block's border: its inputs and outputs, samples that no activation
    is combined with, and results that no op of the block reads.

    Other results and samples may stay split, as the keys and values that an export takes from the
    previous step, or returns for the next one, do over attention's heads.
    """
    yield from block.inputs
    yield from block.outputs
    made = {value: node for node in block.nodes for value in node.results}
    uses: dict[Value, int] = {}
    for node in block.nodes:
        for value in dict.fromkeys(node.operands):
            uses[value] = uses.get(value, 0) + 1
        if not any(value in roles.activations for value in node.operands):
            yield from (value for value in node.operands if value in roles.samples)
    for value in block.results:
        source, others = value, uses.get(value, 0)
        while not others and source in made and isinstance(made[source].op, _COPYING):
            source = made[source].operands[0]
            others = uses.get(source, 0) - 1
        if not others:
            yield value


__all__ = ["Block", "Blocks", "Roles", "Splits"]
