"""Trials with a time limit, in a process of their own that can be killed.

A thread cannot be stopped and a signal does not interrupt a call that hangs in C, so a limited
trial runs in a forked *worker*, in its own process group: killing it also ends what it started (a
training job, say). Workers are forked by a *nursery*, itself forked before the study opens its
tracker, so that no worker inherits a database connection or the locks of a running thread. A worker
serves trial after trial, keeping its caches, until it dies; then the nursery forks the next.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from types import TracebackType
from typing import NoReturn

from autotune.objectives.evaluation import Evaluation
from autotune.objectives.objective import Objective
from distir.errors import DistirError
from distir.strategy import Strategy

STUDY_IS_OVER = 70
"""Exit status of a worker whose pipe was closed by the study."""


class IsolatedObjective:
    """Measures strategies in a worker process; one that takes longer than `timeout_seconds` is
    killed.
    """

    def __init__(self, objective: Objective, timeout_seconds: float):
        if not hasattr(os, "fork"):
            raise DistirError(
                "a time limit per trial needs an operating system that can fork processes"
            )
        if not timeout_seconds > 0:
            raise DistirError(
                f"the time limit per trial is {timeout_seconds} s; expected more than 0"
            )
        self.timeout_seconds = timeout_seconds
        self._objective = objective
        self._pipe, far_end = multiprocessing.Pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self._nursery_pid = _fork()
        if self._nursery_pid == 0:
            self._pipe.close()
            _run_and_exit(lambda: _nursery(objective, far_end))
        far_end.close()
        self._worker_pid = self._await_worker()

    def measure(self, strategy: Strategy) -> Evaluation:
        """The evaluation of `strategy`, failed if it took too long or its process died."""
        self._pipe.send(strategy.to_dict())
        if not self._pipe.poll(self.timeout_seconds):
            self._replace_worker()
            return Evaluation.failure(f"took longer than {self.timeout_seconds:g} s")
        answer = self._pipe.recv()
        if isinstance(answer, Evaluation):
            return answer
        self._worker_pid = answer  # the nursery has already replaced a worker that died
        return Evaluation.failure("the objective's process died")

    def _replace_worker(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._worker_pid, signal.SIGKILL)
        self._worker_pid = self._await_worker()

    def _await_worker(self) -> int:
        while True:  # a late answer of the worker that was killed may come first
            message = self._pipe.recv()
            if not isinstance(message, Evaluation):
                return message

    def close(self) -> None:
        """Ends worker and nursery."""
        self._pipe.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._worker_pid, signal.SIGKILL)
        for _ in range(100):
            if os.waitpid(self._nursery_pid, os.WNOHANG)[0]:
                return
            time.sleep(0.01)
        os.kill(self._nursery_pid, signal.SIGKILL)
        os.waitpid(self._nursery_pid, 0)

    def __enter__(self) -> IsolatedObjective:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _fork() -> int:
    with warnings.catch_warnings():
        # Python warns of any thread at all; those of a BLAS library handle forks themselves.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _run_and_exit(work: Callable[[], None]) -> NoReturn:
    """Runs `work` in a forked process, which then ends without the cleanup of its parent."""
    status = 1
    try:
        work()
        status = 0
    except (EOFError, OSError):
        status = STUDY_IS_OVER
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _nursery(objective: Objective, pipe: Connection) -> None:
    """Forks a worker, waits for its death and forks the next, until the study is over."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the study decides what an interrupt means
    status = 0
    while status != STUDY_IS_OVER:
        worker_pid = _fork()
        if worker_pid == 0:
            _run_and_exit(lambda: _serve(objective, pipe))
        status = os.waitstatus_to_exitcode(os.waitpid(worker_pid, 0)[1])


def _serve(objective: Objective, pipe: Connection) -> None:
    os.setpgid(0, 0)
    pipe.send(os.getpid())
    while True:
        evaluation = objective.measure(Strategy.from_dict(pipe.recv()))
        pipe.send(replace(evaluation, metrics=dict(evaluation.metrics)))
