"""Finds the axes whose sizes a workload decides: the batch, the sequences, what is beside them."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from distir.axes.model import Axes, Axis, AxisDims
from distir.errors import TransformError
from distir.ir.core import Node
from distir.ir.function import Function
from distir.ir.signature import Kind
from distir.ops.tensor import Boundary, Concat, Reshape
from distir.transforms.blocks import Roles


@dataclass(frozen=True, slots=True)
class Extents:
    """The axes whose sizes a workload decides.

    `further_batches` and `beside_batch` are other axes of inputs that no op sums over or needs
    whole: the former come first in inputs without the batch and get its size, the latter get
    size 1 where nothing fixes theirs. `fixed_sequence` names the op that fixes the sequence to a
    size in the file.
    """

    batch: Axis
    sequences: tuple[Axis, ...]
    further_batches: tuple[Axis, ...]
    beside_batch: tuple[Axis, ...]
    fixed_sequence: str | None
    piece: int = 1
    """How many positions there are for each of the sequence's axis, where tokens are cut into
    pieces."""

    @property
    def batches(self) -> tuple[Axis, ...]:
        """All axes of samples."""
        return (self.batch, *self.further_batches)

    @property
    def axes(self) -> tuple[Axis, ...]:
        """All of these axes."""
        return (*self.batches, *self.sequences, *self.beside_batch)


def find_extents(
    function: Function, axes: Axes, stated: Mapping[str, Sequence[int]] | None = None
) -> Extents:
    """Finds the batch and the sequences of a function by what ops do with the axes of its inputs.

    The batch is the first axis of an input that every op on activations goes over in parallel, or,
    if there is none, an axis of an input's first dim. Sequences are axes that needed a boundary, or
    that an op steps along, that no weight of a product carries, and at whose positions some product
    has the same weights: features that are only multiplied with each other are no sequence. Where
    dims of inputs are `stated` to be sequences, by the names of inputs, only these are. Raises
    `TransformError` if there is no batch.
    """
    roles = Roles.of(function)
    if not roles.activations:
        raise TransformError("no parameter meets an input: there is nothing to distribute")
    treated = _Treated.of(function, axes, roles)
    carried = [a for value in function.inputs for dim in axes.dims[value] for a in dim]
    activations = {a for v in axes.dims if v in roles.activations for a in axes.of(v)}
    batch = _batch(function, axes, activations, treated)
    candidates = [
        axis
        for axis in treated.bounded
        if axis not in treated.weighed and axis is not batch and axes.tied(axis) in treated.alike
    ]
    ties = {axes.tied(axis) for axis in candidates}
    sequences = [a for a in carried if a is not batch and axes.tied(a) in ties]
    # Axes that are a dim of an input only together are factors of a length that is cut up.
    alone = {dim for value in function.inputs for dim in _without(axes.dims[value], batch)}
    factors = [axis for axis in sequences if (axis,) not in alone]
    whole = [axis for axis in sequences if (axis,) in alone]
    counted = _counted_pieces(function, axes, batch) if candidates and not whole else ()
    sequences = whole or (counted[:1] if counted else factors) or candidates[:1]
    sequences = _as_stated(function, axes, stated or {}, batch, sequences)
    factors = [*factors, *counted[1:]]
    tied = {axes.tied(axis) for axis in sequences}
    fixed = _cut_into(sequences) if not counted and sequences == factors else None
    others = dict.fromkeys(
        axis
        for axis in carried
        if axis not in treated.barred
        and axis in activations
        and axes.tied(axis) is not axes.tied(batch)
        and axis not in sequences
        and axis not in factors
    )
    first = {
        axes.dims[value][0][0]
        for value in function.inputs
        if axes.dims[value] and axes.dims[value][0] and batch not in axes.of(value)
    }
    return Extents(
        batch,
        sequences=tuple(dict.fromkeys(sequences)),
        further_batches=tuple(axis for axis in others if axis in first),
        beside_batch=tuple(axis for axis in others if axis not in first),
        fixed_sequence=fixed or _fixed_by(function, axes, tied),
        piece=1 if whole else math.prod(axis.size for axis in counted[1:]),
    )


@dataclass(frozen=True, slots=True)
class _Treated:
    """What ops on activations do with axes: they do not go over those that are `barred` in
    parallel, weights of products carry those that are `weighed`, at the positions of those that are
    `alike` (tied) a product has the same weights, and those that are `bounded`, in order, end at a
    boundary, or are stepped along."""

    barred: set[Axis]
    weighed: set[Axis]
    alike: set[Axis]
    bounded: dict[Axis, None]

    @classmethod
    def of(cls, function: Function, axes: Axes, roles: Roles) -> _Treated:
        """What the ops of a function do."""
        found = cls(set(), set(), set(), {})
        for node in function.nodes:
            if any(value in roles.activations for value in node.results):
                found._add(node, axes, roles)
        return found

    def _add(self, node: Node, axes: Axes, roles: Roles) -> None:
        kinds = axes.kinds[node]
        self.barred.update(axis for axis, kind in kinds.items() if kind is not Kind.PARALLEL)
        if Kind.SUM in kinds.values():
            weights = [v for v in node.operands if v in roles.weights and len(axes.of(v)) > 1]
            carried_by_weights = {axis for value in weights for axis in axes.of(value)}
            self.weighed.update(carried_by_weights)
            if weights:
                self.alike.update(axes.tied(axis) for axis in kinds.keys() - carried_by_weights)
        if isinstance(node.op, Boundary):
            after = axes.of(node.result)
            before = (a for dim in axes.dims[node.operands[0]] for a in dim)
            self.bounded.update(dict.fromkeys(a for a in before if a not in after))
        if node.op.steps_along is not None:
            self.bounded.update(dict.fromkeys(axes.dims[node.operands[0]][node.op.steps_along]))


def _batch(
    function: Function, axes: Axes, activations: Collection[Axis], treated: _Treated
) -> Axis:
    """The axis of samples. Raises `TransformError` if there is none."""
    carried = (a for value in function.inputs for dim in axes.dims[value] for a in dim)
    batch = next((a for a in carried if a not in treated.barred and a in activations), None)
    if batch is None:
        # Where samples meet, in a batch norm for instance, inputs still list them first.
        outermost = (a for value in function.inputs for a in (axes.dims[value] or ((),))[0])
        batch = next((a for a in outermost if a in activations), None)
    if batch is None:
        reason = (
            "no input has a batch dim of size 2 or more that reaches the output; export the model "
            "with a batch of at least 2, or with a symbolic batch dim (a Python function: take "
            "batch_size)"
        )
        of_batch = (note for note in function.notes if "batch" in note)
        raise TransformError("; ".join((reason, *of_batch)))
    return batch


def _as_stated(
    function: Function,
    axes: Axes,
    stated: Mapping[str, Sequence[int]],
    batch: Axis,
    found: Sequence[Axis],
) -> Sequence[Axis]:
    """Of the sequences that ops tell, those that are stated; the stated ones if there are none."""
    dims = (axes.dims[v][dim] for v in function.inputs for dim in stated.get(v.name, ()))
    alone = [dim[0] for dim in dims if len(dim) == 1 and dim[0] is not batch]
    tied = {axes.tied(axis) for axis in alone}
    return [axis for axis in found if axes.tied(axis) in tied] or alone or found


def _counted_pieces(function: Function, axes: Axes, batch: Axis) -> tuple[Axis, ...]:
    """The factors of the longest dim of integers, such as tokens, that ops cut into pieces."""
    dims = (
        dim
        for value in function.inputs
        if not value.type.dtype.is_float
        for dim in _without(axes.dims[value], batch)
        if len(dim) > 1
    )
    return max(dims, key=lambda dim: math.prod(axis.size for axis in dim), default=())


def _without(dims: AxisDims, axis: Axis) -> Iterator[tuple[Axis, ...]]:
    """The dims of a value without an axis."""
    return (tuple(each for each in dim if each is not axis) for dim in dims)


def _cut_into(factors: Sequence[Axis]) -> str | None:
    """What fixes a sequence of these factors, in words for an error message."""
    sizes = dict.fromkeys(factors)
    return f"ops that cut it into {' x '.join(str(a.size) for a in sizes)}" if sizes else None


def _fixed_by(function: Function, axes: Axes, sequences: set[Axis]) -> str | None:
    """The Concat or Reshape that makes a sequence from parts of other sizes, in words for an error
    message; None if there is none."""
    inputs = {axes.tied(axis) for value in function.inputs for axis in axes.of(value)}
    for node in function.nodes:
        if not isinstance(node.op, (Concat, Reshape)):
            continue
        kinds = axes.kinds[node]
        made = {
            axes.tied(axis)
            for value in node.results
            for axis in axes.of(value)
            if kinds.get(axis) is Kind.WHOLE
        }
        held = {axes.tied(axis) for value in node.operands for axis in axes.of(value)}
        if (made - held - inputs) & sequences:
            shapes = " and ".join(str(list(v.type.shape)) for v in node.operands)
            return f"{node.op.name} of {shapes}"
    return None


__all__ = ["Extents", "find_extents"]
