"""How sure a time is, and when two plans' times do not differ."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distir import Strategy, load_cluster, load_model, simulate
from distir.cost import Band, CostModel, load_stack
from distir.cost.band import SIZES, extrapolated

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


# --- beyond the sizes of measured runs ------------------------------------------------------------

WITHIN = {"devices": 1024, "nodes": 128, "parameters": 1e11, "sequence": 8192}
SPREADS = {"devices": 0.1, "nodes": 0.05, "parameters": 0.0, "sequence": 0.2}


@given(st.sampled_from(list(SIZES)), st.floats(0, 20))
def test_each_doubling_beyond_measured_runs_adds_as_much(name: str, doublings: float) -> None:
    sizes = {**WITHIN, name: WITHIN[name] * 2.0**doublings}
    added, said = extrapolated(sizes, WITHIN, SPREADS)
    assert added == pytest.approx(SPREADS[name] * math.sqrt(doublings), abs=1e-6)
    assert bool(said) == (sizes[name] > WITHIN[name])
    assert not said or SIZES[name] in said


@given(st.dictionaries(st.sampled_from(list(SIZES)), st.floats(0, 1)))
def test_within_measured_runs_nothing_is_added(shares: dict[str, float]) -> None:
    sizes = {name: WITHIN[name] * share for name, share in shares.items()}
    assert extrapolated(sizes, WITHIN, SPREADS) == (0.0, "")


def test_the_size_that_adds_most_counts_and_all_are_said() -> None:
    sizes = {**WITHIN, "devices": 4096, "nodes": 512}
    added, said = extrapolated(sizes, WITHIN, SPREADS)
    assert added == pytest.approx(0.1 * math.sqrt(2))
    assert said == (
        "4,096 devices (of measured runs at most 1,024), 512 nodes (of measured runs at most 128)"
    )


def test_larger_systems_and_longer_sequences_are_less_sure() -> None:
    stack = load_stack("megatron")
    bands = [
        CostModel(load_cluster("dgx-a100", devices), stack).band()
        for devices in (8, 1024, 8192, 65536)
    ]
    assert bands[0] == bands[1]
    assert not bands[1].beyond
    assert bands[1].relative < bands[2].relative < bands[3].relative
    assert "65,536 devices" in bands[3].beyond
    assert "8,192 nodes" in bands[3].beyond
    # All plans share it: their order is as sure as before.
    assert bands[3].between_plans == bands[0].between_plans
    cost = CostModel(load_cluster("dgx-a100", 8), stack)
    assert cost.band(sequence=2**20).relative > cost.band(sequence=8192).relative
    assert "tokens per sequence" in cost.band(sequence=2**20).beyond


def test_an_ideal_stack_has_no_sizes_that_it_does_not_know() -> None:
    band = CostModel(load_cluster("dgx-a100", 65536), load_stack("ideal")).band()
    assert (band.extrapolation, band.beyond) == (0.0, "")


def test_a_result_says_in_what_it_goes_beyond_measured_runs() -> None:
    large, small = load_cluster("dgx-a100", 4096), load_cluster("dgx-a100", 8)
    result = simulate(load_model("gpt2"), Strategy(dp=4096), large, batch_size=4096)
    assert "4,096 devices" in result.band.beyond
    assert result.to_dict()["band"]["beyond"] == result.band.beyond
    assert result.to_dict()["band"]["extrapolation"] == result.band.extrapolation > 0
    within = simulate(load_model("gpt2"), Strategy(dp=8), small, batch_size=8)
    assert "beyond" not in within.to_dict()["band"]
