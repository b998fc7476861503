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
from itertools import chain
from typing import NamedTuple

from distir.schedules.compiled.compile import CompiledSchedule
from distir.schedules.compiled.costs import (
    BACKWARD,
    COMPLETING,
    COST_KINDS,
    FORWARD,
    INPUT_PART,
    WEIGHT_PART,
    RepeatedCosts,
)
from distir.schedules.core.rhythm import Rhythm

__all__ = [
    "Channel",
    "Passes",
    "RankAction",
    "WaveAction",
    "WaveLoop",
    "Waves",
    "channels_of",
    "find_waves",
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


class WaveAction(NamedTuple):
    """An action in a wave. Schedules have many of them, so they are made as tuples are."""

    rank: int
    cost: int
    """Its cost number."""
    reads: int
    """Channel that it reads from, or -1."""
    read: int
    """Number of the message that it reads, counted per channel."""
    sends: int
    """Channel that it sends on, or -1."""
    sent: int
    """Number of the message that it sends, counted per channel."""
    first: bool
    """Whether it is the first action of its rank."""
    last: bool
    """Whether it completes the gradients of its stage (in a loop: in the last repeat)."""


@dataclass(frozen=True, slots=True)
class WaveLoop:
    """After wave `end`, the waves from `begin` on come again, `times` times."""

    begin: int
    end: int
    times: int
    waves: tuple[tuple[WaveAction, ...], ...]
    """The repeated waves, with the numbers that messages have in the waves before the loop."""
    messages: tuple[int, ...]
    """Per channel, the messages that go through it in each repeat."""
    under_way: tuple[range, ...]
    """Per channel, the numbers of the messages that are under way when the loop begins."""
    repetitions: tuple[tuple[int, int], ...]
    """Per rank, the index of its repeated pattern, and how many repetitions of the pattern a repeat
    of the loop has."""


@dataclass(frozen=True, slots=True)
class Waves:
    """A schedule as waves, in order, some of which are repeated."""

    channels: tuple[Channel, ...]
    num_links: int
    most_under_way: tuple[int, ...]
    """Per channel, the most messages that are under way at a time."""
    waves: tuple[tuple[WaveAction, ...], ...]
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
    return _rhythm_channels(source) if isinstance(source, Rhythm) else _schedule_channels(compiled)


class Passes:
    """Which pass an action with some cost number is or belongs to: that for whose message it waits,
    and that whose message it sends. A pass is given as the cost number that it has alone."""

    def __init__(self, compiled: CompiledSchedule) -> None:
        self._stages, self._pairs = compiled.stages, compiled.pairs
        self._backward = INPUT_PART if compiled.source.splits_backward else BACKWARD

    def stage(self, cost: int) -> int:
        """The stage of an action; of the last two entries of an overlapped pair, that of its
        forward and that of its backward pass."""
        stage, kind = divmod(cost, COST_KINDS)
        if stage < self._stages:
            return stage
        return self._pairs[stage - self._stages][kind != FORWARD]

    def read(self, cost: int) -> int:
        """The pass that waits for a message when an action begins; -1 if none does."""
        of_pair = cost >= self._stages * COST_KINDS
        if cost % COST_KINDS == (BACKWARD if of_pair else WEIGHT_PART):
            return -1
        return self._alone(cost)

    def sent(self, cost: int) -> int:
        """The pass that sends a message when an action ends; -1 if none does."""
        of_pair = cost >= self._stages * COST_KINDS
        if cost % COST_KINDS == (INPUT_PART if of_pair else WEIGHT_PART):
            return -1
        return self._alone(cost)

    def _alone(self, cost: int) -> int:
        kind = FORWARD if cost % COST_KINDS == FORWARD else self._backward
        return self.stage(cost) * COST_KINDS + kind


def _channels(sender_of: Mapping[RankAction, RankAction]) -> tuple[Channel, ...]:
    """Channels, given the sender of each reader."""
    links: dict[tuple[int, int, bool], int] = {}
    channels: list[Channel] = []
    for reader, sender in sender_of.items():
        route = sender[0], reader[0], sender[1] % COST_KINDS == FORWARD
        channels.append(Channel(sender, reader, links.setdefault(route, len(links))))
    return tuple(channels)


def _rhythm_channels(rhythm: Rhythm) -> tuple[Channel, ...]:
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
    read_count: Counter[RankAction] = Counter()
    sent_count: Counter[RankAction] = Counter()
    ordinal: list[int] = []
    sender_of: dict[RankAction, RankAction | None] = {}
    reader_of: dict[RankAction, RankAction] = {}
    for rank, cost, needed in zip(flat.rank, flat.cost, flat.needs, strict=True):
        here, sends = (rank, passes.read(cost)), (rank, passes.sent(cost))
        ordinal.append(sent_count[sends])
        sent_count[sends] += 1
        if here[1] < 0:
            continue
        there = (flat.rank[needed], passes.sent(flat.cost[needed])) if needed >= 0 else None
        if sender_of.setdefault(here, there) != there:
            return None
        if there is not None:
            if reader_of.setdefault(there, here) != here or ordinal[needed] != read_count[here]:
                return None
        read_count[here] += 1
    return _channels({here: there for here, there in sender_of.items() if there is not None})


# --- lockstep -------------------------------------------------------------------------------------


class _Lockstep:
    """Ranks that run their actions in lockstep, and the waves that this makes."""

    def __init__(self, compiled: CompiledSchedule, channels: tuple[Channel, ...]) -> None:
        self.repeated: Sequence[Sequence[RepeatedCosts]] = compiled.timed_costs
        self.channels = channels
        self.passes = Passes(compiled)
        readers = {each.reader: channel for channel, each in enumerate(channels)}
        senders = {each.sender: channel for channel, each in enumerate(channels)}
        ranks = range(len(self.repeated))
        self.reads: dict[RankAction, int] = {}
        """By rank and cost number, the channel that such an action reads from, or -1."""
        self.sends: dict[RankAction, int] = {}
        """The same of the channel that it sends on."""
        for rank, patterns in enumerate(self.repeated):
            for cost in {cost for pattern, _ in patterns for cost in pattern}:
                self.reads[rank, cost] = readers.get((rank, self.passes.read(cost)), -1)
                self.sends[rank, cost] = senders.get((rank, self.passes.sent(cost)), -1)
        self.pattern_index = [0 for _ in ranks]
        """Per rank, the index of the pattern that it runs."""
        self.pattern = [patterns[0][0] for patterns in self.repeated]
        self.position = [0 for _ in ranks]
        """Per rank, the position in the pattern of its next action."""
        self.left: list[int] = [patterns[0][1] for patterns in self.repeated]
        """Per rank, the repetitions of the pattern that are left, the current one included."""
        self.begun = [False for _ in ranks]
        self.completing: Counter[tuple[int, int]] = Counter()
        """Per rank and stage, the actions left that may complete gradients."""
        for rank, patterns in enumerate(self.repeated):
            for pattern, times in patterns:
                for cost in pattern:
                    if cost % COST_KINDS in COMPLETING:
                        self.completing[rank, self.passes.stage(cost)] += times
        self.taken: list[int] = [0 for _ in channels]
        self.sent = [0 for _ in channels]
        self.most_under_way = [0 for _ in channels]
        self.waves: list[tuple[WaveAction, ...]] = []
        self.loops: list[WaveLoop] = []
        self.seen: dict[object, tuple[int, list[int], list[int]]] = {}
        """By state of the ranks: the wave at which they were in it, and what was left and sent."""

    def run(self) -> Waves | None:
        """The waves of the schedule; None if ranks wait for each other."""
        runnable = list(range(len(self.repeated)))
        waiting: dict[int, int] = {}
        while runnable:
            wave = self._wave(runnable, waiting)
            if wave:
                self.waves.append(wave)
            runnable: list[int] = []
            repeats = False
            for action in wave:
                if action.sends >= 0:
                    channel = action.sends
                    self.sent[channel] += 1
                    under_way = self.sent[channel] - self.taken[channel]
                    self.most_under_way[channel] = max(self.most_under_way[channel], under_way)
                    if channel in waiting:
                        runnable.append(waiting.pop(channel))
                rank = action.rank
                if self._advance(rank):
                    runnable.append(rank)
                    again = self.position[rank] == 0 and self.left[rank] >= FEWEST_REPEATS
                    repeats = repeats or again
            if repeats:
                self._look_back()
        if waiting:
            return None
        return Waves(
            channels=self.channels,
            num_links=len({each.link for each in self.channels}),
            most_under_way=tuple(self.most_under_way),
            waves=tuple(self.waves),
            loops=tuple(self.loops),
        )

    def _wave(self, runnable: Sequence[int], waiting: dict[int, int]) -> tuple[WaveAction, ...]:
        """The next actions of the runnable ranks whose messages are there; the other ranks are put
        into `waiting`, by channel."""
        actions: list[WaveAction] = []
        for rank in runnable:
            cost = self.pattern[rank][self.position[rank]]
            reads, sends = self.reads[rank, cost], self.sends[rank, cost]
            read = self.taken[reads] if reads >= 0 else 0
            if reads >= 0:
                if self.sent[reads] == read:
                    waiting[reads] = rank
                    continue
                self.taken[reads] += 1
            first = not self.begun[rank]
            self.begun[rank] = True
            sent = self.sent[sends] if sends >= 0 else 0
            last = self._completes(rank, cost)
            actions.append(WaveAction(rank, cost, reads, read, sends, sent, first, last))
        return tuple(actions)

    def _completes(self, rank: int, cost: int) -> bool:
        """Whether the gradients of an action's stage are complete with it; counts it as run."""
        if cost % COST_KINDS not in COMPLETING:
            return False
        stage = rank, self.passes.stage(cost)
        self.completing[stage] -= 1
        return self.completing[stage] == 0

    def _advance(self, rank: int) -> bool:
        """Moves a rank to its next action; False if there is none."""
        self.position[rank] += 1
        if self.position[rank] < len(self.pattern[rank]):
            return True
        self.position[rank] = 0
        self.left[rank] -= 1
        if self.left[rank]:
            return True
        self.pattern_index[rank] += 1
        if self.pattern_index[rank] == len(self.repeated[rank]):
            return False
        self.pattern[rank], self.left[rank] = self.repeated[rank][self.pattern_index[rank]]
        return True

    def _look_back(self) -> None:
        """Makes a loop if the ranks have been in this state before."""
        under_way = tuple(s - t for s, t in zip(self.sent, self.taken, strict=True))
        state = tuple(self.pattern_index), tuple(self.position), under_way
        if state not in self.seen:
            if len(self.seen) == MOST_STATES:
                self.seen.clear()
            self.seen[state] = len(self.waves), [*self.left], [*self.sent]
            return
        begin, left, sent = self.seen[state]
        repetitions = [then - now for then, now in zip(left, self.left, strict=True)]
        times = min((now - 1) // n for now, n in zip(self.left, repetitions, strict=True) if n)
        if times < FEWEST_REPEATS:
            return
        messages = [now - then for then, now in zip(sent, self.sent, strict=True)]
        under = tuple(range(t, s) for s, t in zip(self.sent, self.taken, strict=True))
        waves = self._repeated_waves(begin, times)
        self.loops.append(
            WaveLoop(
                begin=begin,
                end=len(self.waves),
                times=times,
                waves=waves,
                messages=tuple(messages),
                under_way=under,
                repetitions=tuple(zip(self.pattern_index, repetitions, strict=True)),
            )
        )
        self.left = [now - times * n for now, n in zip(self.left, repetitions, strict=True)]
        self.sent = [now + times * n for now, n in zip(self.sent, messages, strict=True)]
        self.taken = [now + times * n for now, n in zip(self.taken, messages, strict=True)]
        self.seen.clear()

    def _repeated_waves(self, begin: int, times: int) -> tuple[tuple[WaveAction, ...], ...]:
        """The waves since `begin` as they are in the last of `times` repeats; counts the actions of
        all repeats as run."""
        waves = self.waves[begin:]
        completing = Counter(
            (action.rank, self.passes.stage(action.cost))
            for action in chain.from_iterable(waves)
            if action.cost % COST_KINDS in COMPLETING
        )
        for stage, count in completing.items():
            self.completing[stage] -= (times - 1) * count
        return tuple(tuple(map(self._repeated_action, wave)) for wave in waves)

    def _repeated_action(self, action: WaveAction) -> WaveAction:
        last = self._completes(action.rank, action.cost)
        return action._replace(first=False, last=last)
