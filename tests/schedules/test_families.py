"""Every registered schedule is valid for all numbers that it says it takes, and looks as in its
paper."""

from __future__ import annotations

from textwrap import dedent

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distir.errors import ScheduleError
from distir.schedules import (
    SCHEDULES,
    ScheduleFamily,
    format_schedule,
    forward_only,
    parse_schedule,
    stages_on_ranks,
    validate,
)
from distir.schedules.families.breadth_first import breadth_first
from distir.schedules.families.chimera import chimera
from distir.schedules.families.interleaved import interleaved
from distir.schedules.families.zero_bubble import zb_h1, zb_h2, zb_v

FAMILIES = [entry.value for entry in SCHEDULES] + [forward_only]


Member = tuple[ScheduleFamily, tuple[int, int, int]]


@st.composite
def members(draw: st.DrawFn) -> Member:
    """A family with numbers that it takes."""
    family = draw(st.sampled_from(FAMILIES))
    chunks = family.least_chunks, family.most_chunks or family.least_chunks + 2
    numbers = st.tuples(st.integers(1, 7), st.integers(*chunks), st.integers(1, 20))
    return family, draw(numbers.filter(lambda n: family.requires(*n) is None))


@settings(deadline=None)
@given(members())
def test_a_schedule_is_valid_for_all_numbers_that_it_takes(member: Member) -> None:
    family, (ranks, chunks, microbatches) = member
    schedule = family(ranks, chunks, microbatches)
    validate(schedule)
    assert len(schedule.ranks) == ranks
    assert (schedule.stages, schedule.microbatches) == (ranks * chunks, microbatches)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_small_schedules_are_all_valid(family: ScheduleFamily) -> None:
    for ranks in range(1, 6):
        for microbatches in range(1, 14):
            if family.requires(ranks, family.default_chunks, microbatches) is None:
                validate(family(ranks, family.default_chunks, microbatches))


@settings(deadline=None)
@given(members())
def test_a_family_says_what_its_schedules_are_like(member: Member) -> None:
    """Placement of the stages, copies of them, and whether the backward pass is split."""
    family, numbers = member
    schedule = family(*numbers)
    placed = stages_on_ranks(family.placement, *numbers[:2])
    assert schedule.stages_of_ranks == placed
    assert schedule.splits_backward == family.splits_backward
    assert bool(schedule.overlapped) == family.overlaps
    homes = [stage for own in placed for stage in own]
    assert {homes.count(stage) for stage in homes} == {family.copies}
    assert schedule.name == family.name


@settings(deadline=None)
@given(members())
def test_each_microbatch_visits_each_stage_once_each_way(member: Member) -> None:
    family, numbers = member
    schedule = family(*numbers)
    kinds: dict[tuple[int, int], list[str]] = {
        (stage, m): [] for stage in range(schedule.stages) for m in range(schedule.microbatches)
    }
    for stage, kind, m in schedule.actions:
        kinds[stage, m].append(kind)
    possible = [["F"]]
    if schedule.has_backward:
        possible = [["F", "B", "W"], ["F", "BW"]] if family.splits_backward else [["F", "B"]]
    assert all(each in possible for each in kinds.values())


@settings(deadline=None)
@given(members())
def test_the_text_form_reads_back(member: Member) -> None:
    family, numbers = member
    schedule = family(*numbers)
    assert parse_schedule(format_schedule(schedule)) == schedule


@settings(deadline=None)
@given(members())
def test_microbatches_take_turns_in_order(member: Member) -> None:
    """On a rank, a stage's passes of one kind run in the order of microbatches."""
    family, numbers = member
    for rank in family(*numbers).ranks:
        last: dict[tuple[int, str], int] = {}
        for stage, kind, m in rank:
            assert last.get((stage, kind), -1) < m
            last[stage, kind] = m


@pytest.mark.parametrize(
    ("name", "numbers", "says"),
    [
        ("gpipe", (2, 2, 4), "gpipe has 1 chunk per rank, not 2"),
        ("1f1b", (2, 3, 4), "1f1b has 1 chunk per rank, not 3"),
        ("interleaved", (2, 1, 4), "interleaved needs at least 2 chunks per rank, not 1"),
        ("breadth-first", (2, 1, 4), "breadth-first needs at least 2 chunks per rank, not 1"),
        ("zb-v", (2, 3, 4), "zb-v has 2 chunks per rank, not 3"),
        ("zb-h1", (0, 1, 4), "zb-h1 needs at least one rank, not 0"),
        ("zb-h2", (2, 1, 0), "zb-h2 needs at least one microbatch, not 0"),
        ("chimera", (3, 1, 4), "chimera needs an even number of ranks, not 3"),
        ("chimera", (2, 1, 3), "chimera sends half of the microbatches each way; 3 is odd"),
    ],
)
def test_numbers_that_do_not_fit_are_explained(
    name: str, numbers: tuple[int, int, int], says: str
) -> None:
    family = SCHEDULES.get(name)
    assert family.requires(*numbers) == says
    with pytest.raises(ScheduleError, match=says):
        family(*numbers)


