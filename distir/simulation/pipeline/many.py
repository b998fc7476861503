"""The array version of `one.py`: many plans at once, one per column. Their schedules may differ in
how often patterns repeat, and in nothing else.

There are three ways, from the fastest to the slowest. If ranks run one cost kind for all
microbatches before the next, there is a closed form (`phases.py`). If not, actions that may run at
the same time are one operation on arrays (`waves.py`, `repeats.py`). If microbatches overtake each
other, every action is an operation of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import chain
from typing import TypeAlias

import numpy as np

from distir.schedules import COST_KINDS, FORWARD, CompiledSchedule
from distir.schedules.compiled.skeleton import skeleton_of
from distir.simulation.pipeline.phases import Phases, find_phases, run_phases
from distir.simulation.pipeline.repeats import run_program
from distir.simulation.pipeline.waves import Floats, Ints, WaveProgram, find_program

NO_WAIT = 2.0**-42
"""Fraction of the time that has passed: a shorter wait than that is rounding."""

MOST_SCHEDULES = 1 << 13
"""The number of schedules whose programs are kept."""


@dataclass(frozen=True, slots=True)
class PipelineColumns:
    """`PipelineTime` of many plans; arrays have the shape (ranks, plans)."""

    end: Floats
    waited_for_transfer: Floats
    waited_for_stage: Floats
    begin: Floats
    """The start of each rank's first action."""
    begin_moving: Floats
    """The part of this time in which the message that the rank waits for is on its way."""
    last_gradients: Floats
    """Shape (stages of all ranks, plans), one rank after the other: the start of the action that
    completes the stage's gradients; 0 if there is no such action."""

    @classmethod
    def joined(cls, several: Sequence[PipelineColumns]) -> PipelineColumns:
        """The plans of all, one after the other."""
        names = [each.name for each in fields(cls)]
        return cls(*(np.concatenate([getattr(own, n) for own in several], axis=1) for n in names))


Program: TypeAlias = Phases | WaveProgram | None
"""How a schedule is run: as phases, as waves, or (None) action by action."""


def run_pipeline_columns(
    compiled: CompiledSchedule, seconds: Floats, transfers: Floats, *, goes_on: bool = True
) -> PipelineColumns:
    """Runs many plans with one schedule.

    `seconds` of actions and `transfers`, the seconds of their messages, have the shape
    (stages · COST_KINDS, plans). `goes_on` says whether a rank goes on while its message is on its
    way.
    """
    alike = np.zeros(seconds.shape[1], np.int64)
    return run_alike_columns((compiled,), alike, seconds, transfers, goes_on=goes_on)


def run_alike_columns(
    schedules: Sequence[CompiledSchedule],
    which: Ints,
    seconds: Floats,
    transfers: Floats,
    *,
    goes_on: bool = True,
) -> PipelineColumns:
    """Runs many plans whose schedules may run together (see `alike_schedules`). `which`, of shape
    (plans,), has the number of each plan's schedule; the rest is as in `run_pipeline_columns`."""
    busy = _busy_seconds(schedules, which, seconds)
    return _columns(schedules, which, seconds, transfers, busy, goes_on)


def run_adjacent_columns(
    schedules: Sequence[CompiledSchedule],
    which: Ints,
    seconds: Floats,
    transfers: Floats,
    *,
    goes_on: bool = True,
) -> PipelineColumns:
    """Runs many plans whose schedules have the same stages on the same ranks, and the same
    overlapped pairs. `which` is as in `run_alike_columns`, and ascends; schedules that may run
    together are adjacent."""
    busy = _busy_seconds(schedules, which, seconds)
    alike = alike_schedules(schedules)
    ends = np.searchsorted(which, [1 + own[-1] for own in alike]).tolist()
    found = [
        _columns(
            [schedules[number] for number in own],
            which[begin:end] - own[0],
            seconds[:, begin:end],
            transfers[:, begin:end],
            busy[:, begin:end],
            goes_on,
        )
        for own, begin, end in zip(alike, [0, *ends[:-1]], ends, strict=True)
        if begin < end
    ]
    return found[0] if len(found) == 1 else PipelineColumns.joined(found)


def alike_schedules(schedules: Sequence[CompiledSchedule]) -> list[list[int]]:
    """Groups of schedules, by their numbers, that can run together: schedules of a group differ at
    most in how often ranks repeat their patterns."""
    groups: dict[object, list[int]] = {}
    for place, compiled in enumerate(schedules):
        groups.setdefault(_how(compiled)[0] or compiled, []).append(place)
    return list(groups.values())


def _columns(
    schedules: Sequence[CompiledSchedule],
    which: Ints,
    seconds: Floats,
    transfers: Floats,
    busy: Floats,
    goes_on: bool,
) -> PipelineColumns:
    """See `run_alike_columns`. `busy` are the seconds of all actions of each rank, of shape (ranks,
    plans)."""
    ways = [_how(each) for each in schedules]
    first, program = schedules[0], ways[0][0]
    if program is None:
        return _one_by_one(first, seconds, transfers, goes_on)
    times = np.array([each for _, each in ways], np.int64)[which].T
    if isinstance(program, Phases):
        found, last = run_phases(program, times[0].astype(float), seconds, transfers, goes_on)
        end, for_transfer, for_stage, begin, moving = found
        return PipelineColumns(end, for_transfer, for_stage, begin, moving, last)
    kept = run_program(program, times, seconds, transfers, goes_on)
    ranks, rows = program.ranks, seconds.shape[1]
    end, for_stage, begin, moving = kept[: 4 * ranks].reshape(4, ranks, rows)
    for_transfer = end - for_stage - busy
    for_transfer[for_transfer < NO_WAIT * end] = 0.0
    return PipelineColumns(end, for_transfer, for_stage, begin, moving, kept[4 * ranks :])


