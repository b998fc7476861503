"""Schedules that differ in their number of rounds have one skeleton."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from distir.schedules import SCHEDULES, Rhythm, compile_schedule, parse_schedule, validate
from distir.schedules.compiled.skeleton import skeleton_of
from distir.schedules.compiled.waves import find_waves
from distir.simulation.pipeline.phases import find_phases
from tests.schedules.test_rhythm import rhythms


@settings(deadline=None)
@given(rhythms())
def test_a_schedule_is_its_skeleton_with_more_rounds(rhythm: Rhythm) -> None:
    found = skeleton_of(compile_schedule(rhythm))
    if found is None:
        return
    skeleton, rounds = found
    base = skeleton.compiled.source
    assert isinstance(base, Rhythm)
    assert base.ranks_of_stages == rhythm.ranks_of_stages
    for ours, theirs, counts in zip(rhythm.ranks, base.ranks, skeleton.repetitions, strict=True):
        assert [each.pattern for each in ours] == [each.pattern for each in theirs]
        longer = [each.times + rounds * count for each, count in zip(theirs, counts, strict=True)]
        assert [each.times for each in ours] == longer


@pytest.mark.not_quick
@settings(deadline=None, max_examples=20)
@given(rhythms())
def test_a_skeleton_has_a_schedule(rhythm: Rhythm) -> None:
    found = skeleton_of(compile_schedule(rhythm))
    if found is not None:
        assert isinstance(found[0].compiled.source, Rhythm)
        validate(found[0].compiled.source.schedule())


@settings(deadline=None)
@given(rhythms())
def test_waves_that_repeat_take_more_than_one_round(rhythm: Rhythm) -> None:
    """With as few rounds as leave a loop one repeat there are two or more, unless ranks do one
    thing with all microbatches."""
    found = skeleton_of(compile_schedule(rhythm))
    if found is None or find_phases(found[0].compiled):
        return
    skeleton, _ = found
    waves = find_waves(skeleton.compiled)
    assert waves is not None
    for loop in waves.loops:
        each = skeleton.rounds_in(loop.repetitions)
        assert skeleton.rounds - (loop.times - 1) * each >= 2


@pytest.mark.parametrize("name", [entry.name for entry in SCHEDULES])
def test_with_more_microbatches_there_are_more_rounds_of_one_skeleton(name: str) -> None:
    family = SCHEDULES.get(name)
    found = [
        skeleton_of(compile_schedule(family.made(4, family.default_chunks, count)))
        for count in (64, 68, 128)
    ]
    skeletons, rounds = zip(*(each for each in found if each is not None), strict=True)
    assert len(skeletons) == 3
    assert skeletons[0] is skeletons[1] is skeletons[2]
    assert (rounds[2] - rounds[0]) == 16 * (rounds[1] - rounds[0]) > 0


def test_without_a_rhythm_there_is_no_skeleton() -> None:
    assert skeleton_of(compile_schedule(parse_schedule("0F0 0F1 0B0 0B1"))) is None
