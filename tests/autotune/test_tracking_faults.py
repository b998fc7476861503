"""A store that fails for a while gets everything in the end, once; one that does not come back is
told of once; and runs that begin together make one store."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import select
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune import Search, TuneResult, solve
from autotune.file_lock import locked
from autotune.testing import toy_problem
from autotune.trackers import patience
from autotune.trackers.mlflow import MlflowTracker
from autotune.trackers.mlflow import tracker as writing
from autotune.trackers.patience import Patience
from distir.strategy import Strategy


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "FIRST_PAUSE_SECONDS", 0.001)


def recorded(result: TuneResult) -> list[tuple[Any, ...]]:
    """All that there is of a study, without ids and times."""
    from mlflow import MlflowClient

    assert result.tracking is not None
    assert result.tracking.error is None
    client: Any = MlflowClient(result.tracking.tracking_uri)
    found: list[tuple[Any, ...]] = []
    for run in client.search_runs([str(result.tracking.experiment_id)], max_results=1000):
        metrics = {
            name: [
                (point.step, point.value)
                for point in client.get_metric_history(run.info.run_id, name)
            ]
            for name in run.data.metrics
        }
        tables = [file.path for file in client.list_artifacts(run.info.run_id)]
        found.append((run.info.run_name, run.info.status, run.data.params, metrics, tables))
    return sorted(found, key=str)


def rows_of_table(result: TuneResult) -> int:
    from mlflow import MlflowClient

    assert result.tracking is not None
    client = MlflowClient(result.tracking.tracking_uri)
    path = client.download_artifacts(str(result.tracking.run_id), "trials.json")
    return len(json.loads(Path(path).read_text(encoding="utf-8"))["data"])


@pytest.mark.slow(seconds=6)
def test_a_store_that_fails_now_and_then_has_everything_once_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    monkeypatch.chdir(tmp_path)
    search = Search(trials=15)
    calm = solve(toy_problem(), search, tracker=MlflowTracker(f"sqlite:///{tmp_path}/calm.db", "x"))
    expected = recorded(calm)

    rng, failures = random.Random(0), itertools.count()

    def unreliable(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            luck = rng.random()
            if luck < 0.2:
                raise OSError(f"database is locked: lost on the way there, {next(failures)}")
            answer = method(*arguments, **options)
            if luck < 0.4:
                raise OSError(f"database is locked: lost on the way back, {next(failures)}")
            return answer

        return call

    with monkeypatch.context() as patch:
        calls = ("create_run", "log_batch", "log_table", "log_artifact", "set_terminated")
        for name in (*calls, "search_runs"):
            patch.setattr(MlflowClient, name, unreliable(getattr(MlflowClient, name)))
        tracker = MlflowTracker(f"sqlite:///{tmp_path}/wild.db", "x")
        wild = solve(toy_problem(), search, tracker=tracker)
    assert next(failures) > 10
    assert recorded(wild) == expected
    assert rows_of_table(wild) == rows_of_table(calm) == 15


def test_patience_is_endless_while_there_is_something_else_to_wait_for_and_then_ends() -> None:
    waiting = Patience(lambda error: True, seconds=0.05, first_seconds=0.01)
    calls = itertools.count()

    def recovers() -> int:
        if (number := next(calls)) < 5:
            time.sleep(0.02)
            raise ConnectionError
        return number

    assert waiting.attempt(recovers) == 5
    waiting.end()

    def never() -> None:
        raise ConnectionError("gone")

    began = time.monotonic()
    with pytest.raises(ConnectionError, match="gone"):
        waiting.attempt(never)
    assert time.monotonic() - began > 0.05
    assert waiting.is_spent


def test_what_will_not_pass_is_not_tried_again() -> None:
    calls: list[int] = []

    def wrong() -> None:
        calls.append(1)
        raise KeyError("wrong")

    with pytest.raises(KeyError, match="wrong"):
        Patience(lambda error: False, 1.0, 1.0).attempt(wrong)
    assert len(calls) == 1


@pytest.mark.slow(seconds=3)
def test_a_server_that_is_not_there_is_told_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "FIRST_PATIENCE_SECONDS", 0.5)
    uri = f"http://127.0.0.1:{free_port()}"
    result = solve(toy_problem(), Search(trials=5), tracker=MlflowTracker(uri))
    assert result.tracking is not None
    assert str(result.tracking.error).startswith(f"no answer from {uri} within 0.5 s (Mlflow")
    assert str(result).count("Tracking failed") == 1


def test_one_holds_a_lock_at_a_time_and_no_file_is_left(tmp_path: Path) -> None:
    lock, inside, most = tmp_path / "lock", [0], [0]

    def hold() -> None:
        for _ in range(20):
            with locked(lock):
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                time.sleep(0.0002)
                inside[0] -= 1

    threads = [threading.Thread(target=hold) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]
    assert not lock.exists()


@pytest.mark.slow(seconds=60)
def test_runs_that_begin_together_on_a_fresh_store_are_all_recorded(tmp_path: Path) -> None:
    from mlflow import MlflowClient

    command = [sys.executable, "-m", "autotune", "run", "--model", "mlp-2x8", "--devices", "4"]
    command += ["--sampler", "tpe"]
    started = [
        subprocess.Popen(
            [*command, "--batch-size", "16", "--trials", "3", "--seed", str(seed), "--json", "-"],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for seed in range(8)
    ]
    ids: set[str] = set()
    for process in started:
        said, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
        told = json.loads(said)["mlflow"]
        assert "error" not in told, told
        ids.add(told["run_id"])
    client: Any = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    (experiment,) = [each for each in client.search_experiments() if each.name != "Default"]
    runs = client.search_runs([experiment.experiment_id], "tags.searcher = 'tpe'", max_results=1000)
    assert {run.info.run_id for run in runs if run.data.tags["kind"] == "study"} == ids
    assert len(runs) == 8 * (1 + 3)
    assert {run.info.status for run in runs} == {"FINISHED"}
    assert {file.name for file in tmp_path.iterdir()} == {"mlflow.db", "mlruns"}


# A server that goes away


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


class Proxy:
    """Forwards connections to a port, except while it is `down`: then they are refused or cut."""

    def __init__(self, port: int):
        self._to = port
        self.port = free_port()
        self.down = threading.Event()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while not self._over.is_set():
            if self.down.is_set():
                time.sleep(0.05)
                continue
            with socket.create_server(("127.0.0.1", self.port)) as server:
                server.settimeout(0.05)
                while not (self.down.is_set() or self._over.is_set()):
                    with contextlib.suppress(TimeoutError):
                        near, _ = server.accept()
                        threading.Thread(target=self._forward, args=(near,), daemon=True).start()

    def _forward(self, near: socket.socket) -> None:
        target = ("127.0.0.1", self._to)
        with contextlib.suppress(OSError), near, socket.create_connection(target) as far:
            other = {near: far, far: near}
            while not (self.down.is_set() or self._over.is_set()):
                for ready in select.select([near, far], [], [], 0.05)[0]:
                    data = ready.recv(1 << 16)
                    if not data:
                        return
                    other[ready].sendall(data)

    def close(self) -> None:
        self._over.set()
        self._thread.join()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[int]:
    """The port of a real MLflow server."""
    port = free_port()
    command = [sys.executable, "-m", "mlflow", "server", "--port", str(port), "--workers", "1"]
    store = ["--backend-store-uri", f"sqlite:///{tmp_path}/server.db"]
    artifacts = ["--artifacts-destination", str(tmp_path / "artifacts")]
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(
        [*command, *store, *artifacts], start_new_session=True, cwd=tmp_path, **quiet
    )
    try:
        deadline = time.monotonic() + 120
        while True:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2).close()
                break
            assert time.monotonic() < deadline
            time.sleep(0.2)
        yield port
    finally:
        os.killpg(process.pid, 9)
        process.wait()


@contextlib.contextmanager
def going_away(proxy: Proxy, after: float, seconds: float) -> Generator[None, None, None]:
    def leave() -> None:
        time.sleep(after)
        proxy.down.set()
        time.sleep(seconds)
        proxy.down.clear()

    thread = threading.Thread(target=leave)
    thread.start()
    yield
    thread.join()


@pytest.mark.slow(seconds=60)
@pytest.mark.skipif(sys.platform == "win32", reason="needs process groups")
@pytest.mark.parametrize("after", [3.0, 7.5], ids=["midway", "near the end"])
def test_a_server_that_goes_away_for_12_seconds_has_everything_in_the_end(
    server: int, after: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "LIVE_AFTER_SECONDS", 1.0)
    seen: list[Exception] = []
    judged = writing.may_pass

    def noting(error: Exception, uri: str) -> bool:
        seen.append(error)
        return judged(error, uri)

    monkeypatch.setattr(writing, "may_pass", noting)

    def takes_a_while(strategy: Strategy) -> float:
        time.sleep(0.4)
        return float(strategy.dp)

    proxy = Proxy(server)
    uri = f"http://127.0.0.1:{proxy.port}"
    try:
        with going_away(proxy, after, 12.0):
            search = Search(trials=20, objective=takes_a_while, sampler="random")
            result = solve(toy_problem(), search, tracker=MlflowTracker(uri))
        assert result.tracking is not None
        assert result.tracking.error is None
        assert seen
        runs = recorded(result)
        assert len(runs) == 1 + 20
        assert {status for _, status, *_ in runs} == {"FINISHED"}
        (steps,) = [
            metrics["search/best_value"]
            for _, _, _, metrics, _ in runs
            if "search/best_value" in metrics
        ]
        assert [step for step, _ in steps] == list(range(20))
        assert rows_of_table(result) == 20
    finally:
        proxy.close()
