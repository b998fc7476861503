"""Studies on a PostgreSQL server: many workers, several studies, a server that goes and comes."""

from __future__ import annotations

import subprocess
import time
from collections import Counter

import pytest

from autotune.durable.optuna_storage import StoredStudy
from tests.autotune.durable.conftest import PROBLEM, Searches, labels, wait_until
from tests.autotune.durable.servers import Server

RUN = ("run", *PROBLEM, "--objective", "train.py:cost", "--no-tracking", "--quiet")


@pytest.mark.slow(seconds=40)
def test_eight_workers_share_a_study_on_a_server(searches: Searches, postgresql: Server) -> None:
    kept = ("--storage", postgresql.url, "--study", "eight")
    found = searches.json(*RUN, *kept, "--trials", "40", "--workers", "8", seconds=0.5)
    assert len(found["trials"]) == len(set(labels(found))) == 40
    assert Counter(searches.begun()) == Counter(labels(found))


@pytest.mark.slow(seconds=15)
def test_two_studies_of_one_database_do_not_meet(searches: Searches, postgresql: Server) -> None:
    kept = ("--storage", postgresql.url, "--study")
    both = [
        searches.start(*RUN, *kept, name, "--trials", "8", "--seed", "1", seconds=0.1)
        for name in ("one", "two")
    ]
    for process in both:
        _, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
    found = [searches.json("run", *kept, name, "--resume") for name in ("one", "two")]
    assert labels(found[0]) == labels(found[1])
    assert len(labels(found[0])) == 8


@pytest.mark.slow(seconds=15)
def test_a_search_waits_for_a_server_that_comes_back(
    searches: Searches, postgresql: Server
) -> None:
    kept = ("--storage", postgresql.url, "--study", "patient")
    process = searches.start(*RUN, *kept, "--trials", "6", "--json", "-", seconds=0.5)
    wait_until(lambda: len(searches.begun()) >= 2)
    postgresql.stop()
    time.sleep(3)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=0.1)
    postgresql.start()
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert '"stopped_because": "trials"' in out
    study = StoredStudy.find(postgresql.url, "patient")
    assert study is not None
    done = [each.user_attrs["plan"] for each in study.optuna.trials if each.values]
    study.close()
    assert len(done) == len(set(done)) == 6
