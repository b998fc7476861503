"""Whoever has a schedule of their own writes one file; everything else finds it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.newcomers.packages import Package, autotune

pytestmark = pytest.mark.slow(seconds=1)  # each starts processes

REVERSED_GPIPE = '''
"""GPipe whose backward passes come in the opposite order."""

from distir.schedules import Schedule, parse_schedule, schedule_family


@schedule_family("reversed-gpipe", summary="last in, first out", source="this test")
def reversed_gpipe(ranks: int, chunks: int, microbatches: int) -> Schedule:
    """All forward passes, then all backward passes from the last microbatch on."""
    rows = (
        [f"{rank}F{m}" for m in range(microbatches)]
        + [f"{rank}B{m}" for m in reversed(range(microbatches))]
        for rank in range(ranks)
    )
    return parse_schedule("\\n".join(" ".join(row) for row in rows))
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    points = {"distir.schedules": {"reversed-gpipe": "their_schedule"}}
    package = Package("their_schedule", REVERSED_GPIPE, points)
    return package.write(tmp_path_factory.mktemp("schedule"))


def test_a_schedule_of_ones_own_is_listed_with_the_others(folder: Path) -> None:
    shown = autotune(folder, "schedules")
    assert "last in, first out" in shown
    assert shown.index("chimera") < shown.index("reversed-gpipe")


def test_a_schedule_of_ones_own_is_simulated(folder: Path) -> None:
    options = ["--model", "gpt2", "--pp", "4", "--microbatches", "8", "--schedule"]
    ours = json.loads(autotune(folder, "simulate", *options, "reversed-gpipe", "--json", "-"))
    gpipe = json.loads(autotune(folder, "simulate", *options, "gpipe", "--json", "-"))
    # As many forward passes are kept; the pipeline turns round at once.
    peak = "peak_memory_bytes"
    assert ours["metrics"][peak] == gpipe["metrics"][peak]
    assert ours["metrics"]["iteration_seconds"] <= gpipe["metrics"]["iteration_seconds"]


def test_a_schedule_of_ones_own_computes_what_one_device_computes(folder: Path) -> None:
    plan = ["--pp", "2", "--microbatches", "4", "--schedule", "reversed-gpipe"]
    assert "The same numbers" in autotune(folder, "verify", "--model", "gpt2", *plan)


def test_a_schedule_of_ones_own_is_searched(folder: Path) -> None:
    (folder / "space.yaml").write_text("schedule: [1f1b, reversed-gpipe]\npp: [2, 4]\n")
    options = ["--model", "gpt2", "--devices", "4", "--space", "space.yaml", "--json", "-"]
    found = json.loads(autotune(folder, "grid", *options))
    assert {each["strategy"]["schedule"] for each in found["ranked"]} == {"1f1b", "reversed-gpipe"}
