"""Pipelines under uniform costs, as the papers have them and a reader can redo by hand.

`p` stages, `m` microbatches, `f` and `b` seconds per pass. GPipe (Huang et al. 2019) and 1F1B
(Narayanan et al. 2021) both take `(m + p - 1)(f + b)`, of which every stage idles `(p - 1)(f + b)`.
GPipe holds the activations of all microbatches, 1F1B on stage `s` those of `min(m, p - s)`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distir import Cluster, Simulator, Strategy, Workload, load_cluster, load_model
from distir.cost import ClusterLevel, load_stack
from distir.schedules import COST_KINDS, Schedule, compile_schedule
from distir.schedules.families.gpipe import gpipe
from distir.schedules.families.one_f_one_b import one_f_one_b
from distir.simulation.pipeline.one import PipelineTime, run_pipeline

Generator = Callable[[int, int, int], Schedule]
"""Of ranks, chunks per rank and microbatches."""

generators = pytest.mark.parametrize("generator", [gpipe, one_f_one_b])
sizes = st.integers(1, 9)
durations = st.integers(1, 9)


def run(
    schedule: Schedule, f: float, b: float, message: float = 0.0, *, goes_on: bool = True
) -> PipelineTime:
    seconds = [f, b, 0.0, 0.0] * schedule.stages
    assert len(seconds) == COST_KINDS * schedule.stages
    messages = [message] * len(seconds)
    return run_pipeline(compile_schedule(schedule), seconds, messages, goes_on=goes_on)


@generators
@given(p=sizes, m=sizes, f=durations, b=durations)
def test_gpipe_and_1f1b_take_the_published_makespan(
    generator: Generator, p: int, m: int, f: int, b: int
) -> None:
    time = run(generator(p, 1, m), f, b)
    makespan = (m + p - 1) * (f + b)
    assert max(time.end) == makespan
    for end, waited in zip(time.end, time.waited_for_stage, strict=True):
        assert waited + makespan - end == (p - 1) * (f + b)
    assert not any(time.waited_for_transfer)


@given(p=sizes, m=sizes, f=durations, b=durations, message=st.integers(0, 9))
def test_gpipe_pays_for_short_messages_once_per_stage_and_direction(
    p: int, m: int, f: int, b: int, message: int
) -> None:
    """Messages that are shorter than the passes are paid for once per stage and direction."""
    message = min(message, f, b)
    time = run(gpipe(p, 1, m), f, b, message)
    assert max(time.end) == (m + p - 1) * (f + b) + 2 * (p - 1) * message


def test_two_stages_end_as_drawn_by_hand() -> None:
    """f = 1, b = 2, messages of 0.5, 1F1B with two microbatches.

    stage 0  F0 0-1, F1 1-2, B0 5-7, B1 8-10
    stage 1  F0 1.5-2.5, B0 2.5-4.5, F1 4.5-5.5, B1 5.5-7.5
    """
    time = run(one_f_one_b(2, 1, 2), 1.0, 2.0, 0.5)
    assert time.end == (10.0, 7.5)
    assert time.waited_for_transfer == (1.0, 0.5)
    assert time.waited_for_stage == (3.0, 1.0)


def test_two_stages_that_stay_with_their_messages_end_as_drawn_by_hand() -> None:
    """As above, but no stage goes on before what it made has arrived.

    stage 0  F0 0-1 to 1.5, F1 1.5-2.5 to 3, B0 5-7, B1 8.5-10.5
    stage 1  F0 1.5-2.5, B0 2.5-4.5 to 5, F1 5-6, B1 6-8 to 8.5
    """
    time = run(one_f_one_b(2, 1, 2), 1.0, 2.0, 0.5, goes_on=False)
    assert time.end == (10.5, 8.5)
    assert time.waited_for_transfer == (2.0, 1.5)
    assert time.waited_for_stage == (2.5, 1.0)


FREE = ClusterLevel(name="free", size=None, bandwidth_bytes_per_second=1e24, latency_seconds=0.0)


def free_links(num_devices: int) -> Cluster:
    cluster = load_cluster("dgx-a100", num_devices)
    return replace(cluster, levels=(FREE,))


def simulator(source: str, devices: int, **workload: object) -> Simulator:
    given = Workload(model=load_model(source), **workload)  # type: ignore[arg-type]
    return Simulator(given, free_links(devices), load_stack("ideal"))


@pytest.mark.parametrize(("p", "m"), [(1, 1), (2, 3), (4, 2), (4, 8)])
def test_equal_stages_take_the_published_makespan_in_the_simulator(p: int, m: int) -> None:
    """Inference of an MLP: every stage has as many blocks, links are free. Between the cuts the
    biases are not dealt out quite evenly; next to the products they are nothing."""
    each = simulator("mlp-16x8192", 8, batch_size=24_000, mode="inference")
    whole = each.simulate(Strategy(microbatches=m)).metrics["iteration_seconds"]
    piped = each.simulate(Strategy(pp=p, microbatches=m))
    step = whole / m / p
    assert piped.metrics["iteration_seconds"] == pytest.approx((m + p - 1) * step, rel=0.01)
    assert piped.metrics["bubble_fraction"] == pytest.approx((p - 1) / (m + p - 1), abs=0.01)


@pytest.mark.parametrize(("p", "m"), [(2, 1), (2, 4), (4, 3), (4, 8)])
def test_schedules_hold_the_activations_that_they_should(p: int, m: int) -> None:
    """The state is the same, so the difference is what GPipe holds more."""
    each = simulator("gpt2", 8, batch_size=48, sequence_length=128)
    strategy = Strategy(pp=p, microbatches=m)
    plan = each.plan(strategy)
    ours = each.simulate_plan(plan)
    theirs = each.simulate_plan(replace(plan, schedule=compile_schedule(gpipe(p, 1, m))))
    for s, (one, all_of_them) in enumerate(zip(ours.stages, theirs.stages, strict=True)):
        kept = bytes_kept(each, strategy, s)
        assert kept > 0
        more = all_of_them.memory["activations_bytes"] - one.memory["activations_bytes"]
        assert more == (m - min(m, p - s)) * kept


def bytes_kept(each: Simulator, strategy: Strategy, stage: int) -> float:
    """What a microbatch leaves on a stage: with twice as many of them that all stay, the stage
    holds so much more."""
    few, many = strategy.microbatches, 2 * strategy.microbatches
    plan = each.plan(strategy)
    held = [
        each.simulate_plan(
            replace(plan, schedule=compile_schedule(gpipe(strategy.pp, 1, count)))
        ).stages[stage].memory["activations_bytes"]
        for count in (few, many)
    ]  # fmt: skip
    return (held[1] - held[0]) / few


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_training_stays_within_the_bounds_of_its_slowest_stage(name: str) -> None:
    each = simulator("gpt2", 8, batch_size=32, sequence_length=128, optimizer="sgd")
    p, m = 4, 8
    result = each.simulate(Strategy(pp=p, microbatches=m, schedule=name))
    busy = [stage.seconds["compute"] for stage in result.stages]
    rest = max(stage.seconds["optimizer"] + stage.seconds["pp_communication"]
               for stage in result.stages)  # fmt: skip
    iteration = result.metrics["iteration_seconds"]
    assert max(busy) <= iteration <= (m + p - 1) / m * max(busy) + rest
