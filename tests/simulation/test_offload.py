"""What rests on hosts: bytes, seconds, and what is said where it does not fit or nothing is known.

Ren et al., "ZeRO-Offload: Democratizing Billion-Scale Model Training" (2021), section 3: of the 16
bytes per parameter of mixed-precision Adam, 2 stay on the device, and 14 are on the host.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autotune import load_problem
from distir import Simulator, Workload, load_cluster, load_model
from distir.errors import DistirError, StrategyError
from distir.execute.verify import RELATIVE_TOLERANCE, verify
from distir.plan import Planner
from distir.plan.passes import block_passes
from distir.simulation.pricing.memory import ChainMemory
from distir.simulation.pricing.state import state_bytes
from distir.strategies import Strategies
from distir.strategy import Strategy


@pytest.fixture(scope="module")
def workload() -> Workload:
    return Workload(model=load_model("gpt2"), batch_size=8, sequence_length=128)


@pytest.mark.parametrize(
    ("strategy", "on_device", "on_host"),
    [
        (Strategy(), 2, 14),
        (Strategy(dp=4, zero=2), 2, 14 / 4),
        (Strategy(dp=4, zero=3), 2 / 4, 14 / 4),
        # Gradients are added up on the devices where all replicas have them.
        (Strategy(dp=4, zero=1), 2 + 2, 14 / 4),
        (Strategy(dp=4), 2 + 2, 14),
    ],
    ids=lambda value: getattr(value, "label", None),
)
def test_bytes_per_parameter_are_the_papers(
    workload: Workload, strategy: Strategy, on_device: float, on_host: float
) -> None:
    planner = Planner(workload)
    program = planner.block_programs(replace(strategy, offload="optimizer"))[3]
    whole = planner.block_programs(Strategy())[3]
    parameters = sum(use.type.num_elements for use in whole.parameters)
    state = state_bytes(workload, program)
    assert (state.total, state.host) == (on_device * parameters, on_host * parameters)


@pytest.mark.parametrize(("zero", "shared"), [(0, 1), (3, 4)])
@pytest.mark.parametrize("offload", ["parameters", "optimizer,parameters"])
def test_parameters_that_rest_on_hosts_are_on_no_device(
    workload: Workload, zero: int, shared: int, offload: str
) -> None:
    """Two blocks of them at most are there for a while, as buffers."""
    simulator = Simulator(workload, load_cluster("dgx-a100", 4))
    strategy = Strategy(dp=4, zero=zero, offload=offload)
    result = simulator.simulate(strategy)
    (stage,) = result.stages
    assert stage.memory["parameters_bytes"] == 0
    program, whole = (
        simulator.planner.block_programs(each)[3] for each in (strategy, Strategy(dp=4))
    )
    held = sum(use.type.size_bytes for use in whole.parameters)
    state = state_bytes(workload, program)
    on_host = held / shared
    if "optimizer" in offload:
        on_host += 7 * held / shared
    assert (state.parameters, state.host) == (0, on_host)


def test_inference_may_have_its_parameters_on_hosts() -> None:
    workload = Workload(model=load_model("gpt2"), mode="inference", batch_size=8)
    simulator = Simulator(workload, load_cluster("dgx-a100", 1))
    without, offloaded = (simulator.simulate(Strategy(offload=o)) for o in ("", "parameters"))
    peaks = [each.metrics["peak_memory_bytes"] for each in (without, offloaded)]
    assert peaks[1] < peaks[0]
    assert offloaded.metrics["iteration_seconds"] > without.metrics["iteration_seconds"]


@pytest.mark.parametrize(
    "strategy",
    [Strategy(microbatches=2), Strategy(dp=2, tp=2, pp=2, zero=2), Strategy(dp=4, zero=3)],
    ids=lambda strategy: strategy.label,
)
def test_offloading_takes_no_more_of_a_device_and_no_less_time(
    workload: Workload, strategy: Strategy
) -> None:
    simulator = Simulator(workload, load_cluster("dgx-a100", 8))
    without, offloaded = (
        simulator.simulate(replace(strategy, offload=name)) for name in ("", "optimizer")
    )
    for before, after in zip(without.stages, offloaded.stages, strict=True):
        buffers = ("activations_bytes", "buffers_bytes")
        held, still = (
            sum(size for share, size in stage.memory.items() if share not in buffers)
            for stage in (before, after)
        )
        assert still < held
        assert after.host_bytes > 0
    assert offloaded.metrics["iteration_seconds"] > without.metrics["iteration_seconds"]
    assert "host_bytes" in offloaded.memory
    assert "host_bytes" not in without.memory


@pytest.mark.parametrize(
    ("strategy", "in_flight"),
    [
        (Strategy(microbatches=2), [1]),
        (Strategy(pp=4, microbatches=8), [4, 3, 2, 1]),
        (Strategy(pp=2, microbatches=4, schedule="gpipe"), [4, 4]),
        (Strategy(pp=2, microbatches=4, recompute="full"), [2, 1]),
    ],
    ids=lambda value: getattr(value, "label", None),
)
def test_activations_on_hosts_are_those_of_all_microbatches_in_flight(
    workload: Workload, strategy: Strategy, in_flight: list[int]
) -> None:
    simulator = Simulator(workload, load_cluster("dgx-a100", strategy.devices))
    plan = simulator.plan(replace(strategy, offload="activations"))
    offloaded, without = (
        simulator.simulate(replace(strategy, offload=o)) for o in ("activations", "")
    )
    hosted = [
        sum(program.hosted.size_bytes for program in stage.programs if program.hosted)
        for stage in plan.stages
    ]
    there = [stage.host_bytes for stage in offloaded.stages]
    assert there == [n * size for n, size in zip(in_flight, hosted, strict=True)]
    for stage, before, number in zip(offloaded.stages, without.stages, in_flight, strict=True):
        if number > 2:  # two blocks of one microbatch are on their way
            assert stage.memory["activations_bytes"] < before.memory["activations_bytes"]
    assert offloaded.metrics["iteration_seconds"] > without.metrics["iteration_seconds"]


def test_values_that_show_each_other_are_copied_once(workload: Workload) -> None:
    """The copies of a layer take as much as what it kept, and nothing stays."""
    planner = Planner(workload)
    layer, offloaded = (planner.block_programs(Strategy(offload=o))[3] for o in ("", "activations"))
    assert offloaded.hosted is not None
    assert layer.hosted is None
    kept = ChainMemory().after_forward([((p,), 1) for p in block_passes([layer])])
    left = ChainMemory().after_forward([((p,), 1) for p in block_passes([offloaded])])
    assert (offloaded.hosted.size_bytes, left) == (kept, 0)


def test_the_last_block_keeps_what_its_backward_pass_reads_at_once(workload: Workload) -> None:
    *others, last = Planner(workload).block_programs(Strategy(offload="activations"))
    assert last.hosted is None
    assert all(each.hosted is not None for each in others[1:])


@pytest.mark.slow(seconds=3)
@pytest.mark.parametrize(
    ("name", "strategy"),
    [
        ("t5-small", Strategy(dp=2, tp=2, pp=2, microbatches=2)),
        ("mixtral-8x7b", Strategy(dp=2, ep=2, pp=2, microbatches=2, recompute="selective")),
        ("gpt2", Strategy(pp=2, chunks=2, schedule="interleaved", microbatches=4)),
        ("gpt2", Strategy(pp=2, microbatches=4, schedule="zb-h1", recompute="full")),
        ("gpt2", Strategy(dp=2, zero=3, microbatches=2, offload="optimizer,parameters")),
    ],
    ids=lambda value: getattr(value, "label", value),
)
def test_with_activations_on_hosts_the_numbers_and_the_peak_are_the_executed_ones(
    name: str, strategy: Strategy
) -> None:
    workload = Workload(model=load_model(name), batch_size=8, sequence_length=64)
    offload = f"{strategy.offload},activations"
    found = verify(workload, replace(strategy, offload=offload))
    assert found.max_relative_error < RELATIVE_TOLERANCE
    assert found.executed_peak_bytes == found.simulated_peak_bytes


def test_a_plan_that_no_host_can_hold_says_so(workload: Workload) -> None:
    cluster = load_cluster("dgx-a100", 2)
    assert cluster.host is not None
    small = replace(cluster, host=replace(cluster.host, memory_bytes=2e9))
    strategies = [Strategy(dp=2, offload="optimizer"), Strategy(dp=2, zero=1, offload="optimizer")]
    table = Simulator(workload, small).simulate_many(strategies)
    assert table.feasible.tolist() == [False, True]
    reason = table.reason(0) or ""
    assert "out of host memory" in reason
    assert "of the 1.863 GiB of a host each of its 2 devices has 953.7 MiB" in reason


def test_nothing_is_offloaded_to_hosts_of_which_nothing_is_known(workload: Workload) -> None:
    simulator = Simulator(workload, load_cluster("tpu-v5p", 8))
    strategy = Strategy(dp=8, offload="optimizer")
    with pytest.raises(StrategyError, match=r"hosts of cluster 'tpu-v5p'; a table \[host\]"):
        simulator.simulate(strategy)
    assert list(simulator.explain_many(Strategies.of([strategy, Strategy(dp=8)]))) == [0]
    with pytest.raises(DistirError, match=r"nothing is known of the hosts"):
        load_problem("gpt2", "tpu-v5p", devices=8, offload="optimizer")


@pytest.mark.parametrize("stated", ["[none, optimizer]", "all"])
def test_a_space_with_other_choices_is_searched_without_those_that_offload(
    stated: str, tmp_path: Path
) -> None:
    file = tmp_path / "space.yaml"
    file.write_text(f"extends: small\noffload: {stated}\n", encoding="utf-8")
    problem = load_problem("gpt2", "tpu-v5p", devices=8, space=file)
    assert {strategy.offload for strategy in problem.space.enumerate()} == {""}
    assert any("Choices that offload are left out: nothing is known" in n for n in problem.notes)
    known = load_problem("gpt2", "dgx-a100", devices=8, space=file)
    assert not any("left out" in note for note in known.notes)
    assert known.space.count() > problem.space.count()
    file.write_text("offload: [optimizer, parameters]\n", encoding="utf-8")
    with pytest.raises(DistirError, match="nothing is known of the hosts"):
        load_problem("gpt2", "tpu-v5p", devices=8, space=file)


def test_names_of_what_is_offloaded_are_known_and_in_order() -> None:
    assert Strategy(offload=" Optimizer, none").offload == "optimizer"
    with pytest.raises(StrategyError, match=r"unknown offload 'adam'"):
        Strategy(offload="adam")


@pytest.mark.parametrize("offload", ["optimizer", "activations"])
def test_inference_keeps_nothing_that_could_be_offloaded(offload: str) -> None:
    workload = Workload(model=load_model("gpt2"), mode="inference", batch_size=8)
    simulator = Simulator(workload, load_cluster("dgx-a100", 1))
    with pytest.raises(StrategyError, match="inference keeps nothing; leave it out"):
        simulator.simulate(Strategy(offload=offload))


def test_advice_names_offloading_where_nothing_else_would_do_and_hosts_are_known() -> None:
    from autotune.reports.advice import what_would_fit

    def advised(cluster: str) -> str | None:
        problem = load_problem("gpt3-13B", cluster, devices=1, batch_size=1, sequence_length=256)
        return what_would_fit(problem, Strategy())

    assert "offload optimizer it would fit" in (advised("dgx2-v100") or "")
    assert advised("tpu-v5p") is None
