"""The processes in which plug-ins measure: a guardian, and the worker that it guards.

The guardian is forked by the study, runs none of the plug-in's code, and ends when the study does,
however that ends. It forks the worker, which serves trial after trial and so keeps its caches, and
tells the study when and how a worker ended. With a worker ends all that it started: a training job,
a process in a session of its own. What the worker leaves behind becomes a child of the guardian
(on Linux), so that nothing escapes.

Between study and worker is a socket of their own, new for every worker. The worker is sent
`(number, strategy)`; it answers in JSON, because what a plug-in made must not be unpickled by the
study. An answer names its trial, so that more can be said of one than its evaluation.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
import traceback
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import send_handle
from typing import Any, NoReturn, cast

from autotune.objectives.captured import Captured
from autotune.objectives.evaluation import Evaluation, traceback_of
from autotune.objectives.objective import Objective
from autotune.processes import adopt_orphans, end_descendants, end_with_parent, forked, reap
from distir.strategy import Strategy
from distir.user_code import one_line

LOOKS_SECONDS = 1.0
"""How often the guardian looks whether the study is still there."""
GRACE_SECONDS = 0.2
"""How long a worker whose socket is closed has to end by itself."""
MOST_BYTES = 1 << 20
"""Longest answer: some ten thousand metrics."""


def guard(objective: Objective, printed: Captured, study: Connection, study_pid: int) -> NoReturn:
    """Forks workers and ends them as the study says, until there is no study. Called in a process
    that was forked for it."""
    try:
        _Guardian(objective, printed, study, study_pid).run()
    except BaseException:  # noqa: BLE001  a slip of ours, which nobody else would show
        traceback.print_exc()
    finally:
        os._exit(0)


class _Guardian:
    """`start` begins a worker, `kill` and `end` kill it, the latter after a moment in which it may
    end by itself. Of every worker is told once how it ended: its exit code, None if it was killed
    here. The study's word `quit` is the last."""

    def __init__(self, objective: Objective, printed: Captured, study: Connection, study_pid: int):
        self._objective, self._printed = objective, printed
        self._study, self._study_pid = study, study_pid
        self._worker: int | None = None
        os.setsid()  # signals to the group of the study are the study's business
        adopt_orphans()
        for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(ignored, signal.SIG_IGN)
        self._deaths, wakes = os.pipe()
        os.set_blocking(self._deaths, False)
        os.set_blocking(wakes, False)
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)

    def run(self) -> None:
        try:
            while os.getppid() == self._study_pid:
                ready = wait([self._study, self._deaths], LOOKS_SECONDS)
                self._notice_deaths()
                if self._study in ready and not self._obeys(self._study.recv()):
                    return
        except (EOFError, OSError):
            pass  # the study has ended
        finally:
            self._kill()

    def _obeys(self, command: str) -> bool:
        if command == "start":
            self._start()
        elif command != "quit" and self._worker is not None:
            self._end(GRACE_SECONDS if command == "end" else 0.0)
        return command != "quit"

    def _start(self) -> None:
        theirs, ours = Pipe()
        guardian = os.getpid()
        try:
            self._worker = forked()
        except OSError as error:
            self._study.send(str(error))
            return
        if self._worker == 0:
            theirs.close()
            self._study.close()
            _work(self._objective, self._printed, ours, guardian)
        ours.close()
        self._study.send(self._worker)
        send_handle(self._study, theirs.fileno(), self._study_pid)
        theirs.close()

    def _notice_deaths(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._deaths, 4096)
        self._look()

    def _look(self) -> None:
        """Reaps who has ended; tells of the worker, and ends what it left behind."""
        ended = reap()
        if self._worker in ended:
            code = ended[self._worker]
            self._kill()
            self._study.send(code)

    def _end(self, grace_seconds: float) -> None:
        deadline = time.monotonic() + grace_seconds
        while time.monotonic() < deadline:
            self._look()
            if self._worker is None:
                return
            time.sleep(0.01)
        self._kill()
        self._study.send(None)

    def _kill(self) -> None:
        """Ends the worker and all that it started."""
        end_descendants()
        if self._worker is not None:  # orphans of its group, where nobody adopts them
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._worker, signal.SIGKILL)
        self._worker = None


def _work(objective: Objective, printed: Captured, study: Connection, guardian: int) -> NoReturn:
    """Measures for the study, in the worker. It never ends by itself: an exit is the plug-in's."""
    try:
        _prepare(guardian)
        printed.direct()
        channel = _Channel(study)
        while True:
            number, chosen = channel.next()
            if objective.reporting is not None:
                objective.reporting.listener = partial(channel.report, number)
            channel.answer({"trial": number, **_measured(objective, Strategy.from_dict(chosen))})
    finally:
        while True:
            with contextlib.suppress(BaseException):
                time.sleep(60)  # the guardian ends it


def _prepare(guardian: int) -> None:
    """Makes a forked process one where any code can run."""
    signal.set_wakeup_fd(-1)
    for usual in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(usual, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.setpgid(0, 0)
    end_with_parent(guardian)
    nothing = os.open(os.devnull, os.O_RDONLY)  # who reads a terminal here would wait for ever
    os.dup2(nothing, 0)
    os.close(nothing)
    sys.stdin = os.fdopen(0, closefd=False)


class _Channel:
    """The worker's end of its socket. A plug-in may close it, put a file in its place, or fork."""

    def __init__(self, socket: Connection):
        self._socket = socket
        self._process, self._socket_id = os.getpid(), _identity(socket.fileno())

    def next(self) -> tuple[int, dict[str, Any]]:
        return self._socket.recv()

    def report(self, number: int, step: int, value: float) -> bool:
        """Tells a value on the way; whether the trial is to end."""
        self.answer({"trial": number, "step": step, "value": value})
        return bool(self._socket.recv())

    def answer(self, message: dict[str, Any]) -> None:
        if os.getpid() != self._process:  # a child of the plug-in came back from it
            os._exit(0)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(BaseException):
                stream.flush()
        data = json.dumps(message).encode()
        if len(data) > MOST_BYTES:
            long = f"the objective's answer takes {len(data):,} bytes; expected {MOST_BYTES:,}"
            data = json.dumps({"trial": message["trial"], **_plain(Evaluation.failure(long))})
            data = data.encode()
        if _identity(self._socket.fileno()) != self._socket_id:
            raise OSError("the socket was replaced")
        self._socket.send_bytes(data)


def _identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def _measured(objective: Objective, strategy: Strategy) -> dict[str, Any]:
    """An evaluation as plain values, whatever the objective does short of ending the process."""
    try:
        return _plain(objective.measure(strategy))
    except BaseException as error:  # noqa: BLE001  KeyboardInterrupt, too: it is the objective's
        return _plain(Evaluation.failure(one_line(error), {"traceback": traceback_of(error)}))


def _plain(evaluation: Evaluation) -> dict[str, Any]:
    return {
        "metrics": dict(evaluation.metrics),
        "feasible": evaluation.feasible,
        "reason": evaluation.reason,
        "violation": evaluation.violation,
        "failed": evaluation.failed,
        "pruned": evaluation.pruned,
        "output": dict(evaluation.output),
    }


def evaluation_from(message: dict[str, Any]) -> Evaluation:
    """What a worker answered."""
    return Evaluation(
        cast("dict[str, float]", message["metrics"]),
        message["feasible"],
        message["reason"],
        message["violation"],
        failed=message["failed"],
        pruned=message["pruned"],
        output=cast("dict[str, str]", message["output"]),
    )
