"""What tensor-parallel devices of a stage send to the next stage: parts that are gathered there
(Narayanan et al. 2021, section 4.1), or all of it from each.

8 sequences of 1,024 tokens with 768 numbers in bf16 are 12 MiB. A network of 2 GB/s and links
within a node of 200 GB/s, at which an ideal stack arrives, without latencies: whole, they take
12 MiB / 2 GB/s = 6.29 ms; as four parts 1.57 ms, and gathering them takes 3/4 of 12 MiB / 200 GB/s
= 0.05 ms.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from distir import Simulator, Strategy, Workload, load_cluster, load_model
from distir.cost import Cluster, CostModel, SoftwareStack, load_stack
from distir.plan import Planner
from distir.simulation.pricing.instructions import Pricing

BYTES = 8 * 1024 * 768 * 2
PLAN = Strategy(tp=4, pp=2, microbatches=4)
STACKS = "ideal", "megatron", "megatron-2021", "deepspeed", "fsdp-compiled"


def nodes_of_four() -> Cluster:
    cluster = load_cluster("dgx-a100", 8)
    within, network = (
        replace(level, latency_seconds=0.0, bandwidth_bytes_per_second=rate)
        for level, rate in zip(cluster.levels, (200e9, 2e9), strict=True)
    )
    return replace(cluster, levels=(replace(within, size=4), replace(network, size=2)))


def stack_that(scatters: bool, name: str = "ideal") -> SoftwareStack:
    return replace(load_stack(name), scatters_messages=scatters)


def ideal(scatters: bool) -> SoftwareStack:
    perfect = {"board_link_efficiency": 1.0, "network_link_efficiency": 1.0}
    return replace(stack_that(scatters), collective_launch_seconds=0.0, **perfect)


@cache
def gpt2() -> Workload:
    return Workload(model=load_model("gpt2"), batch_size=32)


@pytest.mark.parametrize(("scatters", "seconds"), [(False, 6.29e-3), (True, 1.62e-3)])
def test_a_message_takes_as_long_as_worked_out_by_hand(scatters: bool, seconds: float) -> None:
    plan = Planner(gpt2()).plan(PLAN, (6,))
    pricing = Pricing.of(CostModel(nodes_of_four(), ideal(scatters)), plan)
    program = plan.stages[0].programs[-1]
    assert program.outputs_repeated_along == ("tp",)
    found = pricing.message(BYTES, program.outputs_repeated_along, 0, 1)
    assert found == pytest.approx(seconds, rel=0.01)


@given(
    name=st.sampled_from(STACKS),
    tp=st.sampled_from([1, 2, 4]),
    pp=st.sampled_from([1, 2]),
    schedule=st.sampled_from(["gpipe", "1f1b", "zb-h1"]),
    splits_sequences=st.booleans(),
)
def test_parts_are_never_slower_and_split_sequences_have_nothing_to_scatter(
    name: str, tp: int, pp: int, schedule: str, splits_sequences: bool
) -> None:
    degrees = Strategy(dp=8 // (tp * pp), tp=tp, pp=pp, microbatches=4, schedule=schedule)
    plan = replace(degrees, sequence_parallel=splits_sequences)
    whole, parts = (
        Simulator(gpt2(), nodes_of_four(), stack_that(scatters, name)) for scatters in (False, True)
    )
    assume(whole.explain(plan) is None)
    seconds = [each.simulate(plan).metrics["iteration_seconds"] for each in (whole, parts)]
    if tp == 1 or pp == 1 or splits_sequences:
        assert seconds[0] == seconds[1]
    else:
        assert seconds[0] >= seconds[1]
