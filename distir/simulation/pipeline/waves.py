"""A schedule's waves as index arrays, to run many plans with it at once: a program of waves.

Actions that may run at the same time (`schedules/waves.py`) are one operation on arrays, with a row
per rank, link or message and a column per plan. Here is what is the same for all plans: which rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, pairwise
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from distir.schedules import COST_KINDS, CompiledSchedule
from distir.schedules.compiled.waves import WaveAction, WaveLoop, Waves, find_waves

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Index: TypeAlias = "slice | Ints"


@dataclass(frozen=True, slots=True)
class Wave:
    """Actions of a wave: readers first, senders next to each other. Indices of arrays are slices
    where they can be; messages are numbered over the loop or the whole schedule."""

    ranks: Index
    costs: Index
    readers: Index
    reading: int
    """How many of the actions read."""
    read: slice
    read_costs: Index
    """Of the messages, among `WaveProgram.sent_costs`."""
    senders: Index
    sending: slice
    sent: slice
    links: Index
    sent_costs: Index
    first: tuple[tuple[int, int], ...]
    """Place in the wave and rank of what is a rank's first action."""
    last: tuple[tuple[int, int], ...]
    """Place in the wave and row in the state of actions in which gradients are complete."""


@dataclass(frozen=True, slots=True)
class Part:
    """Waves that follow each other, with the slots in which their messages are read and put."""

    waves: tuple[Wave, ...]
    read: Ints
    sent: Ints
    busiest: int
    """Actions on the rank with most."""
    actions: int
    last: Ints
    """Rows of the state that say when actions start in which gradients are complete."""


@dataclass(frozen=True, slots=True)
class Repeat:
    """A part that is repeated. A channel's slots are a ring; messages turn round in it."""

    part: Part
    times: int
    read_turn: tuple[Ints, Ints, Ints, Ints]
    """First slot of the channel, number of the message, messages in a repeat, size of the ring."""
    sent_turn: tuple[Ints, Ints, Ints, Ints]
    live_turn: tuple[Ints, Ints, Ints, Ints]
    """The same for messages under way between repeats."""
    repetitions: tuple[tuple[int, int], ...]
    """Per rank the run of words it is in, and how many of them it says each time."""


@dataclass(frozen=True, slots=True, eq=False)
class WaveProgram:
    """A schedule as index arrays. A column of the state: free, waited for stage, begin, begin
    moving (of each rank), last gradients; links; when messages arrive; when they left. What ranks
    waited for transfers is the rest of their time."""

    ranks: int
    kept: int
    links: slice
    arrived: slice
    left: slice
    size: int
    costs: Ints
    """Costs that there are."""
    sent_costs: Ints
    """Costs of actions that send."""
    parts: tuple[tuple[Part, Repeat | None], ...]
    """Each with what is repeated after it, if anything."""
    actions: int
    """Of a wave, on average."""

    def without_queues(self) -> WaveProgram:
        """The same where messages never wait for each other: they arrive as long after they left
        as they take, so that neither this nor when links are free is put down."""
        count = self.left.stop - self.left.start
        none = slice(self.kept, self.kept)
        return replace(
            self,
            links=none,
            arrived=none,
            left=slice(self.kept, self.kept + count),
            size=self.kept + count,
        )

    @property
    def queues(self) -> bool:
        """Whether messages may wait for each other."""
        return self.arrived.stop > self.arrived.start


def slots_of(turn: tuple[Ints, Ints, Ints, Ints], repeat: int) -> Ints:
    """Where messages are when rings have turned so often (`Repeat.read_turn`)."""
    first, number, messages, ring = turn
    return first + (number + repeat * messages) % ring


def find_program(compiled: CompiledSchedule) -> WaveProgram | None:
    """The schedule as a program of waves, or None where microbatches overtake each other."""
    waves = find_waves(compiled)
    return None if waves is None else _Builder(compiled, waves).program()


@lru_cache(maxsize=1 << 12)
def _index(numbers: tuple[int, ...]) -> Index:
    """A slice if the numbers go up by equal steps. Waves of all schedules share theirs."""
    steps = {b - a for a, b in pairwise(numbers)} or {1}
    if not numbers or len(steps) > 1 or min(steps) < 1:
        found = np.array(numbers, np.int64)
        found.setflags(write=False)
        return found if numbers else slice(0, 0)
    return slice(min(numbers), max(numbers) + 1, *steps)


@lru_cache(maxsize=1 << 12)
def _next(first: int, count: int) -> slice:
    """So many numbers in a row."""
    return slice(first, first + count)


