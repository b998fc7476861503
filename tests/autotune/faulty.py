"""Objectives that raise, die, hang, lie or change what they are given, most where `tp` is 2.

What hangs does so for longer than any test waits; what starts processes writes their numbers to the
folder that `$FAULTY_FOLDER` names.
"""

from __future__ import annotations

import ctypes
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from distir.strategy import Strategy

LONG = 1000.0


def cost(strategy: Strategy) -> float:
    """What an objective says where nothing is wrong: the least is at the largest `dp`."""
    return 1.0 / strategy.dp + 0.001 * strategy.microbatches


@dataclass(frozen=True)
class Fault:
    """An objective, and what its trials are expected to be."""

    function: Callable[[Strategy], Any]
    reason: str = ""
    """Of the trials that fail; nothing fails where it is empty."""
    fails: tuple[int, ...] = (2,)
    """Values of `tp` at which trials fail."""
    hangs: bool = False
    """Whether trials that fail do so because they never end: `reason` is for other failures."""
    cost: Callable[[Strategy], float] = cost


class _Kin(BaseException):
    pass


class _MuteError(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


class _Shapeless:
    def __repr__(self) -> str:
        raise ValueError("no text either")


def _raising(error: BaseException) -> None:
    raise error


def _at_two(act: Callable[[], Any]) -> Callable[[Strategy], Any]:
    """An objective that does something else where `tp` is 2."""

    def objective(strategy: Strategy) -> Any:
        return act() if strategy.tp == 2 else cost(strategy)

    return objective


def _first(act: Callable[[], object]) -> Callable[[Strategy], Any]:
    """An objective that does something before it gives its number."""

    def objective(strategy: Strategy) -> Any:
        act()
        return cost(strategy)

    return objective


def _deaf_and_busy() -> None:
    for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    while True:
        pass


def _noted(process: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
    (Path(os.environ["FAULTY_FOLDER"]) / str(process.pid)).touch()
    return process


def _start_child(*, new_session: bool = False) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", f"import time; time.sleep({LONG})"]
    return _noted(subprocess.Popen(command, start_new_session=new_session))


def _daemon() -> None:
    """Two forks, a session of its own: nobody's child."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            (Path(os.environ["FAULTY_FOLDER"]) / str(os.getpid())).touch()
            time.sleep(LONG)
        os._exit(0)
    os.wait()


def _fork_and_return() -> float:
    return 5.0 if os.fork() == 0 else 0.75


def _own_session() -> None:
    if os.getpid() == os.getpgrp():
        if os.fork() > 0:
            time.sleep(LONG)
        os.setsid()
    (Path(os.environ["FAULTY_FOLDER"]) / str(os.getpid())).touch()
    time.sleep(LONG)


def _print_garbage() -> None:
    sys.stdout.write("\x1b[2J garbage \x00\xff" * 200)
    sys.stderr.write("and more\n")
    os.write(1, b"\xff\xfe raw bytes\n")


def _replace_descriptors(folder: str = os.devnull) -> None:
    for descriptor in range(3, 64):
        other = os.open(folder, os.O_RDWR)
        if other != descriptor:
            os.dup2(other, descriptor)


def _kill_parent() -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(LONG)


def _deep(number: int) -> int:
    return _deep(number + 1)


def _mutates(strategy: Strategy) -> float:
    found = cost(strategy)
    object.__setattr__(strategy, "dp", 99)
    return found


_kept: list[bytearray] = []

_EXITED = "the objective's process ended with exit code"
_KILLED = "the objective's process was killed by"
_CLOSED = "the objective closed the descriptors of its process"
_WANTED = "expected a number, a dict of numbers or an Evaluation"

FAULTS = {
    "raises": Fault(_at_two(lambda: _raising(RuntimeError("boom\nat two"))), "Runt.*: boom at two"),
    "hangs": Fault(_at_two(lambda: time.sleep(LONG)), hangs=True),
    "hangs-and-ignores-signals": Fault(_at_two(_deaf_and_busy), hangs=True),
    "segfault": Fault(_at_two(lambda: ctypes.string_at(0)), f"{_KILLED} SIG(SEGV|BUS)"),
    "kills-itself": Fault(_at_two(lambda: os.kill(os.getpid(), 9)), f"{_KILLED} SIGKILL"),
    "aborts": Fault(_at_two(os.abort), f"{_KILLED} SIGABRT"),
    "kills-its-parent": Fault(_at_two(_kill_parent), "the process that guards .* was killed"),
    "exits": Fault(_at_two(lambda: sys.exit(3)), "SystemExit: 3"),
    **{
        f"exits-with-{code}": Fault(_at_two(lambda code=code: os._exit(code)), f"{_EXITED} {code}")
        for code in (0, 1, 2, 70, 130)
    },
    "keyboard-interrupt": Fault(_at_two(lambda: _raising(KeyboardInterrupt())), "KeyboardInt"),
    "generator-exit": Fault(_at_two(lambda: _raising(GeneratorExit())), "GeneratorExit"),
    "base-exception": Fault(_at_two(lambda: _raising(_Kin("base"))), "_Kin: base"),
    "stop-iteration": Fault(_at_two(lambda: _raising(StopIteration())), "StopIteration"),
    "eof": Fault(_at_two(lambda: _raising(EOFError("of my job"))), "EOFError: of my job"),
    "mute-error": Fault(
        _at_two(lambda: _raising(_MuteError())), "_MuteError: .it has no message: ValueErr"
    ),
    "shapeless-value": Fault(
        _at_two(_Shapeless), f"_Shapeless .which cannot be shown: V.*{_WANTED}"
    ),
    "long-message": Fault(
        _at_two(lambda: _raising(RuntimeError("x" * 10_000_000))), "x+ … 9,9.* characters … x+$"
    ),
    "leaks": Fault(_first(lambda: _kept.append(bytearray(20_000_000)))),
    "prints-garbage": Fault(_first(_print_garbage)),
    "no-numbers": Fault(
        lambda s: {1: cost(s), 2: math.nan, 4: -math.inf}[s.tp], "returned (nan|-inf)", (2, 4)
    ),
    "text": Fault(_at_two(lambda: "fast"), f"returned str 'fast'; {_WANTED}"),
    "numeral": Fault(lambda strategy: "1.0", f"returned str '1.0'; {_WANTED}", (1, 2, 4)),
    "nothing": Fault(_at_two(lambda: None), f"returned NoneType None; {_WANTED}"),
    "truth": Fault(lambda s: s.tp == 2, cost=lambda s: float(s.tp == 2)),
    "complex": Fault(lambda strategy: 1j, f"returned complex 1j; {_WANTED}", (1, 2, 4)),
    "huge-whole-number": Fault(_at_two(lambda: 10**400), "OverflowError"),
    "longer-than-can-be-shown": Fault(_at_two(lambda: {"value": 10**5000}), "OverflowError"),
    "numpy-number": Fault(lambda s: np.float32(cost(s)), cost=lambda s: float(np.float32(cost(s)))),
    "array": Fault(_at_two(lambda: np.array([1.0])), f"returned ndarray array.*; {_WANTED}"),
    "empty": Fault(lambda strategy: {}, "gave no metric", (1, 2, 4)),
    "other-names": Fault(
        lambda s: {"b": 2.0} if s.tp == 2 else {"value": cost(s)},
        "gave no metric 'value'; it gave b",
    ),
    "too-many-numbers": Fault(
        _at_two(lambda: {f"metric {n}": float(n) for n in range(50_000)}), "answer takes .* bytes"
    ),
    "mutates": Fault(_mutates),
    "thread": Fault(_first(lambda: threading.Thread(target=time.sleep, args=(LONG,)).start())),
    "children": Fault(_first(_start_child)),
    "daemon": Fault(_first(_daemon)),
    "child-in-a-session": Fault(_at_two(lambda: _start_child(new_session=True).wait()), hangs=True),
    "waits-for-a-child": Fault(_at_two(lambda: _start_child().wait()), hangs=True),
    "closes-descriptors": Fault(_at_two(lambda: os.closerange(3, 4096)), _CLOSED),
    "replaces-descriptors": Fault(_at_two(_replace_descriptors), _CLOSED),
    "closes-output": Fault(_first(lambda: os.closerange(1, 3))),
    "forks": Fault(_at_two(_fork_and_return), cost=lambda s: 0.75 if s.tp == 2 else cost(s)),
    "moves": Fault(_first(lambda: os.chdir("/"))),
    "reads-input": Fault(lambda s: float(len(sys.stdin.read())), cost=lambda s: 0.0),
    "recursion": Fault(_at_two(lambda: _deep(0)), "RecursionError"),
    "no-memory": Fault(_at_two(lambda: bytearray(100 << 40)), "MemoryError"),
    "own-session": Fault(_at_two(_own_session), hangs=True),
    "slow": Fault(_first(lambda: time.sleep(0.02))),
    "nothing-wrong": Fault(cost),
}
