"""What devices do together, and the views a device takes of what it holds.

These ops stand in SPMD programs, where every value is one device's shard. `factors` cut the dim
they act on into a local product, outermost first, and `position` is the factor that is split:
a split axis need not be the outermost of its dim (heads inside a fused QKV weight).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from distir.cost.collectives import CollectiveKind, Copies
from distir.cost.work import Work
from distir.errors import TransformError
from distir.ir.core import Array, Op
from distir.ir.registered import attribute_record, register_op
from distir.ir.signature import Signature
from distir.ir.types import TensorType

attribute_record(Copies)


@attribute_record
@dataclass(frozen=True, slots=True)
class Cut:
    """Which factor of which dim is split or joined. Sizes are those of one device's shard before
    the op."""

    dim: int
    factors: tuple[int, ...]
    position: int

    def resized(self, shape: Sequence[int], ratio: float) -> tuple[int, ...]:
        """The shape with the factor's size multiplied by `ratio`."""
        size = math.prod(
            round(n * ratio) if i == self.position else n for i, n in enumerate(self.factors)
        )
        return (*shape[: self.dim], size, *shape[self.dim + 1 :])

    def view(self, x: Array) -> tuple[Array, int]:
        """The array with the dim spread into its factors, and the index of the split one."""
        shape = (*x.shape[: self.dim], *self.factors, *x.shape[self.dim + 1 :])
        return x.reshape(shape), self.dim + self.position

    def split(self, x: Array, parts: int) -> list[Array]:
        """Equal parts along the factor, each with the dim folded again."""
        import numpy as np

        spread, axis = self.view(x)
        shape = self.resized(x.shape, 1 / parts)
        return [part.reshape(shape) for part in np.split(spread, parts, axis=axis)]

    def join(self, shards: Sequence[Array]) -> Array:
        """The inverse of `split`."""
        import numpy as np

        spread = [self.view(shard) for shard in shards]
        whole = np.concatenate([array for array, _ in spread], axis=spread[0][1])
        return whole.reshape(self.resized(shards[0].shape, len(shards)))


