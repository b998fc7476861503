"""The effect of actions on memory, by liveness of values in program order.

A value takes memory from the op that makes it to the last op that reads it; a view shares the
storage of its operand. A value that the backward pass reads stays until its last reader there. The
values that an action receives are there from its start, those that it sends until its end.

The effect of a block depends on its neighbours only through its `Border`. So equal blocks are
walked until the border repeats, and the effect of the others is a multiple.

If the backward pass has two parts, a value that `W` reads stays until its last reader in `W`. `B`
visits blocks from the last to the first, `W` from the first to the last. So of the blocks that read
a value in `W`, the one that reads it last comes first when blocks are walked backwards.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from distir.arrays import Indices
from distir.cost.amounts import Many, select, taken
from distir.ir.core import Node, Value
from distir.ops.collective import Sharded
from distir.ops.host import device_bytes
from distir.plan.passes import BlockPasses, Composed, Segment, composed
from distir.schedules import BACKWARD, FORWARD, INPUT_PART, WEIGHT_PART
from distir.simulation.pricing.repeats import Count, RepeatedBlocks, any_left


@dataclass(frozen=True, slots=True)
class MemoryEffect:
    """The effect of passes on memory, in bytes relative to what was held before them.

    Buffers are memory that belongs to the loss, or to moving parameters and gradients.
    """

    delta: float = 0.0
    """Bytes that are held after the passes; negative if they free more than they leave."""
    peak: float = 0.0
    """The most bytes that are held on the way."""
    buffer_delta: float = 0.0
    """The bytes of `delta` that are buffers."""
    buffer_peak: float = 0.0
    """The bytes of buffers when the peak is reached first."""

    def then(self, other: MemoryEffect) -> MemoryEffect:
        """The effect of both, one after the other."""
        return joined((self, other))

    def times(self, count: Count) -> MemoryEffect:
        """The effect of `count` such effects, one after the other."""
        if np.ndim(count) == 0 and count < 2:
            return self if count else MemoryEffect()
        before = select(self.delta > 0, count - 1, 0)
        return MemoryEffect(
            self.delta * count,
            self.peak + self.delta * before,
            self.buffer_delta * count,
            self.buffer_peak + self.buffer_delta * before,
        )

    def at(self, size_numbers: Indices | None) -> MemoryEffect:
        """The effect at the program sizes with these numbers; at all sizes for None."""
        if size_numbers is None:
            return self
        amounts = (self.delta, self.peak, self.buffer_delta, self.buffer_peak)
        return MemoryEffect(*(taken(amount, size_numbers) for amount in amounts))


def joined(effects: Sequence[MemoryEffect]) -> MemoryEffect:
    """The effect of several effects, one after the other."""
    if len(effects) == 1:
        return effects[0]
    fields = [(e.delta, e.peak, e.buffer_delta, e.buffer_peak) for e in effects]
    if any(isinstance(amount, np.ndarray) for each in fields for amount in each):
        return _joined_many(fields)
    delta = peak = buffer_delta = buffer_peak = 0.0
    for each_delta, each_peak, each_buffer_delta, each_buffer_peak in fields:
        if delta + each_peak > peak:
            peak, buffer_peak = delta + each_peak, buffer_delta + each_buffer_peak
        delta, buffer_delta = delta + each_delta, buffer_delta + each_buffer_delta
    return MemoryEffect(delta, peak, buffer_delta, buffer_peak)


def _joined_many(effects: Sequence[tuple[float, ...]]) -> MemoryEffect:
    """Array version of `joined`. Bytes are whole numbers, so that sums are exact in any order."""
    elements = max(np.size(amount) for effect in effects for amount in effect)
    table = np.zeros((4, len(effects) + 1, elements))
    for row, effect in enumerate(effects, start=1):
        for rows, amount in zip(table, effect, strict=True):
            rows[row] = amount
    delta, peak, buffer_delta, buffer_peak = table
    ends, buffer_ends = np.cumsum(delta, axis=0), np.cumsum(buffer_delta, axis=0)
    peak += ends - delta
    buffer_peak += buffer_ends - buffer_delta
    first = peak.argmax(axis=0)[None]
    arrays = (
        ends[-1],
        np.take_along_axis(peak, first, axis=0)[0],
        buffer_ends[-1],
        np.take_along_axis(buffer_peak, first, axis=0)[0],
    )
    return MemoryEffect(*(array.view(Many) for array in arrays))


@dataclass(frozen=True, slots=True)
class Border:
    """The values that one block of a stage hands to the next."""

    storage: tuple[int, ...]
    """Per value, the number of its storage."""
    sizes: tuple[int, ...]
    """Per storage, its bytes."""
    kept: tuple[bool, ...]
    """Per storage, whether a block that was visited before keeps it for a later pass."""

    @classmethod
    def arriving(cls, values: Sequence[Value]) -> Border:
        """The border at the start of an action, where every value has its own storage."""
        sizes = tuple(value.type.size_bytes for value in values)
        return cls(tuple(range(len(sizes))), sizes, (False,) * len(sizes))


@dataclass(frozen=True, slots=True)
class _BackwardBorder:
    """What crosses between two blocks in the backward pass."""

    gradients: Border
    awaited: frozenset[int] = frozenset()
    """Numbers of the storages of the forward border that a block visited before reads in its
    `W`."""


@dataclass(frozen=True, slots=True)
class _ForwardStorage:
    """A storage that came over the forward border, by its number there."""

    number: int


@dataclass(frozen=True, slots=True)
class _BackwardStorage:
    """A storage that came over the backward border, by its number there."""

    number: int


_Storage = Value | _ForwardStorage | _BackwardStorage
"""A storage. That of a value which is made in the block, and is no view, is the value itself."""


def storages(
    nodes: Sequence[Node], known: Mapping[Value, _Storage] | None = None
) -> dict[Value, _Storage]:
    """The storages of values that do not have their own: those of `known`, and of views."""
    found: dict[Value, _Storage] = dict(known or {})
    for node in nodes:
        op = node.op.op if isinstance(node.op, Sharded) else node.op
        if op.is_view:
            first = node.operands[0]
            found.update(dict.fromkeys(node.results, found.get(first, first)))
    return found


@dataclass(slots=True)
class _Liveness:
    """Liveness over the nodes of one pass of a block. Storages that are not mentioned (parameters,
    inputs of the model) are not counted."""

    storage: Mapping[Value, _Storage]
    """Of values that do not have their own."""
    present: dict[_Storage, int]
    """Bytes of storages that are there before the pass, and that this block has to free."""
    arriving: Collection[_Storage] = ()
    """Storages that are allocated at the start of the pass."""
    kept: Collection[_Storage] = ()
    """Storages that must not be freed."""
    leaving: Collection[_Storage] = ()
    """Storages that must not be freed before the end."""
    buffers: Collection[_Storage] = ()

    def run(self, nodes: Sequence[Node]) -> MemoryEffect:
        """The effect of the pass on memory; adds the storages that it makes to `present`."""
        storage, sizes = self.storage, self.present
        stays = {*self.kept, *self.leaving}
        last_use: dict[_Storage, int] = dict.fromkeys(sizes, -1)
        for position, node in enumerate(nodes):
            for value in (*node.operands, *node.results):
                last_use[storage.get(value, value)] = position
        dying: dict[int, list[_Storage]] = {}
        for each, position in last_use.items():
            if each not in stays:
                dying.setdefault(position, []).append(each)
        buffers = set(self.buffers)
        live = peak = sum(sizes[each] for each in self.arriving)
        buffered = buffer_peak = 0

        def free(each: _Storage) -> None:
            nonlocal live, buffered
            size = sizes.get(each, 0)
            live -= size
            buffered -= size if each in buffers else 0

        for each in dying.get(-1, ()):
            free(each)
        for position, node in enumerate(nodes):
            for value, size in zip(node.results, device_bytes(node), strict=True):
                if value not in storage:
                    sizes[value] = size
                    live += sizes[value]
                    buffered += sizes[value] if value in buffers else 0
            higher = live > peak
            peak, buffer_peak = select(higher, live, peak), select(higher, buffered, buffer_peak)
            for each in dying.get(position, ()):
                free(each)
        for each in set(self.leaving) - set(self.kept):
            free(each)
        return MemoryEffect(live, peak, buffered, buffer_peak)


@dataclass(frozen=True, slots=True)
class _Visit:
    """A block of a stage, with the border before it."""

    passes: BlockPasses
    border: Border
    first: bool
    """Whether it is the first block of its stage."""
    last: bool
    """Whether it is the last block of its stage."""


_RepeatedVisits = tuple[tuple[_Visit, ...], Count]
"""A pattern of blocks that have the same borders in every copy, and how often it is repeated."""


@dataclass(slots=True)
class ChainMemory:
    """The memory effects of stages, composed of those of their blocks, which it keeps."""

    _composed: dict[Segment, Composed] = field(default_factory=dict[Segment, Composed])
    _patterns_down: dict[object, tuple[MemoryEffect, Border, tuple[_Visit, ...]]] = field(
        default_factory=dict[object, tuple[MemoryEffect, Border, tuple[_Visit, ...]]]
    )
    _patterns_up: dict[object, tuple[MemoryEffect, MemoryEffect, _BackwardBorder]] = field(
        default_factory=dict[object, tuple[MemoryEffect, MemoryEffect, _BackwardBorder]]
    )
    _forward: dict[object, tuple[MemoryEffect, Border]] = field(
        default_factory=dict[object, tuple[MemoryEffect, Border]]
    )
    _backward: dict[object, tuple[MemoryEffect, MemoryEffect, _BackwardBorder]] = field(
        default_factory=dict[object, tuple[MemoryEffect, MemoryEffect, _BackwardBorder]]
    )

    def stage(
        self, blocks: Sequence[RepeatedBlocks[BlockPasses]], size_numbers: Indices | None = None
    ) -> tuple[MemoryEffect, ...]:
        """The effects of a stage's actions, by cost kind: the forward pass, the whole backward
        pass, and its two parts if the blocks have them.

        If numbers of copies are arrays, they describe several stages, whose program sizes are
        `size_numbers`. Raises `Uneven` if values that cross borders depend on the number of copies.
        """
        forward, visits = self._down(blocks, size_numbers)
        whole, _ = self._up(visits, size_numbers, splits=False)
        splits = len(blocks[0][0][0]) > INPUT_PART
        parts = self._up(visits, size_numbers, splits=True) if splits else ()
        return (forward, whole, *parts)

    def after_forward(self, blocks: Sequence[RepeatedBlocks[BlockPasses]]) -> float:
        """Bytes that the forward pass of a stage leaves behind."""
        return self._down(blocks, None)[0].delta

    def _down(
        self, blocks: Sequence[RepeatedBlocks[BlockPasses]], size_numbers: Indices | None
    ) -> tuple[MemoryEffect, list[_RepeatedVisits]]:
        """The effect of the forward pass of a stage, and its blocks with their borders."""
        effects: list[MemoryEffect] = []
        visits: list[_RepeatedVisits] = []
        border = Border.arriving(blocks[0][0][0][FORWARD].received)
        for number, (pattern, count) in enumerate(blocks):
            is_last_pattern = number + 1 == len(blocks)
            left = count
            while any_left(left):
                last = is_last_pattern and not any_left(left - 1)
                effect, after, visited = self._pattern_down(pattern, border, not visits, last)
                repeats = after == border and bool(visits) and not last
                times = left - is_last_pattern if repeats else 1
                effects.append(effect.at(size_numbers).times(times))
                visits.append((visited, times))
                border, left = after, left - times
        return joined(effects), visits

    def _pattern_down(
        self, pattern: tuple[BlockPasses, ...], border: Border, first: bool, last: bool
    ) -> tuple[MemoryEffect, Border, tuple[_Visit, ...]]:
        """The effect of one copy of a pattern in the forward pass, the border after it, and its
        blocks with their borders."""
        key = (pattern, border, first, last)
        if key not in self._patterns_down:
            self._patterns_down[key] = self._visited_down(pattern, border, first, last)
        return self._patterns_down[key]

    def _visited_down(
        self, pattern: tuple[BlockPasses, ...], border: Border, first: bool, last: bool
    ) -> tuple[MemoryEffect, Border, tuple[_Visit, ...]]:
        effects: list[MemoryEffect] = []
        visits: list[_Visit] = []
        for number, passes in enumerate(pattern):
            ends = first and number == 0, last and number + 1 == len(pattern)
            visits.append(_Visit(passes, border, *ends))
            effect, border = self.forward(passes[FORWARD], border, *ends)
            effects.append(effect)
        return joined(effects), border, tuple(visits)

    def _up(
        self, visits: Sequence[_RepeatedVisits], size_numbers: Indices | None, splits: bool
    ) -> tuple[MemoryEffect, MemoryEffect]:
        """The effects of the two parts of a stage's backward pass; if it is not split, of all of it
        and of nothing."""
        early: list[MemoryEffect] = []
        late: list[MemoryEffect] = []
        border = _BackwardBorder(Border.arriving(visits[-1][0][-1].passes[BACKWARD].received))
        for pattern, count in reversed(visits):
            left = count
            while any_left(left):
                own_early, own_late, after = self._pattern_up(pattern, border, splits)
                times = left if after == border else 1
                early.append(own_early.at(size_numbers).times(times))
                late.append(own_late.at(size_numbers).times(times))
                border, left = after, left - times
        return joined(early), joined(late[::-1])

    def _pattern_up(
        self, pattern: tuple[_Visit, ...], border: _BackwardBorder, splits: bool
    ) -> tuple[MemoryEffect, MemoryEffect, _BackwardBorder]:
        """The effects of one copy of a pattern in the backward pass, and the border before it."""
        key = (pattern, border, splits)
        if key not in self._patterns_up:
            self._patterns_up[key] = self._visited_up(pattern, border, splits)
        return self._patterns_up[key]

    def _visited_up(
        self, pattern: tuple[_Visit, ...], border: _BackwardBorder, splits: bool
    ) -> tuple[MemoryEffect, MemoryEffect, _BackwardBorder]:
        early: list[MemoryEffect] = []
        late: list[MemoryEffect] = []
        for visit in reversed(pattern):
            own_early, own_late, border = self.backward(visit, border, splits)
            early.append(own_early)
            late.append(own_late)
        return joined(early), joined(late[::-1]), border

    def forward(
        self, segment: Segment, border: Border, first: bool, last: bool
    ) -> tuple[MemoryEffect, Border]:
        """The effect of a block's forward pass, and the border after it."""
        key = (segment, border, first, last)
        if key not in self._forward:
            ops = self.composed(segment)
            numbers = [_ForwardStorage(number) for number in border.storage]
            storage = storages(ops.nodes, dict(zip(ops.handed, numbers, strict=True)))
            saved = {storage.get(value, value) for value in segment.program.saved}
            sent = [storage.get(value, value) for value in ops.handing]
            liveness = _Liveness(
                storage,
                {n: border.sizes[n.number] for n in numbers if not border.kept[n.number]},
                arriving=set(numbers) if first else (),
                kept=saved if last else {*saved, *sent},
                leaving=sent if last else (),
                buffers=_buffers(ops, segment, storage),
            )
            effect = liveness.run(ops.nodes)
            sizes = {**liveness.present, **{n: border.sizes[n.number] for n in numbers}}
            kept = saved | {n for n in numbers if border.kept[n.number]}
            self._forward[key] = effect, _border(sent, sizes, kept)
        return self._forward[key]

    def backward(
        self, visit: _Visit, border: _BackwardBorder, splits: bool
    ) -> tuple[MemoryEffect, MemoryEffect, _BackwardBorder]:
        """The effects of the two parts of a block's backward pass (if it is not split, of all of it
        and of nothing), and the border before the block."""
        key = (visit.passes, visit.border, border, visit.first, visit.last, splits)
        if key not in self._backward:
            kinds = (FORWARD, INPUT_PART, WEIGHT_PART) if splits else (FORWARD, BACKWARD)
            passes = [self.composed(visit.passes[kind]) for kind in kinds]
            liveness = _BackwardLiveness.of(visit, border, passes)
            self._backward[key] = liveness.early(), liveness.late(), liveness.border()
        return self._backward[key]

    def composed(self, segment: Segment) -> Composed:
        """The nodes of a segment, with the same values every time."""
        if segment not in self._composed:
            self._composed[segment] = composed(segment)
        return self._composed[segment]


