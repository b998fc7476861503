"""A study survives whatever instant its process is killed at."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from autotune import Search, TuneResult, solve
from autotune.durable.attempts import entries_of
from autotune.durable.optuna_storage import StoredStudy
from autotune.durable.stated import Kept
from autotune.testing import toy_problem
from distir.strategy import Strategy

KILLS = 100
TRIALS = 60


def seconds(strategy: Strategy) -> float:
    time.sleep(0.002)
    return 1.0 / (strategy.dp + strategy.microbatches)


def searched(url: str, *, resume: bool) -> TuneResult:
    kept = Kept(storage=url, study="mine", resume=resume, retries=KILLS)
    return solve(toy_problem(), search(), kept=kept)


def search() -> Search:
    return Search(
        objective=seconds, trials=TRIALS, sampler="random", isolate=False, compare_grid=False
    )


def killed_at_some_instant(url: str, *, resume: bool, within: float) -> None:
    child = os.fork()
    if child == 0:
        try:
            searched(url, resume=resume)
        finally:
            os._exit(0)
    time.sleep(within)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def is_begun(url: str) -> bool:
    study = StoredStudy.find(url, "mine")
    return study is not None and "problem" in study.attributes()


def done(url: str) -> dict[Strategy, int]:
    """The number of the trial of every strategy that is done."""
    study = StoredStudy.find(url, "mine")
    if study is None:
        return {}
    study.over(toy_problem().space)
    entries = entries_of(study.attempts(), retries=KILLS)
    study.close()
    return {each.strategy: each.number for each in entries if each.evaluation is not None}


@pytest.mark.slow(seconds=60)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks the searches that it kills")
@pytest.mark.parametrize("kind", ["sqlite:///", "journal:"])
def test_a_hundred_kills_lose_nothing_and_double_nothing(kind: str, tmp_path: Path) -> None:
    url = f"{kind}{tmp_path / 'study'}"
    rng = random.Random(7)
    StoredStudy.create(f"{kind}{tmp_path / 'warm'}", "imports", [False]).close()
    known: dict[Strategy, int] = {}
    longest = 0.5
    for _ in range(KILLS):
        killed_at_some_instant(url, resume=is_begun(url), within=rng.uniform(0.02, longest))
        now = done(url)
        assert now.items() >= known.items()
        if not now:
            longest *= 1.2  # a busy machine takes longer to begin
        known = now
    assert known
    found = searched(url, resume=True)
    undisturbed = solve(toy_problem(), search())
    assert [trial.strategy for trial in found.trials] == [
        trial.strategy for trial in undisturbed.trials
    ]
    assert [trial.cost for trial in found.trials] == [trial.cost for trial in undisturbed.trials]
