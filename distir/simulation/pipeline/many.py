"""`run_pipeline` of many plans with one schedule, or with schedules that differ in how long they go
on alone, as arrays: a column per plan.

Where ranks do one thing with all microbatches there is a closed
form (`pipeline_phases.py`); else actions that may run at the same time are one operation on arrays
(`pipeline_waves.py`, `pipeline_repeats.py`). Where microbatches overtake each other, every action
is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import TypeAlias

import numpy as np

from distir.schedules import COST_KINDS, CompiledSchedule
from distir.schedules.compiled.skeleton import skeleton_of
from distir.simulation.pipeline.phases import Phases, find_phases, run_phases
from distir.simulation.pipeline.repeats import run_program
from distir.simulation.pipeline.waves import Floats, Ints, WaveProgram, find_program

NO_TIME = 2.0**-42
"""Of the time that has passed: what a rank waits less than that is rounding."""

MOST_SCHEDULES = 1 << 13
"""Schedules whose programs are kept."""


@dataclass(frozen=True, slots=True)
class PipelineColumns:
    """`PipelineTime` of many plans with one schedule, one per row; arrays are (ranks, rows)."""

    end: Floats
    waited_for_transfer: Floats
    waited_for_stage: Floats
    begin: Floats
    """When a rank starts its first action."""
    begin_moving: Floats
    """For how much of this time the message that it waited for was on its way."""
    last_gradients: Floats
    """(stages of all ranks, rows), one rank after the other: start of the action in which the
    stage's gradients are complete; 0 where there is none."""


Program: TypeAlias = Phases | WaveProgram | None
"""How a schedule is run; None: action by action."""


def run_pipeline_columns(
    compiled: CompiledSchedule, seconds: Floats, transfers: Floats, *, goes_on: bool = True
) -> PipelineColumns:
    """`run_pipeline` of many plans with one schedule. `seconds` and `transfers` are
    (stages · COST_KINDS, rows)."""
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
    """The same of plans with schedules that are alike (`alike_schedules`); `which` of them each
    plan has, (rows,)."""
    return _columns(schedules, which, seconds, transfers, goes_on)


def alike_schedules(schedules: Sequence[CompiledSchedule]) -> list[list[int]]:
    """The places of schedules that can go together: they differ in how often ranks say the same
    words, at most."""
    groups: dict[object, list[int]] = {}
    for place, compiled in enumerate(schedules):
        groups.setdefault(_how(compiled)[0] or compiled, []).append(place)
    return list(groups.values())


def _columns(
    schedules: Sequence[CompiledSchedule],
    which: Ints,
    seconds: Floats,
    transfers: Floats,
    goes_on: bool,
) -> PipelineColumns:
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
    for_transfer = end - for_stage - _busy(schedules, which, seconds)
    for_transfer[for_transfer < NO_TIME * end] = 0.0
    return PipelineColumns(end, for_transfer, for_stage, begin, moving, kept[4 * ranks :])


@lru_cache(maxsize=MOST_SCHEDULES)
def _how(compiled: CompiledSchedule) -> tuple[Program, tuple[int, ...]]:
    """How the schedule is run, and how often each phase or each of what repeats. Schedules with a
    skeleton have the program of that, if they have all of it."""
    found = skeleton_of(compiled)
    if found is not None:
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
    """How often each phase, or each of what repeats."""
    if program is None:
        return ()
    if isinstance(program, Phases):
        return (compiled.repeated_costs[0][0][1],)
    return tuple(repeat.times for _, repeat in program.parts if repeat is not None)


def _busy(schedules: Sequence[CompiledSchedule], which: Ints, seconds: Floats) -> Floats:
    """What all actions of a rank take (ranks, rows)."""
    counts = np.stack([each.count_matrix for each in schedules])
    held = schedules[0].stages_of_ranks
    found = np.zeros((len(held), seconds.shape[1]))
    place = 0
    for busy, own in zip(found, held, strict=True):
        for stage in own:
            for kind in range(COST_KINDS):
                each = counts[:, place, kind]
                if each.any():
                    busy += seconds[stage * COST_KINDS + kind] * each[which]
            place += 1
    return found


def _one_by_one(
    compiled: CompiledSchedule, seconds: Floats, transfers: Floats, goes_on: bool
) -> PipelineColumns:
    """Action by action."""
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


__all__ = ["PipelineColumns", "alike_schedules", "run_alike_columns", "run_pipeline_columns"]
