"""Ops of SPMD programs: collectives, messages, and views of a device's shard.

In an SPMD program every value is one device's shard. A `Cut` says where in a dim an axis is split:
it need not be the outermost of its dim (heads inside a fused QKV weight).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from distir.cost.collectives import CollectiveKind, Copies
from distir.cost.work import Work
from distir.errors import TransformError
from distir.ir.core import Array, Op
from distir.ir.registered import attribute_record, register_op
from distir.ir.signature import Signature
from distir.ir.types import DType, TensorType
from distir.ops.base import from_start

attribute_record(Copies)


@attribute_record
@dataclass(frozen=True, slots=True)
class Cut:
    """The place in a tensor where shards are split or joined: `dim` is a product of `factors`,
    outermost first, of which the one at `position` is cut. Sizes are those of one device's shard
    before the op."""

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
        """The array with a dim per factor, and the index of the dim that is cut."""
        shape = (*x.shape[: self.dim], *self.factors, *x.shape[self.dim + 1 :])
        return x.reshape(shape), self.dim + self.position

    def split(self, x: Array, parts: int) -> list[Array]:
        """Equal parts of the array along the factor, as tensors with the original dims."""
        import numpy as np

        by_factor, axis = self.view(x)
        shape = self.resized(x.shape, 1 / parts)
        return [part.reshape(shape) for part in np.split(by_factor, parts, axis=axis)]

    def join(self, shards: Sequence[Array]) -> Array:
        """The inverse of `split`."""
        import numpy as np

        views = [self.view(shard) for shard in shards]
        whole = np.concatenate([array for array, _ in views], axis=views[0][1])
        return whole.reshape(self.resized(shards[0].shape, len(shards)))


@attribute_record
@dataclass(frozen=True, slots=True)
class FlatCut:
    """How a shard of this shape is cut if it lies flat, element after element: into as many equal
    pieces as the first degree says, the last of them filled up with zeros; then each piece likewise
    for every further degree."""

    shape: tuple[int, ...]
    degrees: tuple[int, ...]

    @property
    def piece(self) -> int:
        """The number of elements of one piece."""
        size = math.prod(self.shape)
        for degree in self.degrees:
            size = -(-size // degree)
        return size

    def resized(self, shape: Sequence[int], ratio: float) -> tuple[int, ...]:
        """The shape of a piece (`ratio` below 1), or of the shard that pieces are joined to."""
        return self.shape if ratio > 1 else (self.piece,)

    def split(self, x: Array, parts: int) -> list[Array]:
        """The pieces of an array; their number follows from the degrees."""
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
    """Base of ops that exist only in placed programs."""

    __slots__ = ()

    def signature(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Signature:
        raise TransformError(f"{self.name} is placed already; it has no axes")

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        raise TransformError(f"{self.name} needs a mesh; run the plan with distir.execute")

    def work(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Work:
        return Work.nothing()


class Collective(Distributed):
    """Base of ops in which devices communicate: the `degree` devices that differ only by their
    places along `mesh_axes` (outermost first) form a group."""

    __slots__ = ()
    mesh_axes: tuple[str, ...]
    degree: int

    @property
    def copies(self) -> Copies | None:
        """How many of the exchanged rows are copies of one token; None if that is unknown."""
        return None

    @property
    def kind(self) -> CollectiveKind:
        """The kind of collective, as the cost model names it."""
        raise NotImplementedError

    def exchange(self, shards: Sequence[Array]) -> list[Array]:
        """The results of all devices of a group, in mesh order, from their operands."""
        raise NotImplementedError

    def message_bytes(self, operand: TensorType, result: TensorType) -> int:
        """Bytes of the full tensor that takes part, as the cost model counts them."""
        raise NotImplementedError

    @property
    def tensors(self) -> tuple[Collective, ...]:
        """The collectives, one per operand, that are sent as one message."""
        return (self,)

    def total_bytes(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> int:
        """The sum of `message_bytes` over all operands."""
        each = zip(self.tensors, operands, results, strict=True)
        return sum(one.message_bytes(operand, result) for one, operand, result in each)


@register_op("AllReduce")
@dataclass(frozen=True, slots=True)
class AllReduce(Collective):
    """Every device gets the sum (or maximum) over its group."""

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
    """Every device gets the shards of its group, joined along the cut."""

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
    """Every device gets its part, along the cut, of the sum (or maximum) over its group."""

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
    """The split moves from one axis to another: each device cuts its shard along `scatter`, sends a
    part to every other device, and joins the parts that it gets along `gather` (whose sizes are
    those after the scatter). `routed` is set for tokens on the way to experts."""

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
    def is_view(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.parts[0].is_view

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
    """Reads values last, so that their memory is freed together: a block's gathered parameters."""

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        return ()

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        return ()


