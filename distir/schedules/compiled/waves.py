"""Which actions of a schedule may run at the same time, and where that repeats.

Were every action as long as every other and messages free, ranks would run in step: at each turn,
every rank whose next action has what it needs. The actions of a turn do not need each other,
whatever they really take. Where all ranks are in the middle of a word that repeats and messages
under way are as they were some turns ago, the same turns come again, until a rank's run ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from distir.schedules.compiled.compile import CompiledSchedule
from distir.schedules.compiled.costs import (
    BACKWARD,
    COMPLETING,
    COST_KINDS,
    FORWARD,
    INPUT_PART,
    CostRun,
)
from distir.schedules.core.rhythm import Rhythm

__all__ = ["Channel", "Loop", "Turn", "Waves", "channels_of", "find_waves"]

FEWEST_REPEATS = 4
"""A pattern that comes again less often is not worth a loop."""

MOST_STATES = 4096
"""How many states are kept in which ranks have been."""

Ends = tuple[int, int]
"""A rank and what an action on it costs."""


@dataclass(frozen=True, slots=True)
class Channel:
    """Messages of one kind of action on a rank to one on another, first come first served."""

    sender: Ends
    reader: Ends
    link: int
    """Links are numbered; one for each pair of ranks and direction of the pass."""


@dataclass(frozen=True, slots=True)
class Turn:
    """An action. `reads` and `sends` are channels, or -1, with the number of the message. `first`:
    the rank's first; `last`: the gradients of the stage are complete in it (in a loop, in the last
    of the repeats)."""

    rank: int
    cost: int
    reads: int
    read: int
    sends: int
    sent: int
    first: bool
    last: bool


@dataclass(frozen=True, slots=True)
class Loop:
    """After wave `end`, the waves from `begin` on come again, `times` times."""

    begin: int
    end: int
    times: int
    waves: tuple[tuple[Turn, ...], ...]
    """With the numbers that messages have in the waves before."""
    messages: tuple[int, ...]
    """Per channel how many go through it each time."""
    under_way: tuple[range, ...]
    """Per channel the messages that are under way when the loop begins."""
    said: tuple[tuple[int, int], ...]
    """Per rank the run it is in, and how many of its words it says each time."""


@dataclass(frozen=True, slots=True)
class Waves:
    """What runs when, all of it in order."""

    channels: tuple[Channel, ...]
    num_links: int
    most_under_way: tuple[int, ...]
    """Per channel."""
    waves: tuple[tuple[Turn, ...], ...]
    loops: tuple[Loop, ...]


def find_waves(compiled: CompiledSchedule) -> Waves | None:
    """The waves of a schedule, or None where microbatches overtake each other or ranks wait for
    each other."""
    found = channels_of(compiled)
    return None if found is None else _Walk(compiled, found).run()


# --- channels -------------------------------------------------------------------------------------


def channels_of(compiled: CompiledSchedule) -> tuple[Channel, ...] | None:
    """The channels of a schedule, or None where microbatches overtake each other."""
    source = compiled.source
    return _channels_of(source) if isinstance(source, Rhythm) else _channels_in(compiled)


def _channels(ends: Mapping[Ends, Ends]) -> tuple[Channel, ...]:
    """`ends` are the senders of readers."""
    links: dict[tuple[int, int, bool], int] = {}
    found: list[Channel] = []
    for reader, sender in ends.items():
        way = sender[0], reader[0], sender[1] % COST_KINDS == FORWARD
        found.append(Channel(sender, reader, links.setdefault(way, len(links))))
    return tuple(found)


def _channels_of(rhythm: Rhythm) -> tuple[Channel, ...]:
    part = INPUT_PART if rhythm.splits_backward else BACKWARD
    ends: dict[Ends, Ends] = {}
    for homes in rhythm.homes:
        for stage, rank in enumerate(homes):
            for kind, step in ((FORWARD, -1), (part, 1)):
                source = stage + step
                if 0 <= source < len(homes) and homes[source] != rank:
                    ends[rank, stage * COST_KINDS + kind] = (
                        homes[source],
                        source * COST_KINDS + kind,
                    )
    return _channels(ends)


def _channels_in(compiled: CompiledSchedule) -> tuple[Channel, ...] | None:
    """The channels of a schedule without a rhythm, if each action of a kind on a rank reads the
    next message of one channel, and sends the next of one."""
    flat = compiled.flat
    place: Counter[Ends] = Counter()
    ordinal: list[int] = []
    ends: dict[Ends, Ends | None] = {}
    readers: dict[Ends, Ends] = {}
    for rank, cost, needed in zip(flat.rank, flat.cost, flat.needs, strict=True):
        here = rank, cost
        there = (flat.rank[needed], flat.cost[needed]) if needed >= 0 else None
        if ends.setdefault(here, there) != there:
            return None
        if there is not None:
            if readers.setdefault(there, here) != here or ordinal[needed] != place[here]:
                return None
        ordinal.append(place[here])
        place[here] += 1
    return _channels({here: there for here, there in ends.items() if there is not None})


# --- in step --------------------------------------------------------------------------------------


class _Walk:
    """Ranks run in step."""

    def __init__(self, compiled: CompiledSchedule, channels: tuple[Channel, ...]) -> None:
        self.runs: Sequence[Sequence[CostRun]] = compiled.runs
        self.channels = channels
        self.reads = {each.reader: channel for channel, each in enumerate(channels)}
        self.sends = {each.sender: channel for channel, each in enumerate(channels)}
        ranks = range(len(self.runs))
        self.run_of = [0 for _ in ranks]
        self.word = [runs[0][0] for runs in self.runs]
        self.place = [0 for _ in ranks]
        self.left = [runs[0][1] for runs in self.runs]
        """How often the word is to be said, the time that is being said included."""
        self.begun = [False for _ in ranks]
        self.completing: Counter[tuple[int, int]] = Counter()
        """Per rank and stage, how many actions are left that may complete gradients."""
        for rank, runs in enumerate(self.runs):
            for word, times in runs:
                for cost in word:
                    if cost % COST_KINDS in COMPLETING:
                        self.completing[rank, cost // COST_KINDS] += times
        self.taken = [0 for _ in channels]
        self.sent = [0 for _ in channels]
        self.most = [0 for _ in channels]
        self.waves: list[tuple[Turn, ...]] = []
        self.loops: list[Loop] = []
        self.seen: dict[object, tuple[int, list[int], list[int]]] = {}

    def run(self) -> Waves | None:
        runnable = list(range(len(self.runs)))
        waiting: dict[int, int] = {}
        while runnable:
            wave = self._wave(runnable, waiting)
            if wave:
                self.waves.append(wave)
            runnable: list[int] = []
            repeats = False
            for turn in wave:
                if turn.sends >= 0:
                    channel = turn.sends
                    self.sent[channel] += 1
                    under_way = self.sent[channel] - self.taken[channel]
                    self.most[channel] = max(self.most[channel], under_way)
                    if channel in waiting:
                        runnable.append(waiting.pop(channel))
                if self._advance(turn.rank):
                    runnable.append(turn.rank)
                    again = self.place[turn.rank] == 0 and self.left[turn.rank] >= FEWEST_REPEATS
                    repeats = repeats or again
            if repeats:
                self._look_back()
        if waiting:
            return None
        count = len({each.link for each in self.channels})
        return Waves(self.channels, count, tuple(self.most), tuple(self.waves), tuple(self.loops))

    def _wave(self, runnable: Sequence[int], waiting: dict[int, int]) -> tuple[Turn, ...]:
        """The next actions of those ranks that can go on; others wait for a channel."""
        found: list[Turn] = []
        for rank in runnable:
            cost = self.word[rank][self.place[rank]]
            reads, sends = self.reads.get((rank, cost), -1), self.sends.get((rank, cost), -1)
            read = self.taken[reads] if reads >= 0 else 0
            if reads >= 0:
                if self.sent[reads] == read:
                    waiting[reads] = rank
                    continue
                self.taken[reads] += 1
            first, last = not self.begun[rank], False
            self.begun[rank] = True
            if cost % COST_KINDS in COMPLETING:
                own = rank, cost // COST_KINDS
                self.completing[own] -= 1
                last = self.completing[own] == 0
            sent = self.sent[sends] if sends >= 0 else 0
            found.append(Turn(rank, cost, reads, read, sends, sent, first, last))
        return tuple(found)

    def _advance(self, rank: int) -> bool:
        """Whether there is more to do on a rank."""
        self.place[rank] += 1
        if self.place[rank] < len(self.word[rank]):
            return True
        self.place[rank] = 0
        self.left[rank] -= 1
        if self.left[rank]:
            return True
        self.run_of[rank] += 1
        if self.run_of[rank] == len(self.runs[rank]):
            return False
        self.word[rank], self.left[rank] = self.runs[rank][self.run_of[rank]]
        return True

    def _look_back(self) -> None:
        """Makes a loop if ranks have been where they are now."""
        under_way = tuple(s - t for s, t in zip(self.sent, self.taken, strict=True))
        state = tuple(self.run_of), tuple(self.place), under_way
        if state not in self.seen:
            if len(self.seen) == MOST_STATES:
                self.seen.clear()
            self.seen[state] = len(self.waves), [*self.left], [*self.sent]
            return
        begin, left, sent = self.seen[state]
        said = [then - now for then, now in zip(left, self.left, strict=True)]
        times = min((now - 1) // n for now, n in zip(self.left, said, strict=True) if n)
        if times < FEWEST_REPEATS:
            return
        messages = [now - then for then, now in zip(sent, self.sent, strict=True)]
        under = tuple(range(t, s) for s, t in zip(self.sent, self.taken, strict=True))
        waves = self._again(begin, times)
        self.loops.append(
            Loop(
                begin=begin,
                end=len(self.waves),
                times=times,
                waves=waves,
                messages=tuple(messages),
                under_way=under,
                said=tuple(zip(self.run_of, said, strict=True)),
            )
        )
        self.left = [now - times * n for now, n in zip(self.left, said, strict=True)]
        self.sent = [now + times * n for now, n in zip(self.sent, messages, strict=True)]
        self.taken = [now + times * n for now, n in zip(self.taken, messages, strict=True)]
        self.seen.clear()

    def _again(self, begin: int, times: int) -> tuple[tuple[Turn, ...], ...]:
        """The waves since `begin` as they are in the last of the repeats; counts down what may
        complete gradients."""
        waves = self.waves[begin:]
        completing = Counter(
            (turn.rank, turn.cost // COST_KINDS)
            for turn in chain.from_iterable(waves)
            if turn.cost % COST_KINDS in COMPLETING
        )
        for own, count in completing.items():
            self.completing[own] -= (times - 1) * count
        found: list[tuple[Turn, ...]] = []
        for wave in waves:
            made: list[Turn] = []
            for turn in wave:
                last = False
                if turn.cost % COST_KINDS in COMPLETING:
                    own = turn.rank, turn.cost // COST_KINDS
                    self.completing[own] -= 1
                    last = self.completing[own] == 0
                made.append(
                    Turn(turn.rank, turn.cost, turn.reads, turn.read, turn.sends, turn.sent,
                         first=False, last=last)
                )  # fmt: skip
            found.append(tuple(made))
        return tuple(found)
