"""Further workers on this machine: processes that do `autotune work`, and end with this one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

from autotune.durable.stated import MOVABLE, Kept, restored

ENDING_SECONDS = 10.0


class Helpers:
    """Processes that work on a study."""

    def __init__(self, processes: list[subprocess.Popen[bytes]]):
        self._processes = processes

    def wait(self) -> None:
        """Returns when all have ended: they see themselves when the study is at its end."""
        for process in self._processes:
            process.wait()

    def end(self) -> None:
        """Asks those that still work to give back what they are at, and waits a while for it."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                process.wait(ENDING_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def helped(kept: Kept | None, statement: Mapping[str, Any]) -> Generator[Helpers, None, None]:
    """Starts the workers beside this one that `kept` asks for. Raises `DistirError` if the study
    is about objects of this process, which no other has."""
    count = 0 if kept is None or kept.helping else kept.workers - 1
    if not count or kept is None:
        yield Helpers([])
        return
    places = restored(statement, {})
    command = [sys.executable, "-m", "autotune", "work", "--parent", str(os.getpid())]
    command += ["--storage", str(kept.storage), "--study", str(kept.study)]
    command += [f"--heartbeat={kept.heartbeat:g}", f"--retries={kept.retries}"]
    for name in MOVABLE:
        if isinstance(known := statement.get(name), Mapping) and "sha256" in known:
            command.append(f"--{name}={places[name]}")
    helpers = Helpers(
        [subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=2) for _ in range(count)]
    )
    try:
        yield helpers
    finally:
        helpers.end()
