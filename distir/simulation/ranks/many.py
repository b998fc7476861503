"""An iteration of the ranks of many plans, whose ranks hold the same stages, as `one.py` has it of
one plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import zip_longest
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from distir.arrays import Floats, Indices
from distir.cost import CostModel
from distir.plan.grid import DeviceGrid
from distir.schedules import (
    BACKWARD,
    COMPLETING,
    COST_KINDS,
    FORWARD,
    INPUT_PART,
    PAIR,
    WEIGHT_PART,
)
from distir.simulation.pipeline.many import alike_schedules, run_adjacent_columns
from distir.simulation.pricing.instructions import Pricing
from distir.simulation.pricing.stage_table import ROW, StageTable, distinct_columns
from distir.simulation.pricing.stages import StagePricer

if TYPE_CHECKING:
    from distir.schedules import CompiledSchedule, SituationTable


_T = TypeVar("_T", bound=np.generic)

NUMBERS_HELD = 1 << 16
"""Numbers, of situations times plans, that are added up together: they should stay in the cache."""

MOST_HELD = 1 << 13
"""Schedules of which it is kept what their ranks hold together."""


@dataclass(frozen=True, slots=True)
class ArrangementGroup:
    """Arrangements that go through schedules together, one per plan.

    `rows` are the rows of the table that their stages are, and behind them those of their
    overlapped pairs, of shape (stages and pairs, plans); `rankings` say
    where their ranks lie. `tied` are the seconds in which groups of ranks add up gradients between
    them, in order.
    """

    rows: Indices
    rankings: Indices
    tied: Mapping[tuple[int, ...], Floats]

    def some(self, plans: Indices) -> ArrangementGroup:
        """Some of them, without what ranks add up between them."""
        return ArrangementGroup(self.rows[:, plans], self.rankings[plans], {})


class LinkLevels:
    """The levels of the cluster that messages between ranks cross."""

    def __init__(self, cost: CostModel, rankings: list[DeviceGrid]) -> None:
        self._pricings = [Pricing(cost, grid) for grid in rankings]
        self._known: dict[tuple[int, int, int], int] = {}

    def levels(self, rankings: Sequence[int], pairs: Sequence[tuple[int, int]]) -> Indices:
        """The levels between pairs of ranks, of shape (pairs, rankings)."""
        found = [[self._level(ranking, *pair) for ranking in rankings] for pair in pairs]
        return np.array(found, np.int64).reshape(len(pairs), len(rankings))

    def _level(self, ranking: int, here: int, there: int) -> int:
        key = (ranking, here, there)
        if key not in self._known:
            self._known[key] = self._pricings[ranking].level(here, there)
        return self._known[key]


class _Stages:
    """What the stages of a group take and hold, looked up in the table by name."""

    def __init__(self, table: StageTable, rows: Indices) -> None:
        self._table, self._rows = table, rows
        self.plans = rows.shape[1]

    def __call__(self, name: str) -> Floats:
        """Of shape (stages, plans)."""
        return self._table.values[ROW[name]].take(self._rows)


def schedules_together(schedules: Sequence[CompiledSchedule]) -> list[list[int]]:
    """Groups of schedules, by their numbers, whose iterations are computed together: of a group,
    ranks hold the same stages, begin with the same one, have the same kinds of action and
    overlapped pairs, complete gradients in the same order, and send to the same ranks. Those that
    run together (`alike_schedules`) are adjacent."""
    groups: dict[object, list[int]] = {}
    for alike in alike_schedules(schedules):
        compiled = schedules[alike[0]]
        key = (
            compiled.stages_of_ranks,
            compiled.first_stages,
            _kinds(compiled),
            compiled.pairs,
            compiled.completing,
            tuple(sorted(compiled.routes.items())),
        )
        groups.setdefault(key, []).extend(alike)
    return list(groups.values())


def iterations(
    pricer: StagePricer,
    schedules: Sequence[CompiledSchedule],
    which: Indices,
    table: StageTable,
    levels: LinkLevels,
    group: ArrangementGroup,
) -> tuple[Floats, Floats, Floats, Floats]:
    """Per plan the seconds of an iteration, the bytes of the fullest rank, and of the seconds those
    that ranks wait for each other and for messages, on average. `which` of the schedules, which are
    together (`schedules_together`), each plan has; it ascends."""
    compiled = schedules[0]
    training = pricer.workload.training
    stages, own = _Stages(table, group.rows), _Own(compiled)
    goes_on = pricer.cost.stack.goes_on(max(map(len, compiled.stages_of_ranks)))
    time = _time(schedules, which, table, levels, group, goes_on=goes_on, training=training)
    exposed = own.sum(_exposed(schedules, which, stages, own))
    tails = _settling_tails(schedules, which, time, stages, own) if training else 0.0
    end = time.end + tails
    waited, took = np.zeros_like(end), np.zeros_like(end)
    for ranks, between in group.tied.items():
        start = end[list(ranks)].max(axis=0)
        for rank in ranks:
            waited[rank] += start - end[rank]
            took[rank] += between
            end[rank] = start + between
    refresh = own.sum(own.of(stages("refresh")))
    refresh = refresh + own.of(stages("first gather")).take(own.of_first_actions, axis=0)
    end += own.sum(own.of(stages("optimizer")))
    end += refresh
    length = end - time.begin if training else end
    iteration = length.max(axis=0)
    idle = waited + (iteration - length)
    busy = exposed + refresh + tails + took
    peak = _peaks(schedules, which, stages, own)
    return iteration, peak, time.idle + idle.mean(axis=0), time.moving + busy.mean(axis=0)


def host_bytes(
    schedules: Sequence[CompiledSchedule],
    which: Indices,
    table: StageTable,
    group: ArrangementGroup,
) -> Floats:
    """Per plan the bytes that a device of some rank has in the memory of its host, at most.
    `schedules` and `which`: see `iterations`."""
    stages, own = _Stages(table, group.rows), _Own(schedules[0])
    state, hosted = own.sum(own.of(stages("host"))), stages("hosted")
    if not hosted.any():
        return state.max(axis=0)
    nothing = np.zeros_like(hosted)
    peaks = [hosted if kind == FORWARD else nothing for kind in _kinds(schedules[0])]
    return _fullest(schedules, which, own, state, peaks, (hosted, nothing))


class _Own:
    """The stages of all ranks, one rank after the other."""

    def __init__(self, compiled: CompiledSchedule) -> None:
        held = compiled.stages_of_ranks
        self.stages = np.concatenate([np.asarray(own, np.int64) for own in held])
        self.first = np.cumsum([0, *(len(own) for own in held[:-1])])
        self.of_first_actions = self.first + np.array(compiled.first_stages, np.int64)
        """The stages of the first actions of ranks, as positions in `stages`."""
        self._each = np.array_equal(self.stages, np.arange(compiled.stages))

    def of(self, values: Floats) -> Floats:
        """Of the stages of ranks, of shape (stages of ranks, plans), from those of all stages."""
        return values[: len(self.stages)] if self._each else values[self.stages]

    def sum(self, values: Floats) -> Floats:
        """Sums over the stages of ranks, from shape (stages of ranks, plans)."""
        if len(self.first) == len(self.stages):
            return values
        return np.add.reduceat(values, self.first, axis=0)


def _kinds(compiled: CompiledSchedule) -> tuple[int, ...]:
    """The kinds of action that a schedule has."""
    return tuple(np.flatnonzero(compiled.count_matrix.sum(axis=0)).tolist())


# --- time -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Time:
    """When ranks begin and are done, of shape (ranks, plans), and when actions start in which
    gradients are complete, (stages of ranks, plans). What ranks wait for each other and for
    messages, on average, without what they wait before they begin if they train."""

    begin: Floats
    end: Floats
    last: Floats
    idle: Floats
    moving: Floats


def _time(
    schedules: Sequence[CompiledSchedule],
    which: Indices,
    table: StageTable,
    levels: LinkLevels,
    group: ArrangementGroup,
    *,
    goes_on: bool,
    training: bool,
) -> _Time:
    """Plans that take as long are run once."""
    compiled = schedules[0]
    kinds, ways = _kinds(compiled), _Ways(compiled, levels, group)
    lengths = [
        table.duration_classes(kinds).take(group.rows),
        *ways.of(table.message_classes),
        which[None].astype(np.int32),
    ]
    kept, place = distinct_columns(np.concatenate(lengths))
    order = np.argsort(which[kept], kind="stable")
    kept, place = kept[order], np.argsort(order)[place]
    some = group.some(kept)
    stages, ways = _Stages(table, some.rows), _Ways(compiled, levels, some)
    seconds = np.zeros((len(some.rows), COST_KINDS, len(kept)))
    for kind in kinds:
        seconds[:, kind] = stages(f"seconds {kind}")
    found = run_adjacent_columns(
        schedules,
        which[kept],
        seconds.reshape(-1, len(kept)),
        ways.seconds(table),
        goes_on=goes_on,
    )
    idle, moving = found.waited_for_stage.mean(axis=0), found.waited_for_transfer.mean(axis=0)
    if training:
        before = found.begin_moving.mean(axis=0)
        idle -= found.begin.mean(axis=0) - before
        moving -= before
    return _Time(
        begin=found.begin.take(place, axis=-1),
        end=found.end.take(place, axis=-1),
        last=found.last_gradients.take(place, axis=-1),
        idle=idle.take(place),
        moving=moving.take(place),
    )


class _Ways:
    """The ways that messages take between the ranks of a schedule."""

    def __init__(
        self, compiled: CompiledSchedule, levels: LinkLevels, group: ArrangementGroup
    ) -> None:
        routes = compiled.routes
        self._num_stages, self._pairs = compiled.stages, compiled.pairs
        self._shape = len(group.rows), COST_KINDS, group.rows.shape[1]
        self._stages = np.array([stage for stage, _ in routes], np.int64)
        self._back = np.array([step < 0 for _, step in routes], np.int64)
        self._rows = group.rows[self._stages]
        present, self._ranking = np.unique(group.rankings, return_inverse=True)
        # Where a stage sends to several ranks, the slowest message counts.
        self._levels = [
            levels.levels(present.tolist(), [pairs[at % len(pairs)] for pairs in routes.values()])
            for at in range(max(map(len, routes.values()), default=0))
        ]

    def of(self, found: Callable[[Indices, Indices, Indices], NDArray[_T]]) -> list[NDArray[_T]]:
        """What is `found` by the levels that messages cross, whether they go back, and stages:
        (ways, plans); once for each of the ranks to which a stage sends."""
        back = self._back[:, None]
        return [found(each[:, self._ranking], back, self._rows) for each in self._levels]

    def seconds(self, table: StageTable) -> Floats:
        """Seconds of messages, of shape (stages · kinds of action, plans)."""
        found = np.zeros(self._shape)
        if self._levels:
            longest = np.maximum.reduce(self.of(table.message_seconds))
            for back, kinds in enumerate([(FORWARD,), (BACKWARD, INPUT_PART)]):
                (sent,) = np.nonzero(self._back == back)
                for kind in kinds:
                    found[self._stages[sent], kind] = longest[sent]
            for number, (forward, backward) in enumerate(self._pairs, start=self._num_stages):
                found[number, FORWARD] = found[forward, FORWARD]
                found[number, BACKWARD] = found[backward, BACKWARD]
        return found.reshape(-1, self._shape[-1])


def _exposed(
    schedules: Sequence[CompiledSchedule], which: Indices, stages: _Stages, own: _Own
) -> Floats:
    """Seconds in which compute waits for collectives, of shape (stages of ranks, plans)."""
    counts = np.stack([each.matrix_alone for each in schedules], axis=-1).astype(np.float64)
    waited = np.zeros((len(own.stages), stages.plans))
    for kind in _kinds(schedules[0]):
        waited += own.of(stages(f"exposed {kind}")) * counts[:, kind].take(which, axis=-1)
    if schedules[0].pairs:
        of_pairs = np.stack([each.pair_counts for each in schedules], axis=-1).astype(np.float64)
        exposed = stages(f"exposed {FORWARD}")[schedules[0].stages :]
        for pair, seconds in enumerate(exposed):
            waited[own.first] += seconds * of_pairs[:, pair].take(which, axis=-1)
    return waited


def _settling_tails(
    schedules: Sequence[CompiledSchedule], which: Indices, time: _Time, stages: _Stages, own: _Own
) -> Floats:
    """How long gradient streams go on after the last action of their rank."""
    compiled, done = schedules[0], np.zeros_like(time.end)
    kinds = np.zeros(len(own.stages), np.int64)
    turns: list[tuple[list[int], list[int]]] = []
    for rank, completing in enumerate(compiled.completing):
        for turn, (place, kind) in enumerate(completing):
            if turn == len(turns):
                turns.append(([], []))
            at = int(own.first[rank]) + place
            turns[turn][0].append(rank)
            turns[turn][1].append(at)
            kinds[at] = kind
    service, ready = (_completed(stages, own, kinds, name) for name in ("settling", "settled"))
    if not service.any():
        return done
    between = _scattering_between(schedules, which, stages, own)
    ready = np.maximum(ready - service, 0.0)
    ready[kinds == PAIR] = 0.0  # complete when the pair ends
    for ranks, places in turns:
        start, busy = time.last[places], service[places]
        before = done[ranks] - start
        if between is not None:
            before += between[places]
        done[ranks] = start + np.where(busy > 0, np.maximum(before, ready[places]) + busy, before)
    done -= time.end
    return np.maximum(done, 0.0, out=done)


def _completed(stages: _Stages, own: _Own, kinds: Indices, name: str) -> Floats:
    """A number of stages by the kind of action that completes their gradients, of shape (stages of
    ranks, plans)."""
    in_parts = kinds == WEIGHT_PART
    if in_parts.all():
        return own.of(stages(f"{name} {WEIGHT_PART}"))
    whole = own.of(stages(f"{name} {BACKWARD}"))
    if not in_parts.any():
        return whole
    return np.where(in_parts[:, None], own.of(stages(f"{name} {WEIGHT_PART}")), whole)


def _scattering_between(
    schedules: Sequence[CompiledSchedule], which: Indices, stages: _Stages, own: _Own
) -> Floats | None:
    """Per stage of ranks and plan, seconds in which the gradient stream shares out gradients
    between the completing action before and the one that completes the stage; None if it never
    does."""
    scattering = {kind: own.of(stages(f"scattering {kind}")) for kind in COMPLETING}
    if len(own.first) == len(own.stages) or not any(map(np.any, scattering.values())):
        return None
    counts: dict[tuple[int, int, int], Indices] = {}
    for number, compiled in enumerate(schedules):
        for first, completing, between in zip(
            own.first.tolist(), compiled.completing, compiled.between_completions, strict=True
        ):
            for (place, _), actions in zip(completing, between, strict=True):
                for at, kind, count in actions:
                    key = (first + place, first + at, kind)
                    counts.setdefault(key, np.zeros(len(schedules), np.int64))[number] = count
    found = np.zeros((len(own.stages), stages.plans))
    for (to, at, kind), count in counts.items():
        found[to] += count[which] * scattering[kind][at]
    return found


# --- memory ---------------------------------------------------------------------------------------


def _peaks(
    schedules: Sequence[CompiledSchedule], which: Indices, stages: _Stages, own: _Own
) -> Floats:
    """Bytes of the fullest rank: its state, and at the worst moment what is in flight."""
    kinds = _kinds(schedules[0])
    peaks = [stages(f"peak {kind}") for kind in kinds]
    forward = stages(f"delta {FORWARD}")
    both = forward + stages(f"delta {INPUT_PART}") if INPUT_PART in kinds else 0.0 * forward
    state = own.sum(own.of(stages("state")))
    if (copies := schedules[0].copies) > 1:
        # As `StateBytes.shared`.
        state -= own.sum(own.of(stages("state inputs"))) * (1 - 1 / copies)
    return _fullest(schedules, which, own, state, peaks, (forward, both))


def _fullest(
    schedules: Sequence[CompiledSchedule],
    which: Indices,
    own: _Own,
    state: Floats,
    peaks_of_kinds: Sequence[Floats],
    in_flight: tuple[Floats, Floats],
) -> Floats:
    """Bytes of the fullest rank: of its `state`, of shape (ranks, plans), of an action at its peak,
    by the kinds of the schedule, and of microbatches `in_flight`, between F and B and between B and
    W; all of shape (stages, plans)."""
    kinds, (forward, _) = _kinds(schedules[0]), in_flight
    peaks, deltas = np.concatenate(peaks_of_kinds), np.concatenate(in_flight)
    fullest = np.empty(forward.shape[1])
    for tables, plans in _tables_of_plans(schedules, which):
        changes = _joined(tables)
        count = len(forward)
        columns = own.stages[changes.columns // 2] + count * (changes.columns % 2)
        rows = own.stages[changes.positions] + count * np.searchsorted(kinds, changes.cost_kinds)
        at_once = max(64, NUMBERS_HELD // max(1, len(columns)))
        for first in range(plans.start, plans.stop, at_once):
            some = slice(first, min(first + at_once, plans.stop))
            live = deltas[columns, some]
            live *= changes.amounts[:, None]
            np.add.accumulate(live, axis=0, out=live)
            held = live[changes.last]
            held += peaks[rows, some]
            most = np.maximum.reduceat(held, changes.first, axis=0)
            np.maximum(most, 0.0, out=most)
            most += state[:, some]
            np.max(most, axis=0, out=fullest[some])
    return fullest


def _tables_of_plans(
    schedules: Sequence[CompiledSchedule], which: Indices
) -> Iterator[tuple[tuple[SituationTable, ...], slice]]:
    """The situations of all ranks, each with the plans that have them, which are adjacent.
    `which[i]` is plan i's schedule; it ascends."""
    ends = np.searchsorted(which, np.arange(len(schedules)), side="right").tolist()
    first = 0
    for schedule, following, end in zip_longest(schedules, schedules[1:], ends):
        if following is None or following.situation_tables != schedule.situation_tables:
            yield schedule.situation_tables, slice(first, end)
            first = end