@lru_cache(maxsize=MOST_SCHEDULES)
def _how(compiled: CompiledSchedule) -> tuple[Program, tuple[int, ...]]:
    """How the schedule is run, and the number of microbatches of a phase or of repeats of each
    repeated part. A schedule with a skeleton is run by the skeleton's program, if that program has
    all of its repeated parts. Waves of a single round do not repeat, so that none is looked for."""
    found = skeleton_of(compiled)
    if found is not None and (found[0].rounds + found[1] > 1 or find_phases(compiled)):
        skeleton, rounds = found
        program = _program(skeleton.compiled)
        times = _times(program, skeleton.compiled)
        if isinstance(program, Phases):
            return program, (times[0] + rounds,)
        if program is not None:
            for place, (_, repeat) in enumerate(program.parts[:-1]):
                assert repeat is not None
                each = skeleton.rounds_in(repeat.repetitions)
                if each and rounds % each == 0 and times[place] + rounds // each >= 1:
                    own = times[place] + rounds // each
                    return program, (*times[:place], own, *times[place + 1 :])
    program = _program(compiled)
    return program, _times(program, compiled)


@lru_cache(maxsize=MOST_SCHEDULES)
def _program(compiled: CompiledSchedule) -> Program:
    return find_phases(compiled) or find_program(compiled)


def _times(program: Program, compiled: CompiledSchedule) -> tuple[int, ...]:
    """The number of microbatches of a phase, or of repeats of each repeated part."""
    if program is None:
        return ()
    if isinstance(program, Phases):
        return (compiled.timed_costs[0][0][1],)
    return tuple(repeat.times for _, repeat in program.parts if repeat is not None)


def _busy_seconds(schedules: Sequence[CompiledSchedule], which: Ints, seconds: Floats) -> Floats:
    """Seconds of all actions of each rank, of shape (ranks, plans)."""
    first = schedules[0]
    stages = np.array([*chain.from_iterable(first.stages_of_ranks)], np.int64)
    numbers = (stages[:, None] * COST_KINDS + np.arange(COST_KINDS)).ravel()
    counts = np.stack([each.matrix_alone for each in schedules], axis=-1).astype(np.float64)
    busy = seconds.take(numbers, axis=0)
    busy *= counts.reshape(len(numbers), -1).take(which, axis=1)
    lengths = COST_KINDS * np.array([*map(len, first.stages_of_ranks)])
    found: Floats = np.add.reduceat(busy, np.cumsum(lengths) - lengths, axis=0)
    if first.pairs:
        of_pairs = np.stack([each.pair_counts for each in schedules], axis=-1)
        for pair in range(len(first.pairs)):
            own = seconds[(first.stages + pair) * COST_KINDS + FORWARD]
            found += own * of_pairs[:, pair].take(which, axis=-1)
    return found


def _one_by_one(
    compiled: CompiledSchedule, seconds: Floats, transfers: Floats, goes_on: bool
) -> PipelineColumns:
    """Runs one action after the other, each for all plans."""
    ranks, rows = len(compiled.stages_of_ranks), seconds.shape[1]
    free, transfer_wait, stage_wait = np.zeros((3, ranks, rows))
    link_free = np.zeros((compiled.num_links, rows))
    senders = [compiled.needs[i] for i in compiled.first]
    kept = {*compiled.first, *chain.from_iterable(compiled.last_gradients)}
    starts: dict[int, Floats] = {-1: np.zeros(rows)}
    ended: dict[int, Floats] = {}
    arrived: dict[int, Floats] = {}
    first_ends: dict[int, Floats] = {}
    flat = compiled.flat
    actions = zip(flat.rank, flat.cost, flat.needs, flat.link, strict=True)
    for i, (rank, cost, needed, link) in enumerate(actions):
        begin = free[rank]
        if needed >= 0:
            arrival, left = arrived.pop(needed), ended.pop(needed)
            start = np.maximum(arrival, begin)
            for_stage = np.maximum(left, begin) - begin
            stage_wait[rank] += for_stage
            transfer_wait[rank] += start - begin - for_stage
            begin = start
        if i in kept:
            starts[i] = begin.copy()
        end = begin + seconds[cost]
        free[rank] = end
        if link >= 0:
            ended[i] = end
            link_free[link] = np.maximum(end, link_free[link]) + transfers[cost]
            arrived[i] = link_free[link].copy()
            if i in senders:
                first_ends[i] = end
            if not goes_on:
                transfer_wait[rank] += arrived[i] - end
                free[rank] = arrived[i]
    begin = np.stack([starts[i] for i in compiled.first])
    begin_moving = np.zeros_like(begin)
    for rank, sender in enumerate(senders):
        if sender >= 0:
            begin_moving[rank] = begin[rank] - first_ends[sender]
    last = np.stack([starts[i] for own in compiled.last_gradients for i in own])
    return PipelineColumns(free, transfer_wait, stage_wait, begin, begin_moving, last)


__all__ = [
    "PipelineColumns",
    "alike_schedules",
    "run_adjacent_columns",
    "run_alike_columns",
    "run_pipeline_columns",
]
