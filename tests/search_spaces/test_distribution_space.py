"""The distribution space is exactly the valid part of the full product of all choices."""

from __future__ import annotations

import itertools
import random
import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distir.errors import DistirError
from distir.schedules import SCHEDULES
from distir.strategy import PLACEMENT, Strategy
from search_spaces import SPACES, SearchSpace, distribution_space, searched
from search_spaces.named import SpaceError
from tests.facts import Facts
from tests.slow import shares

SEARCHED = ("gpipe", "1f1b")


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
    """What the small space comes down to, said as plainly as possible."""
    s = strategy
    one_schedule = s.pp == 1 or workload.mode == "inference" or s.microbatches == 1
    return (
        s.dp * s.tp * s.pp == devices
        and all(size % s.tp == 0 for _, size in workload.internal_axes)
        and s.pp <= workload.num_blocks
        and workload.batch_size % (s.dp * s.microbatches) == 0
        and (s.schedule == "1f1b" if one_schedule else s.schedule in SEARCHED)
    )


def full_product(workload: Facts, devices: int) -> list[Strategy]:
    degrees = [number for number in range(1, devices + 1) if devices % number == 0]
    pieces = [n for n in range(1, workload.batch_size + 1) if workload.batch_size % n == 0]
    return [
        Strategy(dp=dp, tp=tp, pp=pp, microbatches=microbatches, schedule=schedule)
        for dp, tp, pp, microbatches, schedule in itertools.product(
            degrees, degrees, degrees, pieces, SEARCHED
        )
    ]


def small_space(workload: Facts | None = None, number: int = 16) -> SearchSpace:
    return distribution_space(workload or Facts(), number)


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
            schedule=st.sampled_from([*SEARCHED, "other"]),
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


@pytest.mark.not_quick
def test_a_space_of_ten_million_points_is_counted_without_visiting_them() -> None:
    workload = Facts(2**18 * 3**3 * 5 * 7, 130, (), sequence_lengths=(2**20,))
    space = distribution_space(workload, 4096, "full")
    assert space.count() > 10**7
    assert space.explain(space.at(space.count() - 1)) is None
    visited = sum(len(level.first) - 1 for level in space.tree.levels)
    assert visited < space.count() / 500


@pytest.mark.parametrize(
    ("strategy", "reason"),
    [
        (
            Strategy(dp=2, tp=8),
            "heads (12) is not divisible by tp = 8; tp = 1, 2, 3, 4, 6, 12 would do",
        ),
        (
            Strategy(dp=2, tp=4),
            ("dp x tp x pp = 2 x 4 x 1 = 8, but there are 16 devices; dp = 4 or pp = 2 would do"),
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
            "pp = 16 asks for 16 stages, but the model has 12 blocks; pp at most 12 would do",
        ),
        (
            Strategy(dp=16, microbatches=3),
            (
                "each replica's share of the batch (256 / 16 = 16) is not divisible by "
                "microbatches = 3; microbatches = 1, 2, 4, 8, 16 would do"
            ),
        ),
        (
            Strategy(dp=16, schedule="gpipe"),
            "schedule = gpipe is not searched with dp = 16; 1f1b would do",
        ),
    ],
)
def test_reasons_say_what_is_wrong_and_what_would_do(strategy: Strategy, reason: str) -> None:
    assert small_space().explain(strategy) == reason


def test_an_empty_space_says_which_choice_is_missing() -> None:
    nothing = small_space().restricted(tp=(3,))
    assert nothing.count() == 0
    assert nothing.explain(Strategy(dp=16)) == "tp = 1 is not searched"


def test_a_batch_that_does_not_divide_is_explained() -> None:
    reason = small_space(Facts(batch_size=24)).explain(Strategy(dp=16))
    assert reason == (
        "the batch (24) is not divisible by dp = 16; dp = 1, 2, 3, 4, 6, 8, 12, 24 would do"
    )


def test_what_is_merely_not_searched_is_not_impossible() -> None:
    strategy = Strategy(dp=16, schedule="gpipe")
    assert small_space().impossible(strategy) is None
    assert strategy not in small_space()


def test_a_restricted_space_is_the_part_with_these_values() -> None:
    space = small_space()
    part = space.restricted(tp=(1, 2), schedule=("gpipe",))
    expected = [s for s in space.enumerate() if s.tp in (1, 2) and s.schedule == "gpipe"]
    assert list(part.enumerate()) == expected
    with pytest.raises(
        ValueError, match="unknown dimension 'tq'; expected one of axes, tp, cp, seq"
    ):
        space.restricted(tq=(1,))


