"""Prices, goals and numbers of devices."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autotune import Goal, ProblemStatement, load_problem
from autotune.cli import main
from autotune.exhaustive import certified
from autotune.exhaustive.certificate import Certificate
from autotune.problem import Problem
from autotune.questions.scale import device_counts, scale
from distir import DistirError, Strategy
from distir.cost import device_names, load_device

SMALL = ("--model", "mlp-4x64", "--batch-size", "64", "--space", "small")
PLAN = Strategy(dp=4)


def test_prices_follow_from_the_time_of_a_step() -> None:
    problem = load_problem("gpt2-xs", devices=4, price=2.5, tokens=1e12)
    metrics = problem.simulate(PLAN).metrics
    tokens_per_step = problem.batch_size * 1024
    days = 1e12 / tokens_per_step * metrics["iteration_seconds"] / 86400
    assert metrics["time_to_train_seconds"] == pytest.approx(days * 86400)
    assert metrics["dollars_to_train"] == pytest.approx(days * 24 * 4 * 2.5)
    assert metrics["dollars_per_million_tokens"] == pytest.approx(days * 24 * 4 * 2.5 / 1e6)
    assert metrics["joules_per_token"] == pytest.approx(days * 86400 * 4 * 400 / 1e12)
    assert metrics["megawatt_hours_to_train"] == pytest.approx(days * 24 * 4 * 400 / 1e6)


def test_a_job_changes_no_second_and_no_byte() -> None:
    plain = load_problem("gpt2-xs", devices=4).simulate(PLAN).metrics
    priced = load_problem("gpt2-xs", devices=4, price=2.5, tokens=1e12).simulate(PLAN).metrics
    assert {name: priced[name] for name in plain} == dict(plain)


@pytest.mark.parametrize(
    ("objective", "words"),
    [("cost", "--price"), ("time-to-train", "--tokens"), ("dollars_to_train", "--price")],
)
def test_an_objective_says_what_it_needs(objective: str, words: str) -> None:
    problem = load_problem("gpt2-xs", devices=4)
    with pytest.raises(DistirError, match=words):
        problem.objective(objective)


def test_energy_needs_a_device_that_states_its_power() -> None:
    objective = load_problem("gpt2-xs", devices=4).objective("energy")
    assert objective.measure(PLAN).metrics["joules_per_token"] > 0
    with pytest.raises(DistirError, match="power"):
        load_problem("gpt2-xs", "tpu-v5p", devices=4).objective("energy")
    stated = [name for name in device_names() if load_device(name).power_watts is not None]
    assert len(stated) >= 12


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("8:64", [8, 16, 32, 64]),
        ("6:20", [6, 8, 16, 20]),
        ("1:1", [1]),
        ("8,2,4", [2, 4, 8]),
        ("5", [5]),
    ],
)
def test_numbers_of_devices_are_powers_of_two_with_both_ends_or_a_list(
    text: str, counts: list[int]
) -> None:
    assert device_counts(text) == counts


@pytest.mark.parametrize(
    "text", ["", "8:", ":8", "64:8", "0:8", "-1", "a,b", "1:99999999999", "8:x"]
)
def test_what_states_no_numbers_of_devices_is_refused(text: str) -> None:
    with pytest.raises(DistirError, match="does not state numbers of devices"):
        device_counts(text)


@pytest.mark.not_quick
def test_each_number_of_devices_has_the_plan_that_exhaustive_search_finds() -> None:
    from autotune import evaluate_grid

    statement = ProblemStatement("gpt2-xs", batch_size=32, space="small")
    _, _, steps = scale(statement, Goal(), [1, 2, 3, 4])
    for step in steps:
        if step.best is None:
            assert step.reason  # 3 devices do not divide the batch
            continue
        problem = load_problem("gpt2-xs", batch_size=32, space="small", devices=step.devices)
        grid = evaluate_grid(problem.space, problem.objective("throughput"))
        assert grid.best is not None
        assert grid.best.strategy == step.best.strategy
    known = [step for step in steps if step.best is not None]
    assert known[0].efficiency == 1.0
    rates = [s.best.metric("throughput_samples_per_second") or 0.0 for s in known if s.best]
    ratio = rates[-1] / known[-1].devices / (rates[0] / known[0].devices)
    assert known[-1].efficiency == pytest.approx(ratio)


def test_an_interrupt_leaves_the_numbers_of_devices_that_were_looked_at(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []

    def certify(problem: Problem, *stated: Any, **options: Any) -> Certificate:
        looked.append(problem.devices)
        if problem.devices == 4:
            raise KeyboardInterrupt
        return certified.certify(problem, *stated, **options)

    monkeypatch.setattr("autotune.questions.scale.certify", certify)
    file = tmp_path / "found.json"
    assert main(["scale", *SMALL, "--devices", "1:8", "--json", str(file)]) == 130
    assert looked == [1, 2, 4]
    assert "Interrupted before 4, 8 devices were tried." in capsys.readouterr().out
    found = json.loads(file.read_text())
    assert found["interrupted"] is True
    assert [each["devices"] for each in found["points"]] == [1, 2]
    assert all(each["metrics"] for each in found["points"])
    assert main(["scale", *SMALL, "--devices", "4:8", "--json", "-"]) == 130
    assert capsys.readouterr().out == "", "nothing was found"


@pytest.mark.not_quick
def test_the_command_tells_a_curve_as_table_plot_and_json(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = (*SMALL, "--devices", "1:4", "--price", "2", "--tokens", "1B")
    plot = tmp_path / "curve.svg"
    assert main(["scale", *wanted, "--plot", str(plot), "--quiet"]) == 0
    said = capsys.readouterr().out
    assert "efficiency" in said
    assert "dollars to train" in said
    assert plot.read_text().startswith("<?xml")
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["scale", *wanted, "--quiet"]) == 0
    table, _, left_out = capsys.readouterr().out.partition("No room for ")
    assert "dollars to train" in table, "what was asked for stays in a narrow table"
    assert "iteration" in left_out
    assert main(["scale", *wanted, "--json", "-"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert [each["devices"] for each in plain["points"]] == [1, 2, 4]
    assert all(each["metrics"]["dollars_to_train"] > 0 for each in plain["points"])
    assert main(["scale", *SMALL, "--devices", "many"]) == 2


def test_an_objective_of_ones_own_has_a_name_in_the_curve(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """One that returns a number, which has no name before it is called."""
    file = tmp_path / "own.py"
    file.write_text("def cost(strategy):\n    return 1.0 + strategy.tp\n")
    asked = ["scale", "--model", "gpt2-xs", "--space", "small", "--devices", "1:2"]
    assert main([*asked, "--objective", f"{file}:cost", "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["metric"] == "value"
    assert [point["metrics"]["value"] for point in found["points"]] == [2.0, 2.0]


@pytest.mark.parametrize("command", ["scale", "compare"])
def test_what_fails_everywhere_is_not_said_to_fit_nowhere(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str
) -> None:
    file = tmp_path / "own.py"
    file.write_text("def cost(strategy):\n    raise RuntimeError('no luck')\n")
    asked = [command, "--model", "gpt2-xs", "--space", "small", "--objective", f"{file}:cost"]
    assert main([*asked, "--devices", "2"]) == 2
    said = capsys.readouterr().err
    assert "failed; the most frequent reason: RuntimeError: no luck" in said
    assert "fit" not in said
