"""Liveness in program order: what a pass over blocks adds to memory, and its peak on the way.

A value takes memory from the op that makes it to the last op that reads it; views share the
storage of what they look at. What the backward pass reads stays until its last reader there. What
a stage is sent is there from the start of the action, what it sends until its end.

A block's effect depends on its neighbours only through its `Border`. So a run of equal blocks is
walked until the border repeats, and the rest is a multiple.

Where the backward pass has two parts, what `W` reads stays until its last reader there. `B` visits
blocks from the last to the first, `W` from the first to the last: so whoever reads a value last in
`W` is the first to be seen when blocks are walked back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from distir.arrays import Indices
from distir.cost.amounts import Many, select, taken
from distir.ir.core import Node, Part, Value
from distir.ops.collective import Sharded
from distir.plan.passes import BlockPasses, Composed, Segment, composed
from distir.schedules import BACKWARD, FORWARD, INPUT_PART, WEIGHT_PART
from distir.simulation.pricing.repeats import Count, Run, is_left


@dataclass(frozen=True, slots=True)
class MemoryEffect:
    """Bytes that a pass leaves behind (`delta`, negative if it frees more) and the most it holds
    on the way (`peak`), both relative to what was there before; of these, buffers: what belongs to
    the loss, or to moving parameters and gradients."""

    delta: float = 0.0
    peak: float = 0.0
    buffer_delta: float = 0.0
    buffer_peak: float = 0.0
    """Of the peak, the first if it is reached more than once."""

    def then(self, other: MemoryEffect) -> MemoryEffect:
        """Both one after the other."""
        return joined((self, other))

    def times(self, count: Count) -> MemoryEffect:
        """`count` times in a row."""
        if np.ndim(count) == 0 and count < 2:
            return self if count else MemoryEffect()
        before = select(self.delta > 0, count - 1, 0)
        return MemoryEffect(
            self.delta * count,
            self.peak + self.delta * before,
            self.buffer_delta * count,
            self.buffer_peak + self.buffer_delta * before,
        )

    def at(self, places: Indices | None) -> MemoryEffect:
        """In plans that are of these places among those known."""
        if places is None:
            return self
        amounts = (self.delta, self.peak, self.buffer_delta, self.buffer_peak)
        return MemoryEffect(*(taken(amount, places) for amount in amounts))


def joined(effects: Sequence[MemoryEffect]) -> MemoryEffect:
    """Effects one after the other."""
    if len(effects) == 1:
        return effects[0]
    fields = [(e.delta, e.peak, e.buffer_delta, e.buffer_peak) for e in effects]
    if any(isinstance(amount, np.ndarray) for each in fields for amount in each):
        return _joined_in_many(fields)
    delta = peak = buffer_delta = buffer_peak = 0.0
    for each_delta, each_peak, each_buffer_delta, each_buffer_peak in fields:
        if delta + each_peak > peak:
            peak, buffer_peak = delta + each_peak, buffer_delta + each_buffer_peak
        delta, buffer_delta = delta + each_delta, buffer_delta + each_buffer_delta
    return MemoryEffect(delta, peak, buffer_delta, buffer_peak)


def _joined_in_many(fields: Sequence[tuple[float, ...]]) -> MemoryEffect:
    """The same in many plans. Bytes are whole numbers, so that sums are the same in any order."""
    plans = max(np.size(amount) for each in fields for amount in each)
    laid = np.zeros((4, len(fields) + 1, plans))
    for place, each in enumerate(fields, start=1):
        for field_, amount in zip(laid, each, strict=True):
            field_[place] = amount
    delta, peak, buffer_delta, buffer_peak = laid
    ends, buffer_ends = np.cumsum(delta, axis=0), np.cumsum(buffer_delta, axis=0)
    peak += ends - delta
    buffer_peak += buffer_ends - buffer_delta
    first = peak.argmax(axis=0)[None]
    found = (
        ends[-1],
        np.take_along_axis(peak, first, axis=0)[0],
        buffer_ends[-1],
        np.take_along_axis(buffer_peak, first, axis=0)[0],
    )
    return MemoryEffect(*(each.view(Many) for each in found))


@dataclass(frozen=True, slots=True)
class Border:
    """What crosses between two blocks of a stage: per value the number of its storage, and per
    storage its bytes and whether a block passed before keeps it for a later pass of its own."""

    storage: tuple[int, ...]
    sizes: tuple[int, ...]
    kept: tuple[bool, ...]

    @classmethod
    def arriving(cls, values: Sequence[Value]) -> Border:
        """The border at the start of an action: every value has a storage of its own."""
        sizes = tuple(value.type.size_bytes for value in values)
        return cls(tuple(range(len(sizes))), sizes, (False,) * len(sizes))


@dataclass(frozen=True, slots=True)
class _Return:
    """What crosses between two blocks on the way back: gradients, and the numbers of those storages
    of the forward border that a block passed before reads in its `W`."""

    gradients: Border
    awaited: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class _Arrived:
    """A storage that came over the forward border."""

    number: int


@dataclass(frozen=True, slots=True)
class _Given:
    """A storage that came over the backward border."""

    number: int


_Storage = Value | _Arrived | _Given
"""The storage of a value made here is that value, views aside."""


def storages(
    nodes: Sequence[Node], known: Mapping[Value, _Storage] | None = None
) -> dict[Value, _Storage]:
    """For every value that lives in another's storage, that storage."""
    found: dict[Value, _Storage] = dict(known or {})
    for node in nodes:
        op = node.op.op if isinstance(node.op, Sharded) else node.op
        if op.is_view:
            first = node.operands[0]
            found.update(dict.fromkeys(node.results, found.get(first, first)))
    return found


