"""Waves hold every action once, each after what it needs, and loops say the rest."""

from __future__ import annotations

from hypothesis import given, settings

from distir.schedules import compile_schedule
from distir.schedules.compiled.waves import WaveAction, find_waves
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
    written: list[list[WaveAction]] = []
    loops = {loop.end: loop for loop in waves.loops}
    for at, wave in enumerate(waves.waves):
        written.append([*wave])
        loop = loops.get(at + 1)
        if loop is not None:
            for repeat in range(1, loop.times + 1):
                for again in loop.waves:
                    written.append([_later(action, repeat, loop.messages) for action in again])
    ranks: list[list[int]] = [[] for _ in rhythm.ranks]
    sent = [0 for _ in waves.channels]
    read = [0 for _ in waves.channels]
    for wave in written:
        for action in wave:
            ranks[action.rank].append(action.cost)
            if action.reads >= 0:
                assert action.read == read[action.reads] < sent[action.reads]
                read[action.reads] += 1
        for action in wave:
            if action.sends >= 0:
                assert action.sent == sent[action.sends]
                sent[action.sends] += 1
        under_way = [s - r for s, r in zip(sent, read, strict=True)]
        assert all(n <= most for n, most in zip(under_way, waves.most_under_way, strict=True))
    assert sent == read
    assert ranks == [
        [cost for pattern, n in own for cost in pattern * n] for own in compiled.timed_costs
    ]


def _later(action: WaveAction, repeat: int, messages: tuple[int, ...]) -> WaveAction:
    read = action.read + repeat * messages[action.reads] if action.reads >= 0 else 0
    sent = action.sent + repeat * messages[action.sends] if action.sends >= 0 else 0
    return WaveAction(
        action.rank,
        action.cost,
        action.reads,
        read,
        action.sends,
        sent,
        first=action.first,
        last=action.last,
    )
