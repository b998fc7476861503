"""Many strategies at once give what they give one by one."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distir import Simulator, Strategy, Workload, load_cluster, load_model
from distir.cost import Cluster
from distir.importers.load import LoadedModel
from distir.metrics import METRICS
from distir.models.transformer import llama_config
from distir.schedules import SCHEDULES
from distir.simulation.many import program_sizes
from distir.simulation.many.adding import StageAdder
from search_spaces import distribution_space
from tests.laws.scenarios import Chain, shared_layer, shared_layer_and_own, simulators
from tests.slow import shares

RELATIVE = 1e-9


def check(simulator: Simulator, strategies: Sequence[Strategy]) -> None:
    """The table equals the results of the strategies, reasons included."""
    table = simulator.simulate_many(strategies)
    assert list(table.metrics) == METRICS.names()
    for index, strategy in enumerate(strategies):
        reason = simulator.explain(strategy)
        if reason is not None:
            assert not table.feasible[index]
            assert table.reason(index) == reason
            assert all(math.isnan(column[index]) for column in table.metrics.values())
            continue
        result = simulator.simulate(strategy)
        found = {name: column[index] for name, column in table.metrics.items()}
        for name in found.keys() - result.metrics.keys():  # nobody stated a price, for instance
            assert math.isnan(found.pop(name))
        assert found == pytest.approx(result.metrics, rel=RELATIVE, abs=1e-12), strategy.label
        assert bool(table.feasible[index]) == result.feasible
        assert table.reason(index) == result.reason


@st.composite
def searches(draw: st.DrawFn) -> tuple[Simulator, list[Strategy]]:
    """A workload on a cluster, strategies of its full space, and a few that are not in it."""
    simulator = draw(simulators((1, 4, 12, 24, 36)))
    workload, devices = simulator.workload, simulator.cluster.num_devices
    every = ("offload", "outer_optimizer", "placement", "expert_order", "etp", "recompute_layers")
    wanted = {"sync_every": [1, 8], **dict.fromkeys(every, "all")}
    space = distribution_space(workload, devices, {"extends": "full", **wanted})
    chance = random.Random(draw(st.integers(0, 10**6)))
    strategies = space.samples(chance, 16)
    strategies += [Strategy(dp=7), Strategy(pp=devices, microbatches=5), Strategy(tp=2 * devices)]
    chance.shuffle(strategies)
    return simulator, strategies


@shares(16, seconds=2)
@settings(max_examples=3)
@given(searches())
def test_a_table_holds_what_strategies_give_one_by_one(
    share: int, search: tuple[Simulator, list[Strategy]]
) -> None:
    check(*search)


@pytest.mark.slow(seconds=2)
@pytest.mark.parametrize(("schedule", "chunks"), [("dualpipe", 1), ("dualpipev", 2)])
def test_overlapped_passes_add_up_shared_gradients_alike(schedule: str, chunks: int) -> None:
    """T5's layers share their table of relative positions."""
    workload = Workload(model=load_model("t5-small"), batch_size=32)
    simulator = Simulator(workload, load_cluster("dgx-a100", 8))
    degrees = Strategy(dp=4, pp=2, chunks=chunks, microbatches=8, schedule=schedule)
    check(simulator, [replace(degrees, zero=zero) for zero in (0, 1, 2, 3)])


@pytest.mark.parametrize(("pp", "chunks"), [(1, 2), (2, 1)])
def test_gradients_of_shared_layers_are_settled_by_the_last_pass_of_each_schedule(
    pp: int, chunks: int
) -> None:
    """Whole backward passes settle them with the first block, which has no others; passes in parts
    with the last block, beside its own: in one collective less. Each plan has its own, whatever
    schedules are evaluated beside it."""
    chain = Chain()
    x = chain.x
    for layer in (shared_layer, shared_layer_and_own) * 3:
        x = layer(chain, x)
    model = LoadedModel("shared", chain.builder.build([chain.dense(x)]))
    cluster = load_cluster("dgx-a100", 8)
    slow = tuple(replace(level, latency_seconds=1e-3) for level in cluster.levels)
    simulator = Simulator(Workload(model=model, batch_size=32), replace(cluster, levels=slow))
    degrees = Strategy(dp=4, pp=pp, chunks=chunks, microbatches=4)
    strategies = [replace(degrees, schedule=name) for name in SCHEDULES.names()]
    check(simulator, [each for each in strategies if simulator.explain(each) is None])


