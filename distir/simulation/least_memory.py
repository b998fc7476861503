"""What the fullest rank of a pipeline holds at least, wherever its stages begin.

At the moment when a rank has most microbatches in flight, it holds the state of its layers, `s`
each, and what these microbatches have left behind, `h` each. With `c` in flight in a stage, a layer
of this stage holds `s + c h` bytes.

Of a rank with several stages, all layers count as though they lay in the stage with fewest in
flight. But every stage has a block, so that all stages have a layer but for as many as there are
other blocks; wherever these are, each other stage has one layer with more in flight.

Whatever layers each rank has, the fullest rank holds at least any weighted mean of all, and in that
mean a layer counts at least as much as on the rank where it counts least. Weights that make layers
count alike on all ranks give, for `n` equal layers, `n / Σ 1 / (s + c h)`, the sum over the ranks.

A rank that computes `k` layers at most in the time that is allowed leaves the others to the rest:
any `q` of `p` ranks have at least `n - (p - q) k` layers, of whatever kinds: at least the lightest.
The fullest of them holds at least their mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from math import inf

import numpy as np

from distir.arrays import Flags, Floats, Indices
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


@dataclass(frozen=True, slots=True)
class RanksHolding:
    """How much of a layer the ranks of a schedule hold, on average over *groups*: ranks that hold
    the same stages, or one rank alone. Of shape (groups,)."""

    ranks: Floats
    """How many ranks there are."""
    states: Floats
    """How often the state of a layer is held at least."""
    in_flight: Floats
    """How many microbatches are in flight at least when a rank has most of them."""
    more_states: Floats
    more_in_flight: Floats
    """How much more there is of one layer in each stage that surely has one."""

    @classmethod
    def of(cls, compiled: CompiledSchedule, others: int) -> RanksHolding:
        """What the schedule says, if there are so many blocks beside the layers."""
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
        states: dict[int, list[float]] = {}
        in_flight: dict[int, list[float]] = {}
        for holders in held.values():
            number = group[holders[0][0]]
            ranks = group.count(number)
            states.setdefault(number, []).append(len(holders) / ranks)
            in_flight.setdefault(number, []).append(sum(count for _, count in holders) / ranks)
        return cls(
            np.array([group.count(number) for number in states], np.float64),
            np.array([min(each) for each in states.values()]),
            np.array([min(each) for each in in_flight.values()]),
            np.array([_more(each, others) for each in states.values()]),
            np.array([_more(each, others) for each in in_flight.values()]),
        )


def _more(numbers: Sequence[float], others: int) -> float:
    """By how much numbers exceed the least of them, all together; up to `others` of them do not
    count."""
    sure = sorted(numbers)[: max(0, len(numbers) - others)]
    return sum(each - min(numbers) for each in sure)


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
        every = [np.stack([getattr(h, each.name) for h in alike]) for each in fields(RanksHolding)]
        chosen = np.flatnonzero(of_strategy == width)
        most = max(1, NUMBERS_AT_ONCE // width)
        for begin in range(0, len(chosen), most):
            part = chosen[begin : begin + most]
            place = np.searchsorted(of_width, schedule[part])
            some = [each.taken(model[part]) for each in layers]
            own = RanksHolding(*(numbers[place] for numbers in every))
            found[part] = np.maximum(_mean(some, own), _crowded(some, own, allowed[part]))
    return found


def _mean(layers: Sequence[LayerBytes], holding: RanksHolding) -> Floats:
    """Bytes in the mean of all ranks, by weights that make layers count alike. The arrays of
    `holding` are of shape (strategies, groups)."""
    whole = np.sum([each.count[:, None] * _of_layer(each, holding) for each in layers], axis=0)
    weights = np.divide(1.0, whole, out=np.zeros_like(whole), where=whole > 0)
    total = weights.sum(axis=1)
    least = (weights * _more_bytes(layers, holding)).sum(axis=1)
    for each in layers:
        least += each.count * (weights * _of_layer(each, holding)).min(axis=1)
    return np.divide(least, total, out=np.zeros_like(least), where=total > 0)


def _crowded(layers: Sequence[LayerBytes], holding: RanksHolding, allowed: Floats) -> Floats:
    """Bytes in the mean of one or several ranks, of layers for which the others have no time: of
    the ranks on which layers hold most, as many as makes that most."""
    count = np.stack([each.count for each in layers])
    of_layer = np.stack([_of_layer(each, holding) for each in layers])
    order = np.argsort(-np.sum(count[..., None] * of_layer, axis=0), axis=1)
    # A layer holds at least as much as on the last of the ranks that are looked at.
    of_layer = np.take_along_axis(of_layer, order[None], axis=2)
    of_layer = np.minimum.accumulate(of_layer, axis=2)
    seconds = _least([each.seconds for each in layers], count > 0)
    times = np.divide(allowed, seconds, out=np.full(len(allowed), inf), where=seconds > 0)
    every = count.sum(axis=0)[:, None]
    most = np.minimum(every, np.floor(holding.ranks * times[:, None] * (1 + ROUNDING)))
    most = np.take_along_axis(most, order, axis=1)
    elsewhere = most.sum(axis=1, keepdims=True) - np.cumsum(most, axis=1)
    left = np.maximum(0.0, every - elsewhere)
    held = [np.take_along_axis(_more_bytes(layers, holding), order, axis=1)]
    for kind in np.argsort(of_layer, axis=0):
        few = np.minimum(left, np.take_along_axis(count[..., None], kind[None], axis=0)[0])
        held.append(few * np.take_along_axis(of_layer, kind[None], axis=0)[0])
        left = left - few
    # What the first ranks hold beside their layers adds up; the layers are those of all of them.
    every_rank: Floats = np.cumsum(held[0], axis=1) + np.sum(held[1:], axis=0)
    looked_at: Floats = np.arange(1, 1 + every_rank.shape[1], dtype=np.float64)
    return np.max(every_rank / looked_at, axis=1)


def _of_layer(layer: LayerBytes, holding: RanksHolding) -> Floats:
    """Bytes of a layer, where least is in flight."""
    return holding.states * layer.state[:, None] + holding.in_flight * layer.left_behind[:, None]


def _more_bytes(layers: Sequence[LayerBytes], holding: RanksHolding) -> Floats:
    """Bytes by which one layer in each stage that surely has one exceeds that."""
    present = np.stack([each.count for each in layers]) > 0
    state = _least([each.state for each in layers], present)
    left_behind = _least([each.left_behind for each in layers], present)
    return holding.more_states * state[:, None] + holding.more_in_flight * left_behind[:, None]


def _least(numbers: Sequence[Floats], present: Flags) -> Floats:
    """The least numbers of the kinds that are `present`; 0 where none is."""
    found = np.min(np.where(present, numbers, inf), axis=0)
    return np.where(np.isfinite(found), found, 0.0)


__all__ = ["LayerBytes", "RanksHolding", "fullest_rank_bytes"]
