"""A trace shows what the reference engine does, on one device of every rank."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from pathlib import Path
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

pytestmark = pytest.mark.not_quick

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
    found = [
        event for event in spans(scenario.simulator.trace_plan(plan)) if event["cat"] != "message"
    ]
    run = simulate_reference(plan, scenario.simulator.cost)
    per_rank = plan.devices_per_stage

    shown = [
        ((e["pid"], e["tid"] == 0, said_of(e)), e["ts"] / 1e6, (e["ts"] + e["dur"]) / 1e6)
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


def said_of(event: Event) -> str:
    return event["args"]["action" if event["tid"] == 0 else "op"]


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
    assert processes[0]["args"]["name"].startswith("rank 0: stage 0 (blocks 0-")
    assert {name for (rank, _), name in names.items() if rank == 0} == {
        "actions", "compute", "tp", "gradients", "pp", "send activations to rank 1",
        "receive gradients from rank 1",
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
    actions = {(e["pid"], e["args"]["action"]): e for e in found if e["tid"] == 0}
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
    assert {event["cat"] for event in spans(found)} == {
        "forward", "compute", "communication", "message",
    }  # fmt: skip


@shares(2, seconds=2)
@settings(max_examples=6, deadline=None, suppress_health_check=HEALTH_CHECKS)
@given(scenarios())
def test_arrows_lead_from_an_action_over_both_sides_of_a_message_to_another_action(
    share: int, scenario: Scenario
) -> None:
    found = scenario.simulator.trace_plan(scenario.plan)["traceEvents"]
    slices: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in spans({"traceEvents": found}):
        ends = (event["ts"], event["ts"] + event["dur"])
        slices.setdefault((event["pid"], event["tid"]), []).append(ends)
    arrows: dict[int, list[Event]] = {}
    for event in found:
        if event["ph"] in "stf":
            arrows.setdefault(event["id"], []).append(event)
    assert len(arrows) == len(scenario.simulator.step_plan(scenario.plan).messages)
    tolerance = 1e-6 * max(end for each in slices.values() for _, end in each)
    for points in arrows.values():
        assert [points[0]["ph"], points[-1]["ph"]] == ["s", "f"]
        assert all(point["ph"] == "t" for point in points[1:-1])
        assert points[0]["pid"] != points[-1]["pid"]
        assert [point["ts"] for point in points] == pytest.approx(
            sorted(point["ts"] for point in points), abs=tolerance
        )
        for point in points:
            around = slices[point["pid"], point["tid"]]
            assert any(a - tolerance <= point["ts"] <= b + tolerance for a, b in around)


@shares(2, seconds=2)
@settings(max_examples=6, deadline=None, suppress_health_check=HEALTH_CHECKS)
@given(scenarios())
def test_counters_reach_the_peak_of_every_rank(share: int, scenario: Scenario) -> None:
    found = scenario.simulator.trace_plan(scenario.plan)["traceEvents"]
    stages = scenario.simulator.simulate_plan(scenario.plan).stages
    for rank, stage in enumerate(stages):
        counted = [e for e in found if e["ph"] == "C" and e["pid"] == rank]
        assert [e["ts"] for e in counted] == sorted(e["ts"] for e in counted)
        most = max(sum(event["args"].values()) for event in counted)
        assert most == pytest.approx(stage.peak_memory_bytes)
        assert all(part >= 0 for event in counted for part in event["args"].values())


def test_communication_has_its_bytes_its_rate_its_axes_and_its_layer() -> None:
    events = spans(gpt2().trace(STRATEGY))
    moved = [event for event in events if "bytes" in event["args"]]
    assert {event["cat"] for event in moved} == {"communication", "message"}
    for event in moved:
        rate = event["args"]["bytes"] / (event["dur"] / 1e6)
        assert event["args"]["bytes/s"] == pytest.approx(rate)
        assert event["args"]["level"] in ("NVSwitch", "InfiniBand HDR")
    assert any(event["name"] == "layer 3: AllReduce along tp" for event in events)
    assert not any(event["name"] in ("Fused", "Einsum", "Sharded", "Bucket") for event in events)


def test_two_plans_lie_one_below_the_other() -> None:
    simulator = gpt2()
    plans = {"one": STRATEGY, "other": Strategy(dp=4, pp=2, microbatches=2)}
    traces = {name: simulator.trace(plan) for name, plan in plans.items()}
    both = json.loads(json.dumps(trace.side_by_side(traces)))["traceEvents"]
    assert len(both) == sum(len(each["traceEvents"]) for each in traces.values())
    named = [e["args"]["name"] for e in both if e["name"] == "process_name"]
    assert [name.split(": rank")[0] for name in named] == 4 * ["one"] + 2 * ["other"]
    assert len({e["pid"] for e in both}) == 6
    starts = [event["id"] for event in both if event["ph"] == "s"]
    assert len(starts) == len(set(starts))
    assert sorted(starts) == sorted(event["id"] for event in both if event["ph"] == "f")


def test_a_trace_processor_reads_the_trace(tmp_path: Path) -> None:
    """Perfetto's own reader, where there is one."""
    processor = os.environ.get("TRACE_PROCESSOR")
    if processor is None:
        pytest.skip("TRACE_PROCESSOR names no trace processor of Perfetto")
    found = gpt2().trace(STRATEGY)
    file, query = tmp_path / "trace.json", tmp_path / "query.sql"
    file.write_text(json.dumps(found), "utf-8")
    query.write_text(
        "select (select count(*) from slice) as slices, (select count(*) from flow) as flows, "
        "(select count(*) from process_counter_track) as counters, "
        "(select count(*) from stats where severity = 'error' and value > 0) as errors;",
        "utf-8",
    )
    done = subprocess.run(
        [processor, "-q", str(query), str(file)], capture_output=True, text=True, check=True
    )
    slices, flows, counters, errors = map(int, done.stdout.strip().splitlines()[-1].split(","))
    points = [event for event in found["traceEvents"] if event["ph"] in "st"]
    assert (slices, flows, errors) == (len(spans(found)), len(points), 0)
    assert counters >= 4
