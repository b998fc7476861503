"""The distribution space is exactly the valid part of the full product of all choices."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distir.strategy import Strategy
from search_spaces import SearchSpace, distribution_space

SCHEDULES = ("gpipe", "1f1b")


@dataclass(frozen=True)
class Facts:
    """A workload as the space sees it."""

    batch_size: int = 256
    num_blocks: int = 12
    internal_axes: tuple[tuple[str, int], ...] = (("heads", 12), ("ffn", 3072))
    mode: str = "training"


facts = st.builds(
    Facts,
    batch_size=st.sampled_from([1, 7, 12, 16, 30, 36]),
    num_blocks=st.integers(1, 14),
    internal_axes=st.sampled_from(
        [(), (("heads", 12),), (("heads", 25), ("ffn", 100)), (("groups", 4), ("ffn", 6))]
    ),
    mode=st.sampled_from(["training", "inference"]),
)
devices = st.integers(1, 24)


def valid(workload: Facts, devices: int, strategy: Strategy) -> bool:
    """What the issue of validity comes down to, said as plainly as possible."""
    s = strategy
    one_schedule = s.pp == 1 or workload.mode == "inference"
    return (
        s.dp * s.tp * s.pp == devices
        and all(size % s.tp == 0 for _, size in workload.internal_axes)
        and s.pp <= workload.num_blocks
        and workload.batch_size % (s.dp * s.microbatches) == 0
        and (s.schedule == "1f1b" if one_schedule else s.schedule in SCHEDULES)
    )


def full_product(workload: Facts, devices: int) -> list[Strategy]:
    degrees = [number for number in range(1, devices + 1) if devices % number == 0]
    pieces = [n for n in range(1, workload.batch_size + 1) if workload.batch_size % n == 0]
    return [
        Strategy(dp=dp, tp=tp, pp=pp, microbatches=microbatches, schedule=schedule)
        for dp, tp, pp, microbatches, schedule in itertools.product(
            degrees, degrees, degrees, pieces, SCHEDULES
        )
    ]


def small_space(workload: Facts | None = None, number: int = 16) -> SearchSpace:
    return distribution_space(workload or Facts(), number, SCHEDULES)


@given(facts, devices)
def test_the_space_is_the_valid_part_of_the_full_product(workload: Facts, number: int) -> None:
    space = small_space(workload, number)
    expected = {each for each in full_product(workload, number) if valid(workload, number, each)}
    found = list(space.enumerate())
    assert set(found) == expected
    assert len(found) == len(expected)


@given(facts, devices)
def test_the_count_is_the_number_of_enumerated_strategies(workload: Facts, number: int) -> None:
    space = small_space(workload, number)
    assert space.count() == len(list(space.enumerate()))


@given(facts, devices, st.data())
def test_explain_says_nothing_exactly_for_members(
    workload: Facts, number: int, data: st.DataObject
) -> None:
    degree = st.integers(1, 40)
    strategy = data.draw(
        st.builds(
            Strategy,
            dp=degree,
            tp=degree,
            pp=degree,
            microbatches=degree,
            schedule=st.sampled_from([*SCHEDULES, "other"]),
        )
    )
    reason = small_space(workload, number).explain(strategy)
    assert (reason is None) == valid(workload, number, strategy)
    assert reason != ""


@given(facts, devices)
def test_enumerating_is_repeatable_and_agrees_with_indexing(workload: Facts, number: int) -> None:
    space = small_space(workload, number)
    strategies = list(space.enumerate())
    assert strategies == list(small_space(workload, number).enumerate())
    assert strategies == [space.at(index) for index in range(space.count())]


@given(facts, devices, st.integers(0, 2**32))
def test_every_sample_is_valid(workload: Facts, number: int, seed: int) -> None:
    space = small_space(workload, number)
    if space.count():
        assert space.explain(space.sample(random.Random(seed))) is None


def test_samples_are_uniform() -> None:
    space = small_space(Facts(batch_size=8), 4)
    rng = random.Random(0)
    draws = 400 * space.count()
    seen = dict.fromkeys(space.enumerate(), 0)
    for _ in range(draws):
        seen[space.sample(rng)] += 1
    chi_squared = sum((times - 400) ** 2 / 400 for times in seen.values())
    assert chi_squared < 2 * space.count()


def test_samples_without_replacement_cover_the_space() -> None:
    space = small_space()
    drawn = space.samples(random.Random(0), 10**6)
    assert len(drawn) == space.count()
    assert set(drawn) == set(space.enumerate())


def test_degrees_run_over_all_divisors_not_only_powers_of_two() -> None:
    space = small_space(Facts(batch_size=24, internal_axes=(("heads", 12),)), 24)
    assert space.values("tp") == (1, 2, 3, 4, 6, 12)
    assert space.values("dp") == (1, 2, 3, 4, 6, 8, 12, 24)


def test_inference_has_one_schedule() -> None:
    assert small_space(Facts(mode="inference")).values("schedule") == ("1f1b",)


def test_a_space_of_ten_million_points_is_counted_without_visiting_them() -> None:
    workload = Facts(batch_size=5040 * 2**50 * 3**50, num_blocks=10**6, internal_axes=())
    space = small_space(workload, 5040)
    assert space.count() > 10**7
    assert space.explain(space.at(space.count() - 1)) is None
    visited = sum(len(memo) for memo in space._memo)  # pyright: ignore[reportPrivateUsage]
    assert visited < 10**4


@pytest.mark.parametrize(
    ("strategy", "reason"),
    [
        (
            Strategy(dp=2, tp=8),
            "heads (12) does not divide by tp = 8; 1, 2, 3, 4, 6, 12 do",
        ),
        (
            Strategy(dp=2, tp=4),
            (
                "dp x tp x pp = 2 x 4 x 1 = 8, but there are 16 devices; "
                "dp = 4 or tp = 8 or pp = 2 would do"
            ),
        ),
        (
            Strategy(dp=3),
            "dp x tp x pp = 3 x 1 x 1 = 3, but there are 16 devices; dp = 16 would do",
        ),
        (
            Strategy(dp=3, tp=3),
            (
                "dp x tp x pp = 3 x 3 x 1 = 9, but there are 16 devices; "
                "degrees that divide 16 are 1, 2, 4, 8, 16"
            ),
        ),
        (
            Strategy(pp=16),
            "pp = 16 asks for 16 stages, but the model has 12 blocks; at most 12 would do",
        ),
        (
            Strategy(dp=16, microbatches=3),
            (
                "each replica's share of the batch (256 / 16 = 16) does not divide by "
                "microbatches = 3; 1, 2, 4, 8, 16 do"
            ),
        ),
        (
            Strategy(dp=16, schedule="gpipe"),
            "schedule = gpipe is not searched with tp = 1, pp = 1, dp = 16; 1f1b would do",
        ),
    ],
)
def test_reasons_say_what_is_wrong_and_what_would_do(strategy: Strategy, reason: str) -> None:
    assert small_space().explain(strategy) == reason


def test_a_batch_that_does_not_divide_is_explained() -> None:
    reason = small_space(Facts(batch_size=24)).explain(Strategy(dp=16))
    assert reason == "the batch (24) does not divide by dp = 16; 1, 2, 3, 4, 6, 8, 12, 24 do"


def test_what_is_merely_not_searched_is_not_impossible() -> None:
    strategy = Strategy(dp=16, schedule="gpipe")
    assert small_space().impossible(strategy) is None
    assert strategy not in small_space()


def test_a_restricted_space_is_the_part_with_these_values() -> None:
    space = small_space()
    part = space.restricted(tp=(1, 2), schedule=("gpipe",))
    expected = [s for s in space.enumerate() if s.tp in (1, 2) and s.schedule == "gpipe"]
    assert list(part.enumerate()) == expected
    with pytest.raises(ValueError, match="unknown dimension 'tq'; known are tp, pp, dp"):
        space.restricted(tq=(1,))
