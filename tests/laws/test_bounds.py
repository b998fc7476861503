"""No strategy is faster, or holds less, than the bounds that search rules others out by."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from itertools import combinations_with_replacement, pairwise, permutations, product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from distir import Simulator, Workload, load_cluster, load_model
from distir.importers.load import LoadedModel
from distir.schedules import BACKWARD, FORWARD, compile_schedule, find_schedule
from distir.simulation.bounds import Bounds
from distir.simulation.expected import RankGrids
from distir.simulation.least_load import least_load
from distir.simulation.least_memory import LayerBytes, RanksHolding, fullest_rank_bytes
from distir.simulation.pricing.repeats import repeated_blocks
from distir.simulation.pricing.stage_cost import OverlappedStages
from distir.simulation.pricing.tied import NOTHING_ELSEWHERE
from distir.simulation.wholes import STREAMS
from distir.strategies import Strategies
from distir.strategy import AUTO, Strategy
from search_spaces import distribution_space
from tests.conftest import HEALTH_CHECKS
from tests.laws.scenarios import clusters, models, simulators, stacks
from tests.slow import shares


@st.composite
def searches(draw: st.DrawFn) -> tuple[Simulator, list[Strategy]]:
    """A workload on a cluster, and strategies of its full space."""
    simulator = draw(simulators((1, 4, 12, 24)))
    workload, devices = simulator.workload, simulator.cluster.num_devices
    wanted = {
        "recompute": ["none", "selective", "full", AUTO],
        "recompute_layers": [0, 1, 2],
        "offload": "all",
        "sync_every": [1, 8],
        "outer_optimizer": "all",
        "placement": "all",
    }
    space = distribution_space(workload, devices, {"extends": "full", **wanted})
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
    relaxed = bounds.relaxed(table, table, np.arange(len(table)))
    together = (*relaxed, bounds.unsharded(table), bounds.ordered(table))
    for place, strategy in enumerate(strategies):
        metrics = simulator.simulate(strategy).metrics
        begun = bounds.begun(
            strategy.devices,
            np.array([strategy.pp]),
            np.array([strategy.microbatches]),
            offloading=bool(strategy.offload),
        )
        found = [(begun.seconds[0], begun.size[0])]
        found += [(each.seconds[place], each.size[place]) for each in together]
        for seconds, size in found:
            assert seconds <= metrics["iteration_seconds"], strategy.label
            assert size <= metrics["peak_memory_bytes"], strategy.label
        alone, seconds = Strategies.of([strategy]), metrics["iteration_seconds"]
        for within in (bounds.unsharded(alone, seconds), bounds.ordered(alone, seconds)):
            assert within.size[0] <= metrics["peak_memory_bytes"], strategy.label


def test_messages_pass_the_ranks_of_a_mixture_in_whatever_order_its_degrees_lie() -> None:
    """Experts take a part of the replicas, which may lie on either side of the ranks."""
    workload = Workload(model=load_model("mixtral-8x7b"), batch_size=8, sequence_length=512)
    simulator = Simulator(workload, load_cluster("p3-v100-16gb", 16))
    orders = ("-".join(each) for each in permutations(("tp", "cp", "ep", "dp", "pp")))
    one = Strategy(dp=4, pp=4, ep=2, microbatches=1)
    table = Strategies.of([replace(one, placement=order) for order in orders])
    found = RankGrids(simulator.stages, table).passing_seconds(np.full(len(table), 1e6))
    pricings = [simulator.pricing(simulator.plan(each)) for each in table]
    by_hand = [
        sum(pricing.message(1e6, (), *both) for both in pairwise(range(4))) for pricing in pricings
    ]
    assert len(set(by_hand)) > 1
    assert found == pytest.approx(by_hand)


def test_bounds_of_several_are_those_of_each_alone_whatever_they_shard() -> None:
    """Kinds with one mesh are bounded together; on 8 devices each has one expert, on 4 two, which
    are different programs."""
    workload = Workload(model=load_model("mixtral-8x7b"), batch_size=32, sequence_length=1024)
    bounds = Bounds(Simulator(workload, load_cluster("dgx-a100", 32)).stages)
    table = Strategies.of(
        Strategy(dp=32 // experts, ep=experts, zero=zero, recompute=recompute)
        for experts, zero, recompute in product((4, 8), (0, 1, 3), ("none", "selective"))
    )
    together, expected = bounds.ordered_and_expected(table)
    for place in range(len(table)):
        alone, own = bounds.ordered_and_expected(table.taken(np.array([place])))
        assert together.seconds[place] == pytest.approx(alone.seconds[0], rel=1e-12)
        assert together.size[place] == alone.size[0]
        assert expected[place] == pytest.approx(own[0], rel=1e-12)


@shares(6, seconds=2)
@settings(max_examples=3, deadline=None, suppress_health_check=HEALTH_CHECKS)
@given(simulators((4, 12, 24)), st.integers(0, 10**6))
def test_no_strategy_that_keeps_parameters_gathered_holds_less_than_its_bounds(
    share: int, simulator: Simulator, seed: int
) -> None:
    keeping = {"zero": [3], "keep_gathered": ["parameters", "all"], "offload": "all"}
    space = distribution_space(
        simulator.workload, simulator.cluster.num_devices, {"extends": "full", **keeping}
    )
    assume(space.count())
    strategies = space.samples(random.Random(seed), 12)
    assume(any(each.keep_gathered in keeping["keep_gathered"] for each in strategies))
    table = Strategies.of(strategies)
    bounds = Bounds(simulator.stages)
    _, relaxed = bounds.relaxed(table, table, np.arange(len(table)))
    held = simulator.simulate_many(table).metrics["peak_memory_bytes"]
    for found in (relaxed, bounds.unsharded(table)):
        assert (found.size <= held).all()


def test_every_microbatch_in_flight_keeps_the_parameters_of_layers_that_stay_gathered() -> None:
    """Of 64 layers of 1,024 x 1,024 in bf16, each of four ranks has 16; the first has gathered them
    for each of 4 microbatches in flight."""
    workload = Workload(model=load_model("mlp-64x1024"), batch_size=256, optimizer="sgd")
    simulator = Simulator(workload, load_cluster("dgx-a100", 32))
    plan = Strategy(dp=8, pp=4, microbatches=8, zero=3)
    keeping = replace(plan, keep_gathered="parameters")
    both = Strategies.of([plan, keeping])
    least = Bounds(simulator.stages).unsharded(both).size
    held = simulator.simulate_many(both).metrics["peak_memory_bytes"]
    layer = 2 * 1024 * 1024
    assert held[1] - held[0] == pytest.approx(4 * 16 * layer, rel=0.1)
    # However stages are cut, a mean of ranks with 4, 3, 2 and 1 in flight.
    mean = 64 / sum(1 / count for count in (4, 3, 2, 1))
    assert least[1] - least[0] == pytest.approx(mean * layer, rel=0.1)
    assert (least <= held).all()


@st.composite
def overlapping(draw: st.DrawFn) -> tuple[Simulator, list[Strategy]]:
    """A workload on a cluster, and strategies with schedules that overlap passes."""
    devices = draw(st.sampled_from([2, 4, 8]))
    workload = Workload(
        model=LoadedModel("model", draw(models)),
        batch_size=draw(st.sampled_from([4, 8, 12])) * devices,
        precision=draw(st.sampled_from(["bf16", "fp32"])),
    )
    simulator = Simulator(workload, draw(clusters(devices)), draw(stacks))
    schedules = {"schedule": ["dualpipe", "dualpipev"], "chunks": "all", "placement": "all"}
    space = distribution_space(workload, devices, {"extends": "full", **schedules})
    sampled = space.samples(random.Random(draw(st.integers(0, 10**6))), 30)
    return simulator, [each for each in sampled if simulator.planner.schedule(each).pairs][:4]


@pytest.mark.not_quick
@shares(8, seconds=3)
@settings(max_examples=3, deadline=None, suppress_health_check=HEALTH_CHECKS)
@given(overlapping())
def test_overlapped_passes_take_no_less_than_both_do_on_one_stream(
    share: int, search: tuple[Simulator, list[Strategy]]
) -> None:
    simulator, strategies = search
    assume(strategies)
    bounds = Bounds(simulator.stages).ordered(Strategies.of(strategies))
    pricer = simulator.stages.without_fixed_overlap
    for strategy, least in zip(strategies, bounds.seconds, strict=True):
        assert least <= simulator.simulate(strategy).metrics["iteration_seconds"], strategy.label
        plan = simulator.plan(strategy)
        pricing = simulator.pricing(plan)
        occupied: list[list[list[float]]] = []
        for stage in plan.stages:
            blocks = repeated_blocks([(each, NOTHING_ELSEWHERE) for each in stage.programs])
            alone = pricer.unpriced_stage(
                blocks, pricing, (FORWARD, BACKWARD), waits_for_gathers=False
            )
            occupied.append(pricer.occupied_seconds(alone, STREAMS))
        for ahead, back in plan.schedule.pairs:
            programs = OverlappedStages(plan.stages[ahead].programs, plan.stages[back].programs)
            (both,) = pricer.price_pairs([programs], pricing)
            for forward, backward in zip(occupied[ahead], occupied[back], strict=True):
                assert forward[FORWARD] + backward[BACKWARD] <= both.seconds * (1 + 1e-9)


@pytest.mark.parametrize("batch", [32768, 3 * 16384, 16411])
def test_batches_of_more_samples_than_there_may_be_microbatches_have_bounds(batch: int) -> None:
    workload = Workload(model=load_model("mlp-2x32"), batch_size=batch)
    simulator = Simulator(workload, load_cluster("dgx-a100", 1))
    bound = Bounds(simulator.stages).begun(1, np.ones(1, np.int64), np.ones(1, np.int64))
    metrics = simulator.simulate(Strategy()).metrics
    assert bound.seconds[0] <= metrics["iteration_seconds"]
    assert bound.size[0] <= metrics["peak_memory_bytes"]


def test_parts_of_backward_passes_that_nothing_waits_for_are_in_no_bound_of_a_microbatch() -> None:
    """With few microbatches a step of ZB-H1 is shorter than all that one of them takes."""
    workload = Workload(model=load_model("mlp-16x8192"), batch_size=4096, optimizer="sgd")
    simulator = Simulator(workload, load_cluster("dgx-a100", 4))
    bounds = Bounds(simulator.stages)
    counts = np.array([1, 2, 8])
    begun = bounds.begun(4, np.full(3, 4), counts)
    for place, microbatches in enumerate(counts.tolist()):
        strategy = Strategy(pp=4, microbatches=microbatches, schedule="zb-h1")
        seconds = simulator.simulate(strategy).metrics["iteration_seconds"]
        assert begun.seconds[place] <= seconds
        assert bounds.ordered(Strategies.of([strategy])).seconds[0] <= seconds


@pytest.mark.parametrize("others", [0, 1, 2, 8])
@pytest.mark.parametrize(
    ("name", "chunks"),
    [
        ("1f1b", 1),
        ("gpipe", 1),
        ("interleaved", 2),
        ("zb-v", 2),
        ("chimera", 1),
        ("dualpipe", 1),
        ("dualpipev", 2),
    ],
)
def test_however_layers_are_cut_the_fullest_rank_holds_no_less_than_its_bound(
    name: str, chunks: int, others: int
) -> None:
    """All cuts of eight layers of two kinds, counted rank by rank as the schedule says, in which
    not more stages have no layer than there are other blocks."""
    compiled = compile_schedule(find_schedule(name).made(4, chunks, 8))
    flight, layers, stages = compiled.peak_in_flight, 8, compiled.stages
    holders = Counter(stage for own in flight.stages_of_ranks for stage in own)
    number = np.zeros(1, np.int64)
    cuts = [
        [range(*each) for each in pairwise((0, *cuts, layers))]
        for cuts in combinations_with_replacement(range(layers + 1), stages - 1)
    ]
    cuts = [each for each in cuts if sum(not len(own) for own in each) <= others]
    holding = [RanksHolding.of(compiled, others)]
    sizes = (0.0, 1.0, 0.0, 2.0), (1.0, 0.0, 2.0, 0.0), (3.0, 1.0, 3.0, 2.0), (1.0, 5.0, 4.0, 3.0)
    for state, left_behind, other_state, other_left_behind in sizes:
        kinds = [(state, left_behind), (other_state, other_left_behind)]
        equal = [LayerBytes(*(np.array([n]) for n in (4.0, *each, 1.0))) for each in kinds]
        (bound,) = fullest_rank_bytes(equal, number, holding, number, np.full(1, np.inf))
        for alternates in (False, True):
            every = [kinds[at % 2 if alternates else at // 4] for at in range(layers)]
            fullest: list[float] = []
            longest: list[float] = []
            for own in cuts:
                counts = iter(count for count, _ in flight.counts[0])
                held = [
                    sum(
                        every[layer][0] + count * every[layer][1]
                        for stage, count in zip(of_rank, counts, strict=False)
                        for layer in own[stage]
                    )
                    for of_rank in flight.stages_of_ranks
                ]
                fullest.append(max(held))
                longest.append(
                    max(
                        sum(len(own[stage]) / holders[stage] for stage in of_rank)
                        for of_rank in flight.stages_of_ranks
                    )
                )
            assert min(fullest, default=bound) >= bound * (1 - 1e-12)
            one = np.zeros(len(cuts), np.int64)
            within = fullest_rank_bytes(equal, one, holding, one, np.array(longest, float))
            assert (np.array(fullest) >= within * (1 - 1e-12)).all()


def test_stages_that_surely_have_a_layer_count_with_what_they_have_in_flight() -> None:
    """Interleaved stages of one layer each: a rank has fewest microbatches in flight in its last
    stage, and more in the others."""
    compiled = compile_schedule(find_schedule("interleaved").made(2, 4, 4))
    number, allowed = np.zeros(1, np.int64), np.full(1, 4.0)
    layers = LayerBytes(*(np.array([n]) for n in (8.0, 1.0, 1.0, 1.0)))
    flight = compiled.peak_in_flight
    counts = np.array(flight.counts[0])[:, 0].reshape(2, 4)
    found = [
        fullest_rank_bytes([layers], number, [RanksHolding.of(compiled, n)], number, allowed)[0]
        for n in (0, 1, 4)
    ]
    assert found[0] == pytest.approx((4 + counts.sum(axis=1)).max())
    assert found[0] > found[1] == found[2]


@given(
    st.integers(1, 9), st.integers(1, 4), st.integers(1, 5), st.sampled_from([0.0, 0.5, 1, 2.3, 7])
)
def test_however_whole_blocks_are_distributed_the_busiest_group_has_no_less_than_its_bound(
    layers: int, groups: int, layer_seconds: int, other: float
) -> None:
    """All distributions of equal layers, with another block in the first group."""
    count, seconds, longest = np.array([[layers], [layer_seconds], [other * layer_seconds]], float)
    bound = least_load(count, seconds, longest, np.array([groups]))
    busiest = [
        max(layer_seconds * (count + (other if group == 0 else 0)) for group, count in enumerate(n))
        for n in product(range(layers + 1), repeat=groups)
        if sum(n) == layers
    ]
    assert bound[0] == pytest.approx(min(busiest))


def test_equal_layers_with_as_many_in_flight_on_all_ranks_are_bounded_exactly() -> None:
    """GPipe on four ranks: each has two of eight layers and all eight microbatches."""
    compiled = compile_schedule(find_schedule("gpipe").made(4, 1, 8))
    layers = LayerBytes(*(np.array([n]) for n in (8.0, 3.0, 1.0, 1.0)))
    number = np.zeros(1, np.int64)
    holding = [RanksHolding.of(compiled, 0)]
    (bound,) = fullest_rank_bytes([layers], number, holding, number, np.full(1, np.inf))
    assert bound == pytest.approx(2 * (3 + 8))


def test_microbatches_in_flight_are_most_of_the_bound_on_memory() -> None:
    """GPipe has all of them in flight, 1F1B as many as there are ranks at most."""
    workload = Workload(model=load_model("gpt3-1.3B"), batch_size=256)
    simulator = Simulator(workload, load_cluster("dgx-a100", 8))
    strategies = [
        Strategy(pp=8, microbatches=64, schedule=schedule) for schedule in ("1f1b", "gpipe")
    ]
    size = Bounds(simulator.stages).ordered(Strategies.of(strategies)).size
    held = [simulator.simulate(each).metrics["peak_memory_bytes"] for each in strategies]
    assert size[1] > 0.7 * held[1]
    assert size[1] > 3 * size[0]
