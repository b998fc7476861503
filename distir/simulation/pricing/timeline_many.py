"""Array version of `timeline.py`: the instructions of a pass, one after the other, from many states
at once.

Which times an instruction waits for depends on the form of its pass and on what the times at the
start are times of, and on no number. It is found once for all passes of a form (`PassForm.walk`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import NamedTuple, TypeAlias

import numpy as np

from distir.arrays import Floats, Indices
from distir.simulation.pricing.instructions import COMPUTE
from distir.simulation.pricing.timeline import SEVERAL, Start


class FormStep(NamedTuple):
    """An instruction without its seconds; values are numbers."""

    stream: str | None
    after_compute: bool
    reads: tuple[int, ...]
    writes: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class PassForm:
    """What passes have in common that differ in their seconds alone: the streams of their
    instructions, and what each reads and makes, where values are numbered. Made by `form_of`, so
    that equal forms are one, and compared by identity."""

    inputs: tuple[int, ...]
    steps: tuple[FormStep, ...]
    outputs: tuple[int, ...]
    handed_times: tuple[int, ...]
    """Per output, the number of its border time: outputs of one instruction share a time."""
    _walks: dict[Start, Walk] = field(default_factory=dict[Start, "Walk"])

    @cached_property
    def streams(self) -> tuple[str, ...]:
        """The streams of the instructions, but for views."""
        return tuple(each.stream for each in self.steps if each.stream is not None)

    def walk(self, start: Start) -> Walk:
        """How the instructions run from states of a start."""
        if start not in self._walks:
            self._walks[start] = _Walker(self, start).walked(self)
        return self._walks[start]


@lru_cache(maxsize=1 << 11)
def form_of(
    inputs: tuple[int, ...],
    steps: tuple[FormStep, ...],
    outputs: tuple[int, ...],
    handed_times: tuple[int, ...],
) -> PassForm:
    """The form of passes."""
    return PassForm(inputs, steps, outputs, handed_times)


Causes: TypeAlias = Mapping[str, int]
"""When a value is ready, by stream: the row of the time until which that stream may make it
wait."""


class WalkStep(NamedTuple):
    """A step of a walk, at whose end there is a time more."""

    begin: int
    """The row of a time that it waits for."""
    others: tuple[int, ...]
    """The rows of the other times that it waits for."""
    seconds: int | None
    """The row of its seconds among those of the instructions on streams; None: it takes none."""


@dataclass(frozen=True, slots=True)
class Walk:
    """How the instructions of passes of one form run from states of one start. Times are rows:
    those at the start, then when compute is free there, and then the end of each step."""

    starts: int
    """How many times there are at the start, with that of compute."""
    steps: tuple[WalkStep, ...]
    streams: Mapping[str, int]
    """By stream, the row of the time at which it is free after the pass."""
    border: tuple[int, ...]
    """Per border time, the row of the time at which it is ready."""
    since: tuple[int, ...]
    """Per row, the times that it cannot be earlier than: the sum of all `1 << row`."""
    end: Start
    """What the times after the pass are times of."""
    kept: Indices
    """The rows of these times."""
    awaited: Indices
    """Which of these times are of values that the next pass may wait for."""

    def run(self, times: Floats, seconds: Floats) -> Floats:
        """All times, of shape (rows, states), given those at the start, of shape (times, states),
        and the seconds of the instructions on streams, of shape (instructions, states)."""
        values = np.empty((self.starts + len(self.steps), times.shape[1]))
        values[: len(times)] = times
        values[len(times) : self.starts] = 0.0  # compute, and what it made before a first block
        rows, took = list(values), list(seconds)
        for end, (first, others, own) in zip(rows[self.starts :], self.steps, strict=True):
            begin = rows[first]
            for other in others:
                begin = np.maximum(begin, rows[other], out=end)
            if own is not None:
                np.add(begin, took[own], out=end)
        return values


_NOTHING: Causes = {}


class _Walker:
    """Walks through the instructions of a pass, with all times as rows."""

    def __init__(self, form: PassForm, start: Start) -> None:
        start = start.of_first(len(form.inputs))
        self.idle = len(start.streams)
        self.starts = self.idle + 2 + len(start.border)
        self.free: dict[str, int] = {COMPUTE: self.starts - 1}
        self.free |= {stream: number for number, stream in enumerate(start.streams)}
        border: list[Causes] = [
            {why: self.idle + 1 + number} if why else {} for number, why in enumerate(start.border)
        ]
        self.ready: dict[int, Causes] = {
            value: border[number] for value, number in zip(form.inputs, start.handed, strict=False)
        }
        self.steps: list[WalkStep] = []
        self.since = [1 << time for time in range(self.starts)]

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
            end = self.free[each.stream] = self._step(self._last(after), next(numbers))
            made = {each.stream: end}
            self.ready |= dict.fromkeys(each.writes, made)
        first = [form.handed_times.index(time) for time in range(len(set(form.handed_times)))]
        handed = [self._handed(self.ready.get(form.outputs[place], {})) for place in first]
        streams = tuple(stream for stream in self.free if stream != COMPUTE)
        makers, border = tuple(why for why, _ in handed), tuple(row for _, row in handed)
        kept = [*(self.free[stream] for stream in streams), self.idle, *border]
        awaited = [at for at, why in enumerate(makers, start=len(streams) + 1) if why]
        return Walk(
            self.starts,
            tuple(self.steps),
            self.free,
            border,
            tuple(self.since),
            Start(streams, makers, form.handed_times),
            np.array(kept, np.int64),
            np.array(awaited, np.int64),
        )

    def _awaited(self, each: FormStep) -> Causes:
        """When the operands of an instruction are ready that other streams have made."""
        awaited: dict[str, int] = {}
        for value in each.reads:
            for why, row in self.ready.get(value, _NOTHING).items():
                if why != each.stream:
                    known = awaited.get(why, row)
                    awaited[why] = row if known == row else self._latest((known, row))
        return awaited

    def _handed(self, causes: Causes) -> tuple[str, int]:
        """The stream that makes a value for the next block, and the row of the time at which it is
        ready: when compute is free, if none makes it."""
        if not causes:
            return "", self.free[COMPUTE]
        last = self._last(causes.values())
        why = next(why for why, row in causes.items() if row == last[0])
        return why if len(last) == 1 else SEVERAL, self._latest(last)

    def _last(self, rows: Collection[int]) -> Sequence[int]:
        """Those of some times than which no other one is always later."""
        different = list(set(rows))
        for row in different if len(different) > 1 else ():
            earlier = self.since[row] & ~(1 << row)
            different = [other for other in different if not earlier >> other & 1]
        return different

    def _latest(self, rows: Collection[int]) -> int:
        """The row of the latest of some times."""
        last = self._last(rows)
        return last[0] if len(last) == 1 else self._step(last, None)

    def _step(self, after: Sequence[int], seconds: int | None) -> int:
        """The row of a step that waits for the times of some rows."""
        begin, *others = after
        row = self.starts + len(self.steps)
        self.steps.append(WalkStep(begin, tuple(others), seconds))
        since = 1 << row
        for each in after:
            since |= self.since[each]
        self.since.append(since)
        return row


@dataclass(frozen=True, eq=False, slots=True)
class ManyPass:
    """A pass whose seconds have one number per program size. Compared by identity."""

    form: PassForm
    numbers: Floats
    """Of shape (instructions on streams + `BESIDE`, program sizes): the seconds of the
    instructions; and then those in which compute is busy, those on the gradient stream after the
    pass, and those of what adds up over passes (`SUMMED`)."""

    @classmethod
    def of(cls, form: PassForm, numbers: Floats) -> ManyPass:
        """A pass with these `numbers`, but for the seconds in which compute is busy, which are
        added."""
        computing = [row for row, stream in enumerate(form.streams) if stream == COMPUTE]
        numbers[-BESIDE] = np.add.reduce(numbers[computing], axis=0)
        return cls(form, numbers)


SUMMED = 3
"""How many numbers of a pass add up over passes: the seconds of its launches, its `link_seconds`
and its `scatter_seconds`."""

BESIDE = 2 + SUMMED
"""How many numbers a pass has beside those of its instructions."""


__all__ = ["BESIDE", "SUMMED", "FormStep", "ManyPass", "PassForm", "Walk", "WalkStep", "form_of"]
