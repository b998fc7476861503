"""Waves hold every action once, each after what it needs, and loops say the rest."""

from __future__ import annotations

from hypothesis import given, settings

from distir.schedules import compile_schedule
from distir.schedules.compiled.waves import Turn, find_waves
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
    written: list[list[Turn]] = []
    loops = {loop.end: loop for loop in waves.loops}
    for at, wave in enumerate(waves.waves):
        written.append([*wave])
        loop = loops.get(at + 1)
        if loop is not None:
            for repeat in range(1, loop.times + 1):
                for again in loop.waves:
                    written.append([_later(turn, repeat, loop.messages) for turn in again])
    ranks: list[list[int]] = [[] for _ in rhythm.ranks]
    sent = [0 for _ in waves.channels]
    read = [0 for _ in waves.channels]
    for wave in written:
        for turn in wave:
            ranks[turn.rank].append(turn.cost)
            if turn.reads >= 0:
                assert turn.read == read[turn.reads] < sent[turn.reads]
                read[turn.reads] += 1
        for turn in wave:
            if turn.sends >= 0:
                assert turn.sent == sent[turn.sends]
                sent[turn.sends] += 1
        under_way = [s - r for s, r in zip(sent, read, strict=True)]
        assert all(n <= most for n, most in zip(under_way, waves.most_under_way, strict=True))
    assert sent == read
    assert ranks == [[cost for word, n in own for cost in word * n] for own in compiled.runs]


def _later(turn: Turn, repeat: int, messages: tuple[int, ...]) -> Turn:
    read = turn.read + repeat * messages[turn.reads] if turn.reads >= 0 else 0
    sent = turn.sent + repeat * messages[turn.sends] if turn.sends >= 0 else 0
    return Turn(
        turn.rank, turn.cost, turn.reads, read, turn.sends, sent, first=turn.first, last=turn.last
    )
