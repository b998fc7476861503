"""How sure a time is, and when two plans' times do not differ."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distir import Strategy, load_cluster, load_model, simulate
from distir.cost import Band, CostModel, load_stack

spreads = st.floats(0, 0.5)
times = st.floats(1e-3, 1e6)


def test_independent_errors_add_up_as_squares() -> None:
    """2 %, 3 % and 6 % together are 7 %; two runs of 6 % each differ by 8.5 %."""
    band = Band(hardware=0.02, source=0.03, repeat=0.06)
    assert band.relative == pytest.approx(0.07)
    assert band.interval(107.0) == pytest.approx((100.0, 114.49))
    assert band.between_plans == pytest.approx(0.0849, abs=1e-4)
    assert band.interval95(114.0) == pytest.approx((100.0, 129.96))
    assert band.separates(1.09, 1.0)
    assert not band.separates(1.08, 1.0)


def test_plans_that_differ_in_order_alone_are_told_apart_sooner() -> None:
    """Layouts off by 4 % and repeats by 3 %: two layouts differ by 7.1 %, two orders by 4.2 %."""
    band = Band(source=0.5, layout=0.04, repeat=0.03)
    assert band.between_plans == pytest.approx(0.0707, abs=1e-4)
    assert band.between_like_plans == pytest.approx(0.0424, abs=1e-4)
    assert band.separates(1.05, 1.0, alike=True)
    assert not band.separates(1.05, 1.0)
    strategy = Strategy(dp=2, pp=2, microbatches=4)
    assert strategy.differs_in_order_alone(Strategy(dp=2, pp=2, microbatches=8, schedule="gpipe"))
    assert not strategy.differs_in_order_alone(Strategy(dp=4, microbatches=4))


def test_a_mixture_is_less_sure() -> None:
    cost = CostModel(load_cluster("dgx-a100"), load_stack("megatron"))
    assert cost.band(mixture=True).relative > cost.band().relative
    assert cost.band(mixture=True).between_plans == cost.band().between_plans


@given(spreads, spreads, spreads, times, times)
def test_what_plans_share_does_not_blur_their_order(
    hardware: float, source: float, repeat: float, first: float, second: float
) -> None:
    band = Band(hardware, source, repeat=repeat)
    assert band.relative >= max(hardware, source, repeat)
    assert band.separates(first, second) == Band(repeat=repeat).separates(second, first)
    least, most = band.interval(first)
    assert least <= first <= most


def test_a_generation_that_was_hardly_measured_is_less_sure() -> None:
    stack = load_stack("megatron")
    bands = [
        CostModel(load_cluster(name), stack).band()
        for name in ("dgx-a100", "hgx-h100", "hgx-b200", "gb300-nvl72")
    ]
    assert [band.relative for band in bands] == sorted(band.relative for band in bands)
    assert len({band.between_plans for band in bands}) == 1
    assert CostModel(load_cluster("dgx-a100"), load_stack("ideal")).band().deviation == 0.0


def test_results_carry_their_band() -> None:
    result = simulate(load_model("gpt2"), Strategy(dp=2), "dgx-a100", batch_size=4)
    written = result.to_dict()["band"]
    least, most = written["iteration_seconds"]
    assert least < result.metrics["iteration_seconds"] < most
    assert written["relative"] == result.band.relative > 0
    assert written["between_plans"] > written["between_like_plans"] > 0
