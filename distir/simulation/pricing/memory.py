"""The effect of actions on memory, composed of the effects of blocks (`liveness.py`).

The values that an action receives are there from its start, those that it sends until its end:
before its first block everything comes that crosses the border there, and behind its last one
everything goes.

The effect of a block depends on its neighbours only through its `Border`. So equal blocks are
walked until the border repeats, and the effect of the others is a multiple.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple, TypeVar

import numpy as np

from distir.arrays import Floats, Indices
from distir.cost.amounts import Many
from distir.ir.core import Value
from distir.plan.passes import BlockPasses, Segment
from distir.schedules import BACKWARD, FORWARD, INPUT_PART, WEIGHT_PART
from distir.simulation.pricing.liveness import BackwardBorder, Border, LiveBackward, LivePass
from distir.simulation.pricing.repeats import Count, RepeatedBlocks, any_left, require_even

_Block = TypeVar("_Block")
_Border = TypeVar("_Border")
_Found = TypeVar("_Found")


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
        higher = self.delta + other.peak > self.peak
        return MemoryEffect(
            self.delta + other.delta,
            self.delta + other.peak if higher else self.peak,
            self.buffer_delta + other.buffer_delta,
            self.buffer_delta + other.buffer_peak if higher else self.buffer_peak,
        )


class Turns(NamedTuple):
    """Effects one after the other, each as often as its count says. An effect has a row for each
    field of a `MemoryEffect`, or for those without buffers, and a column for each program size."""

    effects: Sequence[Floats]
    counts: Sequence[Count]


def in_turn(effects: Sequence[Floats], counts: Sequence[Count] = ()) -> Floats:
    """The effect of several effects, one after the other, each once or as often as its count says
    (see `Turns`), which is 0 for some at most. Bytes are whole numbers, so that sums are exact in
    any order."""
    if len(effects) == 1 and not counts:
        return effects[0]
    table = np.array(effects)
    if all(isinstance(each, int) and each == 1 for each in counts):
        return _added_up(table)
    times = np.empty((len(effects), table.shape[2]))
    for row, count in zip(times, counts, strict=True):
        row[:] = count
    return _added_up(table, times)


def each_in_turn(every: Sequence[Turns], sizes: Sequence[Indices]) -> Floats:
    """The effects of several sequences of effects without buffers, each at program sizes, of which
    its counts have a number: of shape (2, sizes), those of the first sequence first."""
    by_length: dict[int, list[int]] = {}
    for number, each in enumerate(every):
        by_length.setdefault(len(each.effects), []).append(number)
    ends = list(accumulate(map(len, sizes), initial=0))
    found, columns = np.empty((2, ends[-1])), np.arange(ends[-1])
    for numbers in by_length.values():
        own = [every[number] for number in numbers], [sizes[number] for number in numbers]
        places = [columns[ends[number] : ends[number + 1]] for number in numbers]
        found[:, np.concatenate(places)] = _equally_long(*own)
    return found


def _equally_long(every: Sequence[Turns], sizes: Sequence[Indices]) -> Floats:
    """`each_in_turn` of sequences of equally many effects."""
    known: dict[int, int] = {}
    effects: list[Floats] = []
    which: list[int] = []
    widths = [len(own) for own in sizes]
    times, first = np.empty((len(every[0].effects), sum(widths))), 0
    for each, width in zip(every, widths, strict=True):
        for row, effect, count in zip(times, each.effects, each.counts, strict=True):
            number = known.setdefault(id(effect), len(effects))
            if number == len(effects):
                effects.append(effect)
            which.append(number)
            row[first : first + width] = count
        first += width
    table: Floats = np.array(effects)
    firsts: Indices = table.shape[2] * np.array(which).reshape(len(every), -1).T
    places: Indices = firsts.repeat(widths, axis=1) + np.concatenate(sizes)
    own: Floats = table.transpose(1, 0, 2).reshape(2, -1).take(places, axis=1)
    return _added_up(own.transpose(1, 0, 2), times)


def _added_up(table: Floats, times: Floats | None = None) -> Floats:
    """The effect of effects in turn, of shape (effects, fields, program sizes), each so many
    `times`, of shape (effects, program sizes), or once."""
    deltas, peaks = table[:, ::2], table[:, 1::2]
    if times is not None:
        _repeat(deltas, peaks, times[:, None])
    ends = np.add.accumulate(deltas)
    found = np.empty(table.shape[1:])
    found[::2] = ends[-1]
    peaks += ends
    peaks -= deltas
    if len(found) == 2:
        np.maximum.reduce(peaks, out=found[1:])
    else:
        first = peaks[:, 0].argmax(axis=0)
        found[1::2] = peaks[first, :, np.arange(len(first))].T
    return found


def _repeat(deltas: Floats, peaks: Floats, times: Floats) -> None:
    """Makes effects those of so many copies in a row. Each is of shape (effects, 1 or 2, program
    sizes), and `times` of shape (effects, 1, program sizes); what comes nowhere has no peak."""
    peaks += deltas * ((deltas[:, :1] > 0) * (times - 1))
    if not times.all():
        peaks[:, :1][times == 0] = -np.inf
    deltas *= times


@dataclass(frozen=True, slots=True, eq=False)
class _Visit:
    """A block of a stage, with the border before it. Compared by identity."""

    passes: BlockPasses
    border: Border


_Down = tuple[tuple[Floats, tuple[_Visit, ...]], Border]
"""The effect of blocks in the forward pass, and themselves, visited; and the border after them."""

_Up = tuple[tuple[Floats, ...], BackwardBorder]
"""The effects of blocks in the whole backward pass, or in both of its parts, and the border before
them."""


@dataclass(slots=True)
class ChainMemory:
    """The memory effects of stages, composed of those of their blocks, which it keeps.

    If `num_sizes` is given, bytes are amounts with a number for each of so many program sizes, and
    buffers are not told apart.
    """

    num_sizes: int | None = None
    _borders: dict[object, Border] = field(default_factory=dict[object, Border])
    _starts: dict[object, Border] = field(default_factory=dict[object, Border])
    _ends: dict[object, Floats] = field(default_factory=dict[object, Floats])
    _visits: dict[object, _Visit] = field(default_factory=dict[object, _Visit])
    _live: dict[object, LivePass] = field(default_factory=dict[object, LivePass])
    _patterns_down: dict[object, _Down] = field(default_factory=dict[object, _Down])
    _patterns_up: dict[object, _Up] = field(default_factory=dict[object, _Up])
    _forward: dict[object, tuple[Floats, Border]] = field(
        default_factory=dict[object, tuple[Floats, Border]]
    )
    _backward: dict[object, _Up] = field(default_factory=dict[object, _Up])

    def stage(
        self,
        blocks: Sequence[RepeatedBlocks[BlockPasses]],
        cost_kinds: Collection[int] | None = None,
    ) -> dict[int, MemoryEffect]:
        """The effects of a stage's actions, by cost kind. If not all that the blocks have
        are wanted, these are `cost_kinds`."""
        return self.effects(self.turns(blocks, cost_kinds))

    def effects(self, turns: Mapping[int, Turns]) -> dict[int, MemoryEffect]:
        """What actions that are given by their cost kinds come to, at all program sizes."""
        every = {kind: in_turn(own.effects, own.counts) for kind, own in turns.items()}
        return {kind: MemoryEffect(*self._amounts(effect)) for kind, effect in every.items()}

    def turns(
        self,
        blocks: Sequence[RepeatedBlocks[BlockPasses]],
        cost_kinds: Collection[int] | None = None,
    ) -> dict[int, Turns]:
        """What is held in turn in a stage's actions, by cost kind; see `stage`.

        If numbers of copies are arrays, they describe several stages; between other patterns there
        may be none in some stages. Raises `Uneven` if values that cross borders depend on the
        number of copies.
        """
        forward, visits = self._down(blocks)
        found = {FORWARD: forward}
        for kinds in ((BACKWARD,), (INPUT_PART, WEIGHT_PART)):
            if kinds[0] in (cost_kinds or range(len(blocks[0][0][0]))):
                found |= zip(kinds, self._up(visits, splits=len(kinds) > 1), strict=True)
        return found

    def after_forward(self, blocks: Sequence[RepeatedBlocks[BlockPasses]]) -> float:
        """Bytes that the forward pass of a stage leaves behind."""
        forward, _ = self._down(blocks)
        return self._amounts(in_turn(forward.effects, forward.counts))[0]

    def _amounts(self, effect: Floats) -> Sequence[Any]:
        """The fields of a `MemoryEffect`."""
        return effect[:, 0].tolist() if self.num_sizes is None else [*effect.view(Many)]

    def _down(
        self, blocks: Sequence[RepeatedBlocks[BlockPasses]]
    ) -> tuple[Turns, list[RepeatedBlocks[_Visit]]]:
        """The forward pass of a stage, and its blocks with their borders."""
        start = self._start(blocks[0][0][0][FORWARD].received)
        found, counts, end = _walked(blocks, start, self._pattern_down)
        effects, visited = zip(*found, strict=True)
        action = self._action(start, effects, counts, end)
        return action, list(zip(visited, counts, strict=True))

    def _pattern_down(self, pattern: tuple[BlockPasses, ...], border: Border) -> _Down:
        """One copy of a pattern in the forward pass, with the border before it."""
        key = (pattern, border)
        found = self._patterns_down.get(key)
        if found is None:
            effects: list[Floats] = []
            visits: list[_Visit] = []
            for passes in pattern:
                visit = (passes, border)
                visits.append(self._visits.setdefault(visit, _Visit(*visit)))
                effect, border = self._block_down(passes[FORWARD], border)
                effects.append(effect)
            found = self._patterns_down[key] = (in_turn(effects), tuple(visits)), border
        return found

    def _block_down(self, segment: Segment, border: Border) -> tuple[Floats, Border]:
        """The effect of a block's forward pass, and the border after it."""
        key = (segment, border)
        found = self._forward.get(key)
        if found is None:
            effect, after = self._live_pass(segment, border).forward(border)
            found = self._forward[key] = effect, self._only(after)
        return found

    def _up(self, visits: Sequence[RepeatedBlocks[_Visit]], splits: bool) -> tuple[Turns, ...]:
        """A stage's backward pass, or both of its parts."""
        start = BackwardBorder(self._start(visits[-1][0][-1].passes[BACKWARD].received))
        visit = partial(self._pattern_up, splits=splits)
        found, counts, end = _walked(visits[::-1], start, visit)
        early, *late = zip(*found, strict=True)
        first = self._action(start.gradients, early, counts, end.gradients)
        return first, *[Turns(each[::-1], counts[::-1]) for each in late]

    def _pattern_up(self, pattern: tuple[_Visit, ...], border: BackwardBorder, splits: bool) -> _Up:
        """One copy of a pattern in the backward pass, with the border behind it. Of the second part
        the first block comes first."""
        key = (pattern, border, splits)
        found = self._patterns_up.get(key)
        if found is None:
            parts: list[tuple[Floats, ...]] = []
            for visit in reversed(pattern):
                effects, border = self._block_up(visit, border, splits)
                parts.append(effects)
            early, *late = zip(*parts, strict=True)
            effects = in_turn(early), *[in_turn(each[::-1]) for each in late]
            found = self._patterns_up[key] = effects, border
        return found

    def _block_up(self, visit: _Visit, border: BackwardBorder, splits: bool) -> _Up:
        """The effects of a block in the backward pass, and the border before it."""
        before, kinds = visit.border, (INPUT_PART, WEIGHT_PART) if splits else (BACKWARD,)
        # What was gathered in the forward pass for the block behind is not there any more.
        forward = visit.passes[FORWARD]._replace(following=None)
        parts = [visit.passes[kind] for kind in kinds]
        key = (forward, *parts, before, border)
        found = self._backward.get(key)
        if found is None:
            borders = before, border.gradients, None
            passes = map(self._live_pass, (forward, *parts), borders)
            live = LiveBackward.of(list(passes), before, border)
            gradients, awaited = live.border()
            found = live.effects(), BackwardBorder(self._only(gradients), awaited)
            self._backward[key] = found
        return found

    def _live_pass(self, segment: Segment, border: Border | None) -> LivePass:
        """A pass of a block. Over the border come the values that it is handed."""
        numbers = None if border is None else border.storage
        key = (segment, numbers)
        found = self._live.get(key)
        if found is None:
            found = self._live[key] = LivePass.of(segment, numbers, self.num_sizes)
        return found

    def _start(self, values: tuple[Value, ...]) -> Border:
        """The border at the start of an action, where every value has its own storage."""
        found = self._starts.get(values)
        if found is None:
            sizes = {value: value.type.size_bytes for value in values}
            border = Border.of(values, sizes, (), self.num_sizes or 1)
            found = self._starts[values] = self._only(border)
        return found

    def _action(
        self,
        first: Border,
        effects: Sequence[Floats],
        counts: Sequence[Count],
        last: Border,
    ) -> Turns:
        """An action between its first and its last border."""
        every = [self._end(first, first=True), *effects, self._end(last, first=False)]
        return Turns(every, [1, *counts, 1])

    def _end(self, border: Border, *, first: bool) -> Floats:
        """The effect of receiving all that crosses the first border of an action, or of sending
        all that crosses the last one, but for what is kept."""
        key = (border, first)
        found = self._ends.get(key)
        if found is None:
            rows = 4 if self.num_sizes is None else 2
            found = self._ends[key] = np.zeros((rows, border.sizes.shape[1]))
            if first:
                found[:2] = border.sizes.sum(axis=0)
            else:
                found[0] = -border.sizes[~np.array(border.kept, np.bool_)].sum(axis=0)
        return found

    def _only(self, border: Border) -> Border:
        """The border, or the equal one that was there before."""
        return self._borders.setdefault(border.key, border)


def _walked(
    chain: Sequence[RepeatedBlocks[_Block]],
    border: _Border,
    visit: Callable[[tuple[_Block, ...], _Border], tuple[_Found, _Border]],
) -> tuple[list[_Found], list[Count], _Border]:
    """What is found of patterns in turn, one copy or several in a row each time, the numbers of
    these copies, and the border at the end. All copies behind one that leaves the border as it was
    are alike."""
    found: list[_Found] = []
    counts: list[Count] = []
    for pattern, count in chain:
        left = count
        while any_left(left):
            own, after = visit(pattern, border)
            found.append(own)
            if after == border:
                counts.append(left)
                break
            require_even(left)
            counts.append(1)
            border, left = after, left - 1
    return found, counts, border


__all__ = ["ChainMemory", "MemoryEffect", "Turns", "each_in_turn", "in_turn"]
