"""Real processes compute, send and hold what virtual devices do."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, reject, settings

from autotune.cli import main
from autotune.distributed.backend import load_torch, torch_installed
from autotune.distributed.device import Inbox, channels_of
from autotune.distributed.execution import RealExecution, RealVerifier, execute_on_processes
from autotune.distributed.local import ProcessError
from distir import Strategy, Workload, load_model
from distir.errors import DistirError, TransformError
from distir.execute.executor import execute
from distir.execute.rank import Routes
from distir.execute.values import optimizer_step
from distir.execute.verify import RELATIVE_TOLERANCE, Verifier, compare, sequential_truth
from distir.plan import Plan, Planner
from distir.schedules import Action, parse_schedule
from tests.laws.placements import AnyPlan, any_plans
from tests.slow import FUZZ, shares

needs_torch = pytest.mark.skipif(not torch_installed(), reason="needs PyTorch: .[torch]")

MOST_DEVICES = 16
SECONDS = 120.0


def check(plan: Plan, deadline_seconds: float = SECONDS) -> RealExecution:
    """Numbers of one device; counts, memory and states of virtual devices; bytes as planned."""
    workload = plan.workload
    microbatches = plan.schedule.schedule.microbatches
    given, truth = sequential_truth(workload, microbatches)
    optimizer = optimizer_step(workload, 2)
    real = execute_on_processes(plan, given.values, optimizer, deadline_seconds)
    for each in compare(workload, real.execution.result, truth):
        assert each.error < RELATIVE_TOLERANCE, each
    virtual = execute(plan, given.values, optimizer)
    assert real.execution.measured == virtual.measured
    assert all(each.planned == each.sent for each in real.traffic.values()), real.traffic
    return real


@needs_torch
@pytest.mark.slow(seconds=5)
@pytest.mark.parametrize("share", range(8 * FUZZ))
@settings(max_examples=4, deadline=None)
@given(any_plans())
def test_any_plan_computes_sends_and_holds_on_processes_what_it_does_on_virtual_devices(
    share: int, case: AnyPlan
) -> None:
    if len(case.plan.schedule.schedule.ranks) * case.plan.devices_per_stage > MOST_DEVICES:
        reject()
    try:
        check(case.plan)
    except TransformError:
        reject()  # gates that feed gates leave the numbers that float64 has


@needs_torch
@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize(
    ("model", "strategy"),
    [
        ("gpt2", Strategy(dp=2, tp=2, pp=2, microbatches=4, schedule="zb-h1")),
        ("gpt2", Strategy(pp=2, chunks=2, microbatches=4, schedule="zb-v")),
        ("gpt2", Strategy(pp=2, microbatches=4, schedule="chimera")),
        ("llama3-8b", Strategy(dp=2, cp=2, cp_exchange="ring", zero=3)),
        ("mixtral-8x7b", Strategy(dp=2, ep=2, microbatches=2)),
        ("t5-base", Strategy(tp=2, pp=2, microbatches=2, sequence_parallel=True)),
    ],
    ids=str,
)
def test_strategies_of_models_pass(model: str, strategy: Strategy) -> None:
    found = RealVerifier(Verifier(Workload(model=load_model(model), batch_size=16))).verify(
        strategy
    )
    assert found.passed, found
    assert found.processes == strategy.devices
    peaks = found.verification
    assert peaks.executed_peak_bytes == peaks.simulated_peak_bytes


@needs_torch
def test_a_schedule_that_cannot_run_ends_at_its_deadline_and_says_who_waits() -> None:
    workload = Workload(model=load_model("gpt2-xs"), batch_size=4)
    strategy = Strategy(pp=2, microbatches=2)
    verifier = Verifier(workload)
    small = verifier.small(strategy)
    plan = Planner(small).plan(strategy, [1])
    late = parse_schedule("0F0 0B0 0F1 0B1\n1F1 1B1 1F0 1B0")
    plan = replace(plan, schedule=replace(plan.schedule, source=late))
    waiting = r"0 waits for process 1 to send 1B0.*1 waits for process 0 to send 0F1"
    with pytest.raises(ProcessError, match=waiting):
        check(plan, 3.0)


def test_without_torch_the_command_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["execute", "--model", "gpt2-xs", "--dp", "2"]) == 2
    assert "pip install" in capsys.readouterr().err
    with pytest.raises(DistirError, match=r"distir\[torch\]"):
        load_torch()


@needs_torch
def test_the_command_writes_the_keys_of_verify_and_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "found.json"
    options = ["--model", "gpt2-xs", "--dp", "2", "--tp", "2"]
    assert main(["execute", *options, "--json", str(file)]) == 0
    assert "4 processes" in capsys.readouterr().out
    found = json.loads(file.read_text())
    main(["verify", *options, "--json", "-"])
    verified = json.loads(capsys.readouterr().out)
    assert verified.keys() <= found.keys()
    assert found["compared"] == verified["compared"]
    assert found["processes"] == 4
    assert found["seconds"] > 0
    assert found["bytes_sent"].keys() == {"dp", "tp"}
    assert all(each["planned"] == each["sent"] > 0 for each in found["bytes_sent"].values())


@shares(4, seconds=3)
@settings(max_examples=50, deadline=None)
@given(any_plans())
def test_every_message_between_ranks_is_sent_once_and_awaited_once(
    share: int, case: AnyPlan
) -> None:
    routes = Routes(case.plan.schedule.schedule)
    ranks = range(len(routes.schedule.ranks))
    sent = [
        (receiver, message)
        for sender in ranks
        for receiver in ranks
        if sender != receiver
        for message in routes.messages(sender, receiver)
    ]
    awaited = [
        (rank, needed)
        for rank in ranks
        for action in routes.schedule.ranks[rank]
        if (needed := routes.needed(action)) is not None
        and routes.rank_of(needed.stage, needed.microbatch) != rank
    ]
    assert len(set(sent)) == len(sent)
    assert sorted(sent) == sorted(awaited)


@shares(4, seconds=3)
@settings(max_examples=50, deadline=None)
@given(any_plans())
def test_between_any_two_ranks_messages_are_received_in_the_order_in_which_they_are_sent(
    share: int, case: AnyPlan
) -> None:
    routes = Routes(case.plan.schedule.schedule)
    ranks = range(len(routes.schedule.ranks))
    channels = channels_of(case.plan)
    for receiver in ranks:
        inbox, taken = Inbox(routes, receiver), list[tuple[int, Action]]()
        for action in routes.schedule.ranks[receiver]:
            needed = routes.needed(action)
            if needed is not None and all(needed != message for _, message in taken):
                taken += inbox.until(needed)
        for sender in ranks:
            received = [message for other, message in taken if other == sender]
            sent = [] if sender == receiver else list(routes.messages(sender, receiver))
            assert received == sent
            if sent:
                size = case.plan.devices_per_stage
                assert (sender * size, receiver * size) in channels


@needs_torch
@pytest.mark.slow(seconds=2)
@pytest.mark.parametrize(
    ("model", "strategy"),
    [
        ("gpt2", Strategy(dp=2, pp=2, microbatches=2, zero=1)),
        ("gpt2", Strategy(tp=2, microbatches=2, recompute="full")),
        ("llama3-8b", Strategy(cp=2, cp_exchange="ring", dp=2, zero=3)),
        ("mixtral-8x7b", Strategy(dp=2, ep=2)),
        ("t5-base", Strategy(tp=2, pp=2, microbatches=2)),
    ],
    ids=str,
)
def test_pytorch_computes_plans_as_one_device_of_numpy_does(model: str, strategy: Strategy) -> None:
    verifier = Verifier(Workload(model=load_model(model), batch_size=16))
    found = RealVerifier(verifier, where="cpu").verify(strategy)
    assert found.passed, found
    peaks = found.verification
    assert peaks.executed_peak_bytes == peaks.simulated_peak_bytes
