"""The actions of a schedule in steps: ranks run in lockstep, and an action comes as soon as those
are done that it needs. All actions are listed, so that this is for short schedules; `waves.py`
finds what repeats in long ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from distir.arrays import Indices, Integers
from distir.schedules.compiled.compile import CompiledSchedule
from distir.schedules.compiled.waves import Passes, channels_at, rhythm_channels
from distir.schedules.core.rhythm import Rhythm

__all__ = ["Steps", "find_steps"]


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """The actions of a schedule, one rank after the other, as arrays with a number per action."""

    step: Integers
    rank: Indices
    cost: Integers
    """The cost number of each action."""
    needs: Indices
    """The action on another rank for whose message each action waits, or -1."""


def find_steps(compiled: CompiledSchedule) -> Steps:
    """The steps of a schedule, which must be valid."""
    source = compiled.source
    listed = _of_rhythm(compiled, source) if isinstance(source, Rhythm) else _of_flat(compiled)
    rank, cost, needs = listed
    borders = np.searchsorted(rank, np.arange(len(compiled.stages_of_ranks) + 1)).tolist()
    return Steps(np.array(_steps(borders, needs.tolist()), np.int64), rank, cost, needs)


def _of_rhythm(compiled: CompiledSchedule, rhythm: Rhythm) -> tuple[Indices, Integers, Indices]:
    """The rank and the cost number of each action, and the action for whose message it waits: the
    messages of a channel are read in the order in which they are sent."""
    costs: list[int] = []
    borders = [0]
    for patterns in compiled.timed_costs:
        for pattern, times in patterns:
            costs += pattern * times
        borders.append(len(costs))
    cost = np.array(costs, np.int64)
    rank = np.repeat(np.arange(len(borders) - 1), np.diff(borders))
    channels, passes = rhythm_channels(rhythm), Passes(compiled)
    reads = channels_at([each.reader for each in channels], passes.read, rank, cost)
    sends = channels_at([each.sender for each in channels], passes.sent, rank, cost)
    needs = np.full(len(cost), -1)
    needs[_by_channel(reads)] = _by_channel(sends)
    return rank, cost, needs


def _by_channel(channels: Indices) -> Indices:
    """The actions that have a channel (not -1), channel by channel."""
    order = np.argsort(channels, kind="stable")
    return order[np.searchsorted(channels, 0, sorter=order) :]


def _of_flat(compiled: CompiledSchedule) -> tuple[Indices, Integers, Indices]:
    """See `_of_rhythm`; of a schedule in which messages may overtake each other."""
    flat = compiled.flat
    order = np.argsort(flat.rank, kind="stable")
    place = np.empty(len(order) + 1, np.int64)
    place[order], place[-1] = np.arange(len(order)), -1
    rank, cost, needs = (
        np.array(each, np.int64)[order] for each in (flat.rank, flat.cost, flat.needs)
    )
    return rank, cost, place[needs]


def _steps(borders: Sequence[int], needs: Sequence[int]) -> list[int]:
    """The steps of actions, given where ranks begin and end. Each rank runs as far as it can; an
    action that runs wakes the rank that waits for it."""
    step = [-1] * len(needs)
    waiting = [-1] * len(needs)
    heads, free = list(borders[:-1]), [0] * len(borders)
    runnable = list(range(len(heads)))
    while runnable:
        rank = runnable.pop()
        now = free[rank]
        for action in range(heads[rank], borders[rank + 1]):
            needed = needs[action]
            if needed >= 0:
                sent = step[needed]
                if sent < 0:
                    waiting[needed], heads[rank], free[rank] = rank, action, now
                    break
                if sent >= now:
                    now = sent + 1
            step[action] = now
            now += 1
            if waiting[action] >= 0:
                runnable.append(waiting[action])
    return step
