"""Optuna's proxy goes away and comes back, or does not: a search waits, or ends with a line and
what it found."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.api import Search, solve
from autotune.durable import optuna_storage
from autotune.durable.stated import Kept
from autotune.testing import toy_problem
from distir.strategy import Strategy
from tests.autotune.durable.conftest import PROBLEM, Searches, labels, wait_until
from tests.autotune.durable.servers import free_port

RUN = ("run", *PROBLEM, "--objective", "train.py:cost", "--no-tracking", "--quiet")
SERVER = """
import sys
from optuna.storages import get_storage, run_grpc_proxy_server
run_grpc_proxy_server(get_storage(sys.argv[1]), host="127.0.0.1", port=int(sys.argv[2]))
"""


class Proxy:
    """Optuna's proxy of a database file, on one port however often it is started."""

    def __init__(self, folder: Path):
        self.port = free_port()
        self.database = f"sqlite:///{folder / 'behind.db'}"
        self.start()

    @property
    def url(self) -> str:
        return f"grpc://127.0.0.1:{self.port}"

    def start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVER, self.database, str(self.port)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_until(self._answers)

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def _answers(self) -> bool:
        with socket.socket() as there:
            return there.connect_ex(("127.0.0.1", self.port)) == 0


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[Proxy]:
    pytest.importorskip("grpc", reason="Optuna's proxy needs grpcio")
    found = Proxy(tmp_path)
    yield found
    found.kill()


@pytest.mark.slow(seconds=20)
def test_a_search_waits_for_a_proxy_that_comes_back(searches: Searches, proxy: Proxy) -> None:
    kept = ("--storage", proxy.url, "--study", "patient")
    process = searches.start(*RUN, *kept, "--trials", "6", "--json", "-", seconds=0.5)
    wait_until(lambda: len(searches.begun()) >= 2)
    proxy.kill()
    begun = len(searches.begun())
    time.sleep(3)
    assert process.poll() is None
    assert len(searches.begun()) <= begun + 1
    proxy.start()
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert err == ""
    assert '"stopped_because": "trials"' in out
    found = searches.json("run", *kept, "--resume", "--no-tracking", "--quiet")
    assert len(set(labels(found))) == len(found["trials"]) == 6
    assert sorted(searches.begun()) == sorted(labels(found))


@pytest.mark.slow(seconds=10)
def test_a_proxy_that_does_not_come_back_ends_a_search_with_what_it_found(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optuna_storage, "PATIENCE_SECONDS", 2.0)
    problem = toy_problem()
    measured: list[Strategy] = []

    def cost(strategy: Strategy) -> float:
        measured.append(strategy)
        if len(measured) == 3:
            proxy.kill()
        return problem.simulate(strategy).metrics["iteration_seconds"]

    search = Search(objective=cost, trials=6, isolate=False)
    began = time.monotonic()
    result = solve(problem, search, kept=Kept(storage=proxy.url, study="forsaken"))
    assert time.monotonic() - began < 60
    assert [trial.strategy for trial in result.trials] == measured
    assert result.to_dict()["stopped_because"] == "storage"
    assert result.error is not None
    assert result.error.startswith(f"the storage {proxy.url} failed: ")
    assert "\n" not in result.error


@pytest.mark.slow(seconds=10)
def test_a_proxy_that_is_not_there_is_said_in_a_line(searches: Searches) -> None:
    pytest.importorskip("grpc", reason="Optuna's proxy needs grpcio")
    where = f"grpc://127.0.0.1:{free_port()}"
    said = searches.refused(*RUN, "--storage", where, "--study", "mine")
    assert f"the storage {where} cannot be opened: nothing answered within 5 s" in said
