"""A rhythm says in a few words what its schedule says action by action."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from distir.schedules import SCHEDULES, Rhythm, compile_schedule, forward_only, validate

FAMILIES = [entry.value for entry in SCHEDULES] + [forward_only]


@st.composite
def rhythms(draw: st.DrawFn) -> Rhythm:
    family = draw(st.sampled_from(FAMILIES))
    most = family.most_chunks or 4
    numbers = st.tuples(
        st.integers(1, 7), st.integers(family.least_chunks, most), st.integers(1, 40)
    )
    made = family.made(*draw(numbers.filter(lambda n: family.requires(*n) is None)))
    assert isinstance(made, Rhythm)
    return made


@settings(deadline=None)
@given(rhythms())
def test_what_is_known_without_the_actions_is_what_they_say(rhythm: Rhythm) -> None:
    schedule = rhythm.schedule()
    validate(schedule)
    short, long = compile_schedule(rhythm), compile_schedule(schedule)
    assert rhythm.stages == schedule.stages
    assert rhythm.has_backward == schedule.has_backward
    assert rhythm.splits_backward == schedule.splits_backward
    assert short.stages_of_ranks == long.stages_of_ranks
    assert short.counts == long.counts
    assert short.first_stages == long.first_stages
    assert short.completing == long.completing
    for ours, theirs in zip(short.between_completions, long.between_completions, strict=True):
        assert list(map(set, ours)) == list(map(set, theirs))
    for ours, theirs in zip(short.situations, long.situations, strict=True):
        assert set(ours) == set(theirs)
    routes = ({way: set(pairs) for way, pairs in each.routes.items()} for each in (short, long))
    assert next(routes) == next(routes)


def test_the_length_of_a_rhythm_does_not_grow_with_the_microbatches() -> None:
    """Twice the microbatches are the same patterns."""
    for entry in SCHEDULES:
        family = entry.value
        few, many = (family.made(4, family.default_chunks, count) for count in (64, 128))
        assert isinstance(few, Rhythm)
        assert isinstance(many, Rhythm)
        for short, long in zip(few.ranks, many.ranks, strict=True):
            assert [repeated.pattern for repeated in short] == [
                repeated.pattern for repeated in long
            ]