@dataclass(slots=True)
class _Walk:
    """Liveness over the nodes of one pass of a block.

    `present` storages, with their bytes, are there before and are this block's to free;
    `arriving` ones are added at the start. `kept` must not be freed, `leaving` not before the end.
    Other storages (parameters, inputs of the model) are none of this pass's business.
    """

    storage: Mapping[Value, _Storage]
    present: dict[_Storage, int]
    arriving: Collection[_Storage] = ()
    kept: Collection[_Storage] = ()
    leaving: Collection[_Storage] = ()
    buffers: Collection[_Storage] = ()

    def run(self, nodes: Sequence[Node]) -> MemoryEffect:
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
            for value in node.results:
                if value not in storage:
                    sizes[value] = value.type.size_bytes
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
    """A block with what crosses the border before it, where it lies in its stage."""

    run: BlockPasses
    border: Border
    first: bool
    last: bool


_Visits = tuple[tuple[_Visit, ...], Count]
"""A word of blocks, so often in a row, with the same borders each time."""


@dataclass(slots=True)
class ChainMemory:
    """Memory effects of stages, composed from those of their blocks, which are kept."""

    _composed: dict[Segment, Composed] = field(default_factory=dict[Segment, Composed])
    _words_down: dict[object, tuple[MemoryEffect, Border, tuple[_Visit, ...]]] = field(
        default_factory=dict[object, tuple[MemoryEffect, Border, tuple[_Visit, ...]]]
    )
    _words_up: dict[object, tuple[MemoryEffect, MemoryEffect, _Return]] = field(
        default_factory=dict[object, tuple[MemoryEffect, MemoryEffect, _Return]]
    )
    _forward: dict[object, tuple[MemoryEffect, Border]] = field(
        default_factory=dict[object, tuple[MemoryEffect, Border]]
    )
    _backward: dict[object, tuple[MemoryEffect, MemoryEffect, _Return]] = field(
        default_factory=dict[object, tuple[MemoryEffect, MemoryEffect, _Return]]
    )

    def stage(
        self, runs: Sequence[Run[BlockPasses]], places: Indices | None = None
    ) -> tuple[MemoryEffect, ...]:
        """Effects of the kinds of action on a stage: the forward pass, the whole backward pass, and
        its two parts if the blocks have them. Runs of different lengths in different plans are of
        plans at these `places` among those of the passes; raises `Uneven` where that decides what
        crosses borders."""
        forward, visits = self._down(runs, places)
        whole, _ = self._up(visits, places, splits=False)
        splits = len(runs[0][0][0]) > INPUT_PART
        parts = self._up(visits, places, splits=True) if splits else ()
        return (forward, whole, *parts)

    def _down(
        self, runs: Sequence[Run[BlockPasses]], places: Indices | None
    ) -> tuple[MemoryEffect, list[_Visits]]:
        effects: list[MemoryEffect] = []
        visits: list[_Visits] = []
        border = Border.arriving(runs[0][0][0][FORWARD].received)
        for place, (word, count) in enumerate(runs):
            ends = place + 1 == len(runs)
            left = count
            while is_left(left):
                last = ends and not is_left(left - 1)
                effect, after, own = self._word_down(word, border, not visits, last)
                repeats = after == border and bool(visits) and not last
                times = left - ends if repeats else 1
                effects.append(effect.at(places).times(times))
                visits.append((own, times))
                border, left = after, left - times
        return joined(effects), visits

    def _word_down(
        self, word: tuple[BlockPasses, ...], border: Border, first: bool, last: bool
    ) -> tuple[MemoryEffect, Border, tuple[_Visit, ...]]:
        key = (word, border, first, last)
        if key not in self._words_down:
            self._words_down[key] = self._went_down(word, border, first, last)
        return self._words_down[key]

    def _went_down(
        self, word: tuple[BlockPasses, ...], border: Border, first: bool, last: bool
    ) -> tuple[MemoryEffect, Border, tuple[_Visit, ...]]:
        effects: list[MemoryEffect] = []
        visits: list[_Visit] = []
        for place, run in enumerate(word):
            ends = first and place == 0, last and place + 1 == len(word)
            visits.append(_Visit(run, border, *ends))
            effect, border = self.forward(run[FORWARD], border, *ends)
            effects.append(effect)
        return joined(effects), border, tuple(visits)

    def _up(
        self, visits: Sequence[_Visits], places: Indices | None, splits: bool
    ) -> tuple[MemoryEffect, MemoryEffect]:
        """Effects of the backward pass as a whole and of nothing, or of its two parts."""
        early: list[MemoryEffect] = []
        late: list[MemoryEffect] = []
        border = _Return(Border.arriving(visits[-1][0][-1].run[BACKWARD].received))
        for word, count in reversed(visits):
            left = count
            while is_left(left):
                own_early, own_late, after = self._word_up(word, border, splits)
                times = left if after == border else 1
                early.append(own_early.at(places).times(times))
                late.append(own_late.at(places).times(times))
                border, left = after, left - times
        return joined(early), joined(late[::-1])

    def _word_up(
        self, word: tuple[_Visit, ...], border: _Return, splits: bool
    ) -> tuple[MemoryEffect, MemoryEffect, _Return]:
        key = (word, border, splits)
        if key not in self._words_up:
            self._words_up[key] = self._went_up(word, border, splits)
        return self._words_up[key]

    def _went_up(
        self, word: tuple[_Visit, ...], border: _Return, splits: bool
    ) -> tuple[MemoryEffect, MemoryEffect, _Return]:
        early: list[MemoryEffect] = []
        late: list[MemoryEffect] = []
        for visit in reversed(word):
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
            own = self.own(segment)
            numbers = [_Arrived(number) for number in border.storage]
            storage = storages(own.nodes, dict(zip(own.handed, numbers, strict=True)))
            saved = {storage.get(value, value) for value in segment.program.saved}
            sent = [storage.get(value, value) for value in own.handing]
            walk = _Walk(
                storage,
                {n: border.sizes[n.number] for n in numbers if not border.kept[n.number]},
                arriving=set(numbers) if first else (),
                kept=saved if last else {*saved, *sent},
                leaving=sent if last else (),
                buffers=_buffers(own, segment, storage),
            )
            effect = walk.run(own.nodes)
            sizes = {**walk.present, **{n: border.sizes[n.number] for n in numbers}}
            kept = saved | {n for n in numbers if border.kept[n.number]}
            self._forward[key] = effect, _border(sent, sizes, kept)
        return self._forward[key]

    def backward(
        self, visit: _Visit, border: _Return, splits: bool
    ) -> tuple[MemoryEffect, MemoryEffect, _Return]:
        """The effects of a block's backward pass, as a whole or in two parts, and the border
        before the block."""
        key = (visit.run, visit.border, border, visit.first, visit.last, splits)
        if key not in self._backward:
            kinds = (FORWARD, INPUT_PART, WEIGHT_PART) if splits else (FORWARD, BACKWARD)
            walk = _Backward.of(visit, border, [self.own(visit.run[kind]) for kind in kinds])
            self._backward[key] = walk.early(), walk.late(), walk.border()
        return self._backward[key]

    def own(self, segment: Segment) -> Composed:
        """The segment with values of its own; the same ones every time."""
        if segment not in self._composed:
            self._composed[segment] = composed(segment)
        return self._composed[segment]


