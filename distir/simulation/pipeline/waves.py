"""Wave programs: the waves of a schedule as index arrays, with which many plans run at once.

The actions of a wave (`schedules/compiled/waves.py`) are one operation on arrays that have a row
per rank, link or message and a column per plan. A wave program says which rows; it is the same for
all plans."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from distir.arrays import Flags
from distir.schedules import BACKWARD, COST_KINDS, FORWARD, CompiledSchedule
from distir.schedules.compiled.waves import WaveActions, WaveLoop, Waves, find_waves

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Index: TypeAlias = "slice | Ints"
Turn: TypeAlias = tuple[Ints, Ints, Ints, Ints]
"""Of messages the first slot of each one's channel, its number, the channel's messages per repeat,
and the size of the ring."""


class Wave(NamedTuple):
    """The actions of a wave: those that read a message first, those that send one side by side.
    Indices are slices where possible; messages are numbered within their part. Programs have many
    waves, so they are made as tuples are."""

    ranks: Index
    readers: Index
    reading: int
    """The number of actions that read a message."""
    read: slice
    senders: Index
    sending: slice
    sent: slice
    links: Index
    first: tuple[tuple[int, int], ...]
    """For actions that are the first of a rank: their positions in the wave, and the ranks."""
    last: tuple[tuple[int, int], ...]
    """For actions that complete gradients: their positions in the wave, and rows of the state."""


class WavePiece(NamedTuple):
    """Consecutive waves of a part, whose costs are looked up together."""

    waves: tuple[Wave, ...]
    costs: Ints
    """Positions in `WaveProgram.costs` of the actions, one wave after the other."""
    read_costs: Ints
    """Positions in `WaveProgram.sent_costs` of the passes that send the messages that are read."""
    sent_costs: Ints
    """Positions there of the passes that send messages."""


@dataclass(frozen=True, slots=True)
class WavePart:
    """Consecutive waves, with the slots of the messages that they read and send."""

    whole: WavePiece
    read: Ints
    sent: Ints
    busiest: int
    """The number of actions on the rank that has most."""
    ends: Ints
    """The number of actions up to the end of each wave."""
    last: Ints
    """Rows of the state with the starts of the actions that complete gradients."""

    @property
    def actions(self) -> int:
        """The number of actions."""
        return len(self.whole.costs)

    def pieces(self, most: int) -> Iterator[WavePiece]:
        """The waves, in pieces with about so many actions."""
        if self.actions <= most:
            yield self.whole
            return
        waves, costs, read_costs, sent_costs = self.whole
        borders = np.searchsorted(self.ends, np.arange(most, self.actions, most), "right")
        different = sorted({0, *borders.tolist(), len(waves)})
        begins = [0, *self.ends.tolist()]
        for begin, end in pairwise(different):
            first, last = waves[begin], waves[end - 1]
            yield WavePiece(
                waves[begin:end],
                costs[begins[begin] : begins[end]],
                read_costs[first.read.start : last.read.stop],
                sent_costs[first.sent.start : last.sent.stop],
            )


@dataclass(frozen=True, slots=True)
class RepeatedPart:
    """A part that is repeated. The slots of a channel are a ring, in which messages move on with
    every repeat."""

    part: WavePart
    times: int
    read_turn: Turn
    """Of the messages that are read."""
    sent_turn: Turn
    live_turn: Turn
    """Of the messages that are under way between repeats."""
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


def slots_of(turn: Turn, repeat: int) -> Ints:
    """The slots of messages when rings have turned `repeat` times."""
    first, number, messages, ring = turn
    return first + (number + repeat * messages) % ring


def find_program(compiled: CompiledSchedule) -> WaveProgram | None:
    """The wave program of a schedule; None if microbatches overtake each other."""
    waves = find_waves(compiled)
    return None if waves is None else _Builder(compiled, waves).program()


class _Builder:
    """Makes the wave program of a schedule."""

    def __init__(self, compiled: CompiledSchedule, waves: Waves) -> None:
        self.channels, self.loops, self.num_links = waves.channels, waves.loops, waves.num_links
        self.actions = actions = _ordered(waves.actions)
        self.passes = passes = waves.passes
        self.held = compiled.stages_of_ranks
        self.kept = 4 * len(self.held) + sum(map(len, self.held))
        self.rings = np.maximum(np.array(waves.most_under_way, np.int64), 1)
        self.first_slots = np.cumsum(self.rings) - self.rings
        self.costs: Ints = np.flatnonzero(np.bincount(actions.cost))
        sent = np.array([each.sender[1] for each in waves.channels], np.int64)
        is_sent = np.bincount(sent, minlength=len(passes.sent) + 1) > 0  # and in the end no pass
        self.sent_costs: Ints = np.flatnonzero(is_sent)
        self.sent_rows = np.searchsorted(self.sent_costs, sent)
        """Of each channel the row of the passes that send on it."""
        sending = self.costs[is_sent[passes.sent[self.costs]]]
        of_pairs = sending >= compiled.stages * COST_KINDS
        ends_pair = of_pairs & (passes.kinds[sending] == BACKWARD)
        self.sending: Ints = sending - (BACKWARD - FORWARD) * ends_pair

    def program(self) -> WaveProgram:
        """The program."""
        waves = self._waves()
        parts: list[tuple[WavePart, RepeatedPart | None]] = []
        done = repeated = 0
        for loop in self.loops:
            parts.append((self._part(waves, done, loop.begin), self._repeat(waves, loop)))
            done = loop.end
            repeated += loop.end - loop.begin
        parts.append((self._part(waves, done, len(waves)), None))
        once = sum(part.actions for part, _ in parts)
        slots, links = int(self.rings.sum()), self.kept + self.num_links
        return WaveProgram(
            ranks=len(self.held),
            kept=self.kept,
            links=slice(self.kept, links),
            arrived=slice(links, links + slots),
            left=slice(links + slots, links + 2 * slots),
            size=links + 2 * slots,
            costs=self.costs,
            sent_costs=self.sent_costs,
            sending_costs=self.sending,
            parts=tuple(parts),
            actions=once // (len(waves) - repeated),
        )

    def _part(self, waves: Sequence[Wave], begin: int, end: int) -> WavePart:
        """The part that these waves are."""
        own = slice(*self.actions.edges[[begin, end]].tolist())
        none = np.zeros(len(self.rings), np.int64)
        read, sent = self._turns(own, none)
        ranks = self.actions.rank[own]
        actions = self.actions
        costs = np.searchsorted(self.costs, actions.cost[own])
        reads, sends = actions.reads[own], actions.sends[own]
        return WavePart(
            whole=WavePiece(
                tuple(waves[begin:end]),
                costs,
                self.sent_rows[reads[reads >= 0]],
                self.sent_rows[sends[sends >= 0]],
            ),
            read=slots_of(read, 0),
            sent=slots_of(sent, 0),
            busiest=int(np.bincount(ranks, minlength=1).max()),
            ends=actions.edges[begin + 1 : end + 1] - actions.edges[begin],
            last=np.array([row for wave in waves[begin:end] for _, row in wave.last], np.int64),
        )

    def _repeat(self, waves: Sequence[Wave], loop: WaveLoop) -> RepeatedPart:
        """The part that a loop repeats."""
        messages = np.array(loop.messages, np.int64)
        own = slice(*self.actions.edges[[loop.begin, loop.end]].tolist())
        read, sent = self._turns(own, messages)
        lengths = [*map(len, loop.under_way)]
        live = np.array([*chain.from_iterable(loop.under_way)], np.int64)
        return RepeatedPart(
            self._part(waves, loop.begin, loop.end),
            loop.times,
            read,
            sent,
            # Messages under way after the loop were under way before it too, one turn earlier.
            self._turn(np.repeat(np.arange(len(lengths)), lengths), live, messages),
            loop.repetitions,
        )

    def _turns(self, own: slice, messages: Ints) -> tuple[Turn, Turn]:
        """The turns of the messages that some actions read, and of those that they send."""
        actions = self.actions
        return (
            self._turn(actions.reads[own], actions.read[own], messages),
            self._turn(actions.sends[own], actions.sent[own], messages),
        )

    def _turn(self, channels: Ints, numbers: Ints, messages: Ints) -> Turn:
        there = channels >= 0
        own = channels[there]
        return self.first_slots[own], numbers[there], messages[own], self.rings[own]

    # --- waves ------------------------------------------------------------------------------------

    def _waves(self) -> list[Wave]:
        """All waves."""
        actions, edges = self.actions, self.actions.edges
        begins, ends = edges[:-1], edges[1:]
        reads, sends = actions.reads >= 0, actions.sends >= 0
        reading, sending = _counts(reads, begins), _counts(sends, begins)
        first_sender = np.where(sending > 0, _counts(reads & ~sends, begins), 0)
        whole, readers = (begins, ends), (begins, begins + reading)
        senders = begins + first_sender, begins + first_sender + sending
        link = np.array([each.link for each in self.channels], np.int64)
        indices = _indices(
            [
                (actions.rank, *whole),
                (actions.rank, *readers),
                (actions.rank, *senders),
                (_of(link, actions.sends), *senders),
            ]
        )
        ranks, readers, senders, links = indices
        first, last = np.flatnonzero(actions.first), np.flatnonzero(actions.last)
        return list(
            map(
                Wave,
                ranks,
                readers,
                reading.tolist(),
                self._next(reading),
                senders,
                _slices(first_sender, sending),
                self._next(sending),
                links,
                self._in_waves(first, actions.rank[first]),
                self._in_waves(last, self._last_rows(last)),
            )
        )

    def _next(self, counts: Ints) -> list[slice]:
        """Of each wave a slice of so many numbers; they go on from wave to wave of a part."""
        begins = np.cumsum(counts) - counts
        borders = [0, *chain.from_iterable((loop.begin, loop.end) for loop in self.loops)]
        waves = [end - begin for begin, end in pairwise([*borders, len(counts)])]
        begins -= np.repeat(begins[borders], waves)
        return _slices(begins, counts)

    def _in_waves(self, places: Ints, numbers: Ints) -> list[tuple[tuple[int, int], ...]]:
        """By wave, its actions at these places among all: where they are in the wave, and the
        number that each of them has."""
        waves = self.actions.wave[places]
        found: list[tuple[tuple[int, int], ...]] = [()] * (len(self.actions.edges) - 1)
        within = places - self.actions.edges[waves]
        for wave, *each in zip(waves.tolist(), within.tolist(), numbers.tolist(), strict=True):
            found[wave] += ((each[0], each[1]),)
        return found

    def _last_rows(self, places: Ints) -> Ints:
        """The rows of the state for the stages of the actions at these places."""
        stages = len(self.passes.stage)
        entries = [rank * stages + stage for rank, own in enumerate(self.held) for stage in own]
        actions = self.actions
        wanted = actions.rank[places] * stages + self.passes.stage[actions.cost[places]]
        return 4 * len(self.held) + np.searchsorted(entries, wanted)


def _ordered(actions: WaveActions) -> WaveActions:
    """The actions of each wave, ordered so that those that read come first and those that send
    stand side by side; then by rank."""
    reads, sends = actions.reads >= 0, actions.sends >= 0
    return actions.ordered(np.lexsort((actions.rank, sends == reads, ~reads, actions.wave)))


def _counts(flags: Flags, begins: Ints) -> Ints:
    """How many flags are set from each beginning to the next."""
    return np.add.reduceat(flags, begins, dtype=np.int64)


def _of(numbers: Ints, channels: Ints) -> Ints:
    """The numbers of channels; 0 for none (-1)."""
    return np.append(numbers, 0)[channels]


def _slices(begins: Ints, counts: Ints) -> list[slice]:
    """Slices that begin there and are so long."""
    return list(map(slice, begins.tolist(), (begins + counts).tolist()))


def _indices(ranges: Sequence[tuple[Ints, Ints, Ints]]) -> list[list[Index]]:
    """Ranges of numbers, given by equally many numbers each, and by where the ranges begin and end
    among them. A range is a slice if its numbers go up by equal steps, else an array."""
    numbers = np.concatenate([each for each, _, _ in ranges])
    numbers.setflags(write=False)
    before = len(ranges[0][0]) * np.arange(len(ranges))[:, None]
    begins = (np.array([begins for _, begins, _ in ranges]) + before).ravel()
    ends = (np.array([ends for _, _, ends in ranges]) + before).ravel()
    steps, bends = np.zeros((2, len(numbers)), np.int64)
    np.subtract(numbers[1:], numbers[:-1], out=steps[:-1])
    np.cumsum(steps[1:] != steps[:-1], out=bends[1:])
    length = ends - begins
    first, step = numbers[begins], np.where(length > 1, steps[begins], 1)
    straight = (length < 3) | (bends[begins] == bends[ends - 2])
    straight &= step > 0
    first[length == 0] = 0
    until = np.where(length > 0, numbers[ends - 1] + 1, 0)
    columns = (straight, begins, ends, first, until, step)
    found = [
        slice(start, stop, by) if is_slice else numbers[begin:end]
        for is_slice, begin, end, start, stop, by in zip(
            *(each.tolist() for each in columns), strict=True
        )
    ]
    waves = len(found) // len(ranges)
    return [found[at : at + waves] for at in range(0, len(found), waves)]


__all__ = [
    "Floats",
    "Index",
    "Ints",
    "RepeatedPart",
    "Wave",
    "WavePart",
    "WavePiece",
    "WaveProgram",
    "find_program",
    "slots_of",
]
