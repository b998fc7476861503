"""Waves of a schedule: actions that may run at the same time, and where waves repeat.

If all actions took equally long and messages no time, ranks would run in lockstep: in each wave,
every rank whose next action has its inputs runs it. The actions of a wave do not need each other,
whatever they really take. When all ranks are within a repeated pattern and as many messages are
under way as some waves ago, the waves since then repeat, until a rank has finished its pattern's
repetitions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import sub

import numpy as np

from distir.arrays import Flags, Indices, Integers
from distir.schedules.compiled.compile import CompiledSchedule
from distir.schedules.compiled.costs import (
    BACKWARD,
    COST_KINDS,
    FORWARD,
    INPUT_PART,
    WEIGHT_PART,
)
from distir.schedules.core.rhythm import Rhythm

__all__ = [
    "Channel",
    "Passes",
    "RankAction",
    "WaveActions",
    "WaveLoop",
    "Waves",
    "channels_at",
    "channels_of",
    "find_waves",
    "rhythm_channels",
]

FEWEST_REPEATS = 4
"""Waves that repeat less often are not made a loop."""

MOST_STATES = 4096
"""States of the ranks that are remembered to find loops."""

RankAction = tuple[int, int]
"""A rank, and the cost number of an action on it."""


@dataclass(frozen=True, slots=True)
class Channel:
    """Messages that the passes of a stage on one rank send to the next passes on another rank, in
    order."""

    sender: RankAction
    reader: RankAction
    """What sends and what reads. A pass that may run alone or in an overlapped pair, whole or in
    parts, has several cost numbers; this is one of them (`Passes`)."""
    link: int
    """Number of the link: there is one per pair of ranks and direction of the pass."""


@dataclass(frozen=True, slots=True, eq=False)
class WaveActions:
    """Actions in waves, as arrays: the actions of a wave come one after the other."""

    edges: Indices
    """Where waves begin, and where the last one ends."""
    wave: Indices
    """The number of each action's wave."""
    rank: Indices
    cost: Integers
    """The cost number of each action."""
    reads: Indices
    """The channel that it reads from, or -1."""
    read: Integers
    """The number of the message that it reads, counted per channel."""
    sends: Indices
    """The channel that it sends on, or -1."""
    sent: Integers
    """The number of the message that it sends, counted per channel."""
    first: Flags
    """Whether it is the first action of its rank."""
    last: Flags
    """Whether it completes the gradients of its stage (in a loop: in the last repeat)."""

    def ordered(self, order: Indices) -> WaveActions:
        """The actions in an order that leaves each in its wave."""
        return WaveActions(
            self.edges,
            self.wave,
            self.rank[order],
            self.cost[order],
            self.reads[order],
            self.read[order],
            self.sends[order],
            self.sent[order],
            self.first[order],
            self.last[order],
        )


@dataclass(frozen=True, slots=True)
class WaveLoop:
    """Waves `begin` to `end`, which are as many waves before them once more, come `times` times.
    Their messages have the numbers that they have in the waves before them."""

    begin: int
    end: int
    times: int
    messages: tuple[int, ...]
    """Per channel, the messages that go through it in each repeat."""
    under_way: tuple[range, ...]
    """Per channel, the numbers of the messages that are under way when the loop begins."""
    repetitions: tuple[tuple[int, int], ...]
    """Per rank, the index of its repeated pattern, and how many repetitions of the pattern a repeat
    of the loop has."""


@dataclass(frozen=True, slots=True, eq=False)
class Waves:
    """A schedule as waves, in order, some of which are repeated."""

    channels: tuple[Channel, ...]
    passes: Passes
    num_links: int
    most_under_way: tuple[int, ...]
    """Per channel, the most messages that are under way at a time."""
    actions: WaveActions
    loops: tuple[WaveLoop, ...]


def find_waves(compiled: CompiledSchedule) -> Waves | None:
    """The waves of a schedule; None if microbatches overtake each other or ranks wait for each
    other."""
    channels = channels_of(compiled)
    return None if channels is None else _Lockstep(compiled, channels).run()


# --- channels -------------------------------------------------------------------------------------


def channels_of(compiled: CompiledSchedule) -> tuple[Channel, ...] | None:
    """The channels of a schedule; None if microbatches overtake each other."""
    source = compiled.source
    return rhythm_channels(source) if isinstance(source, Rhythm) else _schedule_channels(compiled)


