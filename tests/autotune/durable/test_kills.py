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


def searched(url: str, name: str, *, resume: bool) -> TuneResult:
    kept = Kept(storage=url, study=name, resume=resume, retries=KILLS)
    return solve(toy_problem(), search(), kept=kept)


def search() -> Search:
    return Search(
        objective=seconds, trials=TRIALS, sampler="random", isolate=False, compare_grid=False
    )


def killed_at_some_instant(url: str, name: str, within: float) -> bool:
    """Has a process begin or go on with the study, and kills it. Whether it was still at it."""
    resume = is_begun(url, name)
    child = os.fork()
    if child == 0:
        try:
            searched(url, name, resume=resume)
        finally:
            os._exit(0)
    time.sleep(within)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def is_begun(url: str, name: str) -> bool:
    study = StoredStudy.find(url, name)
    return study is not None and "problem" in study.attributes()


def done(url: str, name: str) -> dict[Strategy, int]:
    """The number of the trial of every strategy that is done."""
    study = StoredStudy.find(url, name)
    if study is None:
        return {}
    study.over(toy_problem().space)
    entries = entries_of(study.attempts(), retries=KILLS)
    study.close()
    return {each.strategy: each.number for each in entries if each.evaluation is not None}


def check_whole(url: str, name: str) -> None:
    """Goes on to the end, which is that of a search that nobody disturbs."""
    found, undisturbed = searched(url, name, resume=True), solve(toy_problem(), search())
    assert [(trial.strategy, trial.cost) for trial in found.trials] == [
        (trial.strategy, trial.cost) for trial in undisturbed.trials
    ]


@pytest.mark.slow(seconds=150)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks the searches that it kills")
@pytest.mark.parametrize("kind", ["sqlite:///", "journal:"])
def test_a_hundred_kills_lose_nothing_and_double_nothing(kind: str, tmp_path: Path) -> None:
    """Of searches that have not come to their end: when one has, another one begins."""
    url = f"{kind}{tmp_path / 'study'}"
    rng = random.Random(7)
    StoredStudy.create(f"{kind}{tmp_path / 'warm'}", "imports", [False]).close()
    kills = studies = 0
    longest = 0.5
    while kills < KILLS:
        studies += 1
        name, known = f"study {studies}", dict[Strategy, int]()
        while len(known) < TRIALS and kills < KILLS:
            kills += killed_at_some_instant(url, name, rng.uniform(0.02, longest))
            now = done(url, name)
            assert now.items() >= known.items()
            if not now:
                longest *= 1.2  # a busy machine takes longer to begin
            known = now
        if known:
            check_whole(url, name)
    assert studies > 1
