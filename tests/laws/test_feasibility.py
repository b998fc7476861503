"""Feasibility has one meaning: the search space and the simulator refuse the same strategies."""

from __future__ import annotations

import random
from functools import cache

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import distir
from distir.strategy import Strategy
from distir.workload import Mode
from search_spaces import distribution_space
from tests.conftest import shared_path

MODELS = ("gpt2-xs", "qwen2.5-0.5b", "mlp-xs", "t5-small", "vit-b", "gpt2.onnx", "mlp16.onnx")
SCHEDULES = ("gpipe", "1f1b", "interleaved", "breadth-first", "zb-h1", "zb-h2", "zb-v", "chimera")
LISTS = ("", "", "", "tp=heads,ffn", "tp=batch;cp=heads*,sequence", "dp=hidden", "tp=nothing")
DEVICES = (1, 2, 6, 8, 12, 16)


@cache
def workload(model: str, mode: Mode, batch_size: int) -> distir.Workload:
    source = shared_path(f"models/{model}") if model.endswith(".onnx") else model
    return distir.Workload(model=distir.load_model(source), mode=mode, batch_size=batch_size)


@cache
def simulator(model: str, mode: Mode, batch_size: int, devices: int) -> distir.Simulator:
    cluster = distir.load_cluster("dgx-a100", devices)
    return distir.Simulator(workload(model, mode, batch_size), cluster)


@st.composite
def strategies(draw: st.DrawFn, devices: int) -> Strategy:
    """Any strategy over these devices, possible or not."""
    left, degrees = devices, []
    for _ in range(3):
        degrees.append(draw(st.sampled_from([d for d in range(1, left + 1) if left % d == 0])))
        left //= degrees[-1]
    tp, pp, cp, dp = *degrees, left
    return Strategy(
        dp=dp,
        tp=tp,
        pp=pp,
        cp=cp,
        microbatches=draw(st.sampled_from((1, 2, 3, 4, 8))),
        schedule=draw(st.sampled_from(SCHEDULES)),
        chunks=draw(st.sampled_from((1, 1, 2, 2, 3))),
        zero=draw(st.sampled_from((0, 0, 1, 2, 3))),
        recompute=draw(st.sampled_from(("none", "none", "selective", "full", "other"))),
        sequence_parallel=draw(st.booleans()),
        zero_degree=draw(st.sampled_from((0, 0, 0, 1, 2, 3))),
        cp_exchange=draw(st.sampled_from(("gather", "gather", "ring", "all-to-all"))),
        axes=draw(st.sampled_from(LISTS)),
    )


modes = st.sampled_from(("training", "inference"))


@pytest.mark.parametrize("model", MODELS)
@given(st.data(), modes, st.sampled_from(DEVICES), st.sampled_from((12, 48)))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_space_and_simulator_refuse_the_same_strategies(
    model: str, data: st.DataObject, mode: Mode, devices: int, batch_size: int
) -> None:
    strategy = data.draw(strategies(devices))
    refused = simulator(model, mode, batch_size, devices).explain(strategy)
    reason = distribution_space(workload(model, mode, batch_size), devices).impossible(strategy)
    assert (reason is None) == (refused is None), (reason, refused)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("mode", ["training", "inference"])
def test_what_the_full_space_offers_can_be_simulated(model: str, mode: Mode) -> None:
    engine = simulator(model, mode, 48, 8)
    space = distribution_space(workload(model, mode, 48), 8, "full")
    offered = space.samples(random.Random(0), 25)
    assert offered
    for strategy in offered:
        assert engine.simulate(strategy).metrics["iteration_seconds"] > 0, strategy.label