def test_every_family_names_its_source_and_takes_its_default() -> None:
    for entry in SCHEDULES:
        family = entry.value
        assert any(year in family.source for year in ("2019", "2021", "2023", "2024"))
        assert family.requires(4, family.default_chunks, 8) is None
        assert family.generate.__doc__


GOLDEN = [
    # Narayanan et al. 2021, figure 4, for two ranks: groups of two, each through both chunks.
    (
        interleaved,
        (2, 2, 4),
        """
        0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3
        1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3
        """,
    ),
    # A number of microbatches that does not divide: one group of three.
    (
        interleaved,
        (2, 2, 3),
        """
        0F0 0F1 0F2 2F0 2F1 2F2 2B0 2B1 2B2 0B0 0B1 0B2
        1F0 1F1 1F2 3F0 3B0 3F1 3B1 3F2 3B2 1B0 1B1 1B2
        """,
    ),
    (
        breadth_first,
        (2, 2, 2),
        """
        0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1
        1F0 1F1 3F0 3F1 3B0 3B1 1B0 1B1
        """,
    ),
    # Qi et al. 2023, figure 3: rank r starts its W after r backward passes without.
    (
        zb_h1,
        (3, 1, 4),
        """
        0F0 0F1 0F2 0B0 0W0 0F3 0B1 0W1 0B2 0W2 0B3 0W3
        1F0 1F1 1B0 1F2 1B1 1W0 1F3 1B2 1W1 1B3 1W2 1W3
        2F0 2B0 2F1 2B1 2F2 2B2 2W0 2F3 2B3 2W1 2W2 2W3
        """,
    ),
    (
        zb_h2,
        (2, 1, 4),
        """
        0F0 0F1 0F2 0B0 0W0 0F3 0B1 0W1 0B2 0W2 0B3 0W3
        1F0 1B0 1F1 1B1 1F2 1B2 1W0 1F3 1B3 1W1 1W2 1W3
        """,
    ),
    (
        zb_v,
        (2, 2, 4),
        """
        0F0 0F1 0F2 3F0 3B0 3W0 3F1 3B1 3W1 0F3 0B0 0W0 3F2 3B2 3W2 0B1 0W1 3F3 3B3 3W3 0B2 0W2 0B3 0W3
        1F0 2F0 1F1 2F1 2B0 2W0 1F2 1B0 1W0 2F2 2B1 2W1 1F3 1B1 1W1 2F3 2B2 2W2 1B2 2B3 1B3 1W2 1W3 2W3
        """,  # noqa: E501
    ),
    # Li and Hoefler 2021, figure 3: even microbatches run down, odd ones up.
    (
        chimera,
        (4, 1, 4),
        """
        0F0 0F2 3F1 3B1 3F3 3B3 0B0 0B2
        1F0 2F1 1F2 2F3 2B1 1B0 2B3 1B2
        1F1 2F0 1F3 2F2 2B0 1B1 2B2 1B3
        0F1 0F3 3F0 3B0 3F2 3B2 0B1 0B3
        """,
    ),
    (
        forward_only,
        (2, 2, 4),
        """
        0F0 0F1 2F0 2F1 0F2 0F3 2F2 2F3
        1F0 1F1 3F0 3F1 1F2 1F3 3F2 3F3
        """,
    ),
]


@pytest.mark.parametrize(
    ("family", "numbers", "text"), GOLDEN, ids=lambda x: getattr(x, "name", "")
)
def test_small_schedules_can_be_redone_by_hand(
    family: ScheduleFamily, numbers: tuple[int, int, int], text: str
) -> None:
    assert str(family(*numbers)) == dedent(text).strip()


@settings(deadline=None)
@given(st.integers(1, 8), st.integers(1, 40))
def test_fewer_microbatches_than_zb_v_needs_are_a_part_of_its_pattern(
    ranks: int, microbatches: int
) -> None:
    full = zb_v(ranks, 2, 2 * ranks - 1)
    part = zb_v(ranks, 2, min(microbatches, 2 * ranks - 1))
    for all_of_it, some in zip(full.ranks, part.ranks, strict=True):
        assert tuple(a for a in all_of_it if a.microbatch < part.microbatches) == some