@register_op("Scratch")
@dataclass(frozen=True, slots=True)
class Scratch(Distributed):
    """Hands its operand on, and takes memory that nothing reads and that is free again after it:
    `copies` copies in fp32 of `elements` elements, which a kernel holds beside what it reads and
    writes."""

    elements: int
    copies: int

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        return (operands[0], TensorType((self.copies, self.elements), DType.FLOAT32))

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        import numpy as np

        return (operands[0], np.broadcast_to(np.float64(0.0), (self.copies, self.elements)))


@register_op("Rearranged")
@dataclass(frozen=True, slots=True)
class Rearranged(Distributed):
    """Copies rows to where software wants them: `sorted` by expert or by device, or at `aligned`
    places. What a row holds does not change, and where it lies is not looked at here."""

    why: Literal["sorted", "aligned"]

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        return operands

    def evaluate(self, *operands: Array) -> tuple[Array, ...]:
        return operands

    def work(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Work:
        return Work(
            flops=operands[0].num_elements,
            bytes_read=operands[0].size_bytes,
            bytes_written=results[0].size_bytes,
        )


@register_op("Shard")
@dataclass(frozen=True, slots=True)
class Shard(Distributed):
    """The part, along the cut, that belongs to the device's place along `mesh_axes`: a view."""

    is_view: ClassVar[bool] = True

    mesh_axes: tuple[str, ...]
    degree: int
    cut: Cut | FlatCut

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        (x,) = operands
        return (x.with_shape(self.cut.resized(x.shape, 1 / self.degree)),)

    def pick(self, x: Array, member: int) -> Array:
        """The part of device number `member` of a group."""
        return self.cut.split(x, self.degree)[member]


@register_op("Spread")
@dataclass(frozen=True, slots=True)
class Spread(Distributed):
    """Makes a value a pending sum over `mesh_axes` without communication. A shard, which `cut`
    describes, is surrounded by zeros; a value that all devices hold is divided by their number."""

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
        """The part of device number `member` of a group."""
        import numpy as np

        if self.cut is None:
            return x / self.degree
        zeros = np.zeros_like(x)
        return self.cut.join([x if i == member else zeros for i in range(self.degree)])


@attribute_record
@dataclass(frozen=True, slots=True)
class Window:
    """The positions of a split loop that a device holds. The loop is a product of factors
    `(size, ((mesh axis, degree), …))`, outermost first, each split over these mesh axes. `padding`
    is the number of positions at the end that the model does not have."""

    loop: int
    factors: tuple[tuple[int, tuple[tuple[str, int], ...]], ...]
    padding: int = 0

    @property
    def end(self) -> int:
        """The number of positions that the model has: negative ones count from here."""
        return math.prod(size for size, _ in self.factors) - self.padding

    def positions(self, coordinate: dict[str, int]) -> Array:
        """The positions that the device at this place of the mesh holds, ascending."""
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
    """An op whose result depends on where its shard is, such as dropout or a lookup in a split
    table, with the positions that devices hold of its split loops."""

    op: Op
    windows: tuple[Window, ...]

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        return self.op.infer(*operands)

    def work(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Work:
        return self.op.work(operands, results)

    def evaluate_at(self, coordinate: dict[str, int], *operands: Array) -> tuple[Array, ...]:
        """The results on the device at this place of the mesh."""
        indices = {window.loop: window.positions(coordinate) for window in self.windows}
        return self.op.evaluate_shard(indices, *self._from_start(operands))

    def _from_start(self, operands: Sequence[Array]) -> Sequence[Array]:
        """The operands, with places that count from the end of a table counted from its start: a
        device that holds some of its rows does not know where it ends."""
        place = self.op.picks_by
        end = next((window.end for window in self.windows if window.loop == 0), None)
        if place is None or end is None:
            return operands
        return (*operands[:place], from_start(operands[place], end), *operands[place + 1 :])


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