class Passes:
    """Which pass an action is or belongs to, by its cost number: that for whose message it waits,
    and that whose message it sends. A pass is given as the cost number that it has alone."""

    def __init__(self, compiled: CompiledSchedule) -> None:
        backward = INPUT_PART if compiled.source.splits_backward else BACKWARD
        stages, pairs = compiled.stages, compiled.pairs
        self.kinds: Indices = np.arange((stages + len(pairs)) * COST_KINDS) % COST_KINDS
        """The cost kind that each cost number has."""
        forward, in_pairs = self.kinds == FORWARD, slice(stages * COST_KINDS, None)
        self.stage: Indices = np.arange(len(self.kinds)) // COST_KINDS
        """The stage of an action; of the last two entries of an overlapped pair, that of its
        forward and that of its backward pass."""
        self.stage[in_pairs] = [
            pair[kind != FORWARD] for pair in pairs for kind in range(COST_KINDS)
        ]
        alone = self.stage * COST_KINDS + np.where(forward, FORWARD, backward)
        reads, sends = (self.kinds != WEIGHT_PART for _ in range(2))
        reads[in_pairs] = self.kinds[in_pairs] != BACKWARD
        sends[in_pairs] = self.kinds[in_pairs] != INPUT_PART
        self.read: Integers = np.where(reads, alone, -1)
        """The pass that waits for a message when an action begins; -1 if none does."""
        self.sent: Integers = np.where(sends, alone, -1)
        """The pass that sends a message when an action ends; -1 if none does."""
        self.completes = (self.kinds == BACKWARD) | (self.kinds == WEIGHT_PART)
        """Whether an action completes gradients of a microbatch."""


def _channels(sender_of: Mapping[RankAction, RankAction]) -> tuple[Channel, ...]:
    """Channels, given the sender of each reader."""
    links: dict[tuple[int, int, bool], int] = {}
    channels: list[Channel] = []
    for reader, sender in sender_of.items():
        route = sender[0], reader[0], sender[1] % COST_KINDS == FORWARD
        channels.append(Channel(sender, reader, links.setdefault(route, len(links))))
    return tuple(channels)


def rhythm_channels(rhythm: Rhythm) -> tuple[Channel, ...]:
    """The channels of a rhythm, in which no microbatches overtake each other."""
    backward = INPUT_PART if rhythm.splits_backward else BACKWARD
    sender_of: dict[RankAction, RankAction] = {}
    for ranks in rhythm.ranks_of_stages:
        for stage, rank in enumerate(ranks):
            for cost_kind, step in ((FORWARD, -1), (backward, 1)):
                source = stage + step
                if 0 <= source < len(ranks) and ranks[source] != rank:
                    sender_of[rank, stage * COST_KINDS + cost_kind] = (
                        ranks[source],
                        source * COST_KINDS + cost_kind,
                    )
    return _channels(sender_of)


def _schedule_channels(compiled: CompiledSchedule) -> tuple[Channel, ...] | None:
    """The channels of a schedule without a rhythm; None unless each pass on a rank reads the next
    message of one channel, and sends the next one on one channel."""
    flat, passes = compiled.flat, Passes(compiled)
    read, sent = passes.read.tolist(), passes.sent.tolist()
    read_count: Counter[RankAction] = Counter()
    sent_count: Counter[RankAction] = Counter()
    ordinal: list[int] = []
    sender_of: dict[RankAction, RankAction | None] = {}
    reader_of: dict[RankAction, RankAction] = {}
    for rank, cost, needed in zip(flat.rank, flat.cost, flat.needs, strict=True):
        here, sends = (rank, read[cost]), (rank, sent[cost])
        ordinal.append(sent_count[sends])
        sent_count[sends] += 1
        if here[1] < 0:
            continue
        there = (flat.rank[needed], sent[flat.cost[needed]]) if needed >= 0 else None
        if sender_of.setdefault(here, there) != there:
            return None
        if there is not None:
            if reader_of.setdefault(there, here) != here or ordinal[needed] != read_count[here]:
                return None
        read_count[here] += 1
    return _channels({here: there for here, there in sender_of.items() if there is not None})


def channels_at(
    ends: Sequence[RankAction], passes: Integers, ranks: Indices, costs: Integers
) -> Indices:
    """The channels that actions read from or send on, or -1, given the ends of channels where that
    happens, and by cost number the passes that do it."""
    if not ends:
        return np.full(len(costs), -1)
    each, own = len(passes), passes[costs]
    keys = np.array([rank * each + cost for rank, cost in ends], np.int64)
    order = np.argsort(keys)
    wanted = ranks * each + own
    found = order[np.searchsorted(keys, wanted, sorter=order).clip(max=len(keys) - 1)]
    return np.where((keys[found] == wanted) & (own >= 0), found, -1)


