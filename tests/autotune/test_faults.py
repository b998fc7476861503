"""Whatever an objective does, its trial fails with a reason, the study goes on, its answer is
right, and nothing that it started is left."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from autotune import Problem, Search, Trial, solve
from autotune.processes import LINUX, descendants
from autotune.study.trial import best_of
from autotune.testing import ToySimulator, toy_problem
from distir.strategy import Strategy
from tests.autotune.faulty import FAULTS, Fault

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

LIMIT_SECONDS = 0.5
AMPLE_SECONDS = 60.0
"""Of objectives that end by themselves: a busy machine may need more than the limit."""


@pytest.fixture
def nothing_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fails if a process that a test started, or an objective in it, is there after it; elsewhere
    than on Linux, detached ones may be."""
    monkeypatch.setenv("FAULTY_FOLDER", str(tmp_path))
    before = set(descendants(os.getpid()))
    yield
    if not LINUX:
        return
    started = {int(file.name) for file in tmp_path.iterdir() if file.name.isdigit()}
    deadline = time.monotonic() + 5
    while left := [pid for pid in started if alive(pid)]:
        assert time.monotonic() < deadline, f"still there: {left}"
        time.sleep(0.02)
    assert set(descendants(os.getpid())) <= before


def alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def small_problem() -> Problem:
    """Six strategies: `tp` 1, 2 and 4, with one and two microbatches."""
    problem = toy_problem(ToySimulator(devices=4))
    return replace(problem, space=problem.space.restricted(pp=(1,), microbatches=(1, 2)))


def expected(fault: Fault, strategy: Strategy, limit: float | None) -> float | str:
    """The cost of a strategy, or what the reason of its failure matches."""
    if strategy.tp not in fault.fails or not (fault.reason or fault.hangs):
        return fault.cost(strategy)
    return f"took longer than {limit:g} s" if fault.hangs and limit else fault.reason


def interrupting_at(trials: int | None) -> Callable[[Trial], None]:
    """Interrupts this process a moment after so many trials, as a user does who sees it hang."""

    def watch(trial: Trial) -> None:
        if trial.number + 1 == trials:
            interrupt = lambda: os.kill(os.getpid(), signal.SIGINT)  # noqa: E731
            threading.Timer(0.3, interrupt).start()

    return watch


@pytest.mark.slow(seconds=0.3)
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("limit", [None, LIMIT_SECONDS], ids=["unlimited", "limited"])
@pytest.mark.parametrize("name", FAULTS)
def test_no_objective_ends_a_study_or_changes_its_answer(
    name: str, limit: float | None, capfd: pytest.CaptureFixture[str]
) -> None:
    fault, problem, here = FAULTS[name], small_problem(), Path.cwd()
    strategies = list(problem.space.enumerate())
    before = next(at for at, each in enumerate(strategies) if each.tp == 2)
    stuck = fault.hangs and limit is None
    if limit is not None and not fault.hangs:
        limit = AMPLE_SECONDS
    search = Search(objective=fault.function, sampler="grid", trial_timeout=limit, metric="value")
    result = solve(problem, search, on_trial=interrupting_at(before if stuck else None))

    assert result.interrupted == stuck
    assert [trial.strategy for trial in result.trials] == strategies[: before if stuck else None]
    for trial in result.trials:
        wanted = expected(fault, trial.strategy, limit)
        if isinstance(wanted, str):
            assert trial.failed
            assert re.search(wanted, str(trial.evaluation.reason)), trial.evaluation.reason
        else:
            assert trial.evaluation.metrics["value"] == wanted, trial.evaluation.reason
    assert result.best is best_of(result.trials)
    assert Path.cwd() == here
    assert str(result)
