"""Many workers on one study: nothing is lost, nothing is made twice, the budget is the study's."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing
from typing import Any

import optuna
import pytest

from tests.autotune.durable.conftest import PROBLEM, Searches, labels, wait_until

RUN = ("run", *PROBLEM, "--objective", "train.py:cost", "--no-tracking", "--quiet")
STORAGES = ("sqlite:///study.db", "journal:study.log")


def stored(searches: Searches, storage: str, name: str = "mine") -> list[optuna.trial.FrozenTrial]:
    """The trials of a study, as Optuna has them."""
    from autotune.durable.optuna_storage import StoredStudy

    kind, _, rest = storage.partition(":")
    rest = rest.removeprefix("///")
    file = searches.folder / rest
    study = StoredStudy.find(f"journal:{file}" if kind == "journal" else f"sqlite:///{file}", name)
    assert study is not None
    return study.optuna.trials


@pytest.mark.slow(seconds=15)
@pytest.mark.parametrize("storage", STORAGES)
def test_workers_share_one_budget_and_make_no_trial_twice(searches: Searches, storage: str) -> None:
    kept = ("--storage", storage, "--study", "mine")
    found = searches.json(*RUN, *kept, "--trials", "30", "--workers", "4", seconds=0.3)
    assert len(found["trials"]) == len(set(labels(found))) == 30
    assert Counter(searches.begun()) == Counter(labels(found))
    trials = stored(searches, storage)
    counted = [each for each in trials if "withdrawn" not in each.user_attrs]
    assert len(counted) == 30
    assert all(each.state.is_finished() for each in trials)
    assert len({each.user_attrs["worker"]["pid"] for each in counted}) > 1


@pytest.mark.slow(seconds=20)
def test_tasks_of_a_dask_cluster_work_on_a_study_until_its_end(searches: Searches) -> None:
    distributed: Any = pytest.importorskip("distributed", reason="the cluster is Dask's")
    kept = ("--storage", f"sqlite:///{searches.folder / 'study.db'}", "--study", "mine")
    searches.killed_after(1, *RUN, *kept, "--trials", "16", seconds=0.5)
    told = {"DURABLE_FOLDER": str(searches.folder), "DURABLE_SECONDS": "0.5"}
    work = [sys.executable, "-m", "autotune", "work", *kept, "--quiet"]
    with distributed.Client(n_workers=2, threads_per_worker=1, dashboard_address=None) as client:
        tasks = [
            client.submit(subprocess.call, work, env={**os.environ, **told}, pure=False)
            for _ in range(2)
        ]
        assert client.gather(tasks) == [0, 0]
    trials = [each for each in stored(searches, "sqlite:///study.db") if each.values]
    assert len(trials) == len({each.user_attrs["plan"] for each in trials}) == 16
    assert len({each.user_attrs["worker"]["pid"] for each in trials}) > 1


@pytest.mark.slow(seconds=10)
def test_a_trial_whose_worker_dies_is_made_again_by_another(searches: Searches) -> None:
    kept = ("--storage", "sqlite:///study.db", "--study", "mine")
    first = searches.start(*RUN, *kept, "--trials", "6", seconds=1.0)
    wait_until(lambda: len(searches.begun()) == 1)
    other = searches.start("work", *kept, "--json", "-", "--quiet", seconds=0.2)
    wait_until(lambda: len(searches.begun()) >= 3)
    first.kill()
    first.communicate()
    out, err = other.communicate(timeout=300)
    assert other.returncode == 0, err
    again = [label for label, times in Counter(searches.begun()).items() if times > 1]
    assert len(again) <= 1  # none if it was killed between two trials
    trials = [each for each in stored(searches, "sqlite:///study.db") if each.values]
    assert len(trials) == len({each.user_attrs["plan"] for each in trials}) == 6
    assert '"stopped_because": "trials"' in out


@pytest.mark.slow(seconds=10)
def test_a_strategy_that_kills_its_workers_fails_after_the_retries(searches: Searches) -> None:
    kept = ("--storage", "sqlite:///study.db", "--study", "mine")
    options = (*kept, "--trials", "1", "--no-tracking")
    searches.killed_after(1, *RUN, *options, seconds=30)
    searches.killed_after(1, "run", *options, "--resume", seconds=30)
    found = searches.json("run", *options, "--resume", status=1)
    assert "the worker died while trying this, 2 times" in found["trials"][0]["reason"]
    assert len(searches.begun()) == 2


@pytest.mark.slow(seconds=10)
def test_an_interrupted_trial_is_given_back_and_no_worker_is_left(searches: Searches) -> None:
    kept = ("--storage", "sqlite:///study.db", "--study", "mine")
    process = searches.start(*RUN, *kept, "--workers", "2", "--json", "-", seconds=1.0)
    wait_until(lambda: len(searches.begun()) >= 4)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert '"stopped_because": "interrupted"' in out
    trials = stored(searches, "sqlite:///study.db")
    assert all(each.state.is_finished() for each in trials)
    assert all("withdrawn" in each.user_attrs for each in trials if not each.values)
    assert not workers_of(process)


def workers_of(process: subprocess.Popen[str]) -> list[str]:
    """Processes that were started to help one."""
    listed = subprocess.run(["ps", "-A", "-o", "args="], capture_output=True, text=True, check=True)
    return [line for line in listed.stdout.splitlines() if f"--parent {process.pid} " in line]


@pytest.mark.slow(seconds=10)
def test_workers_end_with_who_started_them(searches: Searches) -> None:
    kept = ("--storage", "sqlite:///study.db", "--study", "mine")
    process = searches.start(*RUN, *kept, "--workers", "3", seconds=1.0)
    wait_until(lambda: len(searches.begun()) >= 1)
    assert len(workers_of(process)) == 2
    process.kill()
    process.communicate()
    wait_until(lambda: not workers_of(process), seconds=10)


@pytest.mark.slow(seconds=5)
def test_the_time_of_a_study_is_that_of_all_its_processes(searches: Searches) -> None:
    """And of nothing between them. Nothing is asked of how quick this machine is."""
    storage = "sqlite:///study.db"
    kept = ("--storage", storage, "--study", "mine")
    found = searches.json(*RUN, *kept, "--timeout", "4s", "--trials", "100", seconds=0.5)
    assert found["stopped_because"] == "timeout"
    outcomes = [each.user_attrs["outcome"] for each in stored(searches, storage)]
    spent = sum(outcome["seconds"] for outcome in outcomes)
    an_hour_passes(searches)
    resumed = ("run", *kept, "--resume", "--no-tracking")
    more: Any = searches.json(
        *resumed, "--timeout", f"{spent + 600}s", "--trials", f"{len(found['trials']) + 1}"
    )
    assert more["stopped_because"] == "trials"
    again = searches.json(*resumed, "--timeout", f"{spent}s", "--trials", "100")
    assert again["stopped_because"] == "timeout"
    assert len(again["trials"]) == len(more["trials"])


def an_hour_passes(searches: Searches) -> None:
    """Has all that a study knows be an hour older."""
    with closing(sqlite3.connect(searches.folder / "study.db")) as database, database:
        database.execute(
            "update trial_user_attributes set value_json = json_set(value_json, '$.started', "
            "json_extract(value_json, '$.started') - 3600) where key = 'outcome'"
        )
