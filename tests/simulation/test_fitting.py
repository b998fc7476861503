"""Where stages balanced by time do not fit in memory, others that do are found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distir import Simulator, Strategy, Workload, load_cluster, load_model
from distir.schedules import FORWARD, PeakInFlight, compile_schedule, find_schedule
from distir.simulation.cutting.fitting import (
    BlockBytes,
    BlocksToCut,
    InFlight,
    PlansToFit,
    fit_as_cut,
    fitted_bounds,
)
from distir.simulation.cutting.partition import balanced_cuts
from distir.simulation.pricing.tied import StagesOfRanks
from tests.slow import shares


def one_by_one(stages: int) -> StagesOfRanks:
    return tuple((stage,) for stage in range(stages))


def two_by_two(stages: int) -> StagesOfRanks:
    return tuple(tuple(range(rank, stages, 2)) for rank in range(2))


def both_ways(stages: int) -> StagesOfRanks:
    return tuple((stage, stages - 1 - stage) for stage in range(stages))


@st.composite
def cases(
    draw: st.DrawFn,
    ranks_of: Sequence[Callable[[int], StagesOfRanks]] = (one_by_one,),
    least: int = 1,
    situations: int = 1,
) -> tuple[BlocksToCut, PeakInFlight]:
    """Few blocks, of which a microbatch holds `least` or more."""
    different = draw(st.integers(1, 3))
    kinds = draw(st.lists(st.integers(0, different - 1), min_size=2, max_size=8))
    kinds += range(different)
    stages = draw(st.integers(2, min(4, len(kinds))))
    ranks = draw(st.sampled_from(ranks_of))(stages)
    small = st.integers(1, 9)
    numbers = draw(st.lists(small, min_size=4 * different, max_size=4 * different))
    weight, state, kept, passing = np.array([numbers], np.float64).reshape(4, 1, different)
    kept = np.maximum(kept - 1 + least, least)
    held = BlockBytes(state, kept, 0 * kept, {FORWARD: passing})
    number = st.integers(1, 4)
    counts = [[(draw(number), 0) for own in ranks for _ in own] for _ in range(situations)]
    flight = PeakInFlight(ranks, tuple(map(tuple, counts)), (FORWARD,))
    capacity = draw(st.integers(10, 200))
    return BlocksToCut(np.array(kinds), weight[:, kinds], held, np.array([float(capacity)])), flight


def _fits(model: BlocksToCut, flight: PeakInFlight, bounds: tuple[int, ...]) -> bool:
    held = model.held
    each = np.stack([held.state[0], held.after_forward[0]])[:, model.kinds]
    passing = held.passing[FORWARD][0][model.kinds]
    return all(
        each[0, a:b].sum() + count * each[1, a:b].sum() + passing[a:b].max() <= model.room_bytes[0]
        for (a, b), (count, _) in zip(pairwise(bounds), flight.counts[0], strict=True)
    )


def _stages(flight: PeakInFlight) -> int:
    return 1 + max(stage for own in flight.stages_of_ranks for stage in own)


def _by_time(model: BlocksToCut, flight: PeakInFlight) -> PlansToFit:
    """A plan whose stages are balanced by time."""
    cuts = balanced_cuts(model.weights.astype(np.int64), np.array([_stages(flight)]))[0].tolist()
    alone = np.zeros(1, np.int64)
    bounds = np.array([0, *cuts, len(model.kinds)])
    return PlansToFit(bounds, alone, alone, InFlight.of([flight]), alone)


def _heaviest(model: BlocksToCut, bounds: tuple[int, ...]) -> float:
    return max(model.weights[0, a:b].sum() for a, b in pairwise(bounds))


@given(cases())
def test_stages_fit_if_any_do_and_are_nearly_as_light_as_can_be(
    case: tuple[BlocksToCut, PeakInFlight],
) -> None:
    model, flight = case
    blocks, stages = len(model.kinds), len(flight.stages_of_ranks)
    plans = _by_time(model, flight)
    by_time = tuple(plans.bounds.tolist())
    as_cut, moved, found = fitted_bounds(model, plans)
    assert bool(len(as_cut)) == _fits(model, flight, by_time)
    inner = combinations(range(1, blocks), stages - 1)
    fitting = [each for cuts in inner if _fits(model, flight, each := (0, *cuts, blocks))]
    if _fits(model, flight, by_time) or not fitting:
        assert not len(moved)
        return
    (bounds,) = found
    assert _fits(model, flight, bounds)
    lightest = min(_heaviest(model, each) for each in fitting)
    # The ratio of the heaviest and the lightest limit is halved five times.
    total = model.weights.sum()
    assert _heaviest(model, bounds) <= lightest * (total / _heaviest(model, by_time)) ** (1 / 32)


@pytest.mark.not_quick
@shares(4, seconds=1)
@settings(max_examples=50)
@given(cases((one_by_one, two_by_two, both_ways)))
def test_only_plans_are_ruled_out_for_which_nothing_is_found(
    share: int, case: tuple[BlocksToCut, PeakInFlight]
) -> None:
    plans = _by_time(*case)
    for capacity in range(10, 90, 8):
        model = replace(case[0], room_bytes=np.array([float(capacity)]))
        _, moved, found = fitted_bounds(model, plans)
        with pytest.MonkeyPatch.context() as patch:
            # With no kind of block frequent, no plan is ruled out before the search.
            patch.setattr("distir.simulation.cutting.fitting.FREQUENT", np.inf)
            _, moved_all, found_all = fitted_bounds(model, plans)
        assert moved.tolist() == moved_all.tolist()
        assert found == found_all


@given(cases((one_by_one, two_by_two, both_ways), situations=3))
def test_situations_that_another_outdoes_do_not_matter(
    case: tuple[BlocksToCut, PeakInFlight],
) -> None:
    plans = _by_time(*case)
    every = replace(plans, flights=replace(plans.flights, fullest=plans.flights.counts))
    for capacity in range(10, 90, 8):
        model = replace(case[0], room_bytes=np.array([float(capacity)]))
        (_, moved, found), (_, moved_all, found_all) = (
            fitted_bounds(model, each) for each in (plans, every)
        )
        assert moved.tolist() == moved_all.tolist()
        assert found == found_all


@given(st.lists(cases((one_by_one, two_by_two, both_ways), least=-2), min_size=2, max_size=4))
def test_plans_are_fitted_together_as_alone(
    several: list[tuple[BlocksToCut, PeakInFlight]],
) -> None:
    model = several[0][0]
    flights = [flight for _, flight in several if _stages(flight) <= len(model.kinds)]
    alone = [_by_time(model, flight) for flight in flights]
    lengths, every = [len(plans.bounds) for plans in alone], np.arange(len(alone))
    together = PlansToFit(
        np.concatenate([np.zeros(0, np.int64), *(plans.bounds for plans in alone)]),
        np.cumsum([0, *lengths])[:-1],
        np.zeros_like(every),
        InFlight.of([flight for _, flight in several]),
        np.array([at for at, (_, each) in enumerate(several) if _stages(each) <= len(model.kinds)]),
    )
    as_cut, moved, found = fitted_bounds(model, together)
    assert as_cut.tolist() == fit_as_cut(model, together).tolist()
    each = [fitted_bounds(model, plans) for plans in alone]
    assert as_cut.tolist() == [at for at, own in enumerate(each) if len(own.as_cut)]
    assert moved.tolist() == [at for at, own in enumerate(each) if len(own.moved)]
    assert found == [bounds for own in each for bounds in own.bounds]


def test_1f1b_has_as_many_microbatches_in_flight_as_stages_are_left() -> None:
    compiled = compile_schedule(find_schedule("1f1b")(4, 1, 8))
    assert compiled.peak_in_flight.counts == (((4, 0), (3, 0), (2, 0), (1, 0)),)


def test_early_ranks_get_fewer_blocks_where_memory_is_short() -> None:
    workload = Workload(model=load_model("gpt2"), batch_size=32)
    strategy = Strategy(pp=4, microbatches=16, schedule="1f1b")
    plenty = load_cluster("dgx-a100", 4)
    by_time = Simulator(workload, plenty).simulate(strategy)
    held = [stage.peak_memory_bytes for stage in by_time.stages]
    assert max(held) == held[0]  # it has four microbatches in flight
    reserve = by_time.metrics["reserved_memory_bytes"]
    less = 0.95 * held[0] + reserve
    scarce = replace(plenty, device=replace(plenty.device, memory_bytes=less))
    result = Simulator(workload, scarce).simulate(strategy)
    assert result.feasible
    before, after = (
        [end - first for stage in each.stages for first, end in stage.blocks]
        for each in (by_time, result)
    )
    assert after[0] < before[0]
    assert sum(after) == sum(before)
    assert result.metrics["iteration_seconds"] >= by_time.metrics["iteration_seconds"]


@pytest.mark.parametrize(
    ("schedule", "chunks"), [("gpipe", 1), ("interleaved", 2), ("zb-v", 2), ("chimera", 1)]
)
def test_where_nothing_fits_stages_stay_balanced_by_time(schedule: str, chunks: int) -> None:
    workload = Workload(model=load_model("gpt2"), batch_size=32)
    strategy = Strategy(pp=2, microbatches=4, schedule=schedule, chunks=chunks)
    plenty = load_cluster("dgx-a100", 2)
    none = replace(plenty, device=replace(plenty.device, memory_bytes=1e6))
    by_time, found = (Simulator(workload, each).simulate(strategy) for each in (plenty, none))
    assert not found.feasible
    assert found.metrics == by_time.metrics
