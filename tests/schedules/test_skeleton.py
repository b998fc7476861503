"""Schedules that differ in how long they go on have one pattern."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from distir.schedules import SCHEDULES, Rhythm, compile_schedule, parse_schedule, validate
from distir.schedules.compiled.skeleton import pattern_of
from tests.schedules.test_rhythm import rhythms


@settings(deadline=None)
@given(rhythms())
def test_a_schedule_is_its_pattern_with_so_many_turns_more(rhythm: Rhythm) -> None:
    found = pattern_of(compile_schedule(rhythm))
    if found is None:
        return
    pattern, turns = found
    base = pattern.compiled.source
    assert isinstance(base, Rhythm)
    assert base.homes == rhythm.homes
    for ours, theirs, steps in zip(rhythm.ranks, base.ranks, pattern.steps, strict=True):
        assert [run.word for run in ours] == [run.word for run in theirs]
        longer = [run.times + turns * step for run, step in zip(theirs, steps, strict=True)]
        assert [run.times for run in ours] == longer


@settings(deadline=None, max_examples=20)
@given(rhythms())
def test_a_pattern_is_a_schedule(rhythm: Rhythm) -> None:
    found = pattern_of(compile_schedule(rhythm))
    if found is not None:
        assert isinstance(found[0].compiled.source, Rhythm)
        validate(found[0].compiled.source.schedule())


@pytest.mark.parametrize("name", [entry.name for entry in SCHEDULES])
def test_with_more_microbatches_there_are_more_turns_of_one_pattern(name: str) -> None:
    family = SCHEDULES.get(name)
    found = [
        pattern_of(compile_schedule(family.made(4, family.default_chunks, count)))
        for count in (64, 68, 128)
    ]
    patterns, turns = zip(*(each for each in found if each is not None), strict=True)
    assert len(patterns) == 3
    assert patterns[0] is patterns[1] is patterns[2]
    assert (turns[2] - turns[0]) == 16 * (turns[1] - turns[0]) > 0


def test_what_is_no_rhythm_has_no_pattern() -> None:
    assert pattern_of(compile_schedule(parse_schedule("0F0 0F1 0B0 0B1"))) is None
