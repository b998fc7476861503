"""Chains after some of their passes, many at once: the states of streams as tables.

A state is a column of times, and so far a chain is a column of sums. A pass is run from the times
of each state (`timeline_many.py`); until it is computed, compute is busy or waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from distir.arrays import Floats, Indices
from distir.cost.amounts import taken
from distir.simulation.pricing.instructions import COMPUTE
from distir.simulation.pricing.patterns import Pattern
from distir.simulation.pricing.timeline import LONG_AGO, SEVERAL, Start
from distir.simulation.pricing.timeline_many import Causes, ManyPass, Walk

ManyBound = Callable[[Floats, Floats], Any]
"""Seconds of stretches of program, from the seconds of their streams and of their launches."""

STREAMS, LAUNCHES, EXPOSED, SETTLED = range(4)
"""Rows of `_Progress.sums`: seconds until compute is free, seconds of launches, seconds in which
compute waited, and the time until which the gradient stream is busy."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Chains after some of their passes, with the same passes to come.

    Chains with different numbers of copies are often in equal states, which are kept once.
    """

    start: Start
    times: Floats
    """Of the different states, shape (times, states)."""
    sums: Floats
    """Shape (sums, chains)."""
    size_numbers: Indices
    """Of each state the number of its program size."""
    state: Indices | None = None
    """Of each chain the number of its state; None: a state per chain, in order."""
    rests: Floats = field(default_factory=lambda: np.empty((0, 2, 0)))
    """Shape (passes, 2, chains): per pass of the last pattern, the seconds of streams and of
    launches after it."""

    def apart(self) -> Progress:
        """The same chains, with a state for every chain."""
        if self.state is None:
            return self
        numbers = self.size_numbers[self.state]
        return replace(self, times=self.times[:, self.state], size_numbers=numbers, state=None)

    def taken(self, chains: Indices) -> Progress:
        """The chains with these numbers."""
        states, state = chains, None
        if self.state is not None:
            states, state = np.unique(self.state[chains], return_inverse=True)
        numbers = self.size_numbers[states]
        times, sums = self.times.take(states, axis=1), self.sums.take(chains, axis=1)
        return Progress(self.start, times, sums, numbers, state)

    @classmethod
    def begun(cls, sizes: Indices) -> Progress:
        """Chains before their first pass, one for each of these program sizes."""
        return cls(Start(), np.zeros((1, len(sizes))), np.zeros((4, len(sizes))), sizes)

    def at_sizes(self, sizes: Indices) -> Progress:
        """The same chains after a step, with numbers of program sizes in place of their places
        among those of the step's pattern."""
        return replace(self, size_numbers=sizes[self.size_numbers])

    def of_chains(self, amount: Any) -> Any:
        """An amount with one number per program size, as one number per chain."""
        numbers = self.size_numbers
        if self.state is not None:
            numbers = numbers[self.state]
        return taken(amount, numbers)


def after_pattern(
    before: Progress, pattern: Pattern, exact: frozenset[str] | None, bound: ManyBound
) -> Progress:
    """Chains after one copy of a pattern. `exact`: see `exact_streams`."""
    start, times, sums = before.start, before.times, before.sums.copy()
    ends: list[Floats] = []
    lengths: list[tuple[Any, Any]] = []
    for each, launch_seconds in zip(pattern.passes, pattern.launch_seconds, strict=True):
        start, times, took, waited = _after_pass(start, times, each, before.size_numbers, exact)
        if before.state is not None:
            took, waited = took[before.state], waited[before.state]
        launch = before.of_chains(launch_seconds)
        sums[STREAMS] += took
        sums[LAUNCHES] += launch
        sums[EXPOSED] += waited
        lengths.append((took, launch))
        if pattern.settles:
            ends.append(np.asarray(bound(*sums[[STREAMS, LAUNCHES]])))
    if pattern.settles:
        seconds = [before.of_chains(each) for each in pattern.settling_seconds]
        whole = sum(seconds)
        done = np.maximum(sums[SETTLED], earliest_start(ends, seconds)) + whole
        sums[SETTLED] = np.where(whole > 0, done, sums[SETTLED])
    rests = np.zeros((len(lengths), 2, sums.shape[1]))
    for number in range(len(lengths) - 1, 0, -1):
        rests[number - 1] = rests[number]
        rests[number - 1, 0] += lengths[number][0]
        rests[number - 1, 1] += lengths[number][1]
    return Progress(start, times, sums, before.size_numbers, before.state, rests)


def earliest_start(ends: Sequence[Floats], seconds: Sequence[Any]) -> Floats:
    """The earliest time at which the gradient stream can start to settle the blocks of a pattern
    without a gap, if it settles each block after its pass has ended."""
    start: Floats = np.full(1, -np.inf)
    before: Any = 0.0
    for end, own in zip(ends, seconds, strict=True):
        start = np.where(np.asarray(own) > 0, np.maximum(start, end - before), start)
        before = before + own
    return start


def _after_pass(
    start: Start,
    times: Floats,
    each: ManyPass,
    size_numbers: Indices,
    exact: frozenset[str] | None,
) -> tuple[Start, Floats, Floats, Floats]:
    """The states after a pass (what their times are, and the times), the seconds until the pass is
    computed, and those in which compute waits. `exact`: see `exact_streams`."""
    inputs = len(each.form.inputs)
    new = len(start.of_first(inputs).border) - len(start.border)
    if new:
        start = start.of_first(inputs)
        times = np.concatenate([times, np.zeros((new, times.shape[1]))])
    walk = each.walk(start)
    values = each.times(times, size_numbers, walk)
    took = values[walk.streams[COMPUTE]]
    whys, border = _border(walk, values, took)
    floor: Any = LONG_AGO
    if exact is None:
        handed = [number for number, why in enumerate(whys) if why]
        floor = np.minimum(border[handed].min(axis=0, initial=0.0), 0.0)
    streams = {name: number for name, number in walk.streams.items() if name != COMPUTE}
    free = np.maximum(values[list(streams.values())] - took, floor)
    idle = np.maximum(times[len(start.streams)] - took, floor)
    if exact is not None and exact <= streams.keys():
        idle = np.zeros_like(idle)  # there is no other stream
    after = np.concatenate([free, idle[None], border])
    waited = np.maximum(took - each.compute_seconds[size_numbers], 0.0)
    return Start(tuple(streams), whys, each.form.handed_times), after, took, waited


def _border(walk: Walk, values: Floats, took: Floats) -> tuple[tuple[str, ...], Floats]:
    """The streams that make the values for the next block, and when, relative to compute."""
    if all(len(made) < 2 for made in walk.border):
        plain = [next(iter(made.items()), ("", walk.streams[COMPUTE])) for made in walk.border]
        return tuple(why for why, _ in plain), values[[row for _, row in plain]] - took
    latest = [_latest(made, values) if made else ("", took) for made in walk.border]
    return tuple(why for why, _ in latest), np.stack([at for _, at in latest]) - took


def _latest(causes: Causes, values: Floats) -> tuple[str, Floats]:
    """The stream that makes a value last, which is `SEVERAL` unless it is the same in all states,
    and when."""
    (why, row), *others = causes.items()
    at = values[row]
    for cause, other in others:
        later = values[other] > at
        if later.all():
            why, at = cause, values[other]
        elif later.any():
            why, at = SEVERAL, np.maximum(at, values[other])
    return why, at


__all__ = [
    "EXPOSED",
    "LAUNCHES",
    "SETTLED",
    "STREAMS",
    "ManyBound",
    "Progress",
    "after_pattern",
    "earliest_start",
]
