"""A trace shows what the reference engine does, on one device of every rank."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings

from distir import Strategy, Workload, load_cluster, load_model
from distir.schedules.core.action import format_pair
from distir.simulation import Simulator, trace
from distir.simulation.reference import ActionSpan, Span, simulate_reference
from tests.conftest import HEALTH_CHECKS
from tests.laws.scenarios import Scenario, scenarios
from tests.slow import shares

Event = dict[str, Any]


def spans(found: dict[str, Any]) -> list[Event]:
    return [event for event in found["traceEvents"] if event["ph"] == "X"]


def gpt2(**workload: Any) -> Simulator:
    model = load_model("gpt2")
    return Simulator(Workload(model=model, batch_size=16, **workload), load_cluster("dgx-a100", 16))


STRATEGY = Strategy(dp=2, tp=2, pp=4, microbatches=4)


@shares(3, seconds=1)
@settings(max_examples=7, deadline=None, suppress_health_check=HEALTH_CHECKS)
@given(scenarios())
def test_the_trace_is_the_timeline_of_the_reference_engine(share: int, scenario: Scenario) -> None:
    plan = scenario.plan
    found = spans(scenario.simulator.trace_plan(plan))
    run = simulate_reference(plan, scenario.simulator.cost)
    per_rank = plan.devices_per_stage

    shown = [
        ((e["pid"], e["tid"] == 0, e["name"]), e["ts"] / 1e6, (e["ts"] + e["dur"]) / 1e6)
        for e in found
    ]
    done = [
        ((each.rank, isinstance(each, ActionSpan), name_of(each)), each.start, each.end)
        for each in (*run.spans, *run.actions)
        if each.device == each.rank * per_rank
    ]
    assert Counter(name for name, _, _ in shown) == Counter(name for name, _, _ in done)
    for time in (1, 2):
        for name in {name for name, _, _ in shown}:
            ours, theirs = (
                sorted(row[time] for row in rows if row[0] == name) for rows in (shown, done)
            )
            assert ours == pytest.approx(theirs)


def name_of(span: Span | ActionSpan) -> str:
    if isinstance(span, Span):
        return span.label
    return str(span.action) if span.beside is None else format_pair(span.action, span.beside)


def test_a_trace_is_json_with_names() -> None:
    found = json.loads(json.dumps(gpt2().trace(STRATEGY)))
    names = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in found["traceEvents"]
        if event["name"] == "thread_name"
    }
    processes = [e for e in found["traceEvents"] if e["name"] == "process_name"]
    assert [event["pid"] for event in processes] == [0, 1, 2, 3]
    assert processes[0]["args"]["name"].startswith("stage 0 (blocks 0-")
    assert {name for (rank, _), name in names.items() if rank == 0} == {
        "actions", "compute", "tp", "gradients", "pp",
    }  # fmt: skip
    assert all((event["pid"], event["tid"]) in names for event in spans(found))


def test_a_device_does_one_thing_at_a_time_on_every_stream() -> None:
    """Nothing overlaps on a thread, ops lie inside their actions, and all ends with the step."""
    simulator = gpt2()
    found = spans(simulator.trace(STRATEGY))
    busy: dict[tuple[int, int], float] = {}
    tolerance = 1e-3
    for event in sorted(found, key=lambda event: event["ts"]):
        thread = (event["pid"], event["tid"])
        assert event["ts"] >= busy.get(thread, 0.0) - tolerance
        busy[thread] = event["ts"] + event["dur"]
    end = max(busy.values()) / 1e6
    overhead = simulator.cost.stack.iteration_overhead_seconds
    iteration = simulator.simulate(STRATEGY).metrics["iteration_seconds"]
    assert end == pytest.approx(iteration - overhead)
    actions = {(e["pid"], e["name"]): e for e in found if e["tid"] == 0}
    for event in found:
        around = actions.get((event["pid"], event["args"].get("action")))
        if around is not None and event["cat"] == "compute":
            assert event["ts"] >= around["ts"] - tolerance
            assert event["ts"] + event["dur"] <= around["ts"] + around["dur"] + tolerance


def test_large_traces_are_cut_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "MOST_ACTIONS", 10)
    monkeypatch.setattr(trace, "MOST_OPS", 1000)
    found = gpt2().trace(STRATEGY)
    assert found["otherData"]["actions"] == "10 of 32"
    events = spans(found)
    assert sum(event["tid"] == 0 for event in events) == 10
    assert len(events) < 1200
    assert any("gradients" in event["name"] for event in events)


def test_inference_has_forward_passes_only() -> None:
    found = gpt2(mode="inference").trace(STRATEGY)
    assert {event["cat"] for event in spans(found)} == {"forward", "compute", "communication"}
