"""Waves hold every action once, each after what it needs, and loops say the rest."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings

from distir.arrays import Indices
from distir.schedules import COMPLETING, COST_KINDS, CompiledSchedule, compile_schedule
from distir.schedules.compiled.waves import Passes, WaveActions, find_waves
from distir.schedules.core.rhythm import Rhythm
from tests.schedules.test_rhythm import rhythms


@settings(deadline=None)
@given(rhythms())
def test_waves_and_loops_are_the_schedule(rhythm: Rhythm) -> None:
    """Written out, with what each repeat adds to the numbers of messages: every rank has its
    actions in order, every message is sent before it is read, and there are never more under way
    than is said."""
    compiled = compile_schedule(rhythm)
    waves = find_waves(compiled)
    assert waves is not None
    actions, none = waves.actions, np.zeros(len(waves.channels) + 1, np.int64)
    each = np.split(np.arange(len(actions.wave)), np.flatnonzero(np.diff(actions.wave)) + 1)
    written: list[tuple[Indices, Indices]] = []
    """Waves, and how much larger the numbers of messages are in them, by channel."""
    done = 0
    for loop in waves.loops:
        written += [(wave, none) for wave in each[done : loop.begin]]
        for repeat in range(1, loop.times + 1):
            more = repeat * np.array([*loop.messages, 0], np.int64)
            written += [(wave, more) for wave in each[loop.begin : loop.end]]
        done = loop.end
    written += [(wave, none) for wave in each[done:]]
    ranks: list[list[int]] = [[] for _ in rhythm.ranks]
    sent, read = [0 for _ in waves.channels], [0 for _ in waves.channels]
    for wave, more in written:
        for at in wave.tolist():
            ranks[actions.rank[at]].append(int(actions.cost[at]))
            channel = int(actions.reads[at])
            if channel >= 0:
                assert actions.read[at] + more[channel] == read[channel] < sent[channel]
                read[channel] += 1
        for at in wave.tolist():
            channel = int(actions.sends[at])
            if channel >= 0:
                assert actions.sent[at] + more[channel] == sent[channel]
                sent[channel] += 1
        under_way = [s - r for s, r in zip(sent, read, strict=True)]
        assert all(n <= most for n, most in zip(under_way, waves.most_under_way, strict=True))
    assert sent == read
    assert ranks == [
        [cost for pattern, n in own for cost in pattern * n] for own in compiled.timed_costs
    ]
    check_ends(waves.actions, compiled)


def check_ends(actions: WaveActions, compiled: CompiledSchedule) -> None:
    """The first action of each rank is marked, and of each stage on it the last one that completes
    gradients."""
    stages = Passes(compiled).stage[actions.cost]
    first: dict[int, int] = {}
    last: dict[tuple[int, int], int] = {}
    for at, (rank, cost, stage) in enumerate(
        zip(actions.rank.tolist(), actions.cost.tolist(), stages.tolist(), strict=True)
    ):
        first.setdefault(rank, at)
        if cost % COST_KINDS in COMPLETING:
            last[rank, stage] = at
    assert {*first.values()} == {*np.flatnonzero(actions.first).tolist()}
    assert {*last.values()} == {*np.flatnonzero(actions.last).tolist()}
