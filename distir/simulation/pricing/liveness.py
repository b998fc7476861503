"""What the passes of a block hold, by liveness of values in program order.

A value takes memory from the op that makes it to the last op that reads it; a view shares the
storage of its operand. A storage goes by the name of a value: the one with which it was made, or
the first that came with it over a border. When the ops of a pass make and last use storages is the
same whatever stands beside the block, and is found once (`LivePass`). Each `effect` of the pass
adds what comes from other passes and what stays for them: it is known when each storage comes and
goes, and what is held is the sum of what has come so far, less what has gone, at all program sizes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from distir.arrays import Floats, Indices
from distir.cost.amounts import Amount
from distir.ir.core import Node, Value
from distir.ops.collective import Sharded
from distir.ops.host import device_bytes
from distir.plan.passes import Composed, Segment, composed

NEVER = 2**32
"""The moment when what is kept goes."""


@dataclass(frozen=True, slots=True, eq=False)
class Border:
    """The values that one block of a stage hands to the next. Compared by identity."""

    storage: tuple[int, ...]
    """Per value, the number of its storage."""
    sizes: Floats
    """Per storage its bytes, of shape (storages, program sizes)."""
    kept: tuple[bool, ...]
    """Per storage, whether a block that was visited before keeps it for a later pass."""

    @classmethod
    def of(
        cls,
        values: Sequence[Value],
        sizes: Mapping[Value, Amount],
        kept: Collection[Value],
        num_sizes: int,
    ) -> Border:
        """The border over which values with these storages go; what has no size takes nothing."""
        numbers = {each: number for number, each in enumerate(dict.fromkeys(values))}
        return cls(
            tuple([numbers[each] for each in values]),
            table_of([sizes.get(each, 0) for each in numbers], num_sizes),
            tuple([each in kept for each in numbers]),
        )

    @property
    def key(self) -> object:
        """Equal for equal borders."""
        return self.storage, self.sizes.tobytes(), self.kept


class BackwardBorder(NamedTuple):
    """What crosses between two blocks in the backward pass."""

    gradients: Border
    awaited: frozenset[int] = frozenset()
    """Numbers of the storages of the forward border that a block visited before reads in its
    `W`."""


@dataclass(frozen=True, slots=True, eq=False)
class LivePass:
    """The storages of a pass of a block. Those that nobody makes or hands to it (parameters, inputs
    of the model) are not counted."""

    storage: Mapping[Value, Value]
    """Of values that do not have their own."""
    handed: Sequence[Value]
    """Per value from the segment before, its storage."""
    handing: Sequence[Value]
    """Per value for the segment after, its storage."""
    saved: Collection[Value]
    """What rests from the forward to the backward pass."""
    buffers: Collection[Value] | None
    """What is made for the loss or to move state, without what crosses a border; None if buffers
    are not told apart."""
    sizes: Mapping[Value, Amount]
    """Bytes of what the pass makes. Many values have the same: no table of its own is kept."""
    num_sizes: int
    """Number of program sizes."""
    born: Indices
    """Per storage that the pass makes, the moment when it does."""
    gone: Mapping[Value, int]
    """Per storage that the pass makes or reads, the moment after its last use."""

    @classmethod
    def of(
        cls, segment: Segment, numbers: Sequence[int] | None, num_sizes: int | None = None
    ) -> LivePass:
        """The pass of a segment. `numbers` are those of the storages of what it is handed; None in
        `W`, where only gathered parameters are. Buffers are told apart if there is one program size
        (None)."""
        ops = composed(segment)
        nodes = ops.nodes
        storage = storages(nodes, _shared(segment, ops, numbers))
        root = storage.get

        def roots(values: Iterable[Value]) -> list[Value]:
            return [root(value, value) for value in values]

        gone: dict[Value, int] = {}
        made: dict[Value, Amount] = {}
        born: list[int] = []
        for moment, node in enumerate(nodes, start=1):
            for value in node.operands:
                gone[root(value, value)] = moment + 1
            for value, size in zip(node.results, device_bytes(node), strict=True):
                own = root(value, value)
                gone[own] = moment + 1
                if own is value:
                    made[value] = size
                    born.append(moment)
        buffers = None
        if num_sizes is None:
            moved = [value for node in nodes if not node.part.of_model for value in node.results]
            buffers = {*moved, *roots(segment.gathered)}.difference(roots(segment.sent))
        return cls(
            storage=storage,
            handed=roots(ops.handed),
            handing=roots(ops.handing),
            saved=frozenset(roots(segment.program.saved)),
            buffers=buffers,
            sizes=made,
            num_sizes=num_sizes or 1,
            born=np.array(born, np.int64),
            gone=gone,
        )

    def forward(self, border: Border) -> tuple[Floats, Border]:
        """The effect of a forward pass with this border before it, and the border after it."""
        arrived = dict(zip(self.handed, border.storage, strict=True))
        sizes: dict[Value, Amount] = {
            each: border.sizes[number] for each, number in arrived.items()
        }
        kept = {each for each, number in arrived.items() if border.kept[number]}
        effect = self.effect(
            {each: size for each, size in sizes.items() if each not in kept},
            self.gone,
            self.buffers,
            kept={*self.saved, *self.handing},
        )
        sizes.update(self.sizes)
        return effect, Border.of(self.handing, sizes, {*self.saved, *kept}, self.num_sizes)

    def effect(
        self,
        present: Mapping[Value, Amount],
        gone: Mapping[Value, int],
        buffers: Collection[Value] | None,
        kept: Collection[Value],
    ) -> Floats:
        """The effect of the pass on memory: a row for each field of a `MemoryEffect`, without those
        of buffers if these are not told apart.

        `present` is what is there before, and what this block has to free, at the moments `gone` or
        else at once. What is `kept` is not freed.
        """
        every = (*self.sizes, *present)
        goes = [NEVER if each in kept else gone.get(each, 0) for each in every]
        table = np.empty((2 * len(every), self.num_sizes))
        for row, size in zip(table, (*self.sizes.values(), *present.values()), strict=False):
            row[:] = size
        np.negative(table[: len(every)], out=table[len(every) :])
        changes = _changes(self.born, np.array(goes))
        held = _held(table, changes)
        if buffers is None:
            return np.stack((held[-1], np.maximum.reduce(held)))
        of_buffers = np.array([each in buffers for each in every] * 2, np.bool_)
        moving = of_buffers[changes].nonzero()[0]
        buffered = _held(table, changes[moving])
        fullest, sizes = held.argmax(axis=0), np.arange(self.num_sizes)
        peaks = held[fullest, sizes], buffered[moving.searchsorted(fullest), sizes]
        return np.stack((held[-1], peaks[0], buffered[-1], peaks[1]))


def _changes(born: Indices, goes: Indices) -> Indices:
    """What comes and goes, in order, given the moments when storages come and go, of which only the
    first ones come: the number of each storage that comes, and that of each that goes plus the
    number of all."""
    # Of what happens at one moment, what goes comes first.
    count, comes = len(goes), len(born)
    keys = np.concatenate((2 * born + 1, 2 * goes))
    order = keys.argsort(kind="stable")[: len(keys) - np.count_nonzero(goes == NEVER)]
    return np.where(order < comes, order, order + (count - comes))


def _held(table: Floats, changes: Indices) -> Floats:
    """Bytes held before and after each of several changes, which are rows of the table, of shape
    (1 + changes, program sizes)."""
    held = np.empty((1 + len(changes), table.shape[1]))
    held[0] = 0.0
    table.take(changes, axis=0, out=held[1:], mode="clip")
    return np.add.accumulate(held, axis=0, out=held)


def table_of(sizes: Collection[Amount], num_sizes: int) -> Floats:
    """Bytes of several things, a row for each."""
    table = np.empty((len(sizes), num_sizes))
    for row, size in enumerate(sizes):
        table[row] = size
    return table


def storages(nodes: Iterable[Node], known: Mapping[Value, Value]) -> dict[Value, Value]:
    """The storages of values that do not have their own: those of `known`, and of views."""
    found = dict(known)
    for node in nodes:
        op = node.op.op if isinstance(node.op, Sharded) else node.op
        if op.is_view:
            first = node.operands[0]
            found.update(dict.fromkeys(node.results, found.get(first, first)))
    return found


def _shared(
    segment: Segment, ops: Composed, numbers: Sequence[int] | None
) -> Mapping[Value, Value]:
    """The storages of what a segment is handed, where they are not values' own."""
    if numbers is None:
        return {} if segment.first else storages(segment.own.gathers, {})
    first: dict[int, Value] = {}
    named = zip(ops.handed, numbers, strict=True)
    found = {value: first.setdefault(number, value) for value, number in named}
    return {value: each for value, each in found.items() if each is not value}


