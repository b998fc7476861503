"""Ring exchange: blocks of columns (keys and values) travel round the devices instead of being
gathered, as in ring attention (Liu et al. 2023).

Every device has its rows and, at first, its own block of columns. In each round it computes with
the block at hand, while the next block arrives from its neighbour; then it passes its block on. An
online softmax accumulates over the blocks. Sums over rows that belong to columns (gradients of keys
and values) travel with their block. After the last round these blocks take one more step, back to
the devices they came from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

from distir.cost.amounts import smaller
from distir.cost.collectives import CollectiveKind
from distir.cost.work import Work
from distir.ir.core import Array, Op
from distir.ir.registered import register_op
from distir.ir.types import TensorType
from distir.ops.collective import Distributed, Window

ROWS, COLUMNS = 3, 4
"""Indices of the loops over rows and columns in the signature of a circulating op; before them come
batch and heads."""


class Circulating(Op):
    """Base of ops that can be computed block of columns by block of columns. Of their loops, `ROWS`
    can be split; `COLUMNS` are needed whole, but not all at once."""

    __slots__ = ()
    travelling: ClassVar[tuple[int, ...]]
    """Positions of operands that have columns and no rows."""
    returning: ClassVar[tuple[int, ...]] = ()
    """Positions of results that have columns and are summed over rows."""

    def block_work(
        self, operands: Sequence[TensorType], results: Sequence[TensorType], blocks: int
    ) -> Work:
        """The work on one of `blocks` equal blocks of columns: the mean over them. Travelling
        operands have the columns of one block alone."""
        return self.work(operands, results)

    def unevenness(self, pieces: int, operands: Sequence[TensorType], blocks: int) -> float:
        """With rows cut into this many equal runs, the FLOPs of the last run over the mean.
        Travelling operands have one of `blocks` equal blocks of columns."""
        return 1.0

    def meet(self, known: Any, indices: Mapping[int, Array], operands: Sequence[Array]) -> Any:
        """The accumulated state of rows after a block of columns, at positions `indices[COLUMNS]`.

        `known` is the state before, None for the first block. Travelling operands have the columns
        of this block alone.
        """
        raise NotImplementedError

    def conclude(
        self, known: Any, indices: Mapping[int, Array], operands: Sequence[Array]
    ) -> tuple[Array, ...]:
        """The results, given the accumulated state after all columns. If the op has returning
        results: their values for one block of columns, and that block's share of other results."""
        raise NotImplementedError


