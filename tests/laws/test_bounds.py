"""No strategy is faster, or holds less, than the bounds that search rules others out by."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from distir import Simulator, Workload, load_cluster, load_model
from distir.simulation.bounds import Bounds
from distir.strategies import Strategies
from distir.strategy import Strategy
from search_spaces import distribution_space
from tests.conftest import HEALTH_CHECKS
from tests.laws.scenarios import simulators
from tests.slow import shares


@st.composite
def searches(draw: st.DrawFn) -> tuple[Simulator, list[Strategy]]:
    """A workload on a cluster, and strategies of its full space."""
    simulator = draw(simulators((1, 4, 12, 24)))
    workload, devices = simulator.workload, simulator.cluster.num_devices
    space = distribution_space(workload, devices, {"extends": "full", "placement": "all"})
    return simulator, space.samples(random.Random(draw(st.integers(0, 10**6))), 8)


@shares(12, seconds=2)
@settings(max_examples=4, deadline=None, suppress_health_check=HEALTH_CHECKS)
@given(searches())
def test_no_strategy_is_below_its_bounds(
    share: int, search: tuple[Simulator, list[Strategy]]
) -> None:
    simulator, strategies = search
    bounds = Bounds(simulator.stages)
    table = Strategies.of(strategies)
    together = (bounds.unsharded(table), bounds.ordered(table))
    for place, strategy in enumerate(strategies):
        metrics = simulator.simulate(strategy).metrics
        begun = bounds.begun(strategy.devices, strategy.pp, strategy.microbatches)
        found = [(begun.seconds, begun.size)]
        found += [(each.seconds[place], each.size[place]) for each in together]
        for seconds, size in found:
            assert seconds <= metrics["iteration_seconds"], strategy.label
            assert size <= metrics["peak_memory_bytes"], strategy.label


def test_parts_of_backward_passes_that_nothing_waits_for_are_in_no_bound_of_a_microbatch() -> None:
    """With few microbatches a step of ZB-H1 is shorter than all that one of them takes."""
    workload = Workload(model=load_model("mlp-16x8192"), batch_size=4096, optimizer="sgd")
    simulator = Simulator(workload, load_cluster("dgx-a100", 4))
    bounds = Bounds(simulator.stages)
    for microbatches in (1, 2, 8):
        strategy = Strategy(pp=4, microbatches=microbatches, schedule="zb-h1")
        seconds = simulator.simulate(strategy).metrics["iteration_seconds"]
        begun = bounds.begun(4, 4, microbatches)
        assert begun.seconds <= seconds
        assert bounds.ordered(Strategies.of([strategy])).seconds[0] <= seconds
