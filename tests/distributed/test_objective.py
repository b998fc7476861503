"""`--objective measured`: trials on real processes, one at a time, whatever goes wrong in one."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autotune.cli import main
from autotune.distributed import measuring
from autotune.distributed.backend import torch_installed
from autotune.distributed.local import Member, run_together
from autotune.objectives import measured
from autotune.processes import descendants
from distir.strategy import Strategy

needs_torch = pytest.mark.skipif(not torch_installed(), reason="needs PyTorch: .[torch]")

MODEL = """
from distir import Builder, ops

def tiny(batch_size=1):
    builder = Builder("tiny")
    value = builder.input("x", (batch_size, 8))
    for layer in range(2):
        weight = builder.parameter(f"weight.{layer}", (8, 8))
        value = builder.add(ops.linalg.MatMul(), value, weight)
        value = builder.add(ops.activations.Relu(), value)
    return builder.build([value])
"""


@needs_torch
@pytest.mark.slow(seconds=1)
def test_a_search_finds_the_strategy_that_took_least(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "tiny.py"
    file.write_text(MODEL)
    options = ["--model", f"{file}:tiny", "--devices", "2", "--batch-size", "8"]
    search = ["--objective", "measured", "--trials", "3", "--sampler", "random", "--no-tracking"]
    assert main(["run", *options, *search, "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    seconds = [trial["metrics"]["measured_seconds"] for trial in found["trials"]]
    assert len(seconds) == 3
    assert found["best"]["metrics"]["measured_seconds"] == min(seconds) > 0


def trial(monkeypatch: pytest.MonkeyPatch, works: Callable[[Member], Any]) -> str | None:
    """The reason of a trial in which processes do something else than to measure."""
    pytest.importorskip("torch", reason="needs PyTorch: .[torch]")

    def measure(plan: object, steps: int, warmup: int, deadline_seconds: float) -> None:
        run_together(2, works, 0.5)

    monkeypatch.setattr(measuring, "measure_locally", measure)
    objective = measured.measured_objective(lambda strategy: strategy)  # type: ignore[arg-type]
    evaluation = objective.measure(Strategy())
    assert evaluation.failed
    assert not descendants(os.getpid())
    return evaluation.reason


def test_a_process_that_is_killed_is_a_failed_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    reason = trial(monkeypatch, lambda member: os.kill(os.getpid(), signal.SIGKILL))
    assert "was killed by SIGKILL" in str(reason)


def test_too_little_memory_is_a_failed_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    def work(member: Member) -> None:
        raise MemoryError("Unable to allocate 9 EiB")

    assert "Unable to allocate" in str(trial(monkeypatch, work))


def test_processes_that_wait_are_a_failed_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "not finished after" in str(trial(monkeypatch, lambda member: time.sleep(60)))


def test_trials_of_several_searches_are_measured_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("torch", reason="needs PyTorch: .[torch]")
    lock, log = tmp_path / "lock", tmp_path / "log"
    monkeypatch.setattr(measured, "LOCK", lock)

    def measure(plan: object, steps: int, warmup: int, deadline_seconds: float) -> None:
        with log.open("a") as file:
            file.write("begin\n")
        time.sleep(0.05)
        with log.open("a") as file:
            file.write("end\n")
        raise OSError("enough")

    monkeypatch.setattr(measuring, "measure_locally", measure)
    objective = measured.measured_objective(lambda strategy: strategy)  # type: ignore[arg-type]
    context = multiprocessing.get_context("fork")
    searches = [context.Process(target=objective.measure, args=(Strategy(),)) for _ in range(3)]
    for search in searches:
        search.start()
    for search in searches:
        search.join()
    assert log.read_text().split() == ["begin", "end"] * 3


def test_without_torch_a_search_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    options = ["--model", "gpt2-xs", "--devices", "2", "--objective", "measured", "--no-tracking"]
    assert main(["run", *options]) == 2
    assert "pip install" in capsys.readouterr().err
