"""What the fullest rank of a pipeline holds at least, wherever its stages begin.

At the moment when a rank has most microbatches in flight, it holds the state of its layers, `s`
each, and what these microbatches have left behind, `h` each. With `c` in flight, a layer on the
rank holds `s + c h` bytes. Whatever layers each rank has, the fullest rank holds at least any
weighted mean of all, and in that mean a layer counts at least as much as on the rank where it
counts least. Weights that make layers count alike on all ranks give, for `n` equal layers,
`n / Σ 1 / (s + c h)`, the sum over the ranks.

A rank that computes `k` layers at most in the time that is allowed leaves the others to the rest:
each of `p` ranks has at least `n - (p - 1) k` layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from math import inf

import numpy as np

from distir.arrays import Floats, Indices
from distir.schedules import CompiledSchedule

ROUNDING = 1e-9
"""Relative rounding of times."""

NUMBERS_AT_ONCE = 1 << 18
"""Ranks times strategies that are looked at together, to bound memory."""


@dataclass(frozen=True, slots=True)
class LayerBytes:
    """The equal layers of a kind: how many there are, bytes of each at rest, bytes that a
    microbatch leaves behind in each, and seconds in which it is computed in each, forward and
    backward; arrays with one number per strategy."""

    count: Floats
    state: Floats
    left_behind: Floats
    seconds: Floats

    def taken(self, which: Indices) -> LayerBytes:
        """Those of the strategies with these numbers."""
        return LayerBytes(*(getattr(self, each.name)[which] for each in fields(self)))

    def least_on(self, groups: int, allowed: Floats) -> Floats:
        """How many of the layers each rank has at least, if none takes longer than `allowed` to
        compute a microbatch."""
        times = np.divide(
            allowed, self.seconds, out=np.full(len(allowed), inf), where=self.seconds > 0
        )
        most = np.floor(times * (1 + ROUNDING))
        if groups == 1:
            return np.where(np.isfinite(allowed), self.count, 0.0)
        return np.maximum(0.0, self.count - (groups - 1) * most)


@dataclass(frozen=True, slots=True)
class RanksHolding:
    """How much of a layer the ranks of a schedule hold, on average over *groups*: ranks that hold
    the same stages, or one rank alone. Of shape (groups,)."""

    states: Floats
    """How often the state of a layer is held at least."""
    in_flight: Floats
    """How many microbatches are in flight at least when a rank has most of them."""
    apart: bool
    """Whether no stage is on several ranks, which share its work."""

    @classmethod
    def of(cls, compiled: CompiledSchedule) -> RanksHolding:
        """What the schedule says."""
        flight = compiled.peak_in_flight
        counts = iter(flight.counts[0])
        held: dict[int, list[tuple[int, int]]] = {}
        for rank, stages in enumerate(flight.stages_of_ranks):
            for stage in stages:
                held.setdefault(stage, []).append((rank, next(counts)[0]))
        group = list(range(len(flight.stages_of_ranks)))
        for holders in held.values():
            numbers = {group[rank] for rank, _ in holders}
            if len(numbers) > 1:
                group = [min(numbers) if number in numbers else number for number in group]
        states: dict[int, float] = {}
        in_flight: dict[int, float] = {}
        for holders in held.values():
            number = group[holders[0][0]]
            ranks = group.count(number)
            copies, most = len(holders) / ranks, sum(count for _, count in holders) / ranks
            states[number] = min(copies, states.get(number, copies))
            in_flight[number] = min(most, in_flight.get(number, most))
        apart = all(len(holders) == 1 for holders in held.values())
        return cls(np.array(list(states.values())), np.array(list(in_flight.values())), apart)


def fullest_rank_bytes(
    layers: Sequence[LayerBytes],
    model: Indices,
    holding: Sequence[RanksHolding],
    schedule: Indices,
    allowed: Floats,
) -> Floats:
    """Bytes that the fullest rank of each strategy holds at least. `model` and `schedule` say which
    of the numbers in `layers` and which of the schedules in `holding` a strategy has; `allowed` are
    the seconds that each of its ranks may take for a microbatch."""
    found = np.zeros(len(model))
    widths = np.array([len(each.states) for each in holding])
    of_strategy = widths[schedule]
    for width in np.unique(widths).tolist():
        of_width = np.flatnonzero(widths == width)
        alike = [holding[int(number)] for number in of_width]
        states = np.stack([each.states for each in alike])
        in_flight = np.stack([each.in_flight for each in alike])
        apart = np.array([each.apart for each in alike])
        chosen = np.flatnonzero(of_strategy == width)
        most = max(1, NUMBERS_AT_ONCE // width)
        for begin in range(0, len(chosen), most):
            part = chosen[begin : begin + most]
            place = np.searchsorted(of_width, schedule[part])
            some = [each.taken(model[part]) for each in layers]
            time = np.where(apart[place], allowed[part], inf)
            found[part] = _least_maximum(some, states[place], in_flight[place], time)
    return found


def _least_maximum(
    layers: Sequence[LayerBytes], states: Floats, in_flight: Floats, allowed: Floats
) -> Floats:
    """The same for schedules with equally many groups: `states` and `in_flight` are of shape
    (strategies, groups)."""

    def on_groups(state: Floats, left_behind: Floats) -> Floats:
        return states * state[:, None] + in_flight * left_behind[:, None]

    whole = on_groups(
        np.sum([each.count * each.state for each in layers], axis=0),
        np.sum([each.count * each.left_behind for each in layers], axis=0),
    )
    weights = np.divide(1.0, whole, out=np.zeros_like(whole), where=whole > 0)
    total = weights.sum(axis=1)
    least = np.zeros(len(states))
    for each in layers:
        counted = weights * on_groups(each.state, each.left_behind)
        least += each.count * counted.min(axis=1)
    mean = np.divide(least, total, out=np.zeros_like(least), where=total > 0)
    fewest = [each.least_on(states.shape[1], allowed) for each in layers]
    fixed = np.sum(
        [
            on_groups(few * each.state, few * each.left_behind)
            for few, each in zip(fewest, layers, strict=True)
        ],
        axis=0,
    )
    return np.maximum(mean, fixed.max(axis=1))


__all__ = ["LayerBytes", "RanksHolding", "fullest_rank_bytes"]
