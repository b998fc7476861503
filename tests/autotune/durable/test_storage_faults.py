"""A storage that is full ends a search with a line and what it found; one that is locked is waited
for."""

from __future__ import annotations

import json
import shlex
import sqlite3
import subprocess
import sys
import time

import pytest

from tests.autotune.durable.conftest import PROBLEM, Searches, labels, wait_until

RUN = ("run", *PROBLEM, "--objective", "train.py:cost", "--sampler", "random", "--trials", "40")
QUIET = ("--no-tracking", "--quiet")
KIBIBYTES = 40


@pytest.mark.slow(seconds=10)
@pytest.mark.skipif(sys.platform != "linux", reason="limits the size of files as bash does it")
def test_a_full_disk_ends_a_search_with_a_line_and_what_it_found(searches: Searches) -> None:
    kept = ("--storage", f"journal:{searches.folder / 'study'}", "--study", "mine")
    (searches.folder / "cost.py").write_text("def cost(strategy):\n    return 1.0 / strategy.dp\n")
    options = [word.replace("train.py", "cost.py") for word in (*RUN, *QUIET, *kept)]
    command = shlex.join([sys.executable, "-m", "autotune", *options, "--json", "-"])
    done = subprocess.run(
        ["bash", "-c", f"ulimit -f {KIBIBYTES}; {command}"],
        cwd=searches.folder, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "File too large; the search ended after" in done.stderr
    found = json.loads(done.stdout)
    assert found["stopped_because"] == "storage"
    assert 0 < len(found["trials"]) < 40
    resumed = searches.json("run", *kept, "--resume", *QUIET)
    assert len(set(labels(resumed))) == len(labels(resumed)) == 40
    assert set(labels(found)) <= set(labels(resumed))


@pytest.mark.slow(seconds=15)
def test_a_locked_database_is_waited_for(searches: Searches) -> None:
    kept = ("--storage", "sqlite:///study.db", "--study", "mine")
    process = searches.start(*RUN, *QUIET, *kept, "--json", "-", seconds=0.05)
    wait_until(lambda: len(searches.begun()) >= 3)
    other = sqlite3.connect(searches.folder / "study.db", timeout=30, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    begun = len(searches.begun())
    time.sleep(3)
    assert len(searches.begun()) <= begun + 1
    assert process.poll() is None
    other.execute("COMMIT")
    other.close()
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    found = json.loads(out)
    assert found["stopped_because"] == "trials"
    assert len(set(labels(found))) == 40
