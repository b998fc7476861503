"""Trials in a process of their own, kept between trials: whatever a plug-in does, its trial fails
and the study goes on.

A thread cannot be stopped, a signal does not interrupt a call that hangs in C, and code that ends
its process, closes descriptors or changes its arguments does so to the whole study. So plug-ins,
and trials with a time limit, run in a worker that can be killed. `guardian.py` says who ends whom.
The guardian is forked before the study opens its tracker, so that no worker inherits a database
connection or the locks of a running thread.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import time
from dataclasses import dataclass, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import recv_handle
from types import TracebackType

from autotune.objectives.captured import Captured
from autotune.objectives.evaluation import Evaluation
from autotune.objectives.guardian import MOST_BYTES, evaluation_from, guard
from autotune.objectives.objective import Objective
from autotune.processes import ENDING_SECONDS, forked
from distir.errors import DistirError
from distir.strategy import Strategy

SHOWN_SECONDS = 0.2
"""How often what a trial prints is shown while it goes on."""


@dataclass(frozen=True, slots=True)
class _Worker:
    pid: int
    socket: Connection


class _GuardianEndedError(Exception):
    """Something killed it."""


class _NoWorkerError(Exception):
    """It could not be forked."""


class IsolatedObjective:
    """Measures strategies in a worker process. One that takes longer than `timeout_seconds`, if
    there is such a limit, is killed.
    """

    def __init__(self, objective: Objective, timeout_seconds: float | None = None):
        if not hasattr(os, "fork"):
            raise DistirError(
                "a time limit per trial needs an operating system that can fork processes"
            )
        if timeout_seconds is not None and not timeout_seconds > 0:
            raise DistirError(
                f"the time limit per trial is {timeout_seconds} s; expected more than 0"
            )
        self.timeout_seconds = timeout_seconds
        self._objective = objective
        self._worker: _Worker | None = None
        self._trials = 0
        self._printed = Captured()
        self._guard()

    def measure(self, strategy: Strategy) -> Evaluation:
        """The evaluation of `strategy`, failed if it took too long or its process died."""
        self._trials += 1
        self._printed.begin()
        evaluation = self._evaluated(strategy)
        self._printed.pass_on()
        return replace(evaluation, output={**evaluation.output, **self._printed.texts()})

    def _evaluated(self, strategy: Strategy) -> Evaluation:
        try:
            return self._answer(self._ready_worker(), strategy)
        except _NoWorkerError as error:
            return Evaluation.failure(f"a process for the objective cannot be started: {error}")
        except _GuardianEndedError:
            self._replace_guardian()
            return Evaluation.failure("the process that guards the objective's process was killed")

    def _guard(self) -> None:
        self._guardian, far_end = Pipe()
        study_pid = os.getpid()
        try:
            self._guardian_pid = forked()
        except OSError as error:
            raise DistirError(f"a process for the objective cannot be started: {error}") from error
        if self._guardian_pid == 0:
            self._guardian.close()
            guard(self._objective, self._printed, far_end, study_pid)
        far_end.close()

    def _ready_worker(self) -> _Worker:
        """The worker, or a new one if it ended after its last trial."""
        if self._worker is not None and not self._guardian.poll():
            return self._worker
        if self._worker is not None:
            self._code_of_ended()
        try:
            self._guardian.send("start")
            pid = self._guardian.recv()
            if isinstance(pid, str):
                raise _NoWorkerError(pid)
            self._worker = _Worker(pid, Connection(recv_handle(self._guardian)))
        except (EOFError, OSError) as error:
            raise _GuardianEndedError from error
        return self._worker

    def _answer(self, worker: _Worker, strategy: Strategy) -> Evaluation:
        limit = self.timeout_seconds
        deadline = None if limit is None else time.monotonic() + limit
        try:
            worker.socket.send((self._trials, strategy.to_dict()))
            while True:
                left = math.inf if deadline is None else max(0.0, deadline - time.monotonic())
                ready = wait([worker.socket, self._guardian], min(left, SHOWN_SECONDS))
                if not ready and left > 0:
                    self._printed.pass_on()
                    continue
                if not ready:
                    self._end_worker("kill")
                    return Evaluation.failure(f"took longer than {limit:g} s")
                if worker.socket not in ready:
                    return Evaluation.failure(_ending(self._code_of_ended()))
                message = json.loads(worker.socket.recv_bytes(2 * MOST_BYTES))
                if message["trial"] != self._trials:
                    continue
                if "step" not in message:
                    return evaluation_from(message)
                worker.socket.send(self._is_to_end(int(message["step"]), float(message["value"])))
        except (EOFError, OSError, ValueError):  # the socket is closed, or says what no worker says
            return Evaluation.failure(_ending(self._end_worker("end")))

    def _is_to_end(self, step: int, value: float) -> bool:
        reporting = self._objective.reporting
        return reporting is not None and reporting.listener(step, value)

    def _end_worker(self, command: str) -> int | None:
        with contextlib.suppress(OSError):
            self._guardian.send(command)
        return self._code_of_ended()

    def _code_of_ended(self) -> int | None:
        """How the worker ended, when it has; None if the guardian killed it."""
        try:
            code = self._guardian.recv()
        except (EOFError, OSError) as error:
            raise _GuardianEndedError from error
        if self._worker is not None:
            self._worker.socket.close()
        self._worker = None
        return code

    def _replace_guardian(self) -> None:
        if self._worker is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._worker.pid, signal.SIGKILL)
        self._end()
        self._guard()

    def close(self) -> None:
        """Ends the guardian, and with it the worker and all that it started."""
        self._end()
        self._printed.close()

    def _end(self) -> None:
        with contextlib.suppress(OSError):
            self._guardian.send("quit")
        self._guardian.close()
        if self._worker is not None:
            self._worker.socket.close()
            self._worker = None
        deadline = time.monotonic() + 2 * ENDING_SECONDS
        with contextlib.suppress(ChildProcessError):
            while not os.waitpid(self._guardian_pid, os.WNOHANG)[0]:
                if time.monotonic() > deadline:
                    os.kill(self._guardian_pid, signal.SIGKILL)
                time.sleep(0.002)

    def __enter__(self) -> IsolatedObjective:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _ending(code: int | None) -> str:
    """Why there is no answer of a worker that ended so."""
    if code is None:
        return "the objective closed the descriptors of its process, so that it could not answer"
    if code >= 0:
        return f"the objective's process ended with exit code {code} before it answered"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    memory = ", as when memory runs out" if code == -signal.SIGKILL else ""
    return f"the objective's process was killed by {name}{memory}"
