"""Ring exchange: parts of a reduced loop travel round the devices instead of being gathered.

Ring attention (Liu et al. 2023): every device has its rows and, at first, its own columns. Round
after round it computes with the columns at hand while the next ones arrive from its neighbour, and
passes on what it has; what rows know of the columns met so far is kept by an online softmax.
Columns whose sums over rows are wanted (gradients of keys and values) travel with their sums, and
one step more than there are rounds but one: home.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
"""Loops of a circulating op's signature; before them come batch and heads."""


class Circulating(Op):
    """Base of ops that can be computed block of columns by block of columns. Their loops
    `ROWS` and `COLUMNS` are rows, which can be split, and columns, which are needed whole, if not
    at once."""

    __slots__ = ()
    travelling: ClassVar[tuple[int, ...]]
    """Operands that have columns and no rows."""
    returning: ClassVar[tuple[int, ...]] = ()
    """Results that have columns and are summed over rows."""

    def unevenness(self, pieces: int) -> float:
        """What the last of so many equal runs of rows computes, over the mean."""
        return 1.0

    def meet(self, known: Any, indices: Mapping[int, Array], operands: Sequence[Array]) -> Any:
        """What rows know once they have met the columns at `indices[COLUMNS]` too; `known` is None
        before the first. Operands that travel have these columns alone."""
        raise NotImplementedError

    def conclude(
        self, known: Any, indices: Mapping[int, Array], operands: Sequence[Array]
    ) -> tuple[Array, ...]:
        """The results from what rows know of all columns: those that have columns for these alone,
        and what they add to the others, if they are sums over columns."""
        raise NotImplementedError


@register_op("Ring")
@dataclass(frozen=True, slots=True)
class Ring(Distributed):
    """A circulating op whose columns are split over `mesh_axes`, as its rows are.

    The op's travelling operands go round the `degree` devices, and its returning results with
    them, which are added up on the way. Further results are the memory that this takes beside what
    stays: two blocks of each operand, taken in turns (one where there are two devices), and a block
    of each returning result.
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

    # --- what it costs ----------------------------------------------------------------------------

    def round_work(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Work:
        """One of `degree` rounds: the op on a block of columns, which goes on with the results of
        the rounds before."""
        own = self._own(results)
        work = self.op.work(operands, own)
        return replace(work, bytes_read=work.bytes_read + sum(t.size_bytes for t in own))

    def work(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Work:
        return self.round_work(operands, results) * self.degree

    def round_bytes(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> int:
        """Bytes that a device passes on while it computes a round."""
        return sum(operands[i].size_bytes for i in self.op.travelling) + self.return_bytes(results)

    def return_bytes(self, results: Sequence[TensorType]) -> int:
        """Bytes that it passes on after the last round."""
        return sum(results[i].size_bytes for i in self.op.returning)

    @property
    def kind(self) -> CollectiveKind:
        """What `cost` calls the exchange."""
        return "shift"

    def total_bytes(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> int:
        """All bytes that a device passes on."""
        rounds = (self.degree - 1) * self.round_bytes(operands, results)
        return rounds + self.return_bytes(results)

    def _own(self, results: Sequence[TensorType]) -> Sequence[TensorType]:
        return results[: -len(self.op.travelling) - len(self.op.returning)]

    # --- what it computes -------------------------------------------------------------------------

    def exchange(
        self, coordinates: Sequence[dict[str, int]], shards: Sequence[Sequence[Array]]
    ) -> list[tuple[Array, ...]]:
        """Results of all members of a ring, in mesh order, from their places and operands."""
        devices = [
            _Device(self, coordinate, own)
            for coordinate, own in zip(coordinates, shards, strict=True)
        ]
        for each in self._rounds(devices):
            each.known = self.op.meet(each.known, each.indices, each.operands)
        # Without sums to travel, all is known after the rounds.
        for each in self._rounds(devices) if self.op.returning else devices:
            each.add(self.op.conclude(each.known, each.indices, each.operands))
        if self.op.returning:
            _pass_on(devices)
        return [(*each.results(), *each.buffers()) for each in devices]

    def _rounds(self, devices: Sequence[_Device]) -> Iterator[_Device]:
        """Every device in every round, with the block at hand; blocks move on in between."""
        for each in devices:
            each.restart()
        for number in range(len(devices)):
            if number:
                _pass_on(devices)
            yield from devices


@dataclass(slots=True)
class _Block:
    """Columns on their way: where they are, the operands, and the sums that travel with them."""

    columns: Array
    operands: dict[int, Array]
    sums: dict[int, Array]


class _Device:
    """A member of a ring: what stays with it, and the block at hand."""

    def __init__(self, ring: Ring, coordinate: dict[str, int], operands: Sequence[Array]) -> None:
        self.ring = ring
        self.own_indices: Mapping[int, Array] = {
            window.loop: window.positions(coordinate) for window in ring.windows
        }
        self.own = operands
        self.known: Any = None
        self.sums: dict[int, Array] = {}
        self.last: list[_Block] = []
        self.restart()

    def restart(self) -> None:
        """The device's own block is at hand."""
        moving = {i: self.own[i] for i in self.ring.op.travelling}
        self.block = _Block(self.own_indices[COLUMNS], moving, {})
        self.sums = {}

    @property
    def indices(self) -> Mapping[int, Array]:
        """Where rows, heads and samples are, and the columns at hand."""
        return {**self.own_indices, COLUMNS: self.block.columns}

    @property
    def operands(self) -> list[Array]:
        """What the op reads in this round."""
        return [self.block.operands.get(i, own) for i, own in enumerate(self.own)]

    def add(self, made: Sequence[Array]) -> None:
        """Adds what a round has made to the sums that stay and to those that travel."""
        for i, array in enumerate(made):
            sums = self.block.sums if i in self.ring.op.returning else self.sums
            sums[i] = sums[i] + array if i in sums else array

    def receive(self, block: _Block) -> None:
        """Another block is at hand."""
        self.last = [*self.last, block][-2:]
        self.block = block

    def results(self) -> tuple[Array, ...]:
        """The sums, once all blocks are home."""
        every = {**self.sums, **self.block.sums}
        return tuple(every[i] for i in sorted(every))

    def buffers(self) -> list[Array]:
        """What the last blocks took beside what stays."""
        import numpy as np

        held = self.last[-min(2, self.ring.degree - 1) :]
        blocks = [np.concatenate([b.operands[i] for b in held]) for i in self.ring.op.travelling]
        return [*blocks, *(self.block.sums[i] for i in self.ring.op.returning)]


def _pass_on(devices: Sequence[_Device]) -> None:
    """Every device hands its block to the next one."""
    blocks = [each.block for each in devices]
    for each, block in zip(devices, (blocks[-1], *blocks[:-1]), strict=True):
        each.receive(block)


__all__ = ["COLUMNS", "ROWS", "Circulating", "Ring"]