# Further choices


everything = st.builds(
    Facts,
    batch_size=st.sampled_from([8, 12, 36]),
    num_blocks=st.integers(1, 14),
    internal_axes=st.sampled_from([(), (("heads", 12),)]),
    mode=st.sampled_from(["training", "inference"]),
    sequence_lengths=st.sampled_from([(), (12,), (17,), (64, 24)]),
    expert_axes=st.sampled_from([(), (("experts", 4),), (("experts", 8), ("experts2", 6))]),
)


@pytest.mark.not_quick
@shares(10, seconds=1)
@given(everything, st.sampled_from([1, 2, 4, 6, 12]))
@settings(max_examples=10)
def test_each_named_space_is_part_of_the_next(share: int, workload: Facts, number: int) -> None:
    spaces = [distribution_space(workload, number, name) for name in SPACES.names()]
    small, standard, full = (set(space.enumerate()) for space in spaces)
    assert [space.count() for space in spaces] == [len(small), len(standard), len(full)]
    assert small <= standard <= full


@pytest.mark.not_quick
@shares(8, seconds=1)
@given(everything, st.sampled_from([1, 2, 4, 6, 12]))
@settings(max_examples=12)
def test_no_two_strategies_are_the_same_plan(share: int, workload: Facts, number: int) -> None:
    for s in distribution_space(workload, number, "full").enumerate():
        assert not s.sequence_parallel or s.tp > 1
        assert not s.zero or s.dp * s.cp > 1
        assert s.ep == 1 or workload.expert_axes
        assert s.pp > 1 or (s.schedule, s.chunks) == ("1f1b", 1)
        assert s.microbatches > 1 or s.schedule in ("1f1b", "zb-h1", "zb-h2", "zb-v")
        if workload.mode == "inference":
            assert (s.zero, s.recompute, s.schedule, s.chunks) == (0, "none", "1f1b", 1)


