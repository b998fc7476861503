"""What one block costs: seconds and bytes of its passes, summarised once for all equal blocks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeAlias, cast

import numpy as np

from distir.cost.amounts import is_all, is_positive, larger, select, smaller
from distir.simulation.instructions import COMPUTE, Instruction


@dataclass(frozen=True, slots=True)
class PassCost:
    """Seconds of a run of instructions that starts with all streams idle and ends when all are:
    `compute` busy time and, per mesh axis, the time that compute waited for it."""

    seconds: float
    compute: float
    exposed: tuple[tuple[str, float], ...] = ()


LONG_AGO = -math.inf


@dataclass(slots=True)
class Timeline:
    """List scheduling: an instruction starts when its stream is free and its operands are ready.

    `ready` and `cause` hold, per value made by communication, when it is ready and which stream
    made it. Values not in it are ready. Streams not in `free` have been so since `idle_since`.
    """

    free: dict[str, float] = field(default_factory=dict)
    ready: dict[object, float] = field(default_factory=dict)
    cause: dict[object, str] = field(default_factory=dict)
    idle_since: float = 0.0
    compute: float = 0.0
    exposed: dict[str, float] = field(default_factory=dict)

    def run(self, instructions: Sequence[Instruction]) -> None:
        """Schedules instructions in order."""
        ready, cause, free = self.ready, self.cause, self.free
        for each in instructions:
            stream = each.stream
            start, why = LONG_AGO, ""
            for value in each.reads:
                # What a stream made itself is there before the stream is free.
                if value in ready and cause[value] != stream:
                    start, why = _later(start, why, ready[value], cause[value])
            if each.after_compute:
                start = larger(start, free.get(COMPUTE, self.idle_since))
            if stream is None:
                if why:
                    for value in each.writes:
                        ready[value], cause[value] = start, why
                continue
            begin = free.get(stream, self.idle_since)
            if stream == COMPUTE:
                self.compute += each.seconds
                waited = larger(start - begin, 0.0)
                if is_positive(waited):
                    self.exposed[why] = self.exposed.get(why, 0.0) + waited
            end = larger(start, begin) + each.seconds
            free[stream] = end
            for value in each.writes:
                ready[value], cause[value] = end, stream

    def finish(self) -> PassCost:
        """Waits for all streams."""
        end = larger(0.0, *self.free.values())
        exposed = dict(self.exposed)
        for stream, last in _waited_at_the_end(self.free, end).items():
            exposed[stream] = exposed.get(stream, 0.0) + last
        return PassCost(end, self.compute, tuple(sorted(exposed.items())))


def _waited_at_the_end(free: Mapping[str, float], end: float) -> dict[str, float]:
    """How long compute waits for the streams that go on until the `end`."""
    tail = end - free.get(COMPUTE, 0.0)
    found: dict[str, float] = {}
    for stream, at in free.items():
        last = select(at >= end, tail, 0.0)
        if is_positive(last):
            found[stream] = last
            tail = tail - last
    return found


def _later(first: float, why: str, second: float, cause: str) -> tuple[float, str]:
    """The later of two times, and what made it; of many, what made it in some plan."""
    if why in ("", cause):
        return larger(first, second), cause
    later = second > first
    if is_all(later):
        return second, cause
    return (larger(first, second), cause) if is_positive(later) else (first, why)


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
    """Seconds of a chain of passes, and when each of its blocks has been computed: `(of the first,
    of the last, count)` per run of equal blocks, in between at most what lies on a line."""

    cost: PassCost
    block_ends: tuple[tuple[float, float, int], ...]


HostBound: TypeAlias = Callable[[float, float], float]
"""Seconds of a stretch of program, from what its streams and what its launches take."""


@dataclass(frozen=True, slots=True)
class _State:
    """Where the streams stand between two blocks, relative to compute: when each is free, all
    others since `idle_since`, and when what crosses the border is ready, and by which stream."""

    free: Mapping[str, float]
    idle_since: float
    border: tuple[tuple[float, str], ...]

    @property
    def times(self) -> tuple[float, ...]:
        """All of them."""
        return (*self.free.values(), self.idle_since, *(at for at, _ in self.border))

    @property
    def names(self) -> tuple[object, ...]:
        """What they are times of."""
        return (*self.free, None, *(why for _, why in self.border))


def _alike(first: float, second: float, seconds: float) -> bool:
    """Whether two times are the same in every plan, but for rounding of times such as `seconds`."""
    if first is second:
        return True
    slack = TOLERANCE * larger(abs(first), abs(second), seconds)
    return is_all((first == second) | (abs(first - second) <= slack))


def _near(first: Sequence[float], second: Sequence[float], seconds: float) -> bool:
    """`_alike` of the times of one plan."""
    for a, b in zip(first, second, strict=True):
        if a != b and abs(a - b) > TOLERANCE * max(abs(a), abs(b), seconds):
            return False
    return True


def _in_one_plan(times: Sequence[float]) -> tuple[float, ...]:
    return tuple(float(np.asarray(each).flat[0]) for each in times)


@dataclass(frozen=True, slots=True)
class _Step:
    """What a block adds: seconds until it is computed, busy time of compute, and time that it
    waited for streams; and the state that it leaves."""

    seconds: float
    compute: float
    exposed: Mapping[str, float]
    after: int


class Chains:
    """Chains of blocks. What a block adds depends on the state in which the one before has left the
    streams; there are few, and what is found out of each is kept."""

    def __init__(self, host_bound: HostBound) -> None:
        """`host_bound`: the host launches from the start of a chain on and runs ahead of the
        streams where it can; it bounds the whole, and what has been computed by any time."""
        self._host_bound = host_bound
        self._states = [_State({}, 0.0, ())]
        self._steps: dict[tuple[int, Pass, bool], _Step] = {}
        self._left_by: dict[object, list[tuple[int, tuple[float, ...], tuple[float, ...]]]] = {}
        self._tails: dict[int, tuple[float, Mapping[str, float]]] = {}

    def run(self, runs: Sequence[tuple[Pass, int]]) -> ChainCost:
        """Schedules `count` times each pass, one after the other, each fed by the one before."""
        free_at_any_time = any(each.is_free_at_any_time for each, _ in runs)
        steps: dict[int, tuple[_Step, int]] = {}
        ends: list[tuple[float, float, int]] = []
        streams = launches = 0.0
        state = 0
        for each, count in runs:
            left, launch = count, each.launch_seconds
            while left:
                step = self._step(state, each, exact=free_at_any_time)
                times = left if step.after == state else 1
                first = last = self._host_bound(streams + step.seconds, launches + launch)
                streams, launches = streams + times * step.seconds, launches + times * launch
                if times > 1:
                    last = self._host_bound(streams, launches)
                ends.append((first, last, times))
                steps[id(step)] = step, steps.get(id(step), (step, 0))[1] + times
                state, left = step.after, left - times
        tail, waited = self._tail(state)
        exposed = dict(waited)
        bound = self._host_bound(streams + tail, launches)
        compute = bound - (streams + tail)
        for step, times in steps.values():
            compute += times * step.compute
            for stream, seconds in step.exposed.items():
                exposed[stream] = exposed.get(stream, 0.0) + times * seconds
        return ChainCost(PassCost(bound, compute, tuple(sorted(exposed.items()))), tuple(ends))

    def _step(self, state: int, each: Pass, *, exact: bool) -> _Step:
        key = (state, each, exact)
        if key not in self._steps:
            before = self._states[state]
            # What the first block receives is there when it begins.
            border = before.border or ((0.0, COMPUTE),) * len(each.inputs)
            ready = {v: at for v, at in zip(each.inputs, border, strict=False) if at[1]}
            timeline = Timeline(
                {COMPUTE: 0.0, **before.free},
                {value: at for value, (at, _) in ready.items()},
                {value: why for value, (_, why) in ready.items()},
                before.idle_since,
            )
            timeline.run(each.instructions)
            taken = timeline.free[COMPUTE]
            border = tuple(
                (timeline.ready[value] - taken, timeline.cause[value])
                if value in timeline.ready
                else (0.0, "")
                for value in each.outputs
            )
            # Nothing that waits for the border begins sooner: since when a stream has been free
            # before that does not matter, unless something waits for nothing at all.
            floor = LONG_AGO
            if not exact:
                floor = cast("float", smaller(0.0, *(at for at, why in border if why)))
            free = {
                stream: larger(at - taken, floor)
                for stream, at in timeline.free.items()
                if stream != COMPUTE
            }
            after = _State(free, larger(before.idle_since - taken, floor), border)
            number = self._number(after, each, taken)
            self._steps[key] = _Step(taken, timeline.compute, timeline.exposed, number)
        return self._steps[key]

    def _number(self, state: _State, left_by: Pass, seconds: float) -> int:
        """The number of a state; what the same pass has left may be the same."""
        times, names = state.times, state.names
        sample, scale = _in_one_plan(times), _in_one_plan([seconds])[0]
        known = self._left_by.setdefault((left_by, names), [])
        for number, other, values in known:
            if not _near(sample, values, scale):
                continue
            if all(_alike(a, b, seconds) for a, b in zip(times, other, strict=True)):
                return number
        number = len(self._states)
        known.append((number, times, sample))
        self._states.append(state)
        return number

    def _tail(self, state: int) -> tuple[float, Mapping[str, float]]:
        """Seconds until all streams are done, and for which of them compute waits."""
        if state not in self._tails:
            free = {COMPUTE: 0.0, **self._states[state].free}
            end = larger(*free.values())
            self._tails[state] = end, _waited_at_the_end(free, end)
        return self._tails[state]


def drain(
    ends: Sequence[tuple[float, float, int]], services: Sequence[float], done: float = 0.0
) -> float:
    """When a stream that serves one request per block, in order, each not before the block has
    been computed, is done. `services` are seconds per block, run by run as in `ends`; the stream
    is busy until `done`.

    In a run of equal blocks the last to finish is decided by the first or the last of them: those
    between are computed no later than a line from one to the other says.
    """
    for (first, last, count), service in zip(ends, services, strict=True):
        queued = larger(done, first) + count * service
        prompt = last + service
        done = select(service > 0, larger(queued, prompt), done)
    return done
