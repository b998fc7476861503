"""Runs schedules, action by action, with what stages take in many plans at once.

Runs of one schedule lie next to each other in *lanes*, and take a step together: what an action
needs is looked up once for all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from distir.arrays import Floats, Indices, edges
from distir.schedules import COST_KINDS, CompiledSchedule
from distir.schedules.compiled.steps import find_steps

LANES = 8
"""Runs that lie next to each other: processors load eight numbers of 32 bits at once."""

NUMBERS_AT_ONCE = 1 << 18
"""Steps times ranks times lanes that are run together, to bound memory."""

Numbers = NDArray[np.floating[Any]]
"""Whole numbers, in 32 bits where no sum of them needs more."""


@dataclass(frozen=True, slots=True)
class ActionSteps:
    """The actions of a schedule in steps: an action comes as soon as those are done that it needs.
    The first three arrays have the shape (steps, ranks)."""

    cost: NDArray[np.int16]
    """The cost number of the action of a rank; one more than all if there is none."""
    needed: NDArray[np.int16]
    """The number, from 1, of the step with the action for whose message it waits, or 0."""
    sender: NDArray[np.int16]
    """The rank of that action."""
    first: Indices
    """The step of the first action of each rank."""

    @classmethod
    def of(cls, compiled: CompiledSchedule) -> ActionSteps:
        """The steps of a schedule."""
        steps = find_steps(compiled)
        shape = int(steps.step.max()) + 1, len(compiled.stages_of_ranks)
        at, none = (steps.step, steps.rank), compiled.stages * COST_KINDS
        needed, sender = np.zeros((2, *shape), np.int16)
        cost = np.full(shape, none, np.int16)
        cost[at] = steps.cost
        needed[at] = np.where(steps.needs >= 0, steps.step[steps.needs] + 1, 0)
        sender[at] = np.where(steps.needs >= 0, steps.rank[steps.needs], 0)
        return cls(cost, needed, sender, np.argmax(cost < none, axis=0))


@dataclass(frozen=True, slots=True)
class Schedules:
    """Several schedules. Their actions are in rows, one schedule after the other, with one number
    per step and rank, and a further step in which no rank has an action."""

    stages: Indices
    ranks: Indices
    steps: Indices
    """The number of stages, ranks and steps of each schedule."""
    cost: Indices
    needed: Indices
    """See `ActionSteps`."""
    sender: Indices
    """The rank of an action for whose message another one waits, less the rank of that one."""
    first: Indices
    """The step of the first action of each rank, one schedule after the other."""
    first_action: Indices
    first_rank: Indices
    """Where the actions and the ranks of each schedule begin in these rows."""

    @classmethod
    def of(cls, every: Sequence[ActionSteps], stages: Sequence[int]) -> Schedules:
        """Schedules, given their steps and their numbers of stages."""
        steps, ranks = np.array([own.cost.shape for own in every]).T
        cost, needed, sender = (list[NDArray[np.int16]]() for _ in range(3))
        for own, count in zip(every, stages, strict=True):
            each = np.arange(own.cost.shape[1], dtype=np.int16)
            cost += own.cost.ravel(), np.full_like(each, count * COST_KINDS)
            needed += own.needed.ravel(), np.zeros_like(each)
            sender += (own.sender - each).ravel(), np.zeros_like(each)
        actions = (steps + 1) * ranks
        return cls(
            np.array(stages),
            ranks,
            steps,
            np.concatenate(cost).astype(np.int64),
            np.concatenate(needed).astype(np.int64),
            np.concatenate(sender).astype(np.int64),
            np.concatenate([own.first for own in every]),
            np.cumsum(actions) - actions,
            np.cumsum(ranks) - ranks,
        )


def lengths(
    schedules: Schedules, which: Indices, seconds: Sequence[Numbers], training: bool
) -> Floats:
    """How long the schedules `which` are, each from the time at which a rank begins if they train;
    messages take no time. Equal numbers of `which` are adjacent. `seconds` are what stages take, of
    shape (runs, stages, cost kinds): those of adjacent runs with equally many stages together."""
    lanes = _Lanes.of(schedules, which, seconds)
    found = np.empty((len(lanes.which), LANES))
    for some in _parts(schedules, lanes.which):
        found[some] = _run(schedules, lanes, some, training)
    return found.reshape(-1)[lanes.place]


@dataclass(frozen=True, slots=True)
class _Lanes:
    """Runs in rows of `LANES` with one schedule, where some lanes may stay without a run."""

    which: Indices
    """The schedule of each row of runs."""
    place: Indices
    """The lane of each run, among those of all rows."""
    costs: Numbers
    """What actions take in lanes: rows of all costs, and of no action, for each row of runs."""
    first: Indices
    """The first of these for each row of runs."""

    @classmethod
    def of(cls, schedules: Schedules, which: Indices, seconds: Sequence[Numbers]) -> _Lanes:
        """See `lengths`."""
        begins = edges(which)
        counts, begins = begins[1:] - begins[:-1], begins[:-1]
        rows = -(-counts // LANES)
        first_lane = (np.cumsum(rows) - rows) * LANES
        place = np.arange(len(which)) + np.repeat(first_lane - begins, counts)
        own = np.repeat(which[begins], rows)
        sizes = schedules.stages[own] * COST_KINDS + 1
        first = np.cumsum(sizes) - sizes
        ends = np.cumsum([len(each) for each in seconds]).tolist()
        costs = [
            _costs(each, place[end - len(each) : end])
            for each, end in zip(seconds, ends, strict=True)
        ]
        return cls(own, place, np.concatenate(costs), first)


def _costs(seconds: Numbers, place: Indices) -> Numbers:
    """See `_Lanes.costs`; of runs with equally many stages, and the lane of each."""
    first, end = int(place[0]) // LANES, int(place[-1]) // LANES + 1
    flat = seconds.reshape(len(seconds), -1)
    runs = np.zeros(((end - first) * LANES, flat.shape[1]), seconds.dtype)
    runs[place - first * LANES] = flat
    found = np.zeros((end - first, flat.shape[1] + 1, LANES), seconds.dtype)
    found[:, :-1] = runs.reshape(end - first, LANES, -1).swapaxes(1, 2)
    return found.reshape(-1, LANES)


def _parts(schedules: Schedules, which: Indices) -> Iterator[Indices]:
    """Rows of runs that are run together, those with more steps first, so that few wait for
    others."""
    order = np.argsort(-schedules.steps[which], kind="stable")
    steps, ranks = schedules.steps[which[order]], np.cumsum(schedules.ranks[which[order]])
    begin, done = 0, 0
    while begin < len(order):
        most = NUMBERS_AT_ONCE // (LANES * int(steps[begin]))
        end = max(begin + 1, int(np.searchsorted(ranks, done + most, "right")))
        yield order[begin:end]
        begin, done = end, int(ranks[end - 1])


def _run(schedules: Schedules, lanes: _Lanes, some: Indices, training: bool) -> Numbers:
    """How long schedules are in some rows of runs, of shape (rows, lanes); see `lengths`. Of
    these, the first has most steps; others wait until it is done."""
    which = lanes.which[some]
    ranks, steps = schedules.ranks[which], int(schedules.steps[which[0]])
    begins = np.cumsum(ranks) - ranks
    row = np.repeat(np.arange(len(which)), ranks)
    each = np.arange(len(row))
    own, rank = which[row], each - begins[row]
    step = np.minimum(np.arange(steps)[:, None], schedules.steps[own])
    at = step * ranks[row] + (schedules.first_action[own] + rank)
    took = lanes.costs.take(schedules.cost.take(at) + lanes.first[some][row], axis=0)
    needed = schedules.needed.take(at) * len(row) + (schedules.sender.take(at) + each)
    ended = np.zeros((1 + steps, len(row), LANES), took.dtype)
    flat, begin = ended.reshape(-1, LANES), np.empty((len(row), LANES), took.dtype)
    for now in range(steps):
        flat.take(needed[now], axis=0, out=begin, mode="clip")
        np.maximum(begin, ended[now], out=begin)
        np.add(begin, took[now], out=ended[now + 1])
    end = ended[-1]
    if training:
        first = schedules.first[schedules.first_rank[own] + rank]
        end = end - (ended[first + 1, each] - took[first, each])
    return cast("Numbers", np.maximum.reduceat(end, begins, axis=0))


__all__ = ["ActionSteps", "Numbers", "Schedules", "lengths"]
