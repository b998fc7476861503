"""Processes on this machine that work together and end together.

They are forked, so they begin with all that their parent knows. Whatever happens to one of them,
or to the parent, none is left: the parent kills the others, and the kernel kills all if the parent
dies.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NoReturn

from autotune.processes import end_with_parent, forked
from distir.errors import DistirError
from distir.user_code import one_line

NOTE_BYTES = 200
"""Longest text that says what a process waits for."""
LAST_LINES = 3
"""Lines of its output that are shown of a process that failed."""
MOST_PROCESSES = 256
"""Most processes that are started on one machine."""
MOST_WAITING_SHOWN = 8
"""Processes whose waiting a message tells."""


class ProcessError(DistirError):
    """Processes that work together did not come to an end: one failed, or all waited too long."""


@dataclass(frozen=True, slots=True)
class Member:
    """One of `processes` processes. `store` is where they meet, and `note` tells the parent what
    the process waits for."""

    process: int
    processes: int
    store: str
    note: Callable[[str], None]


@dataclass(slots=True)
class _Child:
    process: int
    pid: int
    answers: Connection
    output: Path
    answer: Any = None
    answered: bool = False


def run_together(
    processes: int,
    work: Callable[[Member], Any],
    deadline_seconds: float,
    *,
    one_core_each: bool = False,
) -> list[Any]:
    """The values that `work` returns in each of the processes. `one_core_each` keeps every process
    on a core of its own, where there are enough: whatever a process waits for, it goes on where its
    caches are, and none takes the core of another.

    Raises `ProcessError` if one fails, or if they have not ended after the deadline: then it says
    which waits for which. No process is left.
    """
    if processes > MOST_PROCESSES:
        raise ProcessError(
            f"{processes} devices need as many processes, but one machine may run at most "
            f"{MOST_PROCESSES}; try fewer devices"
        )
    with tempfile.TemporaryDirectory(prefix="distir-") as folder:
        team = _Team(processes, Path(folder), _cores(processes) if one_core_each else None)
        try:
            team.start(work)
            return team.answers(deadline_seconds)
        finally:
            team.end()


def _cores(processes: int) -> list[int] | None:
    """A core for each of so few processes; None if there are more, or the system cannot say."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    cores = sorted(os.sched_getaffinity(0))
    return cores[:processes] if processes <= len(cores) else None


@dataclass(slots=True)
class _Team:
    processes: int
    folder: Path
    cores: Sequence[int] | None
    notes: mmap.mmap = field(init=False)
    children: list[_Child] = field(default_factory=list[_Child])

    def __post_init__(self) -> None:
        self.notes = mmap.mmap(-1, NOTE_BYTES * self.processes)  # shared with forked processes

    def start(self, work: Callable[[Member], Any]) -> None:
        parent = os.getpid()
        for process in range(self.processes):
            theirs, ours = Pipe(duplex=False)
            output = self.folder / f"output-{process}"
            try:
                pid = forked()
            except OSError as error:
                ours.close()
                raise ProcessError(
                    f"only {process} of {self.processes} processes could be started: "
                    f"{error.strerror}; try fewer devices"
                ) from None
            if not pid:
                theirs.close()
                store = (self.folder / "store").as_uri()
                member = Member(process, self.processes, store, self._noting(process))
                core = None if self.cores is None else self.cores[process]
                _serve(work, member, ours, output, parent, core)
            ours.close()
            self.children.append(_Child(process, pid, theirs, output))

    def _noting(self, process: int) -> Callable[[str], None]:
        start = process * NOTE_BYTES

        def note(text: str) -> None:
            data = text.encode()[:NOTE_BYTES]
            self.notes[start : start + NOTE_BYTES] = data.ljust(NOTE_BYTES, b"\0")

        return note

    def answers(self, deadline_seconds: float) -> list[Any]:
        deadline = time.monotonic() + deadline_seconds
        while open_ones := [child for child in self.children if not child.answered]:
            left = deadline - time.monotonic()
            ready = wait([child.answers for child in open_ones], max(left, 0.0))
            if not ready:
                raise ProcessError(f"not finished after {deadline_seconds:g} s: {self._waiting()}")
            for child in open_ones:
                if child.answers in ready:
                    self._take(child)
        return [child.answer for child in self.children]

    def _take(self, child: _Child) -> None:
        try:
            failed, child.answer = pickle.loads(child.answers.recv_bytes())
        except EOFError:
            raise ProcessError(self._death(child)) from None
        child.answered = True
        if failed:
            raise ProcessError(self._first_failure(child))

    def _death(self, child: _Child) -> str:
        with contextlib.suppress(ChildProcessError):
            _, status = os.waitpid(child.pid, 0)
            child.pid = 0
            code = os.waitstatus_to_exitcode(status)
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited ({code})"
            return f"process {child.process} of {self.processes} {how}{_last_lines(child.output)}"
        return f"process {child.process} of {self.processes} ended"

    def _first_failure(self, child: _Child) -> str:
        return (
            f"process {child.process} of {self.processes} failed: {child.answer}"
            f"{_last_lines(child.output)}"
        )

    def _waiting(self) -> str:
        """Which process waits for what."""
        said: list[str] = []
        for child in self.children:
            start = child.process * NOTE_BYTES
            note = self.notes[start : start + NOTE_BYTES].rstrip(b"\0").decode(errors="replace")
            if not child.answered:
                said.append(f"process {child.process} {note or 'computes'}")
        more = len(said) - MOST_WAITING_SHOWN
        return "; ".join(said[:MOST_WAITING_SHOWN]) + (f"; and {more} more" if more > 0 else "")

    def end(self) -> None:
        """Kills all processes that are left, and takes leave of them."""
        for child in self.children:
            child.answers.close()
            if child.pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child.pid, signal.SIGKILL)
        for child in self.children:
            if child.pid:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(child.pid, 0)
        self.notes.close()


def _serve(
    work: Callable[[Member], Any],
    member: Member,
    answers: Connection,
    output: Path,
    parent: int,
    core: int | None,
) -> NoReturn:
    """Does the work of a process and ends it."""
    try:
        end_with_parent(parent)
        if core is not None:
            os.sched_setaffinity(0, {core})
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _write_to(output)
        try:
            answer = pickle.dumps((False, work(member)))
        except BaseException as error:  # noqa: BLE001  the parent tells it
            answer = pickle.dumps((True, one_line(error)))
        answers.send_bytes(answer)
    finally:
        os._exit(0)


def _write_to(output: Path) -> None:
    """Sends what this process prints to a file, and gives it nothing to read."""
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    for stream in (1, 2):
        os.dup2(file, stream)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", closefd=False, buffering=1)


def _last_lines(output: Path) -> str:
    try:
        lines = output.read_text(errors="replace").split("\n")
    except OSError:
        return ""
    last = [line.strip() for line in lines if line.strip()][-LAST_LINES:]
    return f": {' | '.join(last)}" if last else ""


__all__ = ["Member", "ProcessError", "run_together"]