@register_op("Ring")
@dataclass(frozen=True, slots=True)
class Ring(Distributed):
    """A circulating op whose rows and columns are split over `mesh_axes`.

    The op's travelling operands go round the `degree` devices. Its returning results travel with
    them and are added up on the way. Further results stand for the buffers: two blocks of each
    travelling operand, used in turns (one if there are two devices), and a block of each returning
    result.
    """

    op: Circulating
    mesh_axes: tuple[str, ...]
    degree: int
    windows: tuple[Window, ...]

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        results = self.op.infer(*operands)
        blocks = cast("int", smaller(2, self.degree - 1))
        doubled = [operands[i] for i in self.op.travelling]
        arriving = [t.with_shape((blocks * t.shape[0], *t.shape[1:])) for t in doubled]
        return (*results, *arriving, *(results[i] for i in self.op.returning))

    # --- cost -------------------------------------------------------------------------------------

    def round_work(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Work:
        """The work of one of `degree` rounds: the op on a block of columns, which also reads the
        results of the rounds before."""
        own = self._own(results)
        work = self.op.block_work(operands, own, self.degree)
        return replace(work, bytes_read=work.bytes_read + sum(t.size_bytes for t in own))

    def work(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Work:
        return self.round_work(operands, results) * self.degree

    def round_bytes(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> int:
        """Bytes that a device sends while it computes a round."""
        return sum(operands[i].size_bytes for i in self.op.travelling) + self.return_bytes(results)

    def return_bytes(self, results: Sequence[TensorType]) -> int:
        """Bytes that a device sends after the last round."""
        return sum(results[i].size_bytes for i in self.op.returning)

    @property
    def kind(self) -> CollectiveKind:
        """The kind of collective, as the cost model names it."""
        return "shift"

    def total_bytes(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> int:
        """All bytes that a device sends."""
        rounds = (self.degree - 1) * self.round_bytes(operands, results)
        return rounds + self.return_bytes(results)

    def _own(self, results: Sequence[TensorType]) -> Sequence[TensorType]:
        return results[: -len(self.op.travelling) - len(self.op.returning)]

    # --- evaluation -------------------------------------------------------------------------------

    def exchange(
        self,
        coordinates: Sequence[dict[str, int]],
        shards: Sequence[Sequence[Array]],
        pass_on: PassOn | None = None,
    ) -> list[tuple[Array, ...]]:
        """The results of devices of a ring from their coordinates and operands: of all of them, in
        mesh order, or of those in this process alone. In the latter case `pass_on` takes their
        blocks to the devices after them, and gives those of the devices before them."""
        devices = [
            _RingDevice(self, coordinate, own)
            for coordinate, own in zip(coordinates, shards, strict=True)
        ]
        pass_on = pass_on or _to_the_next
        for each in self._rounds(devices, pass_on):
            each.known = self.op.meet(each.known, each.indices, each.operands)
        # Without sums that travel, one round over all blocks is enough.
        for each in self._rounds(devices, pass_on) if self.op.returning else devices:
            each.add(self.op.conclude(each.known, each.indices, each.operands))
        if self.op.returning:
            _pass(devices, pass_on)
        return [(*each.results(), *each.buffers()) for each in devices]

    def _rounds(self, devices: Sequence[_RingDevice], pass_on: PassOn) -> Iterator[_RingDevice]:
        """Every device in every round, with its block of that round."""
        for each in devices:
            each.restart()
        for number in range(self.degree):
            if number:
                _pass(devices, pass_on)
            yield from devices

    def columns_at(self, coordinate: dict[str, int]) -> Array:
        """The positions of the columns that the device at this place of the mesh has at first."""
        (window,) = [each for each in self.windows if each.loop == COLUMNS]
        return window.positions(coordinate)


@dataclass(slots=True)
class CirculatingBlock:
    """A block of columns: their positions, the operands, and the sums that travel with them."""

    columns: Array
    operands: dict[int, Array]
    sums: dict[int, Array]


PassOn = Callable[[Sequence[CirculatingBlock]], Sequence[CirculatingBlock]]
"""From the blocks of devices, the blocks that come to them from the devices before them."""


class _RingDevice:
    """A device of a ring: its own operands and sums, and the block at hand."""

    def __init__(self, ring: Ring, coordinate: dict[str, int], operands: Sequence[Array]) -> None:
        self.ring = ring
        self.own_indices: Mapping[int, Array] = {
            window.loop: window.positions(coordinate) for window in ring.windows
        }
        self.own = operands
        self.known: Any = None
        self.sums: dict[int, Array] = {}
        self.last: list[CirculatingBlock] = []
        self.restart()

    def restart(self) -> None:
        """Takes the device's own block."""
        moving = {i: self.own[i] for i in self.ring.op.travelling}
        self.block = CirculatingBlock(self.own_indices[COLUMNS], moving, {})
        self.sums = {}

    @property
    def indices(self) -> Mapping[int, Array]:
        """The positions of rows, heads, samples, and of the columns at hand."""
        return {**self.own_indices, COLUMNS: self.block.columns}

    @property
    def operands(self) -> list[Array]:
        """The operands of the op in this round."""
        return [self.block.operands.get(i, own) for i, own in enumerate(self.own)]

    def add(self, made: Sequence[Array]) -> None:
        """Adds the results of a round to the sums that stay and to those that travel."""
        for i, array in enumerate(made):
            sums = self.block.sums if i in self.ring.op.returning else self.sums
            sums[i] = sums[i] + array if i in sums else array

    def receive(self, block: CirculatingBlock) -> None:
        """Takes another block."""
        self.last = [*self.last, block][-2:]
        self.block = block

    def results(self) -> tuple[Array, ...]:
        """The sums, once every device has its own block again."""
        every = {**self.sums, **self.block.sums}
        return tuple(every[i] for i in sorted(every))

    def buffers(self) -> list[Array]:
        """The buffers that the last blocks took."""
        import numpy as np

        held = self.last[-min(2, self.ring.degree - 1) :]
        blocks = [np.concatenate([b.operands[i] for b in held]) for i in self.ring.op.travelling]
        return [*blocks, *(self.block.sums[i] for i in self.ring.op.returning)]


def _to_the_next(blocks: Sequence[CirculatingBlock]) -> Sequence[CirculatingBlock]:
    """Passes blocks on among all devices of a ring."""
    return (blocks[-1], *blocks[:-1])


def _pass(devices: Sequence[_RingDevice], pass_on: PassOn) -> None:
    """Every device gives its block away and takes another."""
    for each, block in zip(devices, pass_on([each.block for each in devices]), strict=True):
        each.receive(block)


__all__ = ["COLUMNS", "ROWS", "Circulating", "CirculatingBlock", "PassOn", "Ring"]
