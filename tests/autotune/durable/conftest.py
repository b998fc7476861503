"""Searches on storages, as processes that can be killed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.autotune.durable.servers import USER, Server, programs

OBJECTIVE = """
import os, time
from pathlib import Path

def cost(strategy, simulate):
    folder = Path(os.environ["DURABLE_FOLDER"])
    with open(folder / "begun", "a") as file:
        file.write(strategy.label + "\\n")
    time.sleep(float(os.environ.get("DURABLE_SECONDS", "0")))
    return simulate(strategy).metrics["iteration_seconds"]
"""
PROBLEM = ("--model", "mlp-2x8", "--devices", "4", "--batch-size", "16")


class Searches:
    """Starts searches in a folder, with an objective that writes down what it is asked."""

    def __init__(self, folder: Path):
        self.folder = folder
        (folder / "train.py").write_text(OBJECTIVE, encoding="utf-8")
        self.running: list[subprocess.Popen[str]] = []

    def start(self, *options: str, seconds: float = 0.0) -> subprocess.Popen[str]:
        """`autotune` with these options, each trial taking `seconds`."""
        told = {"DURABLE_FOLDER": str(self.folder), "DURABLE_SECONDS": str(seconds)}
        process = subprocess.Popen(
            [sys.executable, "-m", "autotune", *options],
            cwd=self.folder,
            env={**os.environ, **told},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.running.append(process)
        return process

    def json(self, *options: str, seconds: float = 0.0, status: int = 0) -> Any:
        """What such a search finds."""
        process = self.start(*options, "--json", "-", seconds=seconds)
        out, err = process.communicate(timeout=300)
        assert process.returncode == status, err
        return json.loads(out)

    def refused(self, *options: str) -> str:
        """The one line of a search that cannot begin."""
        process = self.start(*options, "--quiet")
        out, err = process.communicate(timeout=300)
        assert process.returncode == 2, err
        assert out == ""
        assert err.count("\n") == 1, err
        return err

    def begun(self) -> list[str]:
        """Labels of the strategies that were begun, in order."""
        file = self.folder / "begun"
        return file.read_text(encoding="utf-8").split() if file.exists() else []

    def killed_after(self, trials: int, *options: str, seconds: float) -> None:
        """Runs a search until so many trials more have begun, and kills it."""
        process = self.start(*options, seconds=seconds)
        there = len(self.begun())
        wait_until(lambda: len(self.begun()) >= there + trials or process.poll() is not None)
        process.send_signal(signal.SIGKILL)
        process.communicate()


def wait_until(happened: Callable[[], bool], seconds: float = 60.0) -> None:
    """Returns when something has happened."""
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, "it has not happened"
        time.sleep(0.02)


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Server]:
    pytest.importorskip("psycopg", reason="studies on PostgreSQL need psycopg")
    found = programs()
    if found is None:
        pytest.skip("there is no PostgreSQL here (Debian's package postgresql)")
    with tempfile.TemporaryDirectory(prefix="distir-postgresql-") as folder:
        if os.getuid() == 0:
            try:
                shutil.chown(folder, USER)
            except LookupError:
                pytest.skip(f"PostgreSQL does not run as root, and there is no user {USER}")
        server = Server(found, Path(folder))
        yield server
        server.stop()


@pytest.fixture
def searches(tmp_path: Path) -> Iterator[Searches]:
    found = Searches(tmp_path)
    yield found
    for process in found.running:
        process.kill()
        process.communicate()


def labels(found: Any) -> list[str]:
    """Strategies of the trials of a result, in words."""
    from distir.strategy import Strategy

    return [Strategy.from_dict(trial["strategy"]).label for trial in found["trials"]]
