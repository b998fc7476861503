"""An iteration of the ranks of many plans with schedules that are alike, as `fast` has it of one
plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from distir.cost import CostModel
from distir.plan.grid import Grid
from distir.schedules import BACKWARD, COST_KINDS, FORWARD, INPUT_PART, WEIGHT_PART
from distir.simulation.instructions import Pricing
from distir.simulation.pipeline_columns import PipelineColumns, run_alike_columns
from distir.simulation.stage_columns import NAMES, PLACE
from distir.strategies import Places

if TYPE_CHECKING:
    from distir.schedules import CompiledSchedule, HeldMatrix
    from distir.simulation.fast import Simulator

Floats = NDArray[np.float64]

NUMBERS_HELD = 1 << 16
"""Numbers, of situations times plans, that are added up together: they should stay in the cache."""


@dataclass(frozen=True, slots=True)
class LayoutGroup:
    """Layouts that go through schedules together, one per plan.

    `rows` are the rows of the pool that their stages are, of shape (stages, plans); `rankings` say
    where their ranks lie. `tied` are the seconds in which groups of ranks add up gradients between
    them, in order.
    """

    rows: Places
    rankings: Places
    tied: Mapping[tuple[int, ...], Floats]


class Hops:
    """The levels of the cluster that messages between ranks cross."""

    def __init__(self, cost: CostModel, rankings: list[Grid]) -> None:
        self._pricings = [Pricing(cost, grid) for grid in rankings]
        self._known: dict[tuple[int, int, int], int] = {}

    def levels(self, rankings: Places, here: int, there: int) -> Places:
        """The level between two ranks, per plan."""
        present = np.unique(rankings)
        found = np.zeros(len(self._pricings), np.int64)
        for ranking in present.tolist():
            key = (ranking, here, there)
            if key not in self._known:
                self._known[key] = self._pricings[ranking].level(here, there)
            found[ranking] = self._known[key]
        return found[rankings]


class _Stages:
    """What the stages of a group take and hold, looked up in the pool by name."""

    def __init__(self, pool: Floats, rows: Places) -> None:
        self._pool, self._rows = pool, rows
        self.plans = rows.shape[1]

    def __call__(self, name: str) -> Floats:
        """Of shape (stages, plans)."""
        return self._pool[PLACE[name]][self._rows]


def iterations(
    simulator: Simulator,
    schedules: Sequence[CompiledSchedule],
    which: Places,
    pool: Floats,
    hops: Hops,
    group: LayoutGroup,
) -> tuple[Floats, Floats, Floats, Floats]:
    """Per plan the seconds of an iteration, the bytes of the fullest rank, and of the seconds those
    that ranks wait for each other and for messages, on average. `which` of the schedules, which are
    alike, each plan has; it ascends."""
    compiled = schedules[0]
    training = simulator.workload.training
    stages = _Stages(pool, group.rows)
    seconds = np.zeros((*group.rows.shape[:1], COST_KINDS, group.rows.shape[1]))
    for kind in _kinds(compiled):
        seconds[:, kind] = stages(f"seconds {kind}")
    time = run_alike_columns(
        schedules,
        which,
        seconds.reshape(-1, seconds.shape[-1]),
        _transfers(compiled, pool, hops, group),
        goes_on=simulator.cost.profile.goes_on(max(map(len, compiled.stages_of_ranks))),
    )
    own = _Own(compiled)
    exposed = own.sum(_exposed(schedules, which, stages, own))
    tails = _settling_tails(compiled, time, stages) if training else np.zeros_like(time.end)
    end = time.end + tails
    waited, took = np.zeros_like(end), np.zeros_like(end)
    for ranks, between in group.tied.items():
        start = end[list(ranks)].max(axis=0)
        for rank in ranks:
            waited[rank] += start - end[rank]
            took[rank] += between
            end[rank] = start + between
    refresh = own.sum(stages("refresh")[own.stages])
    optimizer = own.sum(stages("optimizer")[own.stages])
    begin, moving = (time.begin, time.begin_moving) if training else (0.0, 0.0)
    end = end + optimizer + refresh
    length = end - begin
    iteration = length.max(axis=0)
    bubble = time.waited_for_stage - (begin - moving) + waited + (iteration - length)
    communication = exposed + refresh + tails + (time.waited_for_transfer - moving + took)
    peak = _peaks(schedules, which, stages, own)
    return iteration, peak, bubble.mean(axis=0), communication.mean(axis=0)


class _Own:
    """The stages of all ranks, one rank after the other."""

    def __init__(self, compiled: CompiledSchedule) -> None:
        held = compiled.stages_of_ranks
        self.stages = np.concatenate([np.asarray(own, np.int64) for own in held])
        self.first = np.cumsum([0, *(len(own) for own in held[:-1])])

    def sum(self, values: Floats) -> Floats:
        """Sums over the stages of ranks, from shape (stages of ranks, plans)."""
        if len(self.first) == len(self.stages):
            return values
        return np.add.reduceat(values, self.first, axis=0)


def _kinds(compiled: CompiledSchedule) -> tuple[int, ...]:
    """The kinds of action that a schedule has."""
    return tuple(np.flatnonzero(compiled.count_matrix.sum(axis=0)).tolist())


def _exposed(
    schedules: Sequence[CompiledSchedule], which: Places, stages: _Stages, own: _Own
) -> Floats:
    """Seconds in which compute waits for collectives, of shape (stages of ranks, plans)."""
    counts = np.stack([each.count_matrix for each in schedules], axis=-1).astype(np.float64)
    waited = np.zeros((len(own.stages), stages.plans))
    for kind in _kinds(schedules[0]):
        waited += stages(f"exposed {kind}")[own.stages] * counts[:, kind].take(which, axis=-1)
    return waited


def _transfers(compiled: CompiledSchedule, pool: Floats, hops: Hops, group: LayoutGroup) -> Floats:
    """Seconds of messages, of shape (stages · kinds of action, plans)."""
    stages, plans = group.rows.shape
    seconds = np.zeros((stages * COST_KINDS, plans))
    for (stage, step), pairs in compiled.routes.items():
        rows, longest = group.rows[stage], np.zeros(plans)
        for pair in pairs:
            levels = hops.levels(group.rankings, *pair)
            np.maximum(longest, pool[len(NAMES) + 2 * levels + (step < 0), rows], out=longest)
        for kind in (FORWARD,) if step > 0 else (BACKWARD, INPUT_PART):
            seconds[stage * COST_KINDS + kind] = longest
    return seconds


def _settling_tails(compiled: CompiledSchedule, time: PipelineColumns, stages: _Stages) -> Floats:
    """How long gradient streams go on after the last action of their rank."""
    service = stages("settling")
    settled = {kind: stages(f"settled {kind}") for kind in (BACKWARD, WEIGHT_PART)}
    tails = np.empty_like(time.end)
    for rank, own in enumerate(compiled.stages_of_ranks):
        done = np.zeros(time.end.shape[1])
        for place, kind in compiled.completing[rank]:
            stage, start = own[place], time.last_gradients[rank][place]
            ready = settled[kind][stage] - service[stage]
            left = np.maximum(np.maximum(done - start, ready), 0.0) + service[stage]
            done = start + np.where(service[stage] > 0, left, done - start)
        tails[rank] = np.maximum(0.0, done - time.end[rank])
    return tails


def _peaks(
    schedules: Sequence[CompiledSchedule], which: Places, stages: _Stages, own: _Own
) -> Floats:
    """Bytes of the fullest rank: its state, and at the worst moment what is in flight."""
    compiled = schedules[0]
    kinds = _kinds(compiled)
    peaks = {kind: stages(f"peak {kind}") for kind in kinds}
    forward = stages(f"delta {FORWARD}")
    both = forward + stages(f"delta {INPUT_PART}") if INPUT_PART in kinds else 0.0 * forward
    state = own.sum(stages("state")[own.stages])
    fullest = np.zeros(state.shape[1])
    for rank, chosen in enumerate(compiled.stages_of_ranks):
        places = list(chosen)
        deltas = np.stack([forward[places], both[places]], axis=1).reshape(2 * len(places), -1)
        own_peaks = np.stack([peaks[kind][places] for kind in kinds])
        for matrix, plans in _held(schedules, which, rank):
            most = _most_held(matrix, kinds, deltas[:, plans], own_peaks[:, :, plans])
            most += state[rank, plans]
            np.maximum(fullest[plans], most, out=fullest[plans])
    return fullest


def _most_held(matrix: HeldMatrix, kinds: Sequence[int], deltas: Floats, peaks: Floats) -> Floats:
    """Bytes in flight at the worst moment. `deltas` are (2 · own stages, plans) as the columns of
    the matrix, `peaks` (kinds, own stages, plans)."""
    steps = matrix.steps
    rows = np.searchsorted(kinds, steps.kinds) * peaks.shape[1] + steps.places
    peaks = peaks.reshape(-1, peaks.shape[-1])
    found = np.zeros(peaks.shape[1])
    at_once = max(64, NUMBERS_HELD // max(1, len(rows)))
    for first in range(0, len(found) if len(rows) else 0, at_once):
        some = slice(first, first + at_once)
        live = deltas[steps.columns, some]
        live *= steps.changes[:, None]
        np.add.accumulate(live, axis=0, out=live)
        held = live[steps.last] if len(live) else np.zeros((len(rows), live.shape[1]))
        held[steps.last < 0] = 0.0
        held += peaks[rows, some]
        np.maximum(found[some], held.max(axis=0), out=found[some])
    return found


def _held(
    schedules: Sequence[CompiledSchedule], which: Places, rank: int
) -> Iterator[tuple[HeldMatrix, slice]]:
    """What a rank holds, and the plans in which it does; they are next to each other."""
    ends = np.searchsorted(which, np.arange(len(schedules)), side="right").tolist()
    matrices = [each.held_matrices[rank] for each in schedules]
    first = 0
    for matrix, following, end in zip(matrices, [*matrices[1:], None], ends, strict=True):
        if following is not matrix:
            yield matrix, slice(first, end)
            first = end


__all__ = ["Hops", "LayoutGroup", "iterations"]
