"""A block: a piece of a program between places where a single activation is live."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from distir.axes.model import Axes, Axis
from distir.ir.core import Node, Part, Value
from distir.ir.function import Function


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


def nodes_with_weights(nodes: Iterable[Node], roles: Roles) -> Iterator[Node]:
    """The ops that combine activations and weights, in order, without those of a loss."""
    for node in nodes:
        if (
            node.part is not Part.LOSS
            and any(value in roles.activations for value in node.results)
            and any(value in roles.weights for value in node.operands)
        ):
            yield node


def ops_with_weights(nodes: Iterable[Node], roles: Roles) -> tuple[Hashable, ...]:
    """The ops that combine activations and weights, in order, each with its types.

    Layers of one model are alike in these where they differ in what is between: only some rotate
    positions, or mask what is far away.
    """
    return tuple(
        (node.op, node.operand_types, node.result_types)
        for node in nodes_with_weights(nodes, roles)
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

    @property
    def read(self) -> tuple[Value, ...]:
        """The inputs that its ops read, in order; others are handed on."""
        inputs = set(self.inputs)
        return tuple(dict.fromkeys(v for node in self.nodes for v in node.operands if v in inputs))

    @property
    def hands_on(self) -> bool:
        """Whether it makes activations of the types of those that it takes, as layers do."""
        taken = sorted(str(value.type) for value in self.inputs)
        return bool(taken) and taken == sorted(str(value.type) for value in self.outputs)

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

    def family(self, roles: Roles) -> Hashable:
        """A key that is equal for blocks that do the same with weights to as many activations from
        outside, and as much of the loss: for layers of one model, and all blocks of equal
        structure."""
        loss = tuple(node.op for node in self.nodes if node.part is Part.LOSS)
        return (ops_with_weights(self.nodes, roles), tuple(v.type for v in self.read), loss)

    def axis_order(self, axes: Axes) -> tuple[Axis, ...]:
        """All axes in order of first occurrence; those of equal blocks correspond by position."""
        return tuple(
            dict.fromkeys(axis for value in self.values for dim in axes.dims[value] for axis in dim)
        )


__all__ = ["Block", "Roles", "nodes_with_weights", "ops_with_weights"]
