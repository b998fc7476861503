"""Wave programs: the waves of a schedule as index arrays, with which many plans run at once.

The actions of a wave (`schedules/compiled/waves.py`) are one operation on arrays that have a row
per rank, link or message and a column per plan. A wave program says which rows; it is the same for
all plans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, pairwise
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from distir.schedules import BACKWARD, COST_KINDS, FORWARD, CompiledSchedule
from distir.schedules.compiled.waves import Passes, WaveAction, WaveLoop, Waves, find_waves

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Index: TypeAlias = "slice | Ints"


@dataclass(frozen=True, slots=True)
class Wave:
    """The actions of a wave: those that read a message first, those that send one side by side.
    Indices are slices where possible; messages are numbered within their part."""

    ranks: Index
    costs: Index
    readers: Index
    reading: int
    """The number of actions that read a message."""
    read: slice
    read_costs: Index
    """Positions in `WaveProgram.sent_costs` of the passes that send the messages."""
    senders: Index
    sending: slice
    sent: slice
    links: Index
    sent_costs: Index
    first: tuple[tuple[int, int], ...]
    """For actions that are the first of a rank: their positions in the wave, and the ranks."""
    last: tuple[tuple[int, int], ...]
    """For actions that complete gradients: their positions in the wave, and rows of the state."""


@dataclass(frozen=True, slots=True)
class WavePart:
    """Consecutive waves, with the slots of the messages that they read and send."""

    waves: tuple[Wave, ...]
    read: Ints
    sent: Ints
    busiest: int
    """The number of actions on the rank that has most."""
    actions: int
    last: Ints
    """Rows of the state with the starts of the actions that complete gradients."""


@dataclass(frozen=True, slots=True)
class RepeatedPart:
    """A part that is repeated. The slots of a channel are a ring, in which messages move on with
    every repeat."""

    part: WavePart
    times: int
    read_turn: tuple[Ints, Ints, Ints, Ints]
    """Per message that is read: the first slot of its channel, its number, the channel's messages
    per repeat, and the size of the ring."""
    sent_turn: tuple[Ints, Ints, Ints, Ints]
    live_turn: tuple[Ints, Ints, Ints, Ints]
    """As `read_turn`, for messages that are under way between repeats."""
    repetitions: tuple[tuple[int, int], ...]
    """Per rank the number of its repeated pattern, and the copies of the pattern in a repeat."""


@dataclass(frozen=True, slots=True, eq=False)
class WaveProgram:
    """A schedule as index arrays.

    The rows of the state are, in order: per rank, when it is free, its seconds of waiting for
    stages, its beginning, and the part of that in which a message was on its way; per stage of a
    rank, the start of the action that completes its gradients; when links are free; when messages
    arrive; when they left. The seconds of waiting for transfers are the rest of a rank's time.
    """

    ranks: int
    kept: int
    links: slice
    arrived: slice
    left: slice
    size: int
    costs: Ints
    """The cost numbers of the schedule."""
    sent_costs: Ints
    """The cost numbers of passes that send a message."""
    sending_costs: Ints
    """The cost numbers whose seconds are those of actions, or pairs of them, that send one."""
    parts: tuple[tuple[WavePart, RepeatedPart | None], ...]
    """The parts, each with the repeated part that follows it, if there is one."""
    actions: int
    """The number of actions in a wave, on average."""

    def without_queues(self) -> WaveProgram:
        """The program for plans whose messages never wait for each other. A message then arrives
        its own seconds after it left, so the state has no rows for arrivals and links."""
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
    """The slots of messages when rings have turned `repeat` times (see
    `RepeatedPart.read_turn`)."""
    first, number, messages, ring = turn
    return first + (number + repeat * messages) % ring


def find_program(compiled: CompiledSchedule) -> WaveProgram | None:
    """The wave program of a schedule; None if microbatches overtake each other."""
    waves = find_waves(compiled)
    return None if waves is None else _Builder(compiled, waves).program()


@lru_cache(maxsize=1 << 12)
def _index(numbers: tuple[int, ...]) -> Index:
    """The numbers as a slice if they go up by equal steps, else as an array. Waves of all schedules
    share these."""
    steps = {b - a for a, b in pairwise(numbers)} or {1}
    if not numbers or len(steps) > 1 or min(steps) < 1:
        found = np.array(numbers, np.int64)
        found.setflags(write=False)
        return found if numbers else slice(0, 0)
    return slice(min(numbers), max(numbers) + 1, *steps)


@lru_cache(maxsize=1 << 12)
def _next(first: int, count: int) -> slice:
    """A slice of `count` numbers."""
    return slice(first, first + count)


class _Builder:
    """Makes the wave program of a schedule."""

    def __init__(self, compiled: CompiledSchedule, waves: Waves) -> None:
        self.waves = waves
        self.ranks = len(compiled.stages_of_ranks)
        self.last_row: dict[tuple[int, int], int] = {}
        for rank, own in enumerate(compiled.stages_of_ranks):
            for stage in own:
                self.last_row[rank, stage] = 4 * self.ranks + len(self.last_row)
        self.rings = np.maximum(np.array(waves.most_under_way, np.int64), 1)
        self.passes = passes = Passes(compiled)
        costs = sorted(
            {cost for own in compiled.timed_costs for pattern, _ in own for cost in pattern}
        )
        self.cost_row = {cost: row for row, cost in enumerate(costs)}
        sent = sorted({each.sender[1] for each in waves.channels})
        self.sent_row = {cost: row for row, cost in enumerate(sent)}
        self.sent_rows = [self.sent_row[each.sender[1]] for each in waves.channels]
        self.links = [each.link for each in waves.channels]
        joined = compiled.stages * COST_KINDS  # cost numbers of overlapped pairs
        self.sending = [
            cost - BACKWARD + FORWARD if cost >= joined and cost % COST_KINDS == BACKWARD else cost
            for cost in costs
            if passes.sent(cost) in self.sent_row
        ]
        self.first_slots = np.cumsum(self.rings) - self.rings

    def program(self) -> WaveProgram:
        parts: list[tuple[WavePart, RepeatedPart | None]] = []
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
            sending_costs=np.array(self.sending, np.int64),
            parts=tuple(parts),
            actions=sum(map(len, self.waves.waves)) // len(self.waves.waves),
        )

    def _repeat(self, loop: WaveLoop) -> RepeatedPart:
        turns = list(chain.from_iterable(map(_ordered, loop.waves)))
        live = [(channel, i) for channel, each in enumerate(loop.under_way) for i in each]
        messages = np.array(loop.messages, np.int64)
        return RepeatedPart(
            self._part(loop.waves),
            loop.times,
            self._turn([(t.reads, t.read) for t in turns if t.reads >= 0], messages),
            self._turn([(t.sends, t.sent) for t in turns if t.sends >= 0], messages),
            # Messages under way after the loop were under way before it too, one turn earlier.
            self._turn(live, messages),
            loop.repetitions,
        )

    def _turn(
        self, places: Sequence[tuple[int, int]], messages: Ints
    ) -> tuple[Ints, Ints, Ints, Ints]:
        channels = np.array([channel for channel, _ in places], np.int64)
        numbers = np.array([number for _, number in places], np.int64)
        return self.first_slots[channels], numbers, messages[channels], self.rings[channels]

    def _part(self, waves: Sequence[tuple[WaveAction, ...]]) -> WavePart:
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
        return WavePart(
            waves=tuple(made),
            read=slots_of(read, 0),
            sent=slots_of(sent, 0),
            busiest=int(counts.max()),
            actions=len(turns),
            last=np.array([row for wave in made for _, row in wave.last], np.int64),
        )

    def _wave(self, wave: Sequence[WaveAction], reads: int, sends: int) -> Wave:
        readers = [turn for turn in wave if turn.reads >= 0]
        senders = [turn for turn in wave if turn.sends >= 0]
        return Wave(
            ranks=_index(tuple([turn.rank for turn in wave])),
            costs=_index(tuple([self.cost_row[turn.cost] for turn in wave])),
            readers=_index(tuple([turn.rank for turn in readers])),
            reading=len(readers),
            read=_next(reads, len(readers)),
            read_costs=_index(tuple([self.sent_rows[turn.reads] for turn in readers])),
            senders=_index(tuple([turn.rank for turn in senders])),
            sending=_next(wave.index(senders[0]) if senders else 0, len(senders)),
            sent=_next(sends, len(senders)),
            links=_index(tuple([self.links[turn.sends] for turn in senders])),
            sent_costs=_index(tuple([self.sent_rows[turn.sends] for turn in senders])),
            first=tuple([(i, turn.rank) for i, turn in enumerate(wave) if turn.first]),
            last=tuple(
                [
                    (i, self.last_row[turn.rank, self.passes.stage(turn.cost)])
                    for i, turn in enumerate(wave)
                    if turn.last
                ]
            ),
        )


def _ordered(wave: Sequence[WaveAction]) -> list[WaveAction]:
    """The actions of a wave, ordered so that those that read come first and those that send stand
    side by side; then by rank."""
    return sorted(wave, key=_order)


def _order(turn: WaveAction) -> tuple[bool, bool, int]:
    reads, sends = turn.reads >= 0, turn.sends >= 0
    return not reads, sends == reads, turn.rank


__all__ = [
    "Floats",
    "Index",
    "Ints",
    "RepeatedPart",
    "Wave",
    "WavePart",
    "WaveProgram",
    "find_program",
    "slots_of",
]
