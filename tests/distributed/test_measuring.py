"""Measured steps are steps of training, and what is written of them adds up."""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from autotune.cli import main
from autotune.distributed.backend import torch_installed
from autotune.distributed.computing import computing_on
from autotune.distributed.device import DeviceOutcome, DeviceProcess, groups_of, run_step
from autotune.distributed.execution import put_together
from autotune.distributed.local import Member, run_together
from autotune.distributed.measuring import measure_locally
from autotune.distributed.messenger import Messenger
from autotune.measure import main as measure_main
from distir import Simulator, Strategy, Workload, load_cluster, load_model
from distir.execute.sequential import mixes_samples, sequential_step
from distir.execute.shrink import shrink
from distir.execute.values import StepValues, optimizer_step
from distir.execute.verify import RELATIVE_TOLERANCE, compare, sequential_truth
from distir.plan_text import save_plan
from distir.simulation.communication import collectives_of

needs_torch = pytest.mark.skipif(not torch_installed(), reason="needs PyTorch: .[torch]")
SECONDS = 120.0
STRATEGY = Strategy(dp=2, pp=2, microbatches=2, zero=1)


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan of a model so small that steps take milliseconds."""
    small = shrink(Workload(model=load_model("gpt2"), batch_size=4), [STRATEGY])
    simulator = Simulator(small, load_cluster("dgx-a100", STRATEGY.devices))
    path = tmp_path_factory.mktemp("plans") / "small.plan"
    save_plan(simulator.plan(STRATEGY), path)
    return path


@needs_torch
def test_two_steps_of_processes_are_two_steps_of_one_device() -> None:
    workload = shrink(Workload(model=load_model("gpt2"), batch_size=4), [STRATEGY])
    plan = Simulator(workload, load_cluster("dgx-a100", STRATEGY.devices)).plan(STRATEGY)
    given = sequential_truth(workload, STRATEGY.microbatches)[0].values

    def work(member: Member) -> DeviceOutcome:
        messenger = Messenger(member.process, member.processes, member.note)
        messenger.join(member.store, SECONDS)
        messenger.make_groups(groups_of(plan))
        device = DeviceProcess(plan, given, messenger)
        device.step(optimizer_step(workload, 2))
        device.begin_step()
        device.step(optimizer_step(workload, 3))
        messenger.meet()
        return device.outcome(0.0)

    outcomes = run_together(STRATEGY.devices, work, SECONDS)
    pieces = STRATEGY.microbatches if mixes_samples(workload) else 1
    first = sequential_step(workload, given, optimizer_step(workload, 2), pieces)
    later = StepValues(given.sources, first.parameters, first.moments)
    second = sequential_step(workload, later, optimizer_step(workload, 3), pieces)
    found = put_together(plan, given, outcomes, updated=True).result
    for each in compare(workload, found, second):
        assert each.error < RELATIVE_TOLERANCE, each
    assert any(
        not np.array_equal(first.parameters[v], second.parameters[v]) for v in first.parameters
    )


@needs_torch
@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize(
    "strategy", [Strategy(dp=2, zero=1), Strategy(tp=2), STRATEGY], ids=lambda each: each.label
)
@pytest.mark.parametrize(("precision", "rounding"), [("fp32", 1e-5), ("bf16", 0.05)])
@pytest.mark.parametrize("model", ["gpt2", "llama3-8b", "mixtral-8x7b"])
def test_a_step_in_the_types_of_the_plan_is_the_exact_one_but_for_rounding(
    model: str, precision: str, rounding: float, strategy: Strategy
) -> None:
    whole = Workload(model=load_model(model), batch_size=4, precision=precision, dropout=False)
    workload = shrink(whole, [strategy])
    plan = Simulator(workload, load_cluster("dgx-a100", strategy.devices)).plan(strategy)
    given, truth = sequential_truth(workload, strategy.microbatches)

    def work(member: Member) -> DeviceOutcome:
        messenger = Messenger(member.process, member.processes, member.note)
        messenger.join(member.store, SECONDS)
        optimizer = optimizer_step(workload, 2)
        return run_step(plan, given.values, optimizer, messenger, computing_on("cpu"))

    outcomes = run_together(strategy.devices, work, SECONDS)
    found = put_together(plan, given.values, outcomes, updated=True).result
    errors = {each.name: each.error for each in compare(workload, found, truth)}
    assert errors["loss"] < rounding
    assert statistics.median(errors.values()) < rounding
    assert precision != "fp32" or max(errors.values()) < 100 * rounding


@needs_torch
def test_more_than_the_memory_of_the_machine_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["measure", "--model", "gpt3-175B", "--batch-size", "2"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "of memory in float64" in line


@needs_torch
@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize("strategy", [Strategy(dp=2), Strategy(dp=2, zero=1), Strategy(tp=2)])
def test_a_step_has_as_many_collectives_as_are_simulated(strategy: Strategy) -> None:
    workload = shrink(Workload(model=load_model("gpt2"), batch_size=4), [strategy])
    simulator = Simulator(workload, load_cluster("dgx-a100", 2))
    plan = simulator.plan(strategy)
    collectives = collectives_of(simulator.step(strategy), simulator.simulate(strategy))
    measured = measure_locally(plan, 1, 0, SECONDS)
    assert sum(each.count for each in collectives) == len(measured.processes[0].messages)


@needs_torch
def test_the_command_writes_simulated_and_measured_side_by_side(
    plan_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.json"
    options = ["--plan", str(plan_file), "--steps", "3", "--trace", str(trace)]
    assert main(["measure", *options, "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"strategy", "simulated", "measured", "environment"} <= found.keys()
    measured = found["measured"]
    assert measured["steps"] == 3
    assert 0 < measured["minimum"] <= measured["median"] == measured["iteration_seconds"]
    assert found["simulated"].keys() <= measured.keys()
    assert found["environment"]["processes"] == STRATEGY.devices

    events = json.loads(trace.read_text())["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    ours = [pid for pid, name in names.items() if name.startswith("measured")]
    assert len(ours) == STRATEGY.devices < len(names)
    for pid in ours:
        actions = [e for e in events if e["pid"] == pid and e["ph"] == "X" and e["tid"] == 0]
        assert len(actions) == 2 * STRATEGY.microbatches
        assert all(e["ts"] >= 0 and e["dur"] > 0 for e in actions)


@needs_torch
@pytest.mark.slow(seconds=12)
def test_processes_that_torchrun_starts_measure_a_plan(plan_file: Path, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    written = tmp_path / "measured.json"
    command = [sys.executable, "-m", "autotune.measure", str(plan_file), "--json", str(written)]
    started = [
        subprocess.Popen(
            [*command, "--steps", "2"],
            env={
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": str(STRATEGY.devices),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            },
        )
        for rank in range(STRATEGY.devices)
    ]
    try:
        assert [process.wait(SECONDS) for process in started] == [0] * STRATEGY.devices
    finally:
        for process in started:
            process.kill()
    assert json.loads(written.read_text())["measured"]["steps"] == 2


@needs_torch
@pytest.mark.parametrize(
    ("environment", "said"),
    [({}, "torchrun"), ({"RANK": "0", "WORLD_SIZE": "3"}, "for 4 devices, but there are 3")],
)
def test_other_numbers_of_processes_are_refused(
    environment: dict[str, str],
    said: str,
    plan_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert measure_main([str(plan_file)]) == 2
    assert said in capsys.readouterr().err