@dataclass(frozen=True, slots=True, eq=False)
class LiveBackward:
    """Liveness over the backward pass of a block between its neighbours, as a whole or in two
    parts.

    If it has two parts, a value that `W` reads stays until its last reader in `W`. `B` visits
    blocks from the last to the first, `W` from the first to the last. So of the blocks that read a
    value in `W`, the one that reads it last comes first when blocks are walked backwards.
    """

    forward: LivePass
    first: LivePass
    """The backward pass, or its first part."""
    second: LivePass | None
    """The second part, if there are two."""
    arrived: Mapping[Value, int]
    """What comes from the block before in the forward pass, with its numbers at that border."""
    given: Collection[Value]
    """What comes from the block before in the backward pass."""
    sizes: Mapping[Value, Amount]
    """Bytes of all that is there before, or that the first part makes."""
    saved: Collection[Value]
    """What is there from the forward pass. This block frees of it what is not read in `W`."""
    sent: Sequence[Value]
    """Per gradient for the block before, its storage."""
    read: Collection[Value]
    """What this block reads in `W`."""
    awaited: Collection[Value]
    """What a block visited before reads in `W`."""

    @classmethod
    def of(cls, passes: Sequence[LivePass], before: Border, behind: BackwardBorder) -> LiveBackward:
        """The liveness of a block with the border `before` it in its forward pass and that `behind`
        it in its backward pass. `passes` are its forward pass and its backward pass, or the two
        parts of that."""
        forward, first, *others = passes
        second = others[0] if others else None
        gradients = behind.gradients
        arrived = dict(zip(forward.handed, before.storage, strict=True))
        given = dict(zip(first.handed, gradients.storage, strict=True))
        sizes = {**forward.sizes, **first.sizes}
        sizes.update((each, before.sizes[number]) for each, number in arrived.items())
        sizes.update((each, gradients.sizes[number]) for each, number in given.items())
        handed = enumerate(dict.fromkeys(forward.handing))
        awaited = {each for number, each in handed if number in behind.awaited}
        awaited.update(each for each, number in given.items() if gradients.kept[number])
        kept_before = {each for each, number in arrived.items() if before.kept[number]}
        return cls(
            forward=forward,
            first=first,
            second=second,
            arrived=arrived,
            given=tuple(given),
            sizes=sizes,
            saved=(sizes.keys() & forward.saved) - kept_before,
            sent=[forward.storage.get(each, each) for each in first.handing],
            read=() if second is None else sizes.keys() & _gone(second, first, forward),
            awaited=awaited,
        )

    def effects(self) -> tuple[Floats, ...]:
        """The effect of the whole backward pass, or those of both parts."""
        return (self._early(),) if self.second is None else (self._early(), self._late(self.second))

    def _early(self) -> Floats:
        """The effect of the whole backward pass, or of its first part."""
        return self.first.effect(
            {each: self.sizes[each] for each in (*self.saved, *self.given)},
            _gone(self.first, self.forward),
            _buffers(self.forward, self.first),
            kept={*self.read, *self.awaited, *self.sent},
        )

    def _late(self, second: LivePass) -> Floats:
        """The effect of the second part, in which blocks visited before come after this one."""
        read = set(self.read).difference(self.awaited)
        return second.effect(
            {
                **{each: self.sizes[each] for each in read},
                **{each: each.type.size_bytes for each in second.handed},
            },
            _gone(second, self.first, self.forward),
            _buffers(self.forward, self.first, second),
            kept=second.handing,
        )

    def border(self) -> BackwardBorder:
        """The border before the block."""
        held = {*self.read, *self.awaited}
        numbers = frozenset(number for each, number in self.arrived.items() if each in held)
        gradients = Border.of(self.sent, self.sizes, held, self.first.num_sizes)
        return BackwardBorder(gradients, numbers)


def _buffers(*passes: LivePass) -> Collection[Value] | None:
    """The buffers of passes; None if they are not told apart."""
    every = [each.buffers for each in passes if each.buffers is not None]
    return {value for own in every for value in own} if every else None


def _gone(live: LivePass, *earlier: LivePass) -> Mapping[Value, int]:
    """`LivePass.gone` by the storages that values have in passes that run before, the last of them
    first."""
    gone = dict(live.gone)
    for each in earlier:
        for value in gone.keys() & each.storage.keys():
            root, moment = each.storage[value], gone.pop(value)
            gone[root] = max(gone.get(root, 0), moment)
    return gone


__all__ = ["BackwardBorder", "Border", "LiveBackward", "LivePass", "storages"]