class _Builder:
    """Makes index arrays of turns."""

    def __init__(self, compiled: CompiledSchedule, waves: Waves) -> None:
        self.waves = waves
        self.ranks = len(compiled.stages_of_ranks)
        self.last_row: dict[tuple[int, int], int] = {}
        for rank, own in enumerate(compiled.stages_of_ranks):
            for stage in own:
                self.last_row[rank, stage] = 4 * self.ranks + len(self.last_row)
        self.rings = np.maximum(np.array(waves.most_under_way, np.int64), 1)
        costs = sorted(
            {cost for runs in compiled.repeated_costs for word, _ in runs for cost in word}
        )
        self.cost_row = {cost: row for row, cost in enumerate(costs)}
        sent = sorted({each.sender[1] for each in waves.channels})
        self.sent_row = {cost: row for row, cost in enumerate(sent)}
        self.first_slots = np.cumsum(self.rings) - self.rings

    def program(self) -> WaveProgram:
        parts: list[tuple[Part, Repeat | None]] = []
        done = 0
        for loop in self.waves.loops:
            parts.append((self._part(self.waves.waves[done : loop.end]), self._repeat(loop)))
            done = loop.end
        parts.append((self._part(self.waves.waves[done:]), None))
        kept, slots = 4 * self.ranks + len(self.last_row), int(self.rings.sum())
        links = kept + self.waves.num_links
        return WaveProgram(
            ranks=self.ranks,
            kept=kept,
            links=slice(kept, links),
            arrived=slice(links, links + slots),
            left=slice(links + slots, links + 2 * slots),
            size=links + 2 * slots,
            costs=np.array([*self.cost_row], np.int64),
            sent_costs=np.array([*self.sent_row], np.int64),
            parts=tuple(parts),
            actions=sum(map(len, self.waves.waves)) // len(self.waves.waves),
        )

    def _repeat(self, loop: WaveLoop) -> Repeat:
        turns = list(chain.from_iterable(map(_ordered, loop.waves)))
        live = [(channel, i) for channel, each in enumerate(loop.under_way) for i in each]
        messages = np.array(loop.messages, np.int64)
        return Repeat(
            self._part(loop.waves),
            loop.times,
            self._turn([(t.reads, t.read) for t in turns if t.reads >= 0], messages),
            self._turn([(t.sends, t.sent) for t in turns if t.sends >= 0], messages),
            # those under way after the loop's waves were under way, turned back, before them
            self._turn(live, messages),
            loop.repetitions,
        )

    def _turn(
        self, places: Sequence[tuple[int, int]], messages: Ints
    ) -> tuple[Ints, Ints, Ints, Ints]:
        channels = np.array([channel for channel, _ in places], np.int64)
        numbers = np.array([number for _, number in places], np.int64)
        return self.first_slots[channels], numbers, messages[channels], self.rings[channels]

    def _part(self, waves: Sequence[tuple[WaveAction, ...]]) -> Part:
        none = np.zeros(len(self.rings), np.int64)
        ordered = [_ordered(wave) for wave in waves]
        turns = list(chain.from_iterable(ordered))
        read = self._turn([(t.reads, t.read) for t in turns if t.reads >= 0], none)
        sent = self._turn([(t.sends, t.sent) for t in turns if t.sends >= 0], none)
        made: list[Wave] = []
        reads = sends = 0
        for wave in ordered:
            made.append(self._wave(wave, reads, sends))
            reads, sends = made[-1].read.stop, made[-1].sent.stop
        counts = np.bincount([turn.rank for turn in turns], minlength=1)
        return Part(
            waves=tuple(made),
            read=slots_of(read, 0),
            sent=slots_of(sent, 0),
            busiest=int(counts.max()),
            actions=len(turns),
            last=np.array([row for wave in made for _, row in wave.last], np.int64),
        )

    def _wave(self, wave: Sequence[WaveAction], reads: int, sends: int) -> Wave:
        channels = self.waves.channels
        readers = [turn for turn in wave if turn.reads >= 0]
        senders = [turn for turn in wave if turn.sends >= 0]
        from_ = next((i for i, turn in enumerate(wave) if turn.sends >= 0), 0)
        return Wave(
            ranks=_index(tuple(turn.rank for turn in wave)),
            costs=_index(tuple(self.cost_row[turn.cost] for turn in wave)),
            readers=_index(tuple(turn.rank for turn in readers)),
            reading=len(readers),
            read=_next(reads, len(readers)),
            read_costs=_index(
                tuple(self.sent_row[channels[turn.reads].sender[1]] for turn in readers)
            ),
            senders=_index(tuple(turn.rank for turn in senders)),
            sending=_next(from_, len(senders)),
            sent=_next(sends, len(senders)),
            links=_index(tuple(channels[turn.sends].link for turn in senders)),
            sent_costs=_index(tuple(self.sent_row[turn.cost] for turn in senders)),
            first=tuple((i, turn.rank) for i, turn in enumerate(wave) if turn.first),
            last=tuple(
                (i, self.last_row[turn.rank, turn.cost // COST_KINDS])
                for i, turn in enumerate(wave)
                if turn.last
            ),
        )


def _ordered(wave: Sequence[WaveAction]) -> list[WaveAction]:
    """Readers first, senders next to each other, then by rank."""
    order = {(True, False): 0, (True, True): 1, (False, True): 2, (False, False): 3}
    return sorted(wave, key=lambda turn: (order[turn.reads >= 0, turn.sends >= 0], turn.rank))


__all__ = [
    "Floats",
    "Index",
    "Ints",
    "Part",
    "Repeat",
    "Wave",
    "WaveProgram",
    "find_program",
    "slots_of",
]