# --- lockstep -------------------------------------------------------------------------------------


class _Entries:
    """The actions of all patterns, numbered pattern by pattern and rank by rank: these numbers, the
    *entries*, say where ranks are."""

    def __init__(self, compiled: CompiledSchedule, channels: Sequence[Channel]) -> None:
        repeated = compiled.timed_costs
        self.passes = passes = Passes(compiled)
        self.begins: list[list[int]] = []
        """Per rank, the first entries of its patterns."""
        self.times = [[times for _, times in patterns] for patterns in repeated]
        costs: list[int] = []
        borders = [0]
        ends: list[tuple[int, int]] = []
        for rank, patterns in enumerate(repeated):
            self.begins.append([])
            for pattern, _ in patterns:
                self.begins[-1].append(len(costs))
                costs += pattern
                ends.append((len(costs) - 1, rank))
            borders.append(len(costs))
        self.following = list(range(1, len(costs) + 1))
        """Per entry, the next one; at the end of a pattern, `~rank`."""
        for entry, rank in ends:
            self.following[entry] = ~rank
        self.cost: Integers = np.array(costs, np.int64)
        lengths = [end - begin for begin, end in pairwise(borders)]
        self.rank: Indices = np.repeat(np.arange(len(repeated)), lengths)
        readers, senders = [each.reader for each in channels], [each.sender for each in channels]
        self.reads = channels_at(readers, passes.read, self.rank, self.cost)
        """Per entry, the channel that it reads from, or -1."""
        self.sends = channels_at(senders, passes.sent, self.rank, self.cost)
        """The same of the channel that it sends on."""


