"""The times of a pass on the streams of a device, as functions of the times at its start.

An instruction starts when its stream is free and its operands are ready, and ends after its
seconds. So every time in a pass is the maximum over some times at its start, each plus a delay. The
delays are found once per pass, and evaluated for the start times of each block that has the pass.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from distir.simulation.pricing.instructions import COMPUTE, Instruction

Delays: TypeAlias = Mapping[int, float]
"""A time in a pass: by the number of a time at the start, the least seconds between the two."""

Causes: TypeAlias = Mapping[str, Delays]
"""When a value is ready, by stream: the time until which that stream may make it wait."""

NumberedCauses: TypeAlias = tuple[tuple[str, int], ...]
"""`Causes` with the numbers of moments (`Moments.delays`) in place of delays."""


SEVERAL = "several"
"""Stands for the stream that makes a value where that may be one or another. No stream is called
that, so all of them wait for the value."""


class Start(NamedTuple):
    """What the times at the start of a pass are times of. Compute is free at time 0.

    The times are, in order: when each of `streams` is free; since when all other streams are free;
    and the `border` times, at which values from the block before are ready.
    """

    streams: tuple[str, ...] = ()
    """Names of streams other than compute."""
    border: tuple[str, ...] = ()
    """Per border time, the stream that made the values; `""` if they are ready at the start."""
    handed: tuple[int, ...] = ()
    """Per value from the block before, the number of its border time."""

    @property
    def num_times(self) -> int:
        """How many times these are."""
        return len(self.streams) + 1 + len(self.border)

    def of_first(self, inputs: int) -> Start:
        """The start of the first block of a chain, which gets `inputs` values: compute has made all
        of them at one time. The start of another block is returned as it is."""
        if self.border or not inputs:
            return self
        return self._replace(border=(COMPUTE,), handed=(0,) * inputs)


@dataclass(frozen=True)
class Moments:
    """The times of a pass (*moments*) as delays after the times at its start."""

    delays: tuple[Delays, ...]
    """The delays of each moment; moments with most delays come first."""
    streams: Mapping[str, int]
    """By stream, the moment at which it is free after the pass."""
    border: tuple[NumberedCauses, ...]
    """Per output, the moments at which it may be ready."""
    waits: tuple[tuple[int, NumberedCauses], ...]
    """Per compute instruction that reads from another stream: the moment at which compute is free
    before it, and the moments at which its operands may be ready."""
    compute: float
    """Seconds in which compute is busy."""

    def at(self, times: Sequence[float]) -> Sequence[float]:
        """The values of all moments, given the times at the start (without that of compute, 0)."""
        given = (*times, 0.0)
        return [max([given[at] + late for at, late in each.items()]) for each in self.delays]

    def waited(self, times: Sequence[float]) -> dict[str, float]:
        """Seconds that compute waits, by stream, given the values of all moments."""
        seconds: dict[str, float] = {}
        for begin, awaited in self.waits:
            at, why = latest_of(awaited, times)
            if at > times[begin]:
                seconds[why] = seconds.get(why, 0.0) + at - times[begin]
        return seconds


def pass_moments(
    instructions: Sequence[Instruction],
    inputs: Sequence[object],
    outputs: Sequence[object],
    start: Start,
) -> Moments:
    """The moments of a pass with these instructions, which gets `inputs` from the block before and
    hands `outputs` on."""
    return _DelayWalk(start, inputs).walked(instructions, outputs)


class _DelayWalk:
    """Walks through the instructions of a pass, with all times as delays."""

    def __init__(self, start: Start, inputs: Sequence[object]) -> None:
        idle = len(start.streams)
        self.idle: Delays = {idle: 0.0}
        self.free: dict[str, Delays] = {COMPUTE: {idle + 1 + len(start.border): 0.0}}
        self.free |= {stream: {number: 0.0} for number, stream in enumerate(start.streams)}
        border: list[Causes] = [
            {why: {idle + 1 + number: 0.0}} if why else {}
            for number, why in enumerate(start.border)
        ]
        self.ready: dict[object, Causes] = {
            value: border[number] for value, number in zip(inputs, start.handed, strict=False)
        }
        self.compute = 0.0

    def walked(self, instructions: Sequence[Instruction], outputs: Sequence[object]) -> Moments:
        """The moments after all instructions."""
        waits: list[tuple[Delays, Causes]] = []
        for each in instructions:
            before = self.free[COMPUTE]
            awaited = self._awaited(each)
            self._run(each, awaited)
            if each.stream == COMPUTE and awaited:
                waits.append((before, awaited))
        handed = [self.ready.get(value, {}) for value in outputs]
        read = (awaited for _, awaited in waits)
        causes = (delays for causes in (*handed, *read) for delays in causes.values())
        named = {
            id(each): each for each in (*self.free.values(), *causes, *(at for at, _ in waits))
        }
        delays = sorted(named.values(), key=len, reverse=True)
        numbers = {id(each): number for number, each in enumerate(delays)}

        def numbered(causes: Causes) -> NumberedCauses:
            return tuple((why, numbers[id(at)]) for why, at in causes.items())

        return Moments(
            delays=tuple(delays),
            streams={stream: numbers[id(free)] for stream, free in self.free.items()},
            border=tuple(map(numbered, handed)),
            waits=tuple((numbers[id(before)], numbered(awaited)) for before, awaited in waits),
            compute=self.compute,
        )

    def _awaited(self, each: Instruction) -> Causes:
        """When the operands of an instruction are ready that other streams have made."""
        awaited: dict[str, Delays] = {}
        for value in each.reads:
            for why, at in self.ready.get(value, {}).items():
                if why != each.stream and awaited.get(why) is not at:
                    awaited[why] = latest(awaited[why], at) if why in awaited else at
        return awaited

    def _run(self, each: Instruction, awaited: Causes) -> None:
        stream = each.stream
        if stream is None:
            if awaited:
                self.ready.update((value, awaited) for value in each.writes)
            return
        after = [*awaited.values(), self.free.get(stream, self.idle)]
        if each.after_compute:
            after.append(self.free[COMPUTE])
        begin = latest(*after)
        end = {at: late + each.seconds for at, late in begin.items()}
        self.free[stream] = end
        made = {stream: end}
        self.ready.update((value, made) for value in each.writes)
        if stream == COMPUTE:
            self.compute += each.seconds


LONG_AGO = -math.inf
"""The time of what has no time."""


def latest_of(causes: NumberedCauses, times: Sequence[float]) -> tuple[float, str]:
    """The latest of some moments and its stream, given the values of all moments; `(LONG_AGO, "")`
    if there are no moments."""
    at, why = LONG_AGO, ""
    for cause, number in causes:
        if times[number] > at:
            at, why = times[number], cause
    return at, why


def latest(*times: Delays) -> Delays:
    """The latest of some times."""
    delays: dict[int, float] = dict(times[0])
    for each in times[1:]:
        for at, late in each.items():
            delays[at] = max(delays[at], late) if at in delays else late
    return delays


__all__ = ["LONG_AGO", "SEVERAL", "Moments", "Start", "latest_of", "pass_moments"]
