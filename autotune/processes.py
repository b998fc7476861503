"""Processes that do not outlive who started them.

A parent that is killed cannot end its children, so a child watches its parent, and who runs other
people's code gathers what that code starts: on Linux by the kernel's own means, elsewhere as far as
the table of processes tells.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Mapping
from pathlib import Path

LINUX = sys.platform.startswith("linux")
WATCH_SECONDS = 0.5
"""How often a parent is looked for where the kernel does not tell."""
ENDING_SECONDS = 5.0
"""How long processes that were killed are waited for."""

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PR_SET_CHILD_SUBREAPER = 36


def forked() -> int:
    """`os.fork()`, without a warning of threads: those of a BLAS library handle forks themselves,
    and no other has a lock that a child takes."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # there may be none
            stream.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def end_with_parent(parent: int) -> None:
    """Has the kernel kill this process when its parent, the process `parent`, ends; elsewhere than
    on Linux, a thread does."""
    if not LINUX:
        watch_parent(parent)
        return
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before
        os.kill(os.getpid(), signal.SIGKILL)


def watch_parent(parent: int) -> None:
    """Has a thread kill this process soon after its parent has ended, whichever thread of the
    parent started it."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(WATCH_SECONDS)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="parent-watcher", daemon=True).start()


def adopt_orphans() -> None:
    """Makes this process the parent of descendants whose own parent ends, whatever session they
    are in, where the kernel can do that."""
    if LINUX:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def end_descendants() -> None:
    """Kills all descendants of this process, also those that they start meanwhile."""
    deadline = time.monotonic() + ENDING_SECONDS
    while (left := descendants(os.getpid())) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        reap()
        time.sleep(0.001)


def reap() -> dict[int, int]:
    """Takes leave of children that have ended: their exit codes, minus the signal that killed
    them, by process."""
    ended: dict[int, int] = {}
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            ended[found[0]] = os.waitstatus_to_exitcode(found[1])
    return ended


def descendants(pid: int) -> list[int]:
    """Children of a process, their children, and so on."""
    children: dict[int, list[int]] = {}
    for child, parent in _parents().items():
        children.setdefault(parent, []).append(child)
    found = [pid]
    for each in found:  # grows meanwhile
        found.extend(children.get(each, ()))
    return found[1:]


def _parents() -> Mapping[int, int]:
    """The parent of every process that can be seen."""
    return _parents_in_proc() if LINUX else _parents_by_ps()


def _parents_in_proc() -> dict[int, int]:
    parents: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):  # it has ended
                stat = (folder / "stat").read_text(encoding="utf-8", errors="replace")
                parents[int(folder.name)] = int(stat.rpartition(")")[2].split()[1])
    return parents


def _parents_by_ps() -> dict[int, int]:
    listed = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=False
    )
    pairs = (line.split() for line in listed.stdout.splitlines())
    return {int(pid): int(parent) for pid, parent in pairs}
