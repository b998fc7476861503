"""Replicas that synchronise every k-th step, as Lin et al. (2018) have it, or with the outer steps
of Douillard et al. (2023): what they compute, send and hold, and what cannot be combined with
it."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from distir import Builder, Function, Simulator, Workload, load_cluster, load_model
from distir.errors import DistirError
from distir.execute.executor import execute, execute_steps
from distir.execute.stage_parameters import StageParameters
from distir.execute.values import optimizer_step, random_values
from distir.execute.verify import RELATIVE_TOLERANCE, verify
from distir.ops.activations import Relu
from distir.ops.collective import Collective
from distir.ops.comparisons import Greater, Where
from distir.ops.linalg import MatMul
from distir.ops.optimizer import NesterovStep
from distir.plan import Plan
from distir.simulation.reference.engine import simulate_reference
from distir.strategy import OFFLOADS, Strategy


@pytest.fixture(scope="module")
def workload() -> Workload:
    return Workload(model=load_model("mlp-4x32"), batch_size=16, optimizer="sgd")


def elements_updated(plan: Plan) -> int:
    """Elements of the parameters of the first stage that a device updates."""
    uses = (use for program in plan.stages[0].programs for use in program.parameters)
    return sum(use.owned_type.num_elements for use in uses)


CASES = [
    ("mlp-4x32", "sgd", Strategy(dp=4, sync_every=2)),
    ("gpt2", "adam", Strategy(dp=2, tp=2, pp=2, microbatches=2, sync_every=2)),
    ("gpt2", "sgd", Strategy(dp=2, cp=2, recompute="full", sync_every=2)),
    ("gpt2", "adam", Strategy(dp=2, pp=2, microbatches=4, schedule="chimera", sync_every=2)),
    ("t5-small", "momentum", Strategy(dp=2, pp=2, microbatches=2, sync_every=64)),
    ("mixtral-8x7b", "sgd", Strategy(dp=2, tp=2, offload="activations", sync_every=2)),
    ("mlp-4x32", "momentum", Strategy(dp=4, sync_every=3, outer_optimizer="nesterov")),
    ("gpt2", "adam", Strategy(dp=2, tp=2, sync_every=2, outer_optimizer="nesterov")),
    (
        *("gpt2", "adam"),
        Strategy(
            dp=2,
            pp=2,
            microbatches=4,
            schedule="chimera",
            sync_every=2,
            outer_optimizer="nesterov",
        ),
    ),
    (
        "mixtral-8x7b",
        "sgd",
        Strategy(dp=2, cp=2, recompute="full", sync_every=2, outer_optimizer="nesterov"),
    ),
    ("gpt2", "adam", Strategy(dp=2, tp=2, pp=2, microbatches=2, offload="optimizer", sync_every=2)),
    (
        *("t5-small", "adam"),
        Strategy(
            dp=2,
            pp=2,
            microbatches=2,
            offload="activations,optimizer,parameters",
            sync_every=2,
            outer_optimizer="nesterov",
        ),
    ),
    (
        *("gpt2", "momentum"),
        Strategy(dp=4, offload="parameters", sync_every=3, outer_optimizer="nesterov"),
    ),
]


@pytest.mark.slow(seconds=3)
@pytest.mark.parametrize(("name", "optimizer", "strategy"), CASES)
def test_the_mean_is_that_of_one_device_that_does_the_steps_of_every_replica(
    name: str, optimizer: str, strategy: Strategy
) -> None:
    workload = Workload(
        model=load_model(name), batch_size=16, sequence_length=64, optimizer=optimizer
    )
    found = verify(workload, strategy)
    assert found.compared > 2
    assert found.max_relative_error < RELATIVE_TOLERANCE
    assert found.executed_peak_bytes == found.simulated_peak_bytes


def with_thresholds(batch_size: int = 1) -> Function:
    """Layers whose inputs are rectified above thresholds, which have no gradient and come first."""
    builder = Builder("thresholds")
    x = builder.input("x", (batch_size, 16))
    for layer in range(4):
        threshold = builder.parameter(f"{layer}.threshold", (16,))
        weight = builder.parameter(f"{layer}.weight", (16, 16))
        above = builder.add(Greater(), x, threshold)
        x = builder.add(MatMul(), builder.add(Where(), above, builder.add(Relu(), x), x), weight)
    return builder.build([x])


@pytest.mark.parametrize("outer_optimizer", ["mean", "nesterov"])
def test_parameters_without_gradients_stay_out_of_the_mean(outer_optimizer: str) -> None:
    workload = Workload(model=load_model(with_thresholds), batch_size=16, optimizer="sgd")
    strategy = Strategy(dp=4, sync_every=2, outer_optimizer=outer_optimizer)
    found = verify(workload, strategy)
    assert found.max_relative_error < RELATIVE_TOLERANCE
    assert found.executed_peak_bytes == found.simulated_peak_bytes
    plan = Simulator(workload, load_cluster("dgx-a100", 4)).plan(strategy)
    for program in plan.stages[0].programs:
        averaged = [bool(nodes) for nodes in program.averaging_by_parameter]
        assert averaged == [use.gradient is not None for use in program.parameters]
        assert False in averaged


def test_replicas_that_take_the_mean_of_something_else_are_caught(
    workload: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    strategy = Strategy(dp=4, sync_every=2)
    average = StageParameters.average

    def wrong(held: StageParameters) -> None:
        average(held)
        for parameter in held.of_rank.values():
            parameter.shards = [1.001 * shard for shard in parameter.shards]

    monkeypatch.setattr(StageParameters, "average", wrong)
    assert not verify(workload, strategy).passed

    def forgotten(held: StageParameters) -> None:
        """The replicas go on with parameters of their own."""

    monkeypatch.setattr(StageParameters, "average", forgotten)
    with pytest.raises(DistirError, match="disagree"):
        verify(workload, strategy)


def test_no_gradient_is_sent_between_synchronisations(workload: Workload) -> None:
    plan = Simulator(workload, load_cluster("dgx-a100", 4)).plan(Strategy(dp=4, sync_every=2))
    values = [random_values(workload, seed).values for seed in range(2)]
    steps = [optimizer_step(workload, 1)] * 2
    (counts,) = execute_steps(plan, values, steps).measured.counts.values()
    parameters = sum(
        use.owned_type.num_elements
        for program in plan.stages[0].programs
        for use in program.parameters
    )
    (sent,) = (size for size in counts.collective_bytes.values() if size > 1000)
    # A loss in each step, and once the parameters in fp32.
    assert sent - 4 * parameters < 100
    alone = replace(plan.strategy, sync_every=1)
    every = Simulator(workload, load_cluster("dgx-a100", 4)).plan(alone)
    assert any(isinstance(node.op, Collective) for node in every.stages[0].programs[0].settle)
    assert not plan.stages[0].programs[0].settle
    with pytest.raises(DistirError, match="disagree"):
        execute(plan, values[0], steps[0])


@pytest.mark.parametrize("momentum", [0.0, 0.9001])
def test_outer_steps_with_another_momentum_are_caught(
    workload: Workload, monkeypatch: pytest.MonkeyPatch, momentum: float
) -> None:
    other = {"nesterov": NesterovStep(momentum=momentum)}
    monkeypatch.setattr("distir.execute.stage_parameters.OUTER_OPTIMIZERS", other)
    found = verify(workload, Strategy(dp=4, sync_every=2, outer_optimizer="nesterov"))
    assert not found.passed


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_an_outer_optimizer_keeps_a_copy_and_a_momentum_and_takes_its_part_of_a_step(
    precision: str,
) -> None:
    workload = Workload(model=load_model("mlp-4x1024"), batch_size=16, precision=precision)
    simulator = Simulator(workload, load_cluster("dgx-a100", 8))
    mean = Strategy(dp=4, tp=2, sync_every=8)
    outer = replace(mean, outer_optimizer="nesterov")
    results = {each: simulator.simulate(each) for each in (mean, outer)}
    elements = elements_updated(simulator.plan(outer))
    kept = {each: result.stages[0].memory["optimizer_bytes"] for each, result in results.items()}
    # A copy in fp32 and a momentum in fp32.
    assert kept[outer] - kept[mean] == 8 * elements
    spent = {
        every: simulator.simulate(replace(outer, sync_every=every)).stages[0].seconds["optimizer"]
        - results[mean].stages[0].seconds["optimizer"]
        for every in (2, 8, 64)
    }
    assert spent[2] == pytest.approx(4 * spent[8], rel=1e-6)
    assert spent[2] == pytest.approx(32 * spent[64], rel=1e-6)
    # No kernel is faster than memory: 5 numbers read and 4 written, and the parameter in bf16.
    moved = (36 + (2 if precision == "bf16" else 0)) * elements
    device = simulator.cost.cluster.device
    assert 2 * spent[2] > moved / device.memory_bandwidth_bytes_per_second
    reference = simulate_reference(simulator.plan(outer), simulator.cost).result
    for metric in ("iteration_seconds", "peak_memory_bytes"):
        assert reference.metrics[metric] == pytest.approx(results[outer].metrics[metric], rel=1e-9)


@pytest.mark.parametrize("every", [2, 16])
def test_an_outer_state_rests_with_that_of_the_optimizer_and_its_step_is_made_there(
    every: int,
) -> None:
    workload = Workload(model=load_model("mlp-4x1024"), batch_size=16, precision="bf16")
    simulator = Simulator(workload, load_cluster("dgx-a100", 8))
    mean = Strategy(dp=4, tp=2, sync_every=every, offload="optimizer")
    outer = replace(mean, outer_optimizer="nesterov")
    results = {each: simulator.simulate(each).stages[0] for each in (mean, outer)}
    elements = elements_updated(simulator.plan(outer))
    # A copy in fp32 and a momentum in fp32, neither of them on the device.
    assert results[outer].memory == results[mean].memory
    hosted = {each: stage.host_bytes for each, stage in results.items()}
    assert hosted[outer] - hosted[mean] == 8 * elements
    # The host reads 5 numbers and writes 4, and the parameter in bf16.
    moved = simulator.cost.host_memory_seconds(38.0 * elements) / every
    spent = results[outer].seconds["optimizer"] - results[mean].seconds["optimizer"]
    assert spent == pytest.approx(moved)
    # What replicas average crosses the link to the host twice, in fp32.
    traffic = simulator.step(outer).traffic
    sizes = {each.op: each.size_bytes for each in traffic if each.along == "host"}
    assert sizes["ToHost parameters"] == pytest.approx(4 * elements / every)
    assert sizes["ToDevice parameters"] == pytest.approx((4 / every + 2) * elements)
    reference = simulate_reference(simulator.plan(outer), simulator.cost).result
    for share, seconds in reference.stages[0].seconds.items():
        assert results[outer].seconds[share] == pytest.approx(seconds, rel=1e-9)
    assert reference.stages[0].host_bytes == hosted[outer]


@pytest.mark.slow(seconds=2)
@pytest.mark.parametrize("seed", range(5))
def test_engines_agree_on_what_rests_on_hosts_whatever_rests_there(seed: int) -> None:
    chance = random.Random(seed)
    workload = Workload(
        model=load_model(chance.choice(["gpt2", "t5-small"])), batch_size=16, sequence_length=64
    )
    compared = 0
    while compared < 3:
        every = chance.choice([1, 2, 8])
        strategy = Strategy(
            dp=chance.choice([1, 2]),
            tp=chance.choice([1, 2]),
            pp=chance.choice([1, 2]),
            microbatches=chance.choice([2, 4]),
            schedule=chance.choice(["1f1b", "gpipe", "zb-h1", "chimera"]),
            zero=chance.choice([0, 1, 2, 3]) if every == 1 else 0,
            recompute=chance.choice(["none", "full", "auto"]),
            offload=",".join(each for each in OFFLOADS if chance.random() < 0.5),
            sync_every=every,
            outer_optimizer=chance.choice(["mean", "nesterov"]) if every > 1 else "mean",
        )
        simulator = Simulator(workload, load_cluster("dgx-a100", strategy.devices))
        if simulator.explain(strategy) is not None:
            continue
        compared += 1
        plan = simulator.plan(strategy)
        found = simulator.simulate_plan(plan)
        reference = simulate_reference(plan, simulator.cost).result
        for ours, theirs in zip(found.stages, reference.stages, strict=True):
            assert ours.host_bytes == pytest.approx(theirs.host_bytes)
            assert ours.memory == pytest.approx(theirs.memory)
            assert ours.seconds == pytest.approx(theirs.seconds, abs=1e-12)


def test_flops_of_an_outer_step_are_counted(workload: Workload) -> None:
    simulator = Simulator(workload, load_cluster("dgx-a100", 4))
    values = [random_values(workload, seed).values for seed in range(2)]
    flops: list[float] = []
    for optimizer in ("mean", "nesterov"):
        plan = simulator.plan(Strategy(dp=4, sync_every=2, outer_optimizer=optimizer))
        run = execute_steps(plan, values, [optimizer_step(workload, 1)] * 2)
        (counts,) = run.measured.counts.values()
        flops.append(counts.flops)
    plan = simulator.plan(Strategy(dp=4))
    # A difference, and a step of six operations, per element.
    assert flops[1] - flops[0] == 7 * elements_updated(plan)


@pytest.mark.parametrize("microbatches", [1, 4])
def test_a_mean_is_priced_by_its_part_in_an_average_step(microbatches: int) -> None:
    workload = Workload(model=load_model("gpt2"), batch_size=16, sequence_length=128)
    simulator = Simulator(workload, load_cluster("dgx-a100", 4))
    base = Strategy(dp=4, microbatches=microbatches)
    results = {
        every: simulator.simulate(replace(base, sync_every=every)) for every in (1, 2, 8, 1 << 20)
    }
    seconds = {every: result.metrics["iteration_seconds"] for every, result in results.items()}
    mean = 2 * (seconds[2] - seconds[1 << 20])
    assert seconds[8] - seconds[1 << 20] == pytest.approx(mean / 8, rel=1e-4)
    assert seconds[8] < seconds[1]
    peaks = {result.metrics["peak_memory_bytes"] for result in results.values()}
    assert len(peaks) == 1
    reference = simulate_reference(simulator.plan(replace(base, sync_every=8)), simulator.cost)
    assert reference.result.metrics["iteration_seconds"] == pytest.approx(seconds[8], rel=1e-9)


def test_spaces_search_how_often_replicas_synchronise_where_they_can(workload: Workload) -> None:
    from search_spaces import distribution_space

    space = distribution_space(
        workload, 4, {"extends": "small", "zero": [0, 1], "sync_every": [1, 8]}
    )
    found = list(space.enumerate())
    assert {(s.dp > 1, s.zero) for s in found if s.sync_every == 8} == {(True, 0)}
    assert any(s.sync_every == 1 and s.zero for s in found)
    wanted = {"sync_every": [1, 8], "outer_optimizer": ["mean", "nesterov"]}
    both = list(distribution_space(workload, 4, {"extends": "small", **wanted}).enumerate())
    assert {(s.sync_every, s.outer_optimizer) for s in both} == {
        (1, "mean"),
        (8, "mean"),
        (8, "nesterov"),
    }
