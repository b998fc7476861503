"""Steps hold every action once, as soon as what it needs is done."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings

from distir.schedules import CompiledSchedule, compile_schedule, parse_schedule
from distir.schedules.compiled.steps import find_steps
from distir.schedules.core.rhythm import Rhythm
from tests.schedules.test_rhythm import rhythms


@settings(deadline=None)
@given(rhythms())
def test_steps_are_the_same_with_and_without_a_rhythm(rhythm: Rhythm) -> None:
    short, long = compile_schedule(rhythm), compile_schedule(rhythm.schedule())
    ours, theirs = find_steps(short), find_steps(long)
    for one, other in (
        (ours.step, theirs.step),
        (ours.rank, theirs.rank),
        (ours.cost, theirs.cost),
        (ours.needs, theirs.needs),
    ):
        np.testing.assert_array_equal(one, other)
    check_steps(long)


def test_messages_that_overtake_each_other() -> None:
    check_steps(compile_schedule(parse_schedule("0F0 0F1 0B0 0B1\n1F1 1B1 1F0 1B0")))


def check_steps(compiled: CompiledSchedule) -> None:
    """An action comes one step after the last of those that it needs: the one before it on its
    rank, and the one that sends what it waits for."""
    flat, steps = compiled.flat, find_steps(compiled)
    done, step = [0 for _ in compiled.stages_of_ranks], list[int]()
    for rank, needed in zip(flat.rank, flat.needs, strict=True):
        step.append(max(done[rank], step[needed] + 1 if needed >= 0 else 0))
        done[rank] = step[-1] + 1
    found = zip(steps.rank.tolist(), steps.step.tolist(), steps.cost.tolist(), strict=True)
    assert sorted(found) == sorted(zip(flat.rank, step, flat.cost, strict=True))