@dataclass(frozen=True, slots=True, eq=False)
class _JoinedChanges:
    """The `SituationChanges` of all ranks, one rank after the other. `positions` are among the
    stages of all ranks, `first` are the indices of the ranks' first situations."""

    cost_kinds: Indices
    positions: Indices
    columns: Indices
    amounts: Floats
    last: Indices
    first: Indices


@lru_cache(maxsize=MOST_HELD)
def _joined(tables: tuple[SituationTable, ...]) -> _JoinedChanges:
    """Joins the changes of all ranks. Before the first situation there is a change by nothing."""
    changes = [table.changes for table in tables]
    stages = _before([table.counts.shape[1] // 2 for table in tables])
    situations = [len(each.last) for each in changes]
    numbers = [len(each.columns) for each in changes]
    columns = np.concatenate([each.columns for each in changes])
    columns += np.repeat(2 * stages, numbers)
    return _JoinedChanges(
        cost_kinds=np.concatenate([each.cost_kinds for each in changes]),
        positions=np.concatenate([each.positions for each in changes])
        + np.repeat(stages, situations),
        columns=np.append(0, columns),
        amounts=np.concatenate([np.zeros(1), *(each.amounts for each in changes)]),
        last=np.concatenate([each.last for each in changes])
        + np.repeat(1 + _before(numbers), situations),
        first=_before(situations),
    )


def _before(counts: Sequence[int]) -> Indices:
    """The sum of all counts before each."""
    return np.cumsum([0, *counts[:-1]], dtype=np.int64)


__all__ = [
    "ArrangementGroup",
    "LinkLevels",
    "StageTable",
    "host_bytes",
    "iterations",
    "schedules_together",
]
