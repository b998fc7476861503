"""Array version of `timeline.py`: the instructions of a pass, one after the other, from many states
at once.

Which times an instruction waits for depends on the form of its pass and on what the times at the
start are times of, and on no number. It is found once for all passes of a form (`walk_of`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple, TypeAlias

import numpy as np

from distir.arrays import Floats, Indices
from distir.simulation.pricing.instructions import COMPUTE
from distir.simulation.pricing.timeline import Start


class FormStep(NamedTuple):
    """An instruction without its seconds; values are numbers."""

    stream: str | None
    after_compute: bool
    reads: tuple[int, ...]
    writes: tuple[int, ...]


class PassForm(NamedTuple):
    """Equal for passes that differ in their seconds alone: the streams of their instructions, and
    what each reads and makes, where values are numbered."""

    inputs: tuple[int, ...]
    steps: tuple[FormStep, ...]
    outputs: tuple[int, ...]
    handed_times: tuple[int, ...]
    """Per output, the number of its border time: outputs of one instruction share a time."""


Causes: TypeAlias = Mapping[str, int]
"""When a value is ready, by stream: the row of the time until which that stream may make it
wait."""


@dataclass(frozen=True, slots=True)
class Walk:
    """How the instructions of passes of one form run from states of one start. Times are rows:
    those at the start, then when compute is free there, and then the end of each step."""

    starts: int
    """How many times there are at the start, with that of compute."""
    after: tuple[tuple[int, ...], ...]
    """Per step, the rows of the times that it waits for."""
    seconds: tuple[int | None, ...]
    """Per step, the row of its seconds among those of the instructions on streams; None: it takes
    no time."""
    streams: Mapping[str, int]
    """By stream, the row of the time at which it is free after the pass."""
    border: tuple[Causes, ...]
    """Per border time, the rows of the times at which it may be ready."""
    depends: tuple[int, ...]
    """Per row, which times at the start it depends on: the sum of all `1 << time`."""

    def run(self, times: Floats, seconds: Floats) -> Floats:
        """All times, of shape (rows, states), given those at the start, of shape (times, states),
        and the seconds of the instructions on streams, of shape (instructions, states)."""
        values = np.empty((self.starts + len(self.after), times.shape[1]))
        values[: self.starts - 1], values[self.starts - 1] = times, 0.0
        rows, took = list(values), list(seconds)
        for end, after, own in zip(rows[self.starts :], self.after, self.seconds, strict=True):
            begin = rows[after[0]]
            for other in after[1:]:
                begin = np.maximum(begin, rows[other], out=end)
            if own is not None:
                np.add(begin, took[own], out=end)
        return values


class _Walker:
    """Walks through the instructions of a pass, with all times as rows."""

    def __init__(self, form: PassForm, start: Start) -> None:
        idle = len(start.streams)
        self.starts = idle + 2 + len(start.border)
        self.idle = idle
        self.free: dict[str, int] = {COMPUTE: self.starts - 1}
        self.free |= {stream: number for number, stream in enumerate(start.streams)}
        border: list[Causes] = [
            {why: idle + 1 + number} if why else {} for number, why in enumerate(start.border)
        ]
        self.ready: dict[int, Causes] = {
            value: border[number] for value, number in zip(form.inputs, start.handed, strict=False)
        }
        self.after: list[tuple[int, ...]] = []
        self.seconds: list[int | None] = []
        self.depends = [1 << time for time in range(self.starts)]

    def walked(self, form: PassForm) -> Walk:
        """The walk after all instructions."""
        numbers = iter(range(len(form.steps)))
        for each in form.steps:
            awaited = self._awaited(each)
            if each.stream is None:
                if awaited:
                    self.ready |= dict.fromkeys(each.writes, awaited)
                continue
            after = [self.free.get(each.stream, self.idle), *awaited.values()]
            if each.after_compute:
                after.append(self.free[COMPUTE])
            end = self.free[each.stream] = self._step(after, next(numbers))
            made = {each.stream: end}
            self.ready |= dict.fromkeys(each.writes, made)
        first = [form.handed_times.index(time) for time in range(len(set(form.handed_times)))]
        return Walk(
            self.starts,
            tuple(self.after),
            tuple(self.seconds),
            self.free,
            tuple(self.ready.get(form.outputs[place], {}) for place in first),
            tuple(self.depends),
        )

    def _awaited(self, each: FormStep) -> Causes:
        """When the operands of an instruction are ready that other streams have made."""
        awaited: dict[str, int] = {}
        for value in each.reads:
            for why, row in self.ready.get(value, {}).items():
                if why != each.stream:
                    awaited[why] = self._later(awaited[why], row) if why in awaited else row
        return awaited

    def _later(self, one: int, other: int) -> int:
        """The row of the later of two times until which one stream may make a value wait."""
        if one == other or (self._is_instruction(one) and self._is_instruction(other)):
            return max(one, other)  # a stream does one thing after the other
        return self._step((one, other), None)

    def _is_instruction(self, row: int) -> bool:
        """Whether the time of a row is the end of an instruction of this pass."""
        return row >= self.starts and self.seconds[row - self.starts] is not None

    def _step(self, after: Sequence[int], seconds: int | None) -> int:
        """The row of a step that waits for the times of some rows."""
        self.after.append(tuple(dict.fromkeys(after)))
        self.seconds.append(seconds)
        depends = 0
        for row in after:
            depends |= self.depends[row]
        self.depends.append(depends)
        return self.starts + len(self.after) - 1


@lru_cache(maxsize=1 << 12)
def walk_of(form: PassForm, start: Start) -> Walk:
    """How the instructions of passes of a form run from states of a start."""
    return _Walker(form, start).walked(form)


@dataclass(frozen=True, eq=False)
class ManyPass:
    """A pass whose seconds have one number per program size. Compared by identity."""

    form: PassForm
    seconds: Floats
    """Of the instructions on streams, of shape (instructions, program sizes)."""

    @cached_property
    def compute_seconds(self) -> Floats:
        """Seconds in which compute is busy, of shape (program sizes,)."""
        streams = [each.stream for each in self.form.steps if each.stream is not None]
        computing = [stream == COMPUTE for stream in streams]
        return np.add.reduce(self.seconds[computing], axis=0)

    def walk(self, start: Start) -> Walk:
        """See `walk_of`."""
        if start not in self._walks:
            self._walks[start] = walk_of(self.form, start)
        return self._walks[start]

    def times(self, times: Floats, sizes: Indices, walk: Walk) -> Floats:
        """All times of a walk, of shape (rows, states), given those at the start and the program
        sizes of the states."""
        return walk.run(times, self.seconds.take(sizes, axis=1))

    @cached_property
    def _walks(self) -> dict[Start, Walk]:
        return {}


__all__ = ["FormStep", "ManyPass", "PassForm", "Walk", "walk_of"]
