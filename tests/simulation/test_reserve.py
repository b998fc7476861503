"""What fits is decided with the memory that no tensor can have."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distir import Simulator, Strategy, Workload, load_cluster, load_model
from distir.cost import SoftwareStack, load_stack
from distir.errors import ClusterError

STRATEGIES = (
    Strategy(dp=4, pp=2, microbatches=2),
    Strategy(dp=8, zero=3),
    Strategy(tp=2, pp=4, microbatches=8),
    Strategy(dp=2, tp=2, cp=2, microbatches=2),
)
WORKLOAD = Workload(model=load_model("gpt2"), batch_size=32)
PLENTY = Simulator(WORKLOAD, load_cluster("dgx-a100", 8))


def of_blocks(**constants: float) -> SoftwareStack:
    return replace(load_stack(), allocator="blocks", **constants)


def test_context_communicators_and_gaps_add_up() -> None:
    stack = of_blocks(block_gaps=0.1, context_bytes=0.5e9, communicator_bytes=0.7e9)
    two = Strategy(dp=4, pp=2, microbatches=2).communicators
    assert stack.reserve_bytes(40e9, two) == pytest.approx(4e9 + 0.5e9 + 1.4e9)
    assert replace(stack, allocator="segments").reserve_bytes(40e9, two) == pytest.approx(1.9e9)
    assert load_stack("ideal").reserve_bytes(40e9, two) == 0.0


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda each: each.label)
@pytest.mark.parametrize("stack", ["fsdp-compiled", "fsdp-eager", "ideal"])
def test_a_plan_fits_where_its_tensors_and_the_reserve_do(strategy: Strategy, stack: str) -> None:
    cluster = load_cluster("dgx-a100", 8)
    memory = Simulator(WORKLOAD, cluster, load_stack(stack)).simulate(strategy).memory
    needed = memory["tensors_bytes"] + memory["reserve_bytes"]
    for limit, fits in ((needed, True), (needed * (1 - 1e-9), False)):
        device = replace(cluster.device, memory_bytes=limit)
        own = Simulator(WORKLOAD, replace(cluster, device=device), load_stack(stack))
        if strategy.pp == 1:  # a pipeline may be cut otherwise
            assert own.simulate(strategy).feasible == fits
        assert own.simulate(strategy).feasible == own.simulate_many([strategy]).feasible[0]


@pytest.mark.slow(seconds=6)
@settings(max_examples=20, deadline=None)
@given(st.floats(0.0, 0.5), st.floats(0.0, 3e9), st.floats(0.0, 3e9), st.floats(1e9, 12e9))
def test_one_and_many_decide_alike_what_fits_and_less_reserve_never_hurts(
    gaps: float, context: float, communicator: float, memory: float
) -> None:
    device = replace(PLENTY.cluster.device, memory_bytes=memory)
    cluster = replace(PLENTY.cluster, device=device)
    stack = of_blocks(block_gaps=gaps, context_bytes=context, communicator_bytes=communicator)
    less = of_blocks(
        block_gaps=gaps / 2, context_bytes=context / 2, communicator_bytes=communicator / 2
    )
    own, easier = (PLENTY.repriced(each, cluster) for each in (stack, less))
    fits = own.simulate_many(STRATEGIES).feasible.tolist()
    assert fits == [own.simulate(each).feasible for each in STRATEGIES]
    assert all(easier.simulate_many(STRATEGIES).feasible[fits])


@pytest.mark.parametrize(
    ("name", "value"), [("block_gaps", 1.0), ("context_bytes", -1.0), ("communicator_bytes", -1.0)]
)
def test_an_impossible_reserve_is_refused(name: str, value: float) -> None:
    with pytest.raises(ClusterError, match=name):
        of_blocks(**{name: value})