class _Lockstep:
    """Ranks that run their actions in lockstep, and the waves that this makes."""

    def __init__(self, compiled: CompiledSchedule, channels: tuple[Channel, ...]) -> None:
        self.channels = channels
        self.entries = entries = _Entries(compiled, channels)
        self.reads: list[int] = entries.reads.tolist()
        self.sends: list[int] = entries.sends.tolist()
        self.pattern_index = [0 for _ in entries.times]
        """Per rank, the index of the pattern that it runs."""
        self.left: list[int] = [times[0] for times in entries.times]
        """Per rank, the repetitions of the pattern that are left, the current one included."""
        self.taken: list[int] = [0 for _ in channels]
        self.sent: list[int] = [0 for _ in channels]
        self.most_under_way: list[int] = [0 for _ in channels]
        self.waiting: list[int] = [-1 for _ in channels]
        """Per channel, the entry that waits for a message, or -1."""
        self.ran: list[int] = []
        """The entries that ran, and behind each loop those that it repeats once more."""
        self.ends: list[int] = []
        """Per wave, how many entries there are in `ran` up to its end."""
        self.loops: list[WaveLoop] = []
        self.seen: dict[object, tuple[int, list[int], list[int]]] = {}
        """By state of the ranks: the wave at which they were in it, and what was left and sent."""

    def run(self) -> Waves | None:
        """The waves of the schedule; None if ranks wait for each other."""
        runnable = [begins[0] for begins in self.entries.begins]
        while started := self._started(runnable):
            self.ran += started
            self.ends.append(len(self.ran))
            runnable, repeats = self._ended(started)
            if repeats:
                self._look_back(runnable)
        if max(self.waiting, default=-1) >= 0:
            return None
        return Waves(
            channels=self.channels,
            passes=self.entries.passes,
            num_links=len({each.link for each in self.channels}),
            most_under_way=tuple(self.most_under_way),
            actions=self._actions(),
            loops=tuple(self.loops),
        )

    def _started(self, runnable: Sequence[int]) -> list[int]:
        """The runnable entries whose messages are there; the others are put into `waiting`."""
        started: list[int] = []
        reads, sent, taken = self.reads, self.sent, self.taken
        for entry in runnable:
            channel = reads[entry]
            if channel >= 0:
                if sent[channel] == taken[channel]:
                    self.waiting[channel] = entry
                    continue
                taken[channel] += 1
            started.append(entry)
        return started

    def _ended(self, started: Sequence[int]) -> tuple[list[int], bool]:
        """The entries that can run when these have, as far as their messages are there; and whether
        the waves may repeat."""
        runnable: list[int] = []
        repeats = False
        sends, following, waiting = self.sends, self.entries.following, self.waiting
        for entry in started:
            channel = sends[entry]
            if channel >= 0:
                self.sent[channel] += 1
                under_way = self.sent[channel] - self.taken[channel]
                self.most_under_way[channel] = max(under_way, self.most_under_way[channel])
                if waiting[channel] >= 0:
                    runnable.append(waiting[channel])
                    waiting[channel] = -1
            after = following[entry]
            if after < 0:
                rank = ~after
                after = self._after_pattern(rank)
                if after < 0:
                    continue
                repeats = repeats or self.left[rank] >= FEWEST_REPEATS
            runnable.append(after)
        return runnable, repeats

    def _after_pattern(self, rank: int) -> int:
        """The next entry of a rank that has come to the end of a pattern; -1 if there is none."""
        begins = self.entries.begins[rank]
        self.left[rank] -= 1
        if not self.left[rank]:
            self.pattern_index[rank] += 1
            if self.pattern_index[rank] == len(begins):
                return -1
            self.left[rank] = self.entries.times[rank][self.pattern_index[rank]]
        return begins[self.pattern_index[rank]]

    def _look_back(self, runnable: Sequence[int]) -> None:
        """Makes a loop if the ranks have been in this state before: each is at an entry that is
        runnable or waits."""
        state = frozenset((*runnable, *self.waiting)) - {-1}, tuple(map(sub, self.sent, self.taken))
        if state not in self.seen:
            if len(self.seen) == MOST_STATES:
                self.seen.clear()
            self.seen[state] = len(self.ends), [*self.left], [*self.sent]
            return
        begin, left, sent = self.seen[state]
        repetitions = list(map(sub, left, self.left))
        times = min((now - 1) // n for now, n in zip(self.left, repetitions, strict=True) if n)
        if times >= FEWEST_REPEATS:
            self._repeat(begin, times, repetitions, list(map(sub, self.sent, sent)))
            self.seen.clear()

    def _repeat(
        self, begin: int, times: int, repetitions: Sequence[int], messages: Sequence[int]
    ) -> None:
        """Repeats the waves since `begin`. A repeat has these repetitions of the patterns of ranks,
        and so many messages on channels."""
        end = len(self.ends)
        self.loops.append(
            WaveLoop(
                begin=end,
                end=end + end - begin,
                times=times,
                messages=tuple(messages),
                under_way=tuple(map(range, self.taken, self.sent)),
                repetitions=tuple(zip(self.pattern_index, repetitions, strict=True)),
            )
        )
        count = self.ends[-1] - (self.ends[begin - 1] if begin else 0)
        self.ends += [ran + count for ran in self.ends[begin:]]
        self.ran += self.ran[-count:]
        self.left = [now - times * n for now, n in zip(self.left, repetitions, strict=True)]
        self.sent = [now + times * n for now, n in zip(self.sent, messages, strict=True)]
        self.taken = [now + times * n for now, n in zip(self.taken, messages, strict=True)]

    def _actions(self) -> WaveActions:
        """The actions of all waves."""
        entries, passes, ran = self.entries, self.entries.passes, np.array(self.ran, np.int64)
        rank, cost = entries.rank[ran], entries.cost[ran]
        reads, sends = entries.reads[ran], entries.sends[ran]
        edges = np.array([0, *self.ends], np.int64)
        first, last = np.zeros((2, len(ran)), np.bool_)
        first[np.unique(rank, return_index=True)[1]] = True
        completing = np.flatnonzero(passes.completes[cost])[::-1]
        stage = rank[completing] * len(passes.stage) + passes.stage[cost[completing]]
        last[completing[np.unique(stage, return_index=True)[1]]] = True
        return WaveActions(
            edges=edges,
            wave=np.repeat(np.arange(len(self.ends)), edges[1:] - edges[:-1]),
            rank=rank,
            cost=cost,
            reads=reads,
            read=self._messages(reads),
            sends=sends,
            sent=self._messages(sends),
            first=first,
            last=last,
        )

    def _messages(self, channels: Indices) -> Integers:
        """The numbers of the messages of actions, given their channels or -1. Where a loop repeats
        actions once more, these have the numbers of those that they repeat."""
        ends = self.ends
        loops = [(loop, ends[loop.begin - 1], ends[loop.end - 1]) for loop in self.loops]
        once = channels >= 0
        for _, begin, end in loops:
            once[begin:end] = False
        (places,) = np.nonzero(once)
        places = places[np.argsort(channels[places], kind="stable")]
        own = channels[places]
        found = np.zeros(len(channels), np.int64)
        found[places] = np.arange(len(own)) - np.searchsorted(own, own)
        for loop, begin, end in loops:
            found[begin:end] = found[begin + begin - end : begin]
            skipped = np.array([*loop.messages, 0], np.int64) * loop.times
            found[end:] += skipped[channels[end:]]
        return found