@given(everything, st.sampled_from([1, 2, 4, 6, 12]))
def test_whatever_a_space_offers_is_possible(workload: Facts, number: int) -> None:
    space = distribution_space(workload, number, "full")
    for index in range(0, space.count(), 1 + space.count() // 50):
        strategy = space.at(index)
        assert space.impossible(strategy) is None
        assert space.explain(strategy) is None


def test_full_offers_every_choice() -> None:
    space = distribution_space(Facts(num_blocks=14), 16, "full")
    assert space.values("cp") == (1, 2, 4, 8, 16)
    assert space.values("zero") == (0, 1, 2, 3)
    offered = {entry.name for entry in SCHEDULES}
    assert set(space.values("schedule")) == offered
    assert space.values("chunks") == (1, 2, 3, 6)
    assert set(space.values("recompute")) == {"none", "selective", "full"}


def test_a_list_of_values_limits_a_dimension() -> None:
    space = distribution_space(
        Facts(num_blocks=40), 16, {"tp": [1, 2], "zero": 1, "schedule": "zb-v"}
    )
    assert space.values("tp") == (1, 2)
    assert {(s.dp > 1, s.zero) for s in space.enumerate()} == {(True, 1), (False, 0)}
    assert {(s.pp > 1, s.schedule, s.chunks) for s in space.enumerate()} == {
        (True, "zb-v", 2),
        (False, "1f1b", 1),
    }


def test_a_schedule_without_chunks_goes_with_any_list_of_chunks() -> None:
    told = {"schedule": ["1f1b", "interleaved"], "chunks": [2, 4], "pp": 2}
    space = distribution_space(Facts(num_blocks=14), 16, told)
    found = {(s.schedule, s.chunks) for s in space.enumerate()}
    assert found == {("1f1b", 1), ("interleaved", 2), ("interleaved", 4)}


def test_a_file_describes_a_space(tmp_path: Path) -> None:
    file = tmp_path / "space.yaml"
    file.write_text(
        "extends: standard\ntp: [1, 2]\nzero: all\nrecompute: full\nschedule: [GPIPE]\n"
        "sequence_parallel: default\n"
    )
    space = distribution_space(Facts(), 16, str(file))
    assert space.values("tp") == (1, 2)
    assert space.values("zero") == (0, 1, 2, 3)
    assert space.values("recompute") == ("full",)
    assert space.values("schedule") == ("1f1b", "gpipe")  # 1f1b where there is no pipeline
    assert space.values("sequence_parallel") == (False,)
    file.write_text("")
    assert distribution_space(Facts(), 16, file).count() == small_space().count()


def test_a_file_may_name_any_recomputation_that_there_is() -> None:
    """Also those that no named space searches."""
    space = distribution_space(Facts(), 16, {"recompute": ["needed", "none"]})
    assert set(space.values("recompute")) == {"needed", "none"}
    assert "needed" not in distribution_space(Facts(), 16, "full").values("recompute")


@given(facts, devices)
def test_sizes_of_microbatches_leave_the_strategies_that_have_them(
    workload: Facts, number: int
) -> None:
    def size(strategy: Strategy) -> int:
        return workload.batch_size // (strategy.dp * strategy.microbatches)

    every = list(distribution_space(workload, number).enumerate())
    sized = distribution_space(workload, number, {"microbatch_size": [1, 3]})
    assert list(sized.enumerate()) == [each for each in every if size(each) in (1, 3)]
    for each in every:
        assert each.in_microbatches_of(size(each), workload.batch_size) == each


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("microbatch_size: 0", "microbatch_size is 0; expected a whole number of at least 1"),
        ("microbatch_size: [1, many]", "microbatch_size is 'many'; expected a whole number"),
        ("microbatch_size: default", "expected sizes in samples, or `all`"),
        ("microbatch_size: 1\nmicrobatches: 8", "both stated; expected one of them"),
        ("tq: [1]", "unknown dimension 'tq'; did you mean: "),
        ("zero: [0, 5]", "zero is 5; expected 0, 1, 2 or 3"),
        ("zero: true", "zero is True; expected a whole number"),
        ("schedule: [gpip]", "unknown schedule 'gpip'; did you mean: dualpipe, gpipe"),
        ("recompute: most", "unknown recomputation 'most'"),
        ("tp: []", "tp has no values"),
        ("tp: 0", "tp is 0; expected a whole number of at least 1"),
        ("extends: medium", "unknown space 'medium'"),
        ("- tp", "a list; expected dimensions with their values"),
        ("tp: 1\nzero: 3\ntp: 2", "YAML: line 3 states tp, which line 1 states already; leave"),
        ("tp: [1", "not valid YAML"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "space.yaml"
    file.write_text(text)
    with pytest.raises(DistirError, match=re.escape(words)) as raised:
        searched(file)
    assert "\n" not in str(raised.value)


def test_a_schedule_file_is_looked_for_beside_the_space_and_then_from_where_we_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spaces, work = tmp_path / "spaces", tmp_path / "work"
    spaces.mkdir()
    work.mkdir()
    monkeypatch.chdir(work)
    file = spaces / "space.yaml"
    file.write_text("schedule: [gpipe, mine.txt]\n")
    with pytest.raises(DistirError) as raised:
        searched(file)
    assert str(raised.value).endswith(
        f"there is no schedule file mine.txt, neither in {spaces} nor in {work}"
    )
    (work / "mine.txt").write_text("0F0 0B0\n1F0 1B0\n")
    assert searched(file).allowed("schedule") == ("gpipe", "mine.txt")
    (spaces / "mine.txt").write_text("0F0 0B0\n1F0 1B0\n")
    (spaces / "gpipe").write_text("no schedule")
    assert searched(file).allowed("schedule") == ("gpipe", str(spaces / "mine.txt"))
    assert searched({"schedule": "mine.txt"}).allowed("schedule") == ("mine.txt",)


def test_a_space_that_is_not_there_is_refused() -> None:
    with pytest.raises(DistirError, match="unknown space 'smal'; did you mean: small"):
        searched("smal")
    with pytest.raises(DistirError, match=r"nowhere\.yaml: cannot be read: No such file"):
        searched("nowhere.yaml")


@pytest.mark.parametrize(
    ("strategy", "reason"),
    [
        (
            Strategy(dp=16, sequence_parallel=True),
            "sequence_parallel needs tp > 1: it splits the sequence over the devices of tp",
        ),
        (
            Strategy(cp=16),
            "the sequence (1000) is not divisible by cp = 16; cp = 1, 2, 4, 5, 8, 10, 20, 25, 40",
        ),
        (
            Strategy(pp=4, dp=4, schedule="interleaved", chunks=4, microbatches=4),
            (
                "pp x chunks = 4 x 4 asks for 16 stages, but the model has 12 blocks; "
                "pp = 1, 2, 3 or chunks = 1, 2, 3 would do"
            ),
        ),
        (
            Strategy(pp=4, dp=4, schedule="interleaved", microbatches=4),
            "interleaved needs at least 2 chunks per rank, not 1",
        ),
        (
            Strategy(pp=4, dp=4, chunks=2, microbatches=4),
            "1f1b has 1 chunk per rank, not 2",
        ),
        (Strategy(pp=4, dp=4, schedule="other"), "unknown schedule 'other'; "),
        (
            Strategy(dp=16, ep=2),
            "ep = 2 shares experts, but the model has no axis of experts; ep = 1 would do",
        ),
        (Strategy(dp=16, recompute="some"), "unknown recomputation 'some'; "),
        (Strategy(dp=8, cp=4), "dp x tp x cp x pp = 8 x 1 x 4 x 1 = 32, but there are 16 devices"),
    ],
)
def test_wrong_combinations_are_explained(strategy: Strategy, reason: str) -> None:
    found = small_space(Facts(sequence_lengths=(1000,))).impossible(strategy)
    assert found is not None
    assert found.startswith(reason)


def test_inference_keeps_nothing_to_shard_or_recompute() -> None:
    space = small_space(Facts(mode="inference"))
    assert "inference keeps nothing; zero = 0 would do" in str(
        space.impossible(Strategy(dp=16, zero=1))
    )
    assert "no backward pass" in str(space.impossible(Strategy(dp=16, recompute="full")))
    assert space.impossible(Strategy(dp=8, tp=2, sequence_parallel=True)) is None


def test_a_model_without_a_sequence_is_not_cut_along_it() -> None:
    space = distribution_space(Facts(sequence_lengths=()), 4, "full")
    assert space.values("cp") == (1,)
    assert space.values("sequence_parallel") == (False,)
    assert "the model has no sequence" in str(space.impossible(Strategy(cp=4)))


def test_experts_are_shared_by_replicas() -> None:
    workload = Facts(expert_axes=(("experts", 8),))
    assert small_space(workload).values("ep") == (1,)
    space = distribution_space(workload, 16, "standard")
    pairs = {(s.dp, s.tp, s.ep) for s in space.enumerate() if s.dp >= 4}
    assert {(dp, ep) for dp, tp, ep in pairs if tp == 1} == {
        (dp, ep) for dp in (4, 8, 16) for ep in (1, 2, 4, 8) if dp % ep == 0
    }
    assert (4, 2, 8) in pairs, "the devices of tp as well, all of them"
    assert (4, 4, 8) in pairs
    assert space.impossible(Strategy(dp=16, ep=16)) == (
        "ep = 16 must divide the experts (8); ep = 1, 2, 4, 8 would do"
    )
    assert space.impossible(Strategy(dp=4, pp=4, ep=8)) == (
        "ep = 8 does not fit dp 4 x cp 1 x tp 1 devices; ep = 1, 2, 4 would do"
    )


def test_orders_are_searched_where_a_file_says_so() -> None:
    workload = Facts(8, 8, (), sequence_lengths=(64,))
    usual = distribution_space(workload, 8, {"extends": "small"})
    assert {each.placement for each in usual.enumerate()} == {PLACEMENT}
    every = distribution_space(workload, 8, {"extends": "small", "placement": "all"})
    found = Counter(each.order for each in every.enumerate() if each.dp == each.tp == each.pp == 2)
    assert set(found) == set(itertools.permutations(("tp", "dp", "pp")))
    assert len({(each.placement, each.order) for each in every.enumerate()}) == len(
        {each.order for each in every.enumerate()}
    )
    some = {"extends": "small", "placement": ["dp-tp-cp-ep-pp", "dp-cp-tp-ep-pp", PLACEMENT]}
    alike = distribution_space(workload, 8, some)
    assert {each.placement for each in alike.enumerate()} == {"dp-tp-cp-ep-pp", PLACEMENT}
    with pytest.raises(SpaceError, match="innermost first"):
        distribution_space(workload, 8, {"placement": "dp-tp"})
