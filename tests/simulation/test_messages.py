"""Messages between stages: what all devices of a tensor-parallel group hold is sent in parts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from distir import Simulator, Strategy, Workload, load_cluster, load_model
from distir.cost import Cluster, load_stack
from distir.simulation.pricing.instructions import Pricing

CLUSTER = load_cluster("dgx-a100", 32)
IDEAL = load_stack("ideal")


def pricing(cluster: Cluster = CLUSTER, **choices: Any) -> Pricing:
    workload = Workload(model=load_model("gpt2"), batch_size=8)
    simulator = Simulator(workload, cluster, IDEAL)
    return Pricing.of(simulator.cost, simulator.plan(Strategy(**choices)))


def without_latency(cluster: Cluster) -> Cluster:
    levels = tuple(replace(level, latency_seconds=0.0) for level in cluster.levels)
    return replace(cluster, levels=levels)


def test_parts_cross_the_network_and_are_gathered_in_the_node() -> None:
    """4 GB from each of 4 devices: 1 GB at 25 GB/s, then 3 of 4 GB gathered at 300 GB/s; not
    4 GB at 25 GB/s."""
    priced = pricing(without_latency(CLUSTER), tp=4, dp=2, pp=2)
    assert priced.message(4e9, ("tp",), 0, 1) == pytest.approx(1 / 25 + 3 / 300)
    assert priced.message(4e9, (), 0, 1) == pytest.approx(4 / 25)


def test_within_a_node_and_for_small_messages_it_is_sent_whole() -> None:
    priced = pricing(tp=4, pp=2)
    whole = priced.message(1e3, (), 0, 1)
    assert priced.message(1e3, ("tp",), 0, 1) == whole


def test_what_is_repeated_is_what_tensor_parallelism_does_not_split() -> None:
    def along(**choices: Any):
        simulator = Simulator(Workload(model=load_model("gpt2"), batch_size=8), CLUSTER, IDEAL)
        plan = simulator.plan(Strategy(tp=4, dp=2, pp=2, **choices))
        first, second = (stage.programs for stage in plan.stages)
        return first[-1].outputs_repeated_along, second[0].input_gradients_repeated_along

    assert along() == (("tp",), ("tp",))
    assert along(sequence_parallel=True) == ((), ())