_NOTHING = Composed((), (), ())


@dataclass(frozen=True, slots=True)
class _Backward:
    """Liveness over the backward pass of a block, as a whole (`second` is empty) or in two parts.

    `sizes` are the bytes of all storages that are there before or that the first part makes,
    `saved` those of them that are there, and this block's to free if nobody reads them in `W`:
    this block does (`read`), or one passed before (`awaited`).
    """

    visit: _Visit
    first: Composed
    second: Composed
    storage: Mapping[Value, _Storage]
    sizes: Mapping[_Storage, int]
    saved: Collection[_Storage]
    sent: Sequence[_Storage]
    read: Collection[_Storage]
    awaited: Collection[_Storage]
    buffers: Collection[_Storage]

    @classmethod
    def of(cls, visit: _Visit, back: _Return, passes: Sequence[Composed]) -> _Backward:
        """`passes` are the block's forward pass and its backward pass, or the parts of it."""
        arrived, gradients = visit.border, back.gradients
        before, first, second = (*passes, _NOTHING)[:3]
        inputs = [_Arrived(number) for number in arrived.storage]
        given = [_Given(number) for number in gradients.storage]
        storage = storages(
            (*before.nodes, *first.nodes, *second.nodes),
            {
                **dict(zip(before.handed, inputs, strict=True)),
                **dict(zip(first.handed, given, strict=True)),
                **(_gathered_storages(visit.run[WEIGHT_PART]) if second.nodes else {}),
            },
        )

        def roots(values: Iterable[Value]) -> list[_Storage]:
            return [storage.get(value, value) for value in values]

        made = {v for n in (*before.nodes, *first.nodes) for v in n.results if v not in storage}
        sizes: dict[_Storage, int] = {value: value.type.size_bytes for value in made}
        sizes.update((each, arrived.sizes[each.number]) for each in inputs)
        sizes.update((each, gradients.sizes[each.number]) for each in given)
        handed = dict.fromkeys(roots(before.handing))
        awaited = {each for number, each in enumerate(handed) if number in back.awaited}
        awaited.update(each for each in given if gradients.kept[each.number])
        saved = {
            each
            for each in roots(visit.run[FORWARD].program.saved)
            if each in sizes and not (isinstance(each, _Arrived) and arrived.kept[each.number])
        }
        buffers: set[_Storage] = set()
        kinds = (FORWARD, INPUT_PART, WEIGHT_PART) if len(passes) > 2 else (FORWARD, BACKWARD)
        for own, kind in zip(passes, kinds, strict=True):
            buffers |= _buffers(own, visit.run[kind], storage)
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
        """The whole pass, or its first part."""
        visit = self.visit
        given = {each for each in self.saved if isinstance(each, _Given)}
        held = {*self.read, *self.awaited}
        return _Walk(
            self.storage,
            {each: self.sizes[each] for each in self.saved},
            arriving=given if visit.last else (),
            kept=held if visit.first else {*held, *self.sent},
            leaving=self.sent if visit.first else (),
            buffers=self.buffers,
        ).run(self.first.nodes)

    def late(self) -> MemoryEffect:
        """The second part. Blocks passed before come after this one in it."""
        present = {each: self.sizes[each] for each in set(self.read) - set(self.awaited)}
        for value in self.second.handed:
            root = self.storage.get(value, value)
            assert isinstance(root, Value)
            present[root] = root.type.size_bytes
        return _Walk(
            self.storage,
            present,
            kept=[self.storage.get(value, value) for value in self.second.handing],
            buffers=self.buffers,
        ).run(self.second.nodes)

    def border(self) -> _Return:
        """What crosses to the block before."""
        held = {*self.read, *self.awaited}
        numbers = (each.number for each in held if isinstance(each, _Arrived))
        return _Return(_border(self.sent, self.sizes, held), frozenset(numbers))


def _gathered_storages(segment: Segment) -> dict[Value, _Storage]:
    """Where lives what the segment before has gathered for this one."""
    return {} if segment.first else storages(segment.own.gathers)


def _buffers(own: Composed, segment: Segment, storage: Mapping[Value, _Storage]) -> set[_Storage]:
    """Storages made for the loss or to move state; activations that cross a border are none."""
    made: set[_Storage] = {
        value for node in own.nodes if node.part is not Part.MODEL for value in node.results
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
