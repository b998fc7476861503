"""Compiled schedules: an executable order, messages, and what is in flight."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any, cast

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from distir.schedules import (
    BACKWARD,
    COST_KINDS,
    FORWARD,
    INPUT_PART,
    SCHEDULES,
    WEIGHT_PART,
    Action,
    CompiledSchedule,
    Schedule,
    Situation,
    SituationTable,
    compile_schedule,
    dependencies,
    forward_only,
    parse_schedule,
    validate,
)
from distir.schedules.families.one_f_one_b import one_f_one_b
from tests.counting import calls_of

FAMILIES = [entry.value for entry in SCHEDULES] + [forward_only]


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    family = draw(st.sampled_from(FAMILIES))
    numbers = st.tuples(
        st.integers(1, 6), st.just(family.default_chunks), st.integers(1, 14)
    ).filter(lambda n: family.requires(*n) is None)
    return family(*draw(numbers))


def cost_kind(kind: str, splits: bool) -> int:
    part = INPUT_PART if splits else BACKWARD
    return {"F": FORWARD, "B": part, "W": WEIGHT_PART, "BW": BACKWARD}[kind]


def entries(compiled: CompiledSchedule) -> tuple[dict[Action, int], dict[Action, int]]:
    """Where actions begin to wait and where they end. An overlapped pair has three entries: the
    backward pass waits in the first of them, and ends in the last."""
    ends = {action: i for i, action in enumerate(compiled.actions)}
    begins = {action: i for i, action in reversed([*enumerate(compiled.actions)])}
    return begins, ends


@settings(deadline=None)
@given(schedules())
def test_every_action_comes_once_after_what_it_needs_and_in_its_ranks_order(
    schedule: Schedule,
) -> None:
    compiled = compile_schedule(schedule)
    begins, at = entries(compiled)
    pairs = int(compiled.pair_counts.sum())
    assert pairs == sum(map(len, schedule.overlapped))
    assert len(at) == len(compiled.actions) - pairs == sum(map(len, schedule.ranks))
    for rank, actions in enumerate(schedule.ranks):
        places = [at[action] for action in actions]
        assert places == sorted(places)
        assert all(compiled.rank[place] == rank for place in places)
        for first in schedule.overlapped[rank] if schedule.overlapped else ():
            forward, backward = actions[first : first + 2]
            assert begins[backward] + 1 == at[forward] == at[backward] - 1
    for action, i in begins.items():
        for needed in dependencies(action, schedule.stages):
            whole = needed._replace(kind="BW") if needed.kind == "B" else needed
            assert at[needed if needed in at else whole] < i


@settings(deadline=None)
@given(schedules())
def test_messages_cross_ranks_each_on_the_link_of_its_way(schedule: Schedule) -> None:
    compiled = compile_schedule(schedule)
    begins, at = entries(compiled)
    at |= {action._replace(kind="B"): i for action, i in at.items() if action.kind == "BW"}
    ways: dict[int, tuple[int, int, bool]] = {}
    senders: set[int] = set()
    for action, i in begins.items():
        crossing = [
            at[needed]
            for needed in dependencies(action, schedule.stages)
            if needed.stage != action.stage and compiled.rank[at[needed]] != compiled.rank[i]
        ]
        assert compiled.needs[i] == (crossing[0] if crossing else -1)
        for source in crossing:
            senders.add(source)
            way = compiled.rank[source], compiled.rank[i], action.kind == "F"
            assert ways.setdefault(compiled.link[source], way) == way
    assert len(set(ways.values())) == len(ways) == compiled.num_links
    assert {i for i, link in enumerate(compiled.link) if link >= 0} == senders


@settings(deadline=None)
@given(schedules())
def test_gradients_are_complete_in_the_last_backward_action(schedule: Schedule) -> None:
    compiled = compile_schedule(schedule)
    splits = schedule.splits_backward
    for rank, stages in enumerate(compiled.stages_of_ranks):
        assert compiled.actions[compiled.first[rank]] == schedule.ranks[rank][0]
        for place, stage in enumerate(stages):
            own = sorted(
                i
                for action, i in entries(compiled)[1].items()
                if compiled.rank[i] == rank and action.stage == stage
            )
            kinds = [cost_kind(compiled.actions[i].kind, splits) for i in own]
            assert compiled.counts[rank][place] == tuple(map(kinds.count, range(COST_KINDS)))
            ends = [i for i, k in zip(own, kinds, strict=True) if k in (BACKWARD, WEIGHT_PART)]
            last = max(ends, default=-1)
            assert compiled.last_gradients[rank][place] == last
            numbers = [compiled.cost[i] for i in own]
            in_pairs = compiled.stages * COST_KINDS
            for kind, number in zip(kinds, numbers, strict=True):
                if number < in_pairs:
                    assert number == stage * COST_KINDS + kind
                else:
                    pair = compiled.pairs[(number - in_pairs) // COST_KINDS]
                    assert (number % COST_KINDS, pair[kind == BACKWARD]) == (kind, stage)


@settings(deadline=None)
@given(schedules())
def test_what_lies_between_two_completions_is_counted(schedule: Schedule) -> None:
    compiled = compile_schedule(schedule)
    for rank, actions in enumerate(schedule.ranks):
        stages, splits = compiled.stages_of_ranks[rank], schedule.splits_backward
        assert stages[compiled.first_stages[rank]] == actions[0].stage
        steps = [(stages.index(a.stage), cost_kind(a.kind, splits)) for a in actions]
        of_gradients = [step for step in steps if step[1] in (BACKWARD, WEIGHT_PART)]
        last = {place: at for at, (place, _) in enumerate(of_gradients)}
        ends = sorted(last.values())
        assert compiled.completing[rank] == tuple(of_gradients[at] for at in ends)
        between = [Counter(of_gradients[a + 1 : b]) for a, b in pairwise(ends)]
        found = compiled.between_completions[rank]
        assert [{each[:2]: each[2] for each in counts} for counts in found[1:]] == between
        assert all(not counts for counts in found[:1])


@settings(deadline=None)
@given(schedules())
def test_situations_cover_every_start_of_an_action_and_each_occurs(schedule: Schedule) -> None:
    """Counting the plain way: every action starts within a situation that is listed; none of those
    listed is within another."""
    compiled = compile_schedule(schedule)
    splits = schedule.splits_backward
    for rank, stages in enumerate(compiled.stages_of_ranks):
        occurs: set[Situation] = set()
        counts = {stage: [0, 0] for stage in stages}
        for action in schedule.ranks[rank]:
            kind = cost_kind(action.kind, splits)
            now = tuple((counts[s][0], counts[s][1]) for s in stages)
            occurs.add(Situation(action.stage, kind, now))
            own = counts[action.stage]
            if schedule.has_backward:
                own[0] += {FORWARD: 1, BACKWARD: -1, INPUT_PART: -1, WEIGHT_PART: 0}[kind]
                own[1] += {FORWARD: 0, BACKWARD: 0, INPUT_PART: 1, WEIGHT_PART: -1}[kind]
        listed = compiled.situations[rank]
        assert occurs.issuperset(listed)
        for each in occurs:
            assert any(_within(each, other) for other in listed)
        for each in listed:
            assert sum(_within(each, other) for other in listed) == 1


@settings(deadline=None)
@given(schedules())
def test_situations_as_arrays_are_the_same(schedule: Schedule) -> None:
    compiled = compile_schedule(schedule)
    tables = zip(
        compiled.stages_of_ranks, compiled.situations, compiled.situation_tables, strict=True
    )
    for own, situations, table in tables:
        cost_kinds, positions, counts = table.cost_kinds, table.positions, table.counts
        pairs: list[Any] = [*counts.reshape(len(counts), len(own), 2)]
        found = [
            Situation(
                cast("int", own[position]), int(kind), tuple((int(f), int(b)) for f, b in each)
            )
            for kind, position, each in zip(cost_kinds, positions, pairs, strict=True)
        ]
        assert len(found) == len(situations)
        assert set(found) == set(situations)
        check_changes(table)


@settings(deadline=None)
@given(schedules())
def test_peaks_are_the_most_in_flight(schedule: Schedule) -> None:
    """Counting the plain way, per rank: the most between F and B, between B and W, and of both."""
    compiled = compile_schedule(schedule)
    first = 0
    for rank, stages in enumerate(compiled.stages_of_ranks):
        forward = backward = 0
        most = [0, 0, 0]
        for action in schedule.ranks[rank]:
            kind = cost_kind(action.kind, schedule.splits_backward)
            forward += (kind == FORWARD) - (kind in (BACKWARD, INPUT_PART))
            backward += (kind == INPUT_PART) - (kind == WEIGHT_PART)
            if schedule.has_backward:
                most = list(map(max, most, (forward, backward, forward + backward)))
        own = [each[first : first + len(stages)] for each in compiled.peak_in_flight.counts]
        sums = [[sum(held) for held in zip(*each, strict=True)] for each in own]
        assert most == [max(f for f, _ in sums), max(b for _, b in sums), max(map(sum, sums))]
        first += len(stages)


def check_changes(table: SituationTable) -> None:
    """Changes, added up, are the situations again, and in the end nothing."""
    changes = table.changes
    live = np.zeros((len(changes.amounts) + 1, table.counts.shape[1]))
    for i, (column, amount) in enumerate(zip(changes.columns, changes.amounts, strict=True)):
        live[i + 1] = live[i]
        live[i + 1, column] += amount
    assert not live[-1].any()
    ours = np.column_stack([changes.cost_kinds, changes.positions, live[changes.last + 1]])
    theirs = np.column_stack([table.cost_kinds, table.positions, table.counts])
    assert sorted(ours.tolist()) == sorted(theirs.tolist())


def _within(held: Situation, other: Situation) -> bool:
    return (held.stage, held.cost_kind) == (other.stage, other.cost_kind) and all(
        a <= c and b <= d for (a, b), (c, d) in zip(held.counts, other.counts, strict=True)
    )


def test_fused_and_split_backward_passes_mix() -> None:
    """BW costs a whole backward pass and nothing waits for a W."""
    compiled = compile_schedule(parse_schedule("0F0 0F1 0B0 0BW1 0W0"))
    assert [cost % COST_KINDS for cost in compiled.cost] == [
        FORWARD, FORWARD, INPUT_PART, BACKWARD, WEIGHT_PART,
    ]  # fmt: skip
    assert compiled.last_gradients == ((4,),)
    assert Situation(0, BACKWARD, ((1, 1),)) in compiled.situations[0]
    assert Situation(0, WEIGHT_PART, ((0, 1),)) in compiled.situations[0]


def test_validating_and_compiling_take_calls_in_proportion_to_the_actions() -> None:
    def calls(microbatches: int) -> int:
        schedule = one_f_one_b(16, 1, microbatches)
        return calls_of(lambda: (validate(schedule), compile_schedule(schedule)))

    assert calls(256) < 1.1 * 4 * calls(64)


@settings(deadline=None)
@given(schedules())
def test_routes_are_the_ways_of_messages(schedule: Schedule) -> None:
    compiled = compile_schedule(schedule)
    sent = {
        (compiled.actions[j].stage, compiled.actions[i].stage, compiled.rank[j], compiled.rank[i])
        for i, j in enumerate(compiled.needs)
        if j >= 0
    }
    routes = {
        (stage, stage + step, *pair)
        for (stage, step), pairs in compiled.routes.items()
        for pair in pairs
    }
    assert routes == sent
