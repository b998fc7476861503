"""`--plan FILE`: what one command writes, another reads, and it says the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.cli import main
from distir.plan_text import VERSION, load_plan

MODEL = ["--model", "gpt2-xs", "--batch-size", "16", "--sequence-length", "128"]
STRATEGY = ["--dp", "2", "--pp", "2", "--microbatches", "2", "--schedule", "gpipe"]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plans") / "gpt2.plan"
    assert main(["simulate", *MODEL, *STRATEGY, "--plan", str(path), "--json", "-"]) == 0
    return path


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    capsys.readouterr()
    assert main([*arguments, "--json", "-"]) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    return said


def test_a_plan_that_is_read_is_simulated_as_when_it_was_written(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    read = answer(capsys, "simulate", "--plan", str(file))
    assert read["metrics"] == answer(capsys, "simulate", *MODEL, *STRATEGY)["metrics"]
    assert read["strategy"]["schedule"] == "gpipe"
    assert read["batch_size"] == 16


@pytest.mark.parametrize("command", ["simulate", "run", "execute", "measure"])
def test_no_other_file_is_written_over(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("mine")
    assert "which is not a plan" in refused(capsys, command, *MODEL, "--plan", str(notes))
    assert notes.read_text() == "mine"


def test_other_hardware_runs_the_same_plan(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--cluster", "hgx-h100"]
    read = answer(capsys, "simulate", "--plan", str(file), *options)
    assert read["metrics"] == answer(capsys, "simulate", *MODEL, *STRATEGY, *options)["metrics"]


def test_an_order_that_was_changed_in_the_file_is_simulated(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, before = file.read_text(), "  0F0 0F1 0B0 0B1\n  1F0 1F1 1B0 1B1"
    assert before in text
    later = tmp_path / "changed.plan"
    # Rank 1 waits until rank 0 has done both, in place of one.
    later.write_text(text.replace(before, "  0F0 0F1 0B0 0B1\n  1F1 1F0 1B0 1B1"))
    changed = answer(capsys, "simulate", "--plan", str(later))["metrics"]
    unchanged = answer(capsys, "simulate", "--plan", str(file))["metrics"]
    assert changed["peak_memory_bytes"] == unchanged["peak_memory_bytes"]  # of rank 0, as before
    assert changed["iteration_seconds"] > unchanged["iteration_seconds"]


@pytest.mark.slow(seconds=3)
def test_the_best_plan_of_a_search_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "best.plan"
    options = ["--devices", "4", "--space", "small", "--trials", "3", "--no-tracking"]
    found = answer(capsys, "run", *MODEL, *options, "--plan", str(path))
    assert load_plan(path).strategy.dp == found["best"]["strategy"]["dp"]


@pytest.mark.parametrize("command", ["simulate", "execute"])
def test_another_version_is_refused_in_one_line(
    command: str, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if command == "execute":
        pytest.importorskip("torch", reason="needs PyTorch: .[torch]")
    old = tmp_path / "old.plan"
    old.write_text(file.read_text().replace(VERSION, "plan 0", 1))
    said = refused(capsys, command, "--plan", str(old))
    assert str(old) in said
    assert "plan 0" in said
    assert VERSION in said


@pytest.mark.parametrize(
    "stated",
    [
        ["--microbatch-size", "2"],
        ["--microbatches", "2"],
        ["--dp", "2"],
        ["--batch-size", "8"],
        ["--mode", "inference"],
        ["--devices", "4"],
    ],
)
def test_what_the_plan_states_is_not_stated_beside_it(
    stated: list[str], file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert stated[0] in refused(capsys, "simulate", "--plan", str(file), *stated)


def test_neither_a_model_nor_a_plan_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "simulate", "--dp", "2")
    assert "--model" in said
    assert "--plan" in said


def test_a_plan_that_is_not_there_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "missing.plan" in refused(capsys, "simulate", "--plan", str(tmp_path / "missing.plan"))


def test_processes_execute_the_plan_that_is_read(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch", reason="needs PyTorch: .[torch]")
    found = answer(capsys, "execute", "--plan", str(file))
    assert found["passed"]
    assert found["processes"] == 4