def test_messages_over_different_levels_are_told_apart() -> None:
    """Plans that differ in where ranks lie alone: of one, some messages cross nodes."""
    function = llama_config(
        "small", layers=6, hidden=16, heads=2, kv_heads=2, ffn=24, vocabulary=30, sequence_length=8
    ).build(2, 8)
    workload = Workload(model=LoadedModel("small", function), batch_size=16, mode="inference")
    simulator = Simulator(workload, load_cluster("dgx-a100", 16))
    strategies = [
        Strategy(pp=pp, dp=16 // pp, schedule="gpipe", placement=placement)
        for pp in (2, 4, 8)
        for placement in ("tp-cp-ep-dp-pp", "pp-tp-cp-ep-dp")
    ]
    check(simulator, strategies)


@pytest.mark.slow(seconds=6)
def test_a_table_holds_what_strategies_give_where_memory_is_short() -> None:
    """Stages then begin elsewhere than time alone would have it."""
    schedules = [
        (family.name, chunks)
        for family in (entry.value for entry in SCHEDULES)
        for chunks in sorted({family.default_chunks, family.most_chunks or 3})
    ]
    strategies = [
        Strategy(dp=8 // pp, pp=pp, microbatches=16, schedule=schedule, chunks=chunks, zero=zero)
        for schedule, chunks in schedules
        for pp in (2, 4)
        for zero in (0, 1)
    ]
    plenty = Simulator(*_gpt2(batch_size=128)).simulate_many(strategies)
    peaks = plenty.metrics["peak_memory_bytes"]
    moved = 0
    reserve = float(plenty.metrics["reserved_memory_bytes"].max())
    for memory in reserve + 0.97 * np.unique(peaks)[::4]:
        simulator = Simulator(*_gpt2(memory, batch_size=128))
        check(simulator, strategies)
        moved += sum(simulator.simulate_many(strategies).metrics["peak_memory_bytes"] < peaks)
    assert moved >= 10


@pytest.mark.slow(seconds=5)
def test_sizes_priced_in_parts_cost_what_they_cost_together() -> None:
    """Memory bounds how many program sizes are priced together, and decides nothing else."""
    workload = Workload(model=load_model("t5-small"), batch_size=64)
    cluster = load_cluster("dgx-a100", 8)
    space = distribution_space(workload, 8, {"extends": "full", "zero": [0, 2]})
    strategies = space.samples(random.Random(0), 40)
    with mock.patch.object(StageAdder, "add", autospec=True, side_effect=StageAdder.add) as added:
        together = Simulator(workload, cluster).simulate_many(strategies)
        all_at_once = added.call_count
        with mock.patch.object(program_sizes, "BLOCKS_TOGETHER", 10):
            apart = Simulator(workload, cluster).simulate_many(strategies)
        assert added.call_count > 2 * all_at_once
    assert np.array_equal(together.feasible, apart.feasible)
    for name, column in together.metrics.items():
        assert apart.metrics[name] == pytest.approx(column, rel=RELATIVE, nan_ok=True), name


def test_the_table_of_no_strategies_is_empty() -> None:
    table = Simulator(*_gpt2()).simulate_many([])
    assert len(table) == 0
    assert all(column.shape == (0,) for column in table.metrics.values())


def test_what_does_not_fit_is_said() -> None:
    workload, cluster = _gpt2(memory_bytes=1e5)
    table = Simulator(workload, cluster).simulate_many([Strategy(), Strategy(dp=3)])
    assert not table.feasible.any()
    assert "out of memory" in str(table.reason(0))
    assert "is not divisible by" in str(table.reason(1))
    assert np.isfinite(table.metrics["iteration_seconds"]).tolist() == [True, False]


def _gpt2(memory_bytes: float = 16e9, batch_size: int = 16) -> tuple[Workload, Cluster]:
    cluster = load_cluster("dgx-a100", 8)
    device = replace(cluster.device, memory_bytes=memory_bytes)
    workload = Workload(model=load_model("gpt2"), batch_size=batch_size)
    return workload, replace(cluster, device=device)
