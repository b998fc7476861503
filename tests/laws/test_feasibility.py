"""Feasibility has one meaning: the search space and the simulator refuse the same strategies."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import distir
from distir.strategies import Strategies
from distir.strategy import (
    CP_EXCHANGES,
    KEEP_GATHERED,
    OFFLOADS,
    OUTER_OPTIMIZERS,
    Strategy,
)
from distir.workload import Mode
from search_spaces import SearchSpace, distribution_space
from tests.conftest import shared_path
from tests.slow import shares

MODELS = (
    "gpt2-xs",
    "qwen2.5-0.5b",
    "mlp-xs",
    "t5-small",
    "vit-b",
    "mixtral-8x7b",
    "gpt2.onnx",
    "mlp16.onnx",
)
DEVICES = (1, 2, 6, 8, 12, 16)
OTHERS: dict[str, tuple[Any, ...]] = {
    "dp": (1, 2, 3, 4, 16),
    "tp": (1, 2, 3, 8),
    "pp": (1, 2, 3, 5),
    "cp": (1, 2, 3, 4),
    "ep": (1, 2, 3, 4, 8),
    "etp": (0, 1, 2, 3),
    "expert_order": ("replicas", "nearest"),
    "microbatches": (1, 2, 3, 4, 8),
    "schedule": ("gpipe", "1f1b", "interleaved", "breadth-first", "zb-v", "chimera", "other"),
    "chunks": (1, 2, 3),
    "zero": (0, 1, 2, 3),
    "zero_degree": (0, 1, 2, 3),
    "recompute": ("none", "selective", "full", "needed", "other"),
    "recompute_every": (1, 2),
    "recompute_layers": (0, 1, 2),
    "keep_gathered": KEEP_GATHERED,
    "offload": ("", *OFFLOADS),
    "sync_every": (1, 8),
    "outer_optimizer": OUTER_OPTIMIZERS,
    "sequence_parallel": (False, True),
    "cp_exchange": CP_EXCHANGES,
    "axes": ("", "tp=heads,ffn", "tp=batch;cp=heads*,sequence", "dp=hidden", "tp=nothing"),
}
"""Values of choices, possible or not."""


@cache
def workload(model: str, mode: Mode, batch_size: int) -> distir.Workload:
    source = shared_path(f"models/{model}") if model.endswith(".onnx") else model
    return distir.Workload(model=distir.load_model(source), mode=mode, batch_size=batch_size)


@cache
def simulator(model: str, mode: Mode, batch_size: int, devices: int) -> distir.Simulator:
    cluster = distir.load_cluster("dgx-a100", devices)
    return distir.Simulator(workload(model, mode, batch_size), cluster)


@cache
def full_space(model: str, mode: Mode, batch_size: int, devices: int) -> SearchSpace:
    return distribution_space(workload(model, mode, batch_size), devices, "full")


@st.composite
def mutated(draw: st.DrawFn, space: SearchSpace) -> Strategy:
    """A strategy of the space of which a few choices are changed to whatever."""
    strategy = space.at(draw(st.integers(0, space.count() - 1)))
    changed = draw(st.lists(st.sampled_from(sorted(OTHERS)), max_size=3, unique=True))
    return replace(strategy, **{name: draw(st.sampled_from(OTHERS[name])) for name in changed})


modes = st.sampled_from(("training", "inference"))


@pytest.mark.parametrize("model", MODELS)
@given(st.data(), modes, st.sampled_from(DEVICES), st.sampled_from((12, 48)))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_possible_are_those_that_the_simulator_accepts_and_that_fill_the_devices(
    model: str, data: st.DataObject, mode: Mode, devices: int, batch_size: int
) -> None:
    """What both refuse they refuse with the same words."""
    space = full_space(model, mode, batch_size, devices)
    strategy = data.draw(mutated(space))
    refused = simulator(model, mode, batch_size, devices).explain(strategy)
    reason = space.impossible(strategy)
    assert (reason is None) == (refused is None and strategy.devices == devices), (reason, refused)
    if strategy.devices == devices:
        assert reason == refused


@pytest.mark.parametrize("model", MODELS)
@given(st.data(), modes, st.sampled_from(DEVICES))
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_many_strategies_are_refused_as_one_by_one(
    model: str, data: st.DataObject, mode: Mode, devices: int
) -> None:
    space = full_space(model, mode, 48, devices)
    strategies = data.draw(st.lists(mutated(space), max_size=12))
    engine = simulator(model, mode, 48, devices)
    reasons = {index: engine.explain(each) for index, each in enumerate(strategies)}
    refused = {index: reason for index, reason in reasons.items() if reason is not None}
    assert engine.explain_many(Strategies.of(strategies)) == refused


@shares(5, seconds=1)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("mode", ["training", "inference"])
def test_what_the_full_space_offers_can_be_simulated(share: int, model: str, mode: Mode) -> None:
    engine = simulator(model, mode, 48, 8)
    offered = full_space(model, mode, 48, 8).samples(random.Random(share), 5)
    assert offered
    for strategy in offered:
        assert engine.simulate(strategy).metrics["iteration_seconds"] > 0, strategy.label