_NO_PASS = Composed((), (), (), ())


@dataclass(frozen=True, slots=True)
class _BackwardLiveness:
    """Liveness over the backward pass of a block, as a whole or in two parts."""

    visit: _Visit
    first: Composed
    """The backward pass, or its first part."""
    second: Composed
    """The second part; empty if the backward pass is not split."""
    storage: Mapping[Value, _Storage]
    """Of values that do not have their own."""
    sizes: Mapping[_Storage, int]
    """Bytes of all storages that are there before, or that the first part makes."""
    saved: Collection[_Storage]
    """Storages that are there before. This block frees those that are not read in `W`."""
    sent: Sequence[_Storage]
    """Storages of gradients for the block before."""
    read: Collection[_Storage]
    """Storages that this block reads in `W`."""
    awaited: Collection[_Storage]
    """Storages that a block visited before reads in `W`."""
    buffers: Collection[_Storage]

    @classmethod
    def of(
        cls, visit: _Visit, back: _BackwardBorder, passes: Sequence[Composed]
    ) -> _BackwardLiveness:
        """The liveness of a block with the border `back` behind it. `passes` are the block's
        forward pass and its backward pass, or the two parts of that."""
        arrived, gradients = visit.border, back.gradients
        before, first, second = (*passes, _NO_PASS)[:3]
        inputs = [_ForwardStorage(number) for number in arrived.storage]
        given = [_BackwardStorage(number) for number in gradients.storage]
        storage = storages(
            (*before.nodes, *first.nodes, *second.nodes),
            {
                **dict(zip(before.handed, inputs, strict=True)),
                **dict(zip(first.handed, given, strict=True)),
                **(_gathered_storages(visit.passes[WEIGHT_PART]) if second.nodes else {}),
            },
        )

        def roots(values: Iterable[Value]) -> list[_Storage]:
            return [storage.get(value, value) for value in values]

        sizes: dict[_Storage, int] = {
            value: size
            for node in (*before.nodes, *first.nodes)
            for value, size in zip(node.results, device_bytes(node), strict=True)
            if value not in storage
        }
        sizes.update((each, arrived.sizes[each.number]) for each in inputs)
        sizes.update((each, gradients.sizes[each.number]) for each in given)
        handed = dict.fromkeys(roots(before.handing))
        awaited = {each for number, each in enumerate(handed) if number in back.awaited}
        awaited.update(each for each in given if gradients.kept[each.number])
        saved = {
            each
            for each in roots(visit.passes[FORWARD].program.saved)
            if each in sizes
            and not (isinstance(each, _ForwardStorage) and arrived.kept[each.number])
        }
        buffers: set[_Storage] = set()
        kinds = (FORWARD, INPUT_PART, WEIGHT_PART) if len(passes) > 2 else (FORWARD, BACKWARD)
        for each, kind in zip(passes, kinds, strict=True):
            buffers |= _buffers(each, visit.passes[kind], storage)
        return cls(
            visit=visit,
            first=first,
            second=second,
            storage=storage,
            sizes=sizes,
            saved=saved | set(given),
            sent=roots(first.handing),
            read=sizes.keys() & roots(value for node in second.nodes for value in node.operands),
            awaited=awaited,
            buffers=buffers,
        )

    def early(self) -> MemoryEffect:
        """The effect of the whole backward pass, or of its first part."""
        visit = self.visit
        given = {each for each in self.saved if isinstance(each, _BackwardStorage)}
        held = {*self.read, *self.awaited}
        return _Liveness(
            self.storage,
            {each: self.sizes[each] for each in self.saved},
            arriving=given if visit.last else (),
            kept=held if visit.first else {*held, *self.sent},
            leaving=self.sent if visit.first else (),
            buffers=self.buffers,
        ).run(self.first.nodes)

    def late(self) -> MemoryEffect:
        """The effect of the second part, in which blocks visited before come after this one."""
        present = {each: self.sizes[each] for each in set(self.read) - set(self.awaited)}
        for value in self.second.handed:
            root = self.storage.get(value, value)
            assert isinstance(root, Value)
            present[root] = root.type.size_bytes
        return _Liveness(
            self.storage,
            present,
            kept=[self.storage.get(value, value) for value in self.second.handing],
            buffers=self.buffers,
        ).run(self.second.nodes)

    def border(self) -> _BackwardBorder:
        """The border before the block."""
        held = {*self.read, *self.awaited}
        numbers = (each.number for each in held if isinstance(each, _ForwardStorage))
        return _BackwardBorder(_border(self.sent, self.sizes, held), frozenset(numbers))


def _gathered_storages(segment: Segment) -> dict[Value, _Storage]:
    """The storages of parameters that the segment before has gathered for this one."""
    return {} if segment.first else storages(segment.own.gathers)


def _buffers(ops: Composed, segment: Segment, storage: Mapping[Value, _Storage]) -> set[_Storage]:
    """The storages of a pass that are made for the loss or to move state, without those of values
    that cross a border."""
    made: set[_Storage] = {
        value for node in ops.nodes if not node.part.of_model for value in node.results
    }
    made |= {storage.get(value, value) for value in segment.gathered}
    return made - {storage.get(value, value) for value in segment.sent}


def _border(
    sent: Sequence[_Storage], sizes: Mapping[_Storage, int], kept: Collection[_Storage]
) -> Border:
    numbers = {each: number for number, each in enumerate(dict.fromkeys(sent))}
    return Border(
        tuple(numbers[each] for each in sent),
        tuple(sizes.get(each, 0) for each in numbers),
        tuple(each in kept for each in numbers),
    )
