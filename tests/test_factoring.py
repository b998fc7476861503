"""Divisors, and factors of tensor and of expert parallelism."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distir.factoring import ExpertFactors, divisors, expert_factors, tensor_factors


@given(st.integers(1, 5000))
def test_divisors_are_all_there_are(number: int) -> None:
    assert list(divisors(number)) == [n for n in range(1, number + 1) if number % n == 0]


@pytest.mark.parametrize(
    ("sizes", "inner", "degree", "factors"),
    [
        ((("heads", 12), ("ffn", 3072)), {}, 4, (4,)),
        ((("heads", 12),), {}, 8, ()),
        ((("heads", 8), ("ffn", 28672)), {"heads": 8}, 16, (8, 2)),
        ((("heads", 8), ("ffn", 28672)), {"heads": 8}, 64, (8, 8)),
        ((("heads", 2), ("ffn", 14)), {"heads": 7}, 7, (7,)),
        ((("heads", 4), ("heads2", 2)), {"heads": 2, "heads2": 4}, 8, (2, 2, 2)),
        ((("heads", 4), ("heads2", 6)), {"heads": 3, "heads2": 2}, 12, ()),  # 4 and 6: no chain
        ((), {}, 5, (5,)),
        ((("heads", 3),), {}, 1, (1,)),
    ],
)
def test_tp_has_factors_exactly_where_it_is_not_refused(
    sizes: tuple[tuple[str, int], ...], inner: dict[str, int], degree: int, factors: tuple[int, ...]
) -> None:
    assert tensor_factors(sizes, inner, degree) == factors


@given(
    st.lists(st.tuples(st.integers(1, 24), st.integers(1, 12)), min_size=1, max_size=3),
    st.integers(1, 48),
)
def test_every_axis_or_the_one_inside_divides(axes: list[tuple[int, int]], degree: int) -> None:
    sizes = [(str(number), size) for number, (size, _) in enumerate(axes)]
    inner = {str(number): size for number, (_, size) in enumerate(axes)}
    factors = tensor_factors(sizes, inner, degree)
    if not factors:
        assert any(size % degree for size, _ in axes)
        return
    assert math.prod(factors) == degree
    for size, inside in axes:
        own = math.prod(
            factor
            for number, factor in enumerate(factors)
            if math.gcd(size, degree) % math.prod(factors[: number + 1]) == 0
        )
        assert size % own == 0
        assert inside % (degree // own) == 0


@pytest.mark.parametrize(
    ("ep", "dp", "cp", "tp", "factors"),
    [
        (8, 16, 4, 4, (8, 1, 1)),  # replicas alone, where they divide
        (8, 4, 2, 1, (4, 2, 1)),  # with those of a sequence, nearest first
        (2, 1, 4, 1, (1, 2, 1)),
        (32, 1, 32, 1, (1, 32, 1)),
        (64, 32, 1, 2, (32, 1, 2)),  # with those of tensor parallelism, all of them
        (8, 4, 1, 8, (1, 1, 8)),
        (8, 2, 2, 2, (2, 2, 2)),
        (8, 1, 4, 2, (1, 4, 2)),
        (8, 2, 2, 4, (1, 2, 4)),  # where those of tp do, those of a sequence come before replicas
        (4, 1, 1, 8, None),
        (3, 4, 2, 2, None),
    ],
)
def test_experts_are_shared_by_dp_then_cp_then_tp(
    ep: int, dp: int, cp: int, tp: int, factors: tuple[int, int, int] | None
) -> None:
    expected = None if factors is None else ExpertFactors(*factors)
    assert expert_factors(ep, dp, cp, tp) == expected


@pytest.mark.parametrize(
    ("dp", "cp", "tp", "ep", "etp", "factors"),
    [
        # What `RankGenerator` of megatron-core 0.19.2 says, with the order tp-cp-ep-dp-pp.
        (4, 2, 1, 4, 1, (2, 2, 1)),
        (4, 2, 2, 2, 2, (1, 2, 1)),
        (4, 1, 2, 4, 2, (4, 1, 1)),
        (4, 2, 1, 8, 1, (4, 2, 1)),
        (2, 4, 1, 8, 1, (2, 4, 1)),
        (1, 2, 4, 8, 1, (1, 2, 4)),
        (2, 1, 4, 4, 2, (2, 1, 2)),  # two of tp = 4 split each expert, the others share
        (1, 1, 4, 2, 2, (1, 1, 2)),
        (3, 4, 1, 6, 1, None),  # six neighbours in rows of four are no whole rows
        (1, 1, 4, 2, 1, None),  # not all that would not split experts are needed to share them
        (4, 1, 4, 4, 3, None),
    ],
)
def test_the_nearest_devices_share_experts_beside_those_that_split_them(
    dp: int, cp: int, tp: int, ep: int, etp: int, factors: tuple[int, int, int] | None
) -> None:
    expected = None if factors is None else ExpertFactors(*factors)
    assert expert_factors(ep, dp, cp, tp, etp, "nearest") == expected


@given(*(st.integers(1, 12) for _ in range(4)), st.integers(0, 12))
def test_the_nearest_are_neighbours(ep: int, dp: int, cp: int, tp: int, etp: int) -> None:
    """Their numbers, counted along tp, then cp, then dp, are as far apart as `etp`, and follow each
    other."""
    factors = expert_factors(ep, dp, cp, tp, etp, "nearest")
    if factors is None:
        return
    split = tp // factors.tp
    assert split == etp or not etp
    sharing = [
        tp * (cp * replica + part) + split * other
        for replica in range(factors.dp)
        for part in range(factors.cp)
        for other in range(factors.tp)
    ]
    assert sharing == [split * number for number in range(ep)]


@given(*(st.integers(1, 24) for _ in range(4)))
def test_those_who_share_experts_are_as_many(ep: int, dp: int, cp: int, tp: int) -> None:
    factors = expert_factors(ep, dp, cp, tp)
    if factors is not None:
        assert factors.dp * factors.cp * factors.tp == ep
        assert dp % factors.dp == cp % factors.cp == 0
        assert factors.tp in (1, tp)
    # Without tensor parallelism it fits wherever the number of devices says so.
    assert (dp * cp % ep == 0) == (expert_factors(ep, dp, cp, 1) is not None)
