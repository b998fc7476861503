"""A plan written to disk and read back simulates and executes the same."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings

from distir import Strategy, Workload, load_cluster, load_model
from distir.errors import DistirError, StrategyError
from distir.execute.executor import execute
from distir.execute.shrink import shrink
from distir.execute.values import optimizer_step, random_values
from distir.plan import Plan
from distir.plan_text import format_plan, load_plan, parse_plan, save_plan
from distir.simulation import Simulator
from tests.laws.scenarios import Scenario, scenarios
from tests.slow import shares


def executed(plan: Plan) -> list[np.ndarray]:
    """Everything that a step gives, in the order of the text."""
    given_ = random_values(plan.workload, microbatches=plan.schedule.schedule.microbatches)
    result = execute(plan, given_.values, optimizer_step(plan.workload)).result
    return [*result.outputs, *result.gradients.values(), *result.parameters.values()]


@shares(5, seconds=1)
@settings(max_examples=3)
@given(scenarios())
def test_a_plan_read_back_simulates_and_executes_the_same(share: int, case: Scenario) -> None:
    # A text with a schedule for another number of ranks than the strategy's is refused.
    assume(len(case.plan.schedule.schedule.ranks) == case.plan.strategy.pp)
    text = format_plan(case.plan)
    plan = parse_plan(text)
    assert format_plan(plan) == text
    simulator = Simulator(plan.workload, case.simulator.cluster, case.simulator.cost.stack)
    again = simulator.simulate_plan(plan).to_dict()
    assert again == case.simulator.simulate_plan(case.plan).to_dict()
    for ours, theirs in zip(executed(plan), executed(case.plan), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.fixture(scope="module")
def plan() -> Plan:
    strategy = Strategy(dp=2, tp=2, pp=2, microbatches=2, zero=1, recompute="selective")
    small = shrink(Workload(model=load_model("gpt2"), batch_size=8), [strategy])
    return Simulator(small, load_cluster("dgx-a100", strategy.devices)).plan(strategy)


def test_a_saved_plan_is_the_plan_that_is_loaded(plan: Plan, tmp_path: Path) -> None:
    path = tmp_path / "best.plan"
    save_plan(plan, path)
    again = load_plan(path)
    assert again.strategy == plan.strategy
    assert format_plan(again) == path.read_text(encoding="utf-8")


def test_the_text_shows_the_parts_of_a_backward_pass(plan: Plan) -> None:
    strategy = replace(plan.strategy, schedule="zb-h1")
    simulator = Simulator(plan.workload, load_cluster("dgx-a100", strategy.devices))
    text = format_plan(simulator.plan(strategy))
    assert 'function "backward B"' in text
    assert 'function "backward W"' in text
    assert 'function "backward"' not in text
    assert format_plan(parse_plan(text)) == text


def test_the_text_shows_what_devices_run(plan: Plan) -> None:
    text = format_plan(plan)
    assert "0F0 0F1 0B0 0B1" in text
    assert 'AllReduce{mesh_axes=("tp",)' in text
    assert 'function "settle"' in text


@pytest.mark.parametrize(
    ("pattern", "replacement", "message"),
    [
        ("plan 1", "plan 9", "this is not a plan"),
        (r"cuts \[.*\]", "cuts", "no line 'cuts'"),
        (r'"dp": 2', '"dp": 4', "is not divisible by|planned differently"),
        (r'"dp": 2', '"dq": 2', "unknown strategy key"),
        (r"0F0 0F1", "0F1 0F9", "0F[09]|microbatch"),
        (r"blocks \d.*\n(.*\n)*", "", "planned differently"),
        ("AllReduce", "Identity", "planned differently"),
    ],
)
def test_damage_is_noticed(plan: Plan, pattern: str, replacement: str, message: str) -> None:
    text = format_plan(plan)
    start = text.index("blocks ") if pattern == "AllReduce" else 0
    broken = text[:start] + re.sub(pattern, replacement, text[start:], count=1)
    assert broken != text
    with pytest.raises(DistirError, match=message):
        parse_plan(broken)


def test_a_file_that_is_no_plan_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DistirError, match="cannot be read"):
        load_plan(tmp_path / "none.plan")
    path = tmp_path / "other"
    path.write_text("hello")
    with pytest.raises(StrategyError, match="this is not a plan"):
        load_plan(path)


@pytest.mark.parametrize(
    ("pattern", "replacement", "message"),
    [
        (r"cuts \[\d+", "cuts [9999", "at least one of the model's"),
        (r"(?s)\nfunction .*", "\n", "no whole function"),
        (r"schedule\n  .*\n", "schedule\n  0F9 0B9\n", "missing"),
        (r'"name": "[^"]*"', '"name": "' + "a" * 5000 + '"', "the name of the model has"),
        (r'"batch_size": \d+', '"batch_size": null', "the plan is damaged"),
    ],
)
def test_damage_of_any_part_is_an_error_of_ours(
    plan: Plan, pattern: str, replacement: str, message: str
) -> None:
    damaged, count = re.subn(pattern, replacement, format_plan(plan), count=1)
    assert count
    with pytest.raises(DistirError, match=message):
        parse_plan(damaged)
