"""What a step costs beside its microbatches depends on who shares the optimizer's state, and grows
with the nodes."""

from __future__ import annotations

from functools import cache

import pytest

from distir import Simulator, Strategy, Workload, load_cluster, load_model
from distir.cost import load_stack

STACKS = ["megatron", "deepspeed"]
PER_REPLICA = 2
"""Samples of a replica in a step."""


@cache
def simulator(stack: str, devices: int) -> Simulator:
    """GPT-2 XL on nodes of eight, every replica with as many samples."""
    model = load_model("gpt2-xl")
    workload = Workload(model=model, batch_size=PER_REPLICA * devices, sequence_length=1024)
    return Simulator(workload, load_cluster("hgx-h100", devices), load_stack(stack))


def seconds(stack: str, devices: int, zero: int, group: int, microbatches: int = 1) -> float:
    strategy = Strategy(dp=devices, zero=zero, zero_degree=group, microbatches=microbatches)
    return simulator(stack, devices).simulate(strategy).metrics["iteration_seconds"]


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_a_shard_group_of_all_replicas_is_no_shard_group(zero: int) -> None:
    assert seconds("megatron", 64, zero, 64) == seconds("megatron", 64, zero, 0)


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_plans_that_differ_in_the_shard_group_never_tie(zero: int) -> None:
    found = [seconds("megatron", 256, zero, group) for group in (0, 2, 4, 8, 16, 32, 64, 128)]
    assert len({round(each, 9) for each in found}) == len(found)


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("zero", [0, 1])
def test_what_a_step_costs_beside_microbatches_grows_with_the_nodes(stack: str, zero: int) -> None:
    """As much per device on twice as many nodes takes longer, and the more the more nodes there
    are: latencies of collectives go through all of them."""
    found = [seconds(stack, 8 * nodes, zero, 0) for nodes in (2, 8, 32)]
    assert found == sorted(found)
    assert len(set(found)) == len(found)


@pytest.mark.parametrize("stack", STACKS)
def test_sharing_within_a_node_spares_gathering_through_all_of_them(stack: str) -> None:
    """Parameters are gathered after the step by those who share them: over direct links within a
    node, over the network otherwise."""
    assert seconds(stack, 1024, 1, 8) < seconds(stack, 1024, 1, 0)
