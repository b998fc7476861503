"""However a search ends, what was found is told and recorded, and no process is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.cli import main
from autotune.exhaustive.certificate import Certificate
from autotune.exhaustive.certified import certify

LINUX = sys.platform.startswith("linux")
pytestmark = [
    pytest.mark.slow(seconds=6),
    pytest.mark.skipif(not LINUX, reason="reads the environment of all processes in /proc"),
]

OBJECTIVE = """
import os, subprocess, sys, time
from pathlib import Path

def cost(strategy):
    folder = Path(os.environ["ENDINGS_FOLDER"])
    number = len(list(folder.glob("trial-*")))
    (folder / f"trial-{number}-{os.getpid()}").touch()
    if number >= 2:
        command = [sys.executable, "-c", "import time; time.sleep(1000)"]
        subprocess.Popen(command, start_new_session=True)
        (folder / f"stuck-{os.getpid()}").touch()
        time.sleep(1000)
    return 1.0 / strategy.dp

def wastes_time(strategy, simulate):
    (Path(os.environ["ENDINGS_FOLDER"]) / f"stuck-{os.getpid()}").touch()
    time.sleep(0.01)
    return simulate(strategy)
"""

PROBLEM = ("--model", "mlp-2x8", "--devices", "4", "--batch-size", "16")
WAYS = {
    "run": ("run", "--no-tracking"),
    "limited": ("run", "--no-tracking", "--trial-timeout", "500"),
    "grid": ("grid",),
    "jobs": ("grid", "--jobs", "2"),
    "limited-jobs": ("grid", "--jobs", "2", "--trial-timeout", "500"),
    "dask": ("grid", "--jobs", "2", "--backend", "dask"),
}


class Started:
    """An `autotune` that searches with an objective, and all that comes of it."""

    def __init__(self, folder: Path, *options: str, objective: str = "cost"):
        self._folder = folder
        (folder / "objective.py").write_text(OBJECTIVE, encoding="utf-8")
        self.json = folder / "found.json"
        named = ("--objective", f"objective.py:{objective}", "--json", str(self.json))
        command = [sys.executable, "-m", "autotune", *options, *PROBLEM, *named]
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, "ENDINGS_FOLDER": str(folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def await_stuck(self, count: int = 1) -> None:
        """Waits until so many workers are in a trial that never ends."""
        deadline = time.monotonic() + 60
        while len(list(self._folder.glob("stuck-*"))) < count:
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        time.sleep(0.2)

    def left(self) -> list[str]:
        """The command lines of processes that descend from it, dead parents or not."""
        mark = f"ENDINGS_FOLDER={self._folder}".encode()
        found: list[str] = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (folder / "environ").read_bytes().split(b"\0"):
                    said = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
                    found.append(f"{folder.name}: {said.decode()}")
            except OSError:
                continue
        return found

    def assert_nothing_is_left(self) -> None:
        deadline = time.monotonic() + 10
        while left := self.left():
            assert time.monotonic() < deadline, left
            time.sleep(0.05)

    def found(self) -> Any:
        return json.loads(self.json.read_text(encoding="utf-8"))


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    for entry in Path("/proc").glob("[0-9]*"):  # a failed test must not leave any either
        try:
            if str(tmp_path).encode() in (entry / "environ").read_bytes():
                os.kill(int(entry.name), signal.SIGKILL)
        except OSError:
            continue


def is_dask_missing(way: str) -> bool:
    if way != "dask":
        return False
    try:
        import distributed  # pyright: ignore  # noqa: F401, PGH003
    except ImportError:
        return True
    return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("way", WAYS)
def test_an_interrupted_search_reports_and_exits_with_130(
    folder: Path, way: str, number: signal.Signals
) -> None:
    if is_dask_missing(way):
        pytest.skip("distributed is not installed")
    started = Started(folder, *WAYS[way])
    started.await_stuck()
    started.process.send_signal(number)
    said, errors = started.process.communicate(timeout=30)
    assert started.process.returncode == 130, errors
    assert "Traceback" not in errors
    assert "nterrupted" in said
    assert "Nothing fits" not in said
    found = started.found()
    assert found["interrupted"] is True
    if "grid" not in WAYS[way]:
        assert [trial["feasible"] for trial in found["trials"]] == [True, True]
        assert found["best"] is not None
    started.assert_nothing_is_left()


def test_what_an_interrupted_search_found_is_recorded(folder: Path) -> None:
    from mlflow import MlflowClient

    uri = f"sqlite:///{folder}/mlflow.db"
    started = Started(folder, "run", "--tracking-uri", uri)
    started.await_stuck()
    started.process.terminate()
    _, errors = started.process.communicate(timeout=120)
    assert started.process.returncode == 130, errors
    client: Any = MlflowClient(uri)
    study = client.get_run(started.found()["mlflow"]["run_id"])
    assert study.info.status == "KILLED"
    trials = client.search_runs([study.info.experiment_id], "tags.kind = 'trial'")
    assert [run.info.status for run in trials] == ["FINISHED", "FINISHED"]
    started.assert_nothing_is_left()


@pytest.mark.parametrize("way", WAYS)
def test_no_process_outlives_a_search_that_is_killed(folder: Path, way: str) -> None:
    if is_dask_missing(way):
        pytest.skip("distributed is not installed")
    started = Started(folder, *WAYS[way])
    started.await_stuck()
    started.process.kill()
    started.process.communicate(timeout=30)
    started.assert_nothing_is_left()


LOOKS: dict[str, tuple[str, list[str]]] = {
    "scale": (
        "autotune.questions.scale.certify",
        ["scale", "--model", "mlp-4x64", "--batch-size", "64", "--devices", "2,4"],
    ),
    "fit": (
        "autotune.questions.fit.certify",
        ["run", "--model", "mlp-4x64", "--devices", "4", "--fit", "devices"],
    ),
    "outside": (
        "autotune.exhaustive.outside.certify",
        ["run", "--model", "mlp-4x64", "--devices", "4", "--no-tracking"],
    ),
}


@pytest.mark.parametrize("what", LOOKS)
def test_an_interrupted_proof_ends_what_it_is_a_part_of(
    what: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says nothing of what was not looked at."""
    name, arguments = LOOKS[what]

    def interrupted(*positional: Any, **named: Any) -> Certificate:
        found = certify(*positional, **named)
        return replace(found, ranked=(), complete=False, interrupted=True)

    monkeypatch.setattr(name, interrupted)
    assert main([*arguments, "--space", "small"]) == 130
    said = capsys.readouterr().out
    assert "othing fits" not in said
    assert "strategies in the space full" not in said
