"""A pass on the streams of a device, as a function of when they are free.

An instruction starts when its stream is free and its operands are ready, the latest of these, and
ends so many seconds later. Every time in a pass is therefore the latest of some times at its start,
each with a delay of its own: found once, and asked at the start that each block has.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest

import numpy as np

from distir.arrays import Floats, Indices
from distir.cost.amounts import is_all, is_positive, larger
from distir.simulation.pricing.instructions import COMPUTE, Instruction

Delays = Mapping[int, float]
"""A time: by time at the start, the least that lies between."""

Causes = Mapping[str, Delays]
"""When something is ready, by the streams that may be what it waits for."""

ByCause = tuple[tuple[str, int], ...]
"""The same with numbers of moments."""


SEVERAL = "several"
"""Stands for the stream that makes a value where that is another one in every plan. No stream is
called that, so all of them wait for the value."""


@dataclass(frozen=True, slots=True)
class Start:
    """What is known when a pass starts: streams by name, in the order of their times; then the time
    since when all others are free; then times at which values that cross the border are ready, and
    by which stream these were made (`""` where they are there already). `handed` says which of
    these times each value has. Compute is free at 0."""

    streams: tuple[str, ...] = ()
    border: tuple[str, ...] = ()
    handed: tuple[int, ...] = ()

    def of_first(self, inputs: int) -> Start:
        """At the first block of a chain, which is handed so many values: compute has made all of
        them, at one time."""
        if self.border or not inputs:
            return self
        return replace(self, border=(COMPUTE,), handed=(0,) * inputs)


@dataclass(frozen=True)
class Moments:
    """Times of a pass, by number, as delays after those at its start; those with most come first.

    `streams` are when streams are free at its end, `border` when its outputs are ready; `waits`,
    per instruction that waits for another stream, when compute is free before and when what it
    reads is ready. `compute` is the busy time of compute.
    """

    delays: tuple[Delays, ...]
    streams: Mapping[str, int]
    border: tuple[ByCause, ...]
    waits: tuple[tuple[int, ByCause], ...]
    compute: float

    def at(self, times: Sequence[float]) -> Sequence[float]:
        """All of them for times at the start; of compute, the last, it is 0."""
        given = (*times, 0.0)
        return [max([given[at] + late for at, late in each.items()]) for each in self.delays]

    def many(self, times: Floats, places: Indices | None) -> Floats:
        """The same for many plans, of shape (moments, plans): at all points at which delays are
        known, or at these `places`."""
        laid, which, rounds = self._laid
        if places is not None and laid.shape[1] > 1:
            laid = laid.take(places, axis=1)
        given = np.concatenate([times, np.zeros((1, times.shape[1]))]).take(which, axis=0)
        given += laid
        found, first = given[: len(self.delays)], len(self.delays)
        for count in rounds:
            np.maximum(found[:count], given[first : first + count], out=found[:count])
            first += count
        return found

    def waited(self, times: Sequence[float]) -> dict[str, float]:
        """How long compute waits for which streams, at these moments."""
        found: dict[str, float] = {}
        for begin, awaited in self.waits:
            at, why = latest_of(awaited, times)
            if at > times[begin]:
                found[why] = found.get(why, 0.0) + at - times[begin]
        return found

    def waited_in_many(self, times: Floats) -> Floats:
        """How long compute waits in many plans, for whatever it is."""
        begins, ends = self._plain_waits
        waits = times.take(ends, axis=0)
        waits -= times.take(begins, axis=0)
        found = np.maximum(waits, 0.0, out=waits).sum(axis=0)
        for begin, awaited in self.waits:
            if len(awaited) > 1:
                at = times[[number for _, number in awaited]].max(axis=0)
                found += np.maximum(at - times[begin], 0.0)
        return found

    @cached_property
    def _plain_waits(self) -> tuple[Indices, Indices]:
        """When waits for one stream begin, and when they end."""
        plain = [(begin, awaited[0][1]) for begin, awaited in self.waits if len(awaited) == 1]
        begins, ends = np.array(plain, np.int64).reshape(-1, 2).T
        return begins, ends

    @cached_property
    def _laid(self) -> tuple[Floats, Indices, list[int]]:
        """All delays below each other and the times that they are after: the first of each moment,
        the second of each that has one, and so on; and how many have a second, a third, …"""
        rounds = list(zip_longest(*(each.items() for each in self.delays)))
        laid = [each for row in rounds for each in row if each]
        late = [np.atleast_1d(np.asarray(late)) for _, late in laid]
        return (
            np.stack(np.broadcast_arrays(*late)),
            np.array([at for at, _ in laid], np.int64),
            [sum(each is not None for each in row) for row in rounds[1:]],
        )


def moments(
    instructions: Sequence[Instruction],
    inputs: Sequence[object],
    outputs: Sequence[object],
    start: Start,
) -> Moments:
    """The moments of a pass."""
    return _Walk(start, inputs).walked(instructions, outputs)


class _Walk:
    """Instructions one by one, with all times as delays."""

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
        waits: list[tuple[Delays, Causes]] = []
        for each in instructions:
            before = self.free[COMPUTE]
            awaited = self._awaited(each)
            self._run(each, awaited)
            if each.stream == COMPUTE and awaited:
                waits.append((before, awaited))
        handed = [self.ready.get(value, {}) for value in outputs]
        causes = (each for own in (*handed, *(own for _, own in waits)) for each in own.values())
        named = {
            id(each): each for each in (*self.free.values(), *causes, *(at for at, _ in waits))
        }
        delays = sorted(named.values(), key=len, reverse=True)
        numbers = {id(each): number for number, each in enumerate(delays)}

        def numbered(causes: Causes) -> ByCause:
            return tuple((why, numbers[id(at)]) for why, at in causes.items())

        return Moments(
            delays=tuple(delays),
            streams={stream: numbers[id(free)] for stream, free in self.free.items()},
            border=tuple(map(numbered, handed)),
            waits=tuple((numbers[id(before)], numbered(awaited)) for before, awaited in waits),
            compute=self.compute,
        )

    def _awaited(self, each: Instruction) -> Causes:
        """What an instruction waits for besides its own stream, whose work is done before."""
        found: dict[str, Delays] = {}
        for value in each.reads:
            for why, at in self.ready.get(value, {}).items():
                if why != each.stream and found.get(why) is not at:
                    found[why] = latest(found[why], at) if why in found else at
        return found

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


def latest_of(causes: ByCause, times: Sequence[float]) -> tuple[float, str]:
    """The latest of some moments, and what made it: `SEVERAL` if that is not the same in all of
    many plans. `(LONG_AGO, "")` if there is none."""
    at, why = LONG_AGO, ""
    for cause, number in causes:
        later = times[number] > at
        if is_all(later):
            at, why = times[number], cause
        elif is_positive(later):
            at, why = larger(at, times[number]), SEVERAL
    return at, why


def latest(*times: Delays) -> Delays:
    """The latest of some times."""
    found: dict[int, float] = dict(times[0])
    for each in times[1:]:
        for at, late in each.items():
            found[at] = larger(found[at], late) if at in found else late
    return found


__all__ = ["LONG_AGO", "SEVERAL", "Moments", "Start", "latest_of", "moments"]
