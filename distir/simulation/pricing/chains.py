"""What one block costs: seconds and bytes of its passes, summarised once for all equal blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

from distir.arrays import Indices
from distir.simulation.pricing.instructions import COMPUTE, Instruction
from distir.simulation.pricing.repeats import Run
from distir.simulation.pricing.timeline import LONG_AGO, Moments, Start, latest_of, moments


@dataclass(frozen=True, slots=True)
class PassCost:
    """Seconds of a run of instructions that starts with all streams idle and ends when all are:
    `compute` busy time and, per mesh axis, the time that compute waited for it."""

    seconds: float
    compute: float
    exposed: tuple[tuple[str, float], ...] = ()


def _waited_at_the_end(free: Mapping[str, float], end: float) -> dict[str, float]:
    """How long compute waits for the streams that go on until the `end`: for the first of them."""
    tail = end - free.get(COMPUTE, 0.0)
    last = next(stream for stream, at in free.items() if at >= end)
    return {last: tail} if tail > 0 else {}


TOLERANCE = 1e-12
"""Relative difference of times below which streams are taken to be in the same state."""


@dataclass(frozen=True, eq=False)
class Pass:
    """One direction of a block: instructions, and the values that cross its borders."""

    instructions: tuple[Instruction, ...]
    inputs: tuple[object, ...]
    outputs: tuple[object, ...]

    @classmethod
    def of(
        cls,
        instructions: Sequence[Instruction],
        inputs: Sequence[object],
        outputs: Sequence[object],
    ) -> Pass:
        """A pass in which compute that nothing comes between is one instruction."""
        return cls(_condensed(instructions, inputs, outputs), tuple(inputs), tuple(outputs))

    @cached_property
    def is_free_at_any_time(self) -> bool:
        """Whether something on a stream other than compute waits for nothing at all, in this block
        or perhaps in one that is handed what this one has not made."""
        awaited = set(self.inputs)
        for each in self.instructions:
            waits = each.after_compute or not awaited.isdisjoint(each.reads)
            if each.stream not in (None, COMPUTE) and not waits:
                return True
            if each.stream is not None or waits:
                awaited.update(each.writes)
        return not awaited.issuperset(self.outputs)

    @cached_property
    def streams(self) -> frozenset[str]:
        """Its streams besides compute."""
        return frozenset(each.stream for each in self.instructions if each.stream) - {COMPUTE}

    @cached_property
    def handed_times(self) -> tuple[int, ...]:
        """Per output, which of the times at the border it has: that of others which the same
        instruction makes, or one of its own."""
        makers: dict[object, int] = {
            value: number for number, own in enumerate(self.instructions) for value in own.writes
        }
        numbers: dict[object, int] = {}
        made = ((value in makers, makers.get(value, value)) for value in self.outputs)
        return tuple(numbers.setdefault(key, len(numbers)) for key in made)

    def moments(self, start: Start) -> Moments:
        """Its times, as delays after those at its start."""
        if start not in self._moments:
            made = [
                self.outputs[self.handed_times.index(number)]
                for number in range(len(set(self.handed_times)))
            ]
            self._moments[start] = moments(self.instructions, self.inputs, made, start)
        return self._moments[start]

    @cached_property
    def _moments(self) -> dict[Start, Moments]:
        return {}

    @cached_property
    def launch_seconds(self) -> float:
        """Time of the host to launch all of it."""
        return sum(each.launch_seconds for each in self.instructions)


def _condensed(
    instructions: Sequence[Instruction], inputs: Sequence[object], outputs: Sequence[object]
) -> tuple[Instruction, ...]:
    """Runs of compute as single instructions.

    A run ends with what a collective or the next block reads, and before a collective that follows
    all compute; it begins with what may have to wait. Views remain where they pass on what a
    collective makes or reads.
    """
    moved = set(inputs)  # what a stream other than compute may have made
    for each in instructions:
        if each.stream != COMPUTE and (each.stream or not moved.isdisjoint(each.reads)):
            moved.update(each.writes)
    awaited = set(outputs)  # what others than compute may wait for
    for each in reversed(instructions):
        if each.stream != COMPUTE and (each.stream or not awaited.isdisjoint(each.writes)):
            awaited.update(each.reads)
    found: list[Instruction] = []
    place = -1  # of the run that is open
    for each in instructions:
        reads = tuple(value for value in each.reads if value in moved)
        writes = tuple(value for value in each.writes if value in awaited)
        if each.stream is None:
            if not moved.isdisjoint(each.writes) or writes:
                found.append(each)
        elif each.stream != COMPUTE:
            found.append(each)
            place = -1 if each.after_compute else place
        else:
            if place < 0 or reads:
                place = len(found)
                found.append(replace(each, reads=reads, writes=writes))
            else:
                run = found[place]
                found[place] = replace(
                    run,
                    seconds=run.seconds + each.seconds,
                    launch_seconds=run.launch_seconds + each.launch_seconds,
                    writes=(*run.writes, *writes),
                )
            place = -1 if writes else place
    return tuple(found)


@dataclass(frozen=True, slots=True)
class ChainCost:
    """Seconds of a chain of passes. `settled`: when a stream is done, idle until then, that serves
    a request per block, in order, each not before the block has been computed."""

    cost: PassCost
    settled: float = 0.0


@dataclass(frozen=True, slots=True)
class BlockChain:
    """Passes one after the other, each fed by the one before, as runs of at least one copy.
    `services`, run by run: per block seconds of the stream that serves a request after each.
    `places` are the points at which it is wanted, among those at which passes are known; all if
    there are none. Lengths of runs that differ are by place."""

    runs: Sequence[Run[Pass]]
    services: Sequence[Sequence[float]] | None = None
    places: Indices | None = None

    @property
    def exact(self) -> frozenset[str] | None:
        """See `exact_streams`."""
        return exact_streams(each for word, _ in self.runs for each in word)


HostBound: TypeAlias = Callable[[float, float], float]
"""Seconds of a stretch of program, from what its streams and what its launches take."""


@dataclass(frozen=True, slots=True)
class _State:
    """Where the streams stand between two blocks, relative to compute: when each is free, all
    others since `idle_since`, and when what crosses the border is ready: times, and by which stream
    that was made; and which of these times each value has."""

    free: Mapping[str, float]
    idle_since: float
    border: tuple[tuple[float, str], ...]
    handed: tuple[int, ...] = ()

    @property
    def times(self) -> tuple[float, ...]:
        """All of them."""
        return (*self.free.values(), self.idle_since, *(at for at, _ in self.border))

    @property
    def start(self) -> Start:
        """What they are times of."""
        return Start(tuple(self.free), tuple(why for _, why in self.border), self.handed)


@dataclass(frozen=True, slots=True)
class _Step:
    """What a word adds: seconds until it is computed, busy time of compute, and time that it waited
    for streams; time of the host to launch it; the state that it leaves; and per block, how much of
    these seconds and of this time is that of blocks after it."""

    seconds: float
    compute: float
    exposed: Mapping[str, float]
    launch: float
    after: int
    rests: tuple[tuple[float, float], ...] = ((0.0, 0.0),)

    def then(self, other: _Step) -> _Step:
        """Both one after the other."""
        exposed = dict(self.exposed)
        for stream, seconds in other.exposed.items():
            exposed[stream] = exposed.get(stream, 0.0) + seconds
        rests = ((a + other.seconds, b + other.launch) for a, b in self.rests)
        return _Step(
            self.seconds + other.seconds,
            self.compute + other.compute,
            exposed,
            self.launch + other.launch,
            other.after,
            (*rests, *other.rests),
        )


def exact_streams(passes: Iterable[Pass]) -> frozenset[str] | None:
    """The streams of a chain in which something waits for nothing at all, so that it matters since
    when they are free; None if there is no such thing."""
    different = set(passes)
    if not any(each.is_free_at_any_time for each in different):
        return None
    return frozenset(stream for each in different for stream in each.streams)


class Chains:
    """Chains of blocks. What a block adds depends on the state in which the one before has left the
    streams; there are few, and what is found out of each is kept."""

    def __init__(self, host_bound: HostBound) -> None:
        """`host_bound`: the host launches from the start of a chain on and runs ahead of the
        streams where it can; it bounds the whole, and what has been computed by any time."""
        self._host_bound = host_bound
        self._states = [_State({}, 0.0, ())]
        self._steps: dict[tuple[int, tuple[Pass, ...], frozenset[str] | None], _Step] = {}
        self._left_by: dict[object, list[int]] = {}
        self._tails: dict[int, tuple[float, Mapping[str, float]]] = {}

    def run_all(self, chains: Sequence[BlockChain]) -> list[ChainCost]:
        """Schedules chains."""
        return list(map(self.run, chains))

    def run(self, chain: BlockChain) -> ChainCost:
        """Schedules passes one after the other."""
        exact, services = chain.exact, chain.services
        steps: dict[int, tuple[_Step, int]] = {}
        streams = launches = settled = 0.0
        state = 0
        for number, (word, count) in enumerate(chain.runs):
            left = count
            while left:
                step = self._step(state, word, exact)
                times = left if step.after == state else 1
                first = streams + step.seconds, launches + step.launch
                last = streams + times * step.seconds, launches + times * step.launch
                if services and any(services[number]):
                    ends = self._ends(step, first, last)
                    settled = drained(ends, services[number], times, settled)
                steps[id(step)] = step, steps.get(id(step), (step, 0))[1] + times
                streams, launches = last
                state, left = step.after, left - times
        tail, waited = self._tail(state)
        exposed = dict(waited)
        bound = self._host_bound(streams + tail, launches)
        compute = bound - (streams + tail)
        for step, times in steps.values():
            compute += times * step.compute
            for stream, seconds in step.exposed.items():
                exposed[stream] = exposed.get(stream, 0.0) + times * seconds
        return ChainCost(PassCost(bound, compute, tuple(sorted(exposed.items()))), settled)

    def _ends(
        self, step: _Step, first: tuple[float, float], last: tuple[float, float]
    ) -> list[tuple[float, float]]:
        """When the blocks of a word have been computed that is for the first and the last time at
        such times of streams and launches."""
        return [
            (
                self._host_bound(first[0] - rest, first[1] - launch),
                self._host_bound(last[0] - rest, last[1] - launch),
            )
            for rest, launch in step.rests
        ]

    def _step(self, state: int, word: tuple[Pass, ...], exact: frozenset[str] | None) -> _Step:
        key = (state, word, exact)
        if key not in self._steps:
            made = self._made_step(self._states[state], word[0], exact)
            for each in word[1:]:
                made = made.then(self._step(made.after, (each,), exact))
            self._steps[key] = made
        return self._steps[key]

    def _made_step(self, before: _State, each: Pass, exact: frozenset[str] | None) -> _Step:
        """What a block adds to a state. `exact`: see `exact_streams`."""
        start = before.start.of_first(len(each.inputs))
        form = each.moments(start)
        new = len(start.border) - len(before.border)
        found = form.at((*before.times, *[0.0] * new))
        took = found[form.streams[COMPUTE]]
        border = tuple(latest_of(made, found) if made else (took, "") for made in form.border)
        border = tuple((at - took, why) if why else (0.0, "") for at, why in border)
        # Nothing that waits for the border begins sooner: since when a stream has been free
        # before that does not matter, unless something waits for nothing at all.
        floor = LONG_AGO
        if exact is None:
            floor = min((0.0, *(at for at, why in border if why)))
        free = {
            stream: max(found[number] - took, floor)
            for stream, number in form.streams.items()
            if stream != COMPUTE
        }
        idle_since = max(before.idle_since - took, floor)
        if exact is not None and exact <= free.keys():
            idle_since = 0.0  # of no stream that there is
        after = _State(free, idle_since, border, each.handed_times)
        number = self._number(after, each, took)
        return _Step(took, form.compute, form.waited(found), each.launch_seconds, number)

    def _number(self, state: _State, left_by: Pass, seconds: float) -> int:
        """The number of a state; what the same pass, which took so long, has left may be the
        same."""
        known = self._left_by.setdefault((left_by, state.start), [])
        for number in known:
            if _are_alike(state.times, self._states[number].times, seconds):
                return number
        number = len(self._states)
        known.append(number)
        self._states.append(state)
        return number

    def _tail(self, state: int) -> tuple[float, Mapping[str, float]]:
        """Seconds until all streams are done, and for which of them compute waits."""
        if state not in self._tails:
            free = {COMPUTE: 0.0, **self._states[state].free}
            end = max(free.values())
            self._tails[state] = end, _waited_at_the_end(free, end)
        return self._tails[state]


def _are_alike(times: Sequence[float], others: Sequence[float], seconds: float) -> bool:
    """Whether times are the same, but for rounding of times such as these seconds."""
    return all(
        abs(a - b) <= TOLERANCE * max(abs(a), abs(b), seconds)
        for a, b in zip(times, others, strict=True)
    )


def drained(
    ends: Sequence[tuple[float, float]], services: Sequence[float], count: int, done: float
) -> float:
    """When a stream that serves one request per block, in order, each not before the block has
    been computed, is done with a word that comes `count` times. It is busy until `done`; `ends` say
    when blocks are computed for the first and the last time, `services` are seconds per block.

    The last to finish is decided by the first or the last time that a block comes: those between
    are computed no later than a line from one to the other says.
    """
    word = sum(services)
    queued, prompt, before = done, LONG_AGO, 0.0
    for (first, last), service in zip(ends, services, strict=True):
        if service > 0:
            queued, prompt = max(queued, first - before), max(prompt, last - before)
        before += service
    return max(queued + count * word, prompt + word) if word > 0 else done
