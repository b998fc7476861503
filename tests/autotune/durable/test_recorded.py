"""What MLflow has of a study that is killed and goes on: one run, each trial once, nothing open."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.autotune.durable.conftest import PROBLEM, Searches, labels, wait_until

KEPT = ("--storage", "sqlite:///study.db", "--study", "mine")
RUN = ("run", *PROBLEM, "--objective", "train.py:cost", "--trials", "8", *KEPT, "--quiet")
RESUME = ("run", *KEPT, "--resume", "--quiet")
STORE = "mlflow.db"


def runs(searches: Searches, kind: str, store: str = STORE) -> list[Any]:
    """All runs of a kind in all experiments, the newest first."""
    from mlflow import MlflowClient

    if not (searches.folder / store).exists():
        return []
    client: Any = MlflowClient(f"sqlite:///{searches.folder / store}")
    ids = [each.experiment_id for each in client.search_experiments()]
    return client.search_runs(ids, f"tags.kind = '{kind}'", max_results=1000)


def statuses(found: list[Any]) -> Counter[str]:
    return Counter(each.info.status for each in found)


def killed_while_recording(searches: Searches, *options: str, trials: int = 2) -> None:
    """A search that is killed when so many more trials have runs."""
    there = len(runs(searches, "trial"))
    process = searches.start(*options, seconds=0.7)
    wait_until(lambda: len(runs(searches, "trial")) >= there + trials)
    process.kill()
    process.communicate()


@pytest.mark.slow(seconds=30)
def test_a_study_that_is_killed_goes_on_in_its_run_with_each_trial_once(
    searches: Searches,
) -> None:
    from mlflow import MlflowClient

    killed_while_recording(searches, *RUN, "--trials", "24")
    (begun,) = runs(searches, "study")
    assert begun.info.status == "RUNNING"
    killed_while_recording(searches, *RESUME)
    found = searches.json(*RESUME)
    assert found["mlflow"]["run_id"] == begun.info.run_id
    assert "note" not in found["mlflow"]
    (study,) = runs(searches, "study")
    assert study.info.status == "FINISHED"
    trials = runs(searches, "trial")
    whole = [each for each in trials if each.info.status == "FINISHED"]
    assert set(statuses(trials)) <= {"FINISHED", "KILLED"}
    assert sorted(each.info.run_name for each in whole) == sorted(labels(found))
    client: Any = MlflowClient(f"sqlite:///{searches.folder / STORE}")
    points = client.get_metric_history(study.info.run_id, "search/best_iteration_seconds")
    steps = [each.step for each in points]
    assert steps == sorted(set(steps))
    more = searches.json(*RESUME, "--trials", "26")
    file = client.download_artifacts(study.info.run_id, "trials.json")
    rows = json.loads(Path(file).read_text(encoding="utf-8"))["data"]
    assert more["mlflow"]["run_id"] == study.info.run_id
    assert len(rows) == len(more["trials"]) == 26


@pytest.mark.slow(seconds=20)
def test_a_run_that_the_store_has_lost_is_replaced_and_that_is_said(searches: Searches) -> None:
    from mlflow import MlflowClient

    first = searches.json(*RUN)["mlflow"]["run_id"]
    MlflowClient(f"sqlite:///{searches.folder / STORE}").delete_run(first)
    process = searches.start("run", *KEPT, "--resume", "--trials", "9")
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    (said,) = [line for line in out.splitlines() if first in line]
    assert said.strip() == f"The study's run {first} is no longer in the store; this is a new one."
    (study,) = runs(searches, "study")
    assert study.info.run_id != first
    assert statuses(runs(searches, "trial"))["FINISHED"] == 9 + 8


@pytest.mark.slow(seconds=20)
def test_a_study_goes_on_in_the_store_that_was_stated(searches: Searches) -> None:
    elsewhere = ("--tracking-uri", "sqlite:///other.db", "--experiment", "mine")
    first = searches.json(*RUN, *elsewhere)["mlflow"]
    again = searches.json(*RESUME, "--trials", "9")["mlflow"]
    assert again["run_id"] == first["run_id"]
    assert again["experiment"] == "mine"
    assert not (searches.folder / STORE).exists()


@pytest.mark.slow(seconds=30)
def test_a_worker_that_outlives_the_study_closes_its_run(searches: Searches) -> None:
    process = searches.start(*RUN, "--trials", "30", seconds=0.7)
    wait_until(lambda: len(runs(searches, "trial")) >= 1)
    worker = searches.start("work", *KEPT, "--quiet", seconds=0.7)
    alone = len(searches.begun())
    wait_until(lambda: len(searches.begun()) >= alone + 4 or worker.poll() is not None)
    process.kill()
    process.communicate()
    _, err = worker.communicate(timeout=300)
    assert worker.returncode == 0, err
    assert statuses(runs(searches, "study")) == {"KILLED": 1}
    assert "RUNNING" not in statuses(runs(searches, "trial"))


@pytest.mark.slow(seconds=20)
def test_two_searches_of_one_study_at_once_have_runs_of_their_own(searches: Searches) -> None:
    process = searches.start(*RUN, "--trials", "30", seconds=0.7)
    wait_until(lambda: len(runs(searches, "study")) >= 1)
    found = searches.json(*RESUME, seconds=0.3)
    assert "is being written by another process" in found["mlflow"]["note"]
    process.communicate(timeout=300)
    studies = runs(searches, "study")
    assert statuses(studies) == {"FINISHED": 2}
    for each in studies:
        names = [
            trial.info.run_name
            for trial in runs(searches, "trial")
            if trial.data.tags["mlflow.parentRunId"] == each.info.run_id
        ]
        assert sorted(names) == sorted(labels(found))
