"""Workers: who they are, that they show to be alive, and how one notices that one is not."""

from __future__ import annotations

import os
import random
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune.processes import LINUX

SILENCE_SECONDS = 60.0
"""How long a worker may be silent before it counts as dead."""
STOPPING_SECONDS = 1.0
"""How long a sign of life that is being given is waited for."""
BEATS = 6
"""Signs of life in that time."""


def this_worker() -> dict[str, Any]:
    """This process, as plain JSON values: enough to look whether it is there, on its machine."""
    pid = os.getpid()
    return {
        "host": socket.gethostname(),
        "machine": _machine(),
        "pid": pid,
        "began": _beginning(pid),
    }


def _machine() -> str:
    """What tells this machine, since it was booted, from others, and a container from its
    neighbours."""
    if not LINUX:
        return socket.gethostname()
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return socket.gethostname()


def _beginning(pid: int) -> str | None:
    """When a process began, in the kernel's own count, which tells it from a later one with its
    number; None where there is no such process. Elsewhere than on Linux, only whether it is there.
    """
    if not LINUX:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return None
        except PermissionError:
            return "there"  # and belongs to somebody else
        return "there"
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    state, *values = stat.rpartition(")")[2].split()
    return None if state in ("Z", "X") else values[18]


def is_of_this_machine(worker: dict[str, Any]) -> bool:
    """Whether a worker runs, or ran, where this process does."""
    return worker.get("machine") == _machine()


def is_gone(worker: dict[str, Any]) -> bool:
    """Whether a worker of this very machine has ended; False if it cannot be known from here."""
    if not is_of_this_machine(worker):
        return False
    return _beginning(int(worker["pid"])) != worker.get("began")


def own_seed(seed: int) -> int:
    """A seed for a worker that helps: other workers of the study draw otherwise."""
    return random.Random(f"{seed} {this_worker()} {os.urandom(8).hex()}").randrange(2**31)


@dataclass(slots=True)
class Watch:
    """Tells workers that are silent from workers that live.

    Clocks of machines may differ, so what counts is how long a sign of life has not changed since
    it was first seen here. Where the sign's own time is long past as well, two beats without a
    new one are enough.
    """

    silence_seconds: float = SILENCE_SECONDS
    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    _seen: dict[int, tuple[float, float]] = field(default_factory=dict[int, tuple[float, float]])

    def is_silent(self, key: int, sign: float) -> bool:
        """Whether the worker at attempt `key`, whose last sign of life is of the time `sign`,
        counts as dead."""
        now = self.clock()
        known, since = self._seen.get(key, (None, now))
        if known != sign:
            self._seen[key] = (sign, now)
            return False
        quiet = now - since
        long_past = self.wall() - sign > self.silence_seconds
        return quiet >= (2 * self.silence_seconds / BEATS if long_past else self.silence_seconds)


class Heart:
    """Gives a sign of life again and again, from a thread of its own, while a trial goes on."""

    def __init__(self, beat: Callable[[], None], seconds: float):
        self._beat, self._seconds = beat, seconds
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(self._seconds):
            try:
                self._beat()
            except Exception:  # noqa: BLE001  the storage is away: the trial goes on, others judge
                continue

    def stop(self) -> None:
        """No further sign."""
        self._ended.set()
        self._thread.join(STOPPING_SECONDS)