@attribute_record
@dataclass(frozen=True, slots=True)
class FlatCut:
    """A shard of this shape laid out flat, element after element, and cut into equal pieces, the
    last ones filled up with zeros; each of them again for every further degree."""

    shape: tuple[int, ...]
    degrees: tuple[int, ...]

    @property
    def piece(self) -> int:
        """Elements of one piece."""
        size = math.prod(self.shape)
        for degree in self.degrees:
            size = -(-size // degree)
        return size

    def resized(self, shape: Sequence[int], ratio: float) -> tuple[int, ...]:
        """The shape of a piece, or of what pieces make up."""
        return self.shape if ratio > 1 else (self.piece,)

    def split(self, x: Array, parts: int) -> list[Array]:
        """The pieces."""
        import numpy as np

        pieces = [np.reshape(x, -1)]
        for degree in self.degrees:
            length = -(-pieces[0].size // degree)
            padded = [np.pad(each, (0, length * degree - each.size)) for each in pieces]
            pieces = [piece for each in padded for piece in np.split(each, degree)]
        return pieces

    def join(self, shards: Sequence[Array]) -> Array:
        """The inverse of `split`."""
        import numpy as np

        lengths = [math.prod(self.shape)]
        for degree in self.degrees:
            lengths.append(-(-lengths[-1] // degree))
        pieces = list(shards)
        for degree, length in zip(reversed(self.degrees), reversed(lengths[:-1]), strict=True):
            groups = (pieces[i : i + degree] for i in range(0, len(pieces), degree))
            pieces = [np.concatenate(group)[:length] for group in groups]
        return pieces[0].reshape(self.shape)


class Distributed(Op):
    """Base of ops that only make sense on a mesh."""

    __slots__ = ()

    def signature(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Signature:
        raise TransformError(f"{self.name} is placed already; it has no axes")

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        raise TransformError(f"{self.name} needs a mesh; run the plan with distir.execute")

    def work(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Work:
        return Work.nothing()


class Collective(Distributed):
    """Base of ops in which the devices along `mesh_axes` take part: all places along one mesh axis,
    or along several at once, which are given outermost first. `degree` is their number."""

    __slots__ = ()
    mesh_axes: tuple[str, ...]
    degree: int

    @property
    def copies(self) -> Copies | None:
        """What of the rows that are exchanged are copies, as far as that is known."""
        return None

    @property
    def kind(self) -> CollectiveKind:
        """What `cost` calls it."""
        raise NotImplementedError

    def exchange(self, shards: Sequence[Array]) -> list[Array]:
        """Results of all members, in mesh order, from their operands."""
        raise NotImplementedError

    def message_bytes(self, operand: TensorType, result: TensorType) -> int:
        """Bytes of the full tensor that takes part per device, as `cost` counts them."""
        raise NotImplementedError

    @property
    def tensors(self) -> tuple[Collective, ...]:
        """The collectives, one per operand, that are done as one."""
        return (self,)

    def total_bytes(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> int:
        """`message_bytes` of all operands."""
        each = zip(self.tensors, operands, results, strict=True)
        return sum(one.message_bytes(operand, result) for one, operand, result in each)


@register_op("AllReduce")
@dataclass(frozen=True, slots=True)
class AllReduce(Collective):
    """Every member gets the sum (or maximum) of all."""

    mesh_axes: tuple[str, ...]
    degree: int
    reduction: str = "sum"

    @property
    def kind(self) -> CollectiveKind:
        return "all_reduce"

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        return operands

    def exchange(self, shards: Sequence[Array]) -> list[Array]:
        total = _reduce(shards, self.reduction)
        return [total] * len(shards)

    def message_bytes(self, operand: TensorType, result: TensorType) -> int:
        return operand.size_bytes


def _reduce(shards: Sequence[Array], reduction: str) -> Array:
    import numpy as np

    combine = np.add if reduction == "sum" else np.maximum
    total = shards[0]
    for shard in shards[1:]:
        total = combine(total, shard)
    return total


@register_op("AllGather")
@dataclass(frozen=True, slots=True)
class AllGather(Collective):
    """Every member gets the shards of all, joined along the cut."""

    mesh_axes: tuple[str, ...]
    degree: int
    cut: Cut | FlatCut

    @property
    def kind(self) -> CollectiveKind:
        return "all_gather"

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        (x,) = operands
        return (x.with_shape(self.cut.resized(x.shape, self.degree)),)

    def exchange(self, shards: Sequence[Array]) -> list[Array]:
        whole = self.cut.join(shards)
        return [whole] * len(shards)

    def message_bytes(self, operand: TensorType, result: TensorType) -> int:
        return operand.size_bytes * self.degree


@register_op("ReduceScatter")
@dataclass(frozen=True, slots=True)
class ReduceScatter(Collective):
    """Every member gets its part, along the cut, of the sum of all."""

    mesh_axes: tuple[str, ...]
    degree: int
    cut: Cut | FlatCut
    reduction: str = "sum"

    @property
    def kind(self) -> CollectiveKind:
        return "reduce_scatter"

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        (x,) = operands
        return (x.with_shape(self.cut.resized(x.shape, 1 / self.degree)),)

    def exchange(self, shards: Sequence[Array]) -> list[Array]:
        return self.cut.split(_reduce(shards, self.reduction), len(shards))

    def message_bytes(self, operand: TensorType, result: TensorType) -> int:
        return result.size_bytes * self.degree


@register_op("AllToAll")
@dataclass(frozen=True, slots=True)
class AllToAll(Collective):
    """The split moves from one axis to another: each member sends a part, along `scatter`, to
    every other, and joins what it gets along `gather` (sizes after the scatter). Tokens on the way
    to experts are `routed`."""

    mesh_axes: tuple[str, ...]
    degree: int
    scatter: Cut
    gather: Cut
    routed: Copies | None = None

    @property
    def copies(self) -> Copies | None:
        return self.routed

    @property
    def kind(self) -> CollectiveKind:
        return "all_to_all"

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        (x,) = operands
        scattered = self.scatter.resized(x.shape, 1 / self.degree)
        return (x.with_shape(self.gather.resized(scattered, self.degree)),)

    def exchange(self, shards: Sequence[Array]) -> list[Array]:
        parts = [self.scatter.split(shard, len(shards)) for shard in shards]
        return [
            self.gather.join([parts[source][member] for source in range(len(shards))])
            for member in range(len(shards))
        ]

    def message_bytes(self, operand: TensorType, result: TensorType) -> int:
        return operand.size_bytes


@register_op("Bucket")
@dataclass(frozen=True, slots=True)
class Bucket(Collective):
    """Collectives of one kind over the same mesh axes, one per operand, sent as one message."""

    mesh_axes: tuple[str, ...]
    degree: int
    parts: tuple[Collective, ...]

    @property
    def kind(self) -> CollectiveKind:
        return self.parts[0].kind

    @property
    def tensors(self) -> tuple[Collective, ...]:
        return self.parts

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        return tuple(
            part.infer(operand)[0] for part, operand in zip(self.parts, operands, strict=True)
        )


@register_op("Release")
@dataclass(frozen=True, slots=True)
class Release(Distributed):
    """The last reader of what is given back together, such as a block's gathered parameters."""

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        return ()

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        return ()


@register_op("Shard")
@dataclass(frozen=True, slots=True)
class Shard(Distributed):
    """The part, along the cut, that belongs to this device's place on `mesh_axes`: a view."""

    is_view: ClassVar[bool] = True

    mesh_axes: tuple[str, ...]
    degree: int
    cut: Cut | FlatCut

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        (x,) = operands
        return (x.with_shape(self.cut.resized(x.shape, 1 / self.degree)),)

    def pick(self, x: Array, member: int) -> Array:
        """The part of the member at this place."""
        return self.cut.split(x, self.degree)[member]


@register_op("Spread")
@dataclass(frozen=True, slots=True)
class Spread(Distributed):
    """A part of a sum over the devices along `mesh_axes`, without asking them: what is cut over
    them stands among zeros (`cut` has the sizes of the part), what all hold is divided."""

    mesh_axes: tuple[str, ...]
    degree: int
    cut: Cut | None = None

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        (x,) = operands
        if self.cut is None:
            return (x,)
        return (x.with_shape(self.cut.resized(x.shape, self.degree)),)

    def work(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Work:
        return Work(
            flops=operands[0].num_elements if self.cut is None else 0.0,
            bytes_read=operands[0].size_bytes,
            bytes_written=results[0].size_bytes,
        )

    def part(self, x: Array, member: int) -> Array:
        """The part of the member at this place."""
        import numpy as np

        if self.cut is None:
            return x / self.degree
        zeros = np.zeros_like(x)
        return self.cut.join([x if i == member else zeros for i in range(self.degree)])


@attribute_record
@dataclass(frozen=True, slots=True)
class Window:
    """Which positions of a loop a device holds: the loop is a product of factors
    `(size, ((mesh axis, degree), …))`, each split over mesh axes, first outermost."""

    loop: int
    factors: tuple[tuple[int, tuple[tuple[str, int], ...]], ...]

    def positions(self, coordinate: dict[str, int]) -> Array:
        """Positions along the loop at this place of the mesh, ascending."""
        import numpy as np

        positions = np.zeros(1, np.int64)
        for size, splits in self.factors:
            start, length = 0, size
            for mesh_axis, degree in splits:
                length //= degree
                start += coordinate[mesh_axis] * length
            held = np.arange(start, start + length)
            positions = (positions[:, None] * size + held).reshape(-1)
        return positions


@register_op("Sharded")
@dataclass(frozen=True, slots=True)
class Sharded(Distributed):
    """An op that must know which part it computes, with the windows of its split loops."""

    op: Op
    windows: tuple[Window, ...]

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        return self.op.infer(*operands)

    def work(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Work:
        return self.op.work(operands, results)

    def evaluate_at(self, coordinate: dict[str, int], *operands: Array) -> tuple[Array, ...]:
        """The shard's results at this place of the mesh."""
        indices = {window.loop: window.positions(coordinate) for window in self.windows}
        return self.op.evaluate_shard(indices, *operands)


@register_op("Send")
@dataclass(frozen=True, slots=True)
class Send(Distributed):
    """Sends a shard to the device at the same place of another stage."""

    stage: int

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        return ()


@register_op("Recv")
@dataclass(frozen=True, slots=True)
class Recv(Distributed):
    """Receives a shard from the device at the same place of another stage."""

    stage: int
    type: TensorType

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        return (self.type,)
