"""Recomputation of the first N layers of every stage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

import distir
from distir.schedules import find_schedule
from distir.strategy import Strategy

BLOCKS = 14
LAYERS = range(1, 13)
"""The blocks of GPT-2 that are layers: the others are the embedding and the head."""

FULL = Strategy(dp=2, pp=2, microbatches=4, recompute="full")


@pytest.fixture(scope="module")
def simulator() -> distir.Simulator:
    workload = distir.Workload(model=distir.load_model("gpt2"), batch_size=16)
    return distir.Simulator(workload, distir.load_cluster("dgx-a100", 16))


def in_stages(cuts: Sequence[int], chosen: Callable[[Sequence[int]], Sequence[int]]) -> object:
    """What is chosen of the layers of every stage."""
    stages = (range(a, b) for a, b in pairwise((0, *cuts, BLOCKS)))
    return [list(chosen([block for block in stage if block in LAYERS])) for stage in stages]


def kinds(simulator: distir.Simulator, strategy: Strategy, cuts: Sequence[int]) -> list[list[bool]]:
    """Per stage and block whether its program is that of a strategy that recomputes all layers."""
    whole = simulator.planner.plan(replace(strategy, recompute_layers=0), cuts)
    found = simulator.planner.plan(strategy, cuts)
    return [
        [len(own.backward) == len(every.backward) for own, every in zip(a, b, strict=True)]
        for a, b in zip(
            (stage.programs for stage in found.stages),
            (stage.programs for stage in whole.stages),
            strict=True,
        )
    ]


@pytest.mark.parametrize("layers", [1, 3, 5, 6, 7, 12])
@pytest.mark.parametrize("cuts", [(7,), (3,), (13,), (1,)])
def test_the_first_layers_of_every_stage_recompute_and_no_others(
    simulator: distir.Simulator, cuts: tuple[int, ...], layers: int
) -> None:
    found = kinds(simulator, replace(FULL, recompute_layers=layers), cuts)
    again = [
        [block for block, same in zip(stage, own, strict=True) if same and block in LAYERS]
        for stage, own in zip(
            (range(a, b) for a, b in pairwise((0, *cuts, BLOCKS))), found, strict=True
        )
    ]
    assert again == in_stages(cuts, lambda own: own[:layers])


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "zb-h1", "dualpipe"])
@pytest.mark.parametrize("recompute", ["full", "needed", "selective"])
def test_as_many_layers_as_a_stage_has_are_all_layers(
    simulator: distir.Simulator, recompute: str, schedule: str
) -> None:
    chunks = find_schedule(schedule).default_chunks
    every = replace(FULL, recompute=recompute, schedule=schedule, chunks=chunks)
    found = simulator.simulate(replace(every, recompute_layers=12))
    wanted = simulator.simulate(every)
    assert found.metrics == wanted.metrics
    assert found.stages == wanted.stages


def test_more_recomputed_layers_take_more_time_and_hold_less(simulator: distir.Simulator) -> None:
    cuts = (7,)
    plans = [
        simulator.planner.plan(replace(FULL, recompute_layers=layers), cuts)
        for layers in range(1, 7)
    ]
    found = [simulator.simulate_plan(plan).metrics for plan in plans]
    for fewer, more in pairwise(found):
        assert fewer["iteration_seconds"] < more["iteration_seconds"]
        assert fewer["peak_memory_bytes"] >= more["peak_memory_bytes"]
    assert found[0]["peak_memory_bytes"] > found[-1]["peak_memory_bytes"]


@pytest.mark.not_quick
def test_many_at_once_are_each_alone(simulator: distir.Simulator) -> None:
    """Numbers of layers and of stages lead to cuts of their own."""
    strategies = [
        replace(FULL, pp=pp, dp=16 // pp, recompute=recompute, recompute_layers=layers)
        for pp in (1, 2, 4, 8)
        for recompute in ("full", "selective")
        for layers in (0, 1, 2, 3, 7)
    ]
    strategies = [replace(each, microbatches=1 if each.dp == 16 else 2) for each in strategies]
    strategies = [each for each in strategies if simulator.explain(each) is None]
    table = simulator.simulate_many(strategies)
    for number, strategy in enumerate(strategies):
        alone = simulator.simulate(strategy).metrics
        for name in ("iteration_seconds", "peak_memory_bytes"):
            assert table.metrics[name][number] == pytest.approx(alone[name], rel=1e-11)
