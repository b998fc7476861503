"""`run_pipeline` of many plans with one schedule, as arrays: a column per plan.

Plans that are alike are run once. Where ranks do one thing with all microbatches there is a closed
form (`pipeline_phases.py`); else actions that may run at the same time are one operation on arrays
(`pipeline_waves.py`, `pipeline_repeats.py`). Where microbatches overtake each other, every action
is one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

import numpy as np

from distir.schedules import COST_KINDS, CompiledSchedule
from distir.simulation.pipeline_phases import Phases, find_phases, run_phases
from distir.simulation.pipeline_repeats import run_program
from distir.simulation.pipeline_waves import Floats, Ints, WaveProgram, find_program

NO_TIME = 2.0**-42
"""Of the time that has passed: what a rank waits less than that is rounding."""


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
    last_gradients: tuple[Floats, ...]
    """Per rank (own stages, rows): start of the action in which the stage's gradients are
    complete; 0 where there is none."""


def run_pipeline_columns(
    compiled: CompiledSchedule, seconds: Floats, transfers: Floats, *, goes_on: bool = True
) -> PipelineColumns:
    """`run_pipeline` of many plans with one schedule. `seconds` and `transfers` are
    (stages · COST_KINDS, rows)."""
    same = _distinct(seconds, transfers)
    if same is not None:
        kept, place = same
        found = _columns(compiled, seconds[:, kept], transfers[:, kept], goes_on)
        return PipelineColumns(
            found.end[:, place],
            found.waited_for_transfer[:, place],
            found.waited_for_stage[:, place],
            found.begin[:, place],
            found.begin_moving[:, place],
            tuple(each[:, place] for each in found.last_gradients),
        )
    return _columns(compiled, seconds, transfers, goes_on)


def _distinct(seconds: Floats, transfers: Floats) -> tuple[Ints, Ints] | None:
    """Plans that differ, and for each plan which of them it is like; None if nearly all differ."""
    weights = np.random.default_rng(0).random((2, len(seconds), 1))
    marks = (seconds * weights[0]).sum(axis=0) + (transfers * weights[1]).sum(axis=0)
    _, kept, place = np.unique(marks, return_index=True, return_inverse=True)
    like = kept[place]
    if 10 * len(kept) > 9 * len(marks):
        return None
    if not all(np.array_equal(each[:, like], each) for each in (seconds, transfers)):
        return None
    return kept, place


def _columns(
    compiled: CompiledSchedule, seconds: Floats, transfers: Floats, goes_on: bool
) -> PipelineColumns:
    program = _how(compiled)
    if program is None:
        return _one_by_one(compiled, seconds, transfers, goes_on)
    if isinstance(program, Phases):
        times, last = run_phases(program, seconds, transfers, goes_on)
        end, for_transfer, for_stage, begin, moving = times
        own = _by_rank(compiled, last)
        return PipelineColumns(end, for_transfer, for_stage, begin, moving, own)
    found = run_program(program, seconds, transfers, goes_on)
    ranks, rows = program.ranks, seconds.shape[1]
    end, for_stage, begin, moving = found[: 4 * ranks].reshape(4, ranks, rows)
    for_transfer = end - for_stage - _busy(compiled, seconds)
    for_transfer[for_transfer < NO_TIME * end] = 0.0
    own = _by_rank(compiled, found[4 * ranks :])
    return PipelineColumns(end, for_transfer, for_stage, begin, moving, own)


@lru_cache(maxsize=1024)
def _how(compiled: CompiledSchedule) -> Phases | WaveProgram | None:
    """How the schedule is run; None: action by action."""
    return find_phases(compiled) or find_program(compiled)


def _busy(compiled: CompiledSchedule, seconds: Floats) -> Floats:
    """What all actions of a rank take (ranks, rows)."""
    found = np.zeros((len(compiled.counts), seconds.shape[1]))
    for busy, own, counts in zip(found, compiled.stages_of_ranks, compiled.counts, strict=True):
        for stage, kinds in zip(own, counts, strict=True):
            for kind, count in enumerate(kinds):
                if count:
                    busy += seconds[stage * COST_KINDS + kind] * count
    return found


def _by_rank(compiled: CompiledSchedule, stages: Floats) -> tuple[Floats, ...]:
    """Rows of all ranks' stages, rank by rank."""
    return tuple(np.split(stages, np.cumsum([len(own) for own in compiled.stages_of_ranks])[:-1]))


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
    last = tuple(np.stack([starts[i] for i in own]) for own in compiled.last_gradients)
    return PipelineColumns(free, transfer_wait, stage_wait, begin, begin_moving, last)


__all__ = ["PipelineColumns", "run_pipeline_columns"]
