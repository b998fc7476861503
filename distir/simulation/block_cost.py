"""What one block costs: seconds and bytes of its passes, summarised once for all equal blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias, cast

import numpy as np

from distir.cost.amounts import is_positive, larger, select, smaller
from distir.simulation.instructions import COMPUTE, Instruction
from distir.simulation.timeline import LONG_AGO, Moments, Start, latest_of, moments


@dataclass(frozen=True, slots=True)
class PassCost:
    """Seconds of a run of instructions that starts with all streams idle and ends when all are:
    `compute` busy time and, per mesh axis, the time that compute waited for it."""

    seconds: float
    compute: float
    exposed: tuple[tuple[str, float], ...] = ()


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

    def moments(self, start: Start) -> Moments:
        """Its times, as delays after those at its start."""
        if start not in self._moments:
            found = moments(self.instructions, self.inputs, self.outputs, start)
            self._moments[start] = found
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


class _Times:
    """The times of a state in all plans, to be compared with those of others, but for rounding of
    times such as `seconds`, which the pass took that led there."""

    __slots__ = ("_scale", "_size", "_total", "_values")

    def __init__(self, times: Sequence[float], seconds: float) -> None:
        values = np.stack(np.broadcast_arrays(*times, np.atleast_1d(seconds)))
        self._values = values = np.asarray(values, np.float64)
        self._scale = np.abs(values)
        # Sums tell most states apart; those of equal ones differ by no more than their slack.
        self._total, self._size = float(values.sum()), float(self._scale.sum())

    def is_like(self, other: _Times) -> bool:
        """Whether all of them are the same in every plan."""
        if abs(self._total - other._total) > 2 * TOLERANCE * (self._size + other._size):
            return False
        slack = np.maximum(np.maximum(self._scale, other._scale), self._scale[-1])
        return bool((np.abs(self._values - other._values) <= TOLERANCE * slack).all())


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
        self._steps: dict[tuple[int, Pass, frozenset[str] | None], _Step] = {}
        self._left_by: dict[object, list[tuple[int, _Times]]] = {}
        self._tails: dict[int, tuple[float, Mapping[str, float]]] = {}

    def run(self, runs: Sequence[tuple[Pass, int]], *, says_ends: bool = True) -> ChainCost:
        """Schedules `count` times each pass, one after the other, each fed by the one before.
        `says_ends`: also when blocks end, which takes longer to find out."""
        exact = None
        if any(each.is_free_at_any_time for each, _ in runs):
            exact = frozenset(stream for each, _ in runs for stream in each.streams)
        steps: dict[int, tuple[_Step, int]] = {}
        ends: list[tuple[float, float, int]] = []
        streams = launches = 0.0
        state = 0
        for each, count in runs:
            left, launch = count, each.launch_seconds
            while left:
                step = self._step(state, each, exact)
                times = left if step.after == state else 1
                begin = streams, launches
                streams, launches = streams + times * step.seconds, launches + times * launch
                if says_ends:
                    last = self._host_bound(streams, launches)
                    first = last
                    if times > 1:
                        first = self._host_bound(begin[0] + step.seconds, begin[1] + launch)
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

    def _step(self, state: int, each: Pass, exact: frozenset[str] | None) -> _Step:
        key = (state, each, exact)
        if key not in self._steps:
            self._steps[key] = self._made_step(self._states[state], each, exact)
        return self._steps[key]

    def _made_step(self, before: _State, each: Pass, exact: frozenset[str] | None) -> _Step:
        """What a block adds to a state. `exact`: the streams of a chain in which something waits
        for nothing at all, so that it matters since when they are free."""
        # What the first block receives is there when it begins.
        border = before.border or ((0.0, COMPUTE),) * len(each.inputs)
        form = each.moments(Start(tuple(before.free), tuple(why for _, why in border)))
        found = form.at((*before.free.values(), before.idle_since, *(at for at, _ in border)))
        taken = found[form.streams[COMPUTE]]
        border = tuple(latest_of(made, found) if made else (taken, "") for made in form.border)
        border = tuple((at - taken, why) if why else (0.0, "") for at, why in border)
        # Nothing that waits for the border begins sooner: since when a stream has been free
        # before that does not matter, unless something waits for nothing at all.
        floor = LONG_AGO
        if exact is None:
            floor = cast("float", smaller(0.0, *(at for at, why in border if why)))
        free = {
            stream: larger(found[number] - taken, floor)
            for stream, number in form.streams.items()
            if stream != COMPUTE
        }
        idle_since = larger(before.idle_since - taken, floor)
        if exact is not None and exact <= free.keys():
            idle_since = 0.0  # of no stream that there is
        after = _State(free, idle_since, border)
        number = self._number(after, each, taken)
        return _Step(taken, form.compute, form.waited(found), number)

    def _number(self, state: _State, left_by: Pass, seconds: float) -> int:
        """The number of a state; what the same pass has left may be the same."""
        times = _Times(state.times, seconds)
        known = self._left_by.setdefault((left_by, state.names), [])
        for number, other in known:
            if times.is_like(other):
                return number
        number = len(self._states)
        known.append((number, times))
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
