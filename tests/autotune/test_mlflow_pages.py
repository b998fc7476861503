"""What MLflow's pages show behind the printed links, seen by a browser without a screen."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune import MlflowTracker, Search, TuneResult, solve
from autotune.testing import toy_problem

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
pytestmark = [
    pytest.mark.slow(seconds=60),
    pytest.mark.skipif(not BROWSER, reason="needs Chromium (apt-get install chromium)"),
    pytest.mark.skipif(sys.platform == "win32", reason="needs process groups"),
]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The printed links, on a server of its own."""
    folder = tmp_path_factory.mktemp("pages")
    uri = f"sqlite:///{folder}/mlflow.db"
    result: TuneResult = solve(toy_problem(), Search(trials=12), tracker=MlflowTracker(uri))
    assert result.tracking is not None
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "ui", "--backend-store-uri", uri]
    server = subprocess.Popen(
        [*command, "--port", str(port), "--workers", "1"],
        cwd=folder,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 120
        while True:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2).close()
                break
            assert time.monotonic() < deadline
            time.sleep(0.2)
        links = result.tracking.links
        yield {what: url.replace(":5000/", f":{port}/") for what, url in links.items()}
    finally:
        os.killpg(server.pid, 9)
        server.wait()


def seen(url: str, folder: Path) -> str:
    """The page as a browser has it once its scripts have run."""
    command = [BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    waits = ["--virtual-time-budget=40000", "--timeout=60000", "--window-size=1600,1000"]
    profile = f"--user-data-dir={folder}"
    done = subprocess.run(
        [*command, *waits, profile, url], capture_output=True, text=True, check=False, timeout=180
    )
    return done.stdout


def test_the_printed_links_show_what_they_are_called(pages: dict[str, str], tmp_path: Path) -> None:
    trials = seen(pages["all trials"], tmp_path / "1")
    assert "Model training" in trials
    for column in (
        "memory_gib",
        "regret_pct",
        "throughput_samples_per_second",
        "iteration_seconds",
    ):
        assert column in trials
    assert "dp16-tp1-pp1" in trials or "matching runs" in trials
    regions = seen(pages["regions of the space"], tmp_path / "2")
    assert "Regions of the space" in regions
    assert "Parallel Coordinates" in regions
    study = seen(pages["this study"], tmp_path / "3")
    assert "Best plan" in study
    report = seen(pages["its report"], tmp_path / "5")
    assert "mlflow-html-iframe" in report
    searches = seen(pages["searches against the grid"], tmp_path / "4")
    assert "bounds throughput, " in searches
    assert "grid, all 134" in searches
    assert "Searches against the grid" in searches
    assert "final_regret_pct" in searches
